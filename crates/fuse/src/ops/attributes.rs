//! Operations on attributes, and on the file system as a whole.

use super::privileges;
use crate::context::Context;
use crate::file_system::FileSystem;
use crate::limits;
use crate::reply::{Answer, Failure};
use crate::request::FlagsForm;
use crate::request::ioctl::{self, FsXattr};
use crate::waits::Caller;
use skep_client::{HandleId, SetAttributes};
use skep_types::InodeId;
use skep_types::codec::Codec;

type Outcome = Result<Answer, Failure>;

const NANOSECONDS: u32 = 1_000_000_000;

/// Attributes that a program asks for, or the kernel itself before it reads from a file's pages. Of
/// a file that is shared with other mounts the latter gets a time of modification that it hasn't
/// seen: so it drops the pages (`AUTO_INVAL_DATA`). No program gets to see that time, since these
/// attributes are not valid for anything else.
pub(crate) async fn get<F: FileSystem>(
    context: &Context<F>,
    inode: InodeId,
    is_for_reading: bool,
) -> Outcome {
    let mut stat = context.file_system.stat(inode).await?;
    if is_for_reading && context.file_system.is_shared(inode) {
        let count = context.made_up_times.get() % (NANOSECONDS - 1) + 1;
        context.made_up_times.set(count);
        let time = &mut stat.attributes.modified;
        time.nanoseconds = (time.nanoseconds + count) % NANOSECONDS;
    }
    Ok(Answer::Stat(stat))
}

pub(crate) async fn statx(fs: &impl FileSystem, inode: InodeId) -> Outcome {
    Ok(Answer::Statx(fs.stat(inode).await?))
}

/// Changes attributes, perhaps through a handle; with `kill_privileges` also clears what a new
/// owner or size takes away.
pub(crate) async fn set<F: FileSystem>(
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
    Ok(Answer::Attributes(context.file_system.set_attributes(change).await?))
}

pub(crate) async fn statfs(fs: &impl FileSystem) -> Outcome {
    Ok(Answer::StatFs(fs.statfs().await?))
}

/// Flags and project of an inode, in as many bytes as were asked for.
pub(crate) async fn read_flags(
    fs: &impl FileSystem,
    inode: InodeId,
    form: FlagsForm,
    max_bytes: u32,
) -> Outcome {
    let found = fs.attributes(inode).await?;
    let flag = |bit: u32| if found.hands_down_project { bit } else { 0 };
    let mut bytes = match form {
        FlagsForm::Number => flag(ioctl::FLAG_PROJECT_INHERIT).to_bytes(),
        FlagsForm::FsXattr => FsXattr {
            flags: flag(ioctl::XFLAG_PROJECT_INHERIT),
            extent_bytes: 0,
            extents: 0,
            project: found.project,
            copy_extent_bytes: 0,
            padding: 0,
        }
        .to_bytes(),
    };
    bytes.resize(limits::MAX_IOCTL_BYTES.min(max_bytes as usize), 0);
    Ok(Answer::Ioctl(bytes))
}

/// Sets project and flag; no project: as it is.
pub(crate) async fn set_flags(
    fs: &impl FileSystem,
    inode: InodeId,
    hands_down_project: bool,
    project: Option<u32>,
) -> Outcome {
    let change = SetAttributes {
        inode,
        permissions: None,
        uid: None,
        gid: None,
        project,
        hands_down_project: Some(hands_down_project),
        size: None,
        accessed: None,
        modified: None,
    };
    fs.set_attributes(change).await?;
    Ok(Answer::Ioctl(Vec::new()))
}
