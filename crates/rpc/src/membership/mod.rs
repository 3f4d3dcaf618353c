//! A node's membership in the cluster: registration with management, heartbeats, and the cluster
//! map that management pushes.
//!
//! [`Membership`] is a service's: it registers targets, and may start with a cluster map that it
//! cached over a restart. [`ClientMembership`] is a client's: it is shared by the threads of a
//! mount, and gets a new id when it registers again. Both use [`Management`].
//!
//! Management is never on the path of I/O: while it does not answer, the node keeps its map and
//! retries for ever. A node that management has removed registers again by itself.
//!
//! [`Membership`] belongs to one thread; other threads read the map from the shared [`MapCell`].

mod client;
mod management;
mod map;

pub use client::{ClientEvents, ClientMembership, JoinLimits};
pub use management::Management;

use crate::access::{Identity, JoinToken};
use crate::limits::{MANAGEMENT_DEADLINE, TIMEOUT_WITH_CACHED_MAP};
use crate::routing::MapCell;
use management::is_final;
use map::{FollowedMap, MapChange};
use skep_types::map::Capacity;
use skep_types::registration::ServerRegistration;
use skep_types::{ClusterMap, Error, ErrorCode, NodeId, Result, TargetId};
use skep_wire::management::{Heartbeat, Leave, RegisterReply, RegisterServer};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// A service that is registered, or that has started with a cached map and is not registered yet.
#[derive(Debug)]
pub struct Membership {
    management: Rc<Management>,
    /// The registration, with the ids that management has assigned.
    request: RefCell<RegisterServer>,
    map: FollowedMap,
    /// `false` after a start with a cached map.
    is_registered: Cell<bool>,
    is_leaving: Cell<bool>,
}

/// A change that the membership reports to its service.
#[derive(Debug)]
pub enum Change {
    /// The cell holds another map.
    Map,
    /// A service that started with a cached map is registered now; comes before its first
    /// [`Self::Map`].
    Joined(Box<RegisterReply>),
    /// Management refuses a service that started with a cached map. No further change follows.
    Refused(Error),
    /// Management did not have this service in its state any more, and it has registered again.
    Rejoined(Box<RegisterReply>),
}

impl Membership {
    /// Registers a service; waits for management until `patience` has passed. `None` means for
    /// ever.
    ///
    /// # Errors
    /// Management's final answer, such as `AuthenticationFailed` for a wrong token or
    /// `NotPermitted` for an id that belongs to another node; `Disconnected` at the end of the
    /// patience.
    pub async fn join(
        token: &JoinToken,
        mut request: RegisterServer,
        patience: Option<Duration>,
    ) -> Result<(Rc<Self>, RegisterReply)> {
        let management = Management::new(token, request.server.kind);
        let registered = management.call(&request, patience).await?;
        confirm(&mut request.server, &registered);
        let member = Self::new(management, request, registered.node, registered.map.clone());
        member.is_registered.set(true);
        Ok((member, registered))
    }

    /// Registers a service. If management does not answer and there is a cached map, starts with
    /// that map and returns no registration: [`Self::keep`] registers as soon as management
    /// answers. Without a cached map it waits for ever.
    ///
    /// # Errors
    /// Management's final answer, as [`Self::join`].
    pub async fn begin(
        token: &JoinToken,
        request: RegisterServer,
        cached: Option<ClusterMap>,
    ) -> Result<(Rc<Self>, Option<RegisterReply>)> {
        let ServerRegistration { node, kind, .. } = request.server;
        let patience = cached.is_some().then_some(TIMEOUT_WITH_CACHED_MAP);
        let joining = Self::join(token, request.clone(), patience);
        let Some(cached) = cached else {
            return joining.await.map(|(member, registered)| (member, Some(registered)));
        };
        match skep_env::timeout(TIMEOUT_WITH_CACHED_MAP, joining).await {
            Some(Ok((member, registered))) => Ok((member, Some(registered))),
            Some(Err(error)) if is_final(&error) => Err(error),
            _ => {
                let management = Management::new(token, kind);
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
        })
    }

