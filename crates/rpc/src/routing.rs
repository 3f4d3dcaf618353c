//! Sends a request for a group to the member that serves the group. This module is responsible for
//! the retry and fail-over policy for requests to targets. Clients and services use this module.
//! This module is not responsible for the process's cluster map ([`MapCell`]).
//!
//! A call under way goes to another member as soon as a newer map names that member as the primary.
//! The router then ends the connection to the previous primary ([`Router::retire_links`]).
//!
//! The router of a client ends connections that no request has used for some minutes
//! (`routing/idle.rs`).
//!
//! A call waits, reconnects and retries until it has a final reply or its deadline passes. A call
//! without a deadline retries without limit. A retry of a request that modifies data is safe,
//! because the request carries a slot and a sequence number, or is idempotent by its contents.
//!
//! # Invariants
//! A target never has both an open connection and an attempt to connect: see
//! [`Router::check_invariants`].

mod idle;

use crate::access::{Channel, Identity};
use crate::call_options::CallOptions;
use crate::calls::RepeatedCall;
use crate::client::Connection;
use crate::limits::{FIRST_BACKOFF, LONGEST_BACKOFF};
use crate::link::TargetLink;
use crate::map_cell::{MapCell, group_not_in_map};
use crate::outages::{self, RepeatedRequest};
use crate::refusal;
use crate::term::OwnTerm;
use skep_env::IdMap;
use skep_types::map::Consistency;
use skep_types::{
    ClusterMap, Epoch, Error, ErrorCode, GroupId, InodeId, MapVersion, Result, RetryClass, ShardId,
    Target, TargetId, TargetKind,
};
use skep_wire::Request;
use skep_wire::senders::Sender;
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

/// Sends the requests of one thread to groups.
pub struct Router {
    identity: RefCell<Identity>,
    channel: Channel,
    cell: Arc<MapCell>,
    cached: RefCell<Arc<ClusterMap>>,
    links: RefCell<IdMap<TargetId, Rc<TargetLink>>>,
    /// The target whose requests the router sends. `None` for clients and tools.
    own: Option<OwnTerm>,
    /// Whether the task that follows the cluster map has started.
    is_watching: Cell<bool>,
    /// Whether the task that ends idle connections runs.
    is_watching_idle: Cell<bool>,
    /// Reference to this router, for the task that follows the cluster map.
    this: Weak<Self>,
}

impl std::fmt::Debug for Router {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Router({} targets)", self.links.borrow().len())
    }
}

impl Router {
    /// Creates a router for the calling thread, under the node id in `cell`.
    pub fn new(identity: Identity, channel: Channel, cell: Arc<MapCell>) -> Rc<Self> {
        Self::build(identity, channel, cell, None)
    }

    fn build(
        identity: Identity,
        channel: Channel,
        cell: Arc<MapCell>,
        own: Option<OwnTerm>,
    ) -> Rc<Self> {
        let cached = RefCell::new(cell.load());
        let identity = RefCell::new(Identity { node: cell.node(), ..identity });
        Rc::new_cyclic(|this| Self {
            identity,
            channel,
            cell,
            cached,
            links: RefCell::default(),
            own,
            is_watching: Cell::new(false),
            is_watching_idle: Cell::new(false),
            this: Weak::clone(this),
        })
    }

    /// Creates a router for the thread of a target. The requests of the router name the target's
    /// group and its epoch. The router sends no request while another member is the primary of the
    /// group.
    pub fn of_target(identity: Identity, cell: Arc<MapCell>, target: TargetId) -> Rc<Self> {
        Self::build(identity, Channel::of_target(target), cell, Some(OwnTerm::new(target)))
    }

    /// Binds the router to one term of its target as primary, which began in epoch `since`. After
    /// the end of the term the router sends nothing, even if the target becomes the primary for
    /// another term.
    pub fn hold_term(&self, since: Epoch) {
        if let Some(own) = &self.own {
            own.hold(since);
        }
    }

    /// Returns the sender that the requests of this router name.
    ///
    /// # Errors
    /// `Deposed` if the router belongs to a target that is not the primary of its group, or whose
    /// term has ended.
    pub fn sender(&self) -> Result<Sender> {
        self.own.as_ref().map_or(Ok(Sender::default()), |own| own.sender(&self.map()))
    }

    /// Raises the needed map version. Targets must not execute later requests of this process under
    /// an older map.
    pub fn need(&self, version: MapVersion) {
        self.cell.need(version);
    }

