//! The state that all threads of a mount share: its client id in the cluster, the newest cluster
//! map, sessions, open files and caches. File operations are methods of [`Client`](crate::Client).

pub(crate) mod background;
mod capacity;
pub(crate) mod eviction;
pub(crate) mod options;
pub(crate) mod shutdown;

use crate::cache::directory_changes::DirectoryChanges;
use crate::cache::seen::SeenAttributes;
use crate::cache::versions::CachedVersions;
use crate::cache::xattr_absence::XattrAbsence;
use crate::files::handles::Handles;
use crate::files::inodes::Inodes;
use crate::files::opened_bytes::OpenedBytesPolicy;
use crate::inode_state::InodeState;
use crate::limits::CAPACITY_POLL;
use crate::locks::deadlock_result::DeadlockSearch;
use crate::locks::owners::FileLocks;
use crate::mount::capacity::ClusterCapacity;
use crate::mount::options::{ClusterAccess, Forget, MountOptions};
use crate::session::table::GroupSessions;
use crate::sharing::notifications::Notifications;
use skep_rpc::{ClientMembership, JoinLimits, JoinToken};
use skep_types::map::Capacity;
use skep_types::{ClusterMap, Error, ErrorCode, InodeId, NodeId, Result, TargetKind};
use skep_wire::management::RegisterClient;
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The state of a mounted cluster, which all threads of the mount share.
#[derive(Debug)]
pub struct Mount {
    pub(crate) options: MountOptions,
    /// Stores the client's id and the newest cluster map, and sends heartbeats to management.
    pub(crate) member: Arc<ClientMembership>,
    pub(crate) sessions: GroupSessions,
    pub(crate) handles: Handles,
    pub(crate) inodes: Inodes,
    pub(crate) caches: CachedVersions,
    pub(crate) directory_changes: DirectoryChanges,
    pub(crate) locks: Arc<FileLocks>,
    pub(crate) deadlock: DeadlockSearch,
    pub(crate) notifications: Notifications,
    /// The function that makes the kernel drop its cached attributes of a file. The mutex protects
    /// only this value.
    forget: Mutex<Option<Arc<Forget>>>,
    pub(crate) seen: SeenAttributes,
    pub(crate) xattr_absence: XattrAbsence,
    pub(crate) newest_capacity: ClusterCapacity,
    lifecycle: Lifecycle,
}

/// The start time of a mount, and the workers that have a client.
#[derive(Debug, Default)]
struct Lifecycle {
    /// Time at which this client was first registered at management.
    begun: Duration,
    /// Indexes of the workers that already have a client. The mutex protects only this set.
    taken_workers: Mutex<HashSet<usize>>,
}

impl Mount {
    /// Registers this process as a client of the cluster. Call this function inside
    /// `skep_env::block_on`, on any thread.
    ///
    /// # Errors
    /// - `AuthenticationFailed`, `VersionMismatch` and other errors that a retry cannot resolve.
    ///   The function returns these errors without a retry.
    /// - `Disconnected` or `TimedOut` if management does not reply within `patience`.
    /// - `NotReady` if the cluster is still not formatted after `patience`.
    pub async fn new(options: MountOptions) -> Result<Arc<Self>> {
        let ClusterAccess { token, addresses } = options.cluster.clone();
        let request = RegisterClient {
            host: options.host.clone(),
            mount_point: options.mount_point.clone(),
            version: options.version.clone(),
            pid: std::process::id(),
        };
        let limits = JoinLimits { patience: options.patience, needs_format: true };
        let token = JoinToken { addresses, ..token };
        Ok(Arc::new(Self {
            member: ClientMembership::join(token, request, limits).await?,
            sessions: GroupSessions::default(),
            handles: Handles::new(OpenedBytesPolicy::new(options.attribute_timeout)),
            inodes: Inodes::new(),
            caches: CachedVersions::new(),
            directory_changes: DirectoryChanges::new(),
            locks: Arc::default(),
            deadlock: DeadlockSearch::default(),
            notifications: Notifications::default(),
            forget: Mutex::default(),
            seen: SeenAttributes::new(),
            xattr_absence: XattrAbsence::new(options.attribute_timeout),
            newest_capacity: ClusterCapacity::default(),
            lifecycle: Lifecycle { begun: skep_env::now(), ..Lifecycle::default() },
            options,
        }))
    }