    /// The identity of this node towards its peers.
    pub fn identity(&self) -> Identity {
        self.management.identity()
    }

    /// The node's id.
    pub fn node(&self) -> NodeId {
        self.map.cell.node()
    }

    /// The newest map, for all threads of the process.
    pub fn map_cell(&self) -> Arc<MapCell> {
        Arc::clone(&self.map.cell)
    }

    /// Management, for other requests to it.
    pub fn management(&self) -> &Rc<Management> {
        &self.management
    }

    /// Sends heartbeats and follows the map until the node leaves; spawn it. `capacities` returns
    /// the free space of the node's targets, and should not block. `on_change` gets each change.
    pub async fn keep(
        self: Rc<Self>,
        capacities: impl Fn() -> Vec<(TargetId, Capacity)> + 'static,
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
        // Retry: heartbeats, the cluster's heartbeat interval, until the node leaves
        while !self.is_leaving.get() {
            let known = self.map.cell.version();
            let heartbeat = Heartbeat { node: self.node(), known, capacities: capacities() };
            match self.management.call_once(&heartbeat, call_lease(&self.map.cell)).await {
                Ok(reply) => report(self.map.take(reply.map), &*on_change),
                Err(error) if error.code() == ErrorCode::Stale && !self.is_leaving.get() => {
                    self.register_again(&*on_change).await;
                }
                Err(error) => tracing::debug!("management got no heartbeat of this node: {error}"),
            }
            let interval = self.map.cell.load().policy.heartbeat_ms;
            let interval = Duration::from_millis(u64::from(interval));
            skep_env::timeout(interval, self.map.settings_changed.wait()).await;
        }
    }

    /// Registers a node that started with a cached map; waits for management for ever.
    async fn register_late(&self, on_change: &impl Fn(Change)) -> Result<()> {
        let request = self.request.borrow().clone();
        let registered = self.management.call(&request, None).await?;
        confirm(&mut self.request.borrow_mut().server, &registered);
        self.is_registered.set(true);
        self.map.cell.set_node(registered.node);
        self.map.cell.replace(registered.map.clone());
        on_change(Change::Joined(Box::new(registered)));
        on_change(Change::Map);
        Ok(())
    }

    /// Registers a node that management does not have in its state any more. After an error, the
    /// next heartbeat tries again.
    async fn register_again(&self, on_change: &impl Fn(Change)) {
        let request = self.request.borrow().clone();
        match self.management.call_once(&request, MANAGEMENT_DEADLINE).await {
            Ok(registered) => {
                tracing::warn!(
                    "management had removed this node; it has registered again as {}",
                    registered.node
                );
                self.map.cell.set_node(registered.node);
                self.map.cell.update(registered.map.clone());
                on_change(Change::Rejoined(Box::new(registered)));
            }
            Err(error) => {
                tracing::warn!("management had removed this node, and refuses it now: {error}");
            }
        }
    }

    /// Reports to management that the node ends. If management does not answer, the node's lease
    /// expires instead.
    pub async fn leave(&self) {
        self.is_leaving.set(true);
        let request = Leave { node: self.node() };
        if let Err(error) = self.management.call_once(&request, MANAGEMENT_DEADLINE).await {
            tracing::debug!("management did not confirm that this node leaves: {error}");
        }
    }
}

/// Stores the ids that management has assigned, for the next registration.
fn confirm(server: &mut ServerRegistration, registered: &RegisterReply) {
    server.node = registered.node;
    for (claim, target) in server.targets.iter_mut().zip(&registered.targets) {
        claim.target = *target;
    }
}

fn report(change: MapChange, on_change: &impl Fn(Change)) {
    if change.map {
        on_change(Change::Map);
    }
}

/// Time for the reply to a heartbeat: later, the lease that it renews has expired.
fn call_lease(cell: &MapCell) -> Duration {
    Duration::from_millis(u64::from(cell.load().policy.lease_ms))
}
