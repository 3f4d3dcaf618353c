//! One target of a service fails. The other targets serve, and no part of the cluster treats the
//! failed target as healthy. After its repair, the target serves without any action of an
//! administrator.

use serde_json::Value;
use skep_testkit::process::{Process, Suspended};
use skep_testkit::target_disk::{DiskKind, TargetDisk};
use skep_testkit::view::Typed;
use skep_testkit::{Cluster, Mounted, PATIENCE, Shape, Transport, files, wait_for};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Returns a shape with one storage service that has three targets.
fn three_targets() -> Shape {
    Shape { targets_per_service: 3, ..Shape::small() }
}

fn target(cluster: &Cluster, path: &Path) -> Value {
    let targets = cluster.skep_list(&["target", "list"]);
    let found = targets.into_iter().find(|it| Path::new(it["path"].text()) == path);
    found.unwrap_or_else(|| panic!("no target {}", path.display()))
}

/// Returns the directory of the first storage target.
fn first_storage_target(cluster: &Cluster) -> PathBuf {
    let targets = cluster.skep_list(&["target", "list"]);
    let found = targets.iter().find(|it| it["kind"] == "storage").expect("a storage target");
    PathBuf::from(found["path"].text())
}

fn wait_for_condition(cluster: &Cluster, path: &Path, condition: &str) -> String {
    wait_for(condition, PATIENCE, || {
        let target = target(cluster, path);
        let problem = target["problem"].as_str().unwrap_or_default().to_owned();
        (target["condition"] == condition).then_some(problem)
    })
}

/// Writes `count` files in a new directory, and returns their paths.
fn write_files(cluster: &Cluster, name: &str, count: usize) -> Vec<PathBuf> {
    let directory = cluster.path().join(name);
    files::create_dir(&directory);
    (0..count)
        .map(|number| {
            let path = directory.join(number.to_string());
            files::write(&path, path.as_os_str().as_encoded_bytes());
            path
        })
        .collect()
}

/// A cluster in which the disk of one target has failed after programs had written files.
struct FailedDisk {
    /// This field must stay before `cluster`, because Rust drops fields in the order of their
    /// declaration. Dropping the cluster removes the directory that contains the disk's image.
    disk: TargetDisk,
    cluster: Cluster,
    /// Directory of the target.
    path: PathBuf,
    /// The files that programs had written before the failure, on all targets.
    before: Vec<PathBuf>,
}

impl FailedDisk {
    fn begin() -> Self {
        let cluster = Cluster::start(three_targets());
        let path = first_storage_target(&cluster);
        cluster.stop();
        let disk = TargetDisk::under(&path, DiskKind::Ext4);
        cluster.up().expect_success();
        wait_for_condition(&cluster, &path, "Serving");
        cluster.turn_off_inline_bytes();
        let before = write_files(&cluster, "before", 60);
        disk.trigger_error();
        Self { disk, cluster, path, before }
    }

    /// Returns the path of a file on another mount.
    fn on_mount(&self, other: &Mounted, path: &Path) -> PathBuf {
        other.path().join(path.strip_prefix(self.cluster.path()).expect("below"))
    }

    /// Kills the cluster, and then unmounts the file system of the target. The kill must come
    /// first, because the storage service uses this file system.
    fn end(self) {
        self.cluster.kill_all();
        drop(self.disk);
    }
}

fn assert_read(paths: &[PathBuf]) {
    for path in paths {
        assert_eq!(files::read(path), path.as_os_str().as_encoded_bytes());
    }
}

#[test]
fn targets_serve_while_another_target_cannot_be_opened() {
    let cluster = Cluster::start(three_targets());
    cluster.turn_off_inline_bytes();
    let before = write_files(&cluster, "before", 30);
    let path = first_storage_target(&cluster);
    cluster.stop();
    let identity = path.join("skep-identity");
    let intact = files::read(&identity);
    let mut damaged = intact.clone();
    damaged[20] ^= 1;
    files::write(&identity, &damaged);
    // The service starts with its two other targets, and metadata places new files on these
    // targets.
    cluster.up().expect_success();
    let problem = wait_for_condition(&cluster, &path, "Down");
    assert!(problem.contains("skep-identity"), "{problem}");
    let health = cluster.try_skep(&["health", "check"]);
    assert!(!health.status.success(), "{}", health.stdout);
    let name = path.display().to_string();
    assert!(health.stdout.contains(&name) && health.stdout.contains("is not served"));
    assert!(!health.stdout.contains("UNREACHABLE"), "{}", health.stdout);
    let during = write_files(&cluster, "during", 30);
    assert_read(&during);
    // After the repair, the service opens the target without a command of an administrator.
    files::write(&identity, &intact);
    wait_for_condition(&cluster, &path, "Serving");
    assert_read(&before);
    assert_read(&during);
    cluster.skep(&["health", "check"]);
}

