//! Charts over bits a weight, as SVG.

use anyhow::Result;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use std::path::Path;

const FONT: &str = "sans-serif";

/// Colours that stay apart in print and to colour-blind eyes (Okabe and Ito).
pub const COLORS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

/// Points `(K, y)` under one name.
pub struct Curve {
    pub name: String,
    pub color: RGBColor,
    /// Curves to compare with are drawn thin.
    pub width: u32,
    pub points: Vec<(f64, f64)>,
}

pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub type DrawResult = Result<(), Box<dyn std::error::Error>>;

/// Writes what `draw` draws on an area of `size` pixels.
pub fn write_svg(
    path: &Path,
    size: (u32, u32),
    draw: impl FnOnce(&Area) -> DrawResult,
) -> Result<()> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        draw(&root).map_err(|error| anyhow::anyhow!("{error}"))?;
        root.present().map_err(|error| anyhow::anyhow!("{error}"))?;
    }
    Ok(std::fs::write(path, svg)?)
}

/// The least and the greatest height.
pub fn heights(curves: &[Curve]) -> (f64, f64) {
    extremes(curves, |point| point.1)
}

fn extremes(curves: &[Curve], of: fn(&(f64, f64)) -> f64) -> (f64, f64) {
    let values = || curves.iter().flat_map(|curve| &curve.points).map(of);
    (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max))
}

/// Curves over bits a weight, with a legend.
pub fn chart<Y>(
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
