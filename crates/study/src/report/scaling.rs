//! The figures of results by number of servers, with a line for the limit of the hardware and a
//! line for nine tenths of this limit.

use super::figures::{COLOURS, Drawn, SIZE};
use super::table::{Row, cached};
use crate::plan::{Cache, Quantity};
use plotters::chart::{ChartBuilder, SeriesLabelPosition};
use plotters::drawing::IntoDrawingArea;
use plotters::element::{Circle, PathElement, Rectangle};
use plotters::prelude::SVGBackend;
use plotters::style::{BLACK, Color, WHITE};
use skep_types::{Error, ErrorCode, Result};
use std::collections::{BTreeMap, BTreeSet};

/// Share of the limit that the dashed line shows.
const WANTED: f64 = 0.9;
/// Number of dashes between two points of the dashed line.
const DASHES: u32 = 12;
/// Maximum number of labels on the axis of the servers. More labels would overlap.
const MAX_LABELS: u32 = 24;

/// Numbers of servers, each with the result that was reached with this number, in the unit of the
/// figure.
type Line = BTreeMap<u32, f64>;

/// The content of a figure that is not drawn yet.
struct Layout {
    quantity: Quantity,
    series: BTreeMap<String, Line>,
    /// The rates that the hardware allows, for each system. A system without a known limit has a
    /// line through the result with the fewest servers.
    ideal: BTreeMap<String, Line>,
}

/// Returns the file name of the figure of a quantity.
fn name(quantity: Quantity) -> &'static str {
    match quantity {
        Quantity::Bandwidth => "scaling-bandwidth.svg",
        Quantity::Transfers => "scaling-iops.svg",
        Quantity::Names => "scaling-names.svg",
    }
}

/// Whether a file of a report is a figure of this module.
pub(super) fn is_name(file: &str) -> bool {
    [Quantity::Bandwidth, Quantity::Transfers].iter().any(|it| name(*it) == file)
}

/// Draws the figures of a table. The list is empty if the number of servers does not vary.
/// Operations on names have no figure, because the servers in the table store no names.
pub(super) fn draw(rows: &[Row]) -> Result<Vec<Drawn>> {
    let mut drawn = Vec::new();
    for quantity in [Quantity::Bandwidth, Quantity::Transfers] {
        let Some(layout) = layout(rows, quantity) else { continue };
        let mut svg = String::new();
        render(&mut svg, &layout)
            .map_err(|error| Error::new(ErrorCode::Io, format!("cannot draw a figure: {error}")))?;
        let caption = "The highest result with each number of servers, over all numbers of clients \
                       and processes, with the limit of the hardware and 90 % of it (dashed)";
        drawn.push(Drawn { file: name(quantity).to_owned(), caption: caption.to_owned(), svg });
    }
    Ok(drawn)
}

fn layout(rows: &[Row], quantity: Quantity) -> Option<Layout> {
    let has_systems = rows.iter().any(|it| it.system != rows[0].system);
    let mut layout = Layout { quantity, series: BTreeMap::new(), ideal: BTreeMap::new() };
    let mut best: BTreeMap<String, Line> = BTreeMap::new();
    for row in rows {
        let Some(servers) = row.servers else { continue };
        let limit = match quantity {
            Quantity::Bandwidth => row.limit_bytes_per_second,
            Quantity::Transfers | Quantity::Names => row.limit_operations_per_second,
        };
        let measured = row
            .cells
            .iter()
            .filter(|it| it.operation.quantity() == quantity && it.cache != Cache::Kept);
        for cell in measured {
            let mut words = vec![format!("{}{}", cached(cell.cache), cell.operation.word())];
            words.extend(has_systems.then(|| row.system.clone()));
            words.extend((!row.condition.is_empty()).then(|| row.condition.clone()));
            let series = layout.series.entry(words.join(", ")).or_default();
            raise(series, servers, quantity.shown(cell.mean));
            raise(best.entry(row.system.clone()).or_default(), servers, quantity.shown(cell.mean));
            if let Some(limit) = limit {
                let ideal = layout.ideal.entry(row.system.clone()).or_default();
                raise(ideal, servers, quantity.shown(limit));
            }
        }
    }
    for (system, line) in &best {
        let Some((fewest, value)) = line.first_key_value() else { continue };
        let each = value / f64::from(*fewest);
        layout.ideal.entry(system.clone()).or_insert_with(|| {
            line.keys().map(|servers| (*servers, each * f64::from(*servers))).collect()
        });
    }
    let servers: BTreeSet<u32> = layout.series.values().flat_map(|it| it.keys().copied()).collect();
    (servers.len() > 1).then_some(layout)
}

