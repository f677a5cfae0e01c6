//! Charts for people.

use std::path::Path;

use plotters::coord::Shift;
use plotters::coord::ranged1d::ValueFormatter;
use plotters::prelude::*;

use stdchk::{Error, Result};

use crate::picture;

const BAR: u32 = 26;
const WIDTH: u32 = 860;
const PANEL: u32 = 380;
const COLOURS: [RGBColor; 5] = [
    RGBColor(46, 99, 158),
    RGBColor(200, 90, 30),
    RGBColor(60, 140, 70),
    RGBColor(120, 70, 150),
    RGBColor(90, 90, 90),
];

/// A line through points; a single point is a mark.
pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// One chart of several below each other. Its horizontal axis is logarithmic.
pub struct Panel {
    pub title: String,
    pub x: &'static str,
    pub y: &'static str,
    /// Whether the vertical axis is logarithmic, too; otherwise it begins at zero.
    pub log: bool,
    /// The corner in which the names of the lines are in the way of none.
    pub names: Corner,
    pub lines: Vec<Line>,
}

/// A corner of a chart.
#[derive(Clone, Copy)]
pub enum Corner {
    UpperLeft,
    UpperRight,
    LowerLeft,
    LowerRight,
}

impl Corner {
    fn position(self) -> SeriesLabelPosition {
        match self {
            Corner::UpperLeft => SeriesLabelPosition::UpperLeft,
            Corner::UpperRight => SeriesLabelPosition::UpperRight,
            Corner::LowerLeft => SeriesLabelPosition::LowerLeft,
            Corner::LowerRight => SeriesLabelPosition::LowerRight,
        }
    }
}

/// Draws panels below each other.
pub fn panels(path: &Path, panels: &[Panel]) -> Result<()> {
    let failed = |error: &dyn std::fmt::Display| {
        Error::invalid(format!("{} cannot be drawn: {error}", path.display()))
    };
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, (WIDTH, PANEL * panels.len() as u32)).into_drawing_area();
    area.fill(&WHITE).map_err(|error| failed(&error))?;
    for (area, panel) in area.split_evenly((panels.len(), 1)).iter().zip(panels) {
        let points = || panel.lines.iter().flat_map(|line| &line.points);
        let bounds = |value: fn(&(f64, f64)) -> f64| {
            let values = points().map(value);
            let (least, most) =
                values.fold((f64::INFINITY, 0.0), |(a, b), v| (f64::min(a, v), f64::max(b, v)));
            if least.is_finite() { (least, most) } else { (1.0, 2.0) }
        };
        let (x, y) = (bounds(|point| point.0), bounds(|point| point.1));
        let x = (x.0..x.1 * 1.02).log_scale();
        let mut builder = ChartBuilder::on(area);
        let titled = builder.caption(&panel.title, ("sans-serif", 18));
        let builder = titled.margin(12).x_label_area_size(44).y_label_area_size(70);
        if panel.log {
            let y = (y.0.max(1e-12) / 1.5..y.1.max(1e-12) * 1.5).log_scale();
            draw(builder.build_cartesian_2d(x, y).map_err(|error| failed(&error))?, panel)
        } else {
            draw(
                builder.build_cartesian_2d(x, 0.0..y.1.max(1e-9) * 1.08).map_err(|error| failed(&error))?,
                panel,
            )
        }
        .map_err(|error| failed(&error))?;
    }
    area.present().map_err(|error| failed(&error))?;
    drop(area);
    picture::write(path, &svg)
}

type Drawn = std::result::Result<(), DrawingAreaErrorKind<std::io::Error>>;

