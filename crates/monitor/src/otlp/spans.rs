//! Converts trace records to the JSON form of OTLP. The result is an `ExportTraceServiceRequest`.
//! The request has a span for each operation of a mount, for each request that the operation sent,
//! and for the execution of each request in a service.
//!
//! Records have no span ids, so this module computes these ids. The same record always gets the
//! same id. The parent of all other spans of an operation is the span of its mount.

use serde_json::{Value, json};
use skep_wire::catalog::metric_name;
use skep_wire::traces::{StageTimes, TraceCall, TraceRecord};
use std::collections::BTreeMap;

/// Numbers of the kinds of spans in OTLP. The three constants are for internal, server and client
/// spans.
const INTERNAL: u32 = 1;
const SERVER: u32 = 2;
const CLIENT: u32 = 3;
/// Status code of a failed span in OTLP.
const ERROR: u32 = 2;

/// Returns the export request for all records that have a trace id.
pub(super) fn request(records: &[TraceRecord]) -> Value {
    let mut by_service: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for record in records.iter().filter(|record| record.trace != 0) {
        let spans = by_service.entry(&record.service).or_default();
        spans.push(span_of(record));
        let calls = record.calls.iter().enumerate();
        spans.extend(calls.map(|(number, call)| span_of_call(record, call, number as u64 + 1)));
    }
    let resources = by_service.into_iter().map(|(service, spans)| {
        json!({
            "resource": { "attributes": [text("service.name", &format!("skep-{service}"))] },
            "scopeSpans": [{ "scope": { "name": "skep" }, "spans": spans }],
        })
    });
    json!({ "resourceSpans": resources.collect::<Vec<_>>() })
}

fn text(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

/// Returns an attribute with a number. In the JSON form of protocol buffers, integers of 64 bits
/// are strings.
fn number(key: &str, value: u64) -> Value {
    json!({ "key": key, "value": { "intValue": value.to_string() } })
}

/// Computes the id of a span. The id is never zero, because OTLP does not allow zero.
fn span_id(trace: u128, part: u64) -> String {
    // This is the finalizer of splitmix64.
    let mut id = (trace >> 64) as u64 ^ (trace as u64) ^ part.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    id = (id ^ (id >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    id = (id ^ (id >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    format!("{:016x}", (id ^ (id >> 31)).max(1))
}

fn nanoseconds(us: u64) -> String {
    us.saturating_mul(1000).to_string()
}

fn span_of(record: &TraceRecord) -> Value {
    let is_mount = record.service == "mount";
    let begin_us = record.ended_us.saturating_sub(record.duration_us);
    let mut attributes = stages(record.stages);
    attributes.push(number("skep.bytes", record.bytes));
    attributes.push(text("skep.reason", if record.is_slow { "slow" } else { "sampled" }));
    let facts = [
        ("skep.target", u64::from(record.target.raw())),
        ("skep.client", u64::from(record.client.raw())),
        ("skep.inode", record.inode.raw()),
    ];
    attributes.extend(facts.iter().filter(|(_, id)| *id != 0).map(|(key, id)| number(key, *id)));
    attributes.extend(record.user.map(|user| number("enduser.id", user.into())));
    // The record of a service has no number in the operation. Two records of one target never end
    // at the same moment, so the end time takes the place of the number.
    let part = match is_mount {
        true => 0,
        false => u64::from(record.target.raw()) << 32 ^ record.ended_us ^ (1 << 63),
    };
    let mut span = json!({
        "traceId": format!("{:032x}", record.trace),
        "spanId": span_id(record.trace, part),
        "name": record.operation,
        "kind": if is_mount { INTERNAL } else { SERVER },
        "startTimeUnixNano": nanoseconds(begin_us),
        "endTimeUnixNano": nanoseconds(record.ended_us),
        "attributes": attributes,
        "droppedAttributesCount": 0,
    });
    if !is_mount {
        span["parentSpanId"] = span_id(record.trace, 0).into();
    }
    if record.is_failed {
        span["status"] = json!({ "code": ERROR });
    }
    span
}

fn span_of_call(record: &TraceRecord, call: &TraceCall, part: u64) -> Value {
    let begin_us = record.ended_us.saturating_sub(record.duration_us) + u64::from(call.begin_us);
    let mut attributes = call.stages.map_or_else(Vec::new, stages);
    attributes.push(number("skep.target", call.target.raw().into()));
    let name = metric_name(call.message).unwrap_or_else(|| format!("message {}", call.message));
    let mut span = json!({
        "traceId": format!("{:032x}", record.trace),
        "spanId": span_id(record.trace, part),
        "parentSpanId": span_id(record.trace, 0),
        "name": name,
        "kind": CLIENT,
        "startTimeUnixNano": nanoseconds(begin_us),
        "endTimeUnixNano": nanoseconds(begin_us + u64::from(call.duration_us)),
        "attributes": attributes,
        "droppedAttributesCount": 0,
    });
    if call.is_failed {
        span["status"] = json!({ "code": ERROR });
    }
    span
}

/// Returns an attribute for each stage in which the operation spent time.
fn stages(times: StageTimes) -> Vec<Value> {
    let names = ["waiting", "processing", "disk", "log_sync", "others", "network", "copies"];
    let times = names.into_iter().zip(times.to_array()).filter(|(_, us)| *us > 0);
    times.map(|(name, us)| number(&format!("skep.stage.{name}_us"), us.into())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::TargetId;
    use std::collections::BTreeSet;

    #[test]
    fn span_of_an_operation_is_the_parent_of_its_request_spans() {
        let disk = StageTimes { disk_us: 900, ..StageTimes::default() };
        let call = TraceCall {
            message: 98,
            target: TargetId::new(7),
            begin_us: 10,
            duration_us: 950,
            is_failed: true,
            stages: Some(disk),
        };
        let of_mount = TraceRecord {
            trace: 0x17 << 64 | 0x2a,
            service: "mount".into(),
            operation: "fsync \"\u{1b}".into(),
            ended_us: 5_000_000,
            duration_us: 1_000,
            calls: vec![call, call],
            ..TraceRecord::default()
        };
        let of_target = TraceRecord {
            service: "storage".into(),
            target: TargetId::new(7),
            stages: disk,
            calls: Vec::new(),
            ..of_mount.clone()
        };
        let without_id = TraceRecord { trace: 0, ..of_target.clone() };
        let all = request(&[of_mount, of_target, without_id]);
        let spans = |at: usize| all["resourceSpans"][at]["scopeSpans"][0]["spans"].as_array();
        let [mount, storage] = [spans(0).unwrap(), spans(1).unwrap()];
        assert_eq!((mount.len(), storage.len()), (3, 1));
        assert_eq!(mount[0]["traceId"], "0000000000000017000000000000002a");
        assert_eq!(mount[0].get("parentSpanId"), None);
        for child in mount[1..].iter().chain(storage) {
            assert_eq!(child["parentSpanId"], mount[0]["spanId"]);
        }
        let ids: BTreeSet<_> =
            mount.iter().chain(storage).map(|it| it["spanId"].to_string()).collect();
        assert_eq!(ids.len(), 4, "{all:#}");
        assert_eq!(mount[1]["startTimeUnixNano"], "4999010000");
        assert_eq!(mount[1]["endTimeUnixNano"], "4999960000");
        assert_eq!((&mount[1]["status"]["code"], &mount[1]["kind"]), (&json!(2), &json!(3)));
        let disk = number("skep.stage.disk_us", 900);
        assert!(storage[0]["attributes"].as_array().unwrap().contains(&disk), "{all:#}");
    }
}
