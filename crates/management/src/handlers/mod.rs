//! The request handlers of management, one per file, and the table that dispatches requests to
//! them.

mod change_setting;
mod confirm_log_level;
mod create_group;
mod evict;
mod format;
mod get_map;
mod heartbeat;
mod leave;
mod list_clients;
mod list_request_waits;
mod register_client;
mod register_server;
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
use skep_service::{link_requests, quarantine};
use skep_types::{Error, ErrorCode, Result};
use skep_wire::Request;
use skep_wire::frame::Header;
use skep_wire::senders::SenderEpochs;
use skep_wire::{management as messages, node};
use std::rc::Rc;
use std::time::Duration;

/// Decodes a request, calls `handle`, and sends its result as the reply.
fn answer<R: Request>(
    authority: &Rc<Authority>,
    incoming: &Incoming,
    outbox: &Rc<Outbox>,
    handle: impl FnOnce(&Authority, R) -> Result<R::Reply>,
) {
    let _handling = quarantine::handling(incoming.header.message, &incoming.body);
    let result = R::from_bytes(&incoming.body).and_then(|request| handle(authority, request));
    match result {
        Ok(reply) => outbox.reply(&incoming.header, &reply),
        Err(error) => outbox.refuse(&incoming.header, &error),
    }
}

/// Like [`answer`], for a request that changes the state. `handle` also gets the id of the request.
fn answer_change<R: Request>(
    authority: &Rc<Authority>,
    incoming: &Incoming,
    outbox: &Rc<Outbox>,
    handle: impl FnOnce(&Authority, RequestId, R) -> Result<R::Reply>,
) {
    let Header { session, sequence, .. } = incoming.header;
    let id = RequestId { sender: session.raw(), number: sequence };
    answer(authority, incoming, outbox, |authority, request| handle(authority, id, request));
}

/// Replies with a `MapUpdate`. `newer` is its encoded body; `None` means that there is no newer
/// map.
fn answer_map(outbox: &Rc<Outbox>, request: &Header, newer: Option<Rc<[u8]>>) {
    match newer {
        Some(body) => outbox.reply_raw(request, &body),
        None => outbox.reply(request, &messages::MapUpdate { map: None }),
    }
}

/// Returns how long a request may wait so that its reply still arrives before its deadline.
fn longest_wait(request: &Header) -> Duration {
    let wait = match request.time_left_ms {
        0 => LONGEST_WAIT,
        left => Duration::from_millis(u64::from(left)).min(LONGEST_WAIT),
    };
    // A request with a short deadline may wait for half of its time.
    wait.saturating_sub(ANSWER_BEFORE_DEADLINE).max(wait / 2)
}

/// Handles a request. The reply is sent at once, except for `GetMap` and `SetClientLogLevel`, which
/// may wait in a task of their own.
pub(crate) fn dispatch(authority: &Rc<Authority>, incoming: Incoming, outbox: &Rc<Outbox>) {
    if let Err(error) = quarantine::check(incoming.header.message, &incoming.body) {
        return outbox.refuse(&incoming.header, &error);
    }
    // A deposed metadata target must not cause the removal of clients.
    let sender = SenderEpochs::default().check(&incoming.header, &authority.map());
    if let Err(error) = sender {
        return outbox.refuse(&incoming.header, &error);
    }
    match incoming.header.message {
        messages::RegisterServer::ID => {
            answer_change(authority, &incoming, outbox, register_server::handle);
        }
        messages::RegisterClient::ID => {
            answer_change(authority, &incoming, outbox, register_client::handle);
        }
        messages::Heartbeat::ID => heartbeat::handle(authority, &incoming, outbox),
        messages::GetMap::ID => get_map::handle(authority, incoming, outbox),
        messages::Leave::ID => answer_change(authority, &incoming, outbox, leave::handle),
        messages::Evict::ID => {
            let by = incoming.header.sender_group;
            answer_change(authority, &incoming, outbox, |authority, id, request| {
                evict::handle(authority, id, request, by)
            });
        }
        messages::CreateGroup::ID => {
            answer_change(authority, &incoming, outbox, create_group::handle)
        }
        messages::Format::ID => answer_change(authority, &incoming, outbox, format::handle),
        messages::SetPolicy::ID => answer_change(authority, &incoming, outbox, set_policy::handle),
        messages::ChangeSetting::ID => {
            answer_change(authority, &incoming, outbox, change_setting::handle);
        }
        messages::ListClients::ID => answer(authority, &incoming, outbox, list_clients::handle),
        messages::ListRequestWaits::ID => {
            answer(authority, &incoming, outbox, list_request_waits::handle)
        }
        messages::SetClientLogLevel::ID => {
            set_client_log_level::handle(authority, incoming, outbox)
        }
        messages::SetTargetState::ID => {
            answer_change(authority, &incoming, outbox, set_target_state::handle);
        }
        messages::RemoveTarget::ID => {
            answer_change(authority, &incoming, outbox, remove_target::handle)
        }
        messages::RemoveServer::ID => {
            answer_change(authority, &incoming, outbox, remove_server::handle)
        }
        messages::RenameServer::ID => {
            answer_change(authority, &incoming, outbox, rename_server::handle)
        }
        messages::ConfirmLogLevel::ID => {
            answer(authority, &incoming, outbox, confirm_log_level::handle)
        }
        node::SetLogLevel::ID => skep_service::node_requests::answer(&incoming, outbox),
        message if link_requests::is_link_request(message) => {
            link_requests::answer(None, incoming, outbox)
        }
        other => {
            let error = Error::new(
                ErrorCode::Unsupported,
                format!("message {other} is not for management"),
            );
            outbox.refuse(&incoming.header, &error);
        }
    }
}
