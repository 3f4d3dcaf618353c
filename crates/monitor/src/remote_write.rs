//! The samples of the load in the form of Prometheus' remote write, version 1. A write is one
//! protobuf message in one block of Snappy
//! (<https://prometheus.io/docs/specs/prw/remote_write_spec/>). [`crate::copies`] sends the
//! samples.
//!
//! Prometheus can also read the services itself. These samples are for stores that only receive
//! samples and read no service. They also contain the causes of load of the whole cluster.

use crate::frame::{Dimension, Frame, Load, Measure};
use crate::names::Names;
use prost::Message;
use skep_types::ClusterMap;
use std::collections::BTreeSet;

/// The headers that the interface requires.
pub(crate) const HEADERS: &[(&str, &str)] =
    &[("Content-Encoding", "snappy"), ("X-Prometheus-Remote-Write-Version", "0.1.0")];

/// The value of a sample that marks the end of a series: the stale marker of Prometheus. The value
/// is a NaN with bits that no computation returns.
const STALE: f64 = f64::from_bits(0x7ff0_0000_0000_0002);

/// The message that carries values to the receiver. It contains a list of series.
#[derive(Clone, PartialEq, Message)]
struct WriteRequest {
    #[prost(message, repeated, tag = "1")]
    series: Vec<TimeSeries>,
}

#[derive(Clone, PartialEq, Message)]
struct TimeSeries {
    /// The labels, sorted by name. No label has an empty value.
    #[prost(message, repeated, tag = "1")]
    labels: Vec<Label>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<Sample>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Message)]
struct Label {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(double, tag = "1")]
    value: f64,
    /// Time of the sample in milliseconds since 1970.
    #[prost(int64, tag = "2")]
    at_ms: i64,
}

/// The labels of the series in the previous write.
///
/// Prometheus shows the last sample of a series for five minutes, unless the series gets a stale
/// marker. Without these markers, a user whose programs have ended would seem to cause load for
/// five minutes more. The interface requires these markers.
#[derive(Debug, Default)]
pub(crate) struct SentSeries(BTreeSet<Vec<Label>>);

impl SentSeries {
    /// Adds a stale marker to `request` for each series of the previous write that `request` lacks.
    fn mark_ended(&mut self, request: &mut WriteRequest, at_ms: i64) {
        let present: BTreeSet<_> = request.series.iter().map(|it| it.labels.clone()).collect();
        let ended = self.0.difference(&present).cloned();
        let marked = ended.map(|labels| {
            let samples = vec![Sample { value: STALE, at_ms }];
            TimeSeries { labels, samples }
        });
        request.series.extend(marked);
        self.0 = present;
    }
}

/// Returns the body of a write with the samples of a frame. The body is empty if the frame has no
/// samples. `sent` contains the series of the previous write, and then the series of this write.
pub(crate) fn body(
    frame: &Frame,
    names: &Names,
    map: Option<&ClusterMap>,
    sent: &mut SentSeries,
) -> Vec<u8> {
    let mut request = request(frame, names, map);
    // If no round has ended, the monitor does not know whether a series has ended.
    if frame.samples > 0 {
        sent.mark_ended(&mut request, end_of(frame));
    }
    if request.series.is_empty() {
        return Vec::new();
    }
    // `compress_vec` fails only for inputs of more than 4 GiB.
    snap::raw::Encoder::new().compress_vec(&request.encode_to_vec()).unwrap_or_default()
}

/// Returns the end of a frame in milliseconds since 1970, which is the time of its samples.
fn end_of(frame: &Frame) -> i64 {
    i64::try_from(frame.start_ms.saturating_add(frame.span_ms)).unwrap_or(i64::MAX)
}

fn request(frame: &Frame, names: &Names, map: Option<&ClusterMap>) -> WriteRequest {
    let cluster = map.map_or_else(String::new, |map| map.cluster.to_string());
    let at_ms = end_of(frame);
    let mut series = Vec::new();
    let mut add = |metric: String, labels: &[(&str, &str)], value: f64| {
        let mut labels: Vec<Label> = labels
            .iter()
            .chain(&[("__name__", &*metric), ("cluster", &*cluster)])
            .filter(|(_, value)| !value.is_empty())
            .map(|(name, value)| Label { name: (*name).into(), value: (*value).into() })
            .collect();
        labels.sort_by(|a, b| a.name.cmp(&b.name));
        series.push(TimeSeries { labels, samples: vec![Sample { value, at_ms }] });
    };
    for (key, load) in &frame.loads {
        let by = Dimension::ALL.iter().find(|(it, _)| *it == key.dimension).map_or("", |it| it.1);
        let name = names.name(key.dimension, &key.id, map);
        let labels = [("by", by), ("id", &key.id), ("name", &name), ("service", &key.service)];
        for (metric, value) in figures(load, frame) {
            add(format!("skep_monitor_{metric}"), &labels, value);
        }
    }
    for ((measure, id), level) in &frame.readings {
        let mean = level.sum as f64 / frame.samples.max(1) as f64;
        let (metric, label, value) = match measure {
            Measure::FreeBytes => ("target_free_bytes", "target", mean),
            Measure::SizeBytes => ("target_size_bytes", "target", mean),
            Measure::CpuPermille => ("host_cpu_ratio", "node", mean / 1000.0),
            Measure::MemoryFree => ("host_memory_available_bytes", "node", mean),
            Measure::Memory => ("host_memory_bytes", "node", mean),
        };
        add(format!("skep_monitor_{metric}"), &[(label, &id.to_string())], value);
    }
    WriteRequest { series }
}

