//! The targets of a running node. The main thread starts a thread for each target, and sends
//! changes of the cluster map to the threads. When the service ends, the main thread stops all
//! these threads (`stopping`).
//!
//! If the function that serves a target returns an error, the other targets continue, and the node
//! tries again to serve the target (`retries`). If the last target fails, the service ends. There
//! is one exception: if the disk of the last target is full, the service waits for free space. A
//! *panic* of a target's thread is a bug and aborts the process immediately. The panic may have
//! left inconsistent state in memory, which no target may serve. In the release profile, `panic =
//! "abort"` aborts the process; in other builds, [`AbortOnPanic`] aborts the process. The service
//! manager restarts the process (`Restart=always` in the units), and the target recovers from its
//! directory as after a crash.

use super::added_targets::AddedTargets;
use super::capacity::{CapacityFigures, capacity};
use super::health::Probes;
use super::known_group;
use super::unserved::UnservedTarget;
use super::{Host, Ready, TargetEvent, TargetStart, absolute, until_signal};
use crate::cached_map;
use crate::directory::NodeDirectory;
use crate::link_requests::Links;
use crate::notify;
use skep_env::local::Notify;
use skep_env::{Mailbox, MailboxSender};
use skep_exporter::message::Figures;
use skep_metrics::Registry;
use skep_rpc::membership::{Change, Membership};
use skep_store::identity::Directory;
use skep_types::map::{Capacity, Condition, Consistency, TargetHealth};
use skep_types::{ClusterMap, Error, ErrorCode, NodeId, Result, Target, TargetId, TargetKind};
use skep_wire::management::{RegisterReply, TargetReport};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of events in one target's mailbox. Also the maximum number of reports, from all
/// targets together, in the main task's mailbox.
pub(super) const MAILBOX_ITEMS: usize = 10_000;

/// The function that runs on a target's thread and serves the target.
pub(super) type Serve = Arc<dyn Fn(TargetStart) -> Result<()> + Send + Sync>;

/// A report from a target's thread or from the membership to the main task.
#[derive(Debug)]
pub(super) enum Report {
    /// A target is ready to serve.
    Serves(TargetId),
    /// A target's function has returned.
    Ended(TargetId, Result<()>),
    /// The service cannot continue.
    Failed(Error),
}

/// A running node.
pub(super) struct ServingNode {
    pub(super) node: RefCell<NodeDirectory>,
    /// Directories of targets that are not started yet. The index of a directory is the target's
    /// index in the registration.
    pub(super) waiting: RefCell<Vec<Option<Directory>>>,
    pub(super) running: RefCell<Vec<RunningTarget>>,
    pub(super) links: Rc<Links>,
    pub(super) membership: Rc<Membership>,
    /// The node notifies the waiters when its membership has stored a different cluster map.
    pub(super) map_changed: Rc<Notify>,
    pub(super) figures: Rc<Figures>,
    pub(super) serve: Serve,
    pub(super) reports: MailboxSender<Report>,
    /// Targets that the node currently cannot serve.
    pub(super) unserved: RefCell<Vec<UnservedTarget>>,
    /// Targets that an administrator has added while the node ran.
    pub(super) added: RefCell<AddedTargets>,
    /// The main task notifies the waiters when a target's thread has ended.
    pub(super) target_ended: Notify,
    /// The metrics of each target that has had a thread. The metrics of a failed target stay in
    /// this map, so that its counters continue after its next start.
    pub(super) target_figures: RefCell<BTreeMap<TargetId, Arc<Registry>>>,
    /// Whether the service is stopping its targets. A stopping service starts no further target.
    pub(super) is_stopping: Cell<bool>,
    pub(super) host: Host,
}

/// A target that has a thread.
pub(super) struct RunningTarget {
    pub(super) target: TargetId,
    pub(super) path: PathBuf,
    sender: MailboxSender<TargetEvent>,
    started: Duration,
    /// The pause before this start of the target, if an earlier start failed.
    pause: Option<Duration>,
    is_ready: Cell<bool>,
    /// Whether an administrator is removing the target from the node.
    pub(super) is_leaving: Cell<bool>,
    probes: Probes,
    /// Whether the last report declared the target hung.
    is_hung: Cell<bool>,
    /// The capacity in the last report about the target.
    capacity: Cell<Capacity>,
}

impl RunningTarget {
    /// Returns the file system of the target according to its last report.
    pub(super) fn file_system(&self) -> Option<u128> {
        Some(self.capacity.get().file_system).filter(|it| *it != 0)
    }

