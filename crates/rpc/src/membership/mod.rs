//! A node's membership in the cluster: registration with management, heartbeats, and the cluster
//! map as management pushes it. For services and clients alike.
//!
//! Management is never on the path of I/O: while it is away, the node keeps the map that it has,
//! and tries for ever. A server may even begin with a map that it kept over its restart. A node
//! that management doesn't know any more registers again by itself.
//!
//! Belongs to one thread; other threads take the map from the shared [`MapCell`].

use crate::access::{Channel, Identity, JoinToken};
use crate::client::{CallOptions, Connection};
use crate::limits::{
    FIRST_BACKOFF, LONG_POLL, LONGEST_MANAGEMENT_BACKOFF, MANAGEMENT_DEADLINE,
    TIMEOUT_WITH_CACHED_MAP,
};
use crate::routing::MapCell;
use skep_env::local::Notify;
use skep_types::map::Capacity;
use skep_types::registration::ServerRegistration;
use skep_types::{ClusterMap, Error, ErrorCode, NodeId, NodeKind, Result, RetryClass, TargetId};
use skep_wire::Request;
use skep_wire::management::{
    GetMap, Heartbeat, Leave, RegisterClient, RegisterReply, RegisterServer,
};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// How a node registers.
#[derive(Debug, Clone)]
pub enum Registration {
    /// A service, with its targets.
    Server(RegisterServer),
    /// A client.
    Client(RegisterClient),
}

impl Registration {
    fn kind(&self) -> NodeKind {
        match self {
            Self::Server(request) => request.server.kind,
            Self::Client(_) => NodeKind::Client,
        }
    }

    async fn send(
        &self,
        management: &Management,
        patience: Option<Duration>,
    ) -> Result<RegisterReply> {
        match self {
            Self::Server(server) => management.call(server, patience).await,
            Self::Client(client) => management.call(client, patience).await,
        }
    }

    /// Takes the ids that management gave, for the next time.
    fn confirm(&mut self, registered: &RegisterReply) {
        if let Self::Server(RegisterServer { server, .. }) = self {
            server.node = registered.node;
            for (target, id) in server.targets.iter_mut().zip(&registered.targets) {
                target.target = *id;
            }
        }
    }
}

/// Connections to management, from one thread: for members, and for tools that are none.
#[derive(Debug)]
pub struct Management {
    identity: RefCell<Identity>,
    addresses: Vec<String>,
    cell: RefCell<Option<Arc<MapCell>>>,
    connection: RefCell<Option<Rc<Connection>>>,
    is_connecting: Cell<bool>,
    connected: Notify,
}

impl Management {
    /// Management as a join token names it. `kind` is what the caller is; administration tools are
    /// clients.
    pub fn new(token: &JoinToken, kind: NodeKind) -> Rc<Self> {
        let identity = Identity {
            cluster: token.cluster,
            secret: token.secret.clone(),
            node: NodeId::default(),
            kind,
        };
        Rc::new(Self {
            identity: RefCell::new(identity),
            addresses: token.addresses.clone(),
            cell: RefCell::default(),
            connection: RefCell::default(),
            is_connecting: Cell::new(false),
            connected: Notify::default(),
        })
    }

    /// How another thread reaches it.
    pub fn token(&self) -> JoinToken {
        let identity = self.identity.borrow();
        JoinToken {
            cluster: identity.cluster,
            secret: identity.secret.clone(),
            addresses: self.addresses.clone(),
        }
    }

    /// Sends a request once.
    ///
    /// # Errors
    /// The answer's; `Disconnected` if management can't be reached.
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

    /// Sends a request until there is a final answer, for as long as `patience` lasts; without one,
    /// for ever. Requests to management are idempotent by their contents.
    ///
    /// # Errors
    /// The final answer; the last obstacle when the patience is at its end.
    pub async fn call<R: Request>(
        &self,
        request: &R,
        patience: Option<Duration>,
    ) -> Result<R::Reply> {
        let deadline = patience.map(|patience| skep_env::now() + patience);
        let mut backoff = FIRST_BACKOFF;
        let mut has_complained = false;
        loop {
            let error = match self.call_once(request, MANAGEMENT_DEADLINE).await {
                Ok(reply) => return Ok(reply),
                Err(error) if is_final(&error) => return Err(error),
                Err(error) => error,
            };
            if deadline.is_some_and(|deadline| skep_env::now() + backoff >= deadline) {
                return Err(error);
            }
            if backoff == LONGEST_MANAGEMENT_BACKOFF && !has_complained {
                has_complained = true;
                tracing::warn!("{error}; trying on");
            }
            skep_env::sleep(backoff).await;
            backoff = (backoff * 2).min(LONGEST_MANAGEMENT_BACKOFF);
        }
    }

