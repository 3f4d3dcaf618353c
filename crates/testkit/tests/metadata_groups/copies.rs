//! Copies of a metadata store to a member of its group. The receiving member is a second member for
//! a target that serves, a member that was stopped for too long, or a member with a new disk.
//! Programs run during each copy, and the test kills one of the two services of the copy.

use crate::pair::{METADATA, MOUNTS, Pair};
use rustix::fs::{XattrFlags, setxattr};
use serde_json::Value;
use skep_testkit::{PATIENCE, files, schema, wait_for};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Number of files in the store that is copied.
const FILES: usize = 20_000;
/// Number of programs that create the files. Each program has its own directory.
const CREATORS: usize = 4;
/// Minimum length of the log that a member lacks, in bytes. This length exceeds the length of the
/// records that the primary keeps in memory. This length also exceeds the length of the log between
/// two checkpoints. After a checkpoint, a target removes log segments, except segments that it
/// keeps for an absent member.
pub(crate) const LOGGED_BYTES: usize = 80 << 20;
/// Maximum pause of a program while a copy is in progress.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

fn directory_of(pair: &Pair, creator: usize) -> PathBuf {
    pair.scratch.join(MOUNTS[creator % MOUNTS.len()]).join(format!("many-{creator}"))
}

/// Returns the permissions of the file with this number.
fn mode_of(number: usize) -> u32 {
    0o600 | (number % 64) as u32
}

/// Creates `count` files.
pub(crate) fn make_files(pair: &Pair, count: usize) {
    let began = Instant::now();
    std::thread::scope(|scope| {
        for creator in 0..CREATORS {
            let directory = directory_of(pair, creator);
            scope.spawn(move || {
                files::create_dir(&directory);
                for number in 0..count / CREATORS {
                    let mut options = std::fs::File::options();
                    options.write(true).create_new(true).mode(mode_of(number));
                    options.open(directory.join(format!("f{number}"))).expect("a new file");
                    files::set_permissions(
                        directory.join(format!("f{number}")),
                        std::fs::Permissions::from_mode(mode_of(number)),
                    );
                }
            });
        }
    });
    eprintln!("{count} files created in {:?}", began.elapsed());
}

pub(crate) fn check_files(pair: &Pair, count: usize) {
    for creator in 0..CREATORS {
        let directory = directory_of(pair, creator);
        assert_eq!(files::read_dir(&directory).count(), count / CREATORS);
        for number in 0..count / CREATORS {
            let found = files::metadata(directory.join(format!("f{number}")));
            assert_eq!(found.permissions().mode() & 0o777, mode_of(number), "file {number}");
        }
    }
}

impl Pair {
    fn group_id(&self) -> String {
        self.group()["id"].to_string()
    }

    fn set_rate(&self, bytes_per_second: u64) {
        let value = bytes_per_second.to_string();
        self.ask(&["config", "set", "metadata-copy-rate", &value]).expect_success();
    }

    /// Returns the progress of the copy, and the member that receives the copy. `None` means that
    /// no copy is in progress.
    fn copy(&self) -> Option<Value> {
        let status = self.json(&["group", "status"]);
        schema::check("group-status", &status);
        let members = status[0]["members"].as_array()?.clone();
        members.into_iter().map(|it| it["copy"].clone()).find(|it| !it.is_null())
    }

    /// Checks that `skep group list` and `skep health check` show the rest of the copy in progress,
    /// and the time until the copy ends.
    fn check_lag_of_copy(&self) {
        // On a busy host, the primary may miss a reply of the member, and then reports no rate of
        // the copy.
        wait_for("the list of groups shows the rest of the copy", PATIENCE, || {
            let groups = self.json(&["group", "list"]);
            schema::check("group-list", &groups);
            let group = self.group();
            let mut lags = group["members"].as_array()?.iter().map(|it| &it["lag"]);
            let lag = lags.find(|it| it["by_copy"] == true)?;
            (lag["bytes"].is_number() && lag["seconds_left"].is_number()).then_some(())
        });
        wait_for("the check shows the rest of the copy", PATIENCE, || {
            let health = self.ask(&["health", "check"]).stdout;
            let words = [" of a copy of the store, ", " left\""];
            words.iter().all(|it| health.contains(it)).then_some(())
        });
    }

