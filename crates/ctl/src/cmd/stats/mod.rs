//! `skep stats`: shows the load of the cluster, live or for one interval.
//!
//! The command asks each service for its statistics twice, directly and with the cluster's token.
//! The load is the difference between the two replies. For this reason, the command needs no
//! monitor. Only `--history` asks a monitor, which stores the statistics of the past. A user
//! without the token gets the load of the user's own programs from a mount ([`own`]). On a
//! terminal, the command shows an interactive view ([`live`]).

mod fetch;
mod history;
mod live;
mod measure;
mod moment;
mod own;
mod selection;
mod series;
mod show;

use crate::access::{Access, ClusterArgs};
use crate::help::{Example, examples};
use crate::output::{
    OutputFormat, format, is_for_people, is_on_screen, is_one_value, print, say, warn,
};
use clap::ValueEnum;
pub(crate) use fetch::{Fetched, Fetcher, check_reached, fetch, fetch_by_last_map};
use history::MonitorQuery;
pub(crate) use history::{Past, load as past_rows};
pub(crate) use measure::{measure, measure_since, measured_rows};
use moment::Moment;
pub(crate) use own::mount_of_user;
use selection::SelectionArgs;
use serde::Serialize;
pub(crate) use series::Series;
use show::Names;
use skep_stats::{By, Row, rows_within};
use skep_types::{ClusterMap, Result};
use std::path::PathBuf;
use std::time::Duration;

const EXAMPLES: &[Example] = &[
    ("show the load of each target, each second until Ctrl-C", "skep stats"),
    ("show the users with the most load", "skep stats --by user --interval 5s"),
    (
        "show the load of one interval, for a script",
        "skep stats --by operation --once --output json",
    ),
    ("show the users that caused the load of the last hour", "skep stats --by user --history 1h"),
    (
        "show the load of one hour that ended six hours ago",
        "skep stats --by target --history 1h --ago 6h",
    ),
    (
        "show the load of this user's programs through a mount, without the token",
        "skep stats --mount /mnt/skep",
    ),
    (
        "show the operations and bytes of each client since the services started",
        "skep stats --by client --total",
    ),
    ("show the users that cause load at one service", "skep stats --by user --node storage-1"),
    ("show only the clients of one host", "skep stats --by client --filter node17"),
];

/// Shortest interval between two requests. The replies take a few milliseconds, which would distort
/// the load of a shorter interval.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);

/// The kind of objects for which the load is shown, with one line for each object.
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
    /// Groups of the users whose programs caused the load
    Group,
    /// Batch jobs whose programs caused the load, on mounts with the option `job_accounting`
    Job,
    /// Kinds of requests to services
    Operation,
}

impl Division {
    /// Returns the value of `--by` for this kind of objects, which is also the word for such an
    /// object in messages.
    fn word(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Target => "target",
            Self::Client => "client",
            Self::User => "user",
            Self::Group => "group",
            Self::Job => "job",
            Self::Operation => "operation",
        }
    }
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
/// Without --once, shows the load of each interval until Ctrl-C. On a terminal, keys sort and
/// filter the rows, and lead from the cluster to a service and to a target; the key ? lists all
/// keys. Statistics come from the services themselves; a service that does not reply is named below
/// the table.
///
/// A user who cannot read the cluster's token sees only the requests of this user's programs
/// through a mount of this host. The mount counts these requests while the command runs. Their
/// times include the time in the network.
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

/// The options that select the span of time that the statistics cover, the source of the
/// statistics, and the rows.
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
    /// Show only the requests that this user's programs send through the mount at this path; root
    /// sees the requests of all users. Needs no token
    #[arg(long, value_name = "PATH")]
    #[arg(conflicts_with_all = ["cluster", "token_file", "total", "history"])]
    mount: Option<PathBuf>,
    #[command(flatten)]
    selection: SelectionArgs,
    #[command(flatten)]
    monitor: MonitorQuery,
}

pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    let interval = text.parse::<skep_service::Interval>()?.0;
    match interval < SHORTEST_INTERVAL {
        true => Err(format!("expected at least {SHORTEST_INTERVAL:?}")),
        false => Ok(interval),
    }
}

/// The advice in the error message for a user without the token who does not use `--mount`.
const WITHOUT_TOKEN: &str =
    "name a path in a mount: `skep stats --mount PATH` shows your operations";

pub(crate) fn run(args: StatsArgs) -> Result<()> {
    show(&args.query, args.by, args.span)
}

/// Shows the load of a cluster. `skep client stats` and `skep target stats` call this function too.
pub(crate) fn show(query: &ClusterArgs, by: Division, span: SpanArgs) -> Result<()> {
    // The live view takes its signals here, because the lookup of a path starts a thread.
    let signals = is_live(&span).then(live::take_signals).transpose()?;
    let mount = match (&span.mount, query.access_or(None, WITHOUT_TOKEN)) {
        (Some(mount), _) => mount.clone(),
        (None, Ok(access)) => {
            let Some(signals) = signals else {
                return crate::cmd::block_on(async move { follow(&access, by, &span).await });
            };
            span.monitor.address.refuse_without("--history")?;
            let services = live::Source::Services(Box::new(Fetcher::new(access)));
            return live::show(services, by, span, signals);
        }
        (None, Err(error)) => match own::mount_of_user() {
            Some(mount) if !query.is_explicit() && span.monitor.history.is_none() => {
                own::explain_source(&mount);
                mount
            }
            _ => return Err(error),
        },
    };
    span.monitor.address.refuse_without("--history")?;
    if let Some(signals) = signals {
        return live::show(live::Source::of_mount(&mount, by, &span)?, by, span, signals);
    }
    crate::cmd::block_on(async move { own::follow(&mount, by, &span).await })
}

/// Whether the command shows the live view, which follows the keys of the user.
fn is_live(span: &SpanArgs) -> bool {
    let is_series = !span.once && !span.total && span.monitor.history.is_none();
    is_series && is_for_people() && live::is_available()
}

async fn follow(access: &Access, by: Division, span: &SpanArgs) -> Result<()> {
    if let Some(past) = span.monitor.history {
        let past = Past { span: past, ago: span.monitor.ago.unwrap_or_default() };
        return print_past(access, by, span, past).await;
    }
    span.monitor.address.refuse_without("--history")?;
    let fetcher = Fetcher::new(access.clone());
    let mut before = fetcher.fetch().await?;
    // Refuse a wrong name immediately, and not only after the first interval.
    span.selection.scope(&before.map)?;
    if span.total {
        let report = Report::of(by, None, &before, &span.selection)?;
        return report.print();
    }
    // An output format that consists of one value can show only one interval.
    let mut series = Series::begin(span.interval, span.once || is_one_value());
    // Retry: while the cluster does not answer, the command asks again after each interval. The
    // next report then also covers the time of the outage.
    while series.wait().await {
        let Some(now) = series.accept(fetcher.fetch().await)? else { continue };
        let report = Report::of(by, Some(&before), &now, &span.selection)?;
        if series.is_once() {
            return report.print();
        }
        report.print_next()?;
        series.warn_of_unreachable(&report.unreachable);
        before = now;
    }
    Ok(())
}

/// Prints the load of a past span of time from the history of the monitor.
async fn print_past(access: &Access, by: Division, span: &SpanArgs, past: Past) -> Result<()> {
    span.selection.check_has_nodes(by, "the monitor stores")?;
    let map = access.map().await?;
    let scope = span.selection.scope(&map)?;
    let mut rows = history::load(access, by.into(), past, &span.monitor.address).await?;
    rows.retain(|row| selection::is_within(scope, by, &row.id, &map));
    Report::of_rows(by, &rows, &map, &span.selection).print()
}

