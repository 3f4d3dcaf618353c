//! Accounts of load: how much each client, user, group and job has caused, and how much each
//! directory has received.
//!
//! Each table keeps at most [`MAX_ACCOUNTS`] accounts. If a new one appears in a full table, it
//! replaces the account with the lowest rank, as in the algorithm "space-saving" (Metwally, Agrawal
//! and El Abbadi, 2005): the new account inherits the rank of the replaced one, so that a newcomer
//! with much load stays and many newcomers with little load do not displace the heavy accounts. The
//! figures of a replaced account move to the account [`LEFT_OUT`]. So the sum over all accounts is
//! always exact, and the reader sees how much was left out.
//!
//! # Reading while the owner counts
//! One thread counts, other threads read. The figures of an account are atomic variables. While the
//! owner replaces an account, its `turn` is odd; a reader repeats its read if the turn was odd or
//! has changed. So a reader never mixes two accounts.

use crate::counter::Counter;
use crate::stage::STAGES;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

/// Maximum number of accounts in one table. Bounds the series of each dimension in the text form.
pub const MAX_ACCOUNTS: usize = 128;
/// Id of the account that holds the figures of all replaced accounts.
pub const LEFT_OUT: u64 = u64::MAX;
/// Ranks are halved when their sum has grown by this factor, times the number of accounts. So an
/// account that was heavy long ago can be replaced.
const AGING: u64 = 4096;
/// This number of bytes raises the rank of an account as much as one operation does.
const BYTES_PER_RANK: u64 = 16 << 10;

/// A way to divide the load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dimension {
    /// By the client that sent the request. The id is a node id.
    Client,
    /// By the user whose program caused the request. The id is a uid.
    User,
    /// By the primary group of that program. The id is a gid.
    Group,
    /// By the job to which that program belongs. The id is a number of a job.
    Job,
    /// By the directory whose entries the request reads or changes. The id is that of the
    /// directory's inode.
    Directory,
}

/// Number of dimensions.
pub(crate) const DIMENSIONS: usize = Dimension::ALL.len();

impl Dimension {
    /// All dimensions.
    pub const ALL: [Self; 5] = [Self::Client, Self::User, Self::Group, Self::Job, Self::Directory];

    /// Returns the name of the dimension, as in the label `by`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::User => "user",
            Self::Group => "group",
            Self::Job => "job",
            Self::Directory => "directory",
        }
    }
}

/// The program that caused a request, and the directory that the request is about. `None` means
/// that no program did, such as for the internal work of a client or a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Origin {
    /// Node id of the client.
    pub client: Option<u32>,
    /// User id.
    pub user: Option<u32>,
    /// Group id.
    pub group: Option<u32>,
    /// Number of the job.
    pub job: Option<u32>,
    /// Id of the inode of the directory whose entries the request reads or changes.
    pub directory: Option<u64>,
}

impl Origin {
    pub(crate) fn id(&self, dimension: Dimension) -> Option<u64> {
        let id = match dimension {
            Dimension::Client => self.client,
            Dimension::User => self.user,
            Dimension::Group => self.group,
            Dimension::Job => self.job,
            Dimension::Directory => return self.directory,
        };
        id.map(u64::from)
    }
}

/// An amount of load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    /// Number of operations.
    pub operations: u64,
    /// Bytes of file data that were read.
    pub read_bytes: u64,
    /// Bytes of file data that were written.
    pub written_bytes: u64,
    /// Time from the arrival of the requests to their replies, added up, in nanoseconds.
    pub busy_ns: u64,
    /// Time in each stage, added up, in nanoseconds. Counted by client only.
    pub stages_ns: [u64; STAGES],
}

/// Returns a duration in nanoseconds.
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Load {
    /// Returns the load of one operation, without its stages.
    pub fn of_operation(read_bytes: u64, written_bytes: u64, busy: Duration) -> Self {
        let busy_ns = nanoseconds(busy);
        Self { operations: 1, read_bytes, written_bytes, busy_ns, stages_ns: [0; STAGES] }
    }

    fn rank(&self) -> u64 {
        self.operations + (self.read_bytes + self.written_bytes) / BYTES_PER_RANK
    }

    /// Adds another amount.
    pub fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.busy_ns = self.busy_ns.wrapping_add(other.busy_ns);
        for (own, other) in self.stages_ns.iter_mut().zip(other.stages_ns) {
            *own = own.wrapping_add(other);
        }
    }
}

