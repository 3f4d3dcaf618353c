//! `skep up` and `skep down`: one command starts a cluster, and all following commands find this
//! cluster. The supervisor restarts services, several clusters can run at the same time, and the
//! administrative commands show each cluster.

use rustix::process::Signal;
use serde_json::{Value, json};
use skep_testkit::files::{self, OrFail};
use skep_testkit::power::Disk;
use skep_testkit::program::finish;
use skep_testkit::view::Typed;
use skep_testkit::{
    Cluster, PATIENCE, Scratch, Shape, Transport, cluster, eventually, process, seen_within,
    wait_for,
};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

fn text(value: &Value) -> &str {
    value.text()
}

/// docs/semantics.md 5.7. Each group has one target and no mirror.
///
/// Command: skep node list, skep target list, skep health df, skep health check.
#[test]
fn lists_show_all_nodes_targets_and_groups_of_a_cluster() {
    let cluster = Cluster::start(Shape::default());
    let nodes = cluster.skep_list(&["node", "list"]);
    let names: Vec<&str> = nodes.iter().map(|node| text(&node["name"])).collect();
    for name in ["management-1", "metadata-1", "metadata-2", "storage-1", "storage-2"] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    let targets = cluster.skep_list(&["target", "list"]);
    assert_eq!(targets.len(), 2 + 2 * 4);
    for target in &targets {
        assert_eq!(
            (text(&target["reachability"]), text(&target["consistency"])),
            ("Online", "Good")
        );
        assert!(target["total_bytes"].number() > 0);
        let path = Path::new(text(&target["path"]));
        assert!(path.join("skep-identity").exists(), "{}", path.display());
    }
    let groups = cluster.skep_list(&["group", "list"]);
    assert_eq!(groups.len(), targets.len());
    let members = |group: &Value| group["members"].as_array().map(Vec::len);
    assert!(groups.iter().all(|group| members(group) == Some(1)), "{groups:?}");
    // All targets are on one file system, so the whole cluster has no more space than a single
    // target.
    let of = |path: &Path| rustix::fs::statvfs(path).or_fail("statvfs", path);
    let (host, mount) = (of(cluster.data()), of(cluster.path()));
    // Space that the file system reserves for root does not count as capacity.
    let total = |it: &rustix::fs::StatVfs| (it.f_blocks - it.f_bfree + it.f_bavail) * it.f_frsize;
    assert!(total(&host).abs_diff(total(&mount)) <= mount.f_frsize);
    for target in &targets {
        assert_eq!(target["file_system"], targets[0]["file_system"]);
        assert_eq!(target["total_bytes"], total(&host));
    }
    let df = cluster.skep(&["health", "df"]);
    let of_class = |line: &&str| line.starts_with("total ");
    let sums: Vec<_> = df.lines().filter(of_class).map(|it| it.split_whitespace().nth(2)).collect();
    assert_eq!(sums.len(), 2, "{df}");
    assert_eq!(sums[0], sums[1], "{df}");
    assert!(df.contains("METADATA SERVERS") && df.contains("STORAGE TARGETS"), "{df}");
    let check = cluster.skep(&["health", "check"]);
    assert_eq!(check.matches("reachable at 127.0.0.1:").count(), 5, "{check}");
    assert!(check.contains("(protocol: TCP)") && check.contains("healthy"), "{check}");
}

/// Command: skep up, skep group list, skep management status, skep health check.
#[test]
fn one_skep_up_starts_management_nodes_and_metadata_copies() {
    let more = ["--management-nodes", "3", "--metadata-copies", "2"].map(str::to_owned).into();
    let cluster = Cluster::start(Shape { metadata_targets: 2, more, ..Shape::small() });
    let groups = cluster.skep_list(&["group", "list"]);
    let of_metadata: Vec<_> = groups.iter().filter(|it| it["kind"] == "metadata").collect();
    assert_eq!(of_metadata.len(), 2, "{groups:?}");
    for group in of_metadata {
        let members = group["members"].list();
        assert_eq!(members.len(), 2, "{group}");
        assert!(members.iter().all(|it| it["state"] == "Serving"), "{group}");
    }
    let status = cluster.skep(&["management", "status", "--output", "json"]);
    let status: Value = serde_json::from_str(&status).expect("JSON");
    assert_eq!(status["voters"], 3, "{status}");
    let mut printed = String::new();
    let healthy = eventually(PATIENCE, || {
        let checked = cluster.try_skep(&["health", "check"]);
        printed = checked.stdout;
        checked.status.success().then_some(())
    });
    assert!(healthy.is_some(), "{printed}");
}

