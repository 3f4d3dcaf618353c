//! A primary and a member that gets a copy of its store, over a simulated network.
//!
//! The member changes its role as in a real service. After it has discarded its store, it begins a
//! copy with an empty store. When the copy is complete, the member opens as a backup member with
//! the durable state of its store.

use super::*;
use crate::shipping::copy_receiver::{CopyOutcome, CopyReceiver};
use crate::shipping::copy_sender::StorePage;
use crate::shipping::{FoundRecords, LogRead};
use skep_wire::log_shipping::{CopyStore, StoreCopied, StoredPair};
use std::collections::BTreeMap;

/// Number of key-value pairs in one part of a copy.
pub(super) const PART_PAIRS: usize = 3;
pub(super) const RATE: u64 = 1 << 30;

/// Returns a cluster map in which the member does not serve.
pub(super) fn waiting_map(epoch: u64) -> Arc<ClusterMap> {
    let mut map = ClusterMap::clone(&map(epoch));
    map.groups[0].members[1].state = MemberState::Waiting;
    Arc::new(map)
}

pub(super) fn start(epoch: u64, now: Duration) -> Start {
    Start {
        group: GROUP,
        target: BACKUP,
        epoch: Epoch::default(),
        counted: Vec::new(),
        synced: None,
        policy: SyncPolicy::Interval,
        limits: Limits { checkpoint_log_bytes: 60, ..Limits::default() },
        map: waiting_map(epoch),
        now,
        wall: Timestamp::default(),
    }
}

fn backup(engine: MemoryEngine, log: Vec<Record>, start: Start) -> Backup<MemoryEngine> {
    Backup::open(engine, log, start, TAKE_OVER_AFTER).unwrap()
}

/// Returns the key-value pairs of a store, without `Key::Applied`.
pub(super) fn pairs_of(engine: &MemoryEngine) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let applied = Key::Applied.to_bytes();
    let pairs = engine.pairs().filter(|(key, _)| **key != applied);
    pairs.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// The role of the member.
pub(super) enum Role {
    Backup(Backup<MemoryEngine>),
    Copying(CopyReceiver<MemoryEngine>),
}

/// The member, with its disk.
pub(super) struct Receiver {
    pub(super) role: Role,
    /// The member's log in the role of a backup member.
    pub(super) log: Vec<Record>,
    pub(super) syncing: Option<Lsn>,
    /// A checkpoint in progress, and the number of batches that the store had when it began.
    pub(super) checkpoint: Option<(Lsn, usize)>,
    pub(super) epoch: u64,
    pub(super) replies: Vec<(u64, u16, Result<Vec<u8>>)>,
    /// Number of times that the member has removed its store.
    pub(super) discards: u32,
}

impl Receiver {
    pub(super) fn begin(engine: MemoryEngine, log: Vec<Record>, epoch: u64, now: Duration) -> Self {
        let role = Role::Backup(backup(engine, log.clone(), start(epoch, now)));
        let (syncing, checkpoint, replies) = (None, None, Vec::new());
        Self { role, log, syncing, checkpoint, epoch, replies, discards: 0 }
    }

    pub(super) fn engine(&self) -> &MemoryEngine {
        match &self.role {
            Role::Backup(backup) => backup.engine(),
            Role::Copying(receiver) => receiver.engine(),
        }
    }

    /// Whether the copy has all pairs, but is not durable yet.
    pub(super) fn is_whole(&self) -> bool {
        let engine = self.engine();
        let has = |key: Key| engine.get(&key.to_bytes()).unwrap().is_some();
        self.is_copying() && has(Key::Applied) && !has(Key::StoreCopy)
    }

    pub(super) fn is_copying(&self) -> bool {
        matches!(self.role, Role::Copying(_))
    }

    /// Opens the member again with this store.
    pub(super) fn open(&mut self, engine: MemoryEngine, now: Duration) {
        let start = start(self.epoch, now);
        (self.syncing, self.checkpoint) = (None, None);
        self.role = match &self.role {
            Role::Backup(_) => Role::Backup(backup(engine, self.log.clone(), start)),
            Role::Copying(_) => Role::Copying(CopyReceiver::open(engine, start).unwrap()),
        };
    }

    pub(super) fn discard(&mut self, now: Duration) {
        self.log.clear();
        (self.syncing, self.checkpoint) = (None, None);
        self.discards += 1;
        let start = start(self.epoch, now);
        self.role = Role::Copying(CopyReceiver::open(MemoryEngine::default(), start).unwrap());
    }

