//! A client's membership: registration with a time limit, heartbeats, and registration under a new
//! id after management has removed the client.
//!
//! All threads of a mount share one [`ClientMembership`]. One of the threads runs
//! [`ClientMembership::keep`]. Any thread may notice the removal of the client (storage replies
//! `Evicted`) and start the new registration. This module does not change file handles. The client
//! must fence its file handles before it registers again (docs/design/0006-fencing.md).

use super::management::is_final;
use super::map::{FollowedMap, MapChange};
use super::{Management, heartbeat_timeout};
use crate::access::{Identity, JoinToken};
use crate::limits::{
    CLIENT_JOIN_PAUSE, LEAST_TIME_OF_AN_ID, LONGEST_MANAGEMENT_BACKOFF, MANAGEMENT_DEADLINE,
};
use crate::map_cell::MapCell;
use crate::outages::{self, ManagementOutage};
use skep_env::SharedNotify;
use skep_types::map::Capacity;
use skep_types::{ClusterMap, Error, ErrorCode, MapVersion, NodeId, NodeKind, Result};
use skep_wire::management::{
    ConfirmLogLevel, GetMap, Heartbeat, HeartbeatReply, Leave, LogLevelChange, RegisterClient,
    RegisterReply,
};
use skep_wire::node::LogLevel;
use skep_wire::senders::Sender;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Limits after which a client stops trying to join.
#[derive(Debug, Clone, Copy)]
pub struct JoinLimits {
    /// Time limit for all attempts together; `None` means no limit.
    pub patience: Option<Duration>,
    /// Whether the client waits until the cluster is formatted.
    pub needs_format: bool,
}

/// Callbacks for events of a client's membership. Each method must return without blocking.
pub trait ClientEvents {
    /// The reply to a heartbeat has reported the free space of the whole cluster. `None` means that
    /// management does not have the reports of all targets yet.
    fn on_capacity(&self, capacity: Option<Capacity>);

    /// The cluster's settings have changed. Leases and intervals may be shorter than before the
    /// change.
    fn on_settings_changed(&self);

    /// Management has removed this client, whose id was `removed`. The client must fence its
    /// handles and register again: see [`ClientMembership::begin_rejoin`]. The method is called at
    /// each heartbeat until the client has a new id.
    fn on_removed(&self, removed: NodeId);

    /// Changes the log level of this process and returns the new level. `None` for `level` changes
    /// nothing.
    ///
    /// # Errors
    /// - `InvalidArgument` if `level` is not a log level.
    /// - `Unsupported` if the process has no log.
    fn change_log_level(&self, level: Option<&str>) -> Result<LogLevel>;
}

/// The membership of a client, shared by all threads of its process.
#[derive(Debug)]
pub struct ClientMembership {
    token: JoinToken,
    request: RegisterClient,
    cell: Arc<MapCell>,
    /// The latest removed id of this client for which a thread has started a new registration.
    removed: AtomicU32,
    /// Time of the last registration under a new id, in milliseconds of `skep_env::now`.
    joined_again_ms: AtomicU64,
    is_leaving: AtomicBool,
    /// Notifies waiting tasks when the client has a new id, and when the client begins to leave.
    changed: SharedNotify,
}

/// Text in the error context when a client gives up after [`JoinLimits::patience`]. The time in
/// seconds follows this text.
pub const GAVE_UP: &str = "; gave up after ";

