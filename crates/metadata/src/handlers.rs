//! The request handlers, one file for each request, and the table that maps messages to handlers.

mod apply_prepared;
mod await_truncation;
mod close;
mod close_many;
mod compare_opens;
mod confirm_prepared;
mod create;
mod create_unnamed;
mod decide;
mod exchange;
mod file_locks;
mod get_attributes;
mod get_entry_info;
mod link;
mod list_group_files;
mod list_locks;
mod list_waits;
mod lookup;
mod make_directory;
mod make_symlink;
mod open;
mod open_session;
mod prepare;
mod read_directory;
mod read_inline;
mod read_link;
mod remove_directory;
mod remove_inline;
mod rename;
mod replay;
mod report_written;
mod resolve_transaction;
mod set_attributes;
mod set_pattern;
mod sync_inline;
mod trim_file;
mod unlink;
mod which_exist;
mod write_inline;
mod xattr;

use crate::engine::Engine;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_types::codec::{Codec, Reader};
use skep_types::{Error, ErrorCode, InodeId};
use skep_wire::management::EmptyReply;
use skep_wire::{
    Request, file_locks as fl, inline as il, metadata as md, sharing as sh, storage as st,
};

fn with<E: Engine, R: Request>(
    context: &mut Context<'_, E>,
    handler: fn(&mut Context<'_, E>, R) -> Result<R::Reply, Stop>,
) -> Result<Vec<u8>, Stop> {
    let request = R::from_bytes(&context.op.body)
        .map_err(|error| Error::new(ErrorCode::Protocol, error.context().to_owned()))?;
    handler(context, request).map(|reply| reply.to_bytes())
}

/// Runs the handler of a request message. Returns the encoded reply.
pub(crate) fn dispatch<E: Engine>(
    context: &mut Context<'_, E>,
    message: u16,
) -> Result<Vec<u8>, Stop> {
    let c = context;
    match message {
        md::OpenSession::ID => with(c, open_session::run),
        md::Lookup::ID => with(c, lookup::run),
        md::GetAttributes::ID => with(c, get_attributes::run),
        md::SetAttributes::ID => with(c, set_attributes::run),
        md::Create::ID => with(c, create::run),
        md::CreateUnnamed::ID => with(c, create_unnamed::run),
        md::Open::ID => with(c, open::run),
        md::Close::ID => with(c, close::run),
        md::CloseMany::ID => with(c, close_many::run),
        md::CompareOpens::ID => with(c, compare_opens::run),
        md::Replay::ID => with(c, replay::run),
        md::ReportWritten::ID => with(c, report_written::run),
        md::AwaitTruncation::ID => with(c, await_truncation::run),
        md::TrimFile::ID => with(c, trim_file::run),
        md::MakeDirectory::ID => with(c, make_directory::run),
        md::MakeSymlink::ID => with(c, make_symlink::run),
        md::ReadLink::ID => with(c, read_link::run),
        md::Link::ID => with(c, link::run),
        md::Unlink::ID => with(c, unlink::run),
        md::RemoveDirectory::ID => with(c, remove_directory::run),
        md::Rename::ID => with(c, rename::run),
        md::Exchange::ID => with(c, exchange::run),
        md::ReadDirectory::ID => with(c, read_directory::run),
        md::GetXattr::ID => with(c, xattr::get),
        md::SetXattr::ID => with(c, xattr::set),
        md::ListXattrs::ID => with(c, xattr::list),
        md::RemoveXattr::ID => with(c, xattr::remove),
        md::SetPattern::ID => with(c, set_pattern::run),
        md::GetEntryInfo::ID => with(c, get_entry_info::run),
        il::WriteInline::ID => with(c, write_inline::run),
        il::ReadInline::ID => with(c, read_inline::run),
        il::SyncInline::ID => with(c, sync_inline::run),
        il::RemoveInline::ID => with(c, remove_inline::run),
        fl::SetLock::ID => with(c, file_locks::set),
        fl::TestLock::ID => with(c, file_locks::test),
        fl::ListLocks::ID => with(c, list_locks::run),
        fl::ListWaits::ID => with(c, list_waits::run),
        md::SyncAll::ID => Ok(EmptyReply {}.to_bytes()),
        md::Prepare::ID => with(c, prepare::run),
        md::Decide::ID => with(c, decide::run),
        md::BeginPrepare::ID => with(c, prepare::begin),
        md::ConfirmPrepared::ID => with(c, confirm_prepared::run),
        md::ApplyPrepared::ID => with(c, apply_prepared::run),
        md::ResolveTransaction::ID => with(c, resolve_transaction::run),
        st::WhichExist::ID => with(c, which_exist::run),
        md::ListGroupFiles::ID => with(c, list_group_files::run),
        other => {
            let what = format!(
                "cannot execute message {other}: a metadata target does not serve this message"
            );
            Err(Error::new(ErrorCode::Unsupported, what).into())
        }
    }
}

/// Returns the inode that determines which group serves a request, from the body of the request.
/// `None` means that any group can serve the request, or that the body is malformed.
pub(crate) fn home_inode(message: u16, body: &[u8]) -> Option<InodeId> {
    let at = match message {
        // A `Link` runs at the group of the new name's directory, which is not the first field.
        md::Link::ID => {
            let link = md::Link::from_bytes(body).ok()?;
            return Some(link.directory);
        }
        md::Rename::ID => {
            let rename = md::Rename::from_bytes(body).ok()?;
            return Some(rename.to_directory);
        }
        // In this message, inode zero means all files of the target.
        fl::ListLocks::ID if body.get(..8) == Some(&[0; 8]) => return None,
        md::Exchange::ID => {
            let exchange = md::Exchange::from_bytes(body).ok()?;
            return Some(exchange.to_directory);
        }
        md::OpenSession::ID
        | md::KeepAlive::ID
        | md::CompareSlots::ID
        | md::Replay::ID
        | md::EndReplay::ID
        | md::ListSessions::ID
        | fl::ListWaits::ID
        | md::CloseSession::ID
        | md::AskOutcome::ID
        | sh::WaitNotifications::ID
        | sh::AcknowledgeNotifications::ID
        | md::CloseMany::ID
        | md::CompareOpens::ID
        | md::SyncAll::ID
        | md::Prepare::ID
        | md::Decide::ID
        | md::BeginPrepare::ID
        | md::ConfirmPrepared::ID
        | md::ApplyPrepared::ID
        | md::AskDecision::ID
        | md::ListTransactions::ID
        | md::ListCoordinated::ID
        | md::ResolveTransaction::ID
        | md::ListGroupFiles::ID
        | st::WhichExist::ID => return None,
        _ => body.get(..8)?,
    };
    InodeId::decode(&mut Reader::new(at)).ok()
}
