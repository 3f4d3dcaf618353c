//! Connections to management, and the loop that retries a request until management gives a final
//! reply. The state of the node belongs to [`super::Membership`] and [`super::ClientMembership`].
//!
//! Management may have several members, and only its leader executes requests. Every other member
//! replies `NotLeader` and executes nothing. After `NotLeader`, the sender sends the request, with
//! the same id, to the leader that the reply names, or to the next address ([`super::addresses`]).

use super::addresses::MemberAddresses;
use crate::access::{Channel, Identity, JoinToken};
use crate::call_options::CallOptions;
use crate::client::Connection;
use crate::dial::first_success;
use crate::limits::{
    FIRST_BACKOFF, LEADER_PAUSE, LONGEST_MANAGEMENT_BACKOFF, MANAGEMENT_DEADLINE,
    MANAGEMENT_STAGGER, SHORTEST_REPLY,
};
use crate::map_cell::MapCell;
use skep_env::local::Notify;
use skep_types::{
    ClusterMap, Error, ErrorCode, NodeId, NodeKind, Result, RetryClass, SessionId, TargetId,
};
use skep_wire::Request;
use skep_wire::consensus::leader_addresses;
use skep_wire::senders::Sender;
use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Sends requests of one thread to management, for members of the cluster and for administration
/// tools, which do not register.
#[derive(Debug)]
pub struct Management {
    identity: Identity,
    addresses: Vec<String>,
    /// The order in which this process tries the addresses.
    order: RefCell<MemberAddresses>,
    /// The cell with the cluster map and the node's id; `None` before the node has registered.
    cell: RefCell<Option<Arc<MapCell>>>,
    connection: RefCell<Option<OpenConnection>>,
    /// The address of the member that has accepted the first connection of this handle.
    first_answer: OnceCell<String>,
    /// Random id of this handle, which identifies the sender of a request.
    sender_number: u64,
    /// Id of the last request.
    last_request: Cell<u64>,
    is_connecting: Cell<bool>,
    connected: Notify,
}

/// The connection to a member of management.
#[derive(Debug, Clone)]
struct OpenConnection {
    connection: Rc<Connection>,
    /// The address of the member.
    address: String,
    /// This node's id at the time of the start of the connection.
    node: NodeId,
}

impl Management {
    /// Creates a handle to management at the addresses of a join token. `kind` is the caller's
    /// kind; administration tools count as clients.
    pub fn new(token: &JoinToken, kind: NodeKind) -> Rc<Self> {
        Self::of_node(token, kind, NodeId::default())
    }

    /// Creates a handle to management for a member of the cluster. The handle also uses the
    /// addresses of management in the newest cluster map, and the node id in `cell`.
    pub fn of_member(token: &JoinToken, kind: NodeKind, cell: Arc<MapCell>) -> Rc<Self> {
        let management = Self::new(token, kind);
        management.set_member(cell);
        management
    }

    /// Like [`Self::new`], for a node to which management has assigned the id `node` earlier. Such
    /// a node waits when a process at management's address refuses its handshake.
    pub(super) fn of_node(token: &JoinToken, kind: NodeKind, node: NodeId) -> Rc<Self> {
        let identity =
            Identity { cluster: token.cluster, secrets: token.secrets.clone(), node, kind };
        Rc::new(Self {
            identity,
            addresses: distinct(&token.addresses),
            order: RefCell::default(),
            cell: RefCell::default(),
            connection: RefCell::default(),
            first_answer: OnceCell::new(),
            // Zero would mean that a request has no id, so the random number is at least one.
            sender_number: skep_env::random_u64().max(1),
            last_request: Cell::new(0),
            is_connecting: Cell::new(false),
            connected: Notify::default(),
        })
    }

    /// Sends all later requests under the node id in `cell`. The caller calls this method when the
    /// node has registered.
    pub(super) fn set_member(&self, cell: Arc<MapCell>) {
        *self.cell.borrow_mut() = Some(cell);
    }

    /// Returns the caller's identity. Its node id is zero until the caller has registered.
    pub(super) fn identity(&self) -> Identity {
        Identity { node: self.node(), ..self.identity.clone() }
    }