impl ClientMembership {
    /// Registers a client. Retries after transient errors until a limit of `limits` is reached, and
    /// logs each kind of error once.
    ///
    /// # Errors
    /// Without a retry:
    ///
    /// - Management's final reply, such as `AuthenticationFailed`.
    /// - `VersionMismatch` if the cluster has a newer feature level than this program.
    /// - `Configuration` for a token without addresses.
    ///
    /// With [`GAVE_UP`] and the time at the end of the context, after the client has retried for
    /// `patience`:
    ///
    /// - `Disconnected` or `TimedOut` if management does not reply.
    /// - `NotReady` if the client needs a formatted cluster and the cluster is not formatted.
    pub async fn join(
        token: JoinToken,
        request: RegisterClient,
        limits: JoinLimits,
    ) -> Result<Arc<Self>> {
        if token.addresses.is_empty() {
            let context = "cannot connect to management: the token does not contain the address of \
                           management";
            return Err(Error::new(ErrorCode::Configuration, context));
        }
        let management = Management::new(&token, NodeKind::Client);
        let registered = register_until(&management, &request, limits).await?;
        if let Err(error) = registered.map.check_feature_level() {
            leave(&management, registered.node).await;
            return Err(error);
        }
        Ok(Arc::new(Self {
            token,
            request,
            cell: MapCell::new(registered.map, registered.node),
            removed: AtomicU32::new(0),
            joined_again_ms: AtomicU64::new(0),
            is_leaving: AtomicBool::new(false),
            changed: SharedNotify::default(),
        }))
    }

    /// Returns the client's id in the cluster.
    pub fn node(&self) -> NodeId {
        self.cell.node()
    }

    /// Returns the newest cluster map.
    pub fn map(&self) -> Arc<ClusterMap> {
        self.cell.load()
    }

    /// Returns the cell with the newest cluster map.
    pub fn map_cell(&self) -> Arc<MapCell> {
        Arc::clone(&self.cell)
    }

    /// Returns the identity that the client presents to its peers.
    pub fn identity(&self) -> Identity {
        Identity {
            cluster: self.token.cluster,
            secrets: self.token.secrets.clone(),
            node: self.node(),
            kind: NodeKind::Client,
        }
    }

    /// Returns a new handle to management, for use by the calling thread.
    pub fn management(&self) -> Rc<Management> {
        Management::of_member(&self.token, NodeKind::Client, self.map_cell())
    }

    /// Ends heartbeats, map updates and attempts to renew the registration. Management still counts
    /// the client as a member until [`Self::leave`]. Returns `false` if the client was leaving
    /// already.
    pub fn begin_leave(&self) -> bool {
        let is_first = !self.is_leaving.swap(true, Ordering::AcqRel);
        self.changed.notify();
        is_first
    }

