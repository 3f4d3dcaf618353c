//! The checks of a run. The ledger contains the log of the group, with all changes that clients may
//! have seen. The ledger compares the logs and stores of the members with its own log.
//!
//! # Method
//! The ledger has the log of the *writer*: the primary of the newest term that has begun. The
//! ledger passes each record that the writer appends to the witness. Records of a previous primary
//! that still runs do not count, because no later primary has these records. When a primary begins
//! its term, the ledger takes over the log of this primary. The witness reverts the records that
//! the primary lacks, and reports a violation if a client has received a reply about such a record.
//! Records that the primary has and that the ledger lacks come from a term in which no client
//! received a reply. The ledger adds these records.
//!
//! When a member confirms records to the writer, the records in its log must be equal to the
//! records of the ledger.

use super::authority::{GROUP, group_of, serves};
use super::cluster::Cluster;
use super::member::{Member, Role};
use crate::witness::Witness;
use skep_format::log::Record;
use skep_format::metadata::{Batch, Key};
use skep_metadata::engine::memory::MemoryEngine;
use skep_types::codec::Codec;
use skep_types::{ClusterMap, Epoch, Lsn, SessionId, TargetId};
use skep_wire::metadata::CompareSlotsReply;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;
/// The id of the confirming member's process, and the primary (target and process id) to which it
/// confirms records.
type Confirmation = (u64, Option<(TargetId, u64)>);

/// The log of the group, and the state of the checks.
pub(super) struct Ledger {
    pub(super) witness: Witness,
    /// Epoch and contents of each record, in the order of their LSNs. The first record has the LSN
    /// 1.
    records: Vec<(Epoch, Vec<u8>)>,
    /// The process that writes the log, and its term. `None` before the first start.
    writer: Option<(TargetId, u64)>,
    term: Epoch,
    /// The newest term whose primary has replied to a client, and this primary.
    answered: (Epoch, TargetId),
    /// Epochs of terms that have begun after all serving members had lost power. The primaries of
    /// these terms may lack changes without a durable reply.
    excused: BTreeSet<Epoch>,
    /// For each member: its last confirmation, and the last record that the ledger has compared.
    compared: BTreeMap<TargetId, (Confirmation, Lsn)>,
}

impl Ledger {
    pub(super) fn new(map: Arc<ClusterMap>) -> Self {
        Self {
            witness: Witness::new(map),
            records: Vec::new(),
            writer: None,
            term: Epoch::default(),
            answered: (Epoch::default(), TargetId::default()),
            excused: BTreeSet::new(),
            compared: BTreeMap::new(),
        }
    }

    pub(super) fn commits(&self) -> u64 {
        self.witness.commits
    }

    pub(super) fn is_blind(&self) -> bool {
        self.witness.is_blind
    }

    /// Records that management has chosen the primary of the term `term`. `is_excused` means that
    /// this primary may lack changes without a durable reply.
    pub(super) fn note_term(&mut self, term: Epoch, is_excused: bool) {
        if is_excused {
            self.excused.insert(term);
        }
    }

    /// Whether a process writes the log of the group.
    pub(super) fn is_writer(&self, target: TargetId, life: u64) -> bool {
        self.writer == Some((target, life))
    }

    /// Whether a later term than `term` has begun.
    pub(super) fn has_successor(&self, term: Epoch) -> bool {
        term < self.term
    }

    /// Checks that no primary of a later term, and no other primary of this term, has replied to a
    /// client before.
    pub(super) fn check_reply(&mut self, term: Epoch, target: TargetId) -> Result<(), String> {
        let (newest, by) = self.answered;
        if term < newest {
            return Err(format!(
                "target {target}, primary since {term}, replied after {by}, primary since {newest}"
            ));
        }
        if term == newest && target != by {
            return Err(format!("targets {by} and {target} replied as the primary since {term}"));
        }
        self.answered = (term, target);
        Ok(())
    }

    /// Checks the slots of a session that the writer sends to a client.
    pub(super) fn check_slots(&mut self, session: SessionId, body: &[u8]) -> Result<(), String> {
        let Ok(reply) = CompareSlotsReply::from_bytes(body) else { return Ok(()) };
        self.witness.check_slots(0, session, &reply.slots)
    }

    /// Adds a record that the writer has appended.
    pub(super) fn append(&mut self, lsn: Lsn, epoch: Epoch, payload: &[u8]) -> Result<(), String> {
        if lsn.raw() != self.last().raw() + 1 {
            return Err(format!("the primary appends record {lsn} after record {}", self.last()));
        }
        self.records.push((epoch, payload.to_vec()));
        self.witness.check_record(0, lsn, payload, &|_| 0)
    }

