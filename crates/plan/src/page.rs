//! Writes reports as an HTML page with tables and figures, and as CSV.

use crate::propose::Candidate;
use crate::validation::Comparison;
use plotters::chart::{ChartBuilder, SeriesLabelPosition};
use plotters::drawing::IntoDrawingArea;
use plotters::element::{Circle, PathElement, Polygon, Rectangle};
use plotters::prelude::{IntoLogRange, SVGBackend};
use plotters::style::{BLACK, Color, RGBColor, WHITE};
use skep_types::{Error, ErrorCode, Result};
use std::fmt::Write;

const SIZE: (u32, u32) = (900, 420);
/// The colours of Okabe and Ito. People with colour blindness can distinguish these colours.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];
const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;\
    padding:0 1rem;color:#1a1a1a}table{border-collapse:collapse;font-size:13px;margin:1rem 0}\
    th,td{padding:.2rem .6rem;text-align:right;border-bottom:1px solid #eee}\
    th:first-child,td:first-child{text-align:left}svg{max-width:100%;height:auto}";

/// One line of a figure: its name, predicted points with their intervals, and measured points.
#[derive(Debug, Clone, Default)]
struct Series {
    name: String,
    /// For each predicted point: position, value, and both ends of the interval.
    predicted: Vec<(f64, f64, f64, f64)>,
    measured: Vec<(f64, f64)>,
}

/// Returns an HTML page about proposed systems.
///
/// # Errors
/// `Io` if a figure cannot be drawn.
pub fn of_candidates(candidates: &[Candidate]) -> Result<String> {
    let mut body = String::from("<table><tr>");
    for title in COLUMNS {
        let _ = write!(body, "<th>{}</th>", escaped(title));
    }
    body.push_str("</tr>\n");
    for candidate in candidates {
        body.push_str("<tr>");
        for cell in cells(candidate) {
            let _ = write!(body, "<td>{}</td>", escaped(&cell));
        }
        body.push_str("</tr>\n");
    }
    body.push_str("</table>\n");
    let series: Vec<Series> = candidates
        .iter()
        .take(COLOURS.len())
        .map(|it| Series {
            name: format!("{} x {}", it.system.servers, it.system.server),
            predicted: it
                .by_clients
                .iter()
                .map(|it| (f64::from(it.clients), it.rate, it.low, it.high))
                .collect(),
            measured: Vec::new(),
        })
        .collect();
    let _ = write!(
        body,
        "<h2>Predicted sequential writes by number of clients</h2>\n<p>With a probability of 90 %, \
         the true rate lies within the band.</p>\n{}",
        figure(&series, "clients", "MB/s")?
    );
    Ok(page("Systems that meet the needs", &body))
}

/// Returns an HTML page that compares predictions with measurements.
///
/// # Errors
/// `Io` if a figure cannot be drawn.
pub fn of_comparisons(comparisons: &[Comparison]) -> Result<String> {
    let mut body = String::new();
    for comparison in comparisons {
        let rows = &comparison.rows;
        let by_servers = rows.windows(2).any(|it| it[0].servers != it[1].servers);
        let position = |index: usize| match (by_servers, &rows[index]) {
            (true, row) => f64::from(row.servers),
            (false, row) => f64::from(row.prediction.clients),
        };
        let mut series = Series { name: "predicted".into(), ..Series::default() };
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_by(|one, other| position(*one).total_cmp(&position(*other)));
        for index in order {
            let it = &rows[index].prediction;
            series.predicted.push((position(index), it.rate, it.low, it.high));
            series.measured.push((position(index), rows[index].measured));
        }
        let unit = rows.first().map_or("", |it| it.unit);
        let axis = if by_servers { "servers" } else { "clients" };
        let _ = write!(
            body,
            "<h2>{}</h2>\n<p>Error: median {:.1} %, largest {:.1} %. Circles are measured.</p>\n{}",
            escaped(&comparison.table),
            comparison.median_error_percent,
            comparison.largest_error_percent,
            figure(&[series], axis, unit)?
        );
    }
    Ok(page("Predicted and measured rates", &body))
}

/// Titles of the columns for proposed systems. Columns that also occur in the published summary
/// have the same titles as in this summary.
pub const COLUMNS: [&str; 13] = [
    "system",
    "disks",
    "servers",
    "seq_read_gb_s",
    "seq_write_gb_s",
    "write_low_gb_s",
    "capacity_tb",
    "usd_per_hour",
    "usd_per_tb_hour",
    "usd_per_gb_s_write_hour",
    "efficiency_percent",
    "binds",
    "price_from",
];

/// Returns the cells of a proposed system in the order of [`COLUMNS`].
pub fn cells(it: &Candidate) -> Vec<String> {
    let usd = |price: Option<f64>| price.map_or_else(|| "-".to_owned(), |it| format!("{it:.2}"));
    let write = &it.rates[0].prediction;
    let disks = &it.system.disks;
    vec![
        it.system.server.clone(),
        format!("{} x {}", disks.count, disks.of.name),
        it.system.servers.to_string(),
        format!("{:.2}", it.cost.seq_read_gb_s),
        format!("{:.2}", it.cost.seq_write_gb_s),
        format!("{:.2}", write.low / 1000.0),
        format!("{:.1}", it.cost.capacity_tb),
        usd(it.cost.usd_per_hour),
        usd(it.cost.usd_per_tb_hour),
        usd(it.cost.usd_per_gb_s_write_hour),
        format!("{:.0}", write.efficiency_percent),
        it.binds.words().to_owned(),
        format!("{} {}", it.origin.place, it.origin.as_of),
    ]
}

/// Returns the proposed systems as CSV.
pub fn csv(candidates: &[Candidate]) -> String {
    let mut text = COLUMNS.join(",") + "\n";
    for candidate in candidates {
        let quoted = cells(candidate).into_iter().map(|it| match it.contains(['"', ',']) {
            true => format!("\"{}\"", it.replace('"', "\"\"")),
            false => it,
        });
        text += &(quoted.collect::<Vec<_>>().join(",") + "\n");
    }
    text
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\
         <style>{STYLE}</style></head>\n<body>\n<h1>{title}</h1>\n{body}</body></html>\n"
    )
}

