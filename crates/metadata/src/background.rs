//! What a target does by itself: numbers, ended sessions, chunk files to be removed, sizes of files
//! whose writer died, transactions that wait for the end of others.

use crate::engine::Engine;
use crate::handlers::{decide, make_directory};
use crate::limits::{
    ASK_AFTER, CLOSE_BYTES, END_KEPT_SECONDS, FORGET_EVERY, RETRY_PAUSE, SIZE_RECOVERIES_AT_ONCE,
};
use crate::namespace::truncations;
use crate::target::{MetadataTarget, Purpose};
use crate::tx::context::Context;
use crate::tx::epochs;
use crate::tx::locks::{Owner, Resource};
use crate::tx::operation::{Internal, OutgoingCall, SizeQuestion, Stop};
use crate::tx::steps;
use skep_cluster::striping;
use skep_format::metadata::{
    DecisionRecord, InodeRecord, Key, OpenCounts, PreparedRecord, SessionRecord, decode_value,
    is_work_item, last_u64, removal, transaction_of,
};
use skep_types::codec::Codec;
use skep_types::{
    ChunkFileKey, FileKind, GroupId, InodeId, Lsn, Result, SessionId, StripePattern, Timestamp,
};
use skep_wire::frame::Header;
use skep_wire::metadata::{
    AskDecision, Decide, Decision, DecisionReply, NewInode, TransactionId, WrittenExtent,
};
use skep_wire::storage::{ChunkStat, RemoveChunks, StatChunk};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// What an answer from another group is for, when no operation waits for it.
#[derive(Debug)]
pub(crate) enum BackgroundCall {
    /// A participant was told how a transaction ended.
    Told { number: u64, group: GroupId, commit: bool },
    /// Chunk files were to be removed; the keys of the work items.
    Remove { group: GroupId, items: Vec<Vec<u8>> },
    /// A coordinator was asked how a transaction ended.
    Ask(TransactionId),
    /// A chunk file was to be cut for a truncation.
    Truncation(InodeId),
    /// A chunk file was asked for its size.
    Stat { inode: InodeId, component: u16, index: u16 },
}

#[derive(Debug)]
struct SizeRecovery {
    pattern: StripePattern,
    found_for: SizeQuestion,
    waiting: usize,
    size: u64,
    has_failed: bool,
}

/// Work items that the engine doesn't have yet: whether there are any, and the groups of removals.
#[derive(Debug, Default)]
struct NewItems {
    any: bool,
    removals: BTreeSet<GroupId>,
}

/// State of the target's own work. All of it can be made anew from the store.
#[derive(Debug, Default)]
pub(crate) struct Background {
    /// Whether the store may have work items that were not looked at.
    look: bool,
    /// Items that were written since the last sync began.
    written: NewItems,
    /// Items that are being synced.
    syncing: NewItems,
    /// Groups that may have something to remove, and those of them that are at it.
    to_remove: BTreeSet<GroupId>,
    removing: BTreeSet<GroupId>,
    /// Groups that have refused a removal, files of which a chunk file couldn't be asked for its
    /// size, and until when they are left alone.
    resting: BTreeMap<GroupId, Duration>,
    resting_sizes: BTreeMap<InodeId, Duration>,
    /// Commits of which a participant didn't want to hear, and when it is told again.
    untold: Vec<(Duration, GroupId, u64)>,
    /// Where the search for a group's removals goes on: before it lie the tombstones of those done.
    cursors: BTreeMap<GroupId, Vec<u8>>,
    /// Ended sessions of which something is left to be closed. One piece of one session is done in
    /// each batch, so that requests don't wait for the end of a large session.
    pub(crate) ending: VecDeque<SessionId>,
    recovering: BTreeMap<InodeId, SizeRecovery>,
    /// Promises that wait for their end, and when to ask (again).
    prepared: BTreeMap<TransactionId, Duration>,
    is_reserving: bool,
    /// When the next search for ends to be forgotten begins, or goes on.
    forget_at: Duration,
    /// Where it goes on: in which kind of them, after which key.
    forget_after: (usize, Vec<u8>),
}

impl Background {
    /// Notes that a transaction has written a key.
    pub(crate) fn wrote(&mut self, key: &[u8]) {
        if is_work_item(key) {
            self.written.any = true;
            self.written.removals.extend(removal(key).map(|(group, _)| group));
        }
    }

