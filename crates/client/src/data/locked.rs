//! Changes of bytes in files that programs of this mount may have locked.
//!
//! # Hazard: a change that arrives after the end of its lock
//! If a program is killed, its locks end. Even if the client has cancelled a change of bytes by
//! this program, the change may still be on its way to a slow or stopped server. The next owner of
//! the lock may be on another mount, so its requests take another connection, and the server may
//! execute them first. The late change would then overwrite acknowledged bytes of the next owner.
//! So the client does not cancel such a change, and the release of the locks waits for its end.
//!
//! Several processes may share a lock: after a fork, they have the same open file description. If
//! only one process is killed, another process can write to the same range again, or release the
//! lock itself. So later changes of the file and releases of locks also wait for the end of each
//! change of a killed program.
//!
//! # Hazard: pages that the kernel has read before the end of the change
//! The kernel gets the reply to the request of a killed program before the change has ended, and
//! may then read the old bytes into its pages again. So at the end of the change, the client makes
//! the kernel request the attributes before its next read. The kernel then notices the new
//! modification time, and drops its pages.

use crate::client::Client;
use crate::driven::{drive, drive_for};
use crate::inode_state::InodeState;
use crate::limits::WRITE_GRACE;
use skep_types::Result;
use std::future::Future;
use std::sync::Arc;

/// Waits until the changes of killed programs have ended, if programs of this mount have locked the
/// file. Afterwards the caller may begin another change of the file's bytes.
pub(super) async fn await_orphaned_changes(inode: &Arc<InodeState>) {
    if inode.is_locked() {
        inode.await_orphaned_changes().await;
    }
}

/// Runs `change`, which changes bytes of a file. If the caller drops the future, the change
/// continues for up to `WRITE_GRACE`. If programs of this mount have locked the file, the change
/// continues until all servers have replied, and later releases of locks wait for the end of the
/// change.
pub(super) async fn drive_change<T: 'static>(
    client: &Client,
    inode: Arc<InodeState>,
    change: impl Future<Output = Result<T>> + 'static,
) -> Result<T> {
    if !inode.is_locked() {
        return drive_for(WRITE_GRACE, change).await;
    }
    let turn = inode.begin_awaited_change();
    let _caller = turn.caller();
    let client = client.clone();
    let orphan = move |_| {
        inode.must_compare();
        client.mount().forget_attributes(inode.id);
    };
    drive(turn.complete(change), orphan).await
}
