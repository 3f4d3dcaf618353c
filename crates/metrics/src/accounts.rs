//! Accounts of load: the load that each client, user, group and job has caused, and the load that
//! each directory has received.
//!
//! Each table has at most [`MAX_ACCOUNTS`] accounts. The rank of an account is a measure of its
//! recent load. A new account in a full table replaces the account with the lowest rank, as in the
//! algorithm "space-saving" (Metwally, Agrawal and El Abbadi, 2005). The new account inherits the
//! rank of the replaced account. So a new account with much load stays in the table, and many new
//! accounts with little load do not replace the heavy accounts. The table adds the load of a
//! replaced account to the account [`LEFT_OUT`]. So the sum over all accounts is exact, except at
//! the moment of a replacement, and a reader can determine how much load belongs to no account.
//!
//! # Directories
//! Programs visit millions of directories, and each account is a separate series in a monitoring
//! system. So only the directories with the most load get an account. A table ranks many
//! candidates. A candidate gets an account if it has at least the share 1 / [`PROMOTED_PART`] of
//! the load, and at least twice the load of the account that it replaces. Before this replacement,
//! the table counts the load of the candidate in [`LEFT_OUT`].
//!
//! # Reading while the owner counts
//! One thread, the owner, counts, and other threads read. The values of an account are atomic
//! variables. While the owner replaces an account, the `turn` of the account is odd. A reader reads
//! the account again if the turn was odd or has changed. So a reader never mixes the values of two
//! accounts. The owner counts an operation in one dimension after the other. So a reader may find
//! the last operation of an owner in one dimension and not yet in another dimension.

use crate::counter::Counter;
use crate::stage::STAGES;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

/// Maximum number of accounts in one table. The limit bounds the number of series of each dimension
/// in the text form.
pub const MAX_ACCOUNTS: usize = 128;
/// Id of the account with the sum of the load of all replaced accounts.
pub const LEFT_OUT: u64 = u64::MAX;
/// The table halves all ranks when their sum exceeds this number times the maximum number of
/// accounts. So an account that had much load long ago can be replaced.
const AGING: u64 = 4096;
/// Maximum number of accounts in a table in which only the heaviest causes get accounts.
pub(crate) const MAX_HEAVY_ACCOUNTS: usize = 16;
/// In a table for the heaviest causes, a candidate gets an account only if its rank is at least the
/// share 1 / `PROMOTED_PART` of the sum of all ranks. For comparison: in a full table, the rank
/// that a new candidate inherits is about 1 / 128 of that sum.
const PROMOTED_PART: u64 = 32;
/// Minimum rank of a candidate that gets an account, because a few requests are not a notable load.
const PROMOTED_FROM: u64 = 64;
/// A candidate must have at least this many times the rank of the account that it replaces. With a
/// lower factor, two causes with similar load would replace each other repeatedly.
const PROMOTED_FACTOR: u64 = 2;
/// Number of bytes that raises the rank of an account as much as one operation does.
const BYTES_PER_RANK: u64 = 16 << 10;

/// A dimension for the division of load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dimension {
    /// By the client that sent the request. The id is a node id.
    Client,
    /// By the user whose program caused the request. The id is a uid.
    User,
    /// By the primary group of the program that caused the request. The id is a gid.
    Group,
    /// By the job of the program that caused the request. The id is the job id.
    Job,
    /// By the directory whose entries the request reads or changes. The id is the id of the
    /// directory's inode.
    Directory,
}

/// Number of dimensions.
pub(crate) const DIMENSIONS: usize = Dimension::ALL.len();

impl Dimension {
    /// All dimensions.
    pub const ALL: [Self; 5] = [Self::Client, Self::User, Self::Group, Self::Job, Self::Directory];

    /// Whether only the heaviest causes in this dimension get accounts.
    pub(crate) fn is_of_heaviest(self) -> bool {
        self == Self::Directory
    }

