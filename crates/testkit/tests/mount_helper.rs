//! `mount -t skep`, `/etc/fstab` and mount options, through the helper `mount.skep`.
//!
//! mount(8) looks for helpers in `/sbin` alone: the tests that call it have a mount namespace of
//! their own, with a copy of that directory.

use rustix::fs::{AtFlags, StatxFlags};
use skep_testkit::process::Process;
use skep_testkit::program::{Finished, finish};
use skep_testkit::{Cluster, Shape, Transport, wait_for};
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

fn small() -> Cluster {
    Cluster::start(Shape {
        metadata_targets: 1,
        storage_services: 1,
        targets_per_service: 2,
        ..Shape::default()
    })
}

/// A place beside a cluster's data, with the program under the names of the helper.
struct Place {
    cluster: Cluster,
    path: PathBuf,
}

impl Place {
    fn new() -> Self {
        let cluster = small();
        let path = cluster.data().with_file_name("helper");
        fs::create_dir_all(path.join("mnt")).expect("made");
        for name in ["mount.skep", "mount.fuse.skep"] {
            symlink(skep_testkit::cluster::program(), path.join(name)).expect("linked");
        }
        Self { cluster, path }
    }

    fn mount_point(&self) -> PathBuf {
        self.path.join("mnt")
    }

    /// Calls the helper as mount(8) does.
    fn helper(&self, options: &str) -> Finished {
        let mut command = Command::new(self.path.join("mount.skep"));
        command.arg(self.cluster.data()).arg(self.mount_point()).args(["-o", options]);
        finish(&mut command, PATIENCE)
    }

    /// The options that the kernel shows of the mount.
    fn shown(&self) -> Option<String> {
        let table = fs::read_to_string("/proc/self/mounts").expect("there is one");
        let mount_point = self.mount_point().display().to_string();
        let mut lines = table.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        lines.find(|fields| fields[1] == mount_point).map(|fields| fields[3].to_owned())
    }

    fn umount(&self) {
        finish(Command::new("umount").arg(self.mount_point()), PATIENCE).expect_success();
    }

    /// Runs a script in a mount namespace where `/sbin` has the helper.
    fn with_mount(&self, script: &str) -> String {
        let setup = "cp -a /sbin/. sbin && cp -P mount.skep mount.fuse.skep sbin && \
                     mount --bind sbin /sbin && exec sh -ec \"$1\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-ec", setup, "sh", script]);
        finish(command.current_dir(&self.path), PATIENCE).expect_success()
    }
}

fn is_read_only(directory: &Path) -> bool {
    let error = fs::write(directory.join("probe"), "x").err();
    error.is_some_and(|error| error.kind() == io::ErrorKind::ReadOnlyFilesystem)
}

#[test]
fn flags_are_the_kernels_and_can_be_changed() {
    let place = Place::new();
    assert_eq!(
        place.helper("defaults,_netdev,x-systemd.requires=a,ro,noexec").expect_success(),
        ""
    );
    let mount_point = place.mount_point();
    let shown = place.shown().expect("mounted");
    assert!(shown.starts_with("ro,") && shown.contains(",noexec"), "{shown}");
    assert!(is_read_only(&mount_point));
    place.helper("remount,rw,nosuid").expect_success();
    let shown = place.shown().expect("mounted");
    assert!(shown.starts_with("rw,nosuid") && !shown.contains("noexec"), "{shown}");
    fs::write(mount_point.join("file"), "written").expect("no longer read-only");
    assert_eq!(fs::read(place.cluster.path().join("file")).expect("read"), b"written");
    place.umount();
    place.cluster.stop();
}

#[test]
fn what_is_wrong_is_named() {
    let place = Place::new();
    let said = place.helper("transprot=uring").expect_failure();
    assert!(said.contains("no mount option 'transprot=uring'"), "{said}");
    let said = place.helper("transport=pigeon").expect_failure();
    assert!(said.contains("pigeon"), "{said}");
    let said = place.helper("log_limit=many").expect_failure();
    assert!(said.contains("log_limit=many"), "{said}");
    fs::write(place.path.join("mnt/file"), "in the way?").expect("written");
    let mut command = Command::new(place.path.join("mount.skep"));
    command.arg(place.cluster.data()).arg(place.path.join("absent"));
    let said = finish(&mut command, PATIENCE).expect_failure();
    assert!(said.contains("absent"), "{said}");
    assert_eq!(place.shown(), None, "nothing was mounted");
    place.cluster.stop();
}

