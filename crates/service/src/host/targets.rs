//! The targets of a running node: starts a thread for each, reports cluster-map changes to them,
//! and stops all of them when the service ends or one target does.
//!
//! A target's function returns its error, which ends the service. A *panic* of a target's thread is
//! a bug: it aborts the process at once (`panic = "abort"` in the release profile, [`AbortOnPanic`]
//! in other builds), since the state of a half-done operation must not be served. The service
//! manager restarts the process (`Restart=always` in the units), and the target recovers from its
//! directory as after a crash.

use super::capacity::capacity;
use super::{Ready, TargetEvent, TargetStart, until_signal};
use crate::directory::NodeDirectory;
use crate::link_requests::Links;
use crate::notify;
use skep_env::local::Notify;
use skep_env::{Mailbox, MailboxSender};
use skep_rpc::membership::{Change, Membership};
use skep_store::identity::Directory;
use skep_types::{ClusterMap, Error, ErrorCode, NodeId, Result, Target, TargetId};
use skep_wire::management::RegisterReply;
use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Connections and map changes that may wait in a target's mailbox; also reports of all targets.
pub(super) const MAILBOX_ITEMS: usize = 10_000;
/// Time that targets have to stop when the service ends: they sync their data, and service managers
/// kill a process after 90 seconds.
const STOP_TIMEOUT: Duration = Duration::from_secs(80);

/// The function that serves a target on its thread.
pub(super) type Serve = Arc<dyn Fn(TargetStart) -> Result<()> + Send + Sync>;

/// A report of a target's thread or of the membership to the main task.
#[derive(Debug)]
pub(super) enum Report {
    /// A target serves.
    Serves,
    /// A target's function returned.
    Ended(TargetId, Result<()>),
    /// The service cannot continue.
    Failed(Error),
}

/// A node while it serves.
pub(super) struct ServingNode {
    pub(super) node: RefCell<NodeDirectory>,
    /// Directories of targets that are not started yet, at their indexes in the registration.
    pub(super) waiting: RefCell<Vec<Option<Directory>>>,
    pub(super) running: RefCell<Vec<RunningTarget>>,
    pub(super) links: Rc<Links>,
    pub(super) membership: Rc<Membership>,
    /// Notified when there is another map in the membership's cell.
    pub(super) map_changed: Rc<Notify>,
    pub(super) serve: Serve,
    pub(super) reports: MailboxSender<Report>,
}

/// A target that has a thread.
pub(super) struct RunningTarget {
    target: TargetId,
    path: PathBuf,
    sender: MailboxSender<TargetEvent>,
}

/// Aborts the process if its thread panics, in builds that unwind: otherwise the service would run
/// on without the target, and the service manager would not restart it.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

impl ServingNode {
    /// Whether a target has a thread here.
    pub(super) fn serves(&self, target: TargetId) -> bool {
        self.running.borrow().iter().any(|running| running.target == target)
    }

    /// Sends an event to a target; returns `false` if its mailbox is full. Events for targets
    /// without a thread are dropped.
    pub(super) fn send(&self, target: TargetId, event: TargetEvent) -> bool {
        let running = self.running.borrow();
        let running = running.iter().find(|running| running.target == target);
        running.is_none_or(|running| running.sender.send(event).is_ok())
    }

    /// Starts the targets that are in the cached cluster map; the others wait until management has
    /// registered them.
    pub(super) fn start_known(&self) -> Result<()> {
        let node = self.membership.node();
        let map = self.membership.map_cell().load();
        tracing::warn!(
            "management does not answer: this node starts with cached cluster map {}",
            map.version
        );
        for slot in &mut *self.waiting.borrow_mut() {
            if let Some(directory) = slot.take_if(|target| is_known(&map, node, target)) {
                self.start(directory)?;
            }
        }
        for directory in self.waiting.borrow().iter().flatten() {
            tracing::warn!("target {} waits for management", directory.path().display());
        }
        Ok(())
    }

    /// Persists the ids that management assigned, and starts the targets that do not run yet.
    pub(super) fn start_all(&self, registered: &RegisterReply) -> Result<()> {
        let RegisterReply { node, targets, .. } = registered;
        self.node.borrow_mut().directory.assign(*node, TargetId::default())?;
        for (slot, target) in self.waiting.borrow_mut().iter_mut().zip(targets) {
            if let Some(mut directory) = slot.take() {
                directory.assign(*node, *target)?;
                self.start(directory)?;
            }
        }
        Ok(())
    }

