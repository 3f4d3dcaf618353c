//! A mount receives the addresses of all management nodes in the cluster map. This module writes
//! the addresses to a file on this host, so that commands and new mounts work when the management
//! node in their token is down.
//!
//! Does not own the file (`skep_service::known_management`).

use crate::access::Access;
use skep_client::MapObserver;
use skep_rpc::management_addresses;
use skep_service::known_management::remember;
use skep_types::ClusterMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Returns a function for a mount's cluster maps that writes the addresses of management when these
/// have changed.
pub(super) fn observer(access: &Access) -> MapObserver {
    let (cluster, given) = (access.token.cluster, access.token.addresses.clone());
    // The mutex protects only the addresses that were written last.
    let written: Mutex<Vec<String>> = Mutex::default();
    MapObserver(Some(Arc::new(move |map: &ClusterMap| {
        let learned = management_addresses(map);
        let mut written = written.lock().unwrap_or_else(PoisonError::into_inner);
        if *written == learned {
            return;
        }
        written.clone_from(&learned);
        drop(written);
        let given = given.clone();
        // The thread of the caller renews leases, and must not wait for a disk.
        let body = move || remember(cluster, &given, &learned);
        if let Err(error) = skep_env::spawn_thread("skep-learned".into(), None, body) {
            tracing::debug!(
                "cannot start the thread that stores the addresses of management on this host: \
                 {error}"
            );
        }
    })))
}
