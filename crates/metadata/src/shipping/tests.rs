//! Tests with a primary's shipper and a backup member, over a simulated network and disk.

mod backup;
mod copies;
mod copy_network;
mod divergence;
mod former_primaries;
mod hanging_disks;
mod late_take_overs;
mod leases;
mod members;
mod network;
mod records_from_disk;

use super::Progress;
use super::backup::Backup;
use super::member_link::GroupLog;
use super::record_window::RecordWindow;
use super::shipper::Shipper;
use super::{MemberMessage, MemberRequest};
use crate::engine::Engine;
use crate::engine::memory::MemoryEngine;
use crate::limits::Limits;
use crate::target::{Action, Event, Start, SyncPolicy};
use skep_format::log::Record;
use skep_format::metadata::{Batch, Key, Mutation};
use skep_types::codec::{Bytes, Codec};
use skep_types::{
    ClusterId, ClusterMap, Epoch, ErrorCode, Group, GroupId, GroupMember, Lsn, MapVersion,
    MemberState, Result, TargetId, TargetKind, Timestamp,
};
use skep_wire::Request;
use skep_wire::frame::Header;
use skep_wire::log_shipping::{AwaitLogSync, LogHeld, ShipLog};
use skep_wire::management::AskTakeOver;
use std::sync::Arc;
use std::time::Duration;

const PRIMARY: TargetId = TargetId::new(1);
const BACKUP: TargetId = TargetId::new(2);
const GROUP: GroupId = GroupId::new(1);

/// The default of the setting `metadata-lease`.
const LEASE: Duration = Duration::from_secs(2);
/// The default of the setting `metadata-take-over-after`.
const TAKE_OVER_AFTER: Duration = Duration::from_millis(2500);

/// Returns a map in which [`PRIMARY`] is the primary and [`BACKUP`] is a serving backup member.
fn map(epoch: u64) -> Arc<ClusterMap> {
    let mut map = ClusterMap::empty(ClusterId::default());
    let mut group = Group::of_one(GROUP, TargetKind::Metadata, PRIMARY);
    group.members.push(GroupMember { target: BACKUP, state: MemberState::Serving });
    group.epoch = Epoch::new(epoch);
    map.groups.push(group);
    map.version = MapVersion::new(epoch);
    Arc::new(map)
}

/// Returns a record with one change, whose value contains the LSN and the epoch of the record.
fn record(lsn: u64, epoch: u64) -> Record {
    let value = Some(Bytes(vec![lsn as u8, epoch as u8]));
    let mutation = Mutation { key: Bytes(vec![9, lsn as u8]), value };
    let payload = Batch { mutations: vec![mutation] }.to_bytes();
    Record { epoch: Epoch::new(epoch), lsn: Lsn::new(lsn), synced: Lsn::default(), payload }
}

/// A backup member, with its simulated log on disk.
struct Member {
    backup: Backup<MemoryEngine>,
    log: Vec<Record>,
    /// Last record of the sync in progress.
    syncing: Option<Lsn>,
    replies: Vec<(u64, Result<LogHeld>)>,
    /// The requests in which the member asks management to make it the primary.
    asked: Vec<AskTakeOver>,
    epoch: u64,
}

impl Member {
    fn open(engine: MemoryEngine, log: Vec<Record>, epoch: u64, now: Duration) -> Self {
        let start = Start {
            group: GROUP,
            target: BACKUP,
            epoch: log.last().map(|it| it.epoch).unwrap_or_default(),
            counted: Vec::new(),
            synced: None,
            policy: SyncPolicy::Interval,
            limits: Limits { checkpoint_log_bytes: 200, ..Limits::default() },
            map: map(epoch),
            now,
            wall: Timestamp::default(),
        };
        let backup = Backup::open(engine, log.clone(), start, TAKE_OVER_AFTER).unwrap();
        Self { backup, log, syncing: None, replies: Vec::new(), asked: Vec::new(), epoch }
    }

    fn begin(epoch: u64) -> Self {
        Self::open(MemoryEngine::default(), Vec::new(), epoch, Duration::ZERO)
    }

    /// Kills the process of the member and starts it again.
    fn restart(&mut self, now: Duration) {
        let engine = self.backup.engine().clone();
        let replies = std::mem::take(&mut self.replies);
        *self = Self::open(engine, std::mem::take(&mut self.log), self.epoch, now);
        self.replies = replies;
    }

    fn handle(&mut self, events: Vec<Event>, now: Duration) {
        let actions = self.backup.handle(events, now).unwrap();
        self.backup.check_invariants();
        for action in actions {
            match action {
                Action::Append { epoch, lsn, synced, payload } => {
                    assert_eq!(
                        lsn.raw(),
                        self.log.len() as u64 + 1,
                        "records are appended in order"
                    );
                    assert!(synced < lsn, "`synced` is the progress of the member");
                    self.log.push(Record { epoch, lsn, synced, payload });
                }
                Action::Truncate { after } => {
                    assert_eq!(self.syncing, None, "a sync covers no record that is removed");
                    self.log.truncate(after.raw() as usize);
                }
                Action::Sync { lsn } => {
                    assert_eq!(self.syncing.replace(lsn), None);
                }
                Action::Reply { connection, result, .. } => {
                    let held = result.map(|body| LogHeld::from_bytes(&body).unwrap());
                    self.replies.push((connection, held));
                }
                Action::Checkpoint { lsn } => {
                    self.backup.handle([Event::Checkpointed { lsn }], now).unwrap();
                }
                Action::AskTakeOver(request) => self.asked.push(request),
                other => panic!("a backup member does not ask for {other:?}"),
            }
        }
        if self.backup.has_to_store() {
            self.handle(Vec::new(), now);
        }
    }

    fn end_sync(&mut self, now: Duration) {
        if let Some(lsn) = self.syncing.take() {
            self.handle(vec![Event::Synced { lsn }], now);
        }
    }

    /// Returns the last record in the store.
    fn stored(&self) -> u64 {
        let value = self.backup.engine().get(&Key::Applied.to_bytes()).unwrap();
        value.map_or(0, |value| Lsn::from_bytes(&value).unwrap().raw())
    }
}

/// Returns the arrival of a request of the primary. `number` is the id of the request, and also its
/// connection.
fn arrival<R: Request>(number: u64, epoch: u64, request: &R) -> Event {
    let header = Header {
        message: R::ID,
        group: GROUP,
        epoch: Epoch::new(epoch),
        sender_group: GROUP,
        sender_epoch: Epoch::new(epoch),
        ..Header::default()
    };
    Event::Request { connection: number, header, body: request.to_bytes() }
}
