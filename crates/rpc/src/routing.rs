//! From (request, group) to the member that serves it: holds the cluster map, and **the only retry
//! and fail-over policy** of Skep. For clients and services.
//!
//! A call waits, reconnects and tries again for as long as its deadline allows (for ever, if it has
//! none) until it has a final answer. Requests that modify are safe to repeat: they carry a slot
//! and a sequence, or are idempotent by their contents.

use crate::access::{Channel, Identity};
use crate::client::{CallOptions, Connection};
use crate::limits::{FIRST_BACKOFF, LONGEST_BACKOFF};
use skep_env::local::Notify;
use skep_types::{
    ClusterMap, Error, ErrorCode, GroupId, InodeId, MapVersion, NodeId, Result, RetryClass,
    ShardId, TargetId, TargetKind,
};
use skep_wire::Request;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The newest cluster map that a process has, shared by its threads.
#[derive(Debug)]
pub struct MapCell {
    version: AtomicU64,
    /// The newest map that others rely on, as their replies said.
    needed: AtomicU64,
    /// The id that this process has in the cluster now.
    node: AtomicU32,
    /// Protects the pointer alone; held to clone or replace it.
    map: Mutex<Arc<ClusterMap>>,
}

impl MapCell {
    /// A cell with a first map.
    pub fn new(map: ClusterMap, node: NodeId) -> Arc<Self> {
        Arc::new(Self {
            version: AtomicU64::new(map.version.raw()),
            needed: AtomicU64::new(0),
            node: AtomicU32::new(node.raw()),
            map: Mutex::new(Arc::new(map)),
        })
    }

    /// The newest map.
    pub fn load(&self) -> Arc<ClusterMap> {
        Arc::clone(&self.map.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Version of the newest map.
    pub fn version(&self) -> MapVersion {
        MapVersion::new(self.version.load(Ordering::Acquire))
    }

    /// The oldest map under which requests of this process may be carried out: see
    /// docs/design/0006-fencing.md.
    pub fn needed(&self) -> MapVersion {
        MapVersion::new(self.needed.load(Ordering::Acquire))
    }

    /// Somebody relies on a map of this version.
    pub fn need(&self, version: MapVersion) {
        self.needed.fetch_max(version.raw(), Ordering::AcqRel);
    }

    /// The id that this process has in the cluster now; zero: none.
    pub fn node(&self) -> NodeId {
        NodeId::new(self.node.load(Ordering::Acquire))
    }

    /// The process has another id in the cluster. Connections that were made under the old one are
    /// not used any more.
    pub fn set_node(&self, node: NodeId) {
        self.node.store(node.raw(), Ordering::Release);
    }

    /// Takes a map if it is newer.
    pub fn update(&self, map: ClusterMap) {
        let held = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        if map.version > held.version {
            self.put(held, map);
        }
    }

    /// Takes a map in place of one that was kept over a restart, whichever is newer: management
    /// may have been put back to an older state meanwhile, and what it says counts.
    pub(crate) fn replace(&self, map: ClusterMap) {
        self.put(self.map.lock().unwrap_or_else(PoisonError::into_inner), map);
    }

    fn put(&self, mut held: MutexGuard<'_, Arc<ClusterMap>>, map: ClusterMap) {
        self.version.store(map.version.raw(), Ordering::Release);
        *held = Arc::new(map);
    }
}

#[derive(Default)]
struct Link {
    connection: RefCell<Option<Rc<Connection>>>,
    is_connecting: Cell<bool>,
    connected: Notify,
}

/// Sends requests to groups, from one thread.
pub struct Router {
    identity: RefCell<Identity>,
    channel: Channel,
    cell: Arc<MapCell>,
    cached: RefCell<Arc<ClusterMap>>,
    links: RefCell<HashMap<TargetId, Rc<Link>>>,
}

impl std::fmt::Debug for Router {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Router({} targets)", self.links.borrow().len())
    }
}

impl Router {
    /// A router for this thread, under the id that the process has in the cluster.
    pub fn new(identity: Identity, channel: Channel, cell: Arc<MapCell>) -> Rc<Self> {
        let cached = RefCell::new(cell.load());
        let identity = RefCell::new(Identity { node: cell.node(), ..identity });
        Rc::new(Self { identity, channel, cell, cached, links: RefCell::default() })
    }

    /// Requests of this process must not be carried out under an older map from now on.
    pub fn need(&self, version: MapVersion) {
        self.cell.need(version);
    }

    /// The newest map.
    pub fn map(&self) -> Arc<ClusterMap> {
        let mut cached = self.cached.borrow_mut();
        if cached.version != self.cell.version() {
            *cached = self.cell.load();
        }
        Arc::clone(&cached)
    }

    /// The group that serves a shard now.
    ///
    /// # Errors
    /// `StaleMap` if the map names none (yet).
    pub fn shard_group(&self, shard: ShardId) -> Result<GroupId> {
        self.map().shard_group(shard).ok_or_else(|| {
            Error::new(
                ErrorCode::StaleMap,
                format!(
                    "no metadata group serves shard {shard}: `skep cluster format` assigns them"
                ),
            )
        })
    }

    /// Sends a request to the metadata group that serves an inode. See [`Self::call`].
    ///
    /// # Errors
    /// As [`Self::call`].
    pub async fn call_inode<R: Request>(
        &self,
        inode: InodeId,
        request: &R,
        options: CallOptions,
    ) -> Result<R::Reply> {
        let resolve = || self.shard_group(inode.shard());
        self.retry(resolve, request, options).await.map(|(reply, _)| reply)
    }

