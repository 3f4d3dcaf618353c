//! `skep stats --history`: shows the load of a past span of time. The monitor has stored it.

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
    #[command(flatten)]
    pub(super) address: MonitorAddress,
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
    span: Duration,
    address: &MonitorAddress,
) -> Result<Vec<Row>> {
    let dimension = dimension(by);
    let name = Dimension::ALL.iter().find(|(it, _)| *it == dimension).map_or("", |it| it.1);
    let path = format!("/api/load?by={name}&span={}", span.as_secs().max(1));
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
    fn rows_of_the_monitor_are_parsed_and_invalid_ones_refused() {
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
