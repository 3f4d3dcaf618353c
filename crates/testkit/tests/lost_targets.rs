//! A storage target whose disk is lost forever. Skep reports the loss. After the administrator has
//! marked the target as lost, no program waits for the target any more.

use skep_testkit::cluster::skep;
use skep_testkit::schema::check;
use skep_testkit::{Cluster, PATIENCE, Shape, Transport, files, wait_for};
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Creates an empty file on as many targets as possible. Returns the number of targets over which
/// the file is striped.
fn create_wide(cluster: &Cluster, path: &Path) -> usize {
    let text = path.display().to_string();
    skep(["entry", "create", "--num-targets", "all", &text]).expect_success();
    cluster.entry_info(path).first_component().targets().len()
}

/// Returns a new directory whose pattern lists the target `id`.
fn listing_directory(cluster: &Cluster, id: &str) -> PathBuf {
    let listing = cluster.path().join("listing");
    files::create_dir_all(&listing);
    let path = listing.display().to_string();
    let set = skep(["entry", "set", "--targets", id, &path]).expect_success();
    assert!(set.contains(&format!("targets={id}")), "{set}");
    listing
}

/// New files in the directory `listing` fail with ENOSPC, because the pattern of this directory
/// lists only the lost target `id`. Checks that the log of the mount, the output of `skep entry
/// info`, and `healthy` explain this failure. `healthy` is the output of `skep health check`.
fn check_listing_directory(cluster: &Cluster, listing: &Path, id: &str, healthy: &str) {
    let refused = std::fs::write(listing.join("new"), "x").expect_err("the target is lost");
    assert_eq!(refused.kind(), std::io::ErrorKind::StorageFull, "{refused}");
    let log = files::read_to_string(cluster.data().join("logs/mount.log"));
    let line = log.lines().find(|line| line.contains("fails with ENOSPC")).expect("a line");
    let lost = format!("target t{id}, which was marked as lost");
    assert!(line.contains("WARN") && line.contains(&lost), "{line}");
    assert!(line.contains("skep entry set --inherit"), "{line}");
    let path = listing.display().to_string();
    let info = skep(["entry", "info", &path]).expect_success();
    assert!(info.contains(&format!("target t{id} was marked as lost, so new files")), "{info}");
    assert!(healthy.contains("whose pattern names this target fail with ENOSPC"), "{healthy}");
    let kept = cluster.try_skep(&["target", "remove", id]).expect_failure();
    assert!(kept.contains("the pattern of 1 directory names the target"), "{kept}");
    skep(["entry", "set", "--inherit", &path]).expect_success();
    files::write(listing.join("new"), "x");
}

/// Checks that `skep group list` shows the loss of a target and of its group.
fn check_lost_group(cluster: &Cluster, target: &serde_json::Value) {
    let groups = cluster.skep_json(&["group", "list"]);
    check("group-list", &groups);
    let is_of_it = |it: &&serde_json::Value| it["members"][0]["target"] == *target;
    let group = groups.as_array().expect("a list").iter().find(is_of_it).expect("its group");
    assert_eq!((&group["state"], &group["members"][0]["state"]), (&"Lost".into(), &"Lost".into()));
}

/// Checks the list of files that lose bytes if a target is lost. The file `/wide` has bytes on this
/// target. Another file lists the target in its pattern, but has no bytes on this target.
fn check_loss(cluster: &Cluster, id: &str) {
    let loss = cluster.skep_json(&["target", "remove", "--lost", id]);
    check("target-remove-lost", &loss);
    assert_eq!(loss["is_given_up"], false);
    assert_eq!(loss["files"][0]["path"], "/wide");
    assert_eq!(loss["files"][0]["lost_bytes"], 2_i64 << 20);
    assert_eq!(
        (loss["files"].as_array().map(Vec::len), &loss["unwritten_files"]),
        (Some(1), &1.into())
    );
}

/// Checks a file of 4 MiB with bytes of the value 7. Half of its chunks are on a lost target. The
/// size and the other chunks stay, and a truncation does not turn lost bytes into zeros.
fn check_lost_parts(path: &Path) {
    const STEP: u64 = 512 << 10;
    let file = files::open_with(OpenOptions::new().read(true).write(true), path);
    assert_eq!(files::metadata_of(&file).len(), 8 * STEP, "the size stays");
    let read = |step: u64| {
        let mut bytes = [0; 4096];
        let count = file.read_at(&mut bytes, step * STEP)?;
        assert!(count == 4096 && bytes == [7; 4096], "step {step}: {count} bytes");
        Ok::<_, std::io::Error>(())
    };
    let (there, lost): (Vec<u64>, Vec<u64>) = (0..8).partition(|step| read(*step).is_ok());
    assert_eq!((there.len(), lost.len()), (4, 4), "{lost:?} are lost");
    for step in &lost {
        let error = file.write_at(b"x", step * STEP).expect_err("the target is lost");
        assert_eq!(error.raw_os_error(), Some(5), "{error}");
    }
    files::set_len(&file, 6 * STEP);
    assert_eq!(files::metadata_of(&file).len(), 6 * STEP);
    for step in 0..6 {
        let error = read(step).err().and_then(|error| error.raw_os_error());
        assert_eq!(error, lost.contains(&step).then_some(5), "step {step} after a truncation");
    }
}