    async fn connection(&self) -> Result<Rc<Connection>> {
        loop {
            if let Some(open) = self.connection.borrow().as_ref().filter(|it| !it.is_closed()) {
                return Ok(Rc::clone(open));
            }
            if !self.is_connecting.replace(true) {
                break;
            }
            self.connected.wait().await;
        }
        // Resets the flag even if this future is dropped while it connects.
        let _reset = Connecting(self);
        let connection = self.connect().await?;
        *self.connection.borrow_mut() = Some(Rc::clone(&connection));
        Ok(connection)
    }

    /// Tries the addresses that the map knows, then those of the token.
    async fn connect(&self) -> Result<Rc<Connection>> {
        let mut addresses = Vec::new();
        if let Some(cell) = &*self.cell.borrow() {
            let map = cell.load();
            let management = map.nodes.iter().filter(|node| node.kind == NodeKind::Management);
            addresses.extend(management.flat_map(|node| node.addresses.iter().cloned()));
        }
        addresses.extend(
            self.addresses.iter().filter(|it| !addresses.contains(it)).cloned().collect::<Vec<_>>(),
        );
        let identity = self.identity.borrow().clone();
        let mut last = Error::new(ErrorCode::Disconnected, "no address");
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

struct Connecting<'a>(&'a Management);

impl Drop for Connecting<'_> {
    fn drop(&mut self) {
        self.0.is_connecting.set(false);
        self.0.connected.notify();
    }
}

/// Whether management's answer stands. Of `TimedOut` nothing is known, and a lost connection
/// passes.
fn is_final(error: &Error) -> bool {
    error.code().retry_class() == RetryClass::Never && error.code() != ErrorCode::TimedOut
}

/// A registered node, or one that still begins with the map of before.
#[derive(Debug)]
pub struct Membership {
    management: Rc<Management>,
    registration: RefCell<Registration>,
    cell: Arc<MapCell>,
    /// Not yet, if it began with a cached map.
    is_registered: Cell<bool>,
    is_leaving: Cell<bool>,
    /// The cluster's settings are others than before: who sleeps by one of them looks again.
    settings_changed: Notify,
}

/// What a member is told about.
#[derive(Debug)]
pub enum Change {
    /// There is another map in the cell.
    Map,
    /// A node that began with a cached map is registered now; comes before its first [`Self::Map`].
    Joined(Box<RegisterReply>),
    /// Management refuses a node that began with a cached map. Nothing more will come.
    Refused(Error),
    /// Management had forgotten the node, and it has registered again. A client has a new id now,
    /// and its sessions are gone.
    Rejoined(Box<RegisterReply>),
}

impl Membership {
    /// Registers a node; waits for management for as long as `patience` lasts, or for ever.
    ///
    /// # Errors
    /// Management's final answer, such as `AuthenticationFailed` for a wrong token or
    /// `NotPermitted` for an id that belongs to another; `Disconnected` when the patience is at its
    /// end.
    pub async fn join(
        token: &JoinToken,
        mut registration: Registration,
        patience: Option<Duration>,
    ) -> Result<(Rc<Self>, RegisterReply)> {
        let management = Management::new(token, registration.kind());
        let registered = registration.send(&management, patience).await?;
        registration.confirm(&registered);
        let member = Self::new(management, registration, registered.node, registered.map.clone());
        member.is_registered.set(true);
        Ok((member, registered))
    }

    /// Registers a server. If management does not answer and there is a map of before, begins with
    /// that one and gives no registration: [`Self::keep`] registers as soon as management is there.
    /// Without one it waits for ever.
    ///
    /// # Errors
    /// Management's final answer, as [`Self::join`].
    pub async fn begin(
        token: &JoinToken,
        request: RegisterServer,
        kept: Option<ClusterMap>,
    ) -> Result<(Rc<Self>, Option<RegisterReply>)> {
        let RegisterServer { server: ServerRegistration { node, kind, .. }, .. } = request;
        let registration = Registration::Server(request);
        let patience = kept.is_some().then_some(TIMEOUT_WITH_CACHED_MAP);
        let joining = Self::join(token, registration.clone(), patience);
        let Some(kept) = kept else {
            return joining.await.map(|(member, registered)| (member, Some(registered)));
        };
        match skep_env::timeout(TIMEOUT_WITH_CACHED_MAP, joining).await {
            Some(Ok((member, registered))) => Ok((member, Some(registered))),
            Some(Err(error)) if is_final(&error) => Err(error),
            _ => {
                let management = Management::new(token, kind);
                Ok((Self::new(management, registration, node, kept), None))
            }
        }
    }

    fn new(
        management: Rc<Management>,
        registration: Registration,
        node: NodeId,
        map: ClusterMap,
    ) -> Rc<Self> {
        let cell = MapCell::new(map, node);
        management.identity.borrow_mut().node = node;
        *management.cell.borrow_mut() = Some(Arc::clone(&cell));
        Rc::new(Self {
            management,
            registration: RefCell::new(registration),
            cell,
            is_registered: Cell::new(false),
            is_leaving: Cell::new(false),
            settings_changed: Notify::default(),
        })
    }

    /// Who this node is, to its peers.
    pub fn identity(&self) -> Identity {
        self.management.identity.borrow().clone()
    }