/// The load of one interval, in the form in which the command prints the load.
struct Report {
    lines: Vec<show::Line>,
    /// The sum of the rows in `lines`.
    sum: Row,
    by: Division,
    is_total: bool,
    /// Whether the statistics come from a mount, which has no queues of requests. `false` means
    /// that the statistics come from services.
    is_own: bool,
    unreachable: Vec<String>,
    /// When the statistics were collected.
    moment: Moment,
    /// Whether there is no load at all, regardless of the filter.
    is_empty: bool,
    /// A sentence about the filter, if the filter matches no object.
    unmatched: Option<String>,
}

/// A line for programs, with the end of its interval.
#[derive(Serialize)]
struct TimedLine<'a> {
    #[serde(flatten)]
    line: &'a show::Line,
    #[serde(flatten)]
    moment: Moment,
}

impl Report {
    /// Returns the report about the load between two replies, or since the services started.
    ///
    /// # Errors
    /// An error if the cluster does not have the service that `selection` names.
    fn of(
        by: Division,
        before: Option<&Fetched>,
        now: &Fetched,
        selection: &SelectionArgs,
    ) -> Result<Self> {
        let scope = selection.scope(&now.map)?;
        let rows = rows_within(scope, by.into(), before.map(|it| &it.round), &now.round);
        let report = Self::of_rows(by, &rows, &now.map, selection);
        Ok(Self {
            is_total: before.is_none(),
            unreachable: now.unreachable.clone(),
            moment: now.moment,
            ..report
        })
    }

    /// Returns the report about `rows`, whose rates are means over a span of time.
    fn of_rows(by: Division, rows: &[Row], map: &ClusterMap, selection: &SelectionArgs) -> Self {
        let lines = show::lines(rows, by, &Names::of(map));
        let (lines, unmatched) = selection.select(lines, by);
        Self {
            sum: show::sum(&lines),
            lines,
            by,
            is_total: false,
            is_own: false,
            unreachable: Vec::new(),
            moment: Moment::default(),
            is_empty: rows.is_empty(),
            unmatched,
        }
    }

    /// Prints the report as the only output of the command.
    fn print(&self) -> Result<()> {
        if !is_for_people() {
            // A failure must print nothing to standard output, and only one line to standard error.
            check_reached(&self.unreachable, self.is_empty)?;
            let unreachable = self.unreachable.iter();
            let unreachable = unreachable.map(|it| format!("cannot get statistics from {it}"));
            unreachable.chain(self.unmatched.clone()).for_each(|problem| warn(&problem));
        }
        print(&self.timed_lines(), |_| self.as_text())?;
        check_reached(&self.unreachable, self.is_empty)
    }

    /// Prints the report as one report of a series. On a terminal, the report replaces the previous
    /// report.
    fn print_next(&self) -> Result<()> {
        match format() {
            OutputFormat::Table if is_on_screen() => {
                // Moves the cursor to the upper left corner, and clears the rest of the screen
                // after the text.
                say(&format!("\x1b[H\x1b[J{}", self.as_text()))
            }
            OutputFormat::Table => say(&(self.as_text() + "\n")),
            _ => print(&self.timed_lines(), |_| String::new()),
        }
    }

    /// Returns the lines for programs.
    fn timed_lines(&self) -> Vec<TimedLine<'_>> {
        self.lines.iter().map(|line| TimedLine { line, moment: self.moment }).collect()
    }

    fn as_text(&self) -> String {
        let columns = show::Columns::of(self.by, self.is_own);
        let mut text = show::as_table(&self.lines, &self.sum, columns, self.is_total);
        if let Some(problem) = &self.unmatched {
            text += &format!("{problem}\n");
        }
        for problem in &self.unreachable {
            text += &format!("cannot get statistics from {problem}\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_needs_a_unit_and_a_minimum_length() {
        assert_eq!(interval("1s"), Ok(Duration::from_secs(1)));
        assert_eq!(interval("250ms"), Ok(Duration::from_millis(250)));
        for wrong in ["", "x", "1ms", "-1s"] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }
}
