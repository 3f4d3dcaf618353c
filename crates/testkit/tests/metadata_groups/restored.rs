//! Groups of metadata targets after management was restored from a backup.

use crate::copies::{check_files, make_files};
use crate::pair::{METADATA, MOUNTS, Pair, after};
use serde_json::json;
use skep_testkit::{PATIENCE, cluster, files, wait_for};
use std::path::Path;
use std::time::{Duration, Instant};

/// Time for which a mount makes no requests. This time is longer than a lease plus the pause of the
/// group.
const IDLE: Duration = Duration::from_secs(8);
/// Number of files that programs create before a member loses its data. The log then has many
/// records. A primary that has lost its data logs fewer records before another member replies to
/// this primary.
const FILES: usize = 2_000;

/// Adds or deletes a network rule on the host of the first metadata service. The rule rejects
/// packets to management.
fn change_rule(pair: &Pair, verb: &str, port: &str) {
    let words = ["rule", verb, "ipproto", "tcp", "dport", port, "pref", "10", "unreachable"];
    let mut command = pair.host.command_in_network(Path::new("ip"));
    assert!(command.args(words).status().expect("ip runs").success(), "{verb} a rule");
}

/// Regression test: when the role of a target changed, the target's thread ended, but connections
/// to the target stayed open. If a mount had received the new map earlier than the target, the
/// mount waited for replies on such a connection. During this wait the mount did not renew its
/// lease, so management evicted the mount.
///
/// Command: skep cluster restore.
#[test]
fn idle_mount_stays_in_the_cluster_after_a_restore() {
    let mut pair = Pair::begin();
    let file = pair.mount_point().join("before");
    files::write(&file, "before");
    for name in MOUNTS {
        assert_eq!(files::read(pair.scratch.join(name).join("before")), b"before");
    }
    let (directory, copy) = (pair.path("management"), pair.path("copy"));
    cluster::skep(["cluster", "backup", "--directory", &directory, &copy]).expect_success();
    let (primary, _) = pair.roles();
    assert_eq!(primary, METADATA[0], "the primary is the service in a network namespace");
    let await_log = |pair: &Pair, name: &str, words: &str| {
        let path = pair.scratch.join(&format!("{name}.log"));
        wait_for(words, PATIENCE, || files::read_to_string(&path).contains(words).then_some(()));
    };
    let token = files::read_to_string(Path::new(&directory).join("join-token"));
    let port = token.trim().rsplit(':').next().expect("an address with a port").to_owned();
    pair.kill("management");
    files::rename(&directory, pair.scratch.join("lost"));
    cluster::skep(["cluster", "restore", "--directory", &directory, &copy]).expect_success();
    for name in [primary, MOUNTS[0], MOUNTS[1]] {
        await_log(&pair, name, "lost contact with management");
    }
    // The mounts get the new map before the primary gets it, and open new connections to the
    // primary. The thread of the primary ends, since the other member refuses its requests.
    change_rule(&pair, "add", &port);
    pair.start_service("management", "management");
    for name in MOUNTS {
        await_log(&pair, name, "management answers again");
    }
    await_log(&pair, primary, "opens ");
    after(Duration::from_millis(500));
    change_rule(&pair, "delete", &port);
    await_log(&pair, primary, "is now the primary of metadata group");
    pair.wait_for_serving(2);
    // One mount makes requests and the other mount makes none. If no mount made requests,
    // management would evict no mount, because management would suspect the network of the metadata
    // target.
    let until = Instant::now() + IDLE;
    while Instant::now() < until {
        files::write(pair.scratch.join(MOUNTS[1]).join("active"), "active");
    }
    assert_eq!(pair.json(&["client", "list", "--evicted"]), json!([]));
    assert_eq!(files::read(&file), b"before");
    let logged = files::read_to_string(pair.scratch.join(&format!("{primary}.log")));
    assert!(logged.contains("management was restored from a backup"), "{logged}");
    assert!(!logged.contains("lost power"), "{logged}");
}

/// The backup of management is older than the second member of a group, its service, and a storage
/// service. The second member took over and served alone. The first member must not serve its old
/// copy, although it is the only member in the backup. All services return with their ids and data.
///
/// Command: skep cluster restore, skep group add, skep health check.
#[test]
fn restored_backup_from_before_a_second_member_loses_no_change() {
    let mut pair = Pair::begin_alone();
    let root = pair.mount_point();
    let (directory, copy) = (pair.path("management"), pair.path("copy"));
    cluster::skep(["cluster", "backup", "--directory", &directory, &copy]).expect_success();
    let new = pair.add_service("metadata", METADATA[1]);
    let late = pair.add_service("storage", "storage-2");
    let id = pair.group()["id"].to_string();
    pair.ask(&["group", "add", &id, &new]).expect_success();
    pair.wait_for_serving(2);
    let on_late = root.join("on-late");
    files::create_dir_all(&on_late);
    let shown = on_late.display().to_string();
    cluster::skep(["entry", "set", "--targets", &late, &shown]).expect_success();
    let bytes = vec![7_u8; 200_000];
    files::write(on_late.join("file"), &bytes);
    pair.kill(METADATA[0]);
    pair.wait_for_primary(METADATA[1]);
    files::write(root.join("later"), "later");

    pair.kill(METADATA[1]);
    pair.kill("management");
    files::rename(&directory, pair.scratch.join("lost"));
    cluster::skep(["cluster", "restore", "--directory", &directory, &copy]).expect_success();
    pair.start_service("management", "management");
    pair.start_service("metadata", METADATA[0]);
    let members = format!("group g{id} had the members");
    wait_for("the first member waits for the second one", PATIENCE, || {
        pair.ask(&["health", "check"]).stdout.contains(&members).then_some(())
    });
    pair.start_service("metadata", METADATA[1]);
    pair.wait_for_primary(METADATA[1]);
    pair.wait_for_serving(2);
    // The second mount has no pages of these files in its cache.
    let root = pair.scratch.join(MOUNTS[1]);
    assert_eq!(files::read(root.join("later")), b"later");
    assert_eq!(files::read(root.join("on-late/file")), bytes);
    let logged = files::read_to_string(pair.scratch.join("management.log"));
    let revised = format!("older than the last change of metadata group g{id}");
    assert!(logged.contains(&revised), "{logged}");
}

/// Hole H196 in `docs/tests/holes.md`. The directory of the primary is replaced by a backup from
/// before `skep group create`, without `skep target restored`. No member was dropped since then, so
/// the cluster map still names this target as the primary. The target must not serve its empty
/// store, but get the data from the other member.
#[test]
fn primary_restored_from_an_old_backup_gets_a_store_copy() {
    let mut pair = Pair::begin();
    make_files(&pair, FILES);
    let (primary, backup) = pair.roles();
    pair.kill(primary);
    pair.kill(backup);
    let target = pair.scratch.join(&format!("{primary}-target"));
    for part in ["log", "store"] {
        files::remove_dir_all(target.join(part));
    }
    for mark in ["member-mark", "page-cache-mark"] {
        files::remove_file(target.join(mark));
    }
    // If the backup member started later, management could drop this member, at the request of the
    // primary, before the first reply of the member.
    pair.start_service("metadata", backup);
    pair.start_service("metadata", primary);
    pair.wait_for_primary(backup);
    pair.wait_for_serving(2);
    check_files(&pair, FILES);
    pair.kill(backup);
    pair.wait_for_primary(primary);
    check_files(&pair, FILES);
}