fn draw<'a, 'b: 'a, Y>(
    mut chart: ChartContext<'a, SVGBackend<'b>, Cartesian2d<LogCoord<f64>, Y>>,
    panel: &Panel,
) -> Drawn
where
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    // Whole numbers where they say enough.
    let number = |value: &f64| if *value >= 10.0 { format!("{value:.0}") } else { format!("{value}") };
    let mut mesh = chart.configure_mesh();
    mesh.x_desc(panel.x).y_desc(panel.y).x_label_formatter(&number).y_label_formatter(&number);
    mesh.y_labels(8).max_light_lines(1).label_style(("sans-serif", 13)).draw()?;
    // The first is drawn broad, so that it is seen below others that are equal to it.
    let strokes = [5].into_iter().chain(std::iter::repeat(2));
    for ((line, colour), stroke) in panel.lines.iter().zip(COLOURS.iter().cycle()).zip(strokes) {
        let drawn = match line.points[..] {
            [point] => chart.draw_series([Circle::new(point, 5, colour.filled())])?,
            _ => chart
                .draw_series(LineSeries::new(line.points.iter().copied(), colour.stroke_width(stroke)))?,
        };
        let key = *colour;
        drawn
            .label(&line.name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 4), (x + 14, y + 4)], key.filled()));
    }
    let mut names = chart.configure_series_labels();
    names.position(panel.names.position()).background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.3));
    names.label_font(("sans-serif", 13)).draw()
}

/// Bars with names beside them, from zero on.
pub struct Bars {
    pub title: &'static str,
    pub unit: &'static str,
    pub bars: Vec<(String, f64)>,
}

/// Draws charts of bars below each other.
pub fn bars(path: &Path, charts: &[Bars]) -> Result<()> {
    let failed = |error: &dyn std::fmt::Display| {
        Error::invalid(format!("{} cannot be drawn: {error}", path.display()))
    };
    let height = |chart: &Bars| BAR * chart.bars.len() as u32 + 110;
    let mut svg = String::new();
    let area =
        SVGBackend::with_string(&mut svg, (WIDTH, charts.iter().map(height).sum())).into_drawing_area();
    area.fill(&WHITE).map_err(|error| failed(&error))?;
    let mut rest = area.clone();
    for chart in charts {
        let (here, below) = rest.split_vertically(height(chart));
        draw_bars(&here, chart).map_err(|error| failed(&error))?;
        rest = below;
    }
    area.present().map_err(|error| failed(&error))?;
    drop((area, rest));
    picture::write(path, &svg)
}

fn draw_bars(area: &DrawingArea<SVGBackend, Shift>, Bars { title, unit, bars }: &Bars) -> Drawn {
    let most = bars.iter().map(|(_, value)| *value).fold(1.0, f64::max) * 1.1;
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(230)
        .build_cartesian_2d(0.0..most, (0..bars.len() as i32 - 1).into_segmented())?;
    // The first one is at the top.
    let name = |at: &SegmentValue<i32>| match at {
        SegmentValue::CenterOf(at) => bars[bars.len() - 1 - *at as usize].0.clone(),
        _ => String::new(),
    };
    let mut mesh = chart.configure_mesh();
    mesh.disable_y_mesh().x_desc(*unit).x_labels(8).max_light_lines(1).y_labels(bars.len());
    mesh.y_label_formatter(&name).label_style(("sans-serif", 13)).draw()?;
    let rectangle = |(at, (_, value)): (usize, &(String, f64))| {
        let at = (bars.len() - 1 - at) as i32;
        let corners = [(0.0, SegmentValue::Exact(at)), (*value, SegmentValue::Exact(at + 1))];
        let mut bar = Rectangle::new(corners, COLOURS[0].filled());
        bar.set_margin(4, 4, 0, 0);
        bar
    };
    chart.draw_series(bars.iter().enumerate().map(rectangle))?;
    let label = |(at, (_, value)): (usize, &(String, f64))| {
        let place = (*value, SegmentValue::CenterOf((bars.len() - 1 - at) as i32));
        let text = if *value >= 100.0 { format!("{value:.0}") } else { format!("{value:.1}") };
        EmptyElement::at(place) + Text::new(text, (4, -6), ("sans-serif", 12))
    };
    chart.draw_series(bars.iter().enumerate().map(label)).map(drop)
}