    pub(super) fn handle(&mut self, events: Vec<Event>, now: Duration) {
        let actions = match &mut self.role {
            Role::Backup(backup) => backup.handle(events, now).unwrap(),
            Role::Copying(receiver) => receiver.handle(events, now).unwrap(),
        };
        for action in actions {
            match action {
                Action::Append { epoch, lsn, synced, payload } => {
                    self.log.push(Record { epoch, lsn, synced, payload });
                }
                Action::Truncate { after } => self.log.retain(|record| record.lsn <= after),
                Action::Sync { lsn } => self.syncing = Some(lsn),
                Action::Reply { connection, request, result } => {
                    self.replies.push((connection, request.message, result));
                }
                Action::Checkpoint { lsn } => {
                    let batches = self.engine().batches_since_checkpoint();
                    assert_eq!(
                        self.checkpoint.replace((lsn, batches)),
                        None,
                        "one checkpoint at a time"
                    );
                }
                other => panic!("a member without a complete store does not ask for {other:?}"),
            }
        }
        match &self.role {
            Role::Backup(backup) => {
                backup.check_invariants();
                if backup.discards() {
                    self.discard(now);
                } else if backup.has_to_store() {
                    self.handle(Vec::new(), now);
                }
            }
            Role::Copying(receiver) => {
                receiver.check_invariants();
                match receiver.outcome() {
                    CopyOutcome::Running => {}
                    CopyOutcome::Discard => self.discard(now),
                    CopyOutcome::Complete => {
                        let engine = receiver.engine().after_power_loss(0);
                        let (lsn, epoch) = receiver.last_record();
                        let mut backup = backup(engine, Vec::new(), start(self.epoch, now));
                        backup.set_epoch_of(lsn, epoch);
                        (self.role, self.checkpoint) = (Role::Backup(backup), None);
                    }
                }
            }
        }
    }

    /// Ends a checkpoint. If the store has changed since the checkpoint began, the simulated disk
    /// does not keep the new state, because a real device may not have the later changes.
    pub(super) fn end_checkpoint(&mut self, now: Duration) {
        let Some((lsn, batches)) = self.checkpoint.take() else { return };
        if self.engine().batches_since_checkpoint() == batches {
            match &mut self.role {
                Role::Backup(backup) => backup.engine_mut().checkpoint(),
                Role::Copying(receiver) => receiver.engine_mut().checkpoint(),
            }
        }
        self.handle(vec![Event::Checkpointed { lsn }], now);
    }

    pub(super) fn end_sync(&mut self, now: Duration) {
        if let Some(lsn) = self.syncing.take() {
            self.handle(vec![Event::Synced { lsn }], now);
        }
    }
}

pub(super) enum Message {
    /// The end of a read of the primary's log.
    LogRead(LogRead),
    Request(u64, MemberMessage),
    Reply(u64, u16, Result<Vec<u8>>),
}

/// The primary, with its store, and the network to the member.
pub(super) struct Source {
    pub(super) shipper: Shipper,
    pub(super) engine: MemoryEngine,
    pub(super) log: Vec<Record>,
    /// Last record in the store.
    pub(super) stored: u64,
    pub(super) epoch: u64,
    pub(super) member: Receiver,
    pub(super) network: Vec<(Duration, Message)>,
    pub(super) now: Duration,
    pub(super) parts: u32,
    /// LSN of the first record of the primary's log on disk.
    pub(super) log_begins: u64,
    /// Number of reads of the log on disk that have found records.
    pub(super) log_reads: u32,
    /// Whether parts after the first part have only records, as if the copy lacked many records.
    pub(super) is_without_pairs: bool,
}

impl Source {
    /// Creates a primary with `count` records, which are only in its store: neither in memory nor
    /// in the log on disk. The member has the first `known` records in its log.
    pub(super) fn begin(count: u64, known: u64) -> Self {
        let mut log = Vec::new();
        (0..count).for_each(|seed| push_record(&mut log, 1, seed * 7));
        let of_member = log[..known.min(count) as usize].to_vec();
        let now = Duration::from_secs(1);
        let mut source = Self {
            shipper: Shipper::new(Epoch::new(4), RecordWindow::after(Lsn::new(count))),
            engine: MemoryEngine::default(),
            log,
            stored: 0,
            epoch: 4,
            member: Receiver::begin(MemoryEngine::default(), of_member, 4, now),
            network: Vec::new(),
            now,
            parts: 0,
            log_begins: count + 1,
            log_reads: 0,
            is_without_pairs: false,
        };
        source.store(count);
        source.shipper.set_epoch_of(Lsn::new(count), Epoch::new(u64::from(count > 0)));
        source.shipper.set_members(&[], &[BACKUP]);
        source
    }

    pub(super) fn append(&mut self, seed: u64) {
        push_record(&mut self.log, self.epoch, seed);
        let record = self.log.last().unwrap();
        self.shipper.append(record.epoch, record.lsn, record.synced, &record.payload);
    }