    fn node(&self) -> NodeId {
        self.cell.borrow().as_ref().map_or(self.identity.node, |cell| cell.node())
    }

    /// Returns the join token, so that another thread can create its own handle to management.
    pub fn token(&self) -> JoinToken {
        JoinToken {
            cluster: self.identity.cluster,
            secrets: self.identity.secrets.clone(),
            addresses: self.addresses.clone(),
        }
    }

    /// Returns the address of the member that has accepted the first connection of this handle. If
    /// this member is not the leader, the requests go to another member. `None` means that no
    /// member has accepted a connection yet.
    pub fn first_answer(&self) -> Option<&str> {
        self.first_answer.get().map(String::as_str)
    }

    /// Returns the id of a new request. All attempts to send the request have this id, so
    /// that management executes it once.
    pub(super) fn new_request(&self) -> u64 {
        self.last_request.set(self.last_request.get() + 1);
        self.last_request.get()
    }

    /// Sends a request without retries.
    ///
    /// # Errors
    /// - The error in management's reply.
    /// - `Disconnected` if management cannot be reached at any of its addresses.
    /// - `NotLeader` if no member is the leader within `time_left`.
    /// - `TimedOut` if no reply arrives within `time_left`.
    pub async fn call_once<R: Request>(
        &self,
        request: &R,
        time_left: Duration,
    ) -> Result<R::Reply> {
        self.call_once_as(Sender::default(), request, time_left).await
    }

    /// Like [`Self::call_once`], for a request of a target that is the primary of a group.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::call_once`], and `Deposed` if another member has become
    /// the primary of the group.
    pub async fn call_once_as<R: Request>(
        &self,
        sender: Sender,
        request: &R,
        time_left: Duration,
    ) -> Result<R::Reply> {
        self.attempt(sender, self.new_request(), request, time_left).await
    }

    /// Sends a request with the id `sequence` to the leader. Only the leader executes requests, so
    /// management executes the request exactly once.
    pub(super) async fn attempt<R: Request>(
        &self,
        sender: Sender,
        sequence: u64,
        request: &R,
        time_left: Duration,
    ) -> Result<R::Reply> {
        let deadline = skep_env::now() + time_left;
        let mut redirects = 0_usize;
        let mut refusal = None;
        // Retry: a member that is not the leader has refused the request. The next attempt begins
        // immediately if a member names the leader for the first time, and after `LEADER_PAUSE`
        // otherwise. The attempts end when `time_left` is over.
        loop {
            let left = deadline.saturating_sub(skep_env::now());
            let connecting = skep_env::timeout(left, self.connection()).await;
            // If the last attempt has too little time left to connect, the refusal of the attempt
            // before it is the reason of the failure.
            let late = || Err(refusal.take().unwrap_or_else(|| no_connection(time_left)));
            let left = deadline.saturating_sub(skep_env::now());
            let is_usable = |it: &Result<_>| it.is_err() || left >= SHORTEST_REPLY;
            let open = connecting.filter(is_usable).unwrap_or_else(late)?;
            let error = match self.ask_member(&open, sender, sequence, request, left).await {
                Err(error) if error.code() == ErrorCode::NotLeader => error,
                result => return result,
            };
            redirects += 1;
            if self.order.borrow().knows_leader() && redirects == 1 {
                refusal = Some(error);
                continue;
            }
            if skep_env::now() + LEADER_PAUSE >= deadline {
                return Err(error);
            }
            refusal = Some(error);
            skep_env::sleep(LEADER_PAUSE).await;
        }
    }

