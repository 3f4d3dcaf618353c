//! The client of one thread, with its connections and its range of slots in each session. Other
//! modules contain the operations of the client.

use crate::files::closing_files::DeferredCloses;
use crate::limits::MAX_PIECES;
use crate::meter::Meter;
use crate::mount::Mount;
use crate::session::slots::ThreadSession;
use skep_env::IdMap;
use skep_env::local::Semaphore;
use skep_rpc::{Channel, Router};
use skep_types::{ClusterMap, GroupId, Result};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// Runs file operations on one thread. Cheap to clone. A clone must stay on the thread of the
/// original.
///
/// An operation waits without limit for servers that do not reply. A caller that stops waiting
/// drops the future. The servers may have executed the operation already, or may execute it later.
#[derive(Debug, Clone)]
pub struct Client(pub(crate) Rc<Worker>);

#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) mount: Arc<Mount>,
    pub(crate) router: Rc<Router>,
    /// Index of this worker, from zero. The index selects the worker's range of slots in each
    /// session. The background work of the mount has the highest index.
    pub(crate) index: usize,
    pub(crate) sessions: RefCell<IdMap<GroupId, Rc<ThreadSession>>>,
    /// Limits the number of chunk pieces in flight to [`MAX_PIECES`].
    pub(crate) pieces: Rc<Semaphore>,
    pub(crate) closes: DeferredCloses,
    pub(crate) meter: Meter,
    operations: Cell<u64>,
}

impl Client {
    /// Creates the client of one worker. `worker_index` is less than the `workers` in the mount's
    /// options. Call this function once for each worker, on the worker's thread, inside
    /// `skep_env::block_on`. The index `workers` itself belongs to the background work of the mount
    /// ([`Mount::run_background`]).
    ///
    /// # Errors
    /// Returns `InvalidArgument` if another client has this index already, or if the index is
    /// larger than `workers`.
    pub fn new(mount: Arc<Mount>, worker_index: usize) -> Result<Self> {
        mount.take_worker(worker_index)?;
        let router =
            Router::new(mount.member.identity(), Channel::random(), mount.member.map_cell());
        let meter = Meter::new(&mount.options.metrics);
        Ok(Self(Rc::new(Worker {
            mount,
            router,
            index: worker_index,
            sessions: RefCell::default(),
            pieces: Semaphore::new(MAX_PIECES),
            closes: DeferredCloses::default(),
            meter,
            operations: Cell::new(0),
        })))
    }

    /// Returns the newest cluster map.
    pub fn map(&self) -> Arc<ClusterMap> {
        self.0.router.map()
    }

    /// Returns the mount, which all clients of this process share.
    pub fn mount(&self) -> &Arc<Mount> {
        &self.0.mount
    }

    pub(crate) fn router(&self) -> &Rc<Router> {
        &self.0.router
    }

    /// Returns the counters of this thread.
    pub(crate) fn meter(&self) -> &Meter {
        &self.0.meter
    }

    pub(crate) fn next_trace(&self) -> u128 {
        self.0.next_trace()
    }
}

impl Worker {
    /// Returns a trace id for the next request. The id contains the node, the worker and a count,
    /// so it is unique in the cluster.
    pub(crate) fn next_trace(&self) -> u128 {
        let count = self.operations.get() + 1;
        self.operations.set(count);
        u128::from(self.mount.node().raw()) << 96 | (self.index as u128) << 64 | u128::from(count)
    }
}
