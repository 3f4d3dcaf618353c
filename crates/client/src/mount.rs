//! The state that all threads of a mount share: its id in the cluster, the newest map, sessions,
//! open files and caches. The operations are not here.

pub(crate) mod background;
mod capacity;
pub(crate) mod eviction;
mod management;
pub(crate) mod options;
mod register;
mod shutdown;

use crate::cache::seen::SeenAttributes;
use crate::cache::versions::CachedVersions;
use crate::cache::xattr_absence::XattrAbsence;
use crate::files::handles::Handles;
use crate::files::inodes::Inodes;
use crate::inode_state::InodeState;
use crate::limits::CAPACITY_POLL;
use crate::locks::deadlock_result::DeadlockSearch;
use crate::locks::owners::FileLocks;
use crate::mount::capacity::ClusterCapacity;
use crate::mount::options::{Forget, MountOptions};
use crate::session::table::GroupSessions;
use crate::sharing::notifications::Notifications;
use skep_rpc::{Identity, MapCell};
use skep_types::map::Capacity;
use skep_types::{ClusterMap, Error, ErrorCode, NodeId, Result, TargetKind};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Shared by all threads of a mount.
#[derive(Debug)]
pub struct Mount {
    pub(crate) options: MountOptions,
    pub(crate) cell: Arc<MapCell>,
    pub(crate) sessions: GroupSessions,
    pub(crate) handles: Handles,
    pub(crate) inodes: Inodes,
    pub(crate) caches: CachedVersions,
    pub(crate) locks: Arc<FileLocks>,
    pub(crate) deadlock: DeadlockSearch,
    pub(crate) notifications: Notifications,
    /// Makes the kernel ask for a file's attributes anew. Protects the value alone.
    forget: Mutex<Option<Arc<Forget>>>,
    pub(crate) seen: SeenAttributes,
    pub(crate) xattr_absence: XattrAbsence,
    pub(crate) newest_capacity: ClusterCapacity,
    lifecycle: Lifecycle,
}

/// The stages of a mount's life.
#[derive(Debug, Default)]
struct Lifecycle {
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
        let registered = register::register_patiently(&options).await?;
        Ok(Arc::new(Self {
            cell: MapCell::new(registered.map, registered.node),
            sessions: GroupSessions::default(),
            handles: Handles::new(),
            inodes: Inodes::new(),
            caches: CachedVersions::new(),
            locks: Arc::default(),
            deadlock: DeadlockSearch::default(),
            notifications: Notifications::default(),
            forget: Mutex::default(),
            seen: SeenAttributes::new(),
            xattr_absence: XattrAbsence::new(),
            newest_capacity: ClusterCapacity::default(),
            lifecycle: Lifecycle { begun: skep_env::now(), ..Lifecycle::default() },
            options,
        }))
    }

    /// Registers anew, after this client was removed from the cluster.
    pub(crate) async fn register_again(&self) -> Result<()> {
        let registered = register::register(&self.options).await?;
        self.cell.update(registered.map);
        self.cell.set_node(registered.node);
        Ok(())
    }

    /// Notes that an id of this client was removed; `false` if that was noted before.
    pub(crate) fn begin_rejoining(&self, evicted: NodeId) -> bool {
        self.lifecycle.evicted.swap(evicted.raw(), Ordering::AcqRel) != evicted.raw()
    }

    pub(crate) async fn leave_cluster(&self) {
        register::leave(&self.options, self.node()).await;
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

    /// Notes that a file is shared with other clients, and makes the kernel forget its size.
    pub(crate) fn share(&self, inode: &InodeState) {
        inode.set_shared();
        self.notifications.note_shared();
        let forget = self.forget.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(forget) = forget {
            (forget.0)(inode.id);
        }
    }

    /// Capacity and free space of the whole cluster, as the last heartbeat's reply has it. Before
    /// the first reply, as the map has it, which leaves out small changes.
    ///
    /// Just after a start of management, some targets may not have reported to it. A caller of a
    /// mount that has just begun then waits, for one lease after the start of the mount at most.
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

    pub(crate) fn identity(&self) -> Identity {
        management::identity(&self.options.cluster, self.node())
    }

    /// Gives a worker's range of slots away. Never twice: where the sequence of a slot stands is
    /// known only to the client that had it.
    pub(crate) fn take_worker(&self, index: usize) -> Result<()> {
        let mut taken = self.lifecycle.taken_workers.lock().unwrap_or_else(PoisonError::into_inner);
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
        self.lifecycle.is_ending.load(Ordering::Acquire)
    }

    /// Notes that the mount ends; `false` if it was noted before.
    pub(crate) fn begin_end(&self) -> bool {
        !self.lifecycle.is_ending.swap(true, Ordering::AcqRel)
    }
}
