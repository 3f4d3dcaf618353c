//! The operations: one file for each family of requests, and the dispatch to these files.
//!
//! Contains no logic of a file system. An operation is one call of [`FileSystem`], or several calls
//! if [`FileSystem`] has no call for the kernel's request.

mod allocation;
mod attributes;
mod data;
mod directories;
mod files;
mod holds;
mod ioctl;
mod jobs;
mod locks;
mod names;
mod privileges;
pub(crate) mod xattrs;

use crate::abi::InHeader;
use crate::context::Context;
use crate::file_system::FileSystem;
use crate::reply::{Outcome, ReplyBody};
use crate::request::Request;
use crate::waits::Caller;
use skep_types::InodeId;

/// Performs a request. Cancel-safe if [`Request::may_be_dropped`] returns true.
pub(crate) async fn perform<F: FileSystem>(
    context: &Context<F>,
    request: Request,
    caller: Caller,
) -> Outcome {
    if !request.may_be_part_of_open() {
        holds::end(context, caller).await;
    }
    match request {
        Request::Names(request) => names::perform(context, request, caller).await,
        Request::Files(request) => files::perform(context, request, caller).await,
        Request::Data(request) => data::perform(context, request, caller).await,
        Request::Locks(request) => locks::perform(context, request, caller).await,
        Request::Attributes(request) => attributes::perform(context, request, caller).await,
        Request::Directories(request) => directories::perform(context, request).await,
        Request::Xattrs(request) => xattrs::perform(context, request).await,
        Request::Ioctl(request) => ioctl::perform(context, request).await,
        Request::NoWork => Ok(ReplyBody::Empty),
    }
}

/// Undoes an operation whose caller was killed while the operation ran. Closes the file that the
/// operation opened, if any. `header` is the header of the caller's request.
pub(crate) async fn abandon<F: FileSystem>(
    context: &Context<F>,
    header: &InHeader,
    outcome: Outcome,
) {
    let (inode, handle) = match outcome {
        Ok(ReplyBody::Created(attributes, handle, _)) => (attributes.inode, handle),
        Ok(ReplyBody::OpenReply(handle, _)) => (InodeId::new(header.nodeid), handle),
        _ => return,
    };
    if let Err(error) = context.file_system.close_unused(handle).await {
        tracing::warn!(
            "cannot close file {inode} after the end of process {}, which was opening the file: \
             {error}; the file may stay open at metadata until this mount ends",
            header.pid
        );
    }
}
