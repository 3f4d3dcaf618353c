//! What all threads of a mount share: who it is to the cluster, the newest map, sessions, open
//! files.

pub(crate) mod background;
pub(crate) mod eviction;

use crate::attributes::xattr::Plain;
use crate::cache::recent::Recent;
use crate::cache::versions::KeptCaches;
use crate::files::handles::{Handles, Inodes};
use crate::inode_state::InodeState;
use crate::limits::{
    CAPACITY_POLL, LONGEST_MANAGEMENT_PAUSE, MANAGEMENT_PATIENCE, MANAGEMENT_PAUSE,
    MAX_REMEMBERED_PLAIN, MAX_REMEMBERED_SPECIAL,
};
use crate::locks::deadlock::DeadlockSearch;
use crate::locks::file_locks::FileLocks;
use crate::session::table::GroupSessions;
use crate::sharing::notifications::Notifications;
use skep_rpc::{CallOptions, Channel, Connection, Identity, JoinToken, MapCell};
use skep_types::map::Capacity;
use skep_types::{
    Attributes, ClusterMap, Error, ErrorCode, InodeId, NodeId, NodeKind, Result, RetryClass,
    TargetId, TargetKind,
};
use skep_wire::Request;
use skep_wire::management::{RegisterClient, RegisterReply};
use skep_wire::node::LogLevel;
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How to reach a cluster, and the proof that we may.
#[derive(Debug, Clone)]
pub struct ClusterAccess {
    /// Which cluster, and its secret.
    pub token: JoinToken,
    /// Where management listens, `host:port`, tried in order.
    pub addresses: Vec<String>,
}

impl From<JoinToken> for ClusterAccess {
    /// With the addresses that stand in the token.
    fn from(token: JoinToken) -> Self {
        Self { addresses: token.addresses.clone(), token }
    }
}

/// How to mount.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// Which cluster.
    pub cluster: ClusterAccess,
    /// Where it is mounted, for people.
    pub mount_point: String,
    /// Name of this host, for people.
    pub host: String,
    /// Version of the program, for people.
    pub version: String,
    /// Threads that will have a [`crate::Client`] each.
    pub workers: usize,
    /// How long to try while management can't be reached or the cluster isn't formatted yet; none:
    /// for ever.
    pub patience: Option<Duration>,
    /// What says how long that is, for who waited in vain; empty: nobody can change it.
    pub patience_set_by: &'static str,
    /// The log of this process, for management.
    pub log: LogControl,
}

/// What changes or tells what this process logs, as `SetLogLevel` asks for it.
type ChangeLog = dyn Fn(Option<&str>) -> Result<LogLevel> + Send + Sync;

/// A process's log, as the mount knows it; none by default.
#[derive(Clone, Default)]
pub struct LogControl(pub Option<Arc<ChangeLog>>);

impl LogControl {
    /// Changes what is logged, or only tells it.
    ///
    /// # Errors
    /// `InvalidArgument` for what isn't a level; `Unsupported` if there is no log.
    pub(crate) fn change(&self, level: Option<&str>) -> Result<LogLevel> {
        let none = || Error::new(ErrorCode::Unsupported, "this client has no log");
        self.0.as_ref().ok_or_else(none)?(level)
    }
}

impl std::fmt::Debug for LogControl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LogControl")
    }
}

/// Makes the kernel forget the attributes that it has of an inode. Never blocks.
pub struct Forget(pub Box<dyn Fn(InodeId) + Send + Sync>);

impl std::fmt::Debug for Forget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Forget")
    }
}

/// Shared by all threads of a mount.
#[derive(Debug)]
pub struct Mount {
    pub(crate) options: MountOptions,
    pub(crate) cell: Arc<MapCell>,
    pub(crate) sessions: GroupSessions,
    pub(crate) handles: Handles,
    pub(crate) inodes: Inodes,
    pub(crate) caches: KeptCaches,
    pub(crate) locks: Arc<FileLocks>,
    pub(crate) deadlock: DeadlockSearch,
    pub(crate) notifications: Notifications,
    /// Makes the kernel ask for a file's attributes anew. Protects the value alone.
    forget: Mutex<Option<Arc<Forget>>>,
    /// Attributes of directories, pipes, sockets and devices as they were last seen, for those that
    /// are removed while a program has them open: the kernel doesn't tell of their opens.
    pub(crate) special: Recent<Attributes>,
    /// The root, as it was last seen. Protects the value alone.
    root: Mutex<Option<Attributes>>,
    /// Inodes without the extended attributes that the kernel asks for by itself.
    pub(crate) plain: Recent<Plain>,
    /// Room in the whole cluster, as management told it last. Protects the value alone.
    capacity: Mutex<Option<Capacity>>,
    /// When it was registered first.
    begun: Duration,
    /// Protects the set alone: workers that have their client.
    taken_workers: Mutex<HashSet<usize>>,
    /// The last id of this client that was removed from the cluster.
    evicted: AtomicU32,
    is_ending: AtomicBool,
}

