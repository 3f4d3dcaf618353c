//! The report as one HTML page that needs no network. The page has text, tables and embedded
//! figures.

use super::figures::Drawn;
use super::{Conclusion, ExperimentReport, Group, InvalidRun, Report, Row, Shown, scaling};
use crate::journal::Contents;
use crate::plan::Quantity;
use crate::record::Record;
use crate::statistics::Welch;
use std::fmt::Write;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;\
    padding:0 1rem;color:#1a1a1a}h1{font-size:1.6rem}h2{margin-top:2.5rem;border-bottom:1px solid \
    #ddd}table{border-collapse:collapse;font-size:13px;margin:1rem 0}th,td{padding:.2rem .6rem;\
    text-align:right;border-bottom:1px solid #eee}th:first-child,td:first-child{text-align:left}\
    figure{margin:1rem 0}figcaption{color:#555}svg{max-width:100%;height:auto}pre{background:#f6f6f6;\
    padding:1rem;overflow:auto}li{margin:.6rem 0}details{color:#555;font-size:13px}\
    .note{background:#fff6e0;padding:.6rem 1rem}";

/// The text below the table, as HTML.
const EXPLANATION: &str = "<p>Each value is the mean of all its runs. Servers are those \
    whose targets the runs could use. The limit is the smaller rate of these servers and of the \
    clients, as the plan or the lab states it, and % of limit is the reached share of it. Cached \
    operations began with unchanged caches, and used data that the same host had written, so they \
    measure the clients. 99 % of the operations take no longer than P99 us, in microseconds.</p>\n";

/// Escapes a text for HTML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Returns the complete HTML page.
pub(super) fn page(contents: &Contents, report: &Report, figures: &[Drawn]) -> String {
    let mut page = String::new();
    let title = escaped(&report.title);
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style></head>\
         <body>\n<h1>{title}</h1>\n{}",
        heading(report)
    );
    let _ = write!(page, "<h2>Conclusions</h2>\n<ul>\n");
    for it in &report.conclusions {
        page.push_str(&conclusion(it));
    }
    page.push_str("</ul>\n");
    if report.conclusions.is_empty() {
        page.push_str("<p>There are not enough results yet for a conclusion.</p>\n");
    }
    if !report.table.is_empty() {
        page.push_str(&results(&report.table, figures));
    }
    for it in &report.experiments {
        experiment(&mut page, it, figures);
    }
    page.push_str(&invalid(report));
    let _ = write!(page, "<h2>How it was measured</h2>\n{}", method());
    let plan = escaped(contents.study.plan.trim_end());
    let _ = write!(page, "<h2>Plan</h2>\n<pre>{plan}</pre>\n");
    let environment = contents.records.iter().find_map(|record| match record {
        Record::Environment(found) => serde_json::to_string_pretty(&found.hosts).ok(),
        _ => None,
    });
    if let Some(text) = environment {
        let _ = write!(page, "<h2>Hosts</h2>\n<pre>{}</pre>\n", escaped(&text));
    }
    page.push_str("</body></html>\n");
    page
}

fn heading(report: &Report) -> String {
    let servers = match &report.targets_per_server {
        Some(servers) => {
            let counts: Vec<String> = servers.values().map(u32::to_string).collect();
            format!(", {} servers with {} targets", servers.len(), counts.join(" + "))
        }
        None => String::new(),
    };
    let mut text = format!(
        "<p>{} of {} runs; {}, {} client hosts{servers}; begun {}, Skep {}.</p>\n",
        report.runs_done,
        report.runs_planned,
        escaped(&report.place),
        report.hosts,
        report.started_at,
        escaped(&report.skep_version)
    );
    if report.runs_invalid > 0 {
        let kept = match report.includes_invalid {
            true => {
                "The figures and tables below include them nevertheless, so read these with \
                     care."
            }
            false => "No figure and no table includes them.",
        };
        let _ = writeln!(
            text,
            "<p class=\"note\">{} runs are invalid: the limit was a part of the system other than \
             the studied one (points.csv names them). {kept}</p>",
            report.runs_invalid
        );
    }
    if report.runs_with_caches > 0 {
        let _ = writeln!(
            text,
            "<p class=\"note\">Before {} of the runs, not all caches were dropped, so their data \
             may have been in memory (points.csv names them).</p>",
            report.runs_with_caches
        );
    }
    text
}

/// Returns a table that lists all records of invalid runs.
fn invalid(report: &Report) -> String {
    if report.invalid.is_empty() {
        return String::new();
    }
    let line = |it: &InvalidRun| {
        format!(
            "<tr><td>{} {}</td><td>{}</td><td>{}</td></tr>\n",
            escaped(&it.experiment),
            it.run,
            it.started_at,
            escaped(&it.because)
        )
    };
    let lines: String = report.invalid.iter().map(line).collect();
    format!(
        "<h2>Invalid runs</h2>\n<p>If a run was repeated, the report uses the result of the \
         repetition.</p>\n<table><tr><th>run</th><th>begun</th><th>because</th></tr>\n{lines}</table>\n"
    )
}

fn conclusion(it: &Conclusion) -> String {
    let mut figures = String::new();
    for figure in &it.figures {
        let number = match figure.unit {
            "" => format!("{:.4}", figure.value),
            unit => format!("{:.1} {unit}", figure.value),
        };
        let _ = write!(figures, "{}: {number}<br>", escaped(&figure.what));
    }
    if !figures.is_empty() {
        figures = format!("<details><summary>figures</summary>{figures}</details>");
    }
    format!("<li>{} <em>[{}]</em>{figures}</li>\n", escaped(&it.text), escaped(&it.experiment))
}

fn experiment(page: &mut String, it: &ExperimentReport, figures: &[Drawn]) {
    let _ = write!(
        page,
        "<h2>{}</h2>\n<p>Experiment {}{}.</p>\n",
        escaped(&it.title),
        it.name,
        unit(it)
    );
    for drawn in figures.iter().filter(|figure| it.figures.contains(&figure.file)) {
        page.push_str(&figure(drawn));
    }
    page.push_str(
        "<table><tr><th>condition</th><th>runs</th><th>mean</th><th>sd</th><th>sd %</th>\
         <th>min</th><th>q1</th><th>median</th><th>q3</th><th>max</th><th>normal?</th>\
         <th>modes</th></tr>\n",
    );
    for group in &it.groups {
        row(page, group, it.quantity);
    }
    page.push_str("</table>\n");
    allocations(page, it);
    comparisons(page, it);
}

/// Names the unit of an experiment, unless it is the unit of bandwidths.
fn unit(it: &ExperimentReport) -> String {
    match it.quantity {
        Quantity::Bandwidth => String::new(),
        other => format!(", in {}", other.unit()),
    }
}

/// Returns the section with the table of results and the figures by number of servers.
fn results(rows: &[Row], figures: &[Drawn]) -> String {
    let drawn = figures.iter().filter(|it| scaling::is_name(&it.file));
    let drawn: String = drawn.map(figure).collect();
    format!("<h2>Results</h2>\n{}{drawn}{EXPLANATION}", as_html(rows))
}

/// Returns the table as HTML.
fn as_html(rows: &[Row]) -> String {
    let shown = Shown::of(rows);
    let line = |cells: &[String], tag: &str| {
        let cells = cells.iter().map(|it| format!("<{tag}>{}</{tag}>", escaped(it)));
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    let body: String = shown.rows.iter().map(|cells| line(cells, "td")).collect();
    format!("<table>{}{body}</table>\n", line(&shown.titles, "th"))
}

fn figure(it: &Drawn) -> String {
    format!("<figure>{}<figcaption>{}.</figcaption></figure>\n", it.svg, escaped(&it.caption))
}

/// Returns the HTML page of a comparison.
pub(super) fn comparison(title: &str, rows: &[Row], figures: &[Drawn]) -> String {
    let title = escaped(title);
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style></head>\
         <body>\n<h1>{title}</h1>\n{}</body></html>\n",
        results(rows, figures)
    )
}

fn row(page: &mut String, group: &Group, quantity: Quantity) {
    let it = &group.summary;
    let shown = |value| quantity.shown(value);
    let normal = match &group.normality {
        Some(test) => format!("D={:.3}, p={:.3}", test.distance, test.p),
        None => "-".to_owned(),
    };
    let modes = match group.bimodality.map(|it| (it.is_bimodal, it.modes)) {
        Some((true, [low, high])) => {
            format!("two: {:.0}, {:.0}", shown(low.mean), shown(high.mean))
        }
        Some((false, _)) => "one".to_owned(),
        None => "-".to_owned(),
    };
    let numbers = [it.mean, it.sd].map(|it| format!("<td>{:.1}</td>", shown(it))).concat();
    let rest = [it.min, it.q1, it.median, it.q3, it.max];
    let rest = rest.map(|it| format!("<td>{:.1}</td>", shown(it))).concat();
    let _ = writeln!(
        page,
        "<tr><td>{}</td><td>{}</td>{numbers}<td>{:.1}</td>{rest}<td>{normal}</td><td>{modes}</td>\
         </tr>",
        escaped(&group.label),
        it.count,
        it.variation() * 100.0
    );
}

fn allocations(page: &mut String, it: &ExperimentReport) {
    let lines: Vec<String> = it
        .groups
        .iter()
        .flat_map(|group| group.allocations.iter().map(move |of| (group, of)))
        .map(|(group, of)| {
            format!(
                "<tr><td>{}</td><td>{}</td><td>{}</td><td>{:.1}</td><td>{:.1}</td></tr>\n",
                escaped(&group.label),
                of.min_max,
                of.summary.count,
                it.quantity.shown(of.summary.mean),
                it.quantity.shown(of.summary.sd)
            )
        })
        .collect();
    if !lines.is_empty() {
        let _ = write!(
            page,
            "<table><tr><th>condition</th><th>(min,max)</th><th>runs</th><th>mean</th><th>sd</th>\
             </tr>\n{}</table>\n",
            lines.concat()
        );
    }
}

fn comparisons(page: &mut String, it: &ExperimentReport) {
    if it.comparisons.is_empty() && it.of_allocations.is_empty() {
        return;
    }
    page.push_str(
        "<table><tr><th>compared</th><th>among</th><th>runs</th><th>difference</th><th>t</th>\
         <th>df</th><th>p</th></tr>\n",
    );
    for it in &it.comparisons {
        let compared = format!("{} {} - {}", it.factor.word(), it.first, it.second);
        compared_pair(page, &compared, &it.among, it.runs, &it.welch);
    }
    for it in &it.of_allocations {
        let compared = format!("{} - {}", it.first, it.second);
        compared_pair(page, &compared, &it.among, it.runs, &it.welch);
    }
    page.push_str("</table>\n");
}

fn compared_pair(page: &mut String, pair: &str, among: &str, runs: [usize; 2], welch: &Welch) {
    let _ = writeln!(
        page,
        "<tr><td>{}</td><td>{}</td><td>{}, {}</td><td>{:+.1} %</td><td>{:.2}</td><td>{:.1}</td>\
         <td>{:.4}</td></tr>",
        escaped(pair),
        escaped(among),
        runs[0],
        runs[1],
        welch.gain * 100.0,
        welch.t,
        welch.freedom,
        welch.p
    );
}

/// Returns a text that explains the terms of the report. All bandwidths are in MiB/s (2^20 bytes).
fn method() -> &'static str {
    "<p>Bandwidths are in MiB/s (2<sup>20</sup> bytes). The bandwidth of a run is the number of \
     bytes of all its applications, divided by the time from the first begin to the last end (Eq. \
     1 of Boito, Pallez, Teylo, CLUSTER 2022). (min,max) are the smallest and the largest number \
     of a file's targets on one server. Boxes reach from the first to the third quartile. Whiskers \
     reach to the last value within 1.5 times that distance. The thick line is the median, and the \
     cross is the mean.</p>\n<p>normal?: the p-value of the Kolmogorov-Smirnov test in the form of \
     Lilliefors (mean and standard deviation are estimated from the sample; p comes from 4000 \
     simulated samples). A small p means that the values are not normally distributed. modes: two \
     modes are reported if a mixture of two normal distributions fits better than one distribution \
     by more than 10 (Bayesian information criterion), the two are separate (Ashman's D above 4), \
     and each has at least a tenth of the runs. p of compared groups: Welch's t test, two-sided. \
     The sentences report a difference if p is below 0.05 and the difference is at least 1 %. \
     There is no correction for the number of comparisons: of twenty pairs without a difference, \
     about one has such a p.</p>\n"
}
