//! The values that a seed determines before the run of a group begins, and the planted bugs.

use crate::random::Random;
use skep_cluster::lease_times::LeaseTimes;
use skep_cluster::limits::{MIN_METADATA_LEASE_MS, MIN_TAKE_OVER_AFTER_MS};
use skep_metadata::limits::{Limits, MemberLimits};
use skep_metadata::target::SyncPolicy;
use skep_types::map::Policy;
use std::time::Duration;

/// A bug that a test plants to prove that the checks find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupBug {
    /// A primary replies to clients even after its lease has ended.
    AnswerWithoutLease,
    /// A member that takes over drops its unsynced records.
    DropUnsynced,
    /// A member whose host has lost power does not report that it may lack records.
    TrustAfterPowerLoss,
    /// A backup member accepts records of an earlier epoch.
    AcceptOlderEpoch,
    /// A backup member replies before it has appended the records.
    AcknowledgeBeforeAppend,
    /// A primary treats a silent backup member as dropped before management has dropped this
    /// member.
    DropAlone,
    /// A primary continues in its role after management has named another primary.
    GoOnDeposed,
    /// A primary does not record a member after it has asked management to mark this member as in
    /// sync.
    ForgetCounted,
    /// A member that receives a copy of the store ignores the changes that were made after the copy
    /// began.
    LoseCopiedChanges,
    /// A member treats its incomplete copy of the store as complete.
    OpenIncompleteCopy,
    /// A member counts a copy as complete before all key-value pairs are on its device.
    TrustUnsyncedCopy,
    /// If a member lacks records that the log of the primary no longer has, the primary sends later
    /// records instead.
    ReadRemovedRecords,
    /// A primary that has not received the newest map confirms records of its successor, and
    /// nevertheless continues as a primary.
    ReleaseInOffice,
    /// A primary ignores the leases that members grant. The primary relies only on the setting
    /// `take_over_after` in its own map.
    IgnoreGrant,
    /// A process that starts ignores the promises of the previous process of the member, and waits
    /// only for `take_over_after` in its own map.
    ForgetPromise,
    /// A map with a shorter `take_over_after` shortens the promises that a member has already made.
    ShortenPromise,
    /// A member ignores that the primary still waits for the leases of earlier primaries.
    IgnoreWait,
    /// A primary that has taken over does not notify the holders of a file before it replies to an
    /// open that a client repeats. The primary assumes that its predecessor has notified the
    /// holders.
    LoseNotifications,
    /// A new leader of management continues with the start number of its predecessor, so both
    /// leaders publish maps with the same versions.
    ShareVersions,
    /// A leader of management replies and publishes a map before a majority has stored the command.
    AnswerBeforeCommit,
    /// A backup member that has asked to take over confirms records that it has not synced,
    /// although management may still carry out the request.
    ConfirmUnsynced,
    /// A primary whose batch has waited for its disk sends the replies of the batch without another
    /// check of its lease.
    AnswerAfterStall,
}

impl GroupBug {
    /// All bugs that can be planted.
    pub const ALL: [Self; 22] = [
        Self::AnswerWithoutLease,
        Self::DropUnsynced,
        Self::TrustAfterPowerLoss,
        Self::AcceptOlderEpoch,
        Self::AcknowledgeBeforeAppend,
        Self::DropAlone,
        Self::GoOnDeposed,
        Self::ForgetCounted,
        Self::LoseCopiedChanges,
        Self::OpenIncompleteCopy,
        Self::TrustUnsyncedCopy,
        Self::ReadRemovedRecords,
        Self::ReleaseInOffice,
        Self::IgnoreGrant,
        Self::ForgetPromise,
        Self::ShortenPromise,
        Self::IgnoreWait,
        Self::LoseNotifications,
        Self::ShareVersions,
        Self::AnswerBeforeCommit,
        Self::ConfirmUnsynced,
        Self::AnswerAfterStall,
    ];

    /// Whether the bug has an effect only if management's leader changes.
    fn needs_leader_changes(self) -> bool {
        matches!(self, Self::ShareVersions | Self::AnswerBeforeCommit)
    }
}

/// The faults that a run may inject.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroupFaults {
    /// Processes of members are killed.
    pub(super) kills: bool,
    /// The host of one member, or the hosts of all members, lose power.
    pub(super) power_losses: bool,
    /// Processes of members are stopped for some seconds (SIGSTOP).
    pub(super) stops: bool,
    /// Links lose all messages for a while, in one direction or in both.
    pub(super) cuts: bool,
    /// Messages are lost, duplicated and late.
    pub(super) losses: bool,
    /// Some syncs and messages take a long time.
    pub(super) slowness: bool,
    /// Management does not reply for some seconds.
    pub(super) management_stops: bool,
    /// Leaders of management lose their majority, and other nodes become the leader.
    pub(super) leader_changes: bool,
    /// Requests to take over or to drop a member arrive late, after a power loss of their sender.
    pub(super) late_requests: bool,
    /// Disks of members hang, are full, or let a batch stall.
    pub(super) disks: bool,
    /// An administrator replaces a member by a target without data.
    pub(super) replacements: bool,
    /// An administrator moves the role of the primary.
    pub(super) hand_overs: bool,
    /// An administrator changes the lease times.
    pub(super) settings: bool,
}

