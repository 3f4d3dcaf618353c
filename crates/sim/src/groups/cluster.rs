//! The state of a run: the simulated time, the queue of future events, and the processes. This
//! module is responsible for the phases of a run.

use super::authority::{Authority, first_map};
use super::client::Client;
use super::knobs::{GroupBug, GroupKnobs};
use super::late_requests::LateRequests;
use super::ledger::Ledger;
use super::member::Member;
use super::messages::{Links, Message, Place};
use crate::disk::SyncPoint;
use crate::random::Random;
use crate::trace::Trace;
use crate::world::time_of_day;
use skep_cluster::lease_times::LeaseTimes;
use skep_metadata::shipping::LogRead;
use skep_types::group_change::MemberChange;
use skep_types::{ClusterMap, InodeId, Lsn, TargetId, Timestamp};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The options of a run.
#[derive(Debug, Clone, Copy, Default)]
pub struct GroupOptions {
    /// The seed of the run's random numbers.
    pub seed: u64,
    /// Whether to print all events.
    pub trace: bool,
    /// The bug to plant. `None` means no bug.
    pub plant: Option<GroupBug>,
}

/// The report of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupReport {
    /// The seed of the run's random numbers.
    pub seed: u64,
    /// Hash over all events of the run.
    pub trace: u64,
    /// Number of simulated events.
    pub events: u64,
    /// Number of committed operations.
    pub commits: u64,
    /// Number of injected faults.
    pub faults: u64,
    /// Number of times that another member has become the primary.
    pub take_overs: u64,
    /// Number of complete copies of the store.
    pub copies: u64,
    /// Number of changes of management's leader.
    pub leader_changes: u64,
    /// Whether the reference model became incomplete. If it did, the witness could not check all
    /// replies.
    pub is_blind: bool,
    /// Number of reads from the log on a primary's disk that returned records for an absent member.
    pub log_reads: u64,
    /// Simulated duration.
    pub time: Duration,
    /// The first violation, if the run found a violation.
    pub violation: Option<String>,
}

/// An event of the simulation. Members and clients are indexes into the lists of the cluster.
#[derive(Debug)]
pub(super) enum GroupEvent {
    Arrival(Message),
    /// A member's process handles the events that have arrived.
    Run {
        member: usize,
        life: u64,
    },
    Tick {
        member: usize,
        ticks: u64,
    },
    Synced {
        member: usize,
        life: u64,
        lsn: Lsn,
        point: SyncPoint,
    },
    Checkpointed {
        member: usize,
        life: u64,
        lsn: Lsn,
        batches: usize,
    },
    /// A member's process has read old records of its log.
    LogRead {
        member: usize,
        life: u64,
        read: LogRead,
    },
    /// A member's process starts, or reopens its target.
    Open {
        member: usize,
        life: u64,
    },
    /// A member's process counts a request to another member as failed.
    GiveUp {
        member: usize,
        life: u64,
        number: u64,
    },
    /// A member's process no longer waits for a reply of management.
    GiveUpManagement {
        member: usize,
        life: u64,
        number: u64,
    },
    Fault,
    /// The disk of a member has a fault.
    DiskFault,
    /// A member's process performs the rest of a batch that has waited for its disk.
    Continue {
        member: usize,
        life: u64,
    },
    /// The leader of management stalls, or loses its majority.
    LeaderFault,
    /// The leader of management loses its majority.
    LeaderLoss,
    /// The next leader of management begins.
    NewLeader,
    /// A leader that has lost its majority publishes a map.
    FormerLeaderPublishes,
    /// A majority of management has stored the commands up to this command.
    Commit {
        proposal: u64,
    },
    /// A process asks management for the newest map.
    SendMap {
        to: Place,
    },
    /// The primary is cut off from all other processes except its clients.
    Isolate {
        until: Duration,
    },
    /// An administrator changes the lease times.
    SetLeaseTimes(LeaseTimes),
    /// An administrator changes the group.
    Change {
        change: MemberChange,
        target: TargetId,
    },
    /// A member's process is killed, and starts again immediately.
    Restart {
        member: usize,
    },
    /// The processes of all members are killed, and management does not reply.
    RestartAll,
    /// A client's task begins its next operation.
    Step {
        client: usize,
        task: usize,
    },
    /// A client repeats a call, unless the final reply to this call has arrived.
    SendAgain {
        client: usize,
        call: u64,
        attempt: u64,
    },
    KeepAlive {
        client: usize,
    },
}

