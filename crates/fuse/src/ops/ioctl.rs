//! Operations by `ioctl`: the project of an inode, and whether new entries in a directory inherit
//! it.

use crate::context::Context;
use crate::file_system::FileSystem;
use crate::limits;
use crate::reply::{Outcome, ReplyBody};
use crate::request::ioctl::{
    FLAG_PROJECT_INHERIT, FlagsForm, FsXattr, IoctlRequest, XFLAG_PROJECT_INHERIT,
};
use skep_client::SetAttributes;
use skep_types::InodeId;
use skep_types::codec::Codec;

pub(crate) async fn perform<F: FileSystem>(context: &Context<F>, request: IoctlRequest) -> Outcome {
    let fs = &context.file_system;
    match request {
        IoctlRequest::ReadFlags { inode, form, max_bytes } => {
            read_flags(fs, inode, form, max_bytes).await
        }
        IoctlRequest::SetFlags { inode, hands_down_project, project } => {
            set_flags(fs, inode, hands_down_project, project).await
        }
    }
}

/// Returns the flags and the project of an inode, encoded in at most `max_bytes` bytes.
async fn read_flags(
    fs: &impl FileSystem,
    inode: InodeId,
    form: FlagsForm,
    max_bytes: u32,
) -> Outcome {
    let attributes = fs.attributes(inode).await?;
    let flag = |bit: u32| if attributes.hands_down_project { bit } else { 0 };
    let mut bytes = match form {
        FlagsForm::Number => flag(FLAG_PROJECT_INHERIT).to_bytes(),
        FlagsForm::FsXattr => FsXattr {
            flags: flag(XFLAG_PROJECT_INHERIT),
            extent_bytes: 0,
            extents: 0,
            project: attributes.project,
            copy_extent_bytes: 0,
            padding: 0,
        }
        .to_bytes(),
    };
    bytes.resize(limits::MAX_IOCTL_BYTES.min(max_bytes as usize), 0);
    Ok(ReplyBody::Ioctl(bytes))
}

/// Sets whether new entries of a directory inherit its project. Also sets the project, if `project`
/// has a value.
async fn set_flags(
    fs: &impl FileSystem,
    inode: InodeId,
    hands_down_project: bool,
    project: Option<u32>,
) -> Outcome {
    let change = SetAttributes {
        inode,
        permissions: None,
        cleared_permissions: 0,
        uid: None,
        gid: None,
        project,
        hands_down_project: Some(hands_down_project),
        size: None,
        accessed: None,
        modified: None,
    };
    fs.set_attributes(change).await?;
    Ok(ReplyBody::Ioctl(Vec::new()))
}
