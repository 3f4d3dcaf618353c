//! The requests that a storage target answers, one file each, and the table that finds them.

mod clear_chunk;
mod copy_chunk;
mod list_chunks;
mod read_chunk;
mod remove_chunks;
mod reserve_chunk;
mod seek_chunk;
mod stat_chunk;
mod sync_chunk;
mod truncate_chunk;
mod write_chunk;

use crate::chunk_store::ChunkStore;
use skep_env::Buf;
use skep_rpc::{Incoming, Outbox};
use skep_types::{Error, ErrorCode, Result};
use skep_wire::Request;
use skep_wire::frame::Header;
use skep_wire::storage as messages;
use std::rc::Rc;

/// A request on its way through a handler.
pub(crate) struct Call<R> {
    pub(crate) request: R,
    /// Bulk data that came with it.
    pub(crate) data: Option<Buf>,
    /// Whether the effect must be on the device before the reply.
    pub(crate) is_durable: bool,
}

/// Answers a request by what `handle` says.
async fn answer<R: Request>(
    store: &Rc<ChunkStore>,
    incoming: Incoming,
    outbox: &Rc<Outbox>,
    handle: impl AsyncFnOnce(&Rc<ChunkStore>, Call<R>) -> Result<(R::Reply, Option<Buf>)>,
) {
    let Incoming { header, body, data } = incoming;
    let is_durable = header.is_durable();
    let result = match R::from_bytes(&body) {
        Ok(request) => handle(store, Call { request, data, is_durable }).await,
        Err(error) => Err(Error::new(ErrorCode::Protocol, error.to_string())),
    };
    match result {
        Ok((reply, Some(data))) => outbox.reply_data(&header, &reply, vec![data]),
        Ok((reply, None)) => outbox.reply(&header, &reply),
        Err(error) => {
            log_refusal(&header, &error);
            outbox.refuse(&header, &error);
        }
    }
}

/// What an operator must look at is logged here, where it is handled; the rest is the client's.
fn log_refusal(header: &Header, error: &Error) {
    match error.code() {
        ErrorCode::Corrupt | ErrorCode::Io => tracing::error!("{error}"),
        ErrorCode::Protocol => tracing::warn!("message {}: {error}", header.message),
        _ => tracing::debug!("message {}: {error}", header.message),
    }
}

/// Answers a request. Runs in a task of its own that nobody drops.
pub(crate) async fn dispatch(store: &Rc<ChunkStore>, incoming: Incoming, outbox: &Rc<Outbox>) {
    match incoming.header.message {
        messages::WriteChunk::ID => answer(store, incoming, outbox, write_chunk::handle).await,
        messages::ReadChunk::ID => answer(store, incoming, outbox, read_chunk::handle).await,
        messages::SyncChunk::ID => answer(store, incoming, outbox, sync_chunk::handle).await,
        messages::TruncateChunk::ID => {
            answer(store, incoming, outbox, truncate_chunk::handle).await;
        }
        messages::StatChunk::ID => answer(store, incoming, outbox, stat_chunk::handle).await,
        messages::RemoveChunks::ID => answer(store, incoming, outbox, remove_chunks::handle).await,
        messages::ListChunks::ID => answer(store, incoming, outbox, list_chunks::handle).await,
        messages::ReserveChunk::ID => {
            answer(store, incoming, outbox, reserve_chunk::handle).await;
        }
        messages::ClearChunk::ID => answer(store, incoming, outbox, clear_chunk::handle).await,
        messages::SeekChunk::ID => answer(store, incoming, outbox, seek_chunk::handle).await,
        messages::CopyChunk::ID => answer(store, incoming, outbox, copy_chunk::handle).await,
        other => {
            let error = Error::new(
                ErrorCode::Unsupported,
                format!("storage does not know message {other}"),
            );
            outbox.refuse(&incoming.header, &error);
        }
    }
}
