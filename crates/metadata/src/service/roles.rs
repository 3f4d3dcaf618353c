//! The roles of a target in its group: the choice of the first role, the loop of each role, and the
//! change from backup to primary.
//!
//! A target whose group has no other member is the primary. In a group of several members, a member
//! opens its store and log as a backup member, unless it is the primary in the cluster map. A
//! backup member that becomes the primary continues with its open store and log. When a primary is
//! deposed, its thread ends with all connections and requests, and the service opens the target
//! again.
//!
//! # A primary that may lack records
//! If the target's host has lost power, the target may lack log records that it has confirmed. Such
//! a target does not act as the primary while another member serves. Otherwise, new records of the
//! target could replace records that the other member has. Until the map changes, the target runs
//! as a backup member, which refuses all requests.
//!
//! # A restored management
//! After management was restored from a backup, another member may have newer records, also a
//! target that is no member according to the map. So each member records the state of its group in
//! its member mark. No member leads under a map with an earlier state, nor in an undecided epoch
//! (`skep_cluster::groups`), also if it is the only member in the map. Until management has
//! compared the logs, the members run as backup members and keep their records of the group.
//!
//! # A primary with an old cluster map
//! If a process ends before it has stored its newest cluster map, the next process starts with an
//! older map. According to that map the target may be the only serving member, although management
//! has meanwhile marked another member as in sync. So the primary records each request to mark a
//! member as in sync in its member mark before it sends the request. The next process then delays
//! each reply until this member has the records. If the map of the next process does not contain
//! the member, or if the log has records of a higher epoch than the map, the process runs as a
//! backup member until a newer map arrives.
//!
//! This module does not own the opening of store and log ([`super::opening`]), the role of a target
//! whose store is an incomplete copy ([`super::copying`]), or the state machines
//! ([`crate::target`], [`crate::shipping::backup`]).

mod halted;
mod leading;
mod page_cache;

use super::hand_over::HandOver;
use super::leaving::LastAcknowledgement;
use super::opening::{Contents, mark_old_backup, open_whole, start_of, succession_at_start};
use super::primary_stop::{OtherMembers, PrimaryStop, StopStep};
use super::restored::{RestoredMarks, check_not_rolled_back};
use super::{Shell, copying, former_primary, leaving, log_reads, members, open_engine};
use crate::engine::fjall_engine::FjallEngine;
use crate::former_group::FormerGroup;
use crate::free_space::FreeSpaceGauge;
use crate::meter::Meter;
use crate::shipping::backup::{Backup, Stopped};
use crate::shipping::copy_receiver::CopyReceiver;
use crate::target::{Action, Event, MetadataTarget, SyncPolicy};
use crate::term::{self, Membership};
use skep_cluster::lease_times::bound_of_primary;
use skep_format::log::LogOwner;
use skep_rpc::{Management, Router};
use skep_service::TargetStart;
use skep_store::log::Log;
use skep_store::page_cache::MemberMarkFile;
use skep_store::page_cache_mark::PageCacheMarkFile;
use skep_types::{Epoch, ErrorCode, GroupId, MapVersion, NodeKind, Result, TargetId};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The state of a target's thread that the roles of a primary and of a backup member use.
struct Parts<'a> {
    shell: Rc<Shell>,
    target: TargetId,
    policy: SyncPolicy,
    log: Log,
    mark: MemberMarkFile,
    page_cache: PageCacheMarkFile,
    free_space: &'a mut FreeSpaceGauge,
}

/// Serves a target until the service ends. Fails with `Deposed` if the target must begin another
/// role in a new thread.
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
    let path = directory.path();
    let mut mark = MemberMarkFile::read(path)?;
    let former = FormerGroup::of(&mark, target, &management);
    let found =
        term::await_membership(&router, target, &events, &mut ready, former.as_ref()).await?;
    let Some(membership) = found else { return Ok(()) };
    let page_cache = PageCacheMarkFile::read(path)?;
    let is_incomplete = copying::is_incomplete(path, target, &membership, &mut mark)?;
    let began = skep_env::now();
    let engine = open_engine(path, target, cache_bytes, &mut mark)?;
    mark_old_backup(path, &membership, &mark)?;
    let marks = RestoredMarks::read(path)?;
    let shell = Shell::new(router, management, Meter::new(&metrics, target), marks);
    let mut begins = || {
        if !is_incomplete {
            shell.meter.borrow_mut().role().replayed(skep_env::now().saturating_sub(began));
        }
        if let Some(ready) = ready.take() {
            ready.report();
        }
    };
    let begun = match is_incomplete {
        true => Begun::Copying { engine, mark },
        false => {
            let owner = LogOwner { cluster: directory.identity().cluster, target };
            let (log, contents) = open_whole(path, owner, (&membership, engine), &mut mark)?;
            Begun::Whole { log: Box::new(log), contents, mark }
        }
    };
    let _receiving = skep_env::spawn(Rc::clone(&shell).receive(events));
    let ended = match begun {
        Begun::Copying { engine, mut mark } => {
            let start = start_of(&membership, policy, (Epoch::default(), None), Vec::new());
            let mut receiver = CopyReceiver::open(engine, start)?;
            begins();
            copying::run(&shell, &mut receiver, &mut mark, (free_space, &membership)).await
        }
        Begun::Whole { log, contents, mark } => {
            let (shell, log) = (Rc::clone(&shell), *log);
            let mut parts = Parts { shell, target, policy, log, mark, page_cache, free_space };
            parts.run(membership, contents, begins).await
        }
    };
    // Wait for the end of a running checkpoint: its thread has a handle of the store, and the store
    // must be closed before the target is opened again.
    while shell.is_checkpointing.get() {
        let arrived = shell.arrived.wait();
        if shell.is_checkpointing.get() {
            arrived.await;
        }
    }
    ended
}