/// docs/semantics.md 1.15.
#[test]
fn free_space_shows_small_changes_of_the_disk() {
    // Use a separate disk, so that no other program writes to it.
    let scratch = Scratch::new();
    let disk = Disk::new(&scratch, 32 << 30);
    let cluster = Cluster::start_in(disk.path(), Shape::small());
    // Number of bytes that a target reserves for its own data, unless the disk is small.
    let reserve = 64 << 20;
    let follows = || {
        let (host, mount) = (free(cluster.data()) - reserve, free(cluster.path()));
        host.abs_diff(mount) < 32 << 20
    };
    wait_for("the mount shows the space of the disk", PATIENCE, || follows().then_some(()));
    // The new file is smaller than a hundredth of the disk.
    let path = cluster.path().join("large");
    files::write(&path, vec![1; 128 << 20]);
    files::sync_all(&files::open(&path));
    wait_for("the free space has shrunk by the file's size", PATIENCE, || follows().then_some(()));
    files::remove_file(&path);
    wait_for("the space has grown again", PATIENCE, || follows().then_some(()));
    cluster.stop();
}

/// A file on the targets' disk. The file does not belong to Skep.
struct Stranger<'a> {
    disk: &'a Disk,
}

impl Stranger<'_> {
    const BYTES: u64 = 96 << 20;

    /// Creates or removes the file, and waits until `statfs` on the disk shows the changed free
    /// space.
    fn set(&self, is_there: bool) {
        let (path, before) = (self.disk.path().join("stranger"), free(self.disk.path()));
        if is_there {
            files::write(&path, vec![1; Self::BYTES as usize]);
            files::sync_all(&files::open(&path));
        } else {
            files::remove_file(&path);
        }
        wait_for("the disk shows the changed free space", PATIENCE, || {
            has_moved(before, free(self.disk.path())).then_some(())
        });
    }
}

/// Returns the number of free bytes that `statfs` reports to users.
fn free(path: &Path) -> u64 {
    let capacity = rustix::fs::statvfs(path).or_fail("statvfs", path);
    capacity.f_bavail * capacity.f_frsize
}

/// Whether two numbers of free bytes differ by about the size of a [`Stranger`].
fn has_moved(before: u64, after: u64) -> bool {
    before.abs_diff(after) > Stranger::BYTES / 2
}

/// docs/semantics.md 1.15, for a disk to which no other program writes.
#[test]
fn free_space_is_at_most_three_seconds_old() {
    // Additional time for delays of a busy machine.
    const MARGIN: Duration = Duration::from_millis(1500);
    let scratch = Scratch::new();
    let disk = Disk::new(&scratch, 1 << 30);
    let cluster = Cluster::start_in(disk.path(), Shape::small());
    let stranger = Stranger { disk: &disk };
    for is_there in [true, false, true, false] {
        let before = free(cluster.path());
        stranger.set(is_there);
        seen_within("the mount's free space", Duration::from_secs(3) + MARGIN, || {
            has_moved(before, free(cluster.path()))
        });
    }
    cluster.stop();
}

/// docs/semantics.md 1.15.
#[test]
fn free_space_does_not_change_while_management_is_stopped() {
    let scratch = Scratch::new();
    let disk = Disk::new(&scratch, 1 << 30);
    let cluster = Cluster::start_in(disk.path(), Shape::small());
    let stranger = Stranger { disk: &disk };
    let management = cluster.processes("management").remove(0);
    let before = free(cluster.path());
    management.signal(Signal::STOP);
    stranger.set(true);
    // While management runs, the shown free space is never older than about 5 seconds. Wait longer
    // than these 5 seconds.
    let shown = eventually(Duration::from_secs(8), || {
        let now = free(cluster.path());
        has_moved(before, now).then_some(now)
    });
    management.signal(Signal::CONT);
    assert_eq!(shown, None, "bytes are free although no report arrived; before: {before}");
    wait_for("the free space follows the disk again", PATIENCE, || {
        has_moved(before, free(cluster.path())).then_some(())
    });
    cluster.stop();
}