    /// Something that was left alone can be gone on with.
    pub(crate) fn look_again(&mut self) {
        self.look = true;
    }

    /// A sync begins. What is written while it runs has to wait for the next one: looked for after
    /// this one, it wouldn't be found, and not looked for again.
    pub(crate) fn before_sync(&mut self) {
        self.syncing = std::mem::take(&mut self.written);
    }

    pub(crate) fn after_sync(&mut self) {
        let mut items = std::mem::take(&mut self.syncing);
        self.look |= items.any;
        self.to_remove.append(&mut items.removals);
    }
}

/// Runs the target's own work as a transaction.
pub(crate) fn run_internal<E: Engine>(
    context: &mut Context<'_, E>,
    work: &Internal,
) -> Result<(), Stop> {
    match work {
        Internal::MakeRoot => make_root(context),
        Internal::BeginEpoch => epochs::begin(context),
        Internal::ReserveNumbers => {
            let end = context.shared.numbers.reserved.0 + context.shared.limits.number_range;
            context.put(&Key::NumbersReserved, &end);
            Ok(())
        }
        Internal::SessionEnded(session) => session_ended(context, *session),
        Internal::EndSession(session) => end_session(context, *session),
        Internal::Confirmed { number, participant } => confirmed(context, *number, *participant),
        Internal::Forget(keys) => {
            keys.iter().for_each(|key| context.delete_raw(key.clone()));
            Ok(())
        }
        Internal::EndPrepared { transaction, commit } => {
            decide::end(context, *transaction, *commit)
        }
        Internal::Truncated(inode) => truncations::truncated(context, *inode),
        Internal::SizeFound { inode, size, found_for } => {
            size_found(context, *inode, *size, *found_for)
        }
    }
}

fn session_ended<E: Engine>(context: &mut Context<'_, E>, session: SessionId) -> Result<(), Stop> {
    let now = context.wall();
    context.put(&Key::SessionEnd(session), &now);
    let record = context.get::<SessionRecord>(&Key::Session(session))?;
    let map = &context.shared.map;
    if record.is_some_and(|record| map.has_removed(record.client)) {
        // Whatever is given back from now on: who gets it relies on this map.
        let version = map.version;
        context.put(&Key::Fence, &version);
    }
    Ok(())
}

fn make_root<E: Engine>(context: &mut Context<'_, E>) -> Result<(), Stop> {
    if context.find_inode(InodeId::ROOT)?.is_some() {
        return Ok(());
    }
    let new = NewInode { permissions: 0o755, umask: 0, uid: 0, gid: 0 };
    let attributes = context.new_attributes(InodeId::ROOT, FileKind::Directory, &new, None);
    make_directory::put_inode(context, InodeId::ROOT, &attributes, None);
    Ok(())
}

/// Closes some of what a session had open, then frees what it had locked; the last piece forgets
/// the session.
fn end_session<E: Engine>(context: &mut Context<'_, E>, session: SessionId) -> Result<(), Stop> {
    let limit = context.shared.limits.closes_per_batch;
    let opens = context.scan(&Key::opens_of(session), &[], limit)?;
    let mut is_last = opens.len() < limit;
    for (key, value) in opens {
        if context.written_bytes() > CLOSE_BYTES {
            is_last = false;
            break;
        }
        let counts: OpenCounts = decode_value(&key, &value)?;
        let Some(inode) = last_u64(&key).map(InodeId::new) else { continue };
        let record = context.find_inode(inode)?;
        context.uncount_opens(session, inode, counts)?;
        let Some(record) = record else { continue };
        if record.attributes.links == 0 && context.opens(inode)?.is_zero() {
            // What the dead writer wrote is not known: all of its chunk files are looked for.
            let high_water = match counts.writers {
                0 => record.high_water,
                _ => skep_types::MAX_FILE_BYTES,
            };
            context.dispose(&InodeRecord { high_water, ..record })?;
        } else if counts.writers > 0 {
            // A new number: a search that is under way has perhaps not seen what this one wrote.
            let death = context.next_number()?;
            context.put(&Key::SizeRecovery(inode), &death);
        }
    }
    if is_last {
        // After the opens: who gets a lock then finds that sizes are being asked for.
        let locks = context.scan(&Key::file_locks_of(session), &[], limit)?;
        is_last = locks.len() < limit;
        locks.into_iter().for_each(|(key, _)| context.delete_raw(key));
    }
    if is_last {
        for (key, _) in context.scan(&Key::slots_of(session), &[], usize::MAX)? {
            context.delete_raw(key);
        }
        context.delete(&Key::Session(session));
    }
    Ok(())
}

