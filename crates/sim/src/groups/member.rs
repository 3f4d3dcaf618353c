//! The process of a member: its disk, its member mark, its inbox, and the batches of events that it
//! handles.
//!
//! This module is not responsible for the roles and their changes (`roles`), nor the requests
//! between members (`requests`).

use super::authority::group_of;
use super::cluster::{Cluster, GroupEvent};
use super::disks::DiskState;
use super::knobs::{GroupBug, GroupKnobs};
use super::messages::Process;
use crate::disk::{LogDisk, SyncPoint};
use crate::random::Random;
use skep_format::log::LogOwner;
use skep_format::member_mark::CountedMembers;
use skep_metadata::engine::memory::MemoryEngine;
use skep_metadata::shipping::backup::Backup;
use skep_metadata::shipping::copy_receiver::CopyReceiver;
use skep_metadata::shipping::former_primary::FormerPrimary;
use skep_metadata::shipping::{FoundRecords, LogRead};
use skep_metadata::target::{Event, MetadataTarget};
use skep_types::{ClusterMap, Epoch, ErrorCode, Lsn, MemberState, TargetId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Longest time between the arrival of a cluster map and its durable storage, in microseconds. The
/// service stores a map within a second.
pub(super) const MAP_STORAGE_MICROS: u64 = 2_000_000;

/// The role of a member's process.
pub(super) enum Role {
    /// The process does not run.
    Down,
    /// The target has no group.
    Waiting,
    Primary(Box<MetadataTarget<MemoryEngine>>),
    Backup(Box<Backup<MemoryEngine>>),
    /// The process was the primary, and its disk hangs.
    Former(Box<FormerPrimary>),
    Copying(Box<CopyReceiver<MemoryEngine>>),
}

impl Role {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::Waiting => "waiting",
            Self::Primary(_) => "primary",
            Self::Backup(_) => "backup",
            Self::Former(_) => "former primary",
            Self::Copying(_) => "copying",
        }
    }
}

/// The state of the store and the log. The member mark records this state durably.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Contents {
    #[default]
    Whole,
    Discarded,
    Incomplete,
}

/// The durable mark of a member, which its next process reads (`skep_store::page_cache`).
#[derive(Debug, Default)]
pub(super) struct Mark {
    pub(super) exists: bool,
    pub(super) contents: Contents,
    /// LSN and epoch of the last record in the store when its last copy ended.
    pub(super) copied: (Lsn, Epoch),
    /// Whether the host may have lost records that the member has confirmed.
    pub(super) lacks_records: bool,
    /// Members about which the target has sent requests to management.
    pub(super) counted: CountedMembers,
    /// Upper bound on the remaining duration of the member's promises.
    pub(super) promise_bound: Duration,
}

/// The sender of a request that a member's process handles.
#[derive(Debug, Clone, Copy)]
pub(super) enum Requester {
    Member { process: Process, number: u64 },
    Client { client: usize, call: u64, attempt: u64 },
}

/// A member: its disk and its process.
pub(super) struct Member {
    pub(super) target: TargetId,
    pub(super) life: u64,
    pub(super) role: Role,
    /// If the member is the primary: the first epoch of its term.
    pub(super) term: Epoch,
    pub(super) disk: LogDisk,
    /// The store, while no role uses the store.
    pub(super) engine: MemoryEngine,
    pub(super) mark: Mark,
    /// The newest map that the process has.
    pub(super) map: Arc<ClusterMap>,
    /// Earlier maps of the process, each with the time at which the next map arrived. The oldest
    /// map is first.
    former_maps: Vec<(Duration, Arc<ClusterMap>)>,
    /// Whether the host has lost power since the member last had all records.
    pub(super) lost_power: bool,
    /// Whether all serving members, including this member, have lost power at one time since this
    /// member last had all records. Such a member may lack changes without a durable reply, and may
    /// serve alone.
    pub(super) is_excused: bool,
    pub(super) stopped_until: Duration,
    pub(super) disk_state: DiskState,
    /// Difference between the clock of the host and the simulated time, in millionths.
    clock_ppm: i64,
    pub(super) inbox: Vec<Event>,
    is_scheduled: bool,
    ticks: u64,
    pub(super) requests: BTreeMap<u64, Requester>,
    /// Requests to other members that have no reply yet, by id: the receiving member, and whether
    /// the request belongs to a copy of the store.
    pub(super) pending: BTreeMap<u64, (TargetId, bool)>,
    /// Id of the request to management that has no reply yet.
    pub(super) asked: Option<u64>,
    /// For a planted bug: time at which a backup member has last granted a lease, on the host's
    /// clock.
    pub(super) granted_at: Duration,
    /// For a planted bug: records that a backup member has confirmed before it appends them.
    pub(super) unwritten: Vec<(Epoch, Lsn, Lsn, Vec<u8>)>,
}