/// After a boot without the disk of a target, the directory of the target is an empty mount point.
/// The service must not create a new target in this mount point.
#[test]
fn empty_mount_point_of_a_missing_disk_stays_empty() {
    let cluster = Cluster::start(three_targets());
    cluster.turn_off_inline_bytes();
    let before = write_files(&cluster, "before", 30);
    let path = first_storage_target(&cluster);
    let disk = path.with_extension("disk");
    // Suspend the supervisor, because the supervisor must not start the service before the test has
    // replaced the directory.
    let supervisors = Suspended::of(cluster.processes("up"));
    cluster.processes("storage").iter().for_each(Process::kill);
    files::rename(&path, &disk);
    files::create_dir(&path);
    drop(supervisors);
    wait_for("the missing disk is reported", PATIENCE, || {
        let target = target(&cluster, &path);
        let problem = target["problem"].as_str().unwrap_or_default();
        (target["condition"] == "Down" && problem.contains("mount the disk")).then_some(())
    });
    let during = write_files(&cluster, "during", 30);
    assert_read(&during);
    assert_eq!(files::read_dir(&path).count(), 0, "the service has changed the mount point");
    files::remove_dir(&path);
    files::rename(&disk, &path);
    wait_for_condition(&cluster, &path, "Serving");
    assert_read(&before);
    assert_read(&during);
}

/// docs/semantics.md 4.8.
#[test]
fn target_with_a_failed_disk_is_reported_and_gets_no_files() {
    let mut site = FailedDisk::begin();
    // Writes to the failed disk return errors to the programs. Writes to other targets succeed.
    let (mut failed, mut written) = (0, 0);
    for path in &site.before {
        let file = files::open_with(std::fs::OpenOptions::new().write(true), path);
        match file.write_all_at(path.as_os_str().as_encoded_bytes(), 0) {
            Ok(()) => written += 1,
            Err(_) => failed += 1,
        }
    }
    assert!(failed > 0 && written > 0, "{failed} writes failed, {written} succeeded");
    let problem = wait_for_condition(&site.cluster, &site.path, "Read-Only");
    assert!(problem.contains("ead-only"), "{problem}");
    let health = site.cluster.try_skep(&["health", "check"]);
    assert!(!health.status.success() && health.stdout.contains("refuses writes"));
    // After the mount has received a cluster map with the target's new condition, the mount places
    // new files on other targets.
    let during = wait_for("new files avoid the target", PATIENCE, || {
        let directory = site.cluster.path().join("probe");
        let _old = std::fs::remove_dir_all(&directory);
        std::fs::create_dir(&directory).ok()?;
        let write = |number| std::fs::write(directory.join(format!("{number}")), "x").ok();
        (0..30).map(write).collect::<Option<Vec<()>>>()
    });
    assert_eq!(during.len(), 30);
    assert_read(&write_files(&site.cluster, "during", 30));
    // Reads still succeed, even if the target does not have the chunk file open.
    let other = site.cluster.mount(Transport::Uring);
    for path in &site.before {
        assert!(!files::read(site.on_mount(&other, path)).is_empty());
    }
    other.unmount();
    site.end();
}

/// docs/semantics.md 4.8; skep client files, skep target files. Regression test: if the disk
/// refused the truncation of an open with `O_TRUNC`, the file counted as open until the unmount.
/// `skep target files` then listed the file without a path.
#[test]
fn failed_open_on_a_failed_disk_leaves_no_file_open() {
    let mut site = FailedDisk::begin();
    // `File::create` opens with `O_TRUNC`.
    let refused: Vec<_> =
        site.before.iter().filter(|path| std::fs::File::create(path).is_err()).collect();
    let (failed, all) = (refused.len(), site.before.len());
    assert!(failed > 0 && failed < all, "{failed} of {all} opens failed");
    // The mount closes the other files some milliseconds after the program has closed them.
    wait_for("no file is open", PATIENCE, || {
        site.cluster.skep_list(&["client", "files"]).is_empty().then_some(())
    });
    let id = target(&site.cluster, &site.path)["id"].to_string();
    let listed = site.cluster.skep_list(&["target", "files", "--paths", &id]);
    assert!(listed.len() >= failed, "{} of {failed} files", listed.len());
    assert!(listed.iter().all(|it| it["path"].text().starts_with('/')), "{listed:?}");
    let other = site.cluster.mount(Transport::Uring);
    for path in refused {
        std::fs::metadata(site.on_mount(&other, path)).expect("the attributes of the file");
    }
    other.unmount();
    site.end();
}
