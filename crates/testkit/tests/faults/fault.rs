//! The faults, their random choice, and their effects on a node.

use crate::site::{CUT_OFF, GROUPS, MANAGEMENT, METADATA, Site, WITH_DISKS, kind};
use rustix::process::Signal;
use skep_testkit::program::run;
use skep_testkit::{PATIENCE, Random, eventually, files, wait_for};
use std::time::{Duration, Instant};

/// A fault of one node, or of the node and the leader of management.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// The test kills the process of the node, and then restarts this process.
    Kill,
    /// The test suspends the process of the node, and then resumes this process.
    Stop,
    /// The test suspends the process of a primary, and resumes this process after another member
    /// has taken over.
    StopPrimary,
    /// The network loses packets from the host, but delivers packets to the host.
    CutOneWay,
    /// The network loses all packets from and to the host.
    Cut,
    /// The node's disk is full.
    FullDisk,
    /// The disk with the node's data fails. After that, the test repairs the disk, and restarts the
    /// process.
    DiskError,
    /// The disk with the node's data completes no write for the time of the fault.
    FrozenDisk,
    /// The node is the primary of a metadata group. The test kills the processes of the node and of
    /// the leader of management at the same time, and then restarts both processes.
    LeaderAndPrimary,
    /// The link of a host with a mount is down for a time that exceeds the lease of the mount's
    /// client.
    CutMount,
}

impl Fault {
    /// Returns the maximum pause of a program on a mount that stays connected.
    pub(crate) fn longest_pause(self) -> Duration {
        match self {
            // The take-over of the group begins only after management has elected a new leader.
            Self::LeaderAndPrimary => Duration::from_secs(8),
            _ => Duration::from_secs(5),
        }
    }
}

/// Selects the faults of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plan {
    /// All faults of all nodes of management and metadata.
    All,
    /// The primary of a metadata group is suspended at least until another member has taken over.
    StoppedPrimary,
    /// The disk of a member of a metadata group completes no write for three seconds.
    FrozenDisk,
}

/// Time for which [`Plan::FrozenDisk`] freezes a disk.
const FROZEN: Duration = Duration::from_secs(3);
/// Minimum duration of a [`Fault::CutMount`] in milliseconds. This duration is longer than a lease
/// plus the time until management notices that the lease has expired.
const SHORTEST_CUT: usize = 10_000;
/// Maximum duration of a [`Fault::Stop`] in milliseconds.
const LONGEST_STOP: usize = 20_000;
/// Minimum duration of a [`Fault::StopPrimary`] in milliseconds. After 2.5 s without the primary, a
/// backup member asks management for the role of the primary.
const SHORTEST_STOP_OF_PRIMARY: usize = 4_000;

impl Plan {
    /// Returns the plan that the environment variable `SKEP_FAULT_PLAN` names.
    pub(crate) fn of_run() -> Self {
        match std::env::var("SKEP_FAULT_PLAN").as_deref() {
            Err(_) | Ok("all") => Self::All,
            Ok("stopped-primary") => Self::StoppedPrimary,
            Ok("frozen-disk") => Self::FrozenDisk,
            Ok(other) => {
                panic!("unknown plan {other}: expected all, stopped-primary or frozen-disk")
            }
        }
    }

    /// Chooses the next fault. Returns the fault, its node and its duration.
    pub(crate) fn choose(
        self,
        random: &mut Random,
        site: &Site,
    ) -> (Fault, &'static str, Duration) {
        match self {
            Self::All => choose_any(random, site),
            Self::StoppedPrimary => {
                let group = random.below(GROUPS.len());
                let time = SHORTEST_STOP_OF_PRIMARY
                    + random.below(LONGEST_STOP - SHORTEST_STOP_OF_PRIMARY);
                let time = Duration::from_millis(time as u64);
                (Fault::StopPrimary, site.primaries()[group], time)
            }
            Self::FrozenDisk => {
                let of_metadata = WITH_DISKS.into_iter().filter(|it| kind(it) == "metadata");
                let of_metadata: Vec<_> = of_metadata.collect();
                (Fault::FrozenDisk, random.one_of(&of_metadata), FROZEN)
            }
        }
    }
}

fn choose_any(random: &mut Random, site: &Site) -> (Fault, &'static str, Duration) {
    let names: Vec<_> = MANAGEMENT.into_iter().chain(METADATA).chain([CUT_OFF]).collect();
    let name = random.one_of(&names);
    if name == CUT_OFF {
        let time = SHORTEST_CUT + random.below(6_000);
        return (Fault::CutMount, name, Duration::from_millis(time as u64));
    }
    let mut faults = vec![Fault::Kill, Fault::Stop, Fault::CutOneWay, Fault::Cut];
    match WITH_DISKS.contains(&name) {
        true => faults.extend([Fault::DiskError, Fault::FrozenDisk]),
        false => faults.push(Fault::FullDisk),
    }
    let primaries = site.primaries();
    if primaries.contains(&name) {
        faults.push(Fault::LeaderAndPrimary);
    }
    let fault = random.one_of(&faults);
    let longest = if fault == Fault::Stop { LONGEST_STOP } else { 6_000 };
    (fault, name, Duration::from_millis(random.below(longest) as u64))
}

fn after(time: Duration) {
    let began = Instant::now();
    wait_for("time passes", PATIENCE, || (began.elapsed() >= time).then_some(()));
}

impl Site {
    /// Causes a fault of a node, and ends the fault after `time`.
    pub(crate) fn suffer(&mut self, fault: Fault, name: &'static str, time: Duration) {
        match fault {
            Fault::Kill => {
                self.kill(name);
                after(time);
                self.start(name);
            }
            Fault::Stop => {
                self.signal(name, Signal::STOP);
                after(time);
                self.signal(name, Signal::CONT);
            }
            Fault::StopPrimary => {
                self.signal(name, Signal::STOP);
                after(time);
                // All members serve when a fault begins, so another member must take over.
                let other =
                    eventually(PATIENCE, || (!self.primaries().contains(&name)).then_some(()));
                self.signal(name, Signal::CONT);
                assert!(other.is_some(), "no member took over from {name} within {PATIENCE:?}");
            }
            Fault::CutOneWay => {
                self.hosts[name].set_outgoing(false);
                after(time);
                self.hosts[name].set_outgoing(true);
            }
            Fault::LeaderAndPrimary => {
                let leader = self.leader();
                self.signal(leader, Signal::KILL);
                self.signal(name, Signal::KILL);
                for killed in [leader, name] {
                    self.kill(killed);
                }
                after(time);
                for killed in [leader, name] {
                    self.start(killed);
                }
            }
            Fault::Cut | Fault::CutMount => {
                self.hosts[name].set_link(false);
                after(time);
                self.hosts[name].set_link(true);
            }
            Fault::FullDisk => {
                let filler = self.place(name).join("filler");
                let script = "head -c 2G /dev/zero >\"$0\" 2>/dev/null || true";
                run("sh", ["-c", script, filler.to_str().expect("ASCII")]);
                after(time);
                files::remove_file(&filler);
            }
            Fault::DiskError => {
                self.disks[name].shut_down();
                after(time);
                self.kill(name);
                self.disks[name].mount_again();
                self.start(name);
            }
            Fault::FrozenDisk => {
                let frozen = self.disks[name].freeze();
                after(time);
                drop(frozen);
            }
        }
    }
}