    /// Returns the report about the target for management. A target that is starting counts as
    /// serving, because its clients wait for it.
    fn report(&self, reserve: fn(u64) -> u64) -> TargetReport {
        let health = if self.is_ready.get() {
            self.probes.health(skep_env::now(), |probe| {
                // If the mailbox is full, the probe stays unanswered, and the target counts as
                // hung.
                let _ = self.sender.send(TargetEvent::Probe(probe));
            })
        } else {
            TargetHealth::default()
        };
        let is_hung = health.condition == Condition::Hung;
        if !is_hung {
            self.capacity.set(capacity(&self.path, reserve));
        }
        let (target, path) = (self.target, self.path.display());
        match (self.is_hung.replace(is_hung), is_hung) {
            (false, true) => tracing::warn!(
                "target {target} ({path}) hangs: {}; requests to this target wait. Check its disk \
                 and the log of the kernel",
                health.problem
            ),
            (true, false) => tracing::info!(
                "target {target} ({path}) no longer hangs, and answers requests again"
            ),
            _ => {}
        }
        TargetReport { target: self.target, capacity: self.capacity.get(), health }
    }
}

/// In builds that unwind, aborts the process if the thread that owns this guard panics. Without the
/// abort, the service would continue without the target, and the service manager would not restart
/// the service.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

impl ServingNode {
    /// Whether this node runs a thread for `target`.
    pub(super) fn serves(&self, target: TargetId) -> bool {
        self.running.borrow().iter().any(|running| running.target == target)
    }

    /// Sends an event to a target. Returns `false` if the target's mailbox is full. Drops the event
    /// and returns `true` if the target has no thread.
    pub(super) fn send(&self, target: TargetId, event: TargetEvent) -> bool {
        let running = self.running.borrow();
        let running = running.iter().find(|running| running.target == target);
        running.is_none_or(|running| running.sender.send(event).is_ok())
    }

    /// Stops the thread of a target permanently, and waits until the thread has ended.
    pub(super) async fn end_target(&self, target: TargetId) {
        while self.serves(target) {
            let ended = self.target_ended.wait();
            if let Some(running) = self.running.borrow().iter().find(|it| it.target == target)
                && !running.is_leaving.replace(true)
            {
                let _ = running.sender.send(TargetEvent::Stop);
            }
            ended.await;
        }
        self.forget_figures(target);
    }

    /// Starts the targets that are in the cached cluster map. Targets that are not in this map must
    /// wait until management has registered them.
    pub(super) fn start_known(&self) -> Result<()> {
        let node = self.membership.node();
        let map = self.membership.map_cell().load();
        tracing::warn!("{}", cached_map::start_line(&self.host.settings.directory, &map));
        for slot in &mut *self.waiting.borrow_mut() {
            if let Some(directory) = slot.take_if(|target| is_known(&map, node, target)) {
                self.start(directory, None)?;
            }
        }
        for directory in self.waiting.borrow().iter().flatten() {
            tracing::warn!(
                "this node does not serve {} until management answers, since the stored cluster \
                 map does not contain this target",
                directory.path().display()
            );
        }
        Ok(())
    }

    /// Persists the ids that management assigned, and starts the targets that are not running yet.
    pub(super) fn start_all(&self, registered: &RegisterReply) -> Result<()> {
        let RegisterReply { node, targets, map } = registered;
        for forgotten in self.unnamed_targets(map, *node) {
            tracing::error!(
                "target {} ({}) belongs to this service, but the settings do not name this target. \
                 So this service does not serve the target, and operations on its files wait, \
                 unless another member of its group serves these files: add the directory of the \
                 target to `targets`, and restart the service",
                forgotten.id,
                forgotten.path
            );
        }
        self.node.borrow_mut().directory.assign(*node, TargetId::default())?;
        for (slot, target) in self.waiting.borrow_mut().iter_mut().zip(targets) {
            if let Some(mut directory) = slot.take() {
                directory.assign(*node, *target)?;
                self.start(directory, None)?;
            }
        }
        Ok(())
    }

    /// Returns the targets that belong to this node according to `map`, but are missing from the
    /// node's settings. Omits the targets that were marked as lost, because such targets need not
    /// exist any more.
    fn unnamed_targets(&self, map: &ClusterMap, node: NodeId) -> Vec<Target> {
        let named: Vec<_> = self.host.targets.iter().map(|path| absolute(path)).collect();
        let own = map.targets.iter().filter(|it| it.node == node && !named.contains(&it.path));
        own.filter(|it| it.consistency != Consistency::Bad).cloned().collect()
    }

