//! The values that a seed determines before its run begins: sizes, limits and the enabled faults.
//! The limits are small, so that runs actually reach them.

use crate::random::Random;
use skep_cluster::lease_times::LeaseTimes;
use skep_metadata::limits::{Limits, RemovalLimits};
use skep_metadata::target::SyncPolicy;
use std::time::Duration;

/// The faults that a run may inject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Faults {
    /// Whether the processes of targets are killed.
    pub kills: bool,
    /// Whether the hosts of targets lose power.
    pub power_losses: bool,
    /// Whether connections break. Requests on a broken connection may arrive late.
    pub breaks: bool,
    /// Whether pairs of nodes are partitioned for a while.
    pub partitions: bool,
    /// Whether some syncs and messages take a long time.
    pub slowness: bool,
    /// Whether clients die and restart with new sessions, and whether an administrator evicts
    /// running clients.
    pub client_deaths: bool,
    /// Whether storage targets stop for a while.
    pub storage_stops: bool,
    /// Whether disks of targets become full for a while.
    pub full_disks: bool,
    /// Whether management restarts. During a restart, management removes no client, and no server
    /// receives a newer map. However, evicted clients can still register as new clients.
    pub management_restarts: bool,
    /// Whether the capacity pool and the reachability of storage targets change in the map.
    pub map_changes: bool,
}

/// A bug that a test plants to prove that the checkers find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlantedBug {
    /// The coordinator of a transaction drops commit notices to participants.
    LoseCommitNotices,
    /// The disk reports a sync as finished when the sync begins.
    SyncTooSoon,
    /// A starting target forgets the stored replies of slots.
    ForgetSlots,
    /// Storage targets ignore requests to remove chunk files.
    IgnoreRemovals,
    /// A metadata target sends truncations of chunk files before it has synced their log record.
    TruncateTooSoon,
    /// A starting target forgets the truncations that are not finished.
    ForgetTruncations,
    /// Storage targets do not change their incarnation when they lose power.
    KeepIncarnation,
    /// A client that lost both its session and a reply repeats the request, without asking for the
    /// outcome of the first attempt.
    RepeatBlindly,
    /// A starting target forgets the inode numbers that it has assigned.
    ReuseNumbers,
    /// A primary assumes that all members have appended a record as soon as it has appended the
    /// record itself.
    AnswerBeforeHeld,
    /// A primary assumes that all members have synced a record as soon as it has synced the record
    /// itself.
    EffectBeforeSafe,
    /// A primary writes a record to its store as soon as it has synced the record itself, even if
    /// the backup member has not synced it.
    StoreAheadOfSafe,
    /// A starting target forgets its earlier starts. So the target assigns file versions a second
    /// time after a power loss has reverted these versions.
    ForgetStarts,
    /// In each log record, a backup member writes the LSN of the primary's last synced record
    /// instead of the LSN of its own last synced record.
    KeepPrimarySynced,
    /// A member that has lost power takes over before it has received its lost records.
    PromoteAfterPowerLoss,
    /// A backup member accepts records of an earlier epoch.
    AcceptOlderEpoch,
    /// Storage targets execute requests of a primary that was deposed by a take-over.
    ObeyDeposed,
    /// A starting target forgets the file locks of applications.
    ForgetLocks,
    /// A starting target forgets its prepared transactions that other targets coordinate.
    ForgetPrepared,
    /// A starting target forgets the inline bytes of all files.
    ForgetInline,
    /// Clients acknowledge notifications about shared files, but do not treat the files as shared.
    IgnoreNotifications,
    /// Storage targets execute writes of clients that management has removed from the cluster map.
    WriteForEvicted,
    /// Storage targets check the sender of a write only when the write arrives. Storage targets do
    /// not check the sender again after the write has waited.
    CheckBeforeWait,
    /// Storage targets report all chunk files as empty.
    HideSizes,
    /// The first entry is missing from each page of a listing.
    OmitEntries,
    /// The reply to an open lacks the last inline byte of the file.
    OmitLastInlineByte,
    /// Clients remove inline bytes before storage has synced their copy.
    CopyWithoutSync,
    /// A target reports every inline write, and every end of an inline component, as durable.
    HideLostInline,
    /// After a start, a target reports every change of a client as durable.
    HideLostChanges,
    /// After a start of a target, clients send changes with the new start number before they have
    /// checked which earlier changes the target has lost.
    SkipComparison,
    /// After a power loss, a target executes new changes before its clients have replayed the lost
    /// changes.
    SkipReplayWindow,
    /// A target creates a replayed inode with another id.
    ReplayWithNewId,
    /// A target executes replayed changes client by client instead of in their original order.
    ReplayByClient,
    /// Clients drop acknowledged changes from their lists before the changes are durable.
    DropKeptChanges,
    /// Clients ignore the truncate generation of attributes with a lower size. So a truncation by
    /// another client does not lower the size that a client has.
    IgnoreTruncations,
    /// The coordinator of a staged transaction assumes without a request that its participant is
    /// durably prepared. So the coordinator replies before the logs of both groups are synced.
    AssumePrepared,
    /// A starting coordinator assumes without a request that the participants of its staged
    /// transactions are durably prepared.
    CommitUnasked,
    /// A participant does not record its reply that it has not prepared a transaction. So the
    /// participant may prepare this transaction later.
    ForgetRefusal,
}

