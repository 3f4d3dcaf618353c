//! The figures of a report, as SVG: all results with their means, and box plots by number of
//! targets, by number of hosts and by allocation.

use super::{ExperimentReport, Factor, Group, label};
use crate::plan::Quantity;
use crate::record::MinMax;
use crate::statistics::Summary;
use plotters::chart::{ChartBuilder, SeriesLabelPosition};
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::drawing::IntoDrawingArea;
use plotters::element::{Circle, Cross, DynElement, IntoDynElement, PathElement, Rectangle};
use plotters::prelude::SVGBackend;
use plotters::style::{BLACK, Color, RGBColor, WHITE};
use skep_types::{Error, ErrorCode, Result};
use std::collections::BTreeMap;
use std::ops::Range;

pub(super) const SIZE: (u32, u32) = (900, 420);
/// The colours of Okabe and Ito. People with colour blindness can distinguish these colours.
pub(super) const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(80, 80, 80),
];

/// A drawn figure.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Drawn {
    /// File name of the figure.
    pub(super) file: String,
    /// Title of the figure.
    pub(super) caption: String,
    /// The image in the format SVG.
    pub(super) svg: String,
}

/// The values that one series has at one position of the axis.
struct Cell {
    place: usize,
    series: usize,
    values: Vec<f64>,
    summary: Summary,
}

/// The content of a figure that is not drawn yet.
struct Layout {
    quantity: Quantity,
    axis: String,
    /// The labels below the positions of the axis.
    places: Vec<String>,
    series: Vec<String>,
    cells: Vec<Cell>,
}

/// Returns the file names of the figures of an experiment.
pub(super) fn names(experiment: &ExperimentReport) -> Vec<String> {
    let kinds = ["points", "boxes", "allocations"];
    let of = |kind: &str| format!("{}-{kind}.svg", experiment.name);
    let count = if by_allocation(experiment).is_some() { 3 } else { 2 };
    kinds[..count].iter().map(|kind| of(kind)).collect()
}

/// Draws all figures of an experiment.
pub(super) fn draw(experiment: &ExperimentReport) -> Result<Vec<Drawn>> {
    let along = by_axis(experiment);
    let [points, boxes] = [Style::Points, Style::Boxes].map(|style| picture(&along, style));
    let axis = experiment.axis.axis();
    let mut drawn = vec![
        (format!("All points with their means, by {axis}"), points?),
        (format!("Box plots by {axis}"), boxes?),
    ];
    if let Some(layout) = by_allocation(experiment) {
        let caption = "Box plots by (min,max): targets on the server that has the fewest and on \
                       the one that has the most";
        drawn.push((caption.to_owned(), picture(&layout, Style::Boxes)?));
    }
    let files = names(experiment).into_iter();
    Ok(files.zip(drawn).map(|(file, (caption, svg))| Drawn { file, caption, svg }).collect())
}

fn by_axis(experiment: &ExperimentReport) -> Layout {
    let others: Vec<Factor> =
        experiment.varied.iter().filter(|it| **it != experiment.axis).copied().collect();
    let mut places: Vec<(u64, String)> = Vec::new();
    let mut series: Vec<String> = Vec::new();
    for group in &experiment.groups {
        let place =
            (experiment.axis.number(&group.settings), experiment.axis.text(&group.settings));
        if !places.contains(&place) {
            places.push(place);
        }
        let name = label(&group.settings, &others);
        if !series.contains(&name) {
            series.push(name);
        }
    }
    places.sort();
    let cell = |group: &Group| {
        let text = experiment.axis.text(&group.settings);
        let name = label(&group.settings, &others);
        Cell {
            place: places.iter().position(|(_, it)| *it == text).unwrap_or(0),
            series: series.iter().position(|it| *it == name).unwrap_or(0),
            values: group.values.clone(),
            summary: group.summary.clone(),
        }
    };
    let cells = experiment.groups.iter().map(cell).collect();
    let places = places.into_iter().map(|(_, text)| text).collect();
    let axis = experiment.axis.axis().to_owned();
    Layout { quantity: experiment.quantity, axis, places, series, cells }
}