/// Sets the value for a number of servers, unless the line already has a higher value for this
/// number.
fn raise(line: &mut Line, servers: u32, value: f64) {
    let old = line.entry(servers).or_insert(value);
    *old = old.max(value);
}

fn render(
    svg: &mut String,
    layout: &Layout,
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let all = || layout.series.values().chain(layout.ideal.values());
    let top = all().flat_map(BTreeMap::values).copied().fold(1.0, f64::max) * 1.08;
    let most = all().filter_map(|it| it.last_key_value()).map(|(servers, _)| *servers).max();
    let most = most.unwrap_or(1);
    let right = f64::from(most) * 1.05;
    let mut chart = ChartBuilder::on(&root)
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..right, 0.0..top)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(WHITE)
        .bold_line_style(BLACK.mix(0.12))
        .x_labels(most.min(MAX_LABELS) as usize + 1)
        .x_label_formatter(&|value| format!("{value:.0}"))
        .y_label_formatter(&|value| format!("{value:.0}"))
        .x_desc("servers")
        .y_desc(layout.quantity.unit())
        .label_style(("sans-serif", 14))
        .draw()?;
    let has_systems = layout.ideal.len() > 1;
    for (system, line) in &layout.ideal {
        let points: Vec<(f64, f64)> = points(line);
        let grey = BLACK.mix(0.5);
        let name = if has_systems { format!("limit, {system}") } else { "limit".to_owned() };
        chart
            .draw_series([PathElement::new(points.clone(), grey.stroke_width(1))])?
            .label(name)
            .legend(move |(x, y)| {
                PathElement::new(vec![(x, y), (x + 14, y)], grey.stroke_width(1))
            });
        let dashes = dashes(&points).into_iter();
        chart.draw_series(dashes.map(|it| PathElement::new(it, grey.stroke_width(1))))?;
    }
    for (index, (name, line)) in layout.series.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let points = points(line);
        let circles = points[1..].to_vec();
        chart.draw_series([PathElement::new(points, colour.stroke_width(2))])?;
        chart
            .draw_series(circles.into_iter().map(|it| Circle::new(it, 4, colour.filled())))?
            .label(name.clone())
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], colour.filled()));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .label_font(("sans-serif", 14))
        .draw()?;
    root.present()?;
    Ok(())
}

/// Returns the points of a line. A line begins at the origin, because zero servers transfer zero
/// bytes.
fn points(line: &Line) -> Vec<(f64, f64)> {
    let known = line.iter().map(|(servers, value)| (f64::from(*servers), *value));
    std::iter::once((0.0, 0.0)).chain(known).collect()
}

/// Returns the dashes of the line at [`WANTED`] of the points.
fn dashes(points: &[(f64, f64)]) -> Vec<Vec<(f64, f64)>> {
    let mut dashes = Vec::new();
    for pair in points.windows(2) {
        let at = |share: f64| {
            let x = pair[0].0 + (pair[1].0 - pair[0].0) * share;
            let y = pair[0].1 + (pair[1].1 - pair[0].1) * share;
            (x, y * WANTED)
        };
        for dash in 0..DASHES {
            let begin = f64::from(dash) / f64::from(DASHES);
            dashes.push(vec![at(begin), at(begin + 0.6 / f64::from(DASHES))]);
        }
    }
    dashes
}