    /// Whether [`Self::begin_leave`] or [`Self::leave`] has been called.
    pub fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::Acquire)
    }

    /// Waits until this client has an id other than `removed`, or is leaving.
    pub async fn wait_for_new_id(&self, removed: NodeId) {
        let is_over = || (self.node() != removed || self.is_leaving()).then_some(());
        self.changed.wait_until(is_over).await;
    }

    /// Claims the new registration after a removal. Returns `true` to exactly one caller for each
    /// removed id. That caller must first fence the client's handles, and then run
    /// [`Self::register_again`] as a separate task, because all threads wait for the new
    /// registration. Returns `false` if another thread has claimed the registration.
    pub fn begin_rejoin(&self, removed: NodeId) -> bool {
        self.node() == removed
            && self.removed.swap(removed.raw(), Ordering::AcqRel) != removed.raw()
    }

    /// Returns whether the client has learned that management has removed its id `node`.
    pub fn was_removed(&self, node: NodeId) -> bool {
        self.node() != node || self.removed.load(Ordering::Acquire) == node.raw()
    }

    /// Registers the client under a new id, after [`Self::begin_rejoin`] returned `true`. Retries
    /// until management accepts the registration or the client leaves. A client gets at most one
    /// new id in each [`LEAST_TIME_OF_AN_ID`].
    pub async fn register_again(&self) {
        let joined = Duration::from_millis(self.joined_again_ms.load(Ordering::Acquire));
        if !joined.is_zero() {
            let since = skep_env::now().saturating_sub(joined);
            skep_env::sleep(LEAST_TIME_OF_AN_ID.saturating_sub(since)).await;
        }
        let mut management = self.management();
        let mut logged = None;
        // Retry: a removed client tries to register again every `CLIENT_JOIN_PAUSE`, until the
        // client leaves.
        while !self.is_leaving() {
            match management.call_once(&self.request, MANAGEMENT_DEADLINE).await {
                Ok(registered) => {
                    self.cell.update(registered.map);
                    self.cell.set_node(registered.node);
                    let now = skep_env::now().as_millis() as u64;
                    self.joined_again_ms.store(now, Ordering::Release);
                    self.changed.notify();
                    return;
                }
                Err(error) => {
                    if logged != Some(error.code()) {
                        tracing::warn!(
                            "cannot renew the registration of this client yet: {error}; the client \
                             retries"
                        );
                        logged = Some(error.code());
                    }
                    if error.code() == ErrorCode::AuthenticationFailed {
                        // The connection authenticated with a revoked secret. A new connection uses
                        // the secret that is in the token file now.
                        management = self.management();
                    }
                    skep_env::sleep(CLIENT_JOIN_PAUSE).await;
                }
            }
        }
    }

    /// Reports to management that the client leaves, and stops the heartbeats. If management does
    /// not receive this report, management removes the client when the client's lease expires.
    pub async fn leave(&self) {
        self.begin_leave();
        leave(&self.management(), self.node()).await;
    }

    /// Sends heartbeats and keeps the cluster map up to date until the client leaves. The caller
    /// spawns this task on one thread. Without this task, the client's lease expires.
    pub async fn keep(self: Arc<Self>, events: Rc<impl ClientEvents + 'static>) {
        let management = self.management();
        let map = Rc::new(FollowedMap::new(self.map_cell()));
        let following = {
            let (member, events) = (Arc::clone(&self), Rc::clone(&events));
            let (management, map) = (Rc::clone(&management), Rc::clone(&map));
            async move {
                let on_change = |change| report(&*events, change);
                map.follow(&management, || member.is_leaving(), on_change).await;
            }
        };
        let heartbeats = {
            let member = Arc::clone(&self);
            async move { member.send_heartbeats(&management, &map, &*events).await }
        };
        let _tasks = [skep_env::spawn(following), skep_env::spawn(heartbeats)];
        self.changed.wait_until(|| self.is_leaving().then_some(())).await;
    }

    async fn send_heartbeats(
        &self,
        management: &Management,
        map: &FollowedMap,
        events: &impl ClientEvents,
    ) {
        let mut outage = ManagementOutage::default();
        // A heartbeat after `leave` would get the reply `Stale`, and the client would renew its
        // registration. So this loop ends when the client leaves.
        //
        // Retry: the client sends a heartbeat at every heartbeat interval of the cluster, until it
        // leaves.
        while !self.is_leaving() {
            let node = self.node();
            match self.send_heartbeat(management, node, map, events).await {
                Ok(()) => outage.answered(),
                Err(error) if error.code() == ErrorCode::Stale => {
                    outage.answered();
                    if !self.is_leaving() {
                        events.on_removed(node);
                    }
                }
                Err(_) if self.is_leaving() => {}
                Err(error) => outage.failed(&error),
            }
            let interval = Duration::from_millis(u64::from(self.map().policy.heartbeat_ms));
            skep_env::timeout(interval, map.settings_changed.wait()).await;
        }
    }

    async fn send_heartbeat(
        &self,
        management: &Management,
        node: NodeId,
        map: &FollowedMap,
        events: &impl ClientEvents,
    ) -> Result<()> {
        let (known, newest_node) = (self.cell.version(), self.cell.load().newest_node);
        let waits = outages::waits(skep_env::now());
        let heartbeat = Heartbeat { node, known, newest_node, targets: Vec::new(), waits };
        let reply = management.call_once(&heartbeat, heartbeat_timeout(&self.cell)).await?;
        let HeartbeatReply { capacity, log_level_change, map: newer } = reply;
        events.on_capacity(capacity);
        report(events, map.take(newer));
        if let Some(change) = log_level_change {
            let confirmation = change_log_level(node, change, events);
            management.call_once(&confirmation, MANAGEMENT_DEADLINE).await?;
        }
        Ok(())
    }
}