/// docs/semantics.md 4.7.
///
/// Command: skep target remove.
#[test]
fn reads_of_a_target_marked_as_lost_fail_immediately() {
    let mut cluster = Cluster::start(Shape::small());
    cluster.skep(&["config", "set", "heartbeat", "500ms"]);
    cluster.skep(&["config", "set", "lease", "3s"]);
    let second = cluster.mount(Transport::Device);
    let wide = cluster.path().join("wide");
    assert_eq!(create_wide(&cluster, &wide), 2);
    files::write(&wide, vec![7; 4 << 20]);
    files::sync_all(&files::open(&wide));
    let empty = cluster.path().join("empty");
    assert_eq!(create_wide(&cluster, &empty), 2);
    let targets = cluster.skep_list(&["target", "list"]);
    let storage: Vec<_> = targets.iter().filter(|it| it["kind"] == "storage").collect();
    let (served, id) = (storage[0]["id"].to_string(), storage[1]["id"].to_string());
    let listing = listing_directory(&cluster, &id);
    let directory = Path::new(storage[1]["path"].as_str().expect("a path"));
    files::rename(directory, directory.with_extension("gone"));
    cluster.processes("storage").iter().for_each(|process| process.kill());
    let state = |key: &str| {
        let targets = cluster.skep_list(&["target", "list"]);
        let target = targets.into_iter().find(|it| it["id"] == storage[1]["id"]);
        target.map(|target| target[key].as_str().expect("a word").to_owned())
    };
    wait_for("the target is down", PATIENCE, || {
        (state("condition").as_deref() == Some("Down")).then_some(())
    });

    // Read on the second mount, because this mount has no cached pages of the file.
    let mut reader = Command::new("cat");
    reader.arg(second.path().join("wide")).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut reader = reader.spawn().expect("cat can be started");

    // Without the confirmation option, `skep target remove` does not mark the target as lost.
    let refused = |arguments: &[&str]| {
        let arguments = [&["target", "remove", "--lost"], arguments].concat();
        cluster.try_skep(&arguments).expect_failure()
    };
    wait_for("the other target is served again", PATIENCE, || {
        // The refused command still lists the affected files.
        let tried = cluster.try_skep(&["target", "remove", "--lost", &served]);
        tried.stdout.contains("serves this target").then_some(())
    });
    let wrong = refused(&["--confirm", "99", &id]);
    assert!(wrong.contains("another target"), "{wrong}");
    check_loss(&cluster, &id);
    assert_eq!(state("consistency").as_deref(), Some("Good"));
    assert!(reader.try_wait().expect("our own child").is_none(), "the read waits");

    let shown = cluster.skep(&["target", "remove", "--lost", "--confirm", &id, &id]);
    assert!(shown.contains("1 file loses") && shown.contains("/wide"), "{shown}");
    let status = wait_for("the read ends", PATIENCE, || reader.try_wait().expect("ours"));
    let repeated = cluster.skep_json(&["target", "remove", "--lost", "--confirm", &id, &id]);
    assert_eq!(repeated["is_given_up"], true);
    let listed = cluster.skep(&["target", "remove", "--lost", &id]);
    assert!(listed.contains("is marked as lost.") && !listed.contains("for ever"), "{listed}");
    let mut error = String::new();
    reader.stderr.take().expect("a pipe").read_to_string(&mut error).expect("text");
    assert!(!status.success() && error.contains("Input/output error"), "{error}");
    assert_eq!(state("consistency").as_deref(), Some("Bad"));
    let healthy = wait_for("the cluster is healthy", PATIENCE, || {
        let health = cluster.try_skep(&["health", "check"]);
        health.status.success().then_some(health.stdout)
    });
    let note = format!("skep target files --paths {id}");
    assert!(healthy.contains("Note: storage target") && healthy.contains(&note), "{healthy}");
    assert_eq!(state("condition").as_deref(), Some("Lost"));
    check_lost_group(&cluster, &storage[1]["id"]);

    // At this point, the directory of the lost target exists again. The target still refuses
    // requests, and `skep health check` reports the directory.
    files::rename(directory.with_extension("gone"), directory);
    cluster.processes("storage").iter().for_each(|process| process.kill());
    let health = wait_for("`skep health check` reports the directory", PATIENCE, || {
        let health = cluster.try_skep(&["health", "check"]);
        health.stdout.contains("its directory is back").then_some(health.stdout)
    });
    assert!(health.contains("was marked as lost"), "{health}");
    assert!(directory.join("lost").exists(), "the directory has the mark file");
    let late = Command::new("cat").arg(second.path().join("wide")).output().expect("cat runs");
    let error = String::from_utf8_lossy(&late.stderr).into_owned();
    assert!(!late.status.success() && error.contains("Input/output error"), "{error}");
    files::rename(directory, directory.with_extension("gone"));
    cluster.processes("storage").iter().for_each(|process| process.kill());

    check_listing_directory(&cluster, &listing, &id, &healthy);

    // New files are placed on other targets, and existing files can be replaced and removed.
    let late = cluster.path().join("late");
    assert_eq!(create_wide(&cluster, &late), 1);
    files::write(&late, "late");
    assert_eq!(files::read(second.path().join("late")), b"late");
    files::remove_file(&empty);
    let kept = cluster.try_skep(&["target", "remove", &id]).expect_failure();
    assert!(kept.contains("1 file lies on the") && kept.contains("from a backup"), "{kept}");
    let reopened = cluster.try_skep(&["target", "set-state", &id, "open"]).expect_failure();
    assert!(reopened.contains("marked as lost"), "{reopened}");
    check_lost_parts(&second.path().join("wide"));
    files::remove_file(&wide);
    wait_for("the target is removed", PATIENCE, || {
        cluster.try_skep(&["target", "remove", &id]).status.success().then_some(())
    });
    assert_eq!(state("id"), None);
    second.unmount();
}
