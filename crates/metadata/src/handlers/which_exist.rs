//! `WhichExist`: returns which inodes exist, so that storage can remove chunk files without an
//! inode. The target replies only after all records that the reply depends on are *safe*, because
//! storage cannot undo the removals.

use crate::engine::Engine;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_format::metadata::Key;
use skep_types::{Error, ErrorCode};
use skep_wire::limits::MAX_INODES_ASKED;
use skep_wire::storage::{WhichExist, WhichExistReply};

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: WhichExist,
) -> Result<WhichExistReply, Stop> {
    if request.inodes.len() > MAX_INODES_ASKED {
        return Err(Error::new(
            ErrorCode::LimitReached,
            "cannot check which inodes exist: the request has too many inodes",
        )
        .into());
    }
    let mut exists = Vec::with_capacity(request.inodes.len());
    for inode in request.inodes {
        // Only the group that serves the shard has the inode.
        if !context.is_local(inode)? {
            let what = format!(
                "cannot check inode {inode}: group {} does not serve the shard of this inode",
                context.shared.group
            );
            return Err(Error::new(ErrorCode::StaleMap, what).into());
        }
        let exists_here = context.is_stored(&Key::Inode(inode))?;
        if !exists_here {
            let newer = context.shared.numbers.newer();
            context.shared.removal.check(inode, &newer)?;
        }
        exists.push(exists_here);
    }
    Ok(WhichExistReply { exists })
}
