//! Reports the records of slow and sampled operations of a mount to management, since no process
//! can connect to a mount. Management stores the newest records of all mounts (`skep why --op`).
//!
//! The records are in `skep_metrics::TraceStore`. A report that fails is not repeated, since
//! administrators only look at recent records.

use skep_client::Mount;
use skep_exporter::traces::report_of;
use skep_metrics::{KeptOperation, Reason, TraceStore};
use std::sync::Arc;
use std::time::Duration;

/// Time between two reports to management.
const EVERY: Duration = Duration::from_secs(2);
/// Time limit for management's reply to a report.
const PATIENCE: Duration = Duration::from_secs(2);
/// Maximum number of slow operations in one report.
const MAX_SLOW: usize = 48;
/// Maximum number of sampled operations in one report. This limit bounds the load of management by
/// mounts with many operations.
const MAX_SAMPLED: usize = 16;

/// Reports new records to management until the future is dropped.
pub(crate) async fn report_forever(mount: Arc<Mount>, traces: Arc<TraceStore>) {
    let management = mount.management();
    let mut after = 0;
    // Retry: sends a report of new records every `EVERY`, while the mount exists. The mount does
    // not send a failed report again.
    loop {
        skep_env::sleep(EVERY).await;
        let kept = traces.read(None, after, usize::MAX);
        after = kept.next;
        let chosen = choose(&kept.operations);
        if chosen.is_empty() {
            continue;
        }
        let sent = management.call_once(&report_of(&chosen), PATIENCE).await;
        if let Err(error) = sent {
            tracing::debug!("cannot report slow operations to management: {error:#}");
        }
    }
}

/// Returns the operations for one report: the newest slow and the newest sampled operations, in the
/// order of `kept`.
fn choose(kept: &[KeptOperation]) -> Vec<&KeptOperation> {
    let newest = |reason, limit| {
        let of_reason = kept.iter().rev().filter(move |it| it.reason == reason);
        of_reason.take(limit)
    };
    let mut chosen: Vec<_> =
        newest(Reason::Slow, MAX_SLOW).chain(newest(Reason::Sampled, MAX_SAMPLED)).collect();
    chosen.sort_by_key(|kept| kept.number);
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_metrics::{Completed, Origin, TracedCalls};

    #[test]
    fn trace_report_has_the_newest_slow_and_sampled_operations() {
        let kept = |number: u64| KeptOperation {
            number,
            reason: if number.is_multiple_of(2) { Reason::Slow } else { Reason::Sampled },
            completed: Completed::default(),
            origin: Origin::default(),
            service: "mount",
            name: "read".into(),
            target: 0,
            calls: TracedCalls::default(),
        };
        let all: Vec<_> = (1..=200).map(kept).collect();
        let chosen: Vec<_> = choose(&all).iter().map(|it| it.number).collect();
        assert_eq!(chosen.len(), MAX_SLOW + MAX_SAMPLED);
        assert!(chosen.is_sorted());
        assert_eq!(chosen.iter().filter(|number| !number.is_multiple_of(2)).min(), Some(&169));
        assert_eq!(chosen.iter().filter(|number| number.is_multiple_of(2)).min(), Some(&106));
    }
}