/// Draws lease times that management accepts. Most lease times are short, so that many members take
/// over. Half of the leases are as long as `take_over_after` permits, so that they end as late as
/// possible.
pub(super) fn draw_lease_times(random: &mut Random) -> LeaseTimes {
    let most = if random.percent(60) { 3_000 } else { 10_000 };
    let take_over_after_ms = random.within(MIN_TAKE_OVER_AFTER_MS.into(), most);
    let take_over_after = Duration::from_millis(take_over_after_ms);
    let longest = LeaseTimes { lease: Duration::ZERO, take_over_after }.granted_lease();
    let least = u64::from(MIN_METADATA_LEASE_MS);
    let lease = match random.percent(50) {
        true => longest,
        false => Duration::from_millis(random.within(least, longest.as_millis() as u64)),
    };
    LeaseTimes { lease, take_over_after }
}

/// All values that a seed determines before the run begins.
#[derive(Debug, Clone)]
pub(super) struct GroupKnobs {
    pub(super) members: usize,
    pub(super) clients: usize,
    pub(super) tasks: usize,
    pub(super) policy: SyncPolicy,
    pub(super) limits: Limits,
    /// Duration of the phase with operations and faults.
    pub(super) busy: Duration,
    /// Longest pause of a task between two operations, in microseconds.
    pub(super) pause_micros: u64,
    /// Whether clients open files for writing, so that clients share files.
    pub(super) shares_files: bool,
    pub(super) segment_bytes: usize,
    /// Maximum number of bytes of old segments that a log keeps for absent members.
    pub(super) log_kept: usize,
    /// Maximum rate of a copy of the store, in bytes per second.
    pub(super) copy_rate: u64,
    /// The lease times at the beginning of the run.
    pub(super) leases: LeaseTimes,
    pub(super) faults: GroupFaults,
    pub(super) mean_fault_pause: Duration,
    pub(super) plant: Option<GroupBug>,
}

impl GroupKnobs {
    pub(super) fn draw(random: &mut Random, plant: Option<GroupBug>) -> Self {
        // Newer fields of this struct get their values from a separate generator. So a seed still
        // gives the same earlier values.
        let mut later = Random::new(random.clone().bits());
        let shares_files = later.percent(35) || plant == Some(GroupBug::LoseNotifications);
        let leader_changes = later.percent(40) || plant.is_some_and(GroupBug::needs_leader_changes);
        let late_requests = match plant {
            None => later.percent(25),
            Some(plant) => plant == GroupBug::ConfirmUnsynced,
        };
        let disks = match plant {
            None => later.percent(25),
            Some(plant) => plant == GroupBug::AnswerAfterStall,
        };
        let all = random.percent(50);
        let mut fault = |percent| all || random.percent(percent);
        let faults = GroupFaults {
            kills: fault(40),
            power_losses: fault(40),
            stops: fault(50),
            cuts: fault(50),
            losses: fault(40),
            slowness: fault(30),
            management_stops: fault(30),
            leader_changes,
            late_requests,
            disks,
            replacements: fault(40),
            hand_overs: fault(30),
            settings: fault(40),
        };
        Self {
            members: random.within(2, 3) as usize,
            clients: random.within(1, 4) as usize,
            tasks: random.within(1, 2) as usize,
            policy: if random.percent(70) { SyncPolicy::Interval } else { SyncPolicy::Always },
            limits: Limits {
                number_range: random.within(4, 16),
                record_bytes: random.within(100, 4_000) as usize,
                checkpoint_log_bytes: random.within(500, 20_000),
                scan_page: random.within(1, 4) as usize,
                members: MemberLimits {
                    copy_part_bytes: random.within(100, 3_000) as usize,
                    kept_for_absent_bytes: random.within(200, 40_000) as usize,
                    ..MemberLimits::default()
                },
                ..Limits::default()
            },
            busy: random.micros(8_000_000, 30_000_000),
            pause_micros: random.within(5_000, 250_000),
            shares_files,
            segment_bytes: random.within(600, 20_000) as usize,
            log_kept: random.within(0, 60_000) as usize,
            // With 2,000 bytes per second, the copies of a large store to two members did not end
            // within `FINISH_TIMEOUT` (seed 40005183).
            copy_rate: random.within(10_000, 200_000),
            leases: match random.percent(50) {
                true => LeaseTimes::of(&Policy::default()),
                false => draw_lease_times(random),
            },
            faults,
            mean_fault_pause: random.micros(200_000, 3_000_000),
            plant,
        }
    }
}