/// Command: skep entry info.
#[test]
fn entry_info_shows_that_files_use_all_servers_evenly() {
    let cluster = Cluster::start(Shape::default());
    for number in 0..20 {
        let path = cluster.path().join(format!("file-{number}"));
        files::write(&path, vec![7; 3 << 20]);
        // The command gets no `--cluster`, and finds the cluster by the path in its mount.
        let mut command = Command::new(cluster::program());
        command.args(["entry", "info", "--output", "json"]).arg(&path);
        let info = finish(&mut command, PATIENCE).expect_success();
        let info: Value = serde_json::from_str(&info).expect("JSON");
        assert_eq!(text(&info["kind"]), "file");
        assert!(text(&info["metadata"]["node_name"]).starts_with("metadata-"), "{info}");
        let [narrow, wide] = [0, 1].map(|part| &info["pattern"]["components"][part]);
        assert_eq!((&narrow["targets_wanted"], &wide["targets_wanted"]), (&json!(1), &json!(32)));
        assert_eq!((&narrow["start_byte"], &wide["start_byte"]), (&json!(0), &json!(4 << 20)));
        assert_eq!(wide["targets"].list().len(), 8);
        assert_eq!(wide["targets_per_server"], json!([4, 4]), "{info}");
    }
    let shown = cluster.skep(&[
        "entry",
        "info",
        "--verbose",
        &cluster.path().join("file-3").display().to_string(),
    ]);
    for words in ["Entry type: file", "EntryID: ", "desired: 32; actual: 8", "(min,max): (4,4)"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
}

/// Command: skep up, skep down.
#[test]
fn restarted_cluster_has_the_same_files_and_addresses() {
    let cluster = Cluster::start(Shape::small());
    files::write(cluster.path().join("kept"), "as it was");
    let addresses = || {
        let nodes = cluster.skep_list(&["node", "list"]);
        nodes.iter().map(|node| node["addresses"].to_string()).take(3).collect::<Vec<_>>()
    };
    let before = addresses();
    let again = cluster.up().expect_failure();
    assert!(again.contains("up already") && again.contains("skep down"), "{again}");
    cluster.stop();
    cluster.up().expect_success();
    assert_eq!(files::read(cluster.path().join("kept")), b"as it was");
    assert_eq!(addresses(), before);
    cluster.stop();
    // A stop of a stopped cluster succeeds. A start of this cluster with another shape fails.
    cluster.stop();
    let data = cluster.data().display().to_string();
    let other = cluster::skep(["up", "--detach", "--data-dir", &data, "--metadata-targets", "2"]);
    assert!(other.expect_failure().contains("was created with --metadata-targets 1"));
}

#[test]
fn several_clusters_run_on_one_host_independently() {
    let (mut one, two) = (Cluster::start(Shape::small()), Cluster::start(Shape::small()));
    files::write(one.path().join("name"), "one");
    files::write(two.path().join("name"), "two");
    let second = one.mount(Transport::Device);
    assert_eq!(files::read(second.path().join("name")), b"one");
    assert_eq!(files::read(two.path().join("name")), b"two");
    // The token of one cluster is not valid for the other cluster.
    let address = files::read_to_string(one.data().join("management/address"));
    let token = two.data().join("management/join-token").display().to_string();
    let wrong =
        cluster::skep(["node", "list", "--cluster", address.trim(), "--token-file", &token]);
    assert!(wrong.expect_failure().contains("belongs to cluster"));
    // Inode numbers of one cluster mean other files in the other cluster, so options that name the
    // other cluster are refused.
    let path = one.path().join("name").display().to_string();
    let commands: [&[&str]; 6] = [
        &["entry", "info"],
        &["entry", "who"],
        &["entry", "map"],
        &["lock", "list"],
        &["health", "df"],
        &["entry", "set", "--chunk-size", "1MiB"],
    ];
    for command in commands {
        let with = |cluster: &Cluster| {
            let data = cluster.data().display().to_string();
            cluster::skep([command, &["--cluster", &data, &path]].concat())
        };
        let refused = with(&two).expect_failure();
        assert!(refused.contains("is in a mount of cluster"), "{command:?}: {refused}");
        // Only an empty file without writes can get another pattern.
        if command[1] != "set" {
            with(&one).expect_success();
        }
    }
    second.unmount();
    one.stop();
    assert_eq!(files::read(two.path().join("name")), b"two");
    two.stop();
}

#[test]
fn killed_processes_are_restarted_and_logged() {
    let cluster = Cluster::start(Shape::small());
    files::write(cluster.path().join("file"), "before");
    for role in ["storage", "management", "metadata", "mount"] {
        let before = cluster.processes(role);
        before.first().expect("the process runs").kill();
        wait_for("the killed process runs again", PATIENCE, || {
            cluster.processes(role).iter().find(|it| it.pid != before[0].pid).map(|_| ())
        });
    }
    cluster.wait_for_mount();
    assert_eq!(files::read(cluster.path().join("file")), b"before");
    files::write(cluster.path().join("file"), "after");
    let log = files::read_to_string(cluster.data().join("logs/up.log"));
    for name in ["storage-1", "management", "metadata-1", "mount"] {
        assert!(log.contains(&format!("{name} exited unexpectedly (signal 9)")), "{name}: {log}");
        assert!(log.contains(&format!("{name} is running again")), "{name}: {log}");
        // The process to which the services reported their start has exited since then. The
        // services must not log an error about the missing process.
        let log = cluster.data().join(format!("logs/{name}.log"));
        let log = files::read_to_string(log);
        assert!(!log.contains("cannot notify the service manager"), "{name}: {log}");
    }
    cluster.stop();
}

#[test]
fn services_end_with_a_killed_supervisor_and_up_restarts_them() {
    let cluster = Cluster::start(Shape::small());
    files::write(cluster.path().join("file"), "kept");
    cluster.processes("up").first().expect("the process runs").kill();
    cluster.up().expect_success();
    assert_eq!(files::read(cluster.path().join("file")), b"kept");
    for role in ["up", "management", "metadata", "storage", "mount"] {
        assert_eq!(cluster.processes(role).len(), 1, "{role}");
    }
    cluster.stop();
}

/// The key-value store of a metadata target panics if it is opened in a removed directory.
///
/// Command: skep up.
#[test]
fn cluster_starts_in_a_removed_working_directory() {
    let scratch = Scratch::new();
    let (data, removed) = (scratch.join("data"), scratch.directory("removed"));
    let mut command = Command::new("sh");
    command.args(["-c", "cd \"$1\" && rmdir \"$1\" && shift && exec \"$@\"", "sh"]);
    command.arg(removed).arg(cluster::program());
    command.args(["up", "--detach", "--no-mount", "--no-monitor", "--metadata-targets", "1"]);
    command.args(["--storage-services", "1", "--data-dir"]).arg(&data);
    finish(&mut command, PATIENCE).expect_success();
    let listed = [Path::new("group"), Path::new("list"), Path::new("--cluster"), &data];
    cluster::skep(listed).expect_success();
    for role in ["management", "metadata", "storage"] {
        let service = process::below(&data).into_iter().find(|process| process.role() == role);
        let pid = service.expect("the service runs").pid;
        assert_eq!(files::read_link(format!("/proc/{pid}/cwd")), Path::new("/"), "{role}");
    }
    cluster::skep([Path::new("down"), Path::new("--data-dir"), &data]).expect_success();
}

/// Reads the output of `skep up` until the cluster is up.
fn read_until_up(output: &mut impl Read) -> String {
    let mut printed = String::new();
    while !printed.contains("Up after") {
        let mut bytes = [0; 4096];
        let len = output.read(&mut bytes).expect("the pipe can be read");
        assert!(len > 0, "`skep up` ended: {printed}");
        printed.push_str(&String::from_utf8_lossy(&bytes[..len]));
    }
    printed
}

/// `nohup` makes a command ignore SIGHUP, which the kernel sends when the terminal is closed. A
/// process that blocks SIGHUP receives this signal nevertheless.
#[test]
fn cluster_that_nohup_started_continues_after_sighup() {
    let scratch = Scratch::new();
    let data = scratch.join("data");
    let mut command = Command::new("nohup");
    command.arg(cluster::program()).args(["up", "--no-mount", "--metadata-targets", "1"]);
    command.args(["--storage-services", "1", "--data-dir"]).arg(&data);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("nohup can be started");
    let mut output = child.stdout.take().expect("a pipe");
    read_until_up(&mut output);
    let supervisor = process::below(&data).into_iter().find(|process| process.role() == "up");
    let supervisor = supervisor.expect("the process runs");
    let status = files::read_to_string(format!("/proc/{}/status", supervisor.pid));
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).expect("a mask");
    let blocked = u64::from_str_radix(blocked.trim(), 16).expect("a hexadecimal number");
    assert_eq!(blocked & 1, 0, "the supervisor does not receive SIGHUP: {blocked:x}");
    supervisor.signal(Signal::HUP);
    cluster::skep([Path::new("node"), Path::new("list"), Path::new("--cluster"), &data])
        .expect_success();
    supervisor.signal(Signal::INT);
    let status = wait_for("`skep up` ends", PATIENCE, || child.try_wait().expect("our own child"));
    assert!(status.success(), "{status}");
    assert_eq!(process::below(&data), []);
}