    /// Sends a request to one member.
    async fn ask_member<R: Request>(
        &self,
        open: &OpenConnection,
        sender: Sender,
        sequence: u64,
        request: &R,
        time_left: Duration,
    ) -> Result<R::Reply> {
        let session = SessionId::new(self.sender_number);
        let time_left = Some(time_left);
        let options =
            CallOptions { sender, session, sequence, time_left, ..CallOptions::default() };
        let result = open.connection.call(request, &options).await;
        match &result {
            Err(error) if error.code() == ErrorCode::NotLeader => {
                return Err(self.note_refusal(open, error.context()));
            }
            Err(error) if matches!(error.code(), ErrorCode::Disconnected | ErrorCode::TimedOut) => {
                open.connection.close();
            }
            _ => self.order.borrow_mut().note_leader(),
        }
        let addresses = || self.addresses.join(", ");
        result
            .map(|(reply, _)| reply)
            .map_err(|error| error.within(format_args!("management at {}", addresses())))
    }

    /// Remembers that a member is not the leader, so that the next request goes to another member.
    /// `text` is the text of its reply. Returns the error for the caller.
    fn note_refusal(&self, refused: &OpenConnection, text: &str) -> Error {
        let OpenConnection { connection, address, .. } = refused;
        let leader = leader_addresses(text);
        let token_refusal = self.order.borrow().token_refusal(&leader).map(str::to_owned);
        let context = match &*leader {
            [] => format!(
                "management has no leader, as its node at {address} reports: more than half of the \
                 management nodes must run and reach each other"
            ),
            named => {
                let named = named.join(", ");
                match token_refusal {
                    Some(refusal) => format!(
                        "the leader of management at {named} refuses the token: {refusal}; if an \
                         administrator has replaced the token, also install the new token on that \
                         node, with `skep token install`"
                    ),
                    None => format!(
                        "management at {address} is not the leader; this node reports {named} as \
                         the leader"
                    ),
                }
            }
        };
        self.order.borrow_mut().note_refusal(address, leader);
        let mut slot = self.connection.borrow_mut();
        if slot.as_ref().is_some_and(|open| Rc::ptr_eq(&open.connection, connection)) {
            *slot = None;
        }
        // Close the connection only when the other requests on it have their replies.
        connection.close_when_idle();
        Error::new(ErrorCode::NotLeader, context)
    }

    /// Retries a request until management gives a final reply or `patience` has passed; `None`
    /// means no limit. A retry is safe, because all attempts have the same id, and management
    /// executes a request that changes its state only once.
    ///
    /// # Errors
    /// - The error of management's final reply.
    /// - The error of the last attempt when `patience` has passed.
    pub async fn call<R: Request>(
        &self,
        request: &R,
        patience: Option<Duration>,
    ) -> Result<R::Reply> {
        let deadline = patience.map(|patience| skep_env::now() + patience);
        let mut backoff = FIRST_BACKOFF;
        let mut has_warned = false;
        let begun = skep_env::now();
        let sequence = self.new_request();
        // Retry: a request to management. The first pause is 2 ms, each further pause is twice as
        // long, up to 1 s. The retries end after `patience`.
        loop {
            let error =
                match self.attempt(Sender::default(), sequence, request, MANAGEMENT_DEADLINE).await
                {
                    Ok(reply) => {
                        if has_warned {
                            self.log_return(skep_env::now().saturating_sub(begun));
                        }
                        return Ok(reply);
                    }
                    Err(error) if is_final(&error) => return Err(error),
                    Err(error) => error,
                };
            if deadline.is_some_and(|deadline| skep_env::now() + backoff >= deadline) {
                return Err(error);
            }
            if backoff == LONGEST_MANAGEMENT_BACKOFF && !has_warned {
                has_warned = true;
                tracing::warn!(
                    "this process cannot reach management at {}, and retries: {error}",
                    self.addresses.join(", ")
                );
            }
            skep_env::sleep(backoff).await;
            backoff = (backoff * 2).min(LONGEST_MANAGEMENT_BACKOFF);
        }
    }

    /// Logs that management answers again after a request has waited for `waited`. Another task may
    /// have closed the connection in the meantime, so the address may be missing in the line.
    fn log_return(&self, waited: Duration) {
        let open = self.connection.borrow();
        let at = open.as_ref().map_or_else(String::new, |open| format!(" at {}", open.address));
        tracing::info!("management{at} answers again after {:.1} s", waited.as_secs_f64());
    }

