//! The request handlers of a storage target, one per file, and the table that dispatches requests
//! to them.

mod ask_benchmark;
mod clear_chunk;
mod copy_chunk;
mod list_chunks;
mod read_chunk;
mod remove_chunks;
mod reserve_chunk;
mod seek_chunk;
mod start_benchmark;
mod stat_chunk;
mod stop_benchmark;
mod sync_chunk;
mod truncate_chunk;
mod write_chunk;

use crate::benchmark::Benchmark;
use crate::chunk_store::ChunkStore;
use crate::emulation::Device;
use crate::request_meter::{Arrival, Handled, RequestMeter};
use skep_env::Buf;
use skep_rpc::{Incoming, Outbox};
use skep_service::link_requests::{self, Links};
use skep_types::{Error, ErrorCode, NodeId, Result, TargetId};
use skep_wire::Request;
use skep_wire::benchmark as bm;
use skep_wire::catalog::metric_name;
use skep_wire::frame::Header;
use skep_wire::storage as messages;
use std::pin::pin;
use std::rc::Rc;

/// A decoded request that is passed to its handler.
pub(crate) struct Call<R> {
    pub(crate) request: R,
    /// Bulk data of the request.
    pub(crate) data: Option<Buf>,
    /// Whether the effect must be durable before the reply.
    pub(crate) is_durable: bool,
}

/// The connection that gets the reply, and the parts of the target that handlers need in addition
/// to the store.
pub(crate) struct Requester<'a> {
    /// The node that has sent the request.
    pub(crate) sender: NodeId,
    pub(crate) outbox: &'a Rc<Outbox>,
    /// The emulated device, which delays replies. `None` means that the target emulates no device.
    pub(crate) device: Option<&'a Device>,
    pub(crate) benchmark: &'a Rc<Benchmark>,
    pub(crate) links: &'a Rc<Links>,
    pub(crate) meter: &'a RequestMeter,
    /// The arrival of the request, for the meter.
    pub(crate) arrival: Arrival,
    /// Returns an error if the connection of the request has ended, or if the target must no longer
    /// execute a request with this header.
    pub(crate) check: &'a dyn Fn(&Header) -> Result<()>,
}

/// Whether a request of the type `message` may address the target itself instead of the target's
/// group. Such requests belong to benchmarks of the target's device or of the network.
pub(crate) fn is_about_target(message: u16) -> bool {
    link_requests::is_link_request(message)
        || [bm::StartBenchmark::ID, bm::AskBenchmark::ID, bm::StopBenchmark::ID].contains(&message)
}

/// Decodes a request, calls `handle`, and sends its result as the reply.
async fn answer<R: Request>(
    store: &Rc<ChunkStore>,
    incoming: Incoming,
    requester: &Requester<'_>,
    handle: impl AsyncFnOnce(&Rc<ChunkStore>, Call<R>) -> Result<(R::Reply, Option<Buf>)>,
) {
    let Requester { outbox, device, meter, arrival, .. } = requester;
    let emulated = device.and_then(|device| Some((device, device.begin(&incoming)?)));
    let Incoming { mut header, body, data, .. } = incoming;
    let is_durable = header.is_durable();
    let handling = pin!(async {
        let result = match R::from_bytes(&body) {
            Ok(request) => handle(store, Call { request, data, is_durable }).await,
            Err(error) => Err(Error::new(ErrorCode::Protocol, error.to_string())),
        };
        let sent = result.as_ref().ok().and_then(|(_, data)| data.as_ref()).map_or(0, Buf::len);
        if let Some((device, begun)) = emulated {
            device.end(begun, sent).await;
        }
        (result, sent as u64)
    });
    let result = if skep_metrics::is_off() {
        handling.await.0
    } else {
        let ((result, sent_bytes), spent) = skep_env::timed(handling).await;
        let handled = Handled { is_failed: result.is_err(), sent_bytes, spent };
        header.set_times(meter.handled(arrival, &handled));
        result
    };
    match result {
        Ok((reply, Some(data))) => outbox.reply_data(&header, &reply, vec![data]),
        Ok((reply, None)) => outbox.reply(&header, &reply),
        Err(error) => {
            log_refusal(store.target(), requester.sender, &header, &error);
            outbox.refuse(&header, &error);
        }
    }
}

