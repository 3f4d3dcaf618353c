//! `skep stats --history`: the load of a past span, from the monitor.

use crate::access::Access;
use serde_json::Value;
use skep_monitor::http_client::{HttpRequest, Url, send};
use skep_monitor::{DEFAULT_PORT, frame::Dimension};
use skep_stats::{By, Row};
use skep_types::{Error, ErrorCode, Result};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The monitor to ask.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct MonitorQuery {
    /// Show the load of this past span, such as 10min, 1h or 7d, as the monitor has stored it
    #[arg(long, value_name = "SPAN", value_parser = super::interval,
        conflicts_with_all = ["once", "total", "interval"])]
    pub(super) history: Option<Duration>,
    /// Address of the monitor for --history [default: that of the cluster's data directory, or
    /// 127.0.0.1:7480]
    #[arg(long, value_name = "HOST:PORT", requires = "history")]
    pub(super) monitor: Option<String>,
    /// File with the password of the monitor, in its first line
    #[arg(long, value_name = "FILE", requires = "history")]
    pub(super) monitor_password_file: Option<PathBuf>,
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

/// Asks the monitor for the load of a span, the heaviest first. The rates are means over the span.
///
/// # Errors
/// - `Disconnected` if the monitor cannot be reached.
/// - `Configuration` if the password is missing or wrong.
/// - `Protocol` if the reply has another form.
pub(super) async fn load(
    access: &Access,
    by: By,
    span: Duration,
    query: &MonitorQuery,
) -> Result<Vec<Row>> {
    let address = match &query.monitor {
        Some(address) => address.clone(),
        None => address_in(Path::new(&access.name)),
    };
    let dimension = dimension(by);
    let name = Dimension::ALL.iter().find(|(it, _)| *it == dimension).map_or("", |it| it.1);
    let seconds = span.as_secs().max(1);
    let url = Url::parse(&format!("http://{address}/api/load?by={name}&span={seconds}"))
        .map_err(|problem| Error::new(ErrorCode::Configuration, problem))?;
    let authorization = match &query.monitor_password_file {
        Some(file) => format!("Bearer {}", password(file)?),
        None => String::new(),
    };
    let request = HttpRequest {
        method: "GET",
        url: &url,
        authorization: &authorization,
        content_type: "",
        body: &[],
    };
    let unreachable = |problem| {
        let what = format!(
            "cannot ask the monitor at {problem}; start it with `skep monitor`, or name its \
             address with --monitor"
        );
        Error::new(ErrorCode::Disconnected, what)
    };
    let (code, body) = send(&request).await.map_err(unreachable)?;
    let malformed = || {
        let what =
            format!("cannot read the reply of {address}: the service there is not a monitor");
        Error::new(ErrorCode::Protocol, what)
    };
    match code {
        200 => {
            let value: Value = serde_json::from_slice(&body).map_err(|_| malformed())?;
            rows(&value).ok_or_else(malformed)
        }
        401 => {
            let what = format!(
                "cannot ask the monitor at {address}: it needs its password; name the file that \
                 holds it with --monitor-password-file"
            );
            Err(Error::new(ErrorCode::Configuration, what))
        }
        _ => {
            let reason: String = String::from_utf8_lossy(&body).chars().take(200).collect();
            let what = format!(
                "cannot ask the monitor at {address}: it replied {code} {}",
                reason.trim().escape_debug()
            );
            Err(Error::new(ErrorCode::InvalidArgument, what))
        }
    }
}

/// Returns the address of the monitor that `skep up` runs in a data directory, or the default.
fn address_in(data: &Path) -> String {
    let file = data.join("monitor").join(skep_service::listen::ADDRESS_FILE);
    let known = skep_service::listen::read_address(&file);
    known.unwrap_or_else(|| format!("127.0.0.1:{DEFAULT_PORT}"))
}

fn password(file: &Path) -> Result<String> {
    let text =
        std::fs::read_to_string(file).map_err(|error| Error::from(error).within(file.display()))?;
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
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
    let mut value = skep_metrics::HistogramValue::default();
    for pair in buckets.as_array()? {
        let bucket = usize::try_from(pair[0].as_u64()?).ok()?.min(skep_metrics::BUCKETS - 1);
        value.buckets[bucket] = value.buckets[bucket].saturating_add(pair[1].as_u64()?);
    }
    Some(value)
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

    #[test]
    fn the_monitor_of_a_data_directory_is_found() {
        let data = tempfile::tempdir().unwrap();
        assert_eq!(address_in(data.path()), "127.0.0.1:7480");
        std::fs::create_dir(data.path().join("monitor")).unwrap();
        std::fs::write(data.path().join("monitor/address"), "127.0.0.1:5\n").unwrap();
        assert_eq!(address_in(data.path()), "127.0.0.1:5");
    }
}