    /// Starts the thread of a target. If an earlier start has failed, `pause` is the pause before
    /// this start.
    pub(super) fn start(&self, directory: Directory, pause: Option<Duration>) -> Result<()> {
        let (target, path) = (directory.identity().target, directory.path());
        if self.serves(target) {
            let what = format!(
                "cannot serve {}: this node already serves target {target} from another directory; \
                 one of these two directories is a copy of the other directory; delete the copy",
                path.display()
            );
            return Err(Error::new(ErrorCode::InUse, what));
        }
        if self.is_stopping.get() {
            // Start no thread for this target now, because the service is stopping and would never
            // stop the thread.
            let what = format!(
                "cannot serve {}: this service is stopping; repeat the request after the next \
                 start of the service",
                path.display()
            );
            return Err(Error::new(ErrorCode::NotReady, what));
        }
        let map = self.membership.map_cell().load();
        if let Some(group) = map.group_of(target).filter(|it| it.kind == TargetKind::Storage) {
            known_group::store(path, group.id);
        }
        self.start_thread(directory, pause)
    }

    /// Starts the thread of a target that has no thread.
    pub(super) fn start_thread(&self, directory: Directory, pause: Option<Duration>) -> Result<()> {
        let target = directory.identity().target;
        let path = directory.path().to_owned();
        let (sender, events) = Mailbox::new(MAILBOX_ITEMS)?;
        let ready = self.reports.clone();
        let metrics = self.figures_of(target, &path);
        let start = TargetStart {
            directory,
            target,
            token: self.membership.management().token(),
            identity: self.membership.identity(),
            map: self.membership.map_cell(),
            metrics,
            events,
            ready: Ready::new(move || {
                // Ignore an error of the send. The main task empties this mailbox as long as the
                // task runs. If the task has ended, the process is ending.
                let _ = ready.send(Report::Serves(target));
            }),
        };
        let (serve, reports) = (Arc::clone(&self.serve), self.reports.clone());
        skep_env::spawn_thread(format!("target-{target}"), None, move || {
            let _abort = AbortOnPanic;
            let result = serve(start);
            let _ = reports.send(Report::Ended(target, result));
        })?;
        self.running.borrow_mut().push(RunningTarget {
            target,
            path,
            sender,
            started: skep_env::now(),
            pause,
            is_ready: Cell::new(false),
            is_leaving: Cell::new(false),
            probes: Probes::default(),
            is_hung: Cell::new(false),
            capacity: Cell::default(),
        });
        Ok(())
    }

    /// Returns the registry for the metrics of a target. This registry is a part of the node's
    /// registry.
    fn figures_of(&self, target: TargetId, path: &Path) -> Arc<Registry> {
        let mut all = self.target_figures.borrow_mut();
        let figures = all.entry(target).or_insert_with(|| {
            let figures = Registry::part_of(self.figures.registry());
            let (path, reserve) = (path.to_owned(), self.host.reserve);
            figures.add(Arc::new(CapacityFigures { target, path, reserve }));
            self.figures.registry().add(Arc::clone(&figures) as _);
            figures
        });
        Arc::clone(figures)
    }

    /// Removes the metrics of a target from the node's registry, because the node no longer serves
    /// the target.
    fn forget_figures(&self, target: TargetId) {
        if let Some(figures) = self.target_figures.borrow_mut().remove(&target) {
            self.figures.registry().remove(&figures);
        }
    }

    /// Spawns the task that sends heartbeats and receives new cluster maps.
    pub(super) fn keep_membership(self: &Rc<Self>) -> skep_env::Task<()> {
        let node = Rc::clone(self);
        let reports = move || {
            let (map, own_node) = (node.membership.map_cell().load(), node.membership.node());
            let unserved = node.unserved.borrow();
            let mut reports: Vec<_> =
                unserved.iter().filter_map(|it| it.report(&map, own_node)).collect();
            reports.extend(node.running.borrow().iter().map(|it| it.report(node.host.reserve)));
            reports
        };
        let node = Rc::clone(self);
        let on_change = move |change| node.on_change(change);
        skep_env::spawn(Rc::clone(&self.membership).keep(reports, on_change))
    }

    fn on_change(&self, change: Change) {
        let failed = match change {
            Change::Joined(registered) => {
                tracing::info!(
                    "management answers, and has registered this node as {}",
                    registered.node
                );
                self.start_all(&registered).err()
            }
            Change::Refused(error) => Some(error),
            Change::RefusedAgain(_) => None,
            Change::Map | Change::Rejoined(_) => {
                self.map_changed.notify();
                for running in self.running.borrow().iter() {
                    // Ignore an error, because a full mailbox already contains a `MapChanged`
                    // event.
                    let _ = running.sender.send(TargetEvent::MapChanged);
                }
                None
            }
        };
        if let Some(error) = failed {
            // Ignore an error of the send: the mailbox is not full, because the main task empties
            // it.
            let _ = self.reports.send(Report::Failed(error));
        }
    }