    pub(super) fn last(&self) -> Lsn {
        Lsn::new(self.records.len() as u64)
    }

    /// Notes that a process begins as the primary with this store and these records of its log.
    /// `is_excused` means that the primary is the only serving member, and that all serving members
    /// have lost power at one time since this member last had all records.
    pub(super) fn begin_primary(
        &mut self,
        process: (TargetId, u64),
        term: Epoch,
        (engine, records): (&MemoryEngine, &[Record]),
        is_excused: bool,
    ) -> Result<(), String> {
        if term < self.term {
            // The process has an old map, and cannot reply to clients any more.
            return Ok(());
        }
        let is_new_term = term > self.term;
        (self.term, self.writer) = (term, Some(process));
        self.check_store(process.0, engine)?;
        let applied = applied(engine);
        let kept = records.iter().take_while(|it| it.lsn <= applied || self.has(it)).last();
        let common = kept.map_or(applied, |it| it.lsn.max(applied));
        let is_excused = is_excused || is_new_term && self.excused.contains(&term);
        if common < self.last() {
            self.records.truncate(common.raw() as usize);
            let reverted = match is_excused {
                true => self.witness.power_loss(0, common),
                false => self.witness.lose_unheld(0, common),
            };
            reverted.map_err(|what| format!("target {} begins as primary: {what}", process.0))?;
        }
        self.witness.is_restoring = true;
        let mut added = records.iter().filter(|it| it.lsn > common);
        let result = added.try_for_each(|it| self.append(it.lsn, it.epoch, &it.payload));
        self.witness.is_restoring = false;
        result
    }

    fn has(&self, record: &Record) -> bool {
        let own = self.records.get(record.lsn.raw() as usize - 1);
        own.is_some_and(|(epoch, payload)| *epoch == record.epoch && *payload == record.payload)
    }

    /// Compares the records in a member's log with the log of the group. The member has confirmed
    /// to the writer that it has all records up to `appended`. Skips records that an earlier
    /// confirmation of the same process to the same writer has covered.
    ///
    /// Does not report missing records. If the missing records matter, a take-over or a power loss
    /// shows them.
    fn check_confirmed(&mut self, member: &Member, appended: Lsn) -> Result<(), String> {
        let confirmation = (member.life, self.writer);
        let before = self.compared.get(&member.target).filter(|it| it.0 == confirmation);
        let first = Lsn::new(before.map_or(0, |it| it.1.raw()) + 1);
        let last = appended.min(self.last());
        if last < first {
            return Ok(());
        }
        let records = member.disk.records_within(first, last);
        if let Some(record) = records.iter().find(|it| !self.has(it)) {
            let (target, lsn, epoch) = (member.target, record.lsn, record.epoch);
            return Err(format!(
                "the log of {target} differs at record {lsn} of epoch {epoch}, which it confirmed"
            ));
        }
        self.compared.insert(member.target, (confirmation, last));
        Ok(())
    }

    /// Checks that a store equals the store of the group at the same record.
    pub(super) fn check_store(
        &self,
        target: TargetId,
        engine: &MemoryEngine,
    ) -> Result<(), String> {
        let applied = applied(engine);
        if applied > self.last() {
            return Err(format!("the store of {target} is ahead of {}: {applied}", self.last()));
        }
        let expected = self.store_at(applied);
        let key = Key::Applied.to_bytes();
        let mut found = engine.pairs().filter(|(it, _)| **it != key);
        let mut both = expected.iter();
        loop {
            let (one, other) = (found.next(), both.next());
            if one != other {
                let differing = one.or(other).map(|it| it.0.escape_ascii().to_string());
                return Err(format!(
                    "the store of {target} differs at record {applied} in key {differing:?}"
                ));
            }
            if one.is_none() {
                return Ok(());
            }
        }
    }

    fn store_at(&self, last: Lsn) -> Pairs {
        let mut pairs = Pairs::new();
        for (_, payload) in &self.records[..last.raw() as usize] {
            for change in Batch::from_bytes(payload).map(|it| it.mutations).unwrap_or_default() {
                match change.value {
                    Some(value) => pairs.insert(change.key.0, value.0),
                    None => pairs.remove(&change.key.0),
                };
            }
        }
        pairs
    }
}

/// Returns the last record that an engine contains.
pub(super) fn applied(engine: &MemoryEngine) -> Lsn {
    crate::target::applied(engine).unwrap_or_default()
}