impl Mount {
    /// Registers this process as a client. Call it inside `skep_env::block_on`, on any thread.
    ///
    /// # Errors
    /// `AuthenticationFailed`, `VersionMismatch` and whatever else time doesn't mend at once; after
    /// `patience`, `Disconnected` or `TimedOut` when management can't be reached, and `NotReady`
    /// when the cluster isn't formatted.
    pub async fn new(options: MountOptions) -> Result<Arc<Self>> {
        let registered = Self::register_patiently(&options).await?;
        Ok(Arc::new(Self {
            cell: MapCell::new(registered.map, registered.node),
            sessions: GroupSessions::default(),
            handles: Handles::new(),
            inodes: Inodes::new(),
            caches: KeptCaches::new(),
            locks: Arc::default(),
            deadlock: DeadlockSearch::default(),
            notifications: Notifications::default(),
            forget: Mutex::default(),
            special: Recent::new(MAX_REMEMBERED_SPECIAL),
            root: Mutex::default(),
            plain: Recent::new(MAX_REMEMBERED_PLAIN),
            capacity: Mutex::default(),
            begun: skep_env::now(),
            taken_workers: Mutex::default(),
            evicted: AtomicU32::new(0),
            is_ending: AtomicBool::new(false),
            options,
        }))
    }

