//! Reports lost targets to management that was restored from a backup. The backup may be older than
//! the mark of a lost target, and the servers of the cluster have seen the mark.
//!
//! Does not own the marks in the maps of this node ([`crate::map_cell`]). Management decides about
//! the mark: it refuses to mark a target that its service still serves.

use super::Management;
use crate::limits::{LOSS_REPORT_INTERVAL, MANAGEMENT_DEADLINE};
use crate::map_cell::MapCell;
use skep_metrics::LineLimit;
use skep_types::{Error, TargetId};
use skep_wire::management::RemoveTarget;

/// Reports each lost target that management has not marked as lost. Never ends, so the caller drops
/// the future when the node leaves.
pub(super) async fn report(management: &Management, cell: &MapCell) {
    let refusals = LineLimit::default();
    // Retry: the node reports each unmarked lost target every 5 s until management has marked or
    // removed the target. Management may first have to receive a heartbeat that shows the target as
    // down.
    loop {
        let change = cell.wait_for_change();
        let unmarked = cell.unmarked_losses();
        if unmarked.is_empty() {
            change.await;
        } else {
            for target in unmarked {
                let request = RemoveTarget { target, is_dry_run: false, is_lost: true };
                if let Err(error) = management.call_once(&request, MANAGEMENT_DEADLINE).await
                    && refusals.is_due(skep_env::now())
                {
                    tracing::error!("{}", refused(target, &error));
                }
            }
            skep_env::sleep(LOSS_REPORT_INTERVAL).await;
        }
    }
}

fn refused(target: TargetId, error: &Error) -> String {
    format!(
        "target {target} was marked as lost, but management was restored from a backup without \
         this mark, and management cannot mark the target again yet: {error}; this node sends no \
         requests to the target. Do not let the target serve its old files: stop its service, \
         start it without this target, and run `skep target remove --lost {}`",
        target.raw()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::ErrorCode;

    #[test]
    fn line_about_an_unmarked_loss_names_target_and_remedy() {
        let error = Error::new(ErrorCode::InUse, "storage-1 serves it");
        let line = refused(TargetId::new(7), &error);
        for part in ["target t7", "storage-1 serves it", "skep target remove --lost 7"] {
            assert!(line.contains(part), "{line}");
        }
    }
}