/// The state of a run.
pub(super) struct Cluster {
    pub(super) knobs: GroupKnobs,
    pub(super) random: Random,
    /// The random numbers of the module `disks`.
    pub(super) of_disks: Random,
    pub(super) now: Duration,
    queue: BTreeMap<(Duration, u64), GroupEvent>,
    next_event: u64,
    next_number: u64,
    pub(super) authority: Authority,
    pub(super) links: Links,
    pub(super) late_requests: LateRequests,
    pub(super) members: Vec<Member>,
    pub(super) clients: Vec<Client>,
    pub(super) ledger: Ledger,
    /// Inode ids of directories and files that clients have received in replies. The newest is
    /// last.
    pub(super) directories: Vec<InodeId>,
    pub(super) files: Vec<InodeId>,
    /// The time range in which clients begin no change, because the module `isolation` isolates the
    /// primary.
    pub(super) only_reads: Range<Duration>,
    pub(super) is_busy: bool,
    pub(super) faults: u64,
    pub(super) take_overs: u64,
    pub(super) copies: u64,
    pub(super) log_reads: u64,
    pub(super) violation: Option<String>,
    trace: Trace,
}

/// Maximum number of events of a run. No correct run needs as many events.
const MAX_EVENTS: u64 = 1_000_000;
/// Time limit for all work after the last fault: take-overs, lost requests and copies. The limit
/// also includes the time for which a primary does not count a member that has failed several
/// times.
const FINISH_TIMEOUT: Duration = Duration::from_secs(180);

/// Runs the seed of `options`.
pub fn run_group(options: GroupOptions) -> GroupReport {
    let mut random = Random::new(options.seed ^ 0x6772_6F75_7073);
    let knobs = GroupKnobs::draw(&mut random, options.plant);
    if options.trace {
        println!("{knobs:#?}");
    }
    let mut cluster = Cluster::new(knobs, random, options.trace);
    let result = cluster.run();
    cluster.check(result);
    GroupReport {
        seed: options.seed,
        trace: cluster.trace.hash(),
        events: cluster.trace.events(),
        commits: cluster.ledger.commits(),
        faults: cluster.faults,
        take_overs: cluster.take_overs,
        copies: cluster.copies,
        leader_changes: cluster.authority.leaders.changes,
        log_reads: cluster.log_reads,
        is_blind: cluster.ledger.is_blind(),
        time: cluster.now,
        violation: cluster.violation,
    }
}

impl Cluster {
    fn new(knobs: GroupKnobs, mut random: Random, is_traced: bool) -> Self {
        let map = Arc::new(first_map(&knobs));
        let of_leaders = Random::new(random.clone().bits());
        let of_requests = Random::new(!random.clone().bits());
        let of_disks = Random::new(random.clone().bits().rotate_left(32));
        let members = (1..=knobs.members as u32)
            .map(|id| Member::new(TargetId::new(id), &knobs, &map, &mut random))
            .collect();
        let clients = (0..knobs.clients).map(|it| Client::new(it, knobs.tasks, &map)).collect();
        let mut cluster = Self {
            random,
            of_disks,
            now: Duration::ZERO,
            queue: BTreeMap::new(),
            next_event: 0,
            next_number: 0,
            authority: Authority::new(Arc::clone(&map), of_leaders),
            links: Links::default(),
            late_requests: LateRequests::new(of_requests),
            members,
            clients,
            ledger: Ledger::new(map),
            directories: Vec::new(),
            files: Vec::new(),
            only_reads: Duration::ZERO..Duration::ZERO,
            is_busy: true,
            faults: 0,
            take_overs: 0,
            copies: 0,
            log_reads: 0,
            violation: None,
            trace: Trace::new(is_traced),
            knobs,
        };
        for member in 0..cluster.members.len() {
            cluster.open(member);
        }
        for client in 0..cluster.clients.len() {
            cluster.start_client(client);
        }
        cluster.schedule_fault();
        cluster.schedule_leader_fault();
        cluster.schedule_disk_fault();
        cluster
    }

    fn run(&mut self) -> Result<(), String> {
        while self.now < self.knobs.busy {
            self.step()?;
        }
        self.end_faults();
        self.wait_until_whole()?;
        // Let all hosts lose power. All logs are synced, so no change may be lost.
        for member in 0..self.members.len() {
            self.end_process(member, true);
        }
        self.wait_until_whole()
    }

    /// Processes events until all work is finished, all members serve and all stores are equal.
    fn wait_until_whole(&mut self) -> Result<(), String> {
        let deadline = self.now + FINISH_TIMEOUT;
        let mut next_look = self.now;
        loop {
            self.step()?;
            if self.now < next_look {
                continue;
            }
            next_look = self.now + Duration::from_millis(100);
            match self.check_whole() {
                Ok(()) => return Ok(()),
                Err(problem) if self.now > deadline => {
                    return Err(format!("the group is not whole after its faults: {problem}"));
                }
                Err(_) => {}
            }
        }
    }