impl Member {
    /// Creates a member without data.
    pub(super) fn new(
        target: TargetId,
        knobs: &GroupKnobs,
        map: &Arc<ClusterMap>,
        random: &mut Random,
    ) -> Self {
        let owner = LogOwner { cluster: map.cluster, target };
        Self {
            target,
            life: 0,
            role: Role::Down,
            term: Epoch::default(),
            disk: LogDisk::new(owner, knobs.segment_bytes),
            engine: MemoryEngine::default(),
            mark: Mark::default(),
            map: Arc::clone(map),
            former_maps: Vec::new(),
            lost_power: false,
            is_excused: false,
            stopped_until: Duration::ZERO,
            disk_state: DiskState::default(),
            clock_ppm: random.within(0, 20_000) as i64 - 10_000,
            inbox: Vec::new(),
            is_scheduled: false,
            ticks: 0,
            requests: BTreeMap::new(),
            pending: BTreeMap::new(),
            asked: None,
            granted_at: Duration::ZERO,
            unwritten: Vec::new(),
        }
    }

    /// Returns the time on the clock of the host.
    pub(super) fn clock(&self, now: Duration) -> Duration {
        scaled(now, 1_000_000 + self.clock_ppm, 1_000_000)
    }

    /// Returns the simulated time at which the clock of the host shows `local`.
    fn time_of(&self, local: Duration) -> Duration {
        scaled(local, 1_000_000, 1_000_000 + self.clock_ppm) + Duration::from_nanos(1)
    }

    /// Replaces the map by a newer map, which arrives at `now`.
    pub(super) fn set_map(&mut self, map: Arc<ClusterMap>, now: Duration) {
        if map.version > self.map.version {
            self.former_maps.push((now, std::mem::replace(&mut self.map, map)));
        }
    }

    /// Restores the newest map that the process had stored durably when it ended at `now`.
    pub(super) fn forget_unstored_maps(&mut self, now: Duration, random: &mut Random) {
        let delay = match random.percent(50) {
            true => random.micros(0, MAP_STORAGE_MICROS),
            false => Duration::ZERO,
        };
        let stored = now.saturating_sub(delay);
        while let Some((_, former)) = self.former_maps.pop_if(|(replaced, _)| *replaced > stored) {
            self.map = former;
        }
        self.former_maps.clear();
    }

    /// Clears the memory of an ended process, except its role. `life` is the id of the next
    /// process.
    pub(super) fn clear_memory(&mut self, life: u64) {
        self.life = life;
        self.inbox.clear();
        self.is_scheduled = false;
        self.requests.clear();
        self.pending.clear();
        self.asked = None;
        self.unwritten.clear();
        self.disk_state.end_process();
    }
}

fn scaled(time: Duration, by: i64, of: i64) -> Duration {
    let nanos = time.as_nanos() as i128 * i128::from(by) / i128::from(of);
    Duration::from_nanos(nanos as u64)
}

impl Cluster {
    /// Adds an event to the inbox of a member's process.
    pub(super) fn put(&mut self, index: usize, event: Event) {
        let member = &mut self.members[index];
        if matches!(member.role, Role::Down) {
            return;
        }
        member.inbox.push(event);
        if !std::mem::replace(&mut member.is_scheduled, true) {
            let life = member.life;
            let pause = self.random.micros(2, 150);
            self.after(pause, GroupEvent::Run { member: index, life });
        }
    }

    pub(super) fn tick_member(&mut self, index: usize, ticks: u64) {
        if self.members[index].ticks == ticks {
            self.put(index, Event::Tick);
        }
    }

