//! The roles of a target in its group: which one it begins with, the loop of each, and the change
//! from backup to primary.
//!
//! A target whose group has no other member is its primary. In a group of several, a member opens
//! its store and log as a backup, unless the map names it the primary. A backup that becomes the
//! primary continues with its open store and log. A primary that was deposed ends its thread, with
//! all connections and requests under way, and the node opens the target again.
//!
//! # A primary that may lack records
//! A host that has lost power may have lost records that the target has confirmed. While another
//! member serves, such a target does not act as the primary: it would replace records that the
//! other one holds. It runs as a backup, which refuses all requests, until the map changes.
//!
//! Does not own the state machines ([`crate::target`], [`crate::shipping::backup`]).

use super::restored::RestoredMarks;
use super::{Shell, open_engine};
use crate::engine::Engine;
use crate::engine::fjall_engine::FjallEngine;
use crate::free_space::FreeSpaceGauge;
use crate::limits::{LeaseTimes, Limits};
use crate::meter::Meter;
use crate::shipping::backup::{Backup, Stopped};
use crate::target::{Action, Event, MetadataTarget, Start, SyncPolicy};
use crate::term::{self, Membership};
use skep_cluster::groups::has_skipped;
use skep_format::log::{LogOwner, Record};
use skep_format::metadata::Key;
use skep_rpc::{Management, Router};
use skep_service::TargetStart;
use skep_store::log::{Log, Recovered};
use skep_store::page_cache::MemberMarkFile;
use skep_types::codec::Codec;
use skep_types::{Epoch, Error, ErrorCode, Lsn, MapVersion, NodeKind, Result, TargetId};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The health of a primary whose host may have lost records.
const HALTED: &str = "its host has lost power, and with it records that other members of its group \
                      may have; it waits until one of them takes over";

/// The state of a target at the beginning of a role.
struct Contents {
    engine: FjallEngine,
    records: Vec<Record>,
    /// Epoch of the last record.
    epoch: Epoch,
    /// Epoch of the last record in the store, or zero if the records have it or it is not known.
    epoch_of_stored: Epoch,
    /// Last record that is on the device. `None` means that all are.
    synced: Option<Lsn>,
    /// Time before which a primary must not reply.
    answers_from: Duration,
}

impl Contents {
    /// Whether the target has neither records nor a store.
    fn is_empty(&self) -> Result<bool> {
        Ok(self.records.is_empty() && self.engine.get(&Key::Applied.to_bytes())?.is_none())
    }
}

/// The parts of a target's thread that all roles use.
struct Parts<'a> {
    shell: Rc<Shell>,
    target: TargetId,
    policy: SyncPolicy,
    log: Log,
    mark: MemberMarkFile,
    free_space: &'a mut FreeSpaceGauge,
}

/// Serves a target until its service ends or its role ends.
pub(super) async fn serve(
    start: TargetStart,
    policy: SyncPolicy,
    cache_bytes: u64,
    free_space: &mut FreeSpaceGauge,
) -> Result<()> {
    skep_env::set_spin(super::SPIN);
    let TargetStart { directory, target, token, identity, map, events, ready, metrics } = start;
    let management = Management::of_member(&token, NodeKind::Metadata, Arc::clone(&map));
    let router = Router::of_target(identity, map, target);
    let mut ready = Some(ready);
    let found = term::await_membership(&router, target, &events, &mut ready).await?;
    let Some(membership) = found else { return Ok(()) };
    let path = directory.path();
    let mut mark = MemberMarkFile::read(path)?;
    let engine = open_engine(path, target, cache_bytes, &mut mark)?;
    let owner = LogOwner { cluster: directory.identity().cluster, target };
    let (log, contents) = open_log(path, owner, engine)?;
    if membership.is_new() && membership.has_others(target, true) && !mark.exists() {
        refuse_used(path, &membership, &contents)?;
    }
    let is_empty = contents.is_empty()?;
    if has_skipped(contents.epoch, membership.epoch()) || is_empty && mark.exists() {
        // Another member may have newer records: management was put back from a copy, or the data
        // of this target was removed.
        mark.distrust()?;
    }
    let marks = RestoredMarks::read(path)?;
    let shell = Shell::new(router, management, Meter::new(&metrics, target), marks);
    let _receiving = skep_env::spawn(Rc::clone(&shell).receive(events));
    let mut parts = Parts { shell: Rc::clone(&shell), target, policy, log, mark, free_space };
    let begins = || {
        if let Some(ready) = ready.take() {
            ready.report();
        }
    };
    let ended = parts.run(membership, contents, begins).await;
    // Its thread has a handle to the store, which must be closed before the next start.
    while shell.is_checkpointing.get() {
        let arrived = shell.arrived.wait();
        if shell.is_checkpointing.get() {
            arrived.await;
        }
    }
    ended
}