impl Cluster {
    /// Whether each serving member has lost power since the member last had all records.
    pub(super) fn all_serving_lost_power(&self) -> bool {
        let serving = self.members.iter().filter(|it| serves(self.map(), it.target));
        serving.into_iter().all(|it| it.lost_power)
    }

    /// If all serving members have lost power, records that they may lack changes without a durable
    /// reply.
    pub(super) fn excuse_losses(&mut self) {
        if self.all_serving_lost_power() {
            let map = Arc::clone(self.map());
            for member in self.members.iter_mut().filter(|it| serves(&map, it.target)) {
                member.is_excused = true;
            }
        }
    }

    /// Checks the log of a member that confirms records to the process `life` of member `to`.
    pub(super) fn check_held(&mut self, index: usize, (to, life): (usize, u64), appended: Lsn) {
        if self.ledger.is_writer(self.members[to].target, life) {
            let result = self.ledger.check_confirmed(&self.members[index], appended);
            self.check(result);
        }
    }

    /// Checks that the store of a member is complete and correct when management marks the member
    /// as in sync.
    pub(super) fn check_marked(&mut self, target: TargetId) {
        let Some(member) = self.members.iter().find(|it| it.target == target) else { return };
        let result = match &member.role {
            Role::Backup(backup) => self.ledger.check_store(target, backup.engine()),
            Role::Copying(_) => Err(format!("{target} serves, and its store is incomplete")),
            // The process has ended or has become the primary since its last reply.
            Role::Down | Role::Waiting | Role::Primary(_) | Role::Former(_) => Ok(()),
        };
        self.check(result);
    }

    /// Checks that all work is finished, and that all members serve with equal stores.
    pub(super) fn check_whole(&self) -> Result<(), String> {
        if let Some(client) = self.clients.iter().find(|it| it.is_busy()) {
            return Err(format!("{client:?} is busy"));
        }
        let group = group_of(self.map());
        for member in &group.members {
            let target = member.target;
            if !serves(self.map(), target) {
                return Err(format!("{target} does not serve: {group:?}"));
            }
            let Some(process) = self.members.iter().find(|it| it.target == target) else {
                return Err(format!("{target} does not exist"));
            };
            let engine = match &process.role {
                Role::Primary(primary) if target == group.primary => {
                    if !primary.is_idle() {
                        return Err(format!("{target} is not idle"));
                    }
                    primary.engine()
                }
                Role::Backup(backup) if target != group.primary => backup.engine(),
                role => return Err(format!("{target} has the role {}", role.name())),
            };
            if applied(engine) != self.ledger.last() {
                let (applied, last) = (applied(engine), self.ledger.last());
                return Err(format!("{target} has stored record {applied} of {last}"));
            }
            self.ledger.check_store(target, engine)?;
        }
        assert_eq!(group.id, GROUP, "the simulated group");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::authority::first_map;
    use super::super::knobs::GroupKnobs;
    use super::*;
    use crate::random::Random;

    const TERM: Epoch = Epoch::new(3);
    const ONE: TargetId = TargetId::new(1);
    const OTHER: TargetId = TargetId::new(2);

    fn ledger_and_member() -> (Ledger, Member) {
        let mut random = Random::new(1);
        let knobs = GroupKnobs::draw(&mut random, None);
        let map = Arc::new(first_map(&knobs));
        (Ledger::new(Arc::clone(&map)), Member::new(OTHER, &knobs, &map, &mut random))
    }

    #[test]
    fn two_primaries_in_one_term_are_reported() {
        let (mut ledger, _) = ledger_and_member();
        for _ in 0..2 {
            assert_eq!(ledger.check_reply(TERM, ONE), Ok(()));
        }
        let what = ledger.check_reply(TERM, OTHER).expect_err("another target in the term");
        assert!(what.contains("replied as the primary since"), "{what}");
    }

    #[test]
    fn confirmed_records_that_differ_are_reported() {
        let (mut ledger, mut member) = ledger_and_member();
        ledger.writer = Some((ONE, 1));
        for (lsn, own) in [(1, b"one"), (2, b"bad")] {
            let payload = if lsn == 1 { b"one" } else { b"two" };
            ledger.records.push((TERM, payload.to_vec()));
            let appended = member.disk.append(TERM, Lsn::new(lsn), Lsn::default(), own);
            appended.expect("a small record");
        }
        assert_eq!(ledger.check_confirmed(&member, Lsn::new(1)), Ok(()));
        let what = ledger.check_confirmed(&member, Lsn::new(2)).expect_err("another record");
        assert!(what.contains("differs at record"), "{what}");
    }
}