impl PlantedBug {
    /// All bugs that can be planted.
    pub const ALL: [Self; 38] = [
        Self::LoseCommitNotices,
        Self::SyncTooSoon,
        Self::ForgetSlots,
        Self::IgnoreRemovals,
        Self::TruncateTooSoon,
        Self::ForgetTruncations,
        Self::KeepIncarnation,
        Self::RepeatBlindly,
        Self::ReuseNumbers,
        Self::ForgetStarts,
        Self::AnswerBeforeHeld,
        Self::EffectBeforeSafe,
        Self::StoreAheadOfSafe,
        Self::KeepPrimarySynced,
        Self::PromoteAfterPowerLoss,
        Self::AcceptOlderEpoch,
        Self::ObeyDeposed,
        Self::ForgetLocks,
        Self::ForgetPrepared,
        Self::ForgetInline,
        Self::IgnoreNotifications,
        Self::WriteForEvicted,
        Self::CheckBeforeWait,
        Self::HideSizes,
        Self::OmitEntries,
        Self::OmitLastInlineByte,
        Self::CopyWithoutSync,
        Self::HideLostInline,
        Self::HideLostChanges,
        Self::SkipComparison,
        Self::SkipReplayWindow,
        Self::ReplayWithNewId,
        Self::ReplayByClient,
        Self::DropKeptChanges,
        Self::IgnoreTruncations,
        Self::AssumePrepared,
        Self::CommitUnasked,
        Self::ForgetRefusal,
    ];

    /// Whether the bug has an effect only if clients replay lost changes.
    pub(crate) fn needs_replays(self) -> bool {
        let of_replays = [
            Self::SkipReplayWindow,
            Self::ReplayWithNewId,
            Self::ReplayByClient,
            Self::DropKeptChanges,
        ];
        of_replays.contains(&self)
    }

    /// Whether the bug has an effect only if targets stage transactions.
    pub(crate) fn needs_staging(self) -> bool {
        [Self::AssumePrepared, Self::CommitUnasked, Self::ForgetRefusal].contains(&self)
    }

    /// Whether the bug has an effect only if targets have backup members.
    pub(crate) fn needs_backups(self) -> bool {
        let of_groups = [
            Self::AnswerBeforeHeld,
            Self::EffectBeforeSafe,
            Self::StoreAheadOfSafe,
            Self::KeepPrimarySynced,
            Self::PromoteAfterPowerLoss,
            Self::AcceptOlderEpoch,
            Self::ObeyDeposed,
            Self::ForgetLocks,
        ];
        of_groups.contains(&self)
    }
}

/// All values that a seed determines before the run begins.
#[derive(Debug, Clone)]
pub struct Knobs {
    /// Number of metadata targets.
    pub targets: usize,
    /// Whether each metadata target has a backup member. The acknowledgements of the backup member
    /// arrive with a delay. The backup member takes over when the primary's process ends.
    pub has_backups: bool,
    /// Whether clients replay the changes that a power loss of a metadata target has reverted.
    pub replays: bool,
    /// Whether the feature level permits staged transactions.
    pub is_staging: bool,
    /// Number of storage targets.
    pub storages: usize,
    /// Number of clients.
    pub clients: usize,
    /// Number of tasks of each client.
    pub tasks: usize,
    /// Total number of operations of all clients.
    pub steps: u64,
    /// The metadata targets' policy for syncs of the log.
    pub policy: SyncPolicy,
    /// Limits of the metadata targets.
    pub limits: Limits,
    /// Number of inline bytes of new files that inherit no pattern from their directory.
    pub inline_bytes: u64,
    /// Duration of the lease of a session.
    pub lease: Duration,
    /// Size at which a log segment ends, in bytes.
    pub segment_bytes: usize,
    /// Number of recent directories and files that the workload reuses.
    pub working_set: usize,
    /// The enabled faults.
    pub faults: Faults,
    /// Approximate time between two faults.
    pub mean_fault_pause: Duration,
    /// The planted bug, if the run has a planted bug.
    pub plant: Option<PlantedBug>,
}

/// Maximum duration of a sync on a disk that is not slow, in microseconds. The constant
/// `SYNC_AFTER` of metadata targets assumes this maximum.
pub(crate) const USUAL_SYNC_MICROS: u64 = 5_000;
/// Maximum duration of a sync on a slow disk, in microseconds.
pub(crate) const SLOW_SYNC_MICROS: u64 = 60_000;

impl Knobs {
    /// Draws all values from the random numbers of a seed.
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
            management_restarts: fault(20),
            map_changes: fault(20),
        };
        Self {
            targets: random.within(1, 3) as usize,
            has_backups: false,
            replays: false,
            is_staging: false,
            storages: random.within(1, 3) as usize,
            clients: random.within(1, 4) as usize,
            tasks: random.within(1, 3) as usize,
            steps: 300,
            policy: if random.percent(70) { SyncPolicy::Interval } else { SyncPolicy::Always },
            limits: Limits {
                number_range: random.within(4, 16),
                removals: RemovalLimits {
                    per_message: random.within(1, 3) as usize,
                    delay: random.micros(0, 300_000),
                    queued: random.within(0, 4) as usize,
                },
                closes_per_batch: random.within(1, 2) as usize,
                parked: random.within(1, 30) as usize,
                ends_per_batch: random.within(1, 4) as usize,
                record_bytes: random.within(100, 4_000) as usize,
                checkpoint_log_bytes: random.within(500, 20_000),
                spread_subdirectories: random.within(0, 3) as u32,
                scan_page: random.within(1, 4) as usize,
                settle_after: random.micros(100_000, 1_500_000),
                // The model of management decides about a take-over at the moment when a process
                // ends (`take_over`). So no backup member may ask for a take-over by itself.
                members: skep_metadata::limits::MemberLimits {
                    leases: Some(LeaseTimes {
                        lease: Duration::from_secs(2),
                        take_over_after: Duration::from_secs(1 << 30),
                    }),
                    ..Default::default()
                },
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
