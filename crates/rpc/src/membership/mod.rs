//! A node's membership in the cluster: registration with management, heartbeats, and the cluster
//! map that management pushes.
//!
//! [`Membership`] is for services. A [`Membership`] registers targets, and may start with a cluster
//! map that the service cached before a restart. [`ClientMembership`] is for clients. The threads
//! of a mount share one [`ClientMembership`], and a client that registers again gets a new id. Both
//! types send their requests through [`Management`].
//!
//! Management is never on the I/O path. While management does not reply, the node uses its current
//! map and retries without limit. A node that management has removed registers again without an
//! administrator.
//!
//! [`Membership`] belongs to one thread; other threads read the map from the shared [`MapCell`].

mod addresses;
mod client;
mod lost_targets;
mod management;
mod map;

pub use client::{ClientEvents, ClientMembership, GAVE_UP, JoinLimits};
pub use management::{Management, management_addresses};

use crate::access::{Identity, JoinToken};
use crate::limits::{HEARTBEAT_DEADLINE, MANAGEMENT_DEADLINE, TIMEOUT_WITH_CACHED_MAP};
use crate::map_cell::MapCell;
use crate::outages::{self, ManagementOutage};
use management::is_final;
use map::{FollowedMap, MapChange};
use skep_metrics::LineLimit;
use skep_types::map::Capacity;
use skep_types::registration::{ServerRegistration, TargetClaim};
use skep_types::{ClusterMap, Error, ErrorCode, GroupId, NodeId, Result, TargetId};
use skep_wire::management::{Heartbeat, Leave, RegisterReply, RegisterServer, TargetReport};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The membership of a service. A service that started with a cached map may not be registered yet.
#[derive(Debug)]
pub struct Membership {
    management: Rc<Management>,
    /// The next registration request, with the ids that management has assigned.
    request: RefCell<RegisterServer>,
    map: FollowedMap,
    /// `false` after a start with a cached map, until management has registered the service.
    is_registered: Cell<bool>,
    is_leaving: Cell<bool>,
    /// Limits the log lines about refused registrations.
    refusals: LineLimit,
}

/// A change that the membership reports to its service.
#[derive(Debug)]
pub enum Change {
    /// The [`MapCell`] contains a different map.
    Map,
    /// The service had started with a cached map, and management has now registered the service.
    /// This change precedes the first [`Self::Map`].
    Joined(Box<RegisterReply>),
    /// The service had started with a cached map, and management has refused the service. The
    /// membership reports no further change after this change.
    Refused(Error),
    /// Management had removed this service from the cluster, and the service has renewed its
    /// registration.
    Rejoined(Box<RegisterReply>),
    /// Management had removed this service from its state, and does not accept its registration.
    /// The service repeats the registration with each heartbeat.
    RefusedAgain(Error),
}

impl Membership {
    /// Registers a service. Waits for management until `patience` has passed; `None` means no
    /// limit.
    ///
    /// # Errors
    /// - Management's final reply, such as `AuthenticationFailed` for a wrong token, or
    ///   `NotPermitted` for an id that belongs to another node.
    /// - The error of the last attempt, such as `Disconnected`, when `patience` has passed.
    /// - `VersionMismatch` if the cluster has a newer feature level than this program.
    pub async fn join(
        token: &JoinToken,
        mut request: RegisterServer,
        patience: Option<Duration>,
    ) -> Result<(Rc<Self>, RegisterReply)> {
        let management = Management::of_node(token, request.server.kind, request.server.node);
        let registered = management.call(&request, patience).await?;
        registered.map.check_feature_level()?;
        confirm(&mut request, &registered);
        let member = Self::new(management, request, registered.node, registered.map.clone());
        member.is_registered.set(true);
        Ok((member, registered))
    }

    /// Registers a service. If management does not reply and there is a cached map, starts with
    /// that map and returns no registration. [`Self::keep`] then registers the service as soon as
    /// management replies. Without a cached map, waits for management without limit.
    ///
    /// # Errors
    /// The error of management's final reply, as for [`Self::join`].
    pub async fn begin(
        token: &JoinToken,
        request: RegisterServer,
        cached: Option<ClusterMap>,
    ) -> Result<(Rc<Self>, Option<RegisterReply>)> {
        let ServerRegistration { node, kind, .. } = request.server;
        let patience = cached.is_some().then_some(TIMEOUT_WITH_CACHED_MAP);
        let mut token = token.clone();
        if let Some(cached) = &cached {
            cached.check_feature_level()?;
            // Also try the addresses in the cached map, because the addresses of management may
            // have changed since the token was written.
            let known = management_addresses(cached).into_iter();
            token.addresses = known.chain(token.addresses).collect();
        }
        let token = &token;
        let joining = Self::join(token, request.clone(), patience);
        let Some(cached) = cached else {
            return joining.await.map(|(member, registered)| (member, Some(registered)));
        };
        match skep_env::timeout(TIMEOUT_WITH_CACHED_MAP, joining).await {
            Some(Ok((member, registered))) => {
                member.map.cell.remember_losses(&cached);
                Ok((member, Some(registered)))
            }
            Some(Err(error)) if is_final(&error) => Err(error),
            _ => {
                let management = Management::of_node(token, kind, node);
                Ok((Self::new(management, request, node, cached), None))
            }
        }
    }