#[test]
fn up_in_the_foreground_prints_hints_and_ends_on_ctrl_c() {
    let scratch = Scratch::new();
    let (data, mount_point) = (scratch.join("data"), scratch.join("mnt"));
    let mut child = Command::new(cluster::program())
        .args(["up", "--metadata-targets", "1", "--storage-services", "1", "--data-dir"])
        .arg(&data)
        .arg("--mount-point")
        .arg(&mount_point)
        .stdout(Stdio::piped())
        .spawn()
        .expect("skep can be started");
    let mut output = child.stdout.take().expect("a pipe");
    let mut printed = read_until_up(&mut output);
    for words in ["is up", "STORAGE TARGETS", "Try:", "Ctrl-C", "skep down --data-dir"] {
        assert!(printed.contains(words), "{words}: {printed}");
    }
    files::write(mount_point.join("file"), "x");
    let supervisor = process::below(&data).into_iter().find(|process| process.role() == "up");
    supervisor.expect("the process runs").signal(Signal::INT);
    let status = wait_for("`skep up` ends", PATIENCE, || child.try_wait().expect("our own child"));
    assert!(status.success(), "{status}");
    output.read_to_string(&mut printed).expect("the pipe can be read");
    assert!(printed.trim_end().ends_with("Down."), "{printed}");
    assert_eq!(process::below(&data), []);
}