    /// The node's id.
    pub fn node(&self) -> NodeId {
        self.management.identity.borrow().node
    }

    /// The newest map, for all threads of the process.
    pub fn map_cell(&self) -> Arc<MapCell> {
        Arc::clone(&self.cell)
    }

    /// Management, for other requests to it.
    pub fn management(&self) -> &Rc<Management> {
        &self.management
    }

    /// Sends heartbeats and takes new maps, for ever; spawn it. `capacities` tells the space on the
    /// node's targets (blocking is not welcome); `on_change` is told what is new.
    pub async fn keep(
        self: Rc<Self>,
        capacities: impl Fn() -> Vec<(TargetId, Capacity)> + 'static,
        on_change: impl Fn(Change) + 'static,
    ) {
        let on_change = Rc::new(on_change);
        if !self.is_registered.get()
            && let Err(error) = self.register_at_last(&*on_change).await
        {
            return on_change(Change::Refused(error));
        }
        let listener = (Rc::clone(&self), Rc::clone(&on_change));
        let _listening = skep_env::spawn(async move {
            let (member, on_change) = listener;
            member.follow_map(&*on_change).await;
        });
        while !self.is_leaving.get() {
            let policy = self.cell.load().policy.clone();
            let heartbeat = Heartbeat {
                node: self.node(),
                known: self.cell.version(),
                capacities: capacities(),
            };
            let lease = Duration::from_millis(u64::from(policy.lease_ms));
            match self.management.call_once(&heartbeat, lease).await {
                Ok(heard) => self.take(heard.map, &*on_change),
                Err(error) if error.code() == ErrorCode::Stale && !self.is_leaving.get() => {
                    self.rejoin(&*on_change).await;
                }
                Err(error) => tracing::debug!("heartbeat: {error}"),
            }
            let interval = Duration::from_millis(u64::from(policy.heartbeat_ms));
            skep_env::timeout(interval, self.settings_changed.wait()).await;
        }
    }

    /// Registers a node that began with a cached map, however long that takes.
    async fn register_at_last(&self, on_change: &impl Fn(Change)) -> Result<()> {
        let registration = self.registration.borrow().clone();
        let registered = registration.send(&self.management, None).await?;
        self.registration.borrow_mut().confirm(&registered);
        self.is_registered.set(true);
        self.management.identity.borrow_mut().node = registered.node;
        self.cell.set_node(registered.node);
        self.cell.replace(registered.map.clone());
        on_change(Change::Joined(Box::new(registered)));
        on_change(Change::Map);
        Ok(())
    }

    /// Tells management that the node ends. Best effort: without it the lease runs out.
    pub async fn leave(&self) {
        self.is_leaving.set(true);
        let left =
            self.management.call_once(&Leave { node: self.node() }, MANAGEMENT_DEADLINE).await;
        if let Err(error) = left {
            tracing::debug!("leaving: {error}");
        }
    }

    /// Waits at management for newer maps, so that changes arrive at once and not with the next
    /// heartbeat.
    async fn follow_map(&self, on_change: &impl Fn(Change)) {
        let mut backoff = FIRST_BACKOFF;
        while !self.is_leaving.get() {
            let request = GetMap { known: self.cell.version() };
            match self.management.call_once(&request, LONG_POLL).await {
                Ok(update) => {
                    self.take(update.map, on_change);
                    backoff = FIRST_BACKOFF;
                }
                // Nothing new in all that time: management answers a little earlier, a dead one
                // doesn't.
                Err(error) => {
                    tracing::debug!("waiting for a newer map: {error}");
                    skep_env::sleep(backoff).await;
                    backoff = (backoff * 2).min(LONGEST_MANAGEMENT_BACKOFF);
                }
            }
        }
    }

    fn take(&self, newer: Option<ClusterMap>, on_change: &impl Fn(Change)) {
        let before = self.cell.version();
        if let Some(map) = newer {
            let is_changed = map.policy != self.cell.load().policy;
            self.cell.update(map);
            if is_changed {
                self.settings_changed.notify();
            }
        }
        if self.cell.version() != before {
            on_change(Change::Map);
        }
    }

    async fn rejoin(&self, on_change: &impl Fn(Change)) {
        let registration = self.registration.borrow().clone();
        let again = match &registration {
            Registration::Server(server) => {
                self.management.call_once(server, MANAGEMENT_DEADLINE).await
            }
            Registration::Client(client) => {
                self.management.call_once(client, MANAGEMENT_DEADLINE).await
            }
        };
        match again {
            Ok(registered) => {
                tracing::warn!(
                    "management did not know this node any more; registered again as {}",
                    registered.node
                );
                self.management.identity.borrow_mut().node = registered.node;
                self.cell.set_node(registered.node);
                self.cell.update(registered.map.clone());
                on_change(Change::Rejoined(Box::new(registered)));
            }
            Err(error) => tracing::warn!("management refuses this node: {error}"),
        }
    }
}