    /// Returns the map version that targets must have before they execute requests of this process.
    /// A target also sends this version in its replies, so that its clients require the same
    /// version.
    pub fn needed(&self) -> MapVersion {
        self.cell.needed()
    }

    /// Requests a heartbeat of this node immediately, with the current free space of its targets.
    /// The rate of such heartbeats is limited.
    pub fn request_heartbeat(&self) {
        self.cell.request_heartbeat(skep_env::now());
    }

    /// Returns the newest map.
    pub fn map(&self) -> Arc<ClusterMap> {
        let mut cached = self.cached.borrow_mut();
        if cached.version != self.cell.version() {
            *cached = self.cell.load();
        }
        Arc::clone(&cached)
    }

    /// Returns the group that serves a shard in the newest map.
    ///
    /// # Errors
    /// `StaleMap` if no group serves the shard in the newest map.
    pub fn shard_group(&self, shard: ShardId) -> Result<GroupId> {
        self.map().shard_group(shard).ok_or_else(|| {
            Error::new(
                ErrorCode::StaleMap,
                format!(
                    "no metadata group serves shard {shard}: `skep cluster format` assigns all \
                     shards to groups"
                ),
            )
        })
    }

    /// Sends a request to the metadata group that serves an inode. See [`Self::call`].
    ///
    /// # Errors
    /// Returns the same errors as [`Self::call`].
    pub async fn call_inode<R: Request>(
        &self,
        inode: InodeId,
        request: &R,
        options: CallOptions,
    ) -> Result<R::Reply> {
        let resolve = || self.shard_group(inode.shard());
        self.retry(resolve, request, options).await.map(|(reply, _)| reply)
    }

    /// Sends a request to a group until the group gives a final reply. Returns the reply and the
    /// number of bytes of its bulk data. Cancel-safe: the future may be dropped at any await, but
    /// the group may have executed the request.
    ///
    /// # Errors
    /// - The error of the group's final reply.
    /// - `TimedOut` if the deadline passes; the context contains the last error.
    /// - `Deposed` if the router belongs to a target that is not, or no longer, the primary of its
    ///   group. The target must not pass this error on to a program.
    pub async fn call<R: Request>(
        &self,
        group: GroupId,
        request: &R,
        options: CallOptions,
    ) -> Result<(R::Reply, usize)> {
        self.retry(|| Ok(group), request, options).await
    }

    /// Sends a request once to one member of the group that this router's target leads, and returns
    /// its reply. The caller decides whether to retry the request.
    ///
    /// # Errors
    /// - `Deposed` if this target is not, or no longer, the primary of its group.
    /// - `TimedOut` if the reply does not arrive within `patience`. The connection then ends, so
    ///   that requests do not pile up at a process that is stopped.
    /// - `Disconnected` if another call is connecting to the member. If calls waited for the
    ///   connection, the calls to a host that is down would pile up in the memory of this process.
    ///   Each attempt to connect ends only one call, and the primary sends new calls more often
    ///   than attempts end.
    /// - `Disconnected` if the process of the member has too many connections. `NotReady` has
    ///   another meaning in a reply of a member: the service of the member stops.
    /// - The other errors of [`Connection::call`].
    pub async fn call_member<R: Request>(
        &self,
        member: TargetId,
        request: &R,
        patience: Duration,
    ) -> Result<R::Reply> {
        let (map, sender) = (self.map(), self.sender()?);
        let (group, epoch) = (sender.group, sender.epoch);
        let options =
            CallOptions { group, epoch, sender, time_left: Some(patience), ..Default::default() };
        if self.links.borrow().get(&member).is_some_and(|link| link.is_connecting()) {
            let what = format!(
                "cannot send the request to target {member}: an earlier request is still \
                 connecting to this target"
            );
            return Err(Error::new(ErrorCode::Disconnected, what));
        }
        let connection = self.connection(&map, member).await.map_err(refusal::of_member)?;
        let result = connection.call(request, &options).await;
        self.cell.need(connection.needed_map());
        if let Err(error) = &result
            && (error.code() == ErrorCode::TimedOut
                || error.code().retry_class() == RetryClass::AfterFailover)
        {
            connection.close();
        }
        result.map(|(reply, _)| reply).map_err(|error| error.within(member))
    }