    /// Processes the next event.
    fn step(&mut self) -> Result<(), String> {
        let Some(((time, _), event)) = self.queue.pop_first() else {
            return Err("the event queue is empty".to_owned());
        };
        self.now = time;
        self.trace.begin(self.now, &self.random);
        self.trace.add(self.next_event);
        self.trace.show(self.now, || format!("{event:?}"));
        if self.trace.events() > MAX_EVENTS {
            return Err(format!("the run did not end after {MAX_EVENTS} events"));
        }
        if let Some(until) = self.stopped_until(&event) {
            let pause = self.random.micros(0, 3_000);
            self.at(until + pause, event);
            return Ok(());
        }
        if let Some(until) = self.hangs_until(&event) {
            self.at(until, event);
            return Ok(());
        }
        match event {
            GroupEvent::Arrival(message) => self.receive(message),
            GroupEvent::Run { member, life } => self.run_member(member, life),
            GroupEvent::Tick { member, ticks } => self.tick_member(member, ticks),
            GroupEvent::Synced { member, life, lsn, point } => {
                self.synced(member, life, lsn, &point);
            }
            GroupEvent::Checkpointed { member, life, lsn, batches } => {
                self.checkpointed(member, life, (lsn, batches));
            }
            GroupEvent::LogRead { member, life, read } => self.read_log(member, life, read),
            GroupEvent::Open { member, life } => {
                if self.members[member].life == life {
                    self.open(member);
                }
            }
            GroupEvent::GiveUp { member, life, number } => self.give_up(member, life, number),
            GroupEvent::GiveUpManagement { member, life, number } => {
                self.management_replied((member, life), number, None);
            }
            GroupEvent::Fault => self.fault(),
            GroupEvent::DiskFault => self.disk_fault(),
            GroupEvent::Continue { member, life } => {
                if self.members[member].life == life {
                    self.continue_batch(member);
                }
            }
            GroupEvent::LeaderFault => self.leader_fault(),
            GroupEvent::LeaderLoss => self.lose_leader(),
            GroupEvent::NewLeader => self.begin_leader(),
            GroupEvent::FormerLeaderPublishes => self.publish_as_former(),
            GroupEvent::Commit { proposal } => self.commit(proposal),
            GroupEvent::SendMap { to } => self.send_map(to),
            GroupEvent::Isolate { .. }
            | GroupEvent::SetLeaseTimes(_)
            | GroupEvent::Change { .. }
            | GroupEvent::Restart { .. }
                if !self.is_busy => {}
            GroupEvent::Isolate { until } => self.isolate_primary(until),
            GroupEvent::SetLeaseTimes(times) => self.set_lease_times(times),
            GroupEvent::Change { change, target } => {
                self.administrate(change, target);
            }
            GroupEvent::Restart { member } => self.restart(member),
            GroupEvent::RestartAll => self.restart_all(),
            GroupEvent::Step { client, task } => self.next_operation(client, task),
            GroupEvent::SendAgain { client, call, attempt } => {
                self.send_again(client, call, attempt);
            }
            GroupEvent::KeepAlive { client } => self.keep_alive(client),
        }
        self.violation.clone().map_or(Ok(()), Err)
    }

    /// If an event belongs to a stopped process, returns the time at which this process continues.
    /// `None` means that the process is not stopped. Messages to a stopped process wait in its
    /// sockets, and its disk still completes syncs.
    fn stopped_until(&self, event: &GroupEvent) -> Option<Duration> {
        let member = match event {
            GroupEvent::Arrival(message) => message.receiving_member()?,
            GroupEvent::Run { member, .. }
            | GroupEvent::Continue { member, .. }
            | GroupEvent::GiveUp { member, .. }
            | GroupEvent::GiveUpManagement { member, .. } => *member,
            _ => return None,
        };
        Some(self.members[member].stopped_until).filter(|until| *until > self.now)
    }

    /// Prints a consequence of an event.
    pub(super) fn note(&self, text: impl FnOnce() -> String) {
        self.trace.note(self.now, text);
    }

    /// Records a violation. The first violation ends the run.
    pub(super) fn fail(&mut self, what: String) {
        self.note(|| format!("VIOLATION {what}"));
        self.violation.get_or_insert(what);
    }

    pub(super) fn check(&mut self, result: Result<(), String>) {
        if let Err(what) = result {
            self.fail(what);
        }
    }

    pub(super) fn after(&mut self, pause: Duration, event: GroupEvent) {
        self.at(self.now + pause, event);
    }

    pub(super) fn at(&mut self, time: Duration, event: GroupEvent) {
        self.next_event += 1;
        self.queue.insert((time.max(self.now), self.next_event), event);
    }

    /// Returns a number that no process, request or connection has had before.
    pub(super) fn new_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// Returns the simulated time of day.
    pub(super) fn wall(&self) -> Timestamp {
        time_of_day(self.now)
    }

    /// Returns the newest cluster map.
    pub(super) fn map(&self) -> &Arc<ClusterMap> {
        &self.authority.map
    }
}