fn confirmed<E: Engine>(
    context: &mut Context<'_, E>,
    number: u64,
    participant: GroupId,
) -> Result<(), Stop> {
    let key = Key::Decision(number);
    if let Some(mut decision) = context.get::<DecisionRecord>(&key)? {
        decision.participants.retain(|it| *it != participant);
        if decision.participants.is_empty() {
            context.delete(&key);
        } else {
            context.put(&key, &decision);
        }
    }
    Ok(())
}

fn size_found<E: Engine>(
    context: &mut Context<'_, E>,
    inode: InodeId,
    size: u64,
    found_for: SizeQuestion,
) -> Result<(), Stop> {
    let Some(death) = context.get::<u64>(&Key::SizeRecovery(inode))? else { return Ok(()) };
    if context.shared.truncations.contains(inode) {
        // What it was found from is being cut.
        return Err(Stop::Held(Resource::Truncation(inode)));
    }
    let record = context.find_inode(inode)?;
    let truncate_generation =
        record.as_ref().map_or(0, |record| record.attributes.truncate_generation);
    if found_for != (SizeQuestion { death, truncate_generation }) {
        // Another writer has died since, or the file was cut: it is asked for anew.
        return Ok(());
    }
    context.delete(&Key::SizeRecovery(inode));
    if let Some(mut record) = record {
        let size = size.max(context.inline_reach(&record)?);
        if size > record.attributes.size {
            let truncate_generation = record.attributes.truncate_generation;
            // In which order it was written nobody knows any more.
            let written =
                WrittenExtent { end: size, truncate_generation, may_leave_holes: true, reach: 0 };
            context.merge_written(&mut record, &written);
        }
        record.high_water = record.high_water.max(size);
        context.put_inode(&record);
    }
    Ok(())
}

impl<E: Engine> MetadataTarget<E> {
    pub(crate) fn load_background(&mut self) -> Result<()> {
        self.background.look = true;
        self.load_removals()?;
        let now = self.shared.now;
        for (key, value) in self.table.scan(&Key::prepared(), &[], usize::MAX)? {
            let Some(transaction) = transaction_of(&key) else { continue };
            let record: PreparedRecord = decode_value(&key, &value)?;
            for resource in steps::resources(&record.steps, &record.attributes) {
                self.shared.locks.try_take(&resource, Owner::Prepared(transaction));
            }
            self.background.prepared.insert(transaction, now);
        }
        for (key, value) in self.table.scan(&Key::decisions(), &[], usize::MAX)? {
            let Some(number) = last_u64(&key) else { continue };
            let decision: DecisionRecord = decode_value(&key, &value)?;
            for participant in decision.participants {
                self.tell(participant, number, true, None);
            }
        }
        Ok(())
    }

    /// Starts whatever own work there is to do.
    pub(crate) fn work_in_background(&mut self) -> Result<()> {
        let numbers = &self.shared.numbers;
        let left = numbers.reserved.0 - numbers.next.min(numbers.reserved.0);
        if left <= self.shared.limits.number_range / 2 && !self.background.is_reserving {
            self.background.is_reserving = true;
            self.start_internal(Internal::ReserveNumbers);
        }
        self.ask_for_decisions();
        if let Some(session) = self.background.ending.pop_front() {
            self.start_internal(Internal::EndSession(session));
        }
        self.forget_ends()?;
        self.try_again();
        if std::mem::take(&mut self.background.look) {
            self.start_removals()?;
            self.start_size_recoveries()?;
        }
        Ok(())
    }

