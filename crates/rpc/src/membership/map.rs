//! Receives cluster maps from management by long polls, so that each newer map arrives immediately
//! and not only with the next heartbeat.

use super::Management;
use crate::limits::{FIRST_BACKOFF, LONG_POLL, LONGEST_MANAGEMENT_BACKOFF};
use crate::map_cell::MapCell;
use skep_env::local::Notify;
use skep_types::ClusterMap;
use skep_wire::management::GetMap;
use std::sync::Arc;

/// The cluster map of one member, and a notification of changed settings.
#[derive(Debug)]
pub(super) struct FollowedMap {
    pub(super) cell: Arc<MapCell>,
    /// Notifies waiting tasks when the cluster's settings change. A task that sleeps for an
    /// interval from the settings must then reread the interval.
    pub(super) settings_changed: Notify,
}

impl FollowedMap {
    pub(super) fn new(cell: Arc<MapCell>) -> Self {
        Self { cell, settings_changed: Notify::default() }
    }

    /// Stores `newer` if it is a newer map. Returns whether the map changed, and whether the
    /// settings changed.
    pub(super) fn take(&self, newer: Option<ClusterMap>) -> MapChange {
        let before = self.cell.version();
        let mut settings = false;
        if let Some(map) = newer {
            settings = map.policy != self.cell.load().policy;
            self.cell.update(map);
            if settings {
                self.settings_changed.notify();
            }
        }
        MapChange { map: self.cell.version() != before, settings }
    }

    /// Polls management for newer maps until `is_leaving` returns `true`. Calls `on_change` after
    /// each successful reply.
    pub(super) async fn follow(
        &self,
        management: &Management,
        is_leaving: impl Fn() -> bool,
        on_change: impl Fn(MapChange),
    ) {
        let mut backoff = FIRST_BACKOFF;
        // Retry: the node repeats a failed long poll after a pause of 2 ms, which doubles up to 1
        // s, until the node leaves.
        while !is_leaving() {
            let request = GetMap { known: self.cell.version() };
            match management.call_once(&request, LONG_POLL).await {
                Ok(update) => {
                    on_change(self.take(update.map));
                    backoff = FIRST_BACKOFF;
                }
                // Management replies shortly before `LONG_POLL` even if there is no newer map. So
                // an error always means a lost connection or a dead management process.
                Err(error) => {
                    tracing::debug!("cannot wait for a newer cluster map: {error:#}");
                    skep_env::sleep(backoff).await;
                    backoff = (backoff * 2).min(LONGEST_MANAGEMENT_BACKOFF);
                }
            }
        }
    }
}

/// Whether a reply of management has changed a member's map or its settings.
#[derive(Debug, Clone, Copy)]
pub(super) struct MapChange {
    pub(super) map: bool,
    pub(super) settings: bool,
}
