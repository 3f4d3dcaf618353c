//! Operations on attributes, and on the file system as a whole.

use super::privileges;
use crate::file_system::FileSystem;
use crate::protocol::Context;
use crate::reply::{Answer, Failure};
use skep_client::SetAttributes;
use skep_types::InodeId;

type Outcome = Result<Answer, Failure>;

pub(crate) async fn get(fs: &impl FileSystem, inode: InodeId) -> Outcome {
    Ok(Answer::Stat(fs.stat(inode).await?))
}

pub(crate) async fn statx(fs: &impl FileSystem, inode: InodeId) -> Outcome {
    Ok(Answer::Statx(fs.stat(inode).await?))
}

/// Changes attributes; with `kill_privileges` also clears what a new owner or size takes away.
pub(crate) async fn set<F: FileSystem>(
    context: &Context<F>,
    mut change: SetAttributes,
    kill_privileges: bool,
) -> Outcome {
    if kill_privileges {
        let present = context.file_system.attributes(change.inode).await?;
        change.permissions = privileges::without(&present);
    }
    if change.permissions.is_some() {
        context.checked.forget_all();
    }
    Ok(Answer::Attributes(context.file_system.set_attributes(change).await?))
}

pub(crate) async fn statfs(fs: &impl FileSystem) -> Outcome {
    Ok(Answer::StatFs(fs.statfs().await?))
}