#[test]
fn fstab_and_mount_know_the_type() {
    let place = Place::new();
    let table = format!(
        "{} {} skep noauto,_netdev,nodev,transport=device 0 0\n",
        place.cluster.data().display(),
        place.mount_point().display()
    );
    fs::write(place.path.join("fstab"), table).expect("written");
    let said = place.with_mount(
        "mount -T fstab $PWD/mnt; grep $PWD/mnt /proc/mounts; echo hello >mnt/file; \
         mount -o remount,ro $PWD/mnt; echo more 2>&- >>mnt/file || echo refused; cat mnt/file; \
         umount $PWD/mnt; mount -t skep ../data $PWD/mnt; cat mnt/file; umount $PWD/mnt",
    );
    let lines: Vec<_> = said.lines().collect();
    assert!(lines[0].contains(" fuse.skep rw,nodev,"), "{said}");
    assert_eq!(lines[1..], ["refused", "hello", "hello"], "{said}");
    place.cluster.stop();
}

/// `mount -a` compares what it finds in the table of mounts with the lines of `fstab`.
#[test]
fn what_is_mounted_is_not_mounted_again() {
    let place = Place::new();
    let (data, mount_point) = (place.cluster.data().display(), place.mount_point());
    let table = format!("{data} {} skep _netdev,transport=device 0 0\n", mount_point.display());
    fs::write(place.path.join("fstab"), table).expect("written");
    let said = place.with_mount(
        "mount -a -T fstab; mount -a -T fstab; grep $PWD/mnt /proc/mounts; umount $PWD/mnt",
    );
    let sources: Vec<_> = said.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(sources, [data.to_string()], "{said}");
    place.cluster.stop();
}

/// Semantics 4.10.
#[test]
fn a_mount_ends_while_the_cluster_is_away() {
    for transport in [Transport::Uring, Transport::Device] {
        let mut cluster = small();
        let idle = cluster.mount(transport);
        let busy = cluster.mount(transport);
        fs::write(busy.path().join("file"), vec![1; 1 << 20]).expect("written");
        // The supervisor first, or it would start the others again.
        for role in ["up", "management", "metadata", "storage"] {
            cluster.processes(role).iter().for_each(Process::kill);
        }
        // Not from what the kernel remembers.
        let flags = AtFlags::STATX_FORCE_SYNC;
        let found = rustix::fs::statx(rustix::fs::CWD, idle.path(), flags, StatxFlags::BASIC_STATS);
        assert_eq!(found.expect("shown").stx_ino, 1);
        finish(Command::new("df").arg(idle.path()), PATIENCE).expect_success();
        idle.unmount();
        let path = busy.path().join("file");
        let mut reader = Command::new("dd");
        reader.arg(format!("if={}", path.display())).args(["of=/dev/null", "iflag=direct"]);
        let mut reader = reader.stderr(Stdio::null()).spawn().expect("started");
        wait_for("the reader waits for the cluster", PATIENCE, || {
            let place = fs::read_to_string(format!("/proc/{}/wchan", reader.id())).ok()?;
            (place.contains("fuse") || place.contains("request_wait_answer")).then_some(())
        });
        let mut umount = Command::new("umount");
        let said = finish(umount.arg(busy.path()), PATIENCE).expect_failure();
        assert!(said.contains("busy"), "{said}");
        finish(Command::new("umount").args(["-l", "-f"]).arg(busy.path()), PATIENCE)
            .expect_success();
        let status = wait_for("the reader ends", PATIENCE, || reader.try_wait().expect("ours"));
        assert!(!status.success(), "it got an error");
        cluster.kill_all();
    }
}