    /// Waits until a copy has more than `bytes` bytes. Returns the number of bytes of the copy.
    fn wait_for_copied(&self, bytes: u64) -> u64 {
        wait_for("the copy goes on", PATIENCE, || {
            let copied = self.copy()?["bytes"].as_u64()?;
            (copied > bytes).then_some(copied)
        })
    }

    /// Returns the directory of the target of the service `name`.
    fn target(&self, name: &str) -> PathBuf {
        self.scratch.join(&format!("{name}-target"))
    }

    pub(crate) fn store_of(&self, name: &str) -> PathBuf {
        self.target(name).join("store")
    }

    /// Kills a member and removes the data of its target. The target keeps its identity.
    pub(crate) fn lose_data(&mut self, name: &str) {
        self.kill(name);
        self.wait_for_serving(1);
        for part in ["log", "store"] {
            files::remove_dir_all(self.target(name).join(part));
        }
    }
}

/// Command: skep group add.
/// Command: skep group list.
/// Command: skep health check.
#[test]
fn group_of_one_target_gets_a_second_member_while_it_serves() {
    let mut pair = Pair::begin_alone();
    make_files(&pair, FILES);
    let new = pair.add_service("metadata", METADATA[1]);
    let id = pair.group_id();
    pair.set_rate(256 << 10);
    let refused = pair.ask(&["group", "add", &id, "2"]).expect_failure();
    assert!(refused.contains("is a member of group"), "{refused}");
    pair.under_load(30, |pair, pauses| {
        pauses.take();
        schema::check("group-add", &pair.json(&["group", "add", &id, &new]));
        pair.wait_for_copied(300_000);
        assert_eq!(pair.serving(), 1, "an incomplete member does not serve");
        pair.check_lag_of_copy();
        eprintln!("longest pause at the beginning: {:?}", pauses.take());
        // The test kills the receiving member during the copy. The copy continues after the last
        // data that the member has received.
        pair.kill(METADATA[1]);
        pair.start_service("metadata", METADATA[1]);
        let copied = pair.wait_for_copied(400_000);
        // The test kills the primary during the copy.
        pair.kill(METADATA[0]);
        pair.start_service("metadata", METADATA[0]);
        let first = pair.wait_for_copied(0);
        assert!(first >= copied, "the copy has {first} bytes, and had {copied} before the kill");
        pauses.take();
        let began = Instant::now();
        pair.set_rate(64 << 20);
        pair.wait_for_serving(2);
        let pause = pauses.take();
        eprintln!("longest pause until the member serves: {pause:?} of {:?}", began.elapsed());
        assert!(pause < LONGEST_PAUSE, "{pause:?}");
        // The only remaining member has received its data by the copy.
        pair.kill(METADATA[0]);
        pair.wait_for_primary(METADATA[1]);
        check_files(pair, FILES);
        pair.start_service("metadata", METADATA[0]);
        pair.wait_for_serving(2);
    });
    check_files(&pair, FILES);
    pair.stop();
    pair.check_stores();
    pair.start_again();
    let other = pair.group()["members"][0]["target"].to_string();
    pair.ask(&["group", "move", &id, &other]).expect_success();
    check_files(&pair, FILES);
    pair.stop_with_equal_members();
}

/// Writes extended attributes with `bytes` bytes in total.
pub(crate) fn write_attributes(root: &Path, bytes: usize) {
    let path = root.join("attributes");
    files::write(&path, "");
    let value = vec![7_u8; 60_000];
    for number in 0..bytes / value.len() {
        let name = format!("user.{}", number % 50);
        setxattr(&path, &name, &value, XattrFlags::empty()).expect("an attribute");
    }
    setxattr(&path, "user.last", b"last", XattrFlags::empty()).expect("an attribute");
}

pub(crate) fn check_attributes(root: &Path) {
    let mut value = vec![0_u8; 1 << 16];
    for number in 0..50 {
        let read =
            rustix::fs::getxattr(root.join("attributes"), format!("user.{number}"), &mut value);
        assert_eq!(read.expect("the attribute"), 60_000);
    }
    let read = rustix::fs::getxattr(root.join("attributes"), "user.last", &mut value);
    assert_eq!(&value[..read.expect("the last attribute")], b"last");
}