    fn new(
        management: Rc<Management>,
        request: RegisterServer,
        node: NodeId,
        map: ClusterMap,
    ) -> Rc<Self> {
        let cell = MapCell::new(map, node);
        management.set_member(Arc::clone(&cell));
        Rc::new(Self {
            management,
            request: RefCell::new(request),
            map: FollowedMap::new(cell),
            is_registered: Cell::new(false),
            is_leaving: Cell::new(false),
            refusals: LineLimit::default(),
        })
    }

    /// Returns the identity that this node presents to its peers.
    pub fn identity(&self) -> Identity {
        self.management.identity()
    }

    /// Returns the node's id in the cluster.
    pub fn node(&self) -> NodeId {
        self.map.cell.node()
    }

    /// Returns the cell with the newest map, which all threads of the process may read.
    pub fn map_cell(&self) -> Arc<MapCell> {
        Arc::clone(&self.map.cell)
    }

    /// Returns the handle to management, for requests other than registration and heartbeats.
    pub fn management(&self) -> &Rc<Management> {
        &self.management
    }

    /// Sends heartbeats and keeps the cluster map up to date until the node leaves. The caller
    /// spawns this task. `reports` returns the free space and health of the node's targets and must
    /// not block. The task calls `on_change` for each change.
    pub async fn keep(
        self: Rc<Self>,
        reports: impl Fn() -> Vec<TargetReport> + 'static,
        on_change: impl Fn(Change) + 'static,
    ) {
        let on_change = Rc::new(on_change);
        if !self.is_registered.get()
            && let Err(error) = self.register_late(&*on_change).await
        {
            return on_change(Change::Refused(error));
        }
        let (member, changes) = (Rc::clone(&self), Rc::clone(&on_change));
        let _following = skep_env::spawn(async move {
            let is_leaving = || member.is_leaving.get();
            member.map.follow(&member.management, is_leaving, |it| report(it, &*changes)).await;
        });
        let (management, cell) = (Rc::clone(&self.management), self.map_cell());
        let _reporting_losses =
            skep_env::spawn(async move { lost_targets::report(&management, &cell).await });
        let mut outage = ManagementOutage::default();
        // Retry: the node sends a heartbeat at every heartbeat interval of the cluster, until it
        // leaves.
        while !self.is_leaving.get() {
            let (known, newest_node) = (self.map.cell.version(), self.map.cell.load().newest_node);
            let node = self.node();
            // A target may request another heartbeat after this task has collected the targets'
            // reports for the current heartbeat. To notice such a request, the task begins to wait
            // for requests before it collects the reports.
            let requested = self.map.cell.wait_for_heartbeat_request();
            let (targets, waits) = (reports(), outages::waits(skep_env::now()));
            let heartbeat = Heartbeat { node, known, newest_node, targets, waits };
            match self.management.call_once(&heartbeat, heartbeat_timeout(&self.map.cell)).await {
                Ok(reply) => {
                    outage.answered();
                    report(self.map.take(reply.map), &*on_change);
                }
                Err(error) if error.code() == ErrorCode::Stale && !self.is_leaving.get() => {
                    self.register_again(&*on_change).await;
                }
                Err(_) if self.is_leaving.get() => {}
                Err(error) => outage.failed(&error),
            }
            let interval = self.map.cell.load().policy.heartbeat_ms;
            let interval = Duration::from_millis(u64::from(interval));
            let early = futures_lite::future::or(self.map.settings_changed.wait(), requested);
            skep_env::timeout(interval, early).await;
        }
    }

