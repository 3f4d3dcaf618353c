//! Counts the uses of a mount's caches and its recoveries, for one thread of the mount.
//!
//! The module [`crate::cache`] owns the caches, and the crate `skep-fuse` owns the counts of
//! operations.

use skep_metrics::catalog::{MOUNT_CACHE, MOUNT_RECOVERY, MOUNT_REPLAYED};
use skep_metrics::{CacheUse, Counter, Histogram, Registry};
use std::sync::Arc;

/// The counters of one thread.
#[derive(Debug)]
pub(crate) struct Meter {
    /// Requests of the kernel for attributes. A hit caused no request to metadata.
    pub(crate) attributes: Arc<CacheUse>,
    /// Requests of the kernel for extended attributes that almost no inode has. A hit caused no
    /// request to metadata.
    pub(crate) absent_xattrs: Arc<CacheUse>,
    /// First reads of small files through new handles. A hit used the bytes from the reply to the
    /// open.
    pub(crate) opened_bytes: Arc<CacheUse>,
    /// Opens of files. A hit means that the pages of the file in the kernel's cache are still
    /// valid.
    pub(crate) pages: Arc<CacheUse>,
    /// Renewals of lost sessions.
    pub(crate) session: Arc<Histogram>,
    /// Repetitions of changes, opens and locks that a metadata target has lost.
    pub(crate) replay: Arc<Histogram>,
    /// Changes that a metadata target has executed again after a power loss.
    pub(crate) replayed: Arc<Counter>,
    /// Changes that stay lost after a power loss of a metadata host.
    pub(crate) not_replayed: Arc<Counter>,
    /// Registrations after an eviction.
    pub(crate) rejoin: Arc<Histogram>,
}

impl Meter {
    /// Creates the counters of the calling thread.
    pub(crate) fn new(registry: &Registry) -> Self {
        let cache =
            |name: &str| CacheUse::new(registry, &MOUNT_CACHE, vec![("cache", name.to_owned())]);
        let recovery =
            |name: &str| registry.histogram(&MOUNT_RECOVERY, &vec![("recovery", name.to_owned())]);
        let changes =
            |result: &str| registry.counter(&MOUNT_REPLAYED, &vec![("result", result.to_owned())]);
        Self {
            attributes: cache("attributes"),
            absent_xattrs: cache("absent_xattrs"),
            opened_bytes: cache("opened_bytes"),
            pages: cache("pages"),
            session: recovery("session"),
            replay: recovery("replay"),
            replayed: changes("replayed"),
            not_replayed: changes("failed"),
            rejoin: recovery("rejoin"),
        }
    }
}