#[test]
fn member_that_lacks_removed_log_records_returns_by_a_copy() {
    let mut pair = Pair::begin();
    pair.ask(&["config", "set", "metadata-log-kept", "0"]).expect_success();
    let (primary, backup) = pair.roles();
    let root = pair.mount_point();
    let pause = pair.under_load(40, |pair, pauses| {
        pair.kill(backup);
        pair.wait_for_serving(1);
        write_attributes(&root, LOGGED_BYTES);
        pauses.take();
        // A file in the previous store shows whether the copy has replaced this store.
        let former = pair.store_of(backup).join("former");
        files::write(&former, "");
        pair.start_service("metadata", backup);
        pair.wait_for_serving(2);
        assert!(!former.exists(), "the store is a copy");
        let pause = pauses.take();
        pair.kill(primary);
        pair.wait_for_primary(backup);
        check_attributes(&root);
        pair.start_service("metadata", primary);
        pair.wait_for_serving(2);
        eprintln!("longest pause during the copy: {pause:?}");
    });
    assert!(pause < LONGEST_PAUSE, "{pause:?}");
    check_attributes(&root);
}

/// Command: skep target replace.
#[test]
fn target_replace_moves_the_only_member_to_a_new_target() {
    let mut pair = Pair::begin_alone();
    let file = pair.mount_point().join("file");
    files::write(&file, "contents");
    let new = pair.add_service("metadata", METADATA[1]);
    let group = pair.group();
    let former = group["members"][0]["target"].to_string();
    let steps = pair.ask(&["target", "replace", &former]).expect_failure();
    assert!(steps.contains("skep target add NODE PATH"), "{steps}");
    assert!(!steps.contains("metadata-copies"), "two copies are set: {steps}");
    let itself = pair.ask(&["target", "replace", &former, &former]).expect_failure();
    assert!(itself.contains("by itself"), "{itself}");
    let targets = pair.json(&["target", "list"]);
    let mut targets = targets.as_array().expect("a list").iter();
    let storage = targets.find(|it| it["kind"] == "storage").expect("a storage target");
    let storage = storage["id"].to_string();
    let steps = pair.ask(&["target", "replace", &storage, &new]).expect_failure();
    assert!(steps.contains(&format!("skep target remove {storage}")), "{steps}");

    schema::check("target-replace", &pair.json(&["target", "replace", &former, &new]));
    let group = pair.group();
    let members = group["members"].as_array().expect("members");
    assert_eq!(members.len(), 1, "{group}");
    assert_eq!(members[0]["target"].to_string(), new);
    assert_eq!(
        (&members[0]["is_primary"], &members[0]["state"]),
        (&true.into(), &"Serving".into())
    );
    let again = pair.ask(&["target", "replace", &former, &new]).expect_failure();
    assert!(again.contains("this target is in no group"), "{again}");
    // The cluster does not need the former target and its data any more.
    pair.kill(METADATA[0]);
    files::remove_dir_all(pair.target(METADATA[0]));
    assert_eq!(files::read_to_string(&file), "contents");
    files::write(&file, "newer");
    assert_eq!(files::read_to_string(&file), "newer");
}

/// Command: skep group remove.
#[test]
fn new_target_replaces_a_member_that_lost_its_disk() {
    let mut pair = Pair::begin();
    let (primary, backup) = pair.roles();
    let root = pair.mount_point();
    files::write(root.join("file"), "contents");
    pair.lose_data(backup);
    pair.start_service("metadata", backup);
    pair.wait_for_serving(2);
    // The whole disk is lost, and a new target replaces the lost target.
    pair.kill(backup);
    pair.wait_for_serving(1);
    files::remove_dir_all(pair.target(backup));
    let id = pair.group_id();
    let members = pair.group()["members"].as_array().expect("members").clone();
    let lost = members.iter().find(|it| it["is_primary"] == false).expect("a backup");
    let (lost, node) = (lost["target"].to_string(), lost["node"].to_string());
    let refused = pair.ask(&["target", "remove", &lost]).expect_failure();
    assert!(refused.contains("group"), "{refused}");
    schema::check("group-remove", &pair.json(&["group", "remove", &id, &lost]));
    // While the target counts as online, the commands send requests to the target's service.
    for command in [["target", "remove", &lost], ["node", "remove", &node]] {
        wait_for("the removal", PATIENCE, || pair.ask(&command).status.success().then_some(()));
    }
    files::remove_dir_all(pair.scratch.join(backup));
    let new = pair.add_service("metadata", backup);
    assert_ne!(new, lost);
    pair.ask(&["group", "add", &id, &new]).expect_success();
    pair.wait_for_serving(2);
    pair.kill(primary);
    pair.wait_for_primary(backup);
    assert_eq!(files::read_to_string(root.join("file")), "contents");
}
