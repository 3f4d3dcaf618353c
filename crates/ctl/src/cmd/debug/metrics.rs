//! The metrics in a bundle: all series of each service, and the pages of the mounts of this host.

use super::directory::files_in;
use crate::access::{Access, block_on};
use crate::cmd::stats::{Fetched, Fetcher};
use crate::in_time::within;
use crate::mount_result;
use serde_json::{Map, Value, json};
use skep_stats::ServiceFigures;
use skep_types::NodeId;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time limit for the page of one mount. The process of a mount that hangs may be suspended.
const PATIENCE: Duration = Duration::from_secs(1);
/// Maximum number of mounts of this host whose pages a bundle has.
const MAX_MOUNTS: usize = 32;
/// Maximum number of bytes of the page of one mount in a bundle.
const MAX_PAGE_BYTES: u64 = 4 << 20;

/// Asks all services of a cluster for their metrics. Returns the files for the bundle, with their
/// names: one for each service that has replied, and one with the reasons why others are missing.
pub(super) fn of_services(access: &Access) -> Vec<(String, String)> {
    let missing = |reasons: &[String]| {
        let lines = reasons.iter().map(|it| format!("cannot get the metrics of {it}\n"));
        ("metrics/missing.txt".to_owned(), lines.collect::<String>())
    };
    let fetcher = Fetcher::new(access.clone());
    match block_on(async move { fetcher.fetch().await }) {
        Ok(Fetched { round, unreachable, .. }) => {
            let mut files: Vec<_> = round.iter().map(file_of).collect();
            files.extend((!unreachable.is_empty()).then(|| missing(&unreachable)));
            files
        }
        Err(error) => vec![missing(&[format!("any service: {}", error.context())])],
    }
}

/// Returns the file for a service: a line of JSON about the reply, and one for each series. The
/// values have the units of the message `GetStatistics`.
fn file_of(figures: &ServiceFigures) -> (String, String) {
    let ServiceFigures { node, name, statistics } = figures;
    let reply = json!({
        "node": node,
        "name": name,
        "moment_ns": statistics.moment_ns,
        "incarnation": statistics.incarnation,
        "page": statistics.page,
    });
    let series = statistics.series.iter().map(|series| {
        let labels = series.labels.iter().map(|(name, value)| (name.clone(), json!(value)));
        let labels: Map<String, Value> = labels.collect();
        json!({
            "metric": series.metric,
            "labels": labels,
            "value": series.value,
            "buckets": series.buckets,
        })
    });
    let lines = std::iter::once(reply).chain(series).map(|line| format!("{line}\n"));
    (format!("metrics/{}-{name}.ndjson", NodeId::new(*node)), lines.collect())
}

/// Returns the pages with the metrics of mounts of this host as files for the bundle, with their
/// names. Root gets the mounts of root, and another user gets the own mounts.
pub(super) fn of_mounts() -> Vec<(String, String)> {
    mount_result::directory().map_or_else(Vec::new, |directory| of_mounts_in(&directory))
}

fn of_mounts_in(directory: &Path) -> Vec<(String, String)> {
    let sockets = files_in(directory, &["sock"]).into_iter().take(MAX_MOUNTS);
    let file = |socket: PathBuf| {
        let name = socket.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let page = within(PATIENCE, move || page_of(&socket));
        let text = match page {
            Some(Ok(page)) => page,
            Some(Err(error)) => format!("cannot read the metrics of {name}: {error}\n"),
            None => format!("cannot read the metrics of {name}: no reply within {PATIENCE:?}\n"),
        };
        (format!("host/metrics/{name}.txt"), text)
    };
    sockets.map(file).collect()
}

/// Gets the page at a socket, without the head of the reply.
fn page_of(socket: &Path) -> std::io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    let mut reply = Vec::new();
    stream.take(MAX_PAGE_BYTES).read_to_end(&mut reply)?;
    let reply = String::from_utf8_lossy(&reply);
    Ok(reply.split_once("\r\n\r\n").map_or(&*reply, |(_, page)| page).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_wire::node::{Statistics, StatisticsSeries};
    use std::os::unix::net::UnixListener;

    #[test]
    fn bundle_has_each_series_of_a_service_as_a_line_of_json() {
        let series = StatisticsSeries {
            metric: "skep_metadata_log_sync_seconds".into(),
            labels: vec![("target".into(), "7\n".into())],
            value: 3_000_000,
            buckets: vec![(40, 2)],
        };
        let page = "127.0.0.1:7411".to_owned();
        let statistics = Statistics { moment_ns: 9, incarnation: 5, page, series: vec![series] };
        let figures = ServiceFigures { node: 3, name: "metadata-1".into(), statistics };
        let (name, text) = file_of(&figures);
        assert_eq!(name, "metrics/n3-metadata-1.ndjson");
        let lines: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines[0]["incarnation"], 5);
        assert_eq!(lines[1]["labels"]["target"], "7\n");
        assert_eq!(lines[1]["buckets"], json!([[40, 2]]));
        assert_eq!(lines.len(), 2);
    }

    #[test]
    fn bundle_has_the_page_of_each_mount_or_why_it_is_missing() {
        let directory = tempfile::tempdir().unwrap();
        let listen = |name: &str| UnixListener::bind(directory.path().join(name)).unwrap();
        let answering = listen("mount-1.sock");
        // No thread accepts connections of this socket, as in a suspended mount.
        let _silent = listen("mount-2.sock");
        drop(listen("mount-3.sock"));
        let server = std::thread::spawn(move || {
            let (mut stream, _) = answering.accept().unwrap();
            let mut head = [0; 25];
            stream.read_exact(&mut head).unwrap();
            assert_eq!(&head, b"GET /metrics HTTP/1.0\r\n\r\n");
            stream.write_all(b"HTTP/1.1 200 OK\r\nA: b\r\n\r\nskep_mount 1\n").unwrap();
        });
        let files = of_mounts_in(directory.path());
        server.join().unwrap();
        let names: Vec<_> = files.iter().map(|(name, _)| name.as_str()).collect();
        let expected = ["mount-1", "mount-2", "mount-3"].map(|it| format!("host/metrics/{it}.txt"));
        assert_eq!(names, expected);
        assert_eq!(files[0].1, "skep_mount 1\n");
        assert!(files[1].1.contains("no reply within 1s"), "{}", files[1].1);
        assert!(files[2].1.contains("refused"), "{}", files[2].1);
    }
}
