//! `skep stats`: shows the load of the cluster, live or for one interval.
//!
//! The command asks each service for its figures, directly and with the cluster's token, and
//! compares two replies. So it works without a monitor, and shows what happened between the
//! replies. Only `--history` asks a monitor, which stores the figures of the past.

mod fetch;
mod history;
mod measure;
mod show;

use crate::access::{Access, ClusterArgs};
use crate::help::{Example, examples};
use crate::output::{OutputFormat, format, print, say};
use clap::ValueEnum;
pub(crate) use fetch::{Fetched, fetch};
use history::MonitorQuery;
pub(crate) use history::load as past_rows;
pub(crate) use measure::{measure, measured_rows};
use show::Names;
use skep_stats::{By, Row, rows, sum};
use skep_types::{ClusterMap, Error, ErrorCode, Result};
use std::io::IsTerminal;
use std::time::Duration;

const EXAMPLES: &[Example] = &[
    ("the load of each target, each second until Ctrl-C", "skep stats"),
    ("the users with the most load", "skep stats --by user --interval 5s"),
    ("the load of one interval, for a script", "skep stats --by operation --once --output json"),
    ("the users that caused the load of the last hour", "skep stats --by user --history 1h"),
    ("what each client has done since the services started", "skep stats --by client --total"),
];

/// Shortest interval: the replies themselves take a few milliseconds.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);

/// The kind of objects that the lines of figures are about, one line for each object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Division {
    /// Services
    Node,
    /// Targets
    Target,
    /// Mounts
    Client,
    /// Users whose programs caused the load
    User,
    /// Groups of those users
    Group,
    /// Batch jobs of those programs, on mounts with the option `job_accounting`
    Job,
    /// Kinds of requests to services
    Operation,
}

impl From<Division> for By {
    fn from(division: Division) -> Self {
        match division {
            Division::Node => Self::Node,
            Division::Target => Self::Target,
            Division::Client => Self::Client,
            Division::User => Self::User,
            Division::Group => Self::Group,
            Division::Job => Self::Job,
            Division::Operation => Self::Operation,
        }
    }
}

/// Show the load of the cluster: operations, bytes and latencies by target, user, job, ...
///
/// Without --once, prints the load of each interval until Ctrl-C. Figures come from the services
/// themselves; a service that does not reply is named below the table.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct StatsArgs {
    #[command(flatten)]
    query: ClusterArgs,
    /// Show one line for each object of this kind
    #[arg(long, value_enum, default_value = "target")]
    by: Division,
    #[command(flatten)]
    span: SpanArgs,
}

/// The options that choose the time that figures cover.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct SpanArgs {
    /// Time between two outputs, such as 1s or 500ms
    #[arg(long, default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Show one interval and exit
    #[arg(long)]
    once: bool,
    /// Show the counts since the services started, without waiting for an interval
    #[arg(long, conflicts_with_all = ["once", "interval"])]
    total: bool,
    #[command(flatten)]
    monitor: MonitorQuery,
}

pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    let interval = text.parse::<skep_service::Interval>()?.0;
    match interval < SHORTEST_INTERVAL {
        true => Err(format!("the shortest interval is {SHORTEST_INTERVAL:?}")),
        false => Ok(interval),
    }
}

pub(crate) fn run(args: StatsArgs) -> Result<()> {
    show(&args.query, args.by, args.span)
}

/// Shows the load of a cluster. `skep client stats` and `skep target stats` call this function too.
pub(crate) fn show(query: &ClusterArgs, by: Division, span: SpanArgs) -> Result<()> {
    let access = query.access(None)?;
    crate::cmd::block_on(async move { follow(&access, by, &span).await })
}

async fn follow(access: &Access, by: Division, span: &SpanArgs) -> Result<()> {
    if let Some(past) = span.monitor.history {
        let rows = history::load(access, by.into(), past, &span.monitor.address).await?;
        return Report::of_rows(by, &rows, &access.map().await?).print();
    }
    span.monitor.address.refuse_without("--history")?;
    let mut before = fetch(access).await?;
    if span.total {
        let report = Report::of(by, None, &before);
        return report.print();
    }
    // JSON is one value, and CSV one table, so they show one interval.
    let is_once = span.once || matches!(format(), OutputFormat::Json | OutputFormat::Csv);
    loop {
        skep_env::sleep(span.interval).await;
        let now = fetch(access).await?;
        let report = Report::of(by, Some(&before), &now);
        if is_once {
            return report.print();
        }
        report.print_next()?;
        before = now;
    }
}

/// The load of one interval.
struct Report {
    lines: Vec<show::Line>,
    sum: Row,
    by: Division,
    is_total: bool,
    unreachable: Vec<String>,
}

impl Report {
    fn of(by: Division, before: Option<&Fetched>, now: &Fetched) -> Self {
        let rows = rows(by.into(), before.map(|it| &it.round), &now.round);
        let unreachable = now.unreachable.clone();
        Self { is_total: before.is_none(), unreachable, ..Self::of_rows(by, &rows, &now.map) }
    }

    /// Returns the report of rows whose rates are means over a span.
    fn of_rows(by: Division, rows: &[Row], map: &ClusterMap) -> Self {
        let names = Names::of(map);
        Self {
            sum: sum(rows),
            lines: rows.iter().map(|row| show::line(row, by, &names)).collect(),
            by,
            is_total: false,
            unreachable: Vec::new(),
        }
    }

    /// Prints the report as the only output of the command.
    fn print(&self) -> Result<()> {
        print(&self.lines, |_| self.as_text())?;
        self.check_reached()
    }

    /// Prints the report as one of a series. On a terminal, the report replaces the previous
    /// report.
    fn print_next(&self) -> Result<()> {
        match format() {
            OutputFormat::Table if std::io::stdout().is_terminal() => {
                // Moves the cursor to the upper left corner, and clears the screen behind the text.
                say(&format!("\x1b[H\x1b[J{}", self.as_text()))
            }
            OutputFormat::Table => say(&(self.as_text() + "\n")),
            _ => print(&self.lines, |_| String::new()),
        }
    }

    fn as_text(&self) -> String {
        let mut text = show::as_table(&self.lines, &self.sum, self.by, self.is_total);
        for problem in &self.unreachable {
            text += &format!("no figures from {problem}\n");
        }
        text
    }

    /// Returns an error if no service has replied.
    fn check_reached(&self) -> Result<()> {
        match (&self.unreachable[..], self.sum.operations, self.lines.len()) {
            ([first, ..], 0, 0) => Err(Error::new(
                ErrorCode::Disconnected,
                format!(
                    "cannot get figures from any service: {first}; `skep health check` lists \
                     problems with their remedies"
                ),
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_have_a_unit_and_a_lower_bound() {
        assert_eq!(interval("1s"), Ok(Duration::from_secs(1)));
        assert_eq!(interval("250ms"), Ok(Duration::from_millis(250)));
        for wrong in ["", "x", "1ms", "-1s"] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }
}
