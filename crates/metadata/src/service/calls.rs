//! Sends the calls of the state machine to other groups.
//!
//! The router owns the retries. The state machine decides what a failed call means
//! ([`crate::target`]).

use crate::tx::operation::OutgoingCall;
use skep_rpc::{CallOptions, Router};
use skep_types::codec::Codec;
use skep_types::{Error, ErrorCode, Result};
use skep_wire::{Request, metadata as md, storage as st};

/// Sends a request to another group, and returns the reply or the final error.
pub(super) async fn send(router: &Router, call: &OutgoingCall) -> Result<Vec<u8>> {
    match call.message {
        md::Lookup::ID => send_as::<md::Lookup>(router, call).await,
        md::GetEntryInfo::ID => send_as::<md::GetEntryInfo>(router, call).await,
        md::Prepare::ID => send_as::<md::Prepare>(router, call).await,
        md::Decide::ID => send_as::<md::Decide>(router, call).await,
        md::AskDecision::ID => send_as::<md::AskDecision>(router, call).await,
        md::BeginPrepare::ID => send_as::<md::BeginPrepare>(router, call).await,
        md::ConfirmPrepared::ID => send_as::<md::ConfirmPrepared>(router, call).await,
        md::ApplyPrepared::ID => send_as::<md::ApplyPrepared>(router, call).await,
        st::TruncateChunk::ID => send_as::<st::TruncateChunk>(router, call).await,
        st::SyncChunk::ID => send_as::<st::SyncChunk>(router, call).await,
        st::StatChunk::ID => send_as::<st::StatChunk>(router, call).await,
        st::RemoveChunks::ID => send_as::<st::RemoveChunks>(router, call).await,
        other => {
            let what =
                format!("cannot send message {other}: metadata targets do not send this message");
            Err(Error::new(ErrorCode::Unsupported, what))
        }
    }
}

async fn send_as<R: Request>(router: &Router, call: &OutgoingCall) -> Result<Vec<u8>> {
    let request = R::from_bytes(&call.body)?;
    let options = CallOptions { trace: call.trace, ..CallOptions::default() };
    let (reply, _) = router.call(call.group, &request, options).await?;
    Ok(reply.to_bytes())
}