    /// Sends a request to a group, until it has a final answer; gives the reply and the number of
    /// bytes of bulk data that came with it. Cancel-safe: a dropped call may have been carried out.
    ///
    /// # Errors
    /// The final answer of the group; `TimedOut` when the deadline passes, with the last obstacle
    /// in its context.
    pub async fn call<R: Request>(
        &self,
        group: GroupId,
        request: &R,
        options: CallOptions,
    ) -> Result<(R::Reply, usize)> {
        self.retry(|| Ok(group), request, options).await
    }

    async fn retry<R: Request>(
        &self,
        resolve: impl Fn() -> Result<GroupId>,
        request: &R,
        mut options: CallOptions,
    ) -> Result<(R::Reply, usize)> {
        let deadline = options.time_left.map(|left| skep_env::now() + left);
        let mut backoff = FIRST_BACKOFF;
        loop {
            let attempt = async {
                let group = resolve()?;
                self.attempt(group, request, &mut options).await
            };
            let error = match attempt.await {
                Ok(reply) => return Ok(reply),
                Err(error) if error.code().retry_class() == RetryClass::Never => return Err(error),
                Err(error) => error,
            };
            let pause = jittered(backoff);
            if let Some(deadline) = deadline {
                let now = skep_env::now();
                if now + pause >= deadline {
                    let context = format!("gave up after retries: {error}");
                    return Err(Error::new(ErrorCode::TimedOut, context));
                }
                options.time_left = Some(deadline - now);
            }
            skep_env::sleep(pause).await;
            backoff = (backoff * 2).min(LONGEST_BACKOFF);
        }
    }

    async fn attempt<R: Request>(
        &self,
        group: GroupId,
        request: &R,
        options: &mut CallOptions,
    ) -> Result<(R::Reply, usize)> {
        self.check_sender(options)?;
        let map = self.map();
        let unknown =
            |what: &str| Error::new(ErrorCode::StaleMap, format!("group {group}: {what}"));
        let entry = map.group(group).ok_or_else(|| unknown("not in the cluster map"))?;
        let target = map.primary(group).ok_or_else(|| unknown("no member serves it"))?.id;
        options.group = group;
        options.epoch = entry.epoch;
        // Metadata has its sessions: it need not know who was removed elsewhere.
        if entry.kind == TargetKind::Storage {
            options.lowest_map = options.lowest_map.max(self.cell.needed());
        }
        let connection = self.connection(&map, target).await?;
        // A connection that was made under an older id is refused at its other end.
        self.check_sender(options)?;
        let result = connection.call(request, options).await;
        self.cell.need(connection.needed_map());
        if let Err(error) = &result
            && error.code().retry_class() == RetryClass::AfterFailover
        {
            connection.close();
            if let (ErrorCode::Disconnected, Some(lost)) = (error.code(), &options.reply_lost) {
                lost.set(true);
            }
        }
        result.map_err(|error| error.within(target))
    }

    /// Checks that a request may go out under the id that the process has now.
    fn check_sender(&self, options: &CallOptions) -> Result<()> {
        match options.only_as.filter(|node| *node != self.cell.node()) {
            None => Ok(()),
            Some(node) => {
                let text = format!("it was to be sent by {node}, which was removed meanwhile");
                Err(Error::new(ErrorCode::Evicted, text))
            }
        }
    }

    /// The open connection to a target, or a new one. Callers that come while one is being made
    /// wait for it instead of making another.
    ///
    /// # Errors
    /// `StaleMap` if the target or its node isn't in the map, or as [`Connection::connect`].
    pub async fn connection(&self, map: &ClusterMap, target: TargetId) -> Result<Rc<Connection>> {
        self.be_as_the_process();
        let link = Rc::clone(self.links.borrow_mut().entry(target).or_default());
        loop {
            if let Some(open) = link.connection.borrow().as_ref().filter(|it| !it.is_closed()) {
                return Ok(Rc::clone(open));
            }
            if !link.is_connecting.replace(true) {
                break;
            }
            link.connected.wait().await;
        }
        // Resets the flag even if this future is dropped while it connects.
        let _reset = Connecting(Rc::clone(&link));
        let connection = self.connect(map, target).await?;
        *link.connection.borrow_mut() = Some(Rc::clone(&connection));
        Ok(connection)
    }

    /// Takes the id that the process has now; ends connections that were made under another.
    fn be_as_the_process(&self) {
        let node = self.cell.node();
        if self.identity.borrow().node == node {
            return;
        }
        self.identity.borrow_mut().node = node;
        for (_, link) in self.links.borrow_mut().drain() {
            if let Some(connection) = link.connection.take() {
                connection.close();
            }
        }
    }

    async fn connect(&self, map: &ClusterMap, target: TargetId) -> Result<Rc<Connection>> {
        let unknown =
            || Error::new(ErrorCode::StaleMap, format!("{target} is not in the cluster map"));
        let node = map.target(target).and_then(|it| map.node(it.node)).ok_or_else(unknown)?;
        let identity = self.identity.borrow().clone();
        let mut last = Error::new(
            ErrorCode::Disconnected,
            format!("node {} ({}) has no address", node.id, node.name),
        );
        for address in &node.addresses {
            match Connection::connect(address, &identity, target, self.channel).await {
                Ok(connection) => return Ok(connection),
                Err(error) => last = error,
            }
        }
        Err(last.within(format_args!("{target} on {}", node.name)))
    }
}

struct Connecting(Rc<Link>);

impl Drop for Connecting {
    fn drop(&mut self) {
        self.0.is_connecting.set(false);
        self.0.connected.notify();
    }
}

/// Between half of a pause and all of it, so that many clients don't come back at once.
fn jittered(pause: Duration) -> Duration {
    let half = pause / 2;
    half + half.mul_f64((skep_env::random_u64() % 1024) as f64 / 1024.0)
}
