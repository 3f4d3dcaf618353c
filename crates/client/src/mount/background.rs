//! The background work of a mount: sends heartbeats to management, applies map updates, and renews
//! the session leases. No operation waits for this work, so operations continue while management is
//! down.

use crate::client::Client;
use crate::mount::Mount;
use crate::session::table::{is_lost, lease_of};
use crate::sharing::follow::follow_sessions;
use skep_env::local::Notify;
use skep_rpc::ClientEvents;
use skep_types::map::Capacity;
use skep_types::{GroupId, NodeId, Result, SessionId};
use skep_wire::node::LogLevel;
use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

impl Mount {
    /// Sends heartbeats, applies map updates and renews session leases until the mount ends
    /// ([`Client::shutdown`]). Spawn this future on the event loop of one thread; otherwise the
    /// leases of the mount run out.
    pub async fn run_background(self: Arc<Self>) {
        let client = match Client::new(Arc::clone(&self), self.options.workers) {
            Ok(client) => client,
            Err(error) => {
                tracing::error!(
                    "this mount sends no heartbeats and renews no leases, since it cannot start \
                     its background work: {error}; unmount it, and mount again"
                );
                return;
            }
        };
        let changed = Rc::new(Notify::default());
        let events = MountEvents { client: client.clone(), settings_changed: Rc::clone(&changed) };
        let _tasks = [
            skep_env::spawn(follow_sessions(client.clone())),
            skep_env::spawn(keep_sessions(client, changed)),
        ];
        Arc::clone(&self.member).keep(Rc::new(events)).await;
    }
}

/// Updates the mount when a heartbeat reply reports a new capacity, changed cluster settings, a new
/// log level, or the removal of this client.
struct MountEvents {
    client: Client,
    /// Wakes the task that renews leases when the cluster's settings change, since the lease in the
    /// new settings may be shorter.
    settings_changed: Rc<Notify>,
}

impl ClientEvents for MountEvents {
    fn on_capacity(&self, capacity: Option<Capacity>) {
        self.client.mount().newest_capacity.note(capacity);
    }

    fn on_settings_changed(&self) {
        self.settings_changed.notify();
    }

    fn on_removed(&self, removed: NodeId) {
        self.client.begin_to_rejoin(removed);
    }

    fn change_log_level(&self, level: Option<&str>) -> Result<LogLevel> {
        self.client.mount().options.log.change(level)
    }
}

/// Renews the lease of each session after a third of the lease. Each group has its own task, so a
/// group that does not reply does not delay the renewals at other groups. If the lease in the
/// cluster's settings changes, this task renews all sessions immediately, since groups send the new
/// lease in their replies. The task also passes each new map to the observer of the mount.
async fn keep_sessions(client: Client, changed: Rc<Notify>) {
    let under_way = Rc::new(RefCell::new(HashSet::new()));
    let mut observed = None;
    loop {
        let map = client.mount().map();
        if observed.replace(map.version) != Some(map.version) {
            client.mount().options.map_observer.observe(&map);
        }
        let next = lease_of(map.policy.lease_ms);
        let third = client.mount().sessions.shortest_lease().min(next) / 3;
        for (group, id) in client.mount().sessions.to_keep() {
            if !under_way.borrow_mut().insert(group) {
                continue;
            }
            let (client, under_way) = (client.clone(), Rc::clone(&under_way));
            skep_env::spawn(async move {
                keep_session(&client, group, id, third).await;
                under_way.borrow_mut().remove(&group);
            })
            .detach();
        }
        skep_env::timeout(third, changed.wait()).await;
    }
}

async fn keep_session(client: &Client, group: GroupId, id: SessionId, patience: Duration) {
    // Retry: repeats a failed renewal after each third of the lease, until the mount ends.
    let kept = match client.mount().sessions.unrestored(group, id) {
        Some(_) => client.renew_again(group, id).await,
        None => client.confirm_session(group, id, Some(patience)).await,
    };
    match kept {
        Ok(()) => {}
        Err(error) if is_lost(&error) => {
            client.renew_session(group, id, &error).await;
        }
        Err(error) => tracing::debug!("cannot renew session {id} at group {group}: {error}"),
    }
}
