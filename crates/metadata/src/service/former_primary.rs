//! The end of a primary that is deposed while its disk hangs.
//!
//! The thread of a target cannot end while the disk hangs, so the node cannot open the target again
//! before the disk works. So the thread first replies to the new primary without the disk. With
//! these replies, the new primary no longer waits for the lease, and has this member dropped
//! ([`crate::shipping::former_primary`]). If the disk does not hang, the target is opened again as
//! after each change of its role, and releases its lease then.
//!
//! # Invariants
//! - After the first release, the target sends no reply as the primary. The state machine of the
//!   primary has handled its last event before the release.
//! - The thread waits for the new primary at most [`RELEASE_LIMIT`].
//!
//! The invariants concern the messages of a member over time, which no state shows.
//!
//! Held by the test `former_primary_with_a_hanging_disk_releases_its_lease` (the replies), and by
//! the check of the simulator that no primary replies after its successor.

use super::Shell;
use crate::limits::SYNC_PATIENCE;
use crate::shipping::former_primary::FormerPrimary;
use crate::target::Action;
use crate::term::Membership;
use skep_types::{ErrorCode, MapVersion, Result};
use std::time::Duration;

/// Maximum time for which the former primary replies to the new primary. The new primary needs a
/// fraction of this time to get the cluster map, to send two requests, and to let management drop
/// the former primary.
const RELEASE_LIMIT: Duration = Duration::from_secs(5);
/// Interval at which the former primary checks whether its disk works again.
const LOOK: Duration = Duration::from_millis(100);

/// Replies to the new primary until management has dropped this target, if the disk of this target
/// hangs. Returns immediately if the disk does not hang. `membership` has the group and the target.
///
/// # Errors
/// The error of the sync that was running, such as `DeviceFailed`.
pub(super) async fn release(shell: &Shell, membership: &Membership) -> Result<()> {
    let Membership { group, target, .. } = *membership;
    let mut former = FormerPrimary::new(group, target, shell.router.map());
    let until = skep_env::now() + RELEASE_LIMIT;
    // The records of the former role no longer matter, so the service must read the requests of the
    // new primary.
    shell.membership.is_backlogged.set(false);
    while shell.syncs_for(SYNC_PATIENCE)
        && former.is_awaited()
        && !shell.is_stopping.get()
        && skep_env::now() < until
    {
        let events = match shell.next_events(skep_env::now() + LOOK).await {
            Ok(events) => events,
            // A call of the former role has failed, because this target is not the primary.
            Err(error) if error.code() == ErrorCode::Deposed => continue,
            Err(error) => return Err(error),
        };
        for action in former.handle(events) {
            if let Action::Reply { connection, request, result } = action {
                shell.reply(connection, request, result, MapVersion::default());
            }
        }
    }
    Ok(())
}