fn figure(series: &[Series], axis: &str, unit: &str) -> Result<String> {
    let mut svg = String::new();
    draw(&mut svg, series, axis, unit)
        .map_err(|error| Error::new(ErrorCode::Io, format!("cannot draw a figure: {error}")))?;
    Ok(svg)
}

fn draw(
    svg: &mut String,
    series: &[Series],
    axis: &str,
    unit: &str,
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let points = || series.iter().flat_map(|it| &it.predicted);
    let measured = series.iter().flat_map(|it| &it.measured).map(|it| it.1);
    let top = points().map(|it| it.3).chain(measured).fold(1.0, f64::max) * 1.05;
    let right = points().map(|it| it.0).fold(2.0, f64::max);
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(72)
        .build_cartesian_2d((1.0..right * 1.02).log_scale().base(2.0), 0.0..top)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .bold_line_style(BLACK.mix(0.12))
        .x_label_formatter(&|value| format!("{value:.0}"))
        .y_label_formatter(&|value| format!("{value:.0}"))
        .x_desc(axis)
        .y_desc(unit)
        .label_style(("sans-serif", 14))
        .draw()?;
    for (index, it) in series.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let upper = it.predicted.iter().map(|it| (it.0, it.3));
        let lower = it.predicted.iter().rev().map(|it| (it.0, it.2));
        let band: Vec<_> = upper.chain(lower).collect();
        chart.draw_series([Polygon::new(band, colour.mix(0.12))])?;
        let line: Vec<_> = it.predicted.iter().map(|it| (it.0, it.1)).collect();
        chart
            .draw_series([PathElement::new(line, colour.stroke_width(2))])?
            .label(it.name.clone())
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], colour.filled()));
        let circles = it.measured.iter().map(|at| Circle::new(*at, 4, colour.filled()));
        chart.draw_series(circles)?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .label_font(("sans-serif", 14))
        .draw()?;
    root.present()?;
    Ok(())
}