/// Returns the figure with the results by allocation. `None` if there is only one allocation. Each
/// combination of the other factors is a series. This figure ignores the placement policy and the
/// number of targets, because it shows only the effect of the allocation itself.
fn by_allocation(experiment: &ExperimentReport) -> Option<Layout> {
    let is_other = |it: &&Factor| !matches!(it, Factor::Count | Factor::Chooser);
    let others: Vec<Factor> = experiment.varied.iter().filter(is_other).copied().collect();
    let mut values: BTreeMap<(String, MinMax), Vec<f64>> = BTreeMap::new();
    for group in &experiment.groups {
        let name = label(&group.settings, &others);
        for allocation in &group.allocations {
            let values = values.entry((name.clone(), allocation.min_max)).or_default();
            values.extend_from_slice(&allocation.values);
        }
    }
    let mut places: Vec<MinMax> = values.keys().map(|(_, it)| *it).collect();
    places.sort_by_key(|it| (it.0 + it.1, *it));
    places.dedup();
    let mut series: Vec<String> = values.keys().map(|(name, _)| name.clone()).collect();
    series.dedup();
    let cells = values.iter().filter_map(|((name, min_max), values)| {
        Some(Cell {
            place: places.iter().position(|it| it == min_max)?,
            series: series.iter().position(|it| it == name)?,
            values: values.clone(),
            summary: Summary::of(values)?,
        })
    });
    let cells = cells.collect();
    (places.len() > 1).then(|| Layout {
        quantity: experiment.quantity,
        axis: "(min,max) targets on a server".to_owned(),
        places: places.iter().map(MinMax::to_string).collect(),
        series,
        cells,
    })
}

#[derive(Clone, Copy, PartialEq)]
enum Style {
    Points,
    Boxes,
}

fn picture(layout: &Layout, style: Style) -> Result<String> {
    let mut svg = String::new();
    render(&mut svg, layout, style)
        .map_err(|error| Error::new(ErrorCode::Io, format!("cannot draw a figure: {error}")))?;
    Ok(svg)
}

fn render(
    svg: &mut String,
    layout: &Layout,
    style: Style,
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let quantity = layout.quantity;
    let shown = |value| quantity.shown(value);
    let top = layout.cells.iter().map(|it| shown(it.summary.max)).fold(1.0, f64::max) * 1.08;
    let places = layout.places.len();
    let mut chart = ChartBuilder::on(&root)
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(Axis(layout.places.clone()), 0.0..top)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(WHITE)
        .bold_line_style(BLACK.mix(0.12))
        .x_labels(places)
        .y_label_formatter(&|value| format!("{value:.0}"))
        .x_desc(layout.axis.as_str())
        .y_desc(quantity.unit())
        .label_style(("sans-serif", 14))
        .draw()?;
    for (index, name) in layout.series.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let cells: Vec<&Cell> = layout.cells.iter().filter(|it| it.series == index).collect();
        let shift = |cell: &Cell| slot(cell, layout.series.len());
        let mut marks = Vec::new();
        for cell in &cells {
            let slot = shift(cell);
            match style {
                Style::Points => points(cell, &slot, colour, quantity, &mut marks),
                Style::Boxes => boxes(cell, &slot, colour, quantity, &mut marks),
            }
        }
        let series = chart.draw_series(marks)?;
        if layout.series.len() > 1 {
            series.label(name.clone()).legend(move |(x, y)| {
                Rectangle::new([(x, y - 5), (x + 14, y + 5)], colour.filled())
            });
        }
        if style == Style::Points {
            let mut means: Vec<(f64, f64)> =
                cells.iter().map(|it| (middle(&shift(it)), shown(it.summary.mean))).collect();
            means.sort_by(|one, two| one.0.total_cmp(&two.0));
            chart.draw_series([PathElement::new(means, colour.stroke_width(2))])?;
        }
    }
    if layout.series.len() > 1 {
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.3))
            .label_font(("sans-serif", 14))
            .draw()?;
    }
    root.present()?;
    Ok(())
}