/// The open store and files of a target before it begins its first role (primary, backup member, or
/// receiver of a copy).
enum Begun {
    /// The store is an incomplete copy.
    Copying { engine: FjallEngine, mark: MemberMarkFile },
    /// The store is complete, and the log continues from its last record.
    Whole { log: Box<Log>, contents: Contents, mark: MemberMarkFile },
}

impl Parts<'_> {
    /// Runs the first role of the target, and after a promotion the role of the primary. Returns
    /// when the service ends. Fails with `Deposed` when the target must begin another role.
    async fn run(
        &mut self,
        mut membership: Membership,
        mut contents: Contents,
        begins: impl FnOnce(),
    ) -> Result<()> {
        let mut begins = Some(begins);
        if !self.may_lead(&membership, contents.epoch) {
            self.show_halt(&membership, contents.epoch);
            self.mark.begin(membership.group)?;
            self.mark_page_cache_of_member(&membership, contents.epoch)?;
            let mut backup = self.open_backup(&membership, contents)?;
            if let Some(begins) = begins.take() {
                begins();
            }
            if !self.run_backup(&mut backup, &membership).await? {
                return Ok(());
            }
            self.shell.meter.borrow_mut().role().begin_take_over(skep_env::now());
            self.shell.membership.halted.take();
            membership.map = Arc::clone(backup.map());
            contents = self.contents_of(backup.into_stopped());
            tracing::info!(
                "target {} is now the primary of metadata group {}",
                self.target,
                membership.group
            );
        } else {
            let (bound, now) = (self.mark.promise_bound(), skep_env::now());
            contents.succession = succession_at_start(&membership, bound, now);
        }
        let mut target = self.open_primary(&membership, contents)?;
        if let Some(begins) = begins.take() {
            begins();
        }
        let ended = self.run_primary(&mut target, &membership).await;
        if ended.as_ref().is_err_and(|error| error.code() == ErrorCode::Deposed) {
            // This function drops `target` only after this call, because the drop of its store
            // waits for the disk.
            former_primary::release(&self.shell, &membership).await?;
        }
        ended
    }

    fn open_backup(
        &mut self,
        membership: &Membership,
        contents: Contents,
    ) -> Result<Backup<FjallEngine>> {
        let Contents { engine, records, mut epoch, previous, .. } = contents;
        let counted = self.mark.counted();
        if membership.is_older_than(&counted) {
            // The log may have lost its records of the epoch that the member mark contains.
            epoch = epoch.max(counted.epoch);
        }
        let record = self.mark.record();
        if membership.precedes(&record, &counted) {
            // The map has an earlier state of the group than the member mark. The primary in that
            // earlier state must not replace records of the recorded state.
            epoch = epoch.max(record.epoch);
        }
        let start =
            start_of(membership, self.policy, (epoch, None), membership.requested(&counted));
        self.note_map(&membership.map)?;
        let promise = self.mark.promise_bound();
        let mut backup = Backup::open(engine, records, start, promise)?;
        let (lsn, epoch) = previous;
        if epoch > Epoch::default() {
            backup.set_epoch_of(lsn, epoch);
        }
        if self.mark.lacks_records() {
            backup.distrust();
        }
        Ok(backup)
    }

    fn contents_of(&self, stopped: Stopped<FjallEngine>) -> Contents {
        let Stopped { engine, records, previous, synced, succession } = stopped;
        Contents {
            epoch: records.last().map_or(previous.1, |record| record.epoch),
            engine,
            records,
            previous,
            synced: Some(synced),
            succession,
        }
    }

    fn open_primary(
        &mut self,
        membership: &Membership,
        contents: Contents,
    ) -> Result<MetadataTarget<FjallEngine>> {
        let Contents { engine, records, epoch, previous, synced, succession } = contents;
        let group = membership.map.group(membership.group);
        let since = group.map(|group| group.primary_since).unwrap_or_default();
        self.shell.router.hold_term(since);
        let has_lost_changes = self.mark.lacks_records() || self.page_cache.has_lost_changes();
        if self.mark.lacks_records() {
            // No other member serves, so this target has all records that the group still has. If
            // the process ends during the replay, the next start must open the replay window again.
            self.page_cache.distrust()?;
            self.mark.become_whole()?;
        }
        if membership.has_others(self.target, false) {
            self.mark.begin(membership.group)?;
        }
        self.record_group(&membership.map)?;
        let requested = membership.requested(&self.mark.counted());
        let start = start_of(membership, self.policy, (epoch, synced), requested);
        let mut target = MetadataTarget::open(engine, records, start)?;
        let (lsn, epoch) = previous;
        if epoch > Epoch::default() {
            target.set_epoch_of(lsn, epoch);
        }
        target.succeed(succession);
        if has_lost_changes {
            target.await_replay();
        }
        self.shell.marks.apply(&mut target)?;
        self.mark_page_cache(&target)?;
        Ok(target)
    }

    /// Waits until events arrive, or until the time `until`. Returns the events.
    async fn next_events(&mut self, group: GroupId, until: Duration) -> Result<Vec<Event>> {
        let events = self.shell.next_events(until).await?;
        let map = self.shell.router.map();
        self.log.keep(log_reads::kept_bytes(&map, group, self.free_space.is_low()))?;
        for event in &events {
            if let Event::Checkpointed { lsn } = event {
                self.log.trim(*lsn)?;
            }
        }
        Ok(events)
    }

    /// Runs the role of a backup member. Returns `true` if the target becomes the primary, and
    /// `false` if the service ends.
    async fn run_backup(
        &mut self,
        backup: &mut Backup<FjallEngine>,
        membership: &Membership,
    ) -> Result<bool> {
        let shell = Rc::clone(&self.shell);
        let (mut last, mut known) = (LastAcknowledgement::default(), MapVersion::default());
        while !shell.is_stopping.get() || last.is_due(&shell, backup, membership) {
            let membership = membership.check_same(Arc::clone(backup.map()))?;
            if std::mem::replace(&mut known, backup.map().version) != backup.map().version
                && self.is_in_doubt(&membership)
            {
                // Another member may have newer records.
                self.mark.distrust()?;
                backup.distrust();
            }
            if self.may_lead(&membership, backup.newest_epoch()) {
                return Ok(true);
            }
            self.show_halt(&membership, backup.newest_epoch());
            // If a newer map names another primary, this target has nothing to replay. With an old
            // mark of the page cache, this target would wait for a replay when it takes over.
            self.mark_page_cache_of_member(&membership, backup.newest_epoch())?;
            let mut events = self.next_events(membership.group, backup.next_tick()).await?;
            for event in &events {
                if let Event::Map(map) = event {
                    self.note_map(map)?;
                }
            }
            if backup.has_to_store() {
                // The primary must not wait for the write to the store.
                skep_env::submit_begun();
            }
            let now = skep_env::now();
            shell.meter.borrow_mut().begin_batch(&events, now);
            shell.meter.borrow_mut().role().note_backup(membership.serves(self.target), now);
            events.extend(self.free_space.look(now));
            events.push(Event::Tick);
            let mut actions = backup.handle(events, now)?;
            self.note_divergence(backup.diverges());
            if backup.lacks_records() && !self.mark.lacks_records() {
                self.mark.distrust()?;
            }
            if self.mark.lacks_records() && !backup.lacks_records() {
                self.mark.become_whole()?;
                self.record_group(backup.map())?;
                self.page_cache.begin()?;
                shell.marks.forget_copy()?;
                tracing::info!(
                    "target {} has all changes of metadata group {} again",
                    self.target,
                    membership.group
                );
            }
            self.free_space.logged(actions.iter().map(Action::logged_bytes).sum());
            shell.measure_backup(&mut actions);
            members::add_record(&mut actions, &self.mark);
            members::note_requests(&shell, &actions, backup.map().version, &mut self.mark)?;
            // A backup member replies only to its primary, and its replies need no lease.
            let parts = (backup.engine(), MapVersion::default());
            shell.carry_out(actions, &mut self.log, parts, |_| true)?;
            self.lower_promise_bound(backup.map(), backup.promise_left())?;
            if backup.discards() {
                self.mark.discard()?;
                return Err(term::ended(membership.group));
            }
        }
        leaving::leave(&shell, membership).await?;
        self.log.sync()?;
        backup.engine().checkpoint()?;
        self.page_cache.end()?;
        self.mark.end()?;
        Ok(false)
    }

    /// Measures the free space if a measurement is due, and returns the result. If space is short
    /// and another member can take over, requests a hand-over instead and returns `None`.
    fn free_space_of_primary(
        &mut self,
        membership: &Membership,
        hand_over: &mut HandOver,
        now: Duration,
    ) -> Option<Event> {
        let event = self.free_space.look(now)?;
        if !matches!(event, Event::FreeSpace { shortage: Some(_) }) {
            hand_over.on_space();
            return Some(event);
        }
        let newest = Membership { map: self.shell.router.map(), ..membership.clone() };
        let Some(change) = hand_over.on_shortage(&newest, self.target, now) else {
            return Some(event);
        };
        members::change_group(&self.shell, change);
        None
    }

    /// Decides the next step of a primary whose service stops. Returns whether the primary
    /// continues to serve, until another member is the primary.
    fn hands_over(
        &self,
        stop: &mut PrimaryStop,
        target: &mut MetadataTarget<FjallEngine>,
        membership: &Membership,
    ) -> bool {
        let (shell, now) = (&self.shell, skep_env::now());
        let newest = Membership { map: Arc::clone(target.map()), ..membership.clone() };
        let others = OtherMembers {
            stopping: shell.membership.stopping(),
            complete: target.complete_members(stop.settled_at(now)),
        };
        let step = stop.step(&newest, &others, now);
        if step == StopStep::End {
            if newest.has_others(self.target, true) {
                tracing::info!(
                    "target {} stops as the primary of metadata group {}, and no other member has \
                     become the primary: operations of the group may wait for a few seconds",
                    self.target,
                    membership.group
                );
            }
            return false;
        }
        if let StopStep::HandOver(change) = step {
            members::change_group(shell, change);
        }
        if stop.must_ask_members(now) {
            target.ask_members();
        }
        shell.membership.is_leaving.set(true);
        true
    }

    /// Runs the role of the primary until the service ends, or fails with `Deposed`.
    async fn run_primary(
        &mut self,
        target: &mut MetadataTarget<FjallEngine>,
        membership: &Membership,
    ) -> Result<()> {
        let shell = Rc::clone(&self.shell);
        let mut known = MapVersion::default();
        let (mut hand_over, mut stop) = (HandOver::default(), PrimaryStop::default());
        while !shell.is_stopping.get() || self.hands_over(&mut stop, target, membership) {
            let until = stop.next_due(target.next_tick());
            let mut events = self.next_events(membership.group, until).await?;
            if target.has_to_store() {
                // The batch begins with a write to the store, which blocks this thread. The replies
                // and the sync of the previous batch must not wait for this write.
                skep_env::submit_begun();
            }
            let map = shell.router.map();
            if map.version != known {
                known = map.version;
                let newest = Membership { map, ..membership.clone() };
                if self.is_in_doubt(&newest) {
                    return Err(term::ended(membership.group));
                }
                // The disk of a former primary may hang. A write to the mark would then delay the
                // release of its lease. The next role writes the mark.
                if newest.is_primary(self.target) {
                    if newest.has_others(self.target, false) {
                        self.mark.begin(membership.group)?;
                    }
                    self.record_group(&newest.map)?;
                }
            }
            let now = skep_env::now();
            shell.meter.borrow_mut().begin_batch(&events, now);
            // Put the measurement before all other events, so that it already applies to the
            // requests of this batch.
            events.splice(0..0, self.free_space_of_primary(membership, &mut hand_over, now));
            events.push(Event::Tick);
            target.permit_removal(!shell.marks.is_removal_off());
            let mut actions = target.handle(events, now, skep_env::wall_time())?;
            if !target.is_primary() {
                return Err(term::ended(membership.group));
            }
            self.mark_page_cache(target)?;
            shell.membership.after_batch(target, now);
            shell.router.need(target.fence());
            shell.marks.after_batch(target)?;
            // Check before the target sends the replies of this batch, because lost records could
            // make these replies wrong.
            check_not_rolled_back(target, membership, &mut self.mark)?;
            members::note_requests(&shell, &actions, target.map().version, &mut self.mark)?;
            let bound = bound_of_primary(self.mark.promise_bound(), target.wait_left());
            self.mark.bound_promises(bound)?;
            self.free_space.logged(actions.iter().map(Action::logged_bytes).sum());
            shell.measure(&mut actions, now, target);
            let parts = (target.engine(), target.fence());
            let may_reply = |now| target.may_answer_at(now);
            let unsent = shell.carry_out(actions, &mut self.log, parts, may_reply)?;
            target.hold_replies(unsent);
        }
        self.log.sync()?;
        target.engine().checkpoint()?;
        self.page_cache.end()?;
        self.mark.end()
    }
}