/// Returns the metrics of an object's load, with their names. The rates are means over the frame.
fn figures(load: &Load, frame: &Frame) -> [(&'static str, f64); 7] {
    let rate = |count: u64| count as f64 * 1000.0 / frame.span_ms.max(1) as f64;
    let mean = |sum: u64| sum as f64 / frame.samples.max(1) as f64;
    [
        ("operations_per_second", rate(load.operations)),
        ("errors_per_second", rate(load.errors)),
        ("read_bytes_per_second", rate(load.read_bytes)),
        ("written_bytes_per_second", rate(load.written_bytes)),
        // By Little's law, the total duration of the operations in each second is the mean number
        // of operations in progress.
        ("operations_in_progress", rate(load.busy_ns) / 1e9),
        ("queued_requests", mean(load.queued.sum)),
        ("busy_requests", mean(load.busy.sum)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Key;
    use crate::frame::tests::frame;

    /// Decodes a body as a receiver does.
    fn decoded(body: &[u8]) -> WriteRequest {
        let message = snap::raw::Decoder::new().decompress_vec(body).unwrap();
        WriteRequest::decode(&*message).unwrap()
    }

    /// Returns the body of the first write.
    fn first(frame: &Frame) -> Vec<u8> {
        body(frame, &Names::read(), None, &mut SentSeries::default())
    }

    fn label<'a>(series: &'a TimeSeries, name: &str) -> Option<&'a str> {
        series.labels.iter().find(|it| it.name == name).map(|it| &*it.value)
    }

    #[test]
    fn remote_write_has_a_sample_for_each_metric_of_each_object() {
        let mut sum = frame(1_800_000_000, 10);
        sum.add(&frame(1_800_000_001, 30));
        let request = decoded(&first(&sum));
        assert_eq!(request.series.len(), 3 * 7 + 1);
        let value = |metric: &str, by: &str| {
            let is_meant = |it: &&TimeSeries| {
                label(it, "__name__") == Some(metric) && label(it, "by").unwrap_or_default() == by
            };
            request.series.iter().find(is_meant).unwrap().samples[0].value
        };
        assert_eq!(value("skep_monitor_operations_per_second", "node"), 20.0);
        assert_eq!(value("skep_monitor_written_bytes_per_second", "target"), 20.0 * 4096.0);
        assert_eq!(value("skep_monitor_operations_in_progress", "user"), 0.02);
        assert_eq!(value("skep_monitor_queued_requests", "node"), 3.0);
        assert_eq!(value("skep_monitor_target_free_bytes", ""), 99.0);
        for series in &request.series {
            assert!(series.labels.is_sorted_by(|a, b| a.name < b.name), "{series:?}");
            assert!(series.labels.iter().all(|it| !it.value.is_empty()), "{series:?}");
            assert_eq!(series.samples[0].at_ms, 1_800_000_002_000);
        }
    }

    #[test]
    fn hostile_names_stay_in_one_label() {
        let mut hostile = frame(1_800_000_000, 10);
        let id = "a\"} 1\n# b{c=\"".to_owned();
        let key = Key { dimension: Dimension::Operation, id: id.clone(), service: String::new() };
        hostile.loads.insert(key, Load { operations: 1, ..Load::default() });
        let request = decoded(&first(&hostile));
        let found = request.series.iter().filter(|it| label(it, "id") == Some(&*id)).count();
        assert_eq!(found, 7);
    }

    #[test]
    fn frame_without_load_is_not_written() {
        assert!(first(&Frame::default()).is_empty());
    }

    #[test]
    fn series_of_an_object_without_load_end_once() {
        let (names, mut sent) = (Names::read(), SentSeries::default());
        let mut ended = |frame: &Frame| {
            let body = body(frame, &names, None, &mut sent);
            let request = if body.is_empty() { WriteRequest::default() } else { decoded(&body) };
            let is_marked = |it: &&TimeSeries| it.samples[0].value.to_bits() == STALE.to_bits();
            let marked = request.series.iter().filter(is_marked);
            let by: BTreeSet<_> = marked.clone().filter_map(|it| label(it, "by")).collect();
            (marked.count(), by.into_iter().map(str::to_owned).collect::<Vec<_>>())
        };
        let busy = frame(1_800_000_000, 10);
        let mut idle = frame(1_800_000_010, 10);
        idle.loads.retain(|key, _| key.dimension != Dimension::User);
        assert_eq!(ended(&busy), (0, vec![]));
        assert_eq!(ended(&Frame::default()), (0, vec![]), "no round has ended");
        assert_eq!(ended(&idle), (7, vec!["user".to_owned()]));
        assert_eq!(ended(&idle), (0, vec![]));
        assert_eq!(ended(&busy), (0, vec![]));
    }
}
