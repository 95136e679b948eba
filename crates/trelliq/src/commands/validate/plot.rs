//! The table as an SVG of two charts: distortions, and how far above the limit they lie.

use super::distortion::Distortion;
use anyhow::Result;
use plotters::coord::Shift;
use plotters::coord::combinators::IntoLogRange;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use std::path::Path;

const SIZE: (u32, u32) = (1200, 560);
const FONT: &str = "sans-serif";

/// Colours that stay apart in print and to colour-blind eyes (Okabe and Ito).
const COLORS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

/// Points `(K, y)` under one name.
struct Curve {
    name: String,
    color: RGBColor,
    /// Baseline curves and references are drawn thin.
    width: u32,
    points: Vec<(f64, f64)>,
}

pub fn write(path: &Path, rows: &[Distortion]) -> Result<()> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        draw(&root, rows).map_err(|error| anyhow::anyhow!("{error}"))?;
        root.present().map_err(|error| anyhow::anyhow!("{error}"))?;
    }
    Ok(std::fs::write(path, svg)?)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type DrawResult = Result<(), Box<dyn std::error::Error>>;

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

/// The least and the greatest height.
fn heights(curves: &[Curve]) -> (f64, f64) {
    extremes(curves, |point| point.1)
}

fn extremes(curves: &[Curve], of: fn(&(f64, f64)) -> f64) -> (f64, f64) {
    let values = || curves.iter().flat_map(|curve| &curve.points).map(of);
    (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max))
}

fn chart<Y>(
    area: &Area,
    title: &str,
    y_label: &str,
    y: Y,
    legend: SeriesLabelPosition,
    curves: &[Curve],
) -> DrawResult
where
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    let (first, last) = extremes(curves, |point| point.0);
    let mut context = ChartBuilder::on(area)
        .caption(title, (FONT, 24))
        .margin(12)
        .x_label_area_size(48)
        .y_label_area_size(76)
        .build_cartesian_2d(first - 0.25..last + 0.25, y)?;
    context
        .configure_mesh()
        .x_desc("bits a weight (K)")
        .y_desc(y_label)
        .x_labels((last - first) as usize + 1)
        .x_max_light_lines(1)
        .x_label_formatter(&|bits| format!("{bits:.0}"))
        .y_label_formatter(&|value| format!("{value}"))
        .label_style((FONT, 16))
        .light_line_style(BLACK.mix(0.06))
        .draw()?;
    for curve in curves {
        let style = curve.color.stroke_width(curve.width);
        context
            .draw_series(LineSeries::new(curve.points.clone(), style).point_size(3))?
            .label(&curve.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    context
        .configure_series_labels()
        .position(legend)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.2))
        .label_font((FONT, 16))
        .draw()?;
    Ok(())
}