fn report(events: &impl ClientEvents, change: MapChange) {
    if change.settings {
        events.on_settings_changed();
    }
}

fn change_log_level(
    client: NodeId,
    change: LogLevelChange,
    events: &impl ClientEvents,
) -> ConfirmLogLevel {
    let result = events.change_log_level(change.level.as_deref());
    let refusal = result.as_ref().err().map(|error| error.context().to_owned());
    ConfirmLogLevel {
        client,
        number: change.number,
        level: result.ok(),
        refusal: refusal.unwrap_or_default(),
    }
}

async fn leave(management: &Management, node: NodeId) {
    if let Err(error) = management.call_once(&Leave { node }, MANAGEMENT_DEADLINE).await {
        tracing::debug!("management did not confirm that client {node} leaves: {error:#}");
    }
}

async fn register_until(
    management: &Management,
    request: &RegisterClient,
    limits: JoinLimits,
) -> Result<RegisterReply> {
    let deadline = limits.patience.map(|patience| skep_env::now() + patience);
    let span = match limits.patience {
        Some(patience) => format!("for up to {} s", patience.as_secs_f64()),
        None => "without a time limit".into(),
    };
    let mut logged = Vec::new();
    let mut pause = CLIENT_JOIN_PAUSE;
    let mut attempt = RegistrationAttempt::new(management);
    // Retry: a client tries again to register after a pause of 250 ms, which doubles up to 1 s, for
    // `JoinLimits::patience`.
    loop {
        let error = match register_once(management, request, limits, &mut attempt).await {
            Ok(registered) => return Ok(registered),
            Err(error) if is_final(&error) => return Err(error),
            Err(error) => error,
        };
        let left = deadline.map(|deadline| deadline.saturating_sub(skep_env::now()));
        if left.is_some_and(|left| left.is_zero()) {
            let seconds = limits.patience.unwrap_or_default().as_secs_f64();
            let context = format!("{}{GAVE_UP}{seconds} s", error.context());
            return Err(Error::new(error.code(), context));
        }
        if !logged.contains(&error.code()) {
            logged.push(error.code());
            tracing::warn!("cannot mount yet: {error}; this mount retries {span}");
        }
        // The last attempt starts at the deadline, not before the deadline.
        skep_env::sleep(left.unwrap_or(pause).min(pause)).await;
        pause = (pause * 2).min(LONGEST_MANAGEMENT_BACKOFF);
    }
}

/// The state of a registration that the next attempt needs.
struct RegistrationAttempt {
    /// Id of the request. A retry after a lost reply gets the client id of the first attempt.
    number: u64,
    /// Whether the cluster was not formatted at the last attempt.
    awaits_format: bool,
}

impl RegistrationAttempt {
    fn new(management: &Management) -> Self {
        Self { number: management.new_request(), awaits_format: false }
    }
}

/// Makes one attempt to register. If the client needs a formatted cluster and the cluster is not
/// formatted, the client leaves the cluster. The client's later attempts check the map before they
/// register, because each new registration uses a new client id.
async fn register_once(
    management: &Management,
    request: &RegisterClient,
    limits: JoinLimits,
    attempt: &mut RegistrationAttempt,
) -> Result<RegisterReply> {
    let not_formatted = || {
        let context = "the cluster is not formatted: start its metadata services, then run `skep \
                       cluster format`";
        Error::new(ErrorCode::NotReady, context)
    };
    if attempt.awaits_format {
        let any = GetMap { known: MapVersion::new(0) };
        let update = management.call_once(&any, MANAGEMENT_DEADLINE).await?;
        if !update.map.is_some_and(|map| map.formatted) {
            return Err(not_formatted());
        }
    }
    let sending =
        management.attempt(Sender::default(), attempt.number, request, MANAGEMENT_DEADLINE);
    let registered = sending.await?;
    if registered.map.formatted || !limits.needs_format {
        return Ok(registered);
    }
    *attempt = RegistrationAttempt { awaits_format: true, ..RegistrationAttempt::new(management) };
    leave(management, registered.node).await;
    Err(not_formatted())
}
