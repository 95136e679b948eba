//! The table as an SVG of two charts: distortions, and how far above the limit they lie.

use super::distortion::Distortion;
use crate::plot::{Area, COLORS, Curve, DrawResult, chart, heights, write_svg};
use anyhow::Result;
use plotters::coord::combinators::IntoLogRange;
use plotters::prelude::*;
use std::path::Path;

const SIZE: (u32, u32) = (1200, 560);

pub fn write(path: &Path, rows: &[Distortion]) -> Result<()> {
    write_svg(path, SIZE, |root| draw(root, rows))
}

fn draw(root: &Area, rows: &[Distortion]) -> DrawResult {
    root.fill(&WHITE)?;
    let (left, right) = root.split_horizontally(SIZE.0 / 2);
    let absolute = curves(rows, |_| 1.0);
    let (low, high) = heights(&absolute);
    let decades = (low / 1.3..high * 1.3).log_scale();
    let place = SeriesLabelPosition::UpperRight;
    let title = "Mean squared error on N(0,1)";
    chart(&left, title, "mean squared error", decades, place, &absolute)?;
    let relative = curves(rows, |row| row.limit);
    let above = 0.0f64.max(heights(&relative).1 - 1.0);
    let linear = 1.0 - 0.05 * above..1.0 + 1.1 * above;
    let place = SeriesLabelPosition::UpperLeft;
    let title = "Distance from the limit";
    chart(&right, title, "mean squared error / limit", linear, place, &relative)
}

/// One curve a code, L and scale rule in the order of the table, then the references; heights are
/// divided by `unit`.
fn curves(rows: &[Distortion], unit: fn(&Distortion) -> f64) -> Vec<Curve> {
    let mut curves: Vec<Curve> = Vec::new();
    let mut families: Vec<(&str, u32)> = Vec::new();
    for row in rows {
        let family = (row.code, row.state_bits);
        let at = families.iter().position(|&known| known == family).unwrap_or_else(|| {
            families.push(family);
            families.len() - 1
        });
        let name = format!("{} L={} {}", row.code, row.state_bits, row.scale_rule);
        let point = (f64::from(row.bits), row.mse / unit(row));
        match curves.iter_mut().find(|curve| curve.name == name) {
            Some(curve) => curve.points.push(point),
            None => {
                let width = if row.scale_rule == "baseline" { 1 } else { 3 };
                let color = COLORS[at % COLORS.len()];
                curves.push(Curve { name, color, width, points: vec![point] });
            }
        }
    }
    let paper = rows.iter().filter_map(|row| Some((row, row.paper?)));
    curves.push(reference("QTIP, Table 2", RGBColor(120, 120, 120), paper, unit));
    let limit = rows.iter().map(|row| (row, row.limit));
    curves.push(reference("limit 2^-2K", BLACK, limit, unit));
    curves.retain(|curve| !curve.points.is_empty());
    curves
}

fn reference<'a>(
    name: &str,
    color: RGBColor,
    heights: impl Iterator<Item = (&'a Distortion, f64)>,
    unit: fn(&Distortion) -> f64,
) -> Curve {
    let point = |(row, height): (&Distortion, f64)| (f64::from(row.bits), height / unit(row));
    let mut points: Vec<(f64, f64)> = heights.map(point).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points.dedup_by(|a, b| a.0 == b.0);
    Curve { name: name.to_owned(), color, width: 1, points }
}
