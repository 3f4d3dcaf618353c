//! Connections to management, and the loop that repeats a request until it has a final answer. Owns
//! no state of the node: [`super::Membership`] and [`super::ClientMembership`] use it.

use crate::access::{Channel, Identity, JoinToken};
use crate::client::{CallOptions, Connection};
use crate::limits::{FIRST_BACKOFF, LONGEST_MANAGEMENT_BACKOFF, MANAGEMENT_DEADLINE};
use crate::routing::MapCell;
use skep_env::local::Notify;
use skep_types::{Error, ErrorCode, NodeId, NodeKind, Result, RetryClass, TargetId};
use skep_wire::Request;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Connections to management, from one thread: for members of the cluster and for administration
/// tools, which do not register.
#[derive(Debug)]
pub struct Management {
    identity: Identity,
    addresses: Vec<String>,
    /// The map and the node's id, once it is registered.
    cell: RefCell<Option<Arc<MapCell>>>,
    /// The open connection, and the node's id under which it was made.
    connection: RefCell<Option<(Rc<Connection>, NodeId)>>,
    is_connecting: Cell<bool>,
    connected: Notify,
}

impl Management {
    /// Management at the addresses of a join token. `kind` is the caller's kind; administration
    /// tools are clients.
    pub fn new(token: &JoinToken, kind: NodeKind) -> Rc<Self> {
        let identity = Identity {
            cluster: token.cluster,
            secret: token.secret.clone(),
            node: NodeId::default(),
            kind,
        };
        Rc::new(Self {
            identity,
            addresses: token.addresses.clone(),
            cell: RefCell::default(),
            connection: RefCell::default(),
            is_connecting: Cell::new(false),
            connected: Notify::default(),
        })
    }

    /// The requests of a registered node go out under its id in `cell`, from now on.
    pub(super) fn set_member(&self, cell: Arc<MapCell>) {
        *self.cell.borrow_mut() = Some(cell);
    }

    /// The caller's identity, with its id in the cluster once it is registered.
    pub(super) fn identity(&self) -> Identity {
        Identity { node: self.node(), ..self.identity.clone() }
    }

    fn node(&self) -> NodeId {
        self.cell.borrow().as_ref().map_or(self.identity.node, |cell| cell.node())
    }

    /// The token with which another thread reaches management.
    pub fn token(&self) -> JoinToken {
        JoinToken {
            cluster: self.identity.cluster,
            secret: self.identity.secret.clone(),
            addresses: self.addresses.clone(),
        }
    }

    /// Sends a request once.
    ///
    /// # Errors
    /// The error that management replies; `Disconnected` if no address of management answers.
    pub async fn call_once<R: Request>(
        &self,
        request: &R,
        time_left: Duration,
    ) -> Result<R::Reply> {
        let connection = self.connection().await?;
        let options = CallOptions { time_left: Some(time_left), ..CallOptions::default() };
        let result = connection.call(request, &options).await;
        if let Err(error) = &result
            && matches!(error.code(), ErrorCode::Disconnected | ErrorCode::TimedOut)
        {
            connection.close();
        }
        result.map(|(reply, _)| reply).map_err(|error| error.within("management"))
    }

    /// Repeats a request until management gives a final answer or `patience` has passed; `None`
    /// means for ever. Requests to management are idempotent by their contents.
    ///
    /// # Errors
    /// The final answer; after `patience`, the error of the last attempt.
    pub async fn call<R: Request>(
        &self,
        request: &R,
        patience: Option<Duration>,
    ) -> Result<R::Reply> {
        let deadline = patience.map(|patience| skep_env::now() + patience);
        let mut backoff = FIRST_BACKOFF;
        let mut has_warned = false;
        // Retry: a request to management, 2 ms doubling to 1 s, `patience`
        loop {
            let error = match self.call_once(request, MANAGEMENT_DEADLINE).await {
                Ok(reply) => return Ok(reply),
                Err(error) if is_final(&error) => return Err(error),
                Err(error) => error,
            };
            if deadline.is_some_and(|deadline| skep_env::now() + backoff >= deadline) {
                return Err(error);
            }
            if backoff == LONGEST_MANAGEMENT_BACKOFF && !has_warned {
                has_warned = true;
                tracing::warn!("this node cannot reach management, and retries: {error}");
            }
            skep_env::sleep(backoff).await;
            backoff = (backoff * 2).min(LONGEST_MANAGEMENT_BACKOFF);
        }
    }

    async fn connection(&self) -> Result<Rc<Connection>> {
        loop {
            if let Some((open, node)) = &*self.connection.borrow()
                && !open.is_closed()
                && *node == self.node()
            {
                return Ok(Rc::clone(open));
            }
            if !self.is_connecting.replace(true) {
                break;
            }
            self.connected.wait().await;
        }
        // Resets the flag even if this future is dropped while it connects.
        let _reset = ConnectingGuard(self);
        let node = self.node();
        let connection = self.connect().await?;
        let former = self.connection.replace(Some((Rc::clone(&connection), node)));
        if let Some((former, _)) = former {
            former.close();
        }
        Ok(connection)
    }

    /// Connects to the first address that answers. Servers try the addresses in the map first,
    /// since management may have moved; clients try those of their mount first, since the map's may
    /// be addresses of a network that only servers reach.
    async fn connect(&self) -> Result<Rc<Connection>> {
        let mut in_map = Vec::new();
        if let Some(cell) = &*self.cell.borrow() {
            let map = cell.load();
            let management = map.nodes.iter().filter(|node| node.kind == NodeKind::Management);
            in_map.extend(management.flat_map(|node| node.addresses.iter().cloned()));
        }
        let (mut addresses, second) = if self.identity.kind == NodeKind::Client {
            (self.addresses.clone(), in_map)
        } else {
            (in_map, self.addresses.clone())
        };
        for address in second {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        let identity = self.identity();
        let mut last = Error::new(ErrorCode::Disconnected, "no address is given");
        for address in &addresses {
            match Connection::connect(address, &identity, TargetId::default(), Channel::NONE).await
            {
                Ok(connection) => return Ok(connection),
                Err(error) => last = error,
            }
        }
        Err(last.within("management"))
    }
}

struct ConnectingGuard<'a>(&'a Management);

impl Drop for ConnectingGuard<'_> {
    fn drop(&mut self) {
        self.0.is_connecting.set(false);
        self.0.connected.notify();
    }
}

/// Whether an error of management is a final answer. `TimedOut` is not: the request may have been
/// carried out. Nor is a lost connection, which can be made again.
pub(super) fn is_final(error: &Error) -> bool {
    error.code().retry_class() == RetryClass::Never && error.code() != ErrorCode::TimedOut
}