/// An axis that has one position for each label.
struct Axis(Vec<String>);

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = (value + 0.5) / self.0.len() as f64;
        limit.0 + (share * f64::from(limit.1 - limit.0)) as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        (0..self.0.len()).map(|place| place as f64).collect()
    }

    fn range(&self) -> Range<f64> {
        -0.5..self.0.len() as f64 - 0.5
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, place: &f64) -> String {
        self.0.get(place.round() as usize).cloned().unwrap_or_default()
    }
}

type Mark<'a> = DynElement<'static, SVGBackend<'a>, (f64, f64)>;

/// Returns the range of the axis in which the values of a cell are drawn.
fn slot(cell: &Cell, series: usize) -> Range<f64> {
    let width = 0.8 / series as f64;
    let begin = cell.place as f64 - 0.4 + width * cell.series as f64;
    begin..begin + width
}

fn middle(slot: &Range<f64>) -> f64 {
    f64::midpoint(slot.start, slot.end)
}

/// Draws the values as points next to each other, in the order of the measurements. Also draws a
/// line at the mean of the values.
fn points(
    cell: &Cell,
    slot: &Range<f64>,
    colour: RGBColor,
    quantity: Quantity,
    marks: &mut Vec<Mark<'_>>,
) {
    let count = cell.values.len() as f64;
    for (index, value) in cell.values.iter().enumerate() {
        let share = 0.15 + 0.7 * (index as f64 + 0.5) / count;
        let x = slot.start + (slot.end - slot.start) * share;
        marks.push(
            Circle::new((x, quantity.shown(*value)), 3, colour.mix(0.55).filled()).into_dyn(),
        );
    }
    let mean = quantity.shown(cell.summary.mean);
    let stroke = [(slot.start, mean), (slot.end, mean)];
    marks.push(PathElement::new(stroke, BLACK.stroke_width(2)).into_dyn());
}

/// Draws a box with the median, the whiskers and the outliers. The mean is a small cross.
fn boxes(
    cell: &Cell,
    slot: &Range<f64>,
    colour: RGBColor,
    quantity: Quantity,
    marks: &mut Vec<Mark<'_>>,
) {
    let it = &cell.summary;
    let shown = |value| quantity.shown(value);
    let pad = (slot.end - slot.start) * 0.12;
    let (left, right, x) = (slot.start + pad, slot.end - pad, middle(slot));
    let mut path = |points: [(f64, f64); 2], width: u32| {
        let points = points.map(|(x, y)| (x, shown(y)));
        marks.push(PathElement::new(points, colour.stroke_width(width)).into_dyn());
    };
    path([(x, it.whisker_low), (x, it.q1)], 1);
    path([(x, it.q3), (x, it.whisker_high)], 1);
    path([(f64::midpoint(left, x), it.whisker_low), (f64::midpoint(x, right), it.whisker_low)], 1);
    path(
        [(f64::midpoint(left, x), it.whisker_high), (f64::midpoint(x, right), it.whisker_high)],
        1,
    );
    path([(left, it.median), (right, it.median)], 3);
    let corners = [(left, shown(it.q1)), (right, shown(it.q3))];
    marks.push(Rectangle::new(corners, colour.mix(0.25).filled()).into_dyn());
    marks.push(Rectangle::new(corners, colour.stroke_width(1)).into_dyn());
    for outlier in &it.outliers {
        marks.push(Circle::new((x, shown(*outlier)), 3, colour.stroke_width(1)).into_dyn());
    }
    marks.push(Cross::new((x, shown(it.mean)), 3, BLACK.stroke_width(1)).into_dyn());
}
