//! The values that a seed draws before its run begins: sizes, (small) limits, and enabled faults.

use crate::random::Random;
use skep_metadata::limits::Limits;
use skep_metadata::target::SyncPolicy;
use std::time::Duration;

/// The enabled faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Faults {
    /// Processes of targets are killed.
    pub kills: bool,
    /// Targets lose power.
    pub power_losses: bool,
    /// Connections break; requests on them may arrive late.
    pub breaks: bool,
    /// Pairs of nodes cannot reach each other for a while.
    pub partitions: bool,
    /// Syncs and messages take long at times.
    pub slowness: bool,
    /// Clients die and come back with new sessions.
    pub client_deaths: bool,
    /// Storage targets stop for a while.
    pub storage_stops: bool,
    /// Disks of targets become full for a while.
    pub full_disks: bool,
}

/// A planted bug, which proves that the checkers find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlantedBug {
    /// The coordinator drops commit notices to participants.
    LoseCommitNotices,
    /// The disk reports a sync as finished when it begins.
    SyncTooSoon,
    /// A starting target forgets the replies of slots.
    ForgetSlots,
    /// Storage targets ignore removals of chunk files.
    IgnoreRemovals,
}

/// All values that a seed draws beforehand.
#[derive(Debug, Clone)]
pub struct Knobs {
    /// Metadata targets.
    pub targets: usize,
    /// Storage targets.
    pub storages: usize,
    /// Clients.
    pub clients: usize,
    /// Tasks of each client.
    pub tasks: usize,
    /// Operations of all clients together.
    pub steps: u64,
    /// When the log is synced.
    pub policy: SyncPolicy,
    /// Limits of the metadata targets.
    pub limits: Limits,
    /// Inline bytes of new files without a pattern of their own.
    pub inline_bytes: u64,
    /// Lease of sessions.
    pub lease: Duration,
    /// Bytes of a log segment.
    pub segment_bytes: usize,
    /// Number of recent directories and files that the workload reuses.
    pub working_set: usize,
    /// The enabled faults.
    pub faults: Faults,
    /// Approximate time between two faults.
    pub mean_fault_pause: Duration,
    /// A planted bug.
    pub plant: Option<PlantedBug>,
}

/// Longest sync of a disk that is not slow, in microseconds: the maximum that a metadata target
/// expects (`SYNC_AFTER`).
pub(crate) const USUAL_SYNC_MICROS: u64 = 5_000;
/// Longest sync of a slow disk, in microseconds.
pub(crate) const SLOW_SYNC_MICROS: u64 = 60_000;

impl Knobs {
    /// Draws all values.
    pub(crate) fn draw(random: &mut Random) -> Self {
        let all = random.percent(40);
        let mut fault = |percent| all || random.percent(percent);
        let faults = Faults {
            kills: fault(40),
            power_losses: fault(40),
            breaks: fault(50),
            partitions: fault(30),
            slowness: fault(40),
            client_deaths: fault(30),
            storage_stops: fault(20),
            full_disks: fault(20),
        };
        Self {
            targets: random.within(1, 3) as usize,
            storages: random.within(1, 3) as usize,
            clients: random.within(1, 4) as usize,
            tasks: random.within(1, 3) as usize,
            steps: 300,
            policy: if random.percent(70) { SyncPolicy::Interval } else { SyncPolicy::Always },
            limits: Limits {
                number_range: random.within(4, 16),
                removals_per_message: random.within(1, 3) as usize,
                closes_per_batch: random.within(1, 2) as usize,
                parked: random.within(1, 30) as usize,
                ends_per_batch: random.within(1, 4) as usize,
                record_bytes: random.within(100, 4_000) as usize,
                checkpoint_log_bytes: random.within(500, 20_000),
                spread_subdirectories: random.within(0, 3) as u32,
                scan_page: random.within(1, 4) as usize,
                ..Limits::default()
            },
            inline_bytes: if random.percent(60) { random.within(1, 2) * 4096 } else { 0 },
            lease: random.micros(800_000, 2_000_000),
            segment_bytes: random.within(600, 20_000) as usize,
            working_set: random.within(2, 8) as usize,
            faults,
            mean_fault_pause: random.micros(5_000, 400_000),
            plant: None,
        }
    }
}