    async fn retry<R: Request>(
        &self,
        resolve: impl Fn() -> Result<GroupId>,
        request: &R,
        mut options: CallOptions,
    ) -> Result<(R::Reply, usize)> {
        let mut begun_at = skep_env::now();
        let deadline = options.time_left.map(|left| begun_at + left);
        let mut backoff = FIRST_BACKOFF;
        let mut repeated = RepeatedRequest::new(begun_at);
        let mut wait: Option<RepeatedCall> = None;
        // Retry: the router sends a request to a group again after a pause of 2 ms, which doubles
        // up to 100 ms, for `CallOptions::time_left`.
        loop {
            let mut group = None;
            let attempt = async {
                let group = *group.insert(resolve()?);
                self.attempt(group, request, &mut options).await
            };
            let result = attempt.await;
            let error = match result {
                Err(error) if error.code().retry_class() != RetryClass::Never => error,
                last => {
                    match group {
                        Some(group) if is_answer(&last) => {
                            outages::answered(group, skep_env::now);
                        }
                        Some(group) if is_lost(&last) => outages::given_up(group),
                        _ => {}
                    }
                    if let Some(wait) = wait {
                        self.end_wait(wait, group.filter(|_| is_answer(&last)), begun_at);
                    }
                    return last;
                }
            };
            self.cell.count_retry();
            if let Some(group) = group {
                repeated.failed(group, &error, skep_env::now());
                let map = self.map();
                let begin = || RepeatedCall::begin(begun_at, group, &map);
                wait.get_or_insert_with(begin).failed(&map, &error);
            }
            let pause = jittered(backoff);
            if let Some(deadline) = deadline {
                let now = skep_env::now();
                if now + pause >= deadline {
                    if let Some(wait) = wait {
                        self.end_wait(wait, None, now);
                    }
                    let context =
                        format!("cannot complete the request in time, despite retries: {error}");
                    return Err(Error::new(ErrorCode::TimedOut, context));
                }
                options.time_left = Some(deadline - now);
            }
            skep_env::sleep(pause).await;
            backoff = (backoff * 2).min(LONGEST_BACKOFF);
            begun_at = skep_env::now();
        }
    }

    /// Stores the ended wait of the running operation for a group that did not answer at first.
    /// `group` is the group that has answered at last, or `None` if no group has answered.
    fn end_wait(&self, wait: RepeatedCall, group: Option<GroupId>, ended_at: Duration) {
        let map = self.map();
        wait.end(group.and_then(|group| map.primary(group)).map(|it| it.id), ended_at);
    }

    async fn attempt<R: Request>(
        &self,
        group: GroupId,
        request: &R,
        options: &mut CallOptions,
    ) -> Result<(R::Reply, usize)> {
        if cfg!(debug_assertions) {
            self.check_invariants();
        }
        self.check_sender(options)?;
        let map = self.map();
        let entry = map.group(group).ok_or_else(|| group_not_in_map(group))?;
        let target = map.primary(group).ok_or_else(|| {
            Error::new(ErrorCode::StaleMap, format!("group {group} has no serving member"))
        })?;
        check_not_lost(target)?;
        let target = target.id;
        options.group = group;
        options.epoch = entry.epoch;
        options.sender = self.sender()?;
        // Requests to metadata targets name no map version, because a metadata target ends the
        // session of a removed client, and then refuses its requests.
        if entry.kind == TargetKind::Storage {
            options.lowest_map = options.lowest_map.max(self.cell.needed());
        }
        let connection = self.connection(&map, target).await?;
        // The process may have received a new id while this task connected, so repeat the check of
        // the id.
        self.check_sender(options)?;
        let result = connection.call(request, options).await;
        self.cell.need(connection.needed_map());
        if let Err(error) = &result
            && error.code().retry_class() == RetryClass::AfterFailover
        {
            connection.close();
            if let (ErrorCode::Disconnected, Some(facts)) = (error.code(), &options.facts) {
                facts.reply_lost.set(true);
            }
        }
        // Add the name of the target to the text of the error, unless the text begins with this
        // name already.
        let names_target =
            |error: &Error| error.context().starts_with(&format!("target {target} "));
        result.map_err(|error| match names_target(&error) {
            true => error,
            false => error.within(format_args!("target {target}")),
        })
    }

    /// Checks that the request may be sent under the process's current node id.
    fn check_sender(&self, options: &CallOptions) -> Result<()> {
        match options.only_as.filter(|node| *node != self.cell.node()) {
            None => Ok(()),
            Some(node) => {
                let text = format!(
                    "cannot send this request as {node}: this node was removed from the cluster \
                     while the request waited"
                );
                Err(Error::new(ErrorCode::Evicted, text))
            }
        }
    }

