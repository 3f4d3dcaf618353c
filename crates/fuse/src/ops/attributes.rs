//! Operations on attributes, and on the file system as a whole.

use super::privileges;
use crate::context::Context;
use crate::file_system::FileSystem;
use crate::reply::{Outcome, ReplyBody};
use crate::request::attributes::AttributeRequest;
use crate::waits::Caller;
use skep_client::{HandleId, SetAttributes};
use skep_types::InodeId;
use std::sync::atomic::Ordering;

const NANOSECONDS: u32 = 1_000_000_000;

pub(crate) async fn perform<F: FileSystem>(
    context: &Context<F>,
    request: AttributeRequest,
    caller: Caller,
) -> Outcome {
    let fs = &context.file_system;
    match request {
        AttributeRequest::Get { inode, is_for_reading } => {
            get(context, inode, is_for_reading).await
        }
        AttributeRequest::Statx { inode } => Ok(ReplyBody::Statx(fs.stat(inode).await?)),
        AttributeRequest::Set { change, handle, kill_privileges } => {
            set(context, change, handle, kill_privileges, caller).await
        }
        AttributeRequest::StatFs => Ok(ReplyBody::StatFs(fs.statfs().await?)),
    }
}

/// Returns the attributes of an inode, either for a program or for the kernel itself before it
/// reads from its pages of the file.
///
/// # Hazard: pages of a shared file
/// Other mounts may change a file that they share with this mount. So before the kernel reads from
/// its pages of such a file, this function returns an invented modification time that the kernel
/// has not seen yet. The kernel then drops the pages (`AUTO_INVAL_DATA`). No program sees the
/// invented time, since these attributes are valid for no other use.
async fn get<F: FileSystem>(context: &Context<F>, inode: InodeId, is_for_reading: bool) -> Outcome {
    let mut stat = context.file_system.stat(inode).await?;
    if is_for_reading && context.file_system.is_shared(inode) {
        let invented = context.invented_times.fetch_add(1, Ordering::Relaxed);
        let count = invented % (NANOSECONDS - 1) + 1;
        let time = &mut stat.attributes.modified;
        time.nanoseconds = (time.nanoseconds + count) % NANOSECONDS;
    }
    Ok(ReplyBody::Stat(stat))
}

/// Changes attributes. If `kill_privileges`, also clears the set-user-id and set-group-id bits, as
/// a new owner or size requires. `handle` is the handle through which a program truncates, if any.
async fn set<F: FileSystem>(
    context: &Context<F>,
    mut change: SetAttributes,
    handle: Option<HandleId>,
    kill_privileges: bool,
    caller: Caller,
) -> Outcome {
    if let Some(handle) = handle.filter(|_| change.size.is_some()) {
        context.file_system.check_handle(handle)?;
    }
    if kill_privileges {
        let present = context.file_system.attributes(change.inode).await?;
        change.permissions = privileges::without(&present, caller);
    }
    if change.permissions.is_some() {
        context.checked.forget_all();
    }
    Ok(ReplyBody::Attributes(context.file_system.set_attributes(change).await?))
}