    /// Forgets transactions of others and sessions that ended long ago: some in each batch, until
    /// all were looked at.
    fn forget_ends(&mut self) -> Result<()> {
        if self.shared.now < self.background.forget_at {
            return Ok(());
        }
        let kinds = [Key::finished(), Key::session_ends()];
        let (kind, after) = std::mem::take(&mut self.background.forget_after);
        let limit = self.shared.limits.ends_per_batch;
        let page = self.table.scan(&kinds[kind], &after, limit)?;
        match page.last() {
            Some((last, _)) if page.len() == limit => {
                self.background.forget_after = (kind, last.clone());
            }
            _ if kind + 1 < kinds.len() => self.background.forget_after = (kind + 1, Vec::new()),
            _ => self.background.forget_at = self.shared.now + FORGET_EVERY,
        }
        let before = self.shared.wall.seconds - END_KEPT_SECONDS;
        let mut old = Vec::new();
        for (key, value) in page {
            let is_old = decode_value::<Timestamp>(&key, &value)?.seconds < before;
            // A session of which something is still open must not be thought alive.
            let session = last_u64(&key).filter(|_| key.starts_with(&Key::session_ends()));
            let record = session.map(|it| Key::Session(SessionId::new(it)).to_bytes());
            let is_left = record.map(|key| self.table.get(&key)).transpose()?.flatten().is_some();
            if is_old && !is_left {
                old.push(key);
            }
        }
        if !old.is_empty() {
            self.start_internal(Internal::Forget(old));
        }
        Ok(())
    }

    /// Notes what a committed piece of own work means.
    pub(crate) fn after_internal(&mut self, work: Internal, lsn: Lsn) {
        match work {
            Internal::ReserveNumbers => {
                let end = self.shared.numbers.reserved.0 + self.shared.limits.number_range;
                self.shared.numbers.reserved = (end, lsn);
                self.background.is_reserving = false;
            }
            Internal::BeginEpoch => self.after_epoch(lsn),
            Internal::SessionEnded(session) => self.background.ending.push_back(session),
            Internal::EndSession(session) => {
                // The last piece removes the record; before it there is more to close.
                let key = Key::Session(session).to_bytes();
                if !matches!(self.table.get(&key), Ok(None)) {
                    self.background.ending.push_back(session);
                }
            }
            Internal::EndPrepared { transaction, .. } => {
                self.background.prepared.remove(&transaction);
                self.release(Owner::Prepared(transaction));
            }
            Internal::Truncated(inode) => self.end_truncation(inode),
            Internal::SizeFound { inode, .. } => {
                self.background.recovering.remove(&inode);
                self.background.look = true;
            }
            Internal::Forget(_) | Internal::MakeRoot | Internal::Confirmed { .. } => {}
        }
    }

    /// A coordinator has told how its transaction ended, and that is committed here.
    pub(crate) fn after_decide(&mut self, transaction: TransactionId) {
        self.background.prepared.remove(&transaction);
        self.release(Owner::Prepared(transaction));
    }

    /// Notes a prepared transaction, if one was made.
    pub(crate) fn after_prepare(&mut self, transaction: TransactionId) -> Result<()> {
        if self.table.get(&Key::Prepared(transaction).to_bytes())?.is_some() {
            self.background.prepared.insert(transaction, self.shared.now + ASK_AFTER);
        }
        Ok(())
    }

    fn ask_for_decisions(&mut self) {
        let now = self.shared.now;
        let due: Vec<_> = self
            .background
            .prepared
            .iter()
            .filter(|(_, at)| **at <= now)
            .map(|(transaction, _)| *transaction)
            .collect();
        for transaction in due {
            self.background.prepared.insert(transaction, now + ASK_AFTER);
            let call = OutgoingCall::new(transaction.coordinator, &AskDecision { transaction });
            self.call(call, Purpose::Background(BackgroundCall::Ask(transaction)));
        }
    }

    /// Tries again, after a pause, what other groups have refused.
    fn try_again(&mut self) {
        let now = self.shared.now;
        let background = &mut self.background;
        let resting = background.resting.len() + background.resting_sizes.len();
        background.resting.retain(|_, until| *until > now);
        background.resting_sizes.retain(|_, until| *until > now);
        background.look |= background.resting.len() + background.resting_sizes.len() < resting;
        let (due, later) = std::mem::take(&mut background.untold)
            .into_iter()
            .partition::<Vec<_>, _>(|(at, ..)| *at <= now);
        background.untold = later;
        for (_, group, number) in due {
            self.tell(group, number, true, None);
        }
    }