    fn start(&self, directory: Directory) -> Result<()> {
        let target = directory.identity().target;
        let path = directory.path().to_owned();
        let (sender, events) = Mailbox::new(MAILBOX_ITEMS)?;
        let ready = self.reports.clone();
        let start = TargetStart {
            directory,
            target,
            token: self.membership.management().token(),
            identity: self.membership.identity(),
            map: self.membership.map_cell(),
            events,
            ready: Ready::new(move || {
                // The main task empties this mailbox; without that task the process ends anyway.
                let _ = ready.send(Report::Serves);
            }),
        };
        let (serve, reports) = (Arc::clone(&self.serve), self.reports.clone());
        skep_env::spawn_thread(format!("target-{target}"), None, move || {
            let _abort = AbortOnPanic;
            let result = serve(start);
            let _ = reports.send(Report::Ended(target, result));
        })?;
        self.running.borrow_mut().push(RunningTarget { target, path, sender });
        Ok(())
    }

    /// Spawns the heartbeats and map updates of this node.
    pub(super) fn keep_membership(self: &Rc<Self>, reserve: fn(u64) -> u64) -> skep_env::Task<()> {
        let node = Rc::clone(self);
        let capacities = move || {
            let running = node.running.borrow();
            running.iter().map(|it| (it.target, capacity(&it.path, reserve))).collect()
        };
        let node = Rc::clone(self);
        let on_change = move |change| node.on_change(change);
        skep_env::spawn(Rc::clone(&self.membership).keep(capacities, on_change))
    }

    fn on_change(&self, change: Change) {
        let failed = match change {
            Change::Joined(registered) => {
                tracing::info!(
                    "management answers: it registered this node as {}",
                    registered.node
                );
                self.start_all(&registered).err()
            }
            Change::Refused(error) => Some(error),
            Change::Map | Change::Rejoined(_) => {
                self.map_changed.notify();
                for running in self.running.borrow().iter() {
                    // A full mailbox contains a map change already.
                    let _ = running.sender.send(TargetEvent::MapChanged);
                }
                None
            }
        };
        if let Some(error) = failed {
            // The main task empties this mailbox.
            let _ = self.reports.send(Report::Failed(error));
        }
    }

    /// Waits until all targets serve, then for a signal or a target's end; stops all targets.
    pub(super) async fn watch(
        &self,
        signals: &skep_env::Signals,
        inbox: &Mailbox<Report>,
    ) -> Result<()> {
        let (mut serving, mut ended) = (0, 0);
        let mut is_ready = false;
        let result = loop {
            match until_signal(signals, async { Ok(inbox.receive().await?) }).await {
                Ok(Report::Serves) => {
                    serving += 1;
                    self.on_target_ready(serving, &mut is_ready);
                }
                Ok(Report::Ended(target, result)) => {
                    ended += 1;
                    break result.map_err(|error| error.within(format_args!("target {target}")));
                }
                Ok(Report::Failed(error)) => break Err(error),
                Err(error) if error.code() == ErrorCode::Interrupted => {
                    tracing::info!("this service ends: {}", error.context());
                    break Ok(());
                }
                Err(error) => break Err(error),
            }
        };
        notify::stopping();
        self.stop_targets(ended, inbox).await;
        result
    }

    /// Notifies the service manager once, when all targets that have a thread serve.
    fn on_target_ready(&self, serving: usize, is_ready: &mut bool) {
        let running = self.running.borrow();
        if serving < running.len() {
            return;
        }
        // Targets that wait for management may start later; scripts that start several services
        // count the notifications.
        if !std::mem::replace(is_ready, true) {
            notify::ready();
        }
        let names: Vec<_> = running.iter().map(|it| it.target.to_string()).collect();
        tracing::info!("this node serves {}", names.join(", "));
    }

    /// Stops all targets; `ended` of them have ended already.
    async fn stop_targets(&self, mut ended: usize, inbox: &Mailbox<Report>) {
        for running in self.running.borrow().iter() {
            let _ = running.sender.send(TargetEvent::Stop);
        }
        let ending = async {
            while ended < self.running.borrow().len() {
                if let Ok(Report::Ended(target, result)) = inbox.receive().await {
                    ended += 1;
                    if let Err(error) = result {
                        tracing::error!("target {target}: {error}");
                    }
                }
            }
        };
        if skep_env::timeout(STOP_TIMEOUT, ending).await.is_none() {
            tracing::error!("a target did not stop within {STOP_TIMEOUT:?}");
        }
    }
}

/// Whether a map places a target at a node, under the id in the target's directory.
pub(super) fn is_known(map: &ClusterMap, node: NodeId, target: &Directory) -> bool {
    let is_placed = |it: &Target| it.node == node && map.group_of(it.id).is_some();
    map.node(node).is_some() && map.target(target.identity().target).is_some_and(is_placed)
}
