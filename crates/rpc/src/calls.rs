//! The newest requests that operations of this thread have sent, with the time that each request
//! took in the network and at its target. The module also stores the newest waits for groups that
//! did not answer. A mount adds these requests and waits to the record of a slow operation.
//!
//! This module is not responsible for the records of operations (`skep_metrics`), or the times at
//! the target, which the target writes into the header of its reply.

use crate::origin::Origin;
use crate::request_load::{EndedRequest, count};
use skep_env::now;
use skep_metrics::{TracedCall, TracedCalls, TracedWait, is_off};
use skep_types::text::shorten;
use skep_types::{ClusterMap, Error, ErrorCode, GroupId, TargetId};
use skep_wire::catalog::is_ordinary_absence;
use skep_wire::frame::{Header, TIMES};
use skep_wire::limits::{MAX_TRACE_CALLS, MAX_TRACE_ERROR_BYTES, MAX_TRACE_WAITS};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::Duration;

/// Number of ended requests that a thread remembers. The record of a slow operation lacks older
/// requests.
const REMEMBERED: usize = 1024;
/// Number of ended waits for groups that a thread remembers. Only an operation whose request the
/// router had to repeat has a wait.
const REMEMBERED_WAITS: usize = 128;

/// A request that has ended.
#[derive(Debug, Clone, Copy)]
struct EndedCall {
    /// Id of the operation that sent the request.
    operation: u32,
    message: u16,
    target: TargetId,
    begun_at: Duration,
    ended_at: Duration,
    is_failed: bool,
    times_us: Option<[u32; TIMES]>,
}

thread_local! {
    static ENDED: RefCell<VecDeque<EndedCall>> = const { RefCell::new(VecDeque::new()) };
    static WAITS: RefCell<VecDeque<EndedWait>> = const { RefCell::new(VecDeque::new()) };
}

/// An ended wait for a group.
#[derive(Debug)]
struct EndedWait {
    /// Id of the operation that waited.
    operation: u32,
    begun_at: Duration,
    ended_at: Duration,
    /// The wait, without its times.
    wait: TracedWait,
}

/// A request that the router repeats, because no attempt has brought a final reply.
#[derive(Debug)]
pub(crate) struct RepeatedCall {
    begun_at: Duration,
    group: GroupId,
    /// The primary of the group when the first attempt failed.
    target: Option<TargetId>,
    /// The last error for `target`.
    error: String,
}

impl RepeatedCall {
    /// Starts the measurement of the wait for `group`. The first attempt to send the request has
    /// begun at `begun_at`.
    pub(crate) fn begin(begun_at: Duration, group: GroupId, map: &ClusterMap) -> Self {
        let target = map.primary(group).map(|target| target.id);
        Self { begun_at, group, target, error: String::new() }
    }

    /// Stores the error of a failed attempt. Ignores the error if another target serves the group
    /// now, because the record must show why the first target did not answer. Never ignores the
    /// first error.
    pub(crate) fn failed(&mut self, map: &ClusterMap, error: &Error) {
        let is_same = map.primary(self.group).map(|target| target.id) == self.target;
        if is_same || self.error.is_empty() {
            error.context().clone_into(&mut self.error);
            shorten(&mut self.error, MAX_TRACE_ERROR_BYTES);
        }
    }

    /// Stores the wait, which has ended at `ended_at`. `served_by` is the target that has answered.
    pub(crate) fn end(self, served_by: Option<TargetId>, ended_at: Duration) {
        let operation = Origin::current().operation();
        if operation == 0 || is_off() {
            return;
        }
        let Self { begun_at, group, target, error } = self;
        let id = |target: Option<TargetId>| target.map_or(0, TargetId::raw);
        let wait = TracedWait {
            group: group.raw(),
            target: id(target),
            served_by: id(served_by),
            begin: Duration::ZERO,
            duration: ended_at.saturating_sub(begun_at),
            error,
        };
        WAITS.with_borrow_mut(|all| {
            if all.len() == REMEMBERED_WAITS {
                all.pop_front();
            }
            all.push_back(EndedWait { operation, begun_at, ended_at, wait });
        });
    }
}

/// Returns the longest waits of the operation with the id `operation`, which has begun at
/// `begun_at`, in the order of their ends.
fn waits_of(operation: u32, begun_at: Duration) -> Vec<TracedWait> {
    WAITS.with_borrow(|all| {
        let is_own = |it: &&EndedWait| it.operation == operation && it.ended_at >= begun_at;
        let mut own: Vec<_> = all.iter().filter(is_own).collect();
        own.sort_by_key(|it| std::cmp::Reverse(it.wait.duration));
        own.truncate(MAX_TRACE_WAITS);
        own.sort_by_key(|it| it.ended_at);
        let begin = |it: &EndedWait| it.begun_at.saturating_sub(begun_at);
        own.into_iter().map(|it| TracedWait { begin: begin(it), ..it.wait.clone() }).collect()
    })
}