    async fn connection(&self) -> Result<OpenConnection> {
        loop {
            if let Some(open) = &*self.connection.borrow()
                && !open.connection.is_closed()
                && open.node == self.node()
            {
                return Ok(open.clone());
            }
            if !self.is_connecting.replace(true) {
                break;
            }
            self.connected.wait().await;
        }
        // The guard resets the flag even if this future is dropped while it connects.
        let _reset = ConnectingGuard(self);
        let node = self.node();
        let (connection, address) = self.connect().await?;
        let open = OpenConnection { connection, address, node };
        if let Some(former) = self.connection.replace(Some(open.clone())) {
            former.connection.close();
        }
        Ok(open)
    }

    /// Connects to management at the first address that answers, in the order of
    /// [`Self::candidates`]. The next attempt begins when an earlier address has failed or is
    /// silent.
    async fn connect(&self) -> Result<(Rc<Connection>, String)> {
        let identity = &self.identity();
        let attempt = async |address: String| {
            let channel = Channel::NONE;
            let opened =
                Connection::connect(&address, identity, TargetId::default(), channel).await;
            self.order.borrow_mut().note_handshake(&address, opened.as_ref().err());
            opened.map(|connection| (connection, address))
        };
        let candidates = self.candidates();
        let first = first_success(candidates.clone(), MANAGEMENT_STAGGER, attempt).await;
        let none = || Error::new(ErrorCode::Disconnected, "no address of management is known");
        let opened = first.unwrap_or_else(|| Err(none()));
        let (connection, address) = opened.map_err(|error| match error.code() {
            // The error of the attempts names only the address that failed last.
            ErrorCode::Disconnected if candidates.len() > 1 => {
                let all = candidates.join(", ");
                error.within(format_args!("management does not answer at {all}"))
            }
            _ => error.within("management"),
        })?;
        self.order.borrow_mut().note_answer(&address);
        self.first_answer.get_or_init(|| address.clone());
        Ok((connection, address))
    }

    /// Returns all known addresses of management, in the order in which they are tried: see
    /// [`MemberAddresses`]. Servers try the addresses in the cluster map before other addresses at
    /// the same position in this order, since the addresses of management may have changed. Clients
    /// try the addresses of their command line or join token first. The addresses in the map may
    /// belong to a network that only servers can reach.
    fn candidates(&self) -> Vec<String> {
        let mut in_map = Vec::new();
        if let Some(cell) = &*self.cell.borrow() {
            in_map = management_addresses(&cell.load());
        }
        let given = self.addresses.iter().cloned();
        let all: Vec<String> = match self.identity.kind {
            NodeKind::Client => given.chain(in_map).collect(),
            _ => in_map.into_iter().chain(given).collect(),
        };
        self.order.borrow().sorted(all)
    }
}

fn no_connection(time_left: Duration) -> Error {
    let context = format!("no connection to management within {:.1} s", time_left.as_secs_f64());
    Error::new(ErrorCode::TimedOut, context)
}

/// Returns addresses without duplicates, in their order. A token may name an address twice.
fn distinct(addresses: &[String]) -> Vec<String> {
    let mut distinct: Vec<String> = Vec::new();
    for address in addresses {
        if !distinct.contains(address) {
            distinct.push(address.clone());
        }
    }
    distinct
}

/// Returns the addresses of management in a cluster map.
pub fn management_addresses(map: &ClusterMap) -> Vec<String> {
    let management = map.nodes.iter().filter(|node| node.kind == NodeKind::Management);
    management.flat_map(|node| node.addresses.iter().cloned()).collect()
}

struct ConnectingGuard<'a>(&'a Management);

impl Drop for ConnectingGuard<'_> {
    fn drop(&mut self) {
        self.0.is_connecting.set(false);
        self.0.connected.notify();
    }
}

/// Whether an error that management replied is final. `TimedOut` is not final, because management
/// may have executed the request. A lost connection is also not final, because the next attempt
/// opens a new connection.
pub(super) fn is_final(error: &Error) -> bool {
    error.code().retry_class() == RetryClass::Never && error.code() != ErrorCode::TimedOut
}