    /// Registers; tries as long as it may for what passes, and logs once for each kind of obstacle
    /// what is waited for.
    async fn register_patiently(options: &MountOptions) -> Result<RegisterReply> {
        let deadline = options.patience.map(|patience| skep_env::now() + patience);
        let span = match options.patience {
            Some(patience) => format!("for {} s in all", patience.as_secs_f64()),
            None => "without end".into(),
        };
        let mut told = Vec::new();
        let mut pause = MANAGEMENT_PAUSE;
        loop {
            let error = match Self::register(options).await {
                Ok(registered) if registered.map.formatted => return Ok(registered),
                Ok(registered) => {
                    Self::leave(options, registered.node).await;
                    Error::new(
                        ErrorCode::NotReady,
                        "the cluster is not formatted: start its metadata services, then run \
                         `skep cluster format`",
                    )
                }
                Err(error) => error,
            };
            if !passes(error.code()) {
                return Err(error);
            }
            let left = deadline.map(|deadline| deadline.saturating_sub(skep_env::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(given_up(&error, &span, options.patience_set_by));
            }
            if !told.contains(&error.code()) {
                told.push(error.code());
                tracing::warn!("{error}; trying on, {span}");
            }
            // The last try is made when the time is over, not before.
            skep_env::sleep(left.unwrap_or(pause).min(pause)).await;
            pause = (pause * 2).min(LONGEST_MANAGEMENT_PAUSE);
        }
    }

    async fn register(options: &MountOptions) -> Result<RegisterReply> {
        let connection = connect_to_management(&options.cluster, NodeId::default()).await?;
        let request = RegisterClient {
            host: options.host.clone(),
            mount_point: options.mount_point.clone(),
            version: options.version.clone(),
            pid: std::process::id(),
        };
        ask(&connection, &request).await
    }

    /// Tells management that a client ends. If that fails, its lease does the same later.
    async fn leave(options: &MountOptions, node: NodeId) {
        let left = async {
            let connection = connect_to_management(&options.cluster, node).await?;
            ask(&connection, &skep_wire::management::Leave { node }).await
        };
        if let Err(error) = left.await {
            tracing::debug!("management was not told that {node} leaves: {error}");
        }
    }

    /// Registers anew, after this client was removed from the cluster.
    pub(crate) async fn register_again(&self) -> Result<()> {
        let registered = Self::register(&self.options).await?;
        self.cell.update(registered.map);
        self.cell.set_node(registered.node);
        Ok(())
    }

    /// Notes what a directory or another special file is like.
    pub(crate) fn note_special(&self, attributes: &Attributes) {
        if attributes.inode == InodeId::ROOT {
            *self.root.lock().unwrap_or_else(PoisonError::into_inner) = Some(attributes.clone());
        }
        self.special.note(attributes.inode, attributes.clone());
    }

    /// The root, as it was last seen.
    pub(crate) fn seen_root(&self) -> Option<Attributes> {
        self.root.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes that an id of this client was removed; `false` if that was noted before.
    pub(crate) fn begin_rejoining(&self, evicted: NodeId) -> bool {
        self.evicted.swap(evicted.raw(), Ordering::AcqRel) != evicted.raw()
    }

    pub(crate) async fn leave_cluster(&self) {
        Self::leave(&self.options, self.node()).await;
    }

    /// This client's id in the cluster.
    pub fn node(&self) -> NodeId {
        self.cell.node()
    }

    /// The newest map.
    pub fn map(&self) -> Arc<ClusterMap> {
        self.cell.load()
    }

    /// How the kernel is made to forget attributes, from now on.
    pub fn set_forget(&self, forget: Forget) {
        let mut held = self.forget.lock().unwrap_or_else(PoisonError::into_inner);
        *held = Some(Arc::new(forget));
    }

    /// Notes that a file is shared with other clients; what the kernel knows of its end is not to
    /// be relied on any more.
    pub(crate) fn share(&self, inode: &InodeState) {
        inode.set_shared();
        self.notifications.note_shared();
        let forget = self.forget.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(forget) = forget {
            (forget.0)(inode.id);
        }
    }

    /// Whether other clients have a file open that this mount has open, and one of all may write.
    pub fn is_shared(&self, inode: InodeId) -> bool {
        self.notifications.has_shared() && self.inodes.get(inode).is_some_and(|it| it.is_shared())
    }

    /// Whether the kernel may have pages of a file from reads since it was opened
    /// ([`crate::Client::note_cached`]).
    pub fn is_cached(&self, inode: InodeId) -> bool {
        self.inodes.get(inode).is_some_and(|it| it.is_cached())
    }

    pub(crate) fn note_capacity(&self, capacity: Option<Capacity>) {
        let mut held = self.capacity.lock().unwrap_or_else(PoisonError::into_inner);
        *held = capacity.or(*held);
    }

    /// Room for files in the whole cluster: as heartbeats bring it, or as the map shows it, which
    /// leaves out small changes, before the first of them.
    ///
    /// Management that has just been started may have heard of no target yet, or not of all. Who
    /// asks a mount that has begun then waits, for one lease after the begin at most.
    pub(crate) async fn capacity(&self) -> Capacity {
        loop {
            let held = *self.capacity.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(held) = held {
                return held;
            }
            let map = self.map();
            let mut storage = map.targets.iter().filter(|it| it.kind == TargetKind::Storage);
            let are_all_heard = storage.all(|target| target.capacity.total_bytes > 0);
            let lease = Duration::from_millis(u64::from(map.policy.lease_ms));
            if are_all_heard || skep_env::now() >= self.begun + lease {
                return map.total_capacity(|target| target.capacity);
            }
            skep_env::sleep(CAPACITY_POLL).await;
        }
    }

    /// Whether a process of this mount has ever locked bytes of a file: then every `close(2)` may
    /// unlock some, and has to be told ([`crate::Client::unlock_process`]).
    pub fn has_process_locks(&self) -> bool {
        self.locks.has_posix()
    }

    pub(crate) fn identity(&self) -> Identity {
        identity(&self.options.cluster, self.node())
    }

    /// Gives a worker's range of slots away. Never twice: where the sequence of a slot stands is
    /// known only to the client that had it.
    pub(crate) fn take_worker(&self, index: usize) -> Result<()> {
        let mut taken = self.taken_workers.lock().unwrap_or_else(PoisonError::into_inner);
        if index <= self.options.workers && taken.insert(index) {
            return Ok(());
        }
        let text = format!(
            "worker {index} of {} has a client already, or there is no such worker",
            self.options.workers
        );
        Err(Error::new(ErrorCode::InvalidArgument, text))
    }

    /// Slot ranges: one for each worker and one for the mount's own work.
    pub(crate) fn slot_ranges(&self) -> u32 {
        self.options.workers as u32 + 1
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Acquire)
    }

    /// Notes that the mount ends; `false` if it was noted before.
    pub(crate) fn begin_end(&self) -> bool {
        !self.is_ending.swap(true, Ordering::AcqRel)
    }
}

/// Whether time may mend what kept us from registering. Of `TimedOut` nothing is known; what was
/// registered without our knowledge ends with its lease.
fn passes(code: ErrorCode) -> bool {
    code.retry_class() != RetryClass::Never || code == ErrorCode::TimedOut
}

/// Says for how long a cluster was tried, and how that is changed.
fn given_up(error: &Error, span: &str, set_by: &str) -> Error {
    let way_out = match set_by {
        "" => String::new(),
        set_by => format!(": {set_by} says how long"),
    };
    Error::new(error.code(), format!("{}; tried {span}{way_out}", error.context()))
}

fn identity(cluster: &ClusterAccess, node: NodeId) -> Identity {
    Identity {
        cluster: cluster.token.cluster,
        secret: cluster.token.secret.clone(),
        node,
        kind: NodeKind::Client,
    }
}

/// Connects to the first address of management that answers.
pub(crate) async fn connect_to_management(
    cluster: &ClusterAccess,
    node: NodeId,
) -> Result<Rc<Connection>> {
    let identity = identity(cluster, node);
    let mut last = Error::new(ErrorCode::Configuration, "no address of management is given");
    for address in &cluster.addresses {
        match Connection::connect(address, &identity, TargetId::default(), Channel::NONE).await {
            Ok(connection) => return Ok(connection),
            Err(error) => last = error.within("management"),
        }
    }
    Err(last)
}

/// Asks management, for a bounded time.
pub(crate) async fn ask<R: Request>(connection: &Rc<Connection>, request: &R) -> Result<R::Reply> {
    let options = CallOptions { time_left: Some(MANAGEMENT_PATIENCE), ..CallOptions::default() };
    let result = connection.call(request, &options).await;
    result.map(|(reply, _)| reply).map_err(|error| error.within("management"))
}
