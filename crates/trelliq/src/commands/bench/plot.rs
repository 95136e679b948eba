//! Rates of layers over bits a weight, one curve a kind of product.

use super::row::Row;
use crate::plot::{COLORS, Curve, chart, heights, write_svg};
use anyhow::{Result, bail};
use plotters::prelude::*;
use std::path::Path;

const SIZE: (u32, u32) = (900, 600);

pub fn write(path: &Path, rows: &[Row]) -> Result<()> {
    let curves = curves(rows);
    if curves.is_empty() {
        bail!("no layer was measured");
    }
    let top = 1.1 * heights(&curves).1;
    write_svg(path, SIZE, |root| {
        root.fill(&WHITE)?;
        let place = SeriesLabelPosition::LowerLeft;
        chart(root, "Packed layers", "G weights/s (times rows of x)", 0.0..top, place, &curves)
    })
}

fn curves(rows: &[Row]) -> Vec<Curve> {
    let mut curves: Vec<Curve> = Vec::new();
    for row in rows {
        let (Some(bits), Some(axis), Some(l)) = (row.bits, row.axis, row.state_bits) else {
            continue;
        };
        let (Some(inputs), Some(outputs)) = (row.cols, row.rows) else { continue };
        let name = format!(
            "{} axis {axis}, L={l}, {inputs}x{outputs}, M={}, {}, {:?}, {} threads",
            row.what.name(),
            row.m,
            row.numerics,
            row.from,
            row.threads
        );
        let point = (f64::from(bits), row.value);
        match curves.iter_mut().find(|curve| curve.name == name) {
            Some(curve) => curve.points.push(point),
            None => {
                let color = COLORS[curves.len() % COLORS.len()];
                curves.push(Curve { name, color, width: 2, points: vec![point] });
            }
        }
    }
    curves
}