    /// Returns the name of the dimension, as in the label `by` of metrics.
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

/// The program that caused a request, and the directory that the request is about. If the program's
/// fields are `None`, the request was caused by internal work of a client or a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Origin {
    /// Node id of the client.
    pub client: Option<u32>,
    /// User id.
    pub user: Option<u32>,
    /// Group id.
    pub group: Option<u32>,
    /// The job id.
    pub job: Option<u32>,
    /// Id of the inode of the directory. The request reads or changes entries of this directory.
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
    /// Number of operations in this load.
    pub operations: u64,
    /// Bytes of file data that were read.
    pub read_bytes: u64,
    /// Bytes of file data that were written.
    pub written_bytes: u64,
    /// Sum of the times from the arrival of each request to its reply, in nanoseconds.
    pub busy_ns: u64,
    /// Time in which data of requests or replies was transferred, in nanoseconds. The time of
    /// simultaneous transfers counts once. Counted only for clients.
    pub moving_ns: u64,
    /// Sum of the times spent in each stage, in nanoseconds. Counted only for clients, users and
    /// jobs.
    pub stages_ns: [u64; STAGES],
}

/// Converts a duration to nanoseconds.
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Load {
    /// Returns the load of one operation, without its stages.
    pub fn of_operation(read_bytes: u64, written_bytes: u64, busy: Duration) -> Self {
        let busy_ns = nanoseconds(busy);
        Self { operations: 1, read_bytes, written_bytes, busy_ns, ..Self::default() }
    }

    fn rank(&self) -> u64 {
        self.operations + (self.read_bytes + self.written_bytes) / BYTES_PER_RANK
    }

    /// Adds the load `other` to this load.
    pub fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.busy_ns = self.busy_ns.wrapping_add(other.busy_ns);
        self.moving_ns = self.moving_ns.wrapping_add(other.moving_ns);
        for (own, other) in self.stages_ns.iter_mut().zip(other.stages_ns) {
            *own = own.wrapping_add(other);
        }
    }
}

/// The values of one account. Other threads can read them.
#[derive(Debug, Default)]
struct Figures {
    turn: AtomicU64,
    id: AtomicU64,
    operations: Counter,
    read_bytes: Counter,
    written_bytes: Counter,
    busy_ns: Counter,
    moving_ns: Counter,
    stages_ns: [Counter; STAGES],
}

impl Figures {
    fn count(&self, load: &Load) {
        self.operations.add(load.operations);
        self.read_bytes.add(load.read_bytes);
        self.written_bytes.add(load.written_bytes);
        self.busy_ns.add(load.busy_ns);
        self.moving_ns.add(load.moving_ns);
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
            moving_ns: self.moving_ns.get(),
            stages_ns: self.stages_ns.each_ref().map(Counter::get),
        }
    }

    /// Assigns the account to another id, and returns the load of the previous id.
    fn replace(&self, id: u64) -> Load {
        self.turn.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        let before = self.load();
        self.id.store(id, Ordering::Relaxed);
        self.operations.add(before.operations.wrapping_neg());
        self.read_bytes.add(before.read_bytes.wrapping_neg());
        self.written_bytes.add(before.written_bytes.wrapping_neg());
        self.busy_ns.add(before.busy_ns.wrapping_neg());
        self.moving_ns.add(before.moving_ns.wrapping_neg());
        for (counter, ns) in self.stages_ns.iter().zip(before.stages_ns) {
            counter.add(ns.wrapping_neg());
        }
        self.turn.fetch_add(1, Ordering::Release);
        before
    }

    /// Returns the id and the load of the account, both from the same moment.
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

/// The part of a table that other threads can read.
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
    /// Returns all accounts, each with its id. If [`LEFT_OUT`] has load, [`LEFT_OUT`] is the last
    /// account.
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

/// A cause of load that a table ranks.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    id: u64,
    rank: u64,
    /// Index of the candidate's account among the published accounts. `None` means that the
    /// candidate's load is counted in [`LEFT_OUT`].
    account: Option<usize>,
}

/// The accounts of one dimension that one thread counts.
#[derive(Debug)]
pub struct Accounts {
    published: Arc<PublishedAccounts>,
    is_of_heaviest: bool,
    /// The position of each id in `candidates`.
    positions: HashMap<u64, usize>,
    candidates: Vec<Candidate>,
    rank_sum: u64,
    /// The id of the last operation, and the position of this id in `candidates`. This pair saves a
    /// look-up, because the next operation often has the same id.
    last: Option<(u64, usize)>,
}

impl Default for Accounts {
    fn default() -> Self {
        Self::new(false)
    }
}

impl Accounts {
    /// Creates a table for one dimension.
    pub(crate) fn of(dimension: Dimension) -> Self {
        Self::new(dimension.is_of_heaviest())
    }

