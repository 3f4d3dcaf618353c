//! The background work of a mount: heartbeats to management, map updates, and renewal of the
//! session leases. No operation waits for this work, so operations continue while management is
//! down.

use crate::client::Client;
use crate::limits::{MANAGEMENT_PAUSE, MAP_POLL};
use crate::mount::Mount;
use crate::mount::management::{ask, connect_to_management};
use crate::session::table::{is_lost, lease_of};
use crate::sharing::follow::follow_sessions;
use skep_env::local::Notify;
use skep_rpc::{CallOptions, Connection};
use skep_types::{ClusterMap, ErrorCode, GroupId, Result, SessionId};
use skep_wire::management::{ConfirmLogLevel, GetMap, Heartbeat, LogLevelChange};
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
                tracing::error!("the mount's background work runs already: {error}");
                return;
            }
        };
        let changed = Rc::new(Notify::default());
        let tasks = [
            skep_env::spawn(send_heartbeats(client.clone(), Rc::clone(&changed))),
            skep_env::spawn(follow_map(Arc::clone(&self), Rc::clone(&changed))),
            skep_env::spawn(follow_sessions(client.clone())),
            skep_env::spawn(keep_sessions(client, changed)),
        ];
        while !self.is_ending() {
            skep_env::sleep(MANAGEMENT_PAUSE).await;
        }
        drop(tasks);
    }
}

/// A connection to management that is opened again after a loss. Logs each loss once and each
/// recovery once, unless `is_quiet` is set.
struct ManagementLink<'a> {
    mount: &'a Mount,
    connection: Option<Rc<Connection>>,
    is_lost: bool,
    is_quiet: bool,
}

impl<'a> ManagementLink<'a> {
    fn new(mount: &'a Mount, is_quiet: bool) -> Self {
        Self { mount, connection: None, is_lost: false, is_quiet }
    }

    async fn open(&mut self) -> Result<Rc<Connection>> {
        if let Some(open) = self.connection.as_ref().filter(|it| !it.is_closed()) {
            return Ok(Rc::clone(open));
        }
        let cluster = &self.mount.options.cluster;
        let connection = connect_to_management(cluster, self.mount.node()).await?;
        self.connection = Some(Rc::clone(&connection));
        if std::mem::take(&mut self.is_lost) && !self.is_quiet {
            tracing::info!("management answers again");
        }
        Ok(connection)
    }

    fn lost(&mut self, error: &skep_types::Error) {
        self.connection = None;
        if !std::mem::replace(&mut self.is_lost, true) && !self.is_quiet {
            tracing::warn!("cannot reach management; files stay usable: {error}");
        }
    }
}

/// Applies a newer cluster map. Notifies `changed` if the cluster policy changed, since a task that
/// sleeps for an interval of the policy may have to wake earlier.
fn take_map(mount: &Mount, map: Option<ClusterMap>, changed: &Notify) {
    let Some(map) = map else { return };
    let is_changed = map.policy != mount.map().policy;
    mount.cell.update(map);
    if is_changed {
        changed.notify();
    }
}

async fn send_heartbeats(client: Client, changed: Rc<Notify>) {
    let mount = Arc::clone(client.mount());
    let mut link = ManagementLink::new(&mount, false);
    // A heartbeat after `Leave` would register the client again.
    while !mount.is_ending() {
        let node = mount.node();
        match send_heartbeat(&mount, &mut link, &changed).await {
            Ok(()) => {}
            Err(error) if error.code() == ErrorCode::Stale && !mount.is_ending() => {
                client.rejoin(node).await;
                link = ManagementLink::new(&mount, false);
            }
            Err(error) => link.lost(&error),
        }
        let interval = Duration::from_millis(u64::from(mount.map().policy.heartbeat_ms));
        skep_env::timeout(interval, changed.wait()).await;
    }
}

async fn send_heartbeat(
    mount: &Mount,
    link: &mut ManagementLink<'_>,
    changed: &Notify,
) -> Result<()> {
    let connection = link.open().await?;
    let known = mount.cell.version();
    let heartbeat = Heartbeat { node: mount.node(), known, targets: Vec::new() };
    let heard = ask(&connection, &heartbeat).await?;
    mount.newest_capacity.note(heard.capacity);
    take_map(mount, heard.map, changed);
    if let Some(order) = heard.log_level_change {
        ask(&connection, &carry_out(mount, order)).await?;
    }
    Ok(())
}

/// Changes the log level as management requested. Returns the confirmation to send.
fn carry_out(mount: &Mount, order: LogLevelChange) -> ConfirmLogLevel {
    let changed = mount.options.log.change(order.level.as_deref());
    let refusal = changed.as_ref().err().map(|error| error.context().to_owned());
    ConfirmLogLevel {
        client: mount.node(),
        number: order.number,
        level: changed.ok(),
        refusal: refusal.unwrap_or_default(),
    }
}

async fn follow_map(mount: Arc<Mount>, changed: Rc<Notify>) {
    // The heartbeat task logs when management is lost; a second message would add nothing.
    let mut link = ManagementLink::new(&mount, true);
    loop {
        match poll_map(&mount, &mut link, &changed).await {
            Ok(()) => {}
            Err(error) if error.code() == ErrorCode::TimedOut => {}
            Err(error) => {
                link.lost(&error);
                skep_env::sleep(MANAGEMENT_PAUSE).await;
            }
        }
    }
}

async fn poll_map(mount: &Mount, link: &mut ManagementLink<'_>, changed: &Notify) -> Result<()> {
    let connection = link.open().await?;
    let request = GetMap { known: mount.cell.version() };
    let options = CallOptions { time_left: Some(MAP_POLL), ..CallOptions::default() };
    take_map(mount, connection.call(&request, &options).await?.0.map, changed);
    Ok(())
}

/// Renews the lease of each session after a third of the lease. Each group has its own task, so a
/// group that does not reply does not delay the others. If the lease in the cluster policy changes,
/// this task renews all sessions at once, since groups send the new lease in their replies.
async fn keep_sessions(client: Client, changed: Rc<Notify>) {
    let under_way = Rc::new(RefCell::new(HashSet::new()));
    loop {
        let next = lease_of(client.mount().map().policy.lease_ms);
        let third = client.mount().sessions.shortest_lease().min(next) / 3;
        for (group, id) in client.mount().sessions.open_sessions() {
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
    match client.confirm_session(group, id, Some(patience)).await {
        Ok(()) => {}
        Err(error) if is_lost(&error) => {
            client.renew_session(group, id, &error).await;
        }
        Err(error) => tracing::debug!("cannot renew session {id} at group {group}: {error}"),
    }
}