    /// Writes the changes of the records up to `last` to the primary's store, in one step.
    pub(super) fn store(&mut self, last: u64) {
        let last = last.min(self.log.len() as u64);
        if last <= self.stored {
            return;
        }
        let mut changes = crate::engine::Mutations::new();
        for record in &self.log[self.stored as usize..last as usize] {
            let batch = Batch::from_bytes(&record.payload).unwrap();
            let mutations = batch.mutations.into_iter();
            changes.extend(mutations.map(|it| (it.key.0, it.value.map(|value| value.0))));
        }
        self.engine.apply(&changes, Lsn::new(last)).unwrap();
        self.stored = last;
    }

    /// Restarts the primary, which then has only the records after `kept` in memory.
    pub(super) fn restart(&mut self, kept: u64) {
        let kept = kept.min(self.stored);
        let mut window = RecordWindow::after(Lsn::new(kept));
        self.log[kept as usize..].iter().for_each(|record| window.push(record.clone()));
        self.shipper = Shipper::new(Epoch::new(self.epoch), window);
        if let Some(before) = (kept as usize).checked_sub(1) {
            self.shipper.set_epoch_of(Lsn::new(kept), self.log[before].epoch);
        }
        self.shipper.set_members(&[], &[BACKUP]);
        let is_request = |message: &Message| matches!(message, Message::Request(..));
        self.network.retain(|(_, message)| is_request(message));
    }

    pub(super) fn begin_epoch(&mut self) {
        self.epoch += 1;
        self.shipper.begin_epoch(Epoch::new(self.epoch));
        self.member.epoch = self.epoch;
        self.member.handle(vec![Event::Map(waiting_map(self.epoch))], self.now);
    }

    pub(super) fn page(&self, after: &[u8]) -> StorePage {
        let found = self.engine.scan(&[], after, PART_PAIRS).unwrap();
        let is_last = found.len() < PART_PAIRS;
        let applied = Key::Applied.to_bytes();
        let pairs = found.into_iter().filter(|(key, _)| *key != applied);
        let pairs = pairs.map(|(key, value)| StoredPair { key: Bytes(key), value: Bytes(value) });
        StorePage { pairs: pairs.collect(), is_last }
    }

    pub(super) fn ship(&mut self, delay: Duration) {
        let stored = Lsn::new(self.stored);
        for (member, wanted) in self.shipper.wanted_parts(stored, self.now) {
            let is_first = wanted.after.is_empty();
            let page = match is_first || wanted.has_pairs && !self.is_without_pairs {
                true => self.page(&wanted.after),
                false => StorePage::default(),
            };
            self.shipper.put_part(member, (stored, page), RATE, self.now);
            self.parts += 1;
        }
        let (epoch, safe) = (Epoch::new(self.epoch), Lsn::new(self.log.len() as u64));
        let log = GroupLog {
            epoch,
            held: safe,
            safe,
            synced: safe,
            sync_wanted: Lsn::default(),
            wait_ms: 0,
        };
        for MemberRequest { number, message, .. } in self.shipper.requests(&log, self.now) {
            self.network.push((self.now + delay, Message::Request(number, message)));
        }
        for read in self.shipper.log_reads() {
            self.network.push((self.now + delay, Message::LogRead(read)));
        }
        self.shipper.check_invariants(safe, safe);
    }

    /// Loses a message, unless it is the end of a read of the log.
    pub(super) fn lose(&mut self, index: usize) {
        if !matches!(self.network[index].1, Message::LogRead(_)) {
            self.network.remove(index);
        }
    }

    /// Reads two or three records of the log on disk.
    fn read_log(&mut self, read: LogRead) {
        let LogRead { member, first, last } = read;
        let begins = self.log_begins.min(self.log.len() as u64 + 1);
        let most = if begins <= first.raw() { 2 + first.raw() % 2 } else { 0 };
        let count = most.min(last.raw() + 1 - first.raw()) as usize;
        let records: Vec<_> =
            self.log.iter().skip(first.raw() as usize - 1).take(count).cloned().collect();
        self.log_reads += u32::from(!records.is_empty());
        let found = FoundRecords { begins: Lsn::new(begins), records, bytes_after: 0 };
        self.shipper.on_log_read(member, first, Ok(found));
    }

    pub(super) fn deliver(&mut self, message: Message) {
        match message {
            Message::LogRead(read) => self.read_log(read),
            Message::Request(number, message) => {
                let event = match &message {
                    MemberMessage::Ship(ship) => arrival(number, ship.epoch.raw(), ship),
                    MemberMessage::AwaitSync(wait) => arrival(number, wait.epoch.raw(), wait),
                    MemberMessage::Copy(part) => arrival(number, part.epoch.raw(), part.as_ref()),
                };
                self.member.handle(vec![event], self.now);
            }
            Message::Reply(number, CopyStore::ID, result) => {
                let result = result.map(|body| StoreCopied::from_bytes(&body).unwrap());
                self.shipper.on_copy_reply(BACKUP, number, &result, self.now);
            }
            Message::Reply(number, _, result) => {
                let result = result.map(|body| LogHeld::from_bytes(&body).unwrap());
                self.shipper.on_reply(BACKUP, number, &result, self.now);
            }
        }
    }