#[test]
fn skep_up_refuses_foreign_directories_and_damaged_logs() {
    let scratch = Scratch::new();
    let taken = scratch.directory("taken");
    files::write(taken.join("thesis.tex"), "");
    let taken = taken.display().to_string();
    let refused = cluster::skep(["up", "--detach", "--no-mount", "--data-dir", &taken]);
    assert!(refused.expect_failure().contains("thesis.tex"));

    let cluster = Cluster::start(Shape::small());
    cluster.stop();
    let log = cluster.data().join("management/raft-log");
    let mut bytes = files::read(&log);
    let torn = bytes.len() - 3;
    files::write(&log, &bytes[..torn]);
    cluster.up().expect_success();
    cluster.stop();
    bytes = files::read(&log);
    bytes[100] ^= 1;
    files::write(&log, &bytes);
    let damaged = cluster.up().expect_failure();
    assert!(damaged.contains("management/raft-log") && damaged.contains("damaged"), "{damaged}");
}

#[test]
fn cluster_starts_even_if_its_monitor_fails() {
    // This monitor fails, because without a password it refuses an address that other hosts can
    // reach.
    let more = ["--set", "monitor:listen=0.0.0.0:0"].map(String::from).to_vec();
    let cluster = Cluster::start(Shape { monitor: true, more, ..Shape::small() });
    files::write(cluster.path().join("file"), "text");
    assert!(!cluster.data().join("monitor/address").exists());
    cluster.stop();
    let again = cluster.up();
    assert!(again.stdout.contains("Warning: the monitor did not start"), "{again:?}");
    assert_eq!(files::read_to_string(cluster.path().join("file")), "text");
}
