//! Writes the newest cluster map of a mount, and the addresses of all management nodes in the map,
//! to files on this host. So commands and new mounts still work when the management node in their
//! token is down. `skep health check` works without a leader of management.
//!
//! The modules `skep_service::known_management` and `skep_service::known_map` read and write the
//! files.

use crate::access::Access;
use skep_client::MapObserver;
use skep_rpc::management_addresses;
use skep_service::{known_management, known_map};
use skep_types::ClusterMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Returns the observer of a mount's cluster maps. The observer writes the map and the addresses to
/// files when the servers in the map change.
pub(super) fn observer(access: &Access) -> MapObserver {
    let (cluster, given) = (access.token.cluster, access.token.addresses.clone());
    // The part of the map that was written last.
    let written: Mutex<Option<ClusterMap>> = Mutex::default();
    MapObserver(Some(Arc::new(move |map: &ClusterMap| {
        let newest = known_map::lasting_part(map);
        let mut written = written.lock().unwrap_or_else(PoisonError::into_inner);
        if written.as_ref() == Some(&newest) {
            return;
        }
        *written = Some(newest);
        drop(written);
        let (given, map) = (given.clone(), map.clone());
        // The thread of the caller renews leases, and must not wait for a disk.
        let body = move || {
            known_management::remember(cluster, &given, &management_addresses(&map));
            known_map::remember(&map);
        };
        if let Err(error) = skep_env::spawn_thread("skep-learned".into(), None, body) {
            tracing::debug!(
                "cannot start the thread that stores the cluster map on this host: {error}"
            );
        }
    })))
}