    /// Moves the clock forward by `pause`, and delivers the messages that arrive until then.
    /// Replies take the time `delay`.
    pub(super) fn advance(&mut self, pause: Duration, delay: Duration) {
        self.now += pause;
        let now = self.now;
        let all = std::mem::take(&mut self.network);
        let (due, later): (Vec<_>, Vec<_>) = all.into_iter().partition(|it| it.0 <= now);
        self.network = later;
        due.into_iter().for_each(|(_, message)| self.deliver(message));
        self.member.handle(vec![Event::Tick], self.now);
        for (number, message, result) in std::mem::take(&mut self.member.replies) {
            self.network.push((self.now + delay, Message::Reply(number, message, result)));
        }
        self.check_prefix();
    }

    /// Checks an incomplete copy: up to the last copied key, it must equal the primary's store
    /// after the record in `Key::Applied`.
    pub(super) fn check_prefix(&self) {
        if !self.member.is_copying() {
            return;
        }
        let engine = self.member.engine();
        let applied = engine.get(&Key::Applied.to_bytes()).unwrap();
        let Some(applied) = applied.map(|value| Lsn::from_bytes(&value).unwrap()) else { return };
        let copy = engine.get(&Key::StoreCopy.to_bytes()).unwrap();
        let copy: Option<skep_format::metadata::StoreCopyRecord> =
            copy.map(|value| Codec::from_bytes(&value).unwrap());
        let mut expected = BTreeMap::new();
        for record in &self.log[..applied.raw() as usize] {
            for it in Batch::from_bytes(&record.payload).unwrap().mutations {
                match it.value {
                    Some(value) => expected.insert(it.key.0, value.0),
                    None => expected.remove(&it.key.0),
                };
            }
        }
        expected.retain(|key, _| copy.as_ref().is_none_or(|it| *key <= it.after.0));
        let mut found = pairs_of(engine);
        found.remove(&Key::StoreCopy.to_bytes());
        assert_eq!(found, expected, "the copy at record {applied}");
    }

    /// Lets all messages arrive, until the member is a backup member with the same store as the
    /// primary.
    pub(super) fn settle(&mut self) {
        for _ in 0..4000 {
            self.store(u64::MAX);
            self.ship(Duration::from_millis(1));
            self.is_without_pairs = false;
            self.member.end_sync(self.now);
            self.member.end_checkpoint(self.now);
            self.advance(Duration::from_millis(5), Duration::from_millis(1));
            let stored = self.member.engine().get(&Key::Applied.to_bytes()).unwrap();
            let stored = stored.map_or(0, |value| Lsn::from_bytes(&value).unwrap().raw());
            if !self.member.is_copying() && stored == self.log.len() as u64 {
                assert_eq!(pairs_of(self.member.engine()), pairs_of(&self.engine));
                return;
            }
        }
        panic!("the member does not get all records");
    }

    /// Runs without faults until the member has received `parts` parts of the copy.
    pub(super) fn send_parts(&mut self, parts: u32) {
        for _ in 0..2000 {
            if self.parts >= parts {
                return;
            }
            self.ship(Duration::from_millis(1));
            self.advance(Duration::from_millis(5), Duration::from_millis(1));
        }
        panic!("only {} parts were sent", self.parts);
    }
}

/// Adds a record that changes or removes up to two of 40 keys.
pub(super) fn push_record(log: &mut Vec<Record>, epoch: u64, seed: u64) {
    let lsn = log.len() as u64 + 1;
    let mutation = |key: u64, is_removal: bool| Mutation {
        key: Bytes(vec![9, (key % 40) as u8]),
        value: (!is_removal).then(|| Bytes(vec![lsn as u8, seed as u8])),
    };
    let batch =
        [mutation(seed, seed.is_multiple_of(5)), mutation(seed / 3 + 11, seed.is_multiple_of(7))];
    let mut mutations = batch.to_vec();
    mutations.sort_by(|one, other| one.key.0.cmp(&other.key.0));
    mutations.dedup_by(|one, other| one.key == other.key);
    let payload = Batch { mutations }.to_bytes();
    let (epoch, lsn) = (Epoch::new(epoch), Lsn::new(lsn));
    log.push(Record { epoch, lsn, synced: Lsn::default(), payload });
}

pub(super) fn copy(message: &Message) -> Message {
    match message {
        Message::LogRead(read) => Message::LogRead(*read),
        Message::Request(number, message) => Message::Request(*number, message.clone()),
        Message::Reply(number, id, result) => Message::Reply(*number, *id, result.clone()),
    }
}
