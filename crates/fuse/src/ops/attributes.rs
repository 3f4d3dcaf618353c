//! Operations on attributes, and on the file system as a whole.

use super::{holds, privileges};
use crate::context::Context;
use crate::file_system::FileSystem;
use crate::reply::{Failure, Outcome, ReplyBody};
use crate::request::attributes::AttributeRequest;
use crate::waits::Caller;
use skep_client::{HandleId, SetAttributes, Stat};
use skep_types::{Attributes, ErrorCode, InodeId};
use std::sync::atomic::Ordering;

const NANOSECONDS: u32 = 1_000_000_000;

pub(crate) async fn perform<F: FileSystem>(
    context: &Context<F>,
    request: AttributeRequest,
    caller: Caller,
) -> Outcome {
    let fs = &context.file_system;
    match request {
        AttributeRequest::Get { inode, reader } => {
            let outcome = get(context, inode, reader).await;
            if reader.is_none()
                && let Err(Failure::Error(error)) = &outcome
                && error.code() == ErrorCode::Stale
            {
                holds::attributes_failed(context, caller).await;
            }
            outcome
        }
        AttributeRequest::Statx { inode } => {
            let stat = fs.stat(inode).await?;
            Ok(match hides_from_kernel(context, &stat) {
                true => ReplyBody::HiddenStatx(stat),
                false => ReplyBody::Statx(stat),
            })
        }
        AttributeRequest::Set { change, handle, kill_privileges } => {
            set(context, change, handle, kill_privileges, caller).await
        }
        AttributeRequest::StatFs => Ok(ReplyBody::StatFs(fs.statfs().await?)),
    }
}

/// Returns the attributes of an inode, either for a program or for the kernel itself before it
/// reads from its cached pages of the file.
///
/// # Hazard: pages of a shared file
/// Other mounts may change a file that they share with this mount. So before the kernel reads from
/// its pages of such a file, this function returns an invented modification time that the kernel
/// has not received before. The kernel then drops its cached pages of the file (`AUTO_INVAL_DATA`).
/// No program sees the invented time, since the reply lets the kernel use these attributes only for
/// this read.
///
/// # Directories
/// After each change of an entry the kernel requests the attributes of the directory. The mount has
/// these attributes from the reply to the change. The kernel may cache them only for the rest of
/// their validity, which began when the mount sent the change.
///
/// # Attributes in other replies
/// A recent reply of metadata, for example to a lock, may have contained the attributes of a file.
/// If this mount has changed nothing since, a program's `stat` needs no request. The kernel may
/// cache the attributes only for the rest of their validity.
///
/// # Pages of a file that only this mount uses
/// The writes of this mount change the modification time, but the kernel's cached pages contain
/// these writes. So before the kernel reads from these pages, this function returns the
/// modification time that the kernel has received already. The reply lets the kernel use these
/// attributes only for this read.
async fn get<F: FileSystem>(
    context: &Context<F>,
    inode: InodeId,
    reader: Option<HandleId>,
) -> Outcome {
    if let Some(handle) = reader
        && let Some(attributes) = context.file_system.attributes_for_reading(handle).await
    {
        return Ok(ReplyBody::SeenAttributes(attributes));
    }
    let (file_system, validity) = (&context.file_system, context.options.validity);
    let known = match reader {
        None => file_system.known_attributes(inode, validity),
        Some(_) => None,
    };
    if let Some((attributes, age)) = known.or_else(|| file_system.after_own_change(inode, validity))
    {
        let stat = Stat { allocated_bytes: attributes.size, attributes };
        return Ok(match reader.is_none() && hides_from_kernel(context, &stat) {
            true => ReplyBody::HiddenStat(stat),
            false => ReplyBody::AgedStat(stat, validity.saturating_sub(age)),
        });
    }
    let mut stat = context.file_system.stat(inode).await?;
    if reader.is_some() && context.file_system.is_shared(inode) {
        let invented = context.invented_times.fetch_add(1, Ordering::Relaxed);
        let count = invented % (NANOSECONDS - 1) + 1;
        let time = &mut stat.attributes.modified;
        time.nanoseconds = (time.nanoseconds + count) % NANOSECONDS;
    }
    Ok(match reader.is_none() && hides_from_kernel(context, &stat) {
        true => ReplyBody::HiddenStat(stat),
        false => ReplyBody::Stat(stat),
    })
}

/// Returns whether the reply passes these attributes only to the program. The kernel then continues
/// to use the attributes that it has seen before. If the kernel used the new attributes, the new
/// modification time would make it drop all pages of the file. These pages are valid: they contain
/// the writes that have changed the time. But if the size, the owner, the permissions or the number
/// of links has changed, the kernel must get the new attributes.
///
/// If the reply passes the attributes only to the program, this function makes the kernel drop its
/// cached attributes of the inode. After such a drop, the kernel does not cache the attributes in a
/// reply to an earlier request. The program's `stat` returns these attributes nevertheless (Linux
/// 6.18).
fn hides_from_kernel<F: FileSystem>(context: &Context<F>, stat: &Stat) -> bool {
    let inode = stat.attributes.inode;
    let seen = context.file_system.seen_by_kernel(inode);
    let hides = seen.is_some_and(|seen| {
        let new = &stat.attributes;
        let access = |it: &Attributes| (it.permissions, it.uid, it.gid, it.links, it.has_acl);
        seen.modified != new.modified && seen.size == new.size && access(&seen) == access(new)
    });
    if hides {
        context.waits.drop_attributes(inode);
    }
    hides
}

/// Changes attributes. If `kill_privileges` is true, also clears the set-user-id and set-group-id
/// bits, as POSIX requires after a change of owner or size. `handle` is the handle through which a
/// program truncates, if any.
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
        change.cleared_permissions =
            privileges::bits_of_change(context, change.inode, caller).await?;
    }
    // After a change that only clears bits, the cached checks of files without these bits stay
    // correct.
    let changes_permissions = change.permissions.is_some();
    if changes_permissions {
        context.checked.forget_all();
    }
    let changed = context.file_system.set_attributes(change).await;
    if changes_permissions {
        context.checked.forget_all();
    }
    Ok(ReplyBody::Attributes(changed?))
}