/// Opens the log after the store.
fn open_log(path: &Path, owner: LogOwner, engine: FjallEngine) -> Result<(Log, Contents)> {
    let applied = engine.get(&Key::Applied.to_bytes())?;
    let applied = applied.map_or(Ok(Lsn::default()), |value| Lsn::from_bytes(&value))?;
    let next = Lsn::new(applied.raw() + 1);
    let Recovered { log, records, epoch, truncated_bytes } =
        Log::open(&path.join("log"), owner, next)?;
    if !records.is_empty() {
        tracing::info!(
            "target {}: {} log records read, {truncated_bytes} bytes of an unfinished tail \
            truncated",
            owner.target,
            records.len()
        );
    }
    let (epoch_of_stored, answers_from) = (Epoch::default(), Duration::ZERO);
    let contents = Contents { engine, records, epoch, epoch_of_stored, synced: None, answers_from };
    Ok((log, contents))
}

/// Refuses a directory with data in a new group of several targets: it must be a copy, since none
/// of them has been in a group before.
fn refuse_used(path: &Path, membership: &Membership, contents: &Contents) -> Result<()> {
    if contents.is_empty()? {
        return Ok(());
    }
    let context = format!(
        "cannot serve {} as a member of the new group {}: it has data, so it is a copy of another \
         target; empty the directories `log` and `store` in it, or serve another directory",
        path.display(),
        membership.group
    );
    Err(Error::new(ErrorCode::Configuration, context))
}

