//! `skep stats --history`: shows the load of a past span of time, which the monitor has stored.

use crate::access::Access;
use crate::monitor_address::{MonitorAddress, not_a_monitor};
use serde_json::Value;
use skep_monitor::frame::Dimension;
use skep_stats::{By, Row};
use skep_types::Result;
use std::time::Duration;

/// The options that select a past span of time and the monitor.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct MonitorQuery {
    /// Show the load of the last SPAN, such as 10min, 1h or 7d, from the history of the monitor
    #[arg(long, value_name = "SPAN", value_parser = super::interval,
        conflicts_with_all = ["once", "total", "interval"])]
    pub(super) history: Option<Duration>,
    /// Let the span of --history end this long ago, such as 6h, instead of now
    #[arg(long, value_name = "SPAN", value_parser = super::interval, requires = "history")]
    pub(super) ago: Option<Duration>,
    #[command(flatten)]
    pub(super) address: MonitorAddress,
}

/// A past span of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Past {
    pub(crate) span: Duration,
    /// Time from the end of the span until now.
    pub(crate) ago: Duration,
}

impl Past {
    /// Returns the parameters of a request to the monitor for this span, at the time `now_s` in
    /// seconds since 1970.
    fn parameters(self, now_s: u64) -> String {
        let span = format!("span={}", self.span.as_secs().max(1));
        match self.ago.as_secs() {
            0 => span,
            ago => format!("{span}&until={}", now_s.saturating_sub(ago)),
        }
    }
}

fn dimension(by: By) -> Dimension {
    match by {
        By::Node => Dimension::Node,
        By::Target => Dimension::Target,
        By::Client => Dimension::Client,
        By::User => Dimension::User,
        By::Group => Dimension::Group,
        By::Job => Dimension::Job,
        By::Operation => Dimension::Operation,
    }
}

/// Asks the monitor for the load of a past span. Returns the rows with the heaviest load first. The
/// rates are means over the span.
///
/// # Errors
/// - `Disconnected` if the monitor cannot be reached.
/// - `Configuration` if the password is missing or wrong.
/// - `Protocol` if the reply is not the expected JSON.
pub(crate) async fn load(
    access: &Access,
    by: By,
    past: Past,
    address: &MonitorAddress,
) -> Result<Vec<Row>> {
    let dimension = dimension(by);
    let name = Dimension::ALL.iter().find(|(it, _)| *it == dimension).map_or("", |it| it.1);
    let now_s = u64::try_from(skep_env::wall_time().seconds).unwrap_or(0);
    let path = format!("/api/load?by={name}&{}", past.parameters(now_s));
    let value = address.ask(access, &path).await?;
    rows(&value).ok_or_else(|| not_a_monitor(&address.of(access)))
}

fn rows(value: &Value) -> Option<Vec<Row>> {
    value["rows"].as_array()?.iter().map(row).collect()
}

fn row(value: &Value) -> Option<Row> {
    let count = |name: &str| value[name].as_u64();
    let rate = |name: &str| value[name].as_f64();
    let operations = count("operations")?;
    Some(Row {
        id: value["id"].as_str()?.to_owned(),
        service: value["service"].as_str()?.to_owned(),
        operations,
        errors: count("errors")?,
        read_bytes: count("read_bytes")?,
        written_bytes: count("written_bytes")?,
        busy_ns: count("busy_ns")?,
        queued: rate("queued")?.round() as i64,
        busy: rate("busy")?.round() as i64,
        durations: durations(&value["buckets"])?,
        operations_per_second: rate("operations_per_second")?,
        read_bytes_per_second: rate("read_bytes_per_second")?,
        written_bytes_per_second: rate("written_bytes_per_second")?,
    })
}

fn durations(buckets: &Value) -> Option<skep_metrics::HistogramValue> {
    let of_pair =
        |pair: &Value| Some((usize::try_from(pair[0].as_u64()?).ok()?, pair[1].as_u64()?));
    let buckets: Option<Vec<(usize, u64)>> = buckets.as_array()?.iter().map(of_pair).collect();
    Some(skep_metrics::HistogramValue::of_buckets(0, buckets?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn past_span_ends_now_or_at_the_requested_earlier_time() {
        let of = |span, ago| {
            let [span, ago] = [span, ago].map(Duration::from_millis);
            Past { span, ago }.parameters(1_800_000_000)
        };
        assert_eq!(of(3_600_000, 0), "span=3600");
        assert_eq!(of(100, 999), "span=1");
        assert_eq!(of(3_600_000, 21_600_000), "span=3600&until=1799978400");
    }

    #[test]
    fn rows_of_the_monitor_are_parsed_and_invalid_rows_refused() {
        let mut value = json!({ "rows": [{
            "id": "7", "service": "storage", "operations": 10, "errors": 1, "read_bytes": 2,
            "written_bytes": 3, "busy_ns": 50, "queued": 1.6, "busy": 0.2, "buckets": [[40, 10]],
            "operations_per_second": 0.5, "read_bytes_per_second": 0.1,
            "written_bytes_per_second": 0.2,
        }] });
        let found = rows(&value).unwrap();
        assert_eq!((found[0].mean_ns(), found[0].queued, found[0].operations), (5, 2, 10));
        value["rows"][0]["buckets"] = json!([[-1, 5]]);
        assert!(rows(&value).is_none());
        assert!(rows(&json!({})).is_none() && rows(&json!([1])).is_none());
    }
}