    /// Handles the events that have arrived at a member's process.
    pub(super) fn run_member(&mut self, index: usize, life: u64) {
        let member = &mut self.members[index];
        if member.life != life || matches!(member.role, Role::Down) {
            return;
        }
        member.is_scheduled = false;
        self.continue_batch(index);
        let member = &mut self.members[index];
        let mut events = std::mem::take(&mut member.inbox);
        let mut newest = Arc::clone(&member.map);
        events.retain(|event| match event {
            Event::Map(map) if map.version <= newest.version => false,
            Event::Map(map) => {
                newest = Arc::clone(map);
                true
            }
            _ => true,
        });
        let absent = group_of(&newest).members.iter().any(|it| it.state != MemberState::Serving);
        // In a few batches the disk has little free space, so that the log keeps no old segments.
        let is_space_low = self.random.within(0, 2_000) == 0;
        let kept = if absent && !is_space_low { newest.policy.metadata_log_kept } else { 0 };
        member.disk.keep(kept as usize);
        member.set_map(newest, self.now);
        self.measure_space(index, &mut events);
        events.push(Event::Tick);
        self.flush_unwritten(index);
        self.handle_as_role(index, events);
        let member = &mut self.members[index];
        let local = match &member.role {
            Role::Primary(it) => it.next_tick(),
            Role::Backup(it) => it.next_tick(),
            Role::Copying(it) => it.next_tick(),
            Role::Down | Role::Waiting | Role::Former(_) => return,
        };
        member.ticks += 1;
        let due = member.time_of(local).max(self.now + Duration::from_micros(1));
        let ticks = member.ticks;
        self.at(due, GroupEvent::Tick { member: index, ticks });
    }

    /// For a planted bug: appends the records that the previous batch has already confirmed.
    fn flush_unwritten(&mut self, index: usize) {
        for (epoch, lsn, synced, payload) in std::mem::take(&mut self.members[index].unwritten) {
            self.append(index, (epoch, lsn, synced), &payload);
        }
    }

    pub(super) fn append(&mut self, index: usize, name: (Epoch, Lsn, Lsn), payload: &[u8]) {
        let (epoch, lsn, synced) = name;
        if let Err(error) = self.members[index].disk.append(epoch, lsn, synced, payload) {
            self.fail(format!("member {index}, record {lsn}: {error}"));
        }
    }

    /// Handles the end of a sync of the log.
    pub(super) fn synced(&mut self, index: usize, life: u64, lsn: Lsn, point: &SyncPoint) {
        if self.members[index].life == life {
            self.members[index].disk.end_sync(point);
            self.put(index, Event::Synced { lsn });
        }
    }

    /// Handles the end of a read of old records of the log.
    pub(super) fn read_log(&mut self, index: usize, life: u64, read: LogRead) {
        if self.members[index].life != life {
            return;
        }
        let LogRead { member, first, last } = read;
        let most = self.random.within(2, 6) as usize;
        let disk = &self.members[index].disk;
        let (mut begins, mut records, bytes_after) = disk.read_back(first, last, most);
        if records.is_empty() && self.knobs.plant == Some(GroupBug::ReadRemovedRecords) {
            records = disk.read_back(begins, last, most).1;
            for (record, lsn) in records.iter_mut().zip(first.raw()..) {
                record.lsn = Lsn::new(lsn);
            }
            begins = first;
        }
        self.log_reads += u64::from(!records.is_empty());
        let result = match self.random.percent(1) {
            true => Err(ErrorCode::Corrupt.into()),
            false => Ok(FoundRecords { begins, records, bytes_after }),
        };
        self.put(index, Event::LogRead { member, first, result });
    }

    /// Handles the end of a checkpoint of a store that had `batches` changes when the checkpoint
    /// began. The checkpoint does not cover later changes.
    pub(super) fn checkpointed(&mut self, index: usize, life: u64, (lsn, batches): (Lsn, usize)) {
        let member = &mut self.members[index];
        if member.life != life {
            return;
        }
        let engine = match &mut member.role {
            Role::Primary(it) => it.engine_mut(),
            Role::Backup(it) => it.engine_mut(),
            Role::Copying(it) => it.engine_mut(),
            Role::Down | Role::Waiting | Role::Former(_) => return,
        };
        engine.checkpoint_first(batches);
        if !matches!(member.role, Role::Copying(_)) {
            member.disk.trim(lsn);
        }
        self.put(index, Event::Checkpointed { lsn });
    }

    /// Handles the arrival of a map.
    pub(super) fn map_arrived(&mut self, index: usize, map: Arc<ClusterMap>) {
        self.put(index, Event::Map(map));
    }
}