impl Parts<'_> {
    /// Runs the roles of the target, until one ends for another reason than a promotion.
    async fn run(
        &mut self,
        mut membership: Membership,
        mut contents: Contents,
        begins: impl FnOnce(),
    ) -> Result<()> {
        let mut begins = Some(begins);
        if !self.may_lead(&membership) {
            if membership.is_primary(self.target) {
                tracing::error!("target {}: {HALTED}", self.target);
                self.shell.membership.halted.set(Some(HALTED));
            }
            self.mark.begin()?;
            let mut backup = self.open_backup(&membership, contents)?;
            if let Some(begins) = begins.take() {
                begins();
            }
            if !self.run_backup(&mut backup).await? {
                return Ok(());
            }
            self.shell.membership.halted.take();
            membership.map = Arc::clone(backup.map());
            contents = self.contents_of(backup.into_stopped());
            tracing::warn!("target {} takes over group {}", self.target, membership.group);
        } else if membership.has_others(self.target, false) && membership.had_other_primary() {
            // The process before this one may have acknowledged a request of the former primary.
            contents.answers_from = skep_env::now() + LeaseTimes::default().take_over_after;
        }
        let target = self.open_primary(&membership, contents)?;
        if let Some(begins) = begins.take() {
            begins();
        }
        self.run_primary(target, &membership).await
    }

    /// Whether the target may act as the primary.
    fn may_lead(&self, membership: &Membership) -> bool {
        membership.is_primary(self.target)
            && !(self.mark.lacks_records() && membership.has_others(self.target, true))
    }

    fn start_of(&self, membership: &Membership, epoch: Epoch, synced: Option<Lsn>) -> Start {
        Start {
            group: membership.group,
            target: self.target,
            epoch,
            synced,
            policy: self.policy,
            limits: Limits::default(),
            map: Arc::clone(&membership.map),
            now: skep_env::now(),
            wall: skep_env::wall_time(),
        }
    }

    fn open_backup(
        &self,
        membership: &Membership,
        contents: Contents,
    ) -> Result<Backup<FjallEngine>> {
        let Contents { engine, records, epoch, .. } = contents;
        let start = self.start_of(membership, epoch, None);
        let mut backup = Backup::open(engine, records, start)?;
        if self.mark.lacks_records() {
            backup.distrust();
        }
        Ok(backup)
    }

    fn contents_of(&self, stopped: Stopped<FjallEngine>) -> Contents {
        let Stopped { engine, records, epoch_before, synced, received_at } = stopped;
        Contents {
            epoch: records.last().map_or(epoch_before, |record| record.epoch),
            engine,
            records,
            epoch_of_stored: epoch_before,
            synced: Some(synced),
            answers_from: received_at + LeaseTimes::default().take_over_after,
        }
    }

    fn open_primary(
        &mut self,
        membership: &Membership,
        contents: Contents,
    ) -> Result<MetadataTarget<FjallEngine>> {
        let Contents { engine, records, epoch, epoch_of_stored, synced, answers_from } = contents;
        let group = membership.map.group(membership.group);
        let since = group.map(|group| group.primary_since).unwrap_or_default();
        self.shell.router.hold_term(since);
        if self.mark.lacks_records() {
            // No other member serves, so this one has all that the group still has.
            self.mark.become_whole()?;
        }
        let start = self.start_of(membership, epoch, synced);
        let mut target = MetadataTarget::open(engine, records, start)?;
        if epoch_of_stored > Epoch::default() {
            target.set_epoch_of_stored(epoch_of_stored);
        }
        target.answer_from(answers_from);
        self.shell.marks.apply(&mut target)?;
        Ok(target)
    }

    /// Waits for events until `until` at the latest, and returns them.
    async fn next_events(&mut self, until: Duration) -> Result<Vec<Event>> {
        let shell = &self.shell;
        shell.wait_for_events(until).await;
        if let Some(error) = shell.failure.take() {
            return Err(error);
        }
        let events = shell.inbox.take();
        shell.inbox_bytes.set(0);
        shell.taken.notify();
        for event in &events {
            if let Event::Checkpointed { lsn } = event {
                self.log.trim(*lsn)?;
            }
        }
        Ok(events)
    }

    /// Runs the backup. Returns whether the target becomes the primary; otherwise the service ends.
    async fn run_backup(&mut self, backup: &mut Backup<FjallEngine>) -> Result<bool> {
        let shell = Rc::clone(&self.shell);
        while !shell.is_stopping.get() {
            let membership = Membership::of(Arc::clone(backup.map()), self.target);
            let Some(membership) = membership else {
                let what = format!("target {} has left its group", self.target);
                return Err(Error::new(ErrorCode::Deposed, what));
            };
            if self.may_lead(&membership) {
                return Ok(true);
            }
            let mut events = self.next_events(backup.next_tick()).await?;
            let now = skep_env::now();
            shell.meter.borrow_mut().begin_batch(&events, now);
            events.extend(self.free_space.look(now));
            events.push(Event::Tick);
            let mut actions = backup.handle(events, now)?;
            if backup.lacks_records() && !self.mark.lacks_records() {
                self.mark.distrust()?;
            }
            if self.mark.lacks_records() && !backup.lacks_records() {
                self.mark.become_whole()?;
                shell.marks.forget_copy()?;
                tracing::info!("target {} has all records of its group again", self.target);
            }
            self.free_space.logged(actions.iter().map(Action::logged_bytes).sum());
            shell.measure_backup(&mut actions);
            shell.carry_out(actions, &mut self.log, (backup.engine(), MapVersion::default()))?;
        }
        self.log.sync()?;
        backup.engine().checkpoint()?;
        self.mark.end()?;
        Ok(false)
    }

    /// Runs the primary until the service ends.
    async fn run_primary(
        &mut self,
        mut target: MetadataTarget<FjallEngine>,
        membership: &Membership,
    ) -> Result<()> {
        let shell = Rc::clone(&self.shell);
        let mut known = MapVersion::default();
        while !shell.is_stopping.get() {
            let mut events = self.next_events(target.next_tick()).await?;
            let map = shell.router.map();
            if map.version != known {
                known = map.version;
                let newest = Membership { map, ..membership.clone() };
                if newest.has_others(self.target, false) {
                    self.mark.begin()?;
                }
            }
            let now = skep_env::now();
            shell.meter.borrow_mut().begin_batch(&events, now);
            if let Some(event) = self.free_space.look(now) {
                // The measurement comes first, so that the target refuses requests for which the
                // disk has no space.
                events.insert(0, event);
            }
            events.push(Event::Tick);
            target.permit_removal(!shell.marks.is_removal_off());
            let mut actions = target.handle(events, now, skep_env::wall_time())?;
            if !target.is_primary() {
                return Err(term::ended(membership.group));
            }
            shell.membership.is_backlogged.set(target.is_backlogged());
            shell.router.need(target.fence());
            shell.marks.after_batch(&target)?;
            self.free_space.logged(actions.iter().map(Action::logged_bytes).sum());
            shell.measure(&mut actions, now, &target);
            let parts = (target.engine(), target.fence());
            shell.carry_out(actions, &mut self.log, parts)?;
        }
        self.log.sync()?;
        target.engine().checkpoint()?;
        self.mark.end()
    }
}