/// The figures of one account that other threads read.
#[derive(Debug, Default)]
struct Figures {
    turn: AtomicU64,
    id: AtomicU64,
    operations: Counter,
    read_bytes: Counter,
    written_bytes: Counter,
    busy_ns: Counter,
    stages_ns: [Counter; STAGES],
}

impl Figures {
    fn count(&self, load: &Load) {
        self.operations.add(load.operations);
        self.read_bytes.add(load.read_bytes);
        self.written_bytes.add(load.written_bytes);
        self.busy_ns.add(load.busy_ns);
        for (counter, ns) in self.stages_ns.iter().zip(load.stages_ns) {
            if ns > 0 {
                counter.add(ns);
            }
        }
    }

    fn load(&self) -> Load {
        Load {
            operations: self.operations.get(),
            read_bytes: self.read_bytes.get(),
            written_bytes: self.written_bytes.get(),
            busy_ns: self.busy_ns.get(),
            stages_ns: self.stages_ns.each_ref().map(Counter::get),
        }
    }

    /// Gives the account to another id, and returns its figures.
    fn replace(&self, id: u64) -> Load {
        self.turn.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        let before = self.load();
        self.id.store(id, Ordering::Relaxed);
        self.operations.add(before.operations.wrapping_neg());
        self.read_bytes.add(before.read_bytes.wrapping_neg());
        self.written_bytes.add(before.written_bytes.wrapping_neg());
        self.busy_ns.add(before.busy_ns.wrapping_neg());
        for (counter, ns) in self.stages_ns.iter().zip(before.stages_ns) {
            counter.add(ns.wrapping_neg());
        }
        self.turn.fetch_add(1, Ordering::Release);
        before
    }

    /// Returns the id and the figures of the account, both of the same moment.
    fn read(&self) -> (u64, Load) {
        loop {
            let turn = self.turn.load(Ordering::Acquire);
            let read = (self.id.load(Ordering::Relaxed), self.load());
            fence(Ordering::Acquire);
            if turn.is_multiple_of(2) && self.turn.load(Ordering::Relaxed) == turn {
                return read;
            }
            std::hint::spin_loop();
        }
    }
}

/// The part of a table that other threads read.
#[derive(Debug)]
pub(crate) struct PublishedAccounts {
    used: AtomicU64,
    accounts: [Figures; MAX_ACCOUNTS],
    left_out: Figures,
}

impl Default for PublishedAccounts {
    fn default() -> Self {
        Self {
            used: AtomicU64::new(0),
            accounts: std::array::from_fn(|_| Figures::default()),
            left_out: Figures::default(),
        }
    }
}

impl PublishedAccounts {
    /// Returns all accounts, each with its id. The last one is [`LEFT_OUT`], if accounts were
    /// replaced.
    pub(crate) fn read(&self) -> Vec<(u64, Load)> {
        let used = self.used.load(Ordering::Acquire) as usize;
        let mut all: Vec<_> = self.accounts[..used].iter().map(Figures::read).collect();
        let left_out = self.left_out.load();
        if left_out.operations > 0 {
            all.push((LEFT_OUT, left_out));
        }
        all
    }
}

/// The accounts of one thread in one dimension.
#[derive(Debug)]
pub struct Accounts {
    published: Arc<PublishedAccounts>,
    /// Position of each id in `published`.
    positions: HashMap<u64, usize>,
    ranks: Vec<u64>,
    rank_sum: u64,
    /// The id of the last operation and its position: the next operation often has the same.
    last: Option<(u64, usize)>,
}

impl Default for Accounts {
    fn default() -> Self {
        Self {
            published: Arc::default(),
            // With this capacity the tables never allocate again.
            positions: HashMap::with_capacity(2 * MAX_ACCOUNTS),
            ranks: Vec::with_capacity(MAX_ACCOUNTS),
            rank_sum: 0,
            last: None,
        }
    }
}

impl Accounts {
    pub(crate) fn published(&self) -> Arc<PublishedAccounts> {
        Arc::clone(&self.published)
    }

    /// Counts load of an id.
    #[inline]
    pub fn record(&mut self, id: u64, load: &Load) {
        let position = match self.last {
            Some((last, position)) if last == id => position,
            _ => self.position(id),
        };
        self.last = Some((id, position));
        self.published.accounts[position].count(load);
        let rank = load.rank();
        self.ranks[position] += rank;
        self.rank_sum += rank;
        if self.rank_sum > AGING * MAX_ACCOUNTS as u64 {
            self.ranks.iter_mut().for_each(|rank| *rank /= 2);
            self.rank_sum = self.ranks.iter().sum();
        }
    }

