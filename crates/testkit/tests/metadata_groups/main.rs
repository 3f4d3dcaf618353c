//! A group of two metadata targets with real processes. The tests kill, suspend or disconnect a
//! member, or simulate its power loss, while programs on two mounts create, rename and lock files.
//! No program may get an error, no acknowledged operation may be lost, and the longest pause must
//! be a few seconds.
//!
//! The service `metadata-1` runs in a network namespace, so that a test can disconnect its link.
//! The service is not always the primary, because take-overs exchange the roles of the members.

mod clean_stop;
mod copies;
mod copy_load;
mod lease_times;
mod log_lines;
mod moves;
mod pair;
mod recoveries;
mod restored;
mod returns;
mod take_over;

use pair::{Pair, after};
use rustix::process::Signal;
use skep_testkit::schema;
use skep_types::codec::crc32c;
use std::time::Duration;

/// Maximum pause of a program when a member of the group fails.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Duration for which a test suspends a process. This duration is much longer than a take-over.
const STOPPED: Duration = Duration::from_secs(10);
/// Makes a stopped member look as if its host had lost power. The file `member-mark` identifies the
/// page cache of the member's host. This function changes this identification. The function also
/// removes the last `lost_bytes` bytes of the member's log, so that its last record is incomplete.
fn lose_power(pair: &Pair, name: &str, lost_bytes: u64) {
    let directory = pair.scratch.join(&format!("{name}-target"));
    let path = directory.join("member-mark");
    let mut bytes = std::fs::read(&path).expect("a member has a mark");
    let end = bytes.len() - 4;
    bytes[16] ^= 1;
    let sum = crc32c(&bytes[..end]).to_le_bytes();
    bytes[end..].copy_from_slice(&sum);
    std::fs::write(&path, bytes).expect("a mark");
    if lost_bytes == 0 {
        return;
    }
    let logs = std::fs::read_dir(directory.join("log")).expect("a log");
    let mut logs: Vec<_> = logs.map(|it| it.expect("a segment").path()).collect();
    logs.retain(|path| path.extension().is_some_and(|it| it == "log"));
    let last = logs.iter().max().expect("a segment");
    let file = std::fs::File::options().write(true).open(last).expect("a segment");
    let used = std::fs::read(last).expect("a segment");
    let used = used.iter().rposition(|byte| *byte != 0).map_or(0, |at| at as u64 + 1);
    file.set_len(used.saturating_sub(lost_bytes)).expect("a shorter segment");
}

/// docs/semantics.md 4.1 and 4.3.
#[test]
fn group_continues_when_its_primary_is_killed() {
    let mut pair = Pair::begin();
    for round in 0..2 {
        let pause = pair.under_load(round, |pair, _| {
            after(Duration::from_secs(1));
            let (primary, backup) = pair.roles();
            pair.kill(primary);
            pair.wait_for_primary(backup);
            after(Duration::from_secs(1));
            pair.start_service("metadata", primary);
            pair.wait_for_serving(2);
            after(Duration::from_secs(1));
        });
        eprintln!("round {round}: longest pause {pause:?}");
        assert!(pause < LONGEST_PAUSE, "{pause:?}");
    }
}

#[test]
fn group_continues_when_its_primary_is_suspended_for_a_while() {
    let mut pair = Pair::begin();
    let pause = pair.under_load(7, |pair, _| {
        after(Duration::from_secs(1));
        let (primary, backup) = pair.roles();
        pair.signal(primary, Signal::STOP);
        after(STOPPED);
        assert_eq!(pair.roles().0, backup);
        pair.signal(primary, Signal::CONT);
        pair.wait_for_serving(2);
        assert_eq!(pair.roles().0, backup, "a returning member does not become the primary");
    });
    eprintln!("longest pause {pause:?}");
    assert!(pause < LONGEST_PAUSE, "{pause:?}");
}

#[test]
fn group_continues_when_its_backup_member_is_killed_and_returns() {
    let mut pair = Pair::begin();
    let pause = pair.under_load(8, |pair, _| {
        after(Duration::from_secs(1));
        let (primary, backup) = pair.roles();
        pair.kill(backup);
        pair.wait_for_serving(1);
        after(Duration::from_secs(1));
        pair.start_service("metadata", backup);
        pair.wait_for_serving(2);
        assert_eq!(pair.roles().0, primary);
    });
    eprintln!("longest pause {pause:?}");
    assert!(pause < LONGEST_PAUSE, "{pause:?}");
}