    fn new(is_of_heaviest: bool) -> Self {
        Self {
            published: Arc::default(),
            is_of_heaviest,
            // With this capacity, the map and the list never allocate further memory.
            positions: HashMap::with_capacity(2 * MAX_ACCOUNTS),
            candidates: Vec::with_capacity(MAX_ACCOUNTS),
            rank_sum: 0,
            last: None,
        }
    }

    pub(crate) fn published(&self) -> Arc<PublishedAccounts> {
        Arc::clone(&self.published)
    }

    /// Counts load that the cause `id` has caused.
    #[inline]
    pub fn record(&mut self, id: u64, load: &Load) {
        let position = match self.last {
            Some((last, position)) if last == id => position,
            _ => self.position(id),
        };
        self.last = Some((id, position));
        let rank = load.rank();
        self.candidates[position].rank += rank;
        self.rank_sum += rank;
        let account = match self.candidates[position].account {
            Some(account) => Some(account),
            None => self.promote(position),
        };
        match account {
            Some(account) => self.published.accounts[account].count(load),
            None => self.published.left_out.count(load),
        }
        if self.rank_sum > AGING * MAX_ACCOUNTS as u64 {
            self.candidates.iter_mut().for_each(|it| it.rank /= 2);
            self.rank_sum = self.candidates.iter().map(|it| it.rank).sum();
        }
    }

    /// Returns the position of the candidate `id`. If `id` is not a candidate yet, `id` becomes a
    /// candidate. In a full table, `id` replaces the candidate with the lowest rank, and inherits
    /// the rank and the account of this candidate.
    fn position(&mut self, id: u64) -> usize {
        if let Some(position) = self.positions.get(&id) {
            return *position;
        }
        let position = self.candidates.len();
        if position < MAX_ACCOUNTS {
            let account = (!self.is_of_heaviest).then(|| self.open_account(id)).flatten();
            self.candidates.push(Candidate { id, rank: 0, account });
            self.positions.insert(id, position);
            return position;
        }
        // In a table for the heaviest causes, a cause keeps its account until a heavier cause
        // replaces it. So this function does not replace a candidate with an account.
        let all = self.candidates.iter().enumerate();
        let replaceable = all.filter(|(_, it)| !self.is_of_heaviest || it.account.is_none());
        let lowest = replaceable.min_by_key(|(_, it)| it.rank).map_or(0, |(position, _)| position);
        let candidate = &mut self.candidates[lowest];
        self.positions.remove(&candidate.id);
        candidate.id = id;
        if let Some(account) = candidate.account {
            self.give_account(account, id);
        }
        self.positions.insert(id, lowest);
        lowest
    }

    /// Assigns a free account to an id. `None` means that the table is full.
    fn open_account(&self, id: u64) -> Option<usize> {
        let limit = if self.is_of_heaviest { MAX_HEAVY_ACCOUNTS } else { MAX_ACCOUNTS };
        let used = self.published.used.load(Ordering::Relaxed) as usize;
        if used >= limit {
            return None;
        }
        self.published.accounts[used].replace(id);
        self.published.used.store(used as u64 + 1, Ordering::Release);
        Some(used)
    }

    /// Assigns an account to another id.
    fn give_account(&self, account: usize, id: u64) {
        // During the replacement, a reader may find the load of the replaced account neither in the
        // account nor in [`LEFT_OUT`]. The next snapshot contains this load.
        self.published.left_out.count(&self.published.accounts[account].replace(id));
    }

    /// If the rank of a candidate is high enough, assigns an account to the candidate. Returns the
    /// account.
    fn promote(&mut self, position: usize) -> Option<usize> {
        let Candidate { id, rank, .. } = self.candidates[position];
        if rank < PROMOTED_FROM || rank.saturating_mul(PROMOTED_PART) < self.rank_sum {
            return None;
        }
        let account = match self.open_account(id) {
            Some(account) => account,
            None => {
                let holders = self.candidates.iter_mut().filter(|it| it.account.is_some());
                let lowest = holders.min_by_key(|it| it.rank)?;
                if rank < lowest.rank.saturating_mul(PROMOTED_FACTOR) {
                    return None;
                }
                let account = lowest.account.take()?;
                self.give_account(account, id);
                account
            }
        };
        self.candidates[position].account = Some(account);
        Some(account)
    }
}

#[cfg(test)]
mod tests;