    /// Registers one more target of a registered node. A service calls this function if an
    /// administrator has added the target, or if the directory of the target could not be opened
    /// when the node started. `group` is the last known group of the target; zero means unknown.
    /// Returns the target's id.
    ///
    /// # Errors
    /// - `NotReady` if the node itself is not registered yet.
    /// - The error of management's reply, and errors of the connection.
    pub async fn add_target(
        &self,
        claim: TargetClaim,
        capacity: Capacity,
        group: GroupId,
    ) -> Result<TargetId> {
        if !self.is_registered.get() {
            let problem = "cannot register the target: management has not answered since this node \
                           started";
            return Err(Error::new(ErrorCode::NotReady, problem));
        }
        let mut request = self.request.borrow().clone();
        request.server.node = self.node();
        // Replace the entry of an earlier attempt for the same target. That attempt may have failed
        // after management had registered the target.
        if let Some(at) = request.server.targets.iter().position(|it| it.uuid == claim.uuid) {
            remove_target(&mut request, at);
        }
        request.groups.resize(request.server.targets.len(), GroupId::default());
        request.server.targets.push(claim);
        request.capacities.push(capacity);
        request.groups.push(group);
        let registered = self.management.call_once(&request, MANAGEMENT_DEADLINE).await?;
        confirm(&mut request, &registered);
        *self.request.borrow_mut() = request;
        self.map.cell.update(registered.map);
        registered.targets.last().copied().ok_or_else(|| {
            Error::new(
                ErrorCode::Protocol,
                "cannot register the target: the reply of management does not contain an id for \
                 this target",
            )
        })
    }

    /// Removes a target from all later registrations of the node.
    pub fn forget_target(&self, target: TargetId) {
        let mut request = self.request.borrow_mut();
        let at = request.server.targets.iter().position(|claim| claim.target == target);
        if let Some(at) = at {
            remove_target(&mut request, at);
        }
    }

    /// Registers a node that started with a cached map. Waits for management without limit.
    async fn register_late(&self, on_change: &impl Fn(Change)) -> Result<()> {
        let request = self.request.borrow().clone();
        let registered = self.management.call(&request, None).await?;
        confirm(&mut self.request.borrow_mut(), &registered);
        self.is_registered.set(true);
        self.map.cell.set_node(registered.node);
        self.map.cell.replace(registered.map.clone());
        on_change(Change::Joined(Box::new(registered)));
        on_change(Change::Map);
        Ok(())
    }

    /// Registers a node that management has removed from its state. After an error, the task
    /// repeats the registration with the next heartbeat.
    async fn register_again(&self, on_change: &impl Fn(Change)) {
        let request = self.request.borrow().clone();
        match self.management.call_once(&request, MANAGEMENT_DEADLINE).await {
            Ok(registered) => {
                tracing::warn!(
                    "management had removed this node from the cluster; the node has registered \
                     again as {}",
                    registered.node
                );
                self.map.cell.set_node(registered.node);
                self.map.cell.update(registered.map.clone());
                on_change(Change::Rejoined(Box::new(registered)));
            }
            Err(error) => {
                if self.refusals.is_due(skep_env::now()) {
                    tracing::error!(
                        "management has removed this node from the cluster, and refuses a new \
                         registration of this node: {error}"
                    );
                }
                if is_final(&error) {
                    on_change(Change::RefusedAgain(error));
                }
            }
        }
    }

    /// Reports to management that the node leaves. If management does not reply, the node's lease
    /// expires instead.
    pub async fn leave(&self) {
        self.is_leaving.set(true);
        let request = Leave { node: self.node() };
        if let Err(error) = self.management.call_once(&request, MANAGEMENT_DEADLINE).await {
            tracing::debug!("management did not confirm that this node leaves: {error:#}");
        }
    }
}

/// Stores in `request` the ids that management has assigned, and the groups of the targets, for the
/// next registration. After a restore of management, the targets return to these groups.
fn confirm(request: &mut RegisterServer, registered: &RegisterReply) {
    let RegisterServer { server, groups, .. } = request;
    server.node = registered.node;
    groups.resize(server.targets.len(), GroupId::default());
    let claims = server.targets.iter_mut().zip(groups);
    for ((claim, known), target) in claims.zip(&registered.targets) {
        claim.target = *target;
        if let Some(group) = registered.map.group_of(*target) {
            *known = group.id;
        }
    }
}

/// Removes the target at the index `at` from a registration. The capacities and groups are in the
/// order of the targets.
fn remove_target(request: &mut RegisterServer, at: usize) {
    request.server.targets.remove(at);
    request.capacities.remove(at);
    if at < request.groups.len() {
        request.groups.remove(at);
    }
}

fn report(change: MapChange, on_change: &impl Fn(Change)) {
    if change.map {
        on_change(Change::Map);
    }
}

/// Returns the longest wait for the reply to a heartbeat. This time is at most one lease, because
/// the lease would expire during a longer wait. After this time the sender tries the other
/// addresses of management.
fn heartbeat_timeout(cell: &MapCell) -> Duration {
    let lease = Duration::from_millis(u64::from(cell.load().policy.lease_ms));
    lease.min(HEARTBEAT_DEADLINE)
}