    /// Returns the open connection to a target, or opens a connection. Concurrent callers share one
    /// attempt to connect.
    ///
    /// # Errors
    /// - `StaleMap` if the target or its node is not in the map.
    /// - The errors of [`Connection::connect`].
    pub async fn connection(&self, map: &ClusterMap, target: TargetId) -> Result<Rc<Connection>> {
        self.take_process_id();
        self.watch_map();
        let link = Rc::clone(self.links.borrow_mut().entry(target).or_default());
        link.begin_term(map, target);
        link.connection(|| self.connect(map, target)).await
    }

    /// Starts the task that follows the cluster map, at the first connection.
    fn watch_map(&self) {
        if self.is_watching.replace(true) {
            return;
        }
        let (router, cell) = (Weak::clone(&self.this), Arc::clone(&self.cell));
        skep_env::spawn(async move {
            loop {
                let change = cell.wait_for_change();
                let Some(router) = router.upgrade() else { return };
                router.retire_links();
                drop(router);
                change.await;
            }
        })
        .detach();
    }

    /// Ends the connections, and the attempts to connect, to targets that are lost or whose group
    /// has another primary in the newest map. The calls under way then fail, or go to the new
    /// primary in the same slot and sequence. These calls do not wait for the process of the
    /// previous primary, which may be stopped while its connection stays open.
    fn retire_links(&self) {
        let map = self.map();
        self.links.borrow_mut().retain(|target, link| {
            let is_lost = map.target(*target).is_some_and(|it| check_not_lost(it).is_err());
            let is_current = link.is_current(&map, *target) && !is_lost;
            if !is_current {
                link.retire();
            }
            is_current
        });
    }

    /// Takes over a changed node id of this process, and closes all connections that authenticated
    /// with the previous id.
    fn take_process_id(&self) {
        let node = self.cell.node();
        if self.identity.borrow().node == node {
            return;
        }
        self.identity.borrow_mut().node = node;
        for (_, link) in self.links.borrow_mut().drain() {
            link.retire();
        }
    }

    /// Checks the connection table.
    ///
    /// # Panics
    /// Panics if a target has both an open connection and an attempt to connect.
    pub fn check_invariants(&self) {
        for (target, link) in &*self.links.borrow() {
            link.check_invariants(*target);
        }
    }

    async fn connect(&self, map: &ClusterMap, target: TargetId) -> Result<Rc<Connection>> {
        let unknown = || {
            Error::new(ErrorCode::StaleMap, format!("target {target} is not in the cluster map"))
        };
        let node = map.target(target).and_then(|it| map.node(it.node)).ok_or_else(unknown)?;
        let identity = self.identity.borrow().clone();
        let connecting =
            Connection::connect_any(&node.addresses, &identity, target, self.channel).await;
        let within = |error: Error| error.within(format_args!("target {target} on {}", node.name));
        let connection = connecting.map_err(within)?;
        connection.set_node(&node.name);
        self.cell.count_connect();
        self.watch_idle_connections();
        Ok(connection)
    }
}

/// Refuses a target that an administrator has marked as lost. The service of a lost target never
/// serves the data again, so a request must not wait for this service.
fn check_not_lost(target: &Target) -> Result<()> {
    if target.consistency != Consistency::Bad {
        return Ok(());
    }
    let what = format!(
        "target {} ({}) was marked as lost, with all bytes of this target; restore the file from a \
         backup, or copy a file that had no bytes on this target (`skep target remove --lost {}` \
         lists the files that lost bytes)",
        target.id,
        target.path,
        target.id.raw()
    );
    Err(Error::new(ErrorCode::TargetLost, what))
}

/// Whether a final result is a reply of the group. `false` means that this process itself has ended
/// the request, after a time limit or because it must not send the request.
fn is_answer<T>(result: &Result<T>) -> bool {
    let own = [ErrorCode::TimedOut, ErrorCode::Evicted, ErrorCode::Deposed, ErrorCode::TargetLost];
    result.as_ref().err().is_none_or(|error| !own.contains(&error.code()))
}

/// Whether a request failed because the target of its group was marked as lost.
fn is_lost<T>(result: &Result<T>) -> bool {
    result.as_ref().err().is_some_and(|error| error.code() == ErrorCode::TargetLost)
}

/// Returns a random time between half of `pause` and the whole `pause`, so that clients do not
/// retry simultaneously.
fn jittered(pause: Duration) -> Duration {
    let half = pause / 2;
    half + half.mul_f64((skep_env::random_u64() % 1024) as f64 / 1024.0)
}