/// Logs the error of a refused request. Damage and I/O errors get the level `error`, since an
/// administrator must handle them. The client handles all other errors.
fn log_refusal(target: TargetId, sender: NodeId, header: &Header, error: &Error) {
    let name = || metric_name(header.message).unwrap_or_default();
    match error.code() {
        ErrorCode::Corrupt => tracing::error!(
            "target {target}: request {} of node {sender} fails: {error}; `skep entry path` with \
             the name of the chunk file prints the file to restore from a backup",
            name()
        ),
        ErrorCode::Io => tracing::error!(
            "target {target}: request {} of node {sender} fails: {error}; check the disk and the \
             log of the kernel",
            name()
        ),
        ErrorCode::Protocol => tracing::warn!(
            "target {target}: refused an invalid request {} of node {sender}: {error}",
            name()
        ),
        _ => tracing::debug!("refused a request with message number {}: {error:#}", header.message),
    }
}

/// Handles a request. The caller must run this function in a separate task that is never dropped.
pub(crate) async fn dispatch(
    store: &Rc<ChunkStore>,
    incoming: Incoming,
    requester: &Requester<'_>,
) {
    let benchmark = requester.benchmark;
    match incoming.header.message {
        messages::WriteChunk::ID => answer(store, incoming, requester, write_chunk::handle).await,
        messages::ReadChunk::ID => answer(store, incoming, requester, read_chunk::handle).await,
        messages::SyncChunk::ID => answer(store, incoming, requester, sync_chunk::handle).await,
        messages::TruncateChunk::ID => {
            answer(store, incoming, requester, truncate_chunk::handle).await;
        }
        messages::StatChunk::ID => answer(store, incoming, requester, stat_chunk::handle).await,
        messages::RemoveChunks::ID => {
            answer(store, incoming, requester, remove_chunks::handle).await
        }
        messages::ListChunks::ID => answer(store, incoming, requester, list_chunks::handle).await,
        messages::ReserveChunk::ID => {
            answer(store, incoming, requester, reserve_chunk::handle).await;
        }
        messages::ClearChunk::ID => answer(store, incoming, requester, clear_chunk::handle).await,
        messages::SeekChunk::ID => answer(store, incoming, requester, seek_chunk::handle).await,
        messages::CopyChunk::ID => {
            let header = incoming.header.clone();
            let handle = async |store: &Rc<ChunkStore>, call: Call<messages::CopyChunk>| {
                copy_chunk::handle(store, call, || (requester.check)(&header)).await
            };
            answer(store, incoming, requester, handle).await;
        }
        bm::StartBenchmark::ID => {
            let handle = async |store: &Rc<ChunkStore>, call: Call<bm::StartBenchmark>| {
                start_benchmark::handle(benchmark, store, call).await
            };
            answer(store, incoming, requester, handle).await;
        }
        bm::AskBenchmark::ID => {
            let handle = async |_: &Rc<ChunkStore>, call: Call<bm::AskBenchmark>| {
                ask_benchmark::handle(benchmark, call).await
            };
            answer(store, incoming, requester, handle).await;
        }
        bm::StopBenchmark::ID => {
            let handle = async |_: &Rc<ChunkStore>, call: Call<bm::StopBenchmark>| {
                stop_benchmark::handle(benchmark, call).await
            };
            answer(store, incoming, requester, handle).await;
        }
        message if link_requests::is_link_request(message) => {
            link_requests::answer(Some(requester.links), incoming, requester.outbox);
        }
        other => {
            let error = Error::new(
                ErrorCode::Unsupported,
                format!(
                    "cannot execute message {other}: a storage target does not serve this message"
                ),
            );
            requester.outbox.refuse(&incoming.header, &error);
        }
    }
}
