//! Cluster maps as management pushes them: a long poll that returns each newer map at once, and not
//! with the next heartbeat.

use super::Management;
use crate::limits::{FIRST_BACKOFF, LONG_POLL, LONGEST_MANAGEMENT_BACKOFF};
use crate::routing::MapCell;
use skep_env::local::Notify;
use skep_types::ClusterMap;
use skep_wire::management::GetMap;
use std::sync::Arc;

/// The map of one member, with a notification of changed settings.
#[derive(Debug)]
pub(super) struct FollowedMap {
    pub(super) cell: Arc<MapCell>,
    /// Notified when the cluster's settings change: a task that sleeps for a time set there must
    /// look again.
    pub(super) settings_changed: Notify,
}

impl FollowedMap {
    pub(super) fn new(cell: Arc<MapCell>) -> Self {
        Self { cell, settings_changed: Notify::default() }
    }

    /// Stores a newer map; returns whether the map and whether the settings have changed.
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

    /// Waits at management for newer maps until `is_leaving`; calls `on_change` after each reply.
    pub(super) async fn follow(
        &self,
        management: &Management,
        is_leaving: impl Fn() -> bool,
        on_change: impl Fn(MapChange),
    ) {
        let mut backoff = FIRST_BACKOFF;
        // Retry: waiting for a newer map, 2 ms doubling to 1 s, until the node leaves
        while !is_leaving() {
            let request = GetMap { known: self.cell.version() };
            match management.call_once(&request, LONG_POLL).await {
                Ok(update) => {
                    on_change(self.take(update.map));
                    backoff = FIRST_BACKOFF;
                }
                // Management replies shortly before `LONG_POLL` even if there is no newer map, so
                // this is always a lost connection or a dead management.
                Err(error) => {
                    tracing::debug!("waiting for a newer cluster map failed: {error}");
                    skep_env::sleep(backoff).await;
                    backoff = (backoff * 2).min(LONGEST_MANAGEMENT_BACKOFF);
                }
            }
        }
    }
}

/// The parts of a member's view that a reply of management has changed.
#[derive(Debug, Clone, Copy)]
pub(super) struct MapChange {
    pub(super) map: bool,
    pub(super) settings: bool,
}
