//! One thread's client: its connections, its part of the sessions. The operations are in the
//! modules named after them.

use crate::files::closing_files::DeferredCloses;
use crate::limits::MAX_PIECES;
use crate::mount::Mount;
use crate::session::slots::ThreadSession;
use skep_env::local::Semaphore;
use skep_rpc::{Channel, Router};
use skep_types::{ClusterMap, GroupId, Result};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

/// Does file operations, for one thread. Cheap to clone; stays on its thread.
///
/// An operation waits without limit for servers that don't reply; drop its future to give up. The
/// servers may have done a dropped operation, or do it later.
#[derive(Debug, Clone)]
pub struct Client(pub(crate) Rc<Worker>);

#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) mount: Arc<Mount>,
    pub(crate) router: Rc<Router>,
    /// Number of this thread's range of slots.
    pub(crate) index: usize,
    pub(crate) sessions: RefCell<HashMap<GroupId, Rc<ThreadSession>>>,
    /// Limits the chunk pieces under way.
    pub(crate) pieces: Rc<Semaphore>,
    pub(crate) closes: DeferredCloses,
    operations: Cell<u64>,
}

impl Client {
    /// The client of one worker, from 0 to `workers` - 1. Call it on the worker's thread, inside
    /// `skep_env::block_on`, once for each worker.
    ///
    /// # Errors
    /// `InvalidArgument` if the worker has its client already, or isn't one.
    pub fn new(mount: Arc<Mount>, worker_index: usize) -> Result<Self> {
        mount.take_worker(worker_index)?;
        let router = Router::new(mount.identity(), Channel::random(), Arc::clone(&mount.cell));
        Ok(Self(Rc::new(Worker {
            mount,
            router,
            index: worker_index,
            sessions: RefCell::default(),
            pieces: Semaphore::new(MAX_PIECES),
            closes: DeferredCloses::default(),
            operations: Cell::new(0),
        })))
    }

    /// The newest cluster map.
    pub fn map(&self) -> Arc<ClusterMap> {
        self.0.router.map()
    }

    /// The mount, which this thread shares with others.
    pub fn mount(&self) -> &Arc<Mount> {
        &self.0.mount
    }

    pub(crate) fn router(&self) -> &Rc<Router> {
        &self.0.router
    }

    pub(crate) fn next_trace(&self) -> u128 {
        self.0.next_trace()
    }
}

impl Worker {
    /// A number for the next request, unique in this cluster: node, thread, count.
    pub(crate) fn next_trace(&self) -> u128 {
        let count = self.operations.get() + 1;
        self.operations.set(count);
        u128::from(self.mount.node().raw()) << 96 | (self.index as u128) << 64 | u128::from(count)
    }
}
