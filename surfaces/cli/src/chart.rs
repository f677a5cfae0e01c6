//! Charts for people, as SVG.

use std::path::Path;

use plotters::prelude::*;

use stdchk::{Error, Result};

/// Charts are drawn as SVG only.
pub fn check_name(path: &Path) -> Result<()> {
    if path.extension().is_some_and(|end| end.eq_ignore_ascii_case("svg")) {
        return Ok(());
    }
    Err(Error::invalid(format!("{}: charts are drawn as SVG; give a name that ends in .svg", path.display())))
}

const BAR: u32 = 26;
const WIDTH: u32 = 860;

/// Bars with names beside them, from zero on.
pub fn bars(path: &Path, title: &str, unit: &str, bars: &[(String, f64)]) -> Result<()> {
    let failed = |error: &dyn std::fmt::Display| {
        Error::invalid(format!("{} cannot be drawn: {error}", path.display()))
    };
    let most = bars.iter().map(|(_, value)| *value).fold(1e-9, f64::max) * 1.1;
    let area = SVGBackend::new(path, (WIDTH, BAR * bars.len() as u32 + 110)).into_drawing_area();
    area.fill(&WHITE).map_err(|error| failed(&error))?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(230)
        .build_cartesian_2d(0.0..most, (0..bars.len() as i32 - 1).into_segmented())
        .map_err(|error| failed(&error))?;
    // The first one is at the top.
    let name = |at: &SegmentValue<i32>| match at {
        SegmentValue::CenterOf(at) => bars[bars.len() - 1 - *at as usize].0.clone(),
        _ => String::new(),
    };
    chart
        .configure_mesh()
        .disable_y_mesh()
        .x_desc(unit)
        .y_labels(bars.len())
        .y_label_formatter(&name)
        .label_style(("sans-serif", 13))
        .draw()
        .map_err(|error| failed(&error))?;
    let rectangle = |(at, (_, value)): (usize, &(String, f64))| {
        let at = (bars.len() - 1 - at) as i32;
        let corners = [(0.0, SegmentValue::Exact(at)), (*value, SegmentValue::Exact(at + 1))];
        let mut bar = Rectangle::new(corners, RGBColor(46, 99, 158).filled());
        bar.set_margin(4, 4, 0, 0);
        bar
    };
    chart.draw_series(bars.iter().enumerate().map(rectangle)).map_err(|error| failed(&error))?;
    let label = |(at, (_, value)): (usize, &(String, f64))| {
        let at = (bars.len() - 1 - at) as i32;
        let place = (*value, SegmentValue::CenterOf(at));
        EmptyElement::at(place) + Text::new(format!("{value:.1}"), (4, -6), ("sans-serif", 12))
    };
    chart.draw_series(bars.iter().enumerate().map(label)).map_err(|error| failed(&error))?;
    area.present().map_err(|error| failed(&error))
}