    /// Finds the groups that have something to remove, by skipping from one to the next.
    fn load_removals(&mut self) -> Result<()> {
        let mut after = Vec::new();
        loop {
            let next = self.table.engine().scan(&Key::removals(), &after, 1)?;
            let Some((group, _)) = next.first().and_then(|(key, _)| removal(key)) else {
                return Ok(());
            };
            self.background.to_remove.insert(group);
            after = Key::removals_of(group);
            after.extend([0xFF; 17]);
        }
    }

    fn start_removals(&mut self) -> Result<()> {
        let background = &mut self.background;
        let idle: Vec<_> = background
            .to_remove
            .difference(&background.removing)
            .filter(|group| !background.resting.contains_key(group))
            .copied()
            .collect();
        for group in idle {
            self.background.removing.insert(group);
            self.remove_chunks(group)?;
        }
        Ok(())
    }

    /// Sends the next removals to a group. Only those that are synced: the engine has no others.
    fn remove_chunks(&mut self, group: GroupId) -> Result<()> {
        let limit = self.shared.limits.removals_per_message;
        let prefix = Key::removals_of(group);
        let mut cursor = self.background.cursors.remove(&group).unwrap_or_default();
        let mut is_round = cursor.is_empty();
        let mut items = Vec::new();
        let mut keys = Vec::new();
        while keys.is_empty() {
            let found = self.table.engine().scan(&prefix, &cursor, limit)?;
            let Some((last, _)) = found.last() else {
                if is_round {
                    break;
                }
                is_round = true;
                cursor.clear();
                continue;
            };
            cursor.clone_from(last);
            for (key, _) in found {
                // Those that are done and only not synced yet are skipped.
                if self.table.get(&key)?.is_some()
                    && let Some((_, chunk)) = removal(&key)
                {
                    keys.push(chunk);
                    items.push(key);
                }
            }
        }
        if keys.is_empty() {
            self.background.removing.remove(&group);
            self.background.to_remove.remove(&group);
            return Ok(());
        }
        self.background.cursors.insert(group, cursor);
        let call = OutgoingCall::new(group, &RemoveChunks { keys });
        self.call(call, Purpose::Background(BackgroundCall::Remove { group, items }));
        Ok(())
    }

    fn start_size_recoveries(&mut self) -> Result<()> {
        let free_space = SIZE_RECOVERIES_AT_ONCE.saturating_sub(self.background.recovering.len());
        if free_space == 0 {
            return Ok(());
        }
        let prefix = Key::size_recoveries();
        let skipped = self.background.resting_sizes.len() + self.shared.truncations.len();
        let limit = 2 * SIZE_RECOVERIES_AT_ONCE + skipped;
        for (key, _) in self.table.engine().scan(&prefix, &[], limit)? {
            let Some(inode) = last_u64(&key).map(InodeId::new) else { continue };
            // Those that are found and only not synced yet are skipped.
            let Some(death) = self.table.get(&key)? else { continue };
            let is_new = !self.background.recovering.contains_key(&inode)
                && !self.background.resting_sizes.contains_key(&inode)
                && !self.shared.truncations.contains(inode);
            if is_new && self.background.recovering.len() < SIZE_RECOVERIES_AT_ONCE {
                self.recover_size(inode, decode_value(&key, &death)?)?;
            }
        }
        Ok(())
    }

    fn recover_size(&mut self, inode: InodeId, death: u64) -> Result<()> {
        let key = Key::Inode(inode).to_bytes();
        let record: Option<InodeRecord> =
            self.table.get(&key)?.map(|value| decode_value(&key, &value)).transpose()?;
        let truncate_generation =
            record.as_ref().map_or(0, |record| record.attributes.truncate_generation);
        let found_for = SizeQuestion { death, truncate_generation };
        let Some(pattern) = record.and_then(|record| record.pattern) else {
            self.start_internal(Internal::SizeFound { inode, size: 0, found_for });
            return Ok(());
        };
        let all: Vec<_> = striping::chunk_sizes(&pattern, 0).collect();
        for chunk in &all {
            let key = ChunkFileKey {
                inode,
                generation: pattern.generation,
                component: chunk.component,
                index: chunk.index,
            };
            let call = OutgoingCall::new(chunk.group, &StatChunk { key });
            let (component, index) = (chunk.component, chunk.index);
            self.call(call, Purpose::Background(BackgroundCall::Stat { inode, component, index }));
        }
        let recovery =
            SizeRecovery { pattern, found_for, waiting: all.len(), size: 0, has_failed: false };
        self.background.recovering.insert(inode, recovery);
        Ok(())
    }

