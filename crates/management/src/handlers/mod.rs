//! The request handlers of management, one per file, and the table that dispatches requests to
//! them.

mod add_member;
mod ask_take_over;
mod change_group;
mod change_setting;
mod confirm_log_level;
mod create_group;
mod evict;
mod format;
mod get_map;
mod heartbeat;
mod leave;
mod list_clients;
mod list_evictions;
mod list_hosts;
mod list_members;
mod list_outages;
mod list_request_waits;
mod register_client;
mod register_server;
mod remove_member;
mod remove_server;
mod remove_target;
mod rename_server;
mod set_client_log_level;
mod set_policy;
mod set_target_state;

use crate::authority::Authority;
use crate::limits::{ANSWER_BEFORE_DEADLINE, LONGEST_WAIT};
use skep_cluster::RequestId;
use skep_rpc::{Incoming, Outbox};
use skep_service::link_requests;
use skep_service::quarantine::{self, Mark};
use skep_types::{Error, ErrorCode, Result};
use skep_wire::Request;
use skep_wire::consensus::AskMember;
use skep_wire::frame::Header;
use skep_wire::senders::SenderEpochs;
use skep_wire::{consensus as members, management as messages, node};
use std::rc::Rc;
use std::time::Duration;

/// The arguments of every handler: the authority, the request, and the outbox for the reply.
type Context<'a> = (&'a Rc<Authority>, &'a Incoming, &'a Rc<Outbox>);

/// Decodes a request, calls `handle`, and sends the result of `handle` as the reply.
async fn read<R: Request>(
    (authority, incoming, outbox): Context<'_>,
    handle: impl AsyncFnOnce(&Authority, R) -> Result<R::Reply>,
) {
    let mark = Mark::of(incoming.header.message, &incoming.body);
    let handling = async {
        let request = R::from_bytes(&incoming.body)?;
        handle(authority, request).await
    };
    match quarantine::watch(mark, handling).await {
        Ok(reply) => outbox.reply(&incoming.header, &reply),
        Err(error) => outbox.refuse(&incoming.header, &error),
    }
}

/// Does the same as [`read`] for a request that changes the state. `handle` also gets the id of the
/// request.
async fn change<R: Request>(
    context: Context<'_>,
    handle: impl AsyncFnOnce(&Authority, RequestId, R) -> Result<R::Reply>,
) {
    let Header { session, sequence, .. } = context.1.header;
    let id = RequestId { sender: session.raw(), number: sequence };
    let handle =
        async move |authority: &Authority, request: R| handle(authority, id, request).await;
    read(context, handle).await;
}

/// Replies with a `MapUpdate`. `newer` is its encoded body. `None` means that there is no newer
/// map.
fn answer_map(outbox: &Rc<Outbox>, request: &Header, newer: Option<Rc<[u8]>>) {
    match newer {
        Some(body) => outbox.reply_raw(request, &body),
        None => outbox.reply(request, &messages::MapUpdate { map: None }),
    }
}

/// Returns the longest time for which a request may wait if its reply must arrive before its
/// deadline.
fn longest_wait(request: &Header) -> Duration {
    let wait = match request.time_left_ms {
        0 => LONGEST_WAIT,
        left => Duration::from_millis(u64::from(left)).min(LONGEST_WAIT),
    };
    // A request with a short deadline may wait for half of the time until the deadline.
    wait.saturating_sub(ANSWER_BEFORE_DEADLINE).max(wait / 2)
}

/// Whether every member of management handles a message, even if another member leads.
pub(crate) fn is_for_each_member(message: u16) -> bool {
    message == AskMember::ID
        || message == node::SetLogLevel::ID
        || link_requests::is_link_request(message)
}

/// Handles a request. Returns after the reply has been sent. Requests that may wait for a long
/// time, such as `GetMap`, are an exception: such a request waits in a separate task. So management
/// handles the requests of a connection in their order, and has only one of these requests in
/// memory.
pub(crate) async fn dispatch(authority: &Rc<Authority>, incoming: Incoming, outbox: &Rc<Outbox>) {
    let message = incoming.header.message;
    if let Err(error) = quarantine::check(message, &incoming.body) {
        return outbox.refuse(&incoming.header, &error);
    }
    match message {
        // Every member handles these requests itself, even if the member is not the leader.
        node::SetLogLevel::ID => return skep_service::node_requests::answer(&incoming, outbox),
        _ if link_requests::is_link_request(message) => {
            return link_requests::answer(None, incoming, outbox);
        }
        _ => {}
    }
    // A deposed metadata target must not cause the removal of clients.
    let sender = SenderEpochs::default().check(&incoming.header, &authority.map());
    if let Err(error) = sender {
        return outbox.refuse(&incoming.header, &error);
    }
    match message {
        messages::Heartbeat::ID => heartbeat::handle(authority, &incoming, outbox).await,
        messages::GetMap::ID => get_map::handle(authority, incoming, outbox),
        messages::SetClientLogLevel::ID => {
            set_client_log_level::handle(authority, incoming, outbox)
        }
        members::AddMember::ID => add_member::handle(authority, incoming, outbox),
        _ => dispatch_short(authority, &incoming, outbox).await,
    }
}

/// Handles a request that waits for nothing but the log of management.
async fn dispatch_short(authority: &Rc<Authority>, incoming: &Incoming, outbox: &Rc<Outbox>) {
    let context = (authority, incoming, outbox);
    match incoming.header.message {
        messages::RegisterServer::ID => change(context, register_server::handle).await,
        messages::RegisterClient::ID => change(context, register_client::handle).await,
        messages::Leave::ID => change(context, leave::handle).await,
        messages::Evict::ID => {
            let by = incoming.header.sender_group;
            let handle = async move |authority: &Authority, id, request| {
                evict::handle(authority, id, request, by).await
            };
            change(context, handle).await;
        }
        messages::CreateGroup::ID => change(context, create_group::handle).await,
        messages::ChangeGroup::ID => {
            let by = incoming.header.sender_group;
            let handle = async move |authority: &Authority, id, request| {
                change_group::handle(authority, id, request, by).await
            };
            change(context, handle).await;
        }
        messages::AskTakeOver::ID => change(context, ask_take_over::handle).await,
        messages::Format::ID => change(context, format::handle).await,
        messages::SetPolicy::ID => change(context, set_policy::handle).await,
        messages::ChangeSetting::ID => change(context, change_setting::handle).await,
        messages::SetTargetState::ID => change(context, set_target_state::handle).await,
        messages::RemoveTarget::ID => change(context, remove_target::handle).await,
        messages::RemoveServer::ID => change(context, remove_server::handle).await,
        messages::RenameServer::ID => change(context, rename_server::handle).await,
        members::RemoveMember::ID => change(context, remove_member::handle).await,
        messages::ListClients::ID => read(context, list_clients::handle).await,
        messages::ListHosts::ID => read(context, list_hosts::handle).await,
        messages::ListEvictions::ID => read(context, list_evictions::handle).await,
        messages::ListOutages::ID => read(context, list_outages::handle).await,
        messages::ListRequestWaits::ID => read(context, list_request_waits::handle).await,
        messages::ConfirmLogLevel::ID => read(context, confirm_log_level::handle).await,
        members::ListMembers::ID => read(context, list_members::handle).await,
        other => {
            let error = Error::new(
                ErrorCode::Unsupported,
                format!("cannot execute message {other}: management does not serve this message"),
            );
            outbox.refuse(&incoming.header, &error);
        }
    }
}