/// A request that an operation has sent and that has no reply yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunningCall {
    origin: Origin,
    message: u16,
    target: TargetId,
    begun_at: Duration,
}

impl RunningCall {
    /// Starts the measurement of a request. Returns `None` if the request belongs to no operation.
    pub(crate) fn begin(origin: Origin, message: u16, target: TargetId) -> Option<Self> {
        (origin.operation() != 0).then(|| Self { origin, message, target, begun_at: now() })
    }

    /// Returns the time at which the operation sent the request.
    pub(crate) fn begun_at(&self) -> Duration {
        self.begun_at
    }

    /// Counts and stores the ended request, with the times in the header of its reply. `None` for
    /// `reply` means that the request has ended without a reply. `written_bytes` are the bytes of
    /// file data in the request. Does nothing if the statistics are off.
    pub(crate) fn end(self, reply: Option<&Header>, written_bytes: usize) {
        if is_off() {
            return;
        }
        let Self { origin, message, target, begun_at } = self;
        let ended_at = now();
        let is_failed = reply.is_none_or(|header| {
            let code = ErrorCode::from_number(header.status);
            header.status != 0 && !code.is_some_and(|code| is_ordinary_absence(message, code))
        });
        let ended = EndedRequest {
            target: target.raw(),
            message,
            is_failed,
            read_bytes: reply.map_or(0, |header| header.data_bytes.into()),
            written_bytes: if is_failed { 0 } else { written_bytes as u64 },
            duration: ended_at.saturating_sub(begun_at),
        };
        count(origin, &ended, ended_at);
        let (operation, times_us) = (origin.operation(), reply.and_then(Header::times));
        let ended =
            EndedCall { operation, message, target, begun_at, ended_at, is_failed, times_us };
        ENDED.with_borrow_mut(|all| {
            if all.len() == REMEMBERED {
                all.pop_front();
            }
            all.push_back(ended);
        });
    }
}

/// Returns the requests and waits of the operation with the trace id `trace`, which has begun at
/// `begun_at` on this thread. The operation may have had more requests than the thread remembers.
pub fn calls_of(trace: u128, begun_at: Duration) -> TracedCalls {
    // The id of an operation is in the lowest bits of its trace id.
    let operation = trace as u32;
    ENDED.with_borrow(|all| {
        // Requests that ended before the operation began belong to other operations.
        let since = all.iter().rev().take_while(|call| call.ended_at >= begun_at);
        let mut own: Vec<_> = since.filter(|call| call.operation == operation).collect();
        own.reverse();
        let left_out = own.len().saturating_sub(MAX_TRACE_CALLS);
        // Include the slowest requests, because they explain best why the operation was slow.
        if left_out > 0 {
            own.sort_by_key(|call| call.ended_at.saturating_sub(call.begun_at));
            own.drain(..left_out);
            own.sort_by_key(|call| call.ended_at);
        }
        let traced = |call: &EndedCall| TracedCall {
            message: call.message,
            target: call.target.raw(),
            begin: call.begun_at.saturating_sub(begun_at),
            duration: call.ended_at.saturating_sub(call.begun_at),
            is_failed: call.is_failed,
            times_us: call.times_us,
        };
        let calls = own.into_iter().map(traced).collect();
        let left_out = u32::try_from(left_out).unwrap_or(u32::MAX);
        TracedCalls { calls, left_out, waits: waits_of(operation, begun_at) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operation_lists_only_its_own_newest_requests() {
        let begun_at = now();
        let of = Origin::of_operation;
        for number in 0..REMEMBERED * 2 {
            let operation = if number % 16 == 0 { 7 } else { 8 };
            let call = RunningCall::begin(of(operation), 96, TargetId::new(3)).unwrap();
            let mut request = Header::default();
            request.set_times([number as u32; TIMES]);
            let reply = Header { status: u16::from(number == 16 * 127), ..request.reply() };
            call.end(Some(&reply), 0);
        }
        assert!(
            RunningCall::begin(of(0), 96, TargetId::new(3)).is_none(),
            "the request belongs to no operation"
        );
        let trace = 0x55 << 64 | 7;
        let found = calls_of(trace, begun_at);
        assert_eq!((found.calls.len(), found.left_out), (REMEMBERED / 16, 0));
        let numbers: Vec<_> = found.calls.iter().map(|it| it.times_us.unwrap()[0]).collect();
        assert!(numbers.is_sorted() && numbers.iter().all(|number| number % 16 == 0));
        let last = found.calls.last().unwrap();
        assert!(last.is_failed && last.message == 96 && last.target == 3);
        let many = calls_of(0x55 << 64 | 8, begun_at);
        assert_eq!(many.calls.len(), MAX_TRACE_CALLS);
        assert_eq!(many.left_out as usize, REMEMBERED - REMEMBERED / 16 - MAX_TRACE_CALLS);
        assert!(calls_of(trace, now() + Duration::from_secs(1)).calls.is_empty());
    }
}
