//! `Replay`: executes again a change that a power loss of the target has reverted. The change runs
//! like a new request, and must have the same outcome as before the power loss. The module
//! `sessions::replay` decides when it runs.

use crate::engine::Engine;
use crate::handlers::{dispatch, home_inode};
use crate::tx::context::{Context, UnloggedFields};
use crate::tx::operation::{FirstReply, Stop};
use skep_types::codec::{Bytes, Codec};
use skep_types::{Error, ErrorCode, InodeId, Result};
use skep_wire::Request;
use skep_wire::inline::WriteInline;
use skep_wire::metadata::{
    Close, CloseMany, Create, CreateUnnamed, Exchange, Link, MakeDirectory, MakeSymlink,
    NewEntryReply, Open, OpenReply, RemoveDirectory, RemoveXattr, Rename, Replay, ReplayReply,
    ReportWritten, SetAttributes, SetXattr, Unlink,
};

/// The changes that a client can replay.
const REPLAYED: [u16; 17] = [
    Create::ID,
    CreateUnnamed::ID,
    Open::ID,
    Close::ID,
    CloseMany::ID,
    ReportWritten::ID,
    SetAttributes::ID,
    MakeDirectory::ID,
    MakeSymlink::ID,
    Link::ID,
    Unlink::ID,
    RemoveDirectory::ID,
    Rename::ID,
    Exchange::ID,
    SetXattr::ID,
    RemoveXattr::ID,
    WriteInline::ID,
];

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: Replay,
) -> Result<ReplayReply, Stop> {
    let Replay { message, request: body, inode, created, pattern, truncate_generation, .. } =
        request;
    check(context, message, &body.0)?;
    let first_reply = FirstReply { inode, created, pattern, truncate_generation };
    context.op.first_reply = Some(first_reply);
    // The handler of the change reads its request from `op.body`. Restore the body of the replay
    // after this handler has run, because the operation may run again.
    let own = std::mem::replace(&mut context.op.body, body.0);
    let result = dispatch(context, message);
    context.op.body = own;
    let reply = result?;
    if !has_same_outcome(message, &reply, (created, inode))? {
        let what = "cannot repeat the change: its result would differ from the result before the \
                    power loss";
        return Err(Error::new(ErrorCode::Stale, what).into());
    }
    // Drop `directory` and `inline`, because the reply to a replay does not contain them.
    let changed_patterns = std::mem::take(&mut context.unlogged.changed_patterns);
    context.unlogged = UnloggedFields { changed_patterns, ..UnloggedFields::default() };
    Ok(ReplayReply { reply: Bytes(reply) })
}

/// Checks that a client can replay the change, and that this group serves its inode.
fn check<E: Engine>(context: &Context<'_, E>, message: u16, body: &[u8]) -> Result<(), Stop> {
    if !REPLAYED.contains(&message) || truncates(message, body) {
        let what = format!(
            "cannot repeat message {message}: only certain changes can be repeated after a power \
             loss"
        );
        return Err(Error::new(ErrorCode::Unsupported, what).into());
    }
    match home_inode(message, body) {
        Some(home) if !context.is_local(home)? => {
            let what = format!("cannot repeat the change: another group serves inode {home} now");
            Err(Error::new(ErrorCode::Stale, what).into())
        }
        _ => Ok(()),
    }
}

/// Whether a request truncates a file. A truncating request cannot be replayed, because a second
/// truncation would remove bytes that programs have written to the chunk files since the first
/// truncation.
fn truncates(message: u16, body: &[u8]) -> bool {
    match message {
        Open::ID => Open::from_bytes(body).is_ok_and(|it| it.truncate),
        SetAttributes::ID => SetAttributes::from_bytes(body).is_ok_and(|it| it.size.is_some()),
        _ => false,
    }
}

/// Whether the reply to a replayed change has the same outcome as the first reply: the same inode
/// and, for requests that open a file, the same statement whether the request created the inode.
/// Always `true` for changes whose replies contain no inode.
fn has_same_outcome(message: u16, reply: &[u8], first: (bool, InodeId)) -> Result<bool> {
    Ok(match message {
        Create::ID | CreateUnnamed::ID | Open::ID => {
            let opened = OpenReply::from_bytes(reply)?;
            (opened.created, opened.attributes.inode) == first
        }
        MakeDirectory::ID | MakeSymlink::ID | Link::ID => {
            NewEntryReply::from_bytes(reply)?.entry.inode == first.1
        }
        _ => true,
    })
}