    /// Returns the position of the account of `id`. Creates the account if it is missing.
    fn position(&mut self, id: u64) -> usize {
        if let Some(position) = self.positions.get(&id) {
            return *position;
        }
        let position = self.ranks.len();
        if position < MAX_ACCOUNTS {
            self.published.accounts[position].replace(id);
            self.published.used.store(position as u64 + 1, Ordering::Release);
            self.ranks.push(0);
            self.positions.insert(id, position);
            return position;
        }
        let ranks = self.ranks.iter().enumerate();
        let lowest = ranks.min_by_key(|(_, rank)| **rank).map_or(0, |(position, _)| position);
        let account = &self.published.accounts[lowest];
        self.positions.remove(&account.id.load(Ordering::Relaxed));
        // For a moment, a reader may see the figures of the replaced account neither in the account
        // nor in the rest. The next snapshot has them.
        self.published.left_out.count(&account.replace(id));
        self.positions.insert(id, lowest);
        lowest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(operations: u64) -> Load {
        Load { operations, read_bytes: 10 * operations, busy_ns: 1, ..Load::default() }
    }

    fn sum(accounts: &[(u64, Load)]) -> Load {
        let mut sum = Load::default();
        accounts.iter().for_each(|(_, load)| sum.add(load));
        sum
    }

    #[test]
    fn few_ids_are_counted_exactly() {
        let mut accounts = Accounts::default();
        for round in 1..=10 {
            accounts.record(1000, &load(round));
            accounts.record(0, &load(1));
        }
        let mut read = accounts.published().read();
        read.sort_by_key(|(id, _)| *id);
        let ten = Load { operations: 10, read_bytes: 100, busy_ns: 10, ..Load::default() };
        assert_eq!(read[0], (0, ten));
        assert_eq!(read[1].1.operations, 55);
    }

    #[test]
    fn heavy_ids_stay_among_many_light_ones_and_the_sum_is_exact() {
        let mut accounts = Accounts::default();
        let mut expected = Load::default();
        let mut record = |accounts: &mut Accounts, id, operations| {
            accounts.record(id, &load(operations));
            expected.add(&load(operations));
        };
        for light in 0..20_000_u64 {
            record(&mut accounts, 1_000_000 + light, 1);
            for heavy in 1..=5 {
                record(&mut accounts, heavy, 1);
            }
        }
        let read = accounts.published().read();
        assert_eq!(sum(&read), expected);
        for heavy in 1..=5 {
            let found = read.iter().find(|(id, _)| *id == heavy).unwrap();
            assert_eq!(found.1.operations, 20_000, "a heavy id was never replaced");
        }
        assert_eq!(read.len(), MAX_ACCOUNTS + 1);
        assert_eq!(read.last().unwrap().0, LEFT_OUT);
    }

    #[test]
    fn an_id_that_becomes_heavy_replaces_one_that_was_heavy() {
        let mut accounts = Accounts::default();
        for id in 0..MAX_ACCOUNTS as u64 {
            accounts.record(id, &load(100_000));
        }
        for round in 0..2_000_000_u64 {
            accounts.record(5_000 + round % 64, &load(1));
        }
        let read = accounts.published().read();
        let newcomers = read.iter().filter(|(id, _)| (5_000..5_064).contains(id));
        assert!(newcomers.count() > 60, "{read:?}");
    }

    #[test]
    fn a_reader_never_mixes_two_accounts() {
        let mut accounts = Accounts::default();
        let published = accounts.published();
        let is_done = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let done = Arc::clone(&is_done);
        let reader = std::thread::spawn(move || {
            while !done.load(Ordering::Relaxed) {
                for (id, load) in published.read().into_iter().filter(|(id, _)| *id != LEFT_OUT) {
                    // Each operation of an id writes as many bytes as the id's number.
                    let bytes = load.written_bytes;
                    assert!(bytes.is_multiple_of(id), "{bytes} bytes of {id}");
                }
            }
        });
        for round in 0..300_000_u64 {
            let id = 7 + round % 1_000;
            accounts.record(id, &Load { operations: 0, written_bytes: id, ..Load::default() });
        }
        is_done.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    }
}
