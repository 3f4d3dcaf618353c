//! Attributes the duration of an operation to its causes: stages at targets, locks, the network,
//! groups that did not answer, and the mount.
//!
//! At each moment of the operation, some of its requests are open. Requests that are open at the
//! same time share that time equally, so the sum of all parts equals the duration. The time of each
//! request is split among the stages that its target has measured. The rest of the request's time
//! is the time of the transfer to the target and back. Clocks of different hosts are never
//! compared.
//!
//! The time without an open request belongs to the waits for groups that did not answer. In these
//! waits, the mount connects, pauses and sends its request again. Only the rest is time in the
//! mount.

use super::{Place, request_name};
use skep_metrics::Stage;
use skep_wire::Request;
use skep_wire::file_locks::WaitLock;
use skep_wire::traces::{TraceCall, TraceRecord};
use std::collections::BTreeMap;

/// If the transfer of one request takes at least this time, in microseconds, the report does not
/// blame the network alone. A working network delivers a message in less time, even if the kernel
/// sends it several times. The transfer time does not contain the time in which the data of the
/// request arrive, because the target measures this time as a stage.
const STALL_US: f64 = 5e6;

/// The time of an operation with one cause, such as a stage at a target, the transfers, or the
/// mount.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Time {
    pub(super) us: f64,
    /// The number of requests that spent this time, by kind of request. A request that shares its
    /// time with other requests counts as a fraction of a request.
    pub(super) requests: BTreeMap<String, f64>,
}

/// Returns the time of the operation by cause. For the record of a mount, the times add up to the
/// duration of the operation. For the record of a service, the sum may be shorter.
pub(super) fn attribute(record: &TraceRecord) -> BTreeMap<Place, Time> {
    let mut times: BTreeMap<Place, Time> = BTreeMap::new();
    let all = record.duration_us as f64;
    if record.service != "mount" {
        let target = record.target.raw();
        let stages = record.stages.to_array().map(f64::from);
        let scale = all / stages.iter().sum::<f64>().max(1.0);
        for (stage, us) in stages.into_iter().enumerate().filter(|(_, us)| *us > 0.0) {
            let time = times.entry(Place::Target { target, stage }).or_default();
            time.us = us * scale.min(1.0);
            time.requests.insert(record.operation.clone(), 1.0);
        }
        return times;
    }
    let end = u32::try_from(record.duration_us).unwrap_or(u32::MAX);
    let span = |begin_us: u32, us: u32| (begin_us.min(end), begin_us.saturating_add(us).min(end));
    let calls: Vec<_> = record.calls.iter().map(|it| span(it.begin_us, it.duration_us)).collect();
    let waits: Vec<_> = record.waits.iter().map(|it| span(it.begin_us, it.duration_us)).collect();
    let shares = shares_of(&calls, &[]);
    let waited = shares_of(&waits, &calls);
    for (wait, us) in waited.iter().enumerate().filter(|(_, us)| **us > 0.0) {
        times.entry(Place::Unanswered { wait }).or_default().us += us;
    }
    for (call, share) in record.calls.iter().zip(&shares) {
        add_call(&mut times, call, *share);
    }
    let own = (all - shares.iter().chain(&waited).sum::<f64>()).max(0.0);
    // The mount's thread also runs while requests are open. This running time is already part of
    // the requests' time, so count at most the rest of the duration.
    let running = f64::from(record.stages.processing_us).min(own);
    for (is_running, us) in [(true, running), (false, own - running)] {
        times.entry(Place::Mount { is_running }).or_default().us += us;
    }
    times
}

/// Divides the time that the spans cover among the spans, and returns the part of each span in
/// microseconds. Spans that cover the same time share this time equally. Leaves out the time that
/// the spans in `except` cover.
fn shares_of(spans: &[(u32, u32)], except: &[(u32, u32)]) -> Vec<f64> {
    let ends = spans.iter().chain(except).flat_map(|(begin, end)| [*begin, *end]);
    let mut moments: Vec<_> = ends.collect();
    moments.sort_unstable();
    moments.dedup();
    let mut shares = vec![0.0; spans.len()];
    for window in moments.windows(2) {
        let [from, to] = [window[0], window[1]];
        let is_open = |(begin, end): &(u32, u32)| *begin <= from && to <= *end;
        if except.iter().any(is_open) {
            continue;
        }
        let open = spans.iter().filter(|span| is_open(span)).count();
        let each = f64::from(to - from) / open.max(1) as f64;
        for (share, _) in shares.iter_mut().zip(spans).filter(|(_, span)| is_open(span)) {
            *share += each;
        }
    }
    shares
}

/// Splits the time `share` of a request among the stages at its target.
fn add_call(times: &mut BTreeMap<Place, Time>, call: &TraceCall, share: f64) {
    let target = call.target.raw();
    let duration = f64::from(call.duration_us).max(1.0);
    let stages = call.stages.map_or([0; Stage::ALL.len()], |it| it.to_array()).map(f64::from);
    let at_target: f64 = stages.iter().sum();
    // Both hosts round their times, so the sum of all stages may be slightly longer than the
    // request.
    let part = share / duration.max(at_target);
    let mut add = |place, us: f64| {
        if us > 0.0 {
            let time = times.entry(place).or_default();
            time.us += us * part;
            *time.requests.entry(request_name(call.message)).or_default() += share / duration;
        }
    };
    for (stage, us) in stages.into_iter().enumerate() {
        let is_lock = call.message == WaitLock::ID && stage == Stage::Others as usize;
        add(if is_lock { Place::Lock { target } } else { Place::Target { target, stage } }, us);
    }
    let rest_us = duration.max(at_target) - at_target;
    let rest = match call.is_failed && call.stages.is_none() {
        true => Place::NoReply { target },
        false if call.stages.is_some() && rest_us >= STALL_US => Place::Stall { target },
        false => Place::Link { target },
    };
    add(rest, rest_us);
}