/// One member loses power, and then the test kills the other member. The first member must not
/// serve, because it may lack acknowledged changes.
#[test]
fn member_that_lost_records_does_not_take_over() {
    let mut pair = Pair::begin();
    let (primary, backup) = pair.roles();
    let path = pair.mount_point().join("before");
    std::fs::write(&path, "before").expect("a file");
    pair.kill(backup);
    lose_power(&pair, backup, 10);
    // Management is suspended, so that the primary cannot drop the other member.
    pair.signal("management", Signal::STOP);
    pair.kill(primary);
    pair.start_service("metadata", backup);
    pair.signal("management", Signal::CONT);
    after(Duration::from_secs(6));
    assert_eq!((pair.roles().0, pair.serving()), (primary, 2), "no member has taken over");
    pair.start_service("metadata", primary);
    pair.wait_for_serving(2);
    assert_eq!(std::fs::read_to_string(&path).expect("the file"), "before");
    let pause = pair.under_load(9, |_, _| after(Duration::from_secs(2)));
    eprintln!("longest pause {pause:?}");
    pair.wait_for_serving(2);
}

/// Command: skep group status.
#[test]
fn power_loss_of_both_members_keeps_the_longest_log() {
    let mut pair = Pair::begin();
    let (primary, backup) = pair.roles();
    let path = pair.mount_point().join("before");
    let file = std::fs::File::create(&path).expect("a file");
    file.sync_all().expect("a sync");
    drop(file);
    for name in [primary, backup] {
        pair.kill(name);
    }
    lose_power(&pair, primary, 0);
    lose_power(&pair, backup, 0);
    for name in [primary, backup] {
        pair.start_service("metadata", name);
    }
    assert!(path.exists(), "the synced file exists");
    pair.wait_for_serving(2);
    let status = pair.json(&["group", "status"]);
    schema::check("group-status", &status);
    let members = status[0]["members"].as_array().expect("members").clone();
    assert_eq!(members.len(), 2, "{status}");
}

/// Command: skep group move.
/// Command: skep group drop.
#[test]
fn administrator_can_move_the_primary_and_drop_a_member() {
    let mut pair = Pair::begin();
    let (primary, backup) = pair.roles();
    let id = pair.group()["id"].to_string();
    let target = |pair: &Pair, wanted: bool| {
        let group = pair.group();
        let members = group["members"].as_array().expect("members");
        let found = members.iter().find(|it| it["is_primary"] == wanted).expect("a member");
        found["target"].to_string()
    };
    let pause = pair.under_load(3, |pair, _| {
        let other = target(pair, false);
        schema::check("group-move", &pair.json(&["group", "move", &id, &other]));
        pair.wait_for_primary(backup);
        after(Duration::from_secs(1));
        // A repetition of `skep group move` changes nothing.
        let epoch = pair.group()["epoch"].clone();
        assert_eq!(pair.json(&["group", "move", &id, &other])["epoch"], epoch);
        let refused = pair.ask(&["group", "drop", &id, &other]).expect_failure();
        assert!(refused.contains("is the primary"), "{refused}");
        let former = target(pair, false);
        schema::check("group-drop", &pair.json(&["group", "drop", &id, &former]));
        // The dropped member runs and receives all records, so it returns to the serving members.
        pair.wait_for_serving(2);
    });
    eprintln!("longest pause {pause:?}");
    assert!(pause < LONGEST_PAUSE, "{pause:?}");
    assert_eq!(pair.roles(), (backup, primary));
}

/// A fault of a member while programs use the group.
#[derive(Debug, Clone, Copy)]
enum Fault {
    /// The test kills the primary, and then restarts it.
    Kill,
    /// The test suspends the primary for longer than a take-over takes, and then resumes it.
    Stop,
    /// The network loses packets from the first member, but delivers packets to this member.
    CutOneWay,
    /// The network loses all packets from and to the first member.
    Cut,
}

impl Pair {
    fn suffer(&mut self, fault: Fault) {
        let (primary, backup) = self.roles();
        match fault {
            Fault::Kill => {
                self.kill(primary);
                self.wait_for_primary(backup);
                self.start_service("metadata", primary);
            }
            Fault::Stop => {
                self.signal(primary, Signal::STOP);
                self.wait_for_primary(backup);
                after(Duration::from_secs(2));
                self.signal(primary, Signal::CONT);
            }
            Fault::CutOneWay => {
                self.host.set_outgoing(false);
                self.wait_for_serving(1);
                self.host.set_outgoing(true);
            }
            Fault::Cut => {
                self.host.set_link(false);
                self.wait_for_serving(1);
                self.host.set_link(true);
            }
        }
        self.wait_for_serving(2);
    }
}

#[test]
fn twelve_faults_in_a_row_lose_no_acknowledged_change() {
    let mut pair = Pair::begin();
    let mut table = String::new();
    let kinds = [Fault::Kill, Fault::Stop, Fault::CutOneWay, Fault::Cut];
    let mut longest = Duration::ZERO;
    pair.under_load(20, |pair, pauses| {
        for fault in kinds.iter().cycle().take(12) {
            pauses.take();
            let primary = pair.roles().0;
            pair.suffer(*fault);
            let pause = pauses.take();
            table.push_str(&format!("{fault:?} (primary {primary}): {pause:?}\n"));
            longest = longest.max(pause);
        }
    });
    eprintln!("{table}");
    assert!(longest < LONGEST_PAUSE, "{table}");
}