    /// Waits until a signal arrives, no target is left, or the service fails. Then stops all
    /// targets. Notifies the service manager as soon as the targets serve.
    pub(super) async fn watch(
        &self,
        signals: &skep_env::Signals,
        inbox: &Mailbox<Report>,
    ) -> Result<()> {
        let mut is_ready = false;
        let result = loop {
            match until_signal(signals, async { Ok(inbox.receive().await?) }).await {
                Ok(Report::Serves(target)) => self.on_target_ready(target, &mut is_ready),
                Ok(Report::Ended(target, result)) => {
                    if let Err(error) = self.on_target_end(target, result) {
                        break Err(error);
                    }
                }
                Ok(Report::Failed(error)) => break Err(error),
                Err(error) if error.code() == ErrorCode::Interrupted => {
                    tracing::info!("this service stops: {}", error.context());
                    break Ok(());
                }
                Err(error) => break Err(error),
            }
        };
        notify::stopping();
        self.stop_targets(inbox).await;
        result
    }

    /// Removes `target`, whose thread has ended, from the running targets.
    pub(super) fn remove_ended(&self, target: TargetId) -> RunningTarget {
        let mut running = self.running.borrow_mut();
        let at = running.iter().position(|it| it.target == target);
        let ended = running.remove(at.expect("a target that ends was running"));
        self.target_ended.notify();
        ended
    }

    /// Records that a target is unserved, because its thread has ended. If no other target is left,
    /// returns the error of the thread, and the service ends. There is one exception: if the disk
    /// is full and the target has served before, the service continues and waits for free space.
    fn on_target_end(&self, target: TargetId, result: Result<()>) -> Result<()> {
        let ended = self.remove_ended(target);
        if ended.is_leaving.get() {
            if let Err(error) = result {
                tracing::error!(
                    "target {target} has left this service, but its thread ended with an error: \
                     {error}"
                );
            }
            return Ok(());
        }
        let Err(error) = result.map_err(|error| error.within(format_args!("target {target}")))
        else {
            let problem = format!("the thread of target {target} ended although the service runs");
            return Err(Error::new(ErrorCode::Io, problem));
        };
        // If the role of a target in its group has changed, the node opens the target again in its
        // new role.
        if error.code() == ErrorCode::Deposed {
            self.unserved.borrow_mut().push(UnservedTarget::to_reopen(&ended.path, &error));
            return Ok(());
        }
        let is_last =
            self.running.borrow().is_empty() && self.waiting.borrow().iter().all(Option::is_none);
        // If the target has never served, the service ends, so that an administrator gets the error
        // of the full disk immediately. A service whose target has served continues, because the
        // host may have no service manager that would restart the service.
        let has_served = ended.is_ready.get() || ended.pause.is_some();
        if is_last && !(is_full(&error) && has_served) {
            return Err(error);
        }
        let served = skep_env::now().saturating_sub(ended.started);
        let unserved = UnservedTarget::new(&ended.path, &error, ended.pause, served);
        self.unserved.borrow_mut().push(unserved);
        Ok(())
    }

    /// Logs the targets when all targets with a thread serve. For the first of these log lines,
    /// also notifies the service manager.
    fn on_target_ready(&self, target: TargetId, is_ready: &mut bool) {
        let running = self.running.borrow();
        // If the thread of the target has ended in the meantime, the target is not in the list any
        // more.
        if let Some(ready) = running.iter().find(|it| it.target == target) {
            ready.is_ready.set(true);
        }
        if !running.iter().all(|it| it.is_ready.get()) {
            return;
        }
        // Targets that wait for management may start after this function returns. However, the
        // service manager must be notified only once, because scripts that start several services
        // count the notifications.
        if !std::mem::replace(is_ready, true) {
            notify::ready();
        }
        // A metadata target without a group is ready, and serves nothing. The thread of the target
        // logs this state.
        let map = self.membership.map_cell().load();
        let serving = running.iter().filter(|it| map.group_of(it.target).is_some());
        let serving: Vec<_> = serving.map(|it| format!("target {}", it.target)).collect();
        if !serving.is_empty() {
            tracing::info!("this service serves {}", serving.join(", "));
        }
    }
}

fn is_full(error: &Error) -> bool {
    matches!(error.code(), ErrorCode::NoSpace | ErrorCode::QuotaExceeded)
}

/// Whether `map` contains the target in the directory `target`, as a target of the node `node` and
/// as a member of a group.
pub(super) fn is_known(map: &ClusterMap, node: NodeId, target: &Directory) -> bool {
    let is_placed = |it: &Target| it.node == node && map.group_of(it.id).is_some();
    map.node(node).is_some() && map.target(target.identity().target).is_some_and(is_placed)
}