    /// Takes in what an call has brought.
    pub(crate) fn on_background_reply(&mut self, call: BackgroundCall, result: Result<Vec<u8>>) {
        match call {
            BackgroundCall::Told { number, group, commit } => match result {
                // An abort need not be confirmed: who hasn't heard of it asks.
                _ if !commit => {}
                Ok(_) => self.start_internal(Internal::Confirmed { number, participant: group }),
                Err(error) => {
                    tracing::warn!("{group} refuses to hear of a commit: {error}");
                    let at = self.shared.now + RETRY_PAUSE;
                    self.background.untold.push((at, group, number));
                }
            },
            BackgroundCall::Remove { group, items } => {
                self.background.removing.remove(&group);
                match result {
                    Ok(_) => {
                        self.start_internal(Internal::Forget(items));
                        self.background.look = true;
                    }
                    Err(error) => {
                        tracing::warn!("{group} can't remove chunk files now: {error}");
                        self.background.cursors.remove(&group);
                        let until = self.shared.now + RETRY_PAUSE;
                        self.background.resting.insert(group, until);
                    }
                }
            }
            BackgroundCall::Ask(transaction) => {
                let decision = result.and_then(|body| DecisionReply::from_bytes(&body));
                let is_open = self.background.prepared.contains_key(&transaction);
                if let (Ok(DecisionReply { decision }), true) = (decision, is_open)
                    && decision != Decision::Pending
                {
                    let commit = decision == Decision::Committed;
                    self.start_internal(Internal::EndPrepared { transaction, commit });
                }
            }
            BackgroundCall::Truncation(inode) => self.on_truncated(inode, result),
            BackgroundCall::Stat { inode, component, index } => {
                let stat = result.and_then(|body| ChunkStat::from_bytes(&body));
                let Some(recovery) = self.background.recovering.get_mut(&inode) else { return };
                match stat {
                    Ok(stat) => {
                        let size = striping::size_from_chunk(
                            &recovery.pattern,
                            component,
                            index,
                            stat.size,
                        );
                        recovery.size = recovery.size.max(size);
                    }
                    Err(error) => {
                        tracing::warn!("the size of {inode} can't be found out: {error}");
                        recovery.has_failed = true;
                    }
                }
                recovery.waiting -= 1;
                if recovery.waiting > 0 {
                    return;
                }
                let (size, found_for) = (recovery.size, recovery.found_for);
                if recovery.has_failed {
                    // A size without that chunk file would cut the file.
                    self.background.recovering.remove(&inode);
                    let until = self.shared.now + RETRY_PAUSE;
                    self.background.resting_sizes.insert(inode, until);
                } else {
                    self.start_internal(Internal::SizeFound { inode, size, found_for });
                }
            }
        }
    }

    /// How a transaction of this group ended, as far as a power loss can't change it.
    pub(crate) fn decision(&self, transaction: TransactionId) -> Result<DecisionReply> {
        let key = Key::Decision(transaction.number).to_bytes();
        let decision = if self.table.get_synced::<DecisionRecord>(&key)?.is_some() {
            Decision::Committed
        } else if self.table.get(&key)?.is_some() || self.is_coordinating(transaction.number) {
            Decision::Pending
        } else {
            Decision::Aborted
        };
        Ok(DecisionReply { decision })
    }
}

/// The transaction that a request to decide or prepare is about.
pub(crate) fn transaction_in(header: &Header, body: &[u8]) -> Option<TransactionId> {
    use skep_wire::Request;
    use skep_wire::metadata::Prepare;
    match header.message {
        Decide::ID => Decide::from_bytes(body).ok().map(|it| it.transaction),
        Prepare::ID => Prepare::from_bytes(body).ok().map(|it| it.transaction),
        _ => None,
    }
}