    /// Returns the id of this client in the cluster.
    pub fn node(&self) -> NodeId {
        self.member.node()
    }

    /// Returns the newest cluster map.
    pub fn map(&self) -> Arc<ClusterMap> {
        self.member.map()
    }

    /// Returns the cell that contains the newest cluster map. The cell also counts retries and
    /// connections.
    pub fn map_cell(&self) -> Arc<skep_rpc::MapCell> {
        self.member.map_cell()
    }

    /// Returns a new handle to management, for use by the calling thread.
    pub fn management(&self) -> Rc<skep_rpc::Management> {
        self.member.management()
    }

    /// Sets the function that makes the kernel drop its cached attributes of an inode.
    pub fn set_forget(&self, forget: Forget) {
        let mut held = self.forget.lock().unwrap_or_else(PoisonError::into_inner);
        *held = Some(Arc::new(forget));
    }

    /// Records that other clients share a file, and makes the kernel drop its cached size.
    pub(crate) fn share(&self, inode: &InodeState) {
        inode.set_shared();
        self.notifications.note_shared();
        self.forget_attributes(inode.id);
    }

    /// Makes the kernel drop its cached attributes of a file.
    pub(crate) fn forget_attributes(&self, inode: InodeId) {
        let forget = self.forget.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(forget) = forget {
            (forget.0)(inode);
        }
    }

    /// Returns the capacity and free space of the whole cluster from the reply to the last
    /// heartbeat. Before the first reply, returns the capacity in the cluster map, which omits
    /// small changes.
    ///
    /// Shortly after management has started, some targets may not have reported their capacity yet.
    /// This function waits for the reports of such targets, but not longer than one lease after the
    /// start of the mount.
    pub(crate) async fn capacity(&self) -> Capacity {
        loop {
            if let Some(newest) = self.newest_capacity.newest() {
                return newest;
            }
            let map = self.map();
            let mut storage = map.targets.iter().filter(|it| it.kind == TargetKind::Storage);
            let are_all_heard = storage.all(|target| target.capacity.total_bytes > 0);
            let lease = Duration::from_millis(u64::from(map.policy.lease_ms));
            if are_all_heard || skep_env::now() >= self.lifecycle.begun + lease {
                return map.total_capacity(|target| target.capacity);
            }
            skep_env::sleep(CAPACITY_POLL).await;
        }
    }

    /// Assigns the range of slots with this index to the caller. The last range belongs to the
    /// background work, each other range to a worker. Assigns each range only once, because only
    /// the [`Client`](crate::Client) that has used a slot has the last sequence number of the slot.
    pub(crate) fn take_worker(&self, index: usize) -> Result<()> {
        let mut taken = self.lifecycle.taken_workers.lock().unwrap_or_else(PoisonError::into_inner);
        let background = self.options.workers;
        let problem = if index > background {
            format!(
                "the indexes of the workers of this mount are lower than {background}, and its \
                 background work uses the index {background}"
            )
        } else if taken.insert(index) {
            return Ok(());
        } else {
            "another client of this mount has this index; use an index only once".to_owned()
        };
        let text = format!("cannot create a client with the index {index}: {problem}");
        Err(Error::new(ErrorCode::InvalidArgument, text))
    }

    /// Returns the number of slot ranges: one range for each worker, and one for the background
    /// work of the mount.
    pub(crate) fn slot_ranges(&self) -> u32 {
        self.options.workers as u32 + 1
    }

    /// Whether [`Client::shutdown`](crate::Client::shutdown) has begun.
    pub(crate) fn is_ending(&self) -> bool {
        self.member.is_leaving()
    }
}
