//! Tests of `mount -t skep`, `/etc/fstab` and mount options, which use the helper `mount.skep`.
//! Also tests of `umount`, which uses the helper `umount.fuse.skep`.
//!
//! mount(8) looks for helpers only in `/sbin`. So the tests that call mount(8) run in their own
//! mount namespace, with a copy of `/sbin`.

use rustix::fs::{AtFlags, StatxFlags};
use rustix::process::Signal;
use skep_testkit::files::{self, OrFail};
use skep_testkit::process::Process;
use skep_testkit::program::{Finished, finish};
use skep_testkit::{Cluster, PATIENCE, Shape, Transport, wait_for};
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Command;

fn small() -> Cluster {
    Cluster::start(Shape::small())
}

/// A cluster, and a directory next to its data that contains the program `skep` under the names of
/// the mount helper.
struct Place {
    cluster: Cluster,
    path: PathBuf,
}

impl Place {
    fn new() -> Self {
        let cluster = small();
        let path = cluster.data().with_file_name("helper");
        files::create_dir_all(path.join("mnt"));
        for name in ["mount.skep", "mount.fuse.skep", "umount.fuse.skep"] {
            files::symlink(skep_testkit::cluster::program(), path.join(name));
        }
        Self { cluster, path }
    }

    fn mount_point(&self) -> PathBuf {
        self.path.join("mnt")
    }

    /// Calls the helper in the same way as mount(8) does.
    fn helper(&self, options: &str) -> Finished {
        let mut command = Command::new(self.path.join("mount.skep"));
        command.arg(self.cluster.data()).arg(self.mount_point()).args(["-o", options]);
        finish(&mut command, PATIENCE)
    }

    /// Returns the options of the mount in /proc/self/mounts. `None` means that the cluster is not
    /// mounted.
    fn shown(&self) -> Option<String> {
        let table = files::read_to_string("/proc/self/mounts");
        let mount_point = self.mount_point().display().to_string();
        let mut lines = table.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        lines.find(|fields| fields[1] == mount_point).map(|fields| fields[3].to_owned())
    }

    fn umount(&self) {
        finish(Command::new("umount").arg(self.mount_point()), PATIENCE).expect_success();
    }

    /// Runs a script in a mount namespace where `/sbin` contains the helper.
    fn with_mount(&self, script: &str) -> String {
        let setup = "cp -a /sbin/. sbin && cp -P *mount.skep *mount.fuse.skep sbin && \
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
fn mount_flags_reach_the_kernel_and_can_be_changed() {
    let place = Place::new();
    assert_eq!(
        place.helper("defaults,_netdev,x-systemd.requires=a,ro,noexec").expect_success(),
        ""
    );
    let mount_point = place.mount_point();
    let shown = place.shown().expect("mounted");
    assert!(shown.starts_with("ro,") && shown.contains(",noexec"), "{shown}");
    assert!(is_read_only(&mount_point));
    for (options, words) in [
        ("remount,transport=device", "from uring to device"),
        ("remount,attribute_timeout=7", "from 1 to 7"),
        ("remount,direct_io", "direct_io"),
        ("remount,read_ahead=1GiB", "at most 128 MiB"),
    ] {
        let printed = place.helper(options).expect_failure();
        assert!(printed.contains(words), "{options}: {printed}");
    }
    assert!(is_read_only(&mount_point), "nothing was changed");
    // A remount accepts options of Skep if their values do not change.
    let same = "transport=uring,attribute_timeout=1";
    place.helper(&format!("remount,rw,nosuid,{same},read_ahead=256KiB")).expect_success();
    assert_eq!(read_ahead_kib(&mount_point), 256);
    let shown = place.shown().expect("mounted");
    assert!(shown.starts_with("rw,nosuid") && !shown.contains("noexec"), "{shown}");
    fs::write(mount_point.join("file"), "written").expect("no longer read-only");
    assert_eq!(files::read(place.cluster.path().join("file")), b"written");
    place.umount();
    place.cluster.stop();
}

#[test]
fn helper_reports_the_cause_of_a_failed_mount() {
    let place = Place::new();
    let refused = place.helper("transprot=uring");
    assert_eq!(refused.status.code(), Some(32), "{}", refused.stderr);
    let printed = refused.expect_failure();
    assert!(printed.contains("unknown mount option 'transprot=uring'"), "{printed}");
    // mount(8) prints the message of the helper.
    let printed = place
        .with_mount("mount -t skep ../data $PWD/mnt -o transprot=uring 2>&1 || echo exit code $?");
    assert!(printed.contains("unknown mount option 'transprot=uring'"), "{printed}");
    assert!(printed.ends_with("exit code 32\n"), "{printed}");
    let printed = place.helper("transport=pigeon").expect_failure();
    assert!(printed.contains("pigeon"), "{printed}");
    let printed = place.helper("log_limit=many").expect_failure();
    assert!(printed.contains("log_limit=many"), "{printed}");
    let mut command = Command::new(place.path.join("mount.skep"));
    command.arg(place.cluster.data()).arg(place.path.join("absent"));
    let failed = finish(&mut command, PATIENCE);
    // The expected codes are mount(8)'s exit codes for "mount failure" and "incorrect invocation".
    assert_eq!(failed.status.code(), Some(32), "{}", failed.stderr);
    assert!(failed.stderr.contains("absent"), "{}", failed.stderr);
    let mut command = Command::new(place.path.join("mount.skep"));
    let called = finish(command.arg(place.cluster.data()), PATIENCE);
    assert_eq!(called.status.code(), Some(1), "{}", called.stderr);
    assert!(called.stderr.contains("usage: mount.skep"), "{}", called.stderr);
    assert_eq!(place.shown(), None, "nothing was mounted");
    // As with other file systems, a mount hides the contents of its mount point.
    let hidden = place.path.join("mnt/file");
    files::write(&hidden, "in the way?");
    place.helper("defaults").expect_success();
    assert!(!hidden.exists());
    place.umount();
    assert_eq!(files::read(&hidden), b"in the way?");
    place.cluster.stop();
}

/// Returns the value of an extended attribute of a mount's root directory.
fn xattr_as_root(mount_point: &Path, name: &str) -> String {
    let mut bytes = [0_u8; 64];
    let len = rustix::fs::getxattr(mount_point, name, &mut bytes).or_fail("getxattr", mount_point);
    String::from_utf8_lossy(&bytes[..len]).into_owned()
}

/// Returns the kernel's read-ahead of a mount in KiB.
fn read_ahead_kib(mount_point: &Path) -> u64 {
    let device = rustix::fs::stat(mount_point).or_fail("stat", mount_point).st_dev;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let setting = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    files::read_to_string(setting).trim().parse().expect("a number")
}

/// Fills the log to the maximum length that the mount allows.
fn full_log(log: &Path) {
    files::write(log, "as it was\n".repeat(7_000));
}

/// Checks that a mount starts a new log file when its log is full, and that the mount logs at the
/// configured level.
fn logs_anew(mount_point: &Path, log: &Path) {
    let mount = skep_testkit::process::below(mount_point).pop().expect("the process runs");
    mount.signal(Signal::USR1);
    wait_for("the mount logs", PATIENCE, || {
        let text = fs::read_to_string(log).ok()?;
        text.contains("changes its log level from debug to trace").then_some(())
    });
    let old = files::read_to_string(format!("{}.old", log.display()));
    assert!(old.starts_with("as it was"), "{old}");
    assert!(files::metadata(log).len() < 7_000);
}

/// Command: skep mount, skep umount.
#[test]
fn each_mount_option_takes_effect() {
    let place = Place::new();
    let (mount_point, log) = (place.mount_point(), place.path.join("a.log"));
    let token = place.path.join("token");
    let kept = place.cluster.data().join("management/join-token");
    files::copy(kept, &token);
    let address = fs::read_to_string(place.cluster.data().join("management/address"));
    let address = address.expect("an address").trim().to_owned();
    let by_address = |options: &str| {
        let mut command = Command::new(place.path.join("mount.skep"));
        finish(command.arg(&address).arg(&mount_point).args(["-o", options]), PATIENCE)
    };
    let printed = by_address("defaults").expect_failure();
    assert!(printed.contains("token"), "{printed}");
    let options = format!(
        "token_file={},transport=device,attribute_timeout=0.25,log=debug,log_file={},\
         log_limit=64KiB,job_patterns",
        token.display(),
        log.display()
    );
    full_log(&log);
    assert_eq!(by_address(&options).expect_success(), "");
    let table = files::read_to_string("/proc/self/mounts");
    let line = format!("{address} {} fuse.skep", mount_point.display());
    assert!(table.contains(&line), "{table}");
    assert_eq!(xattr_as_root(&mount_point, "user.skep.transport"), "device");
    assert_eq!(xattr_as_root(&mount_point, "user.skep.attribute_timeout"), "0.25");
    logs_anew(&mount_point, &log);
    let mut job = Command::new("touch");
    job.arg(mount_point.join("asked")).env("SKEP_PATTERN", "count=1,chunk-size=1MiB");
    finish(&mut job, PATIENCE).expect_success();
    let pattern = xattr_as_root(&mount_point.join("asked"), "user.skep.pattern");
    assert!(pattern.contains("chunk-size=1MiB"), "{pattern}");
    place.umount();
    let serves = || skep_testkit::process::below(&mount_point).len();
    wait_for("the mount's process ends", PATIENCE, || (serves() == 0).then_some(()));

    // Pass the same options to `skep mount` on the command line.
    let log = place.path.join("b.log");
    let mut command = Command::new(skep_testkit::cluster::program());
    command.args(["mount", "--detach", "--quiet", "-s", "--options", "sunny,colour=red"]);
    command.args(["--transport", "device", "--log", "debug", "--log-limit", "64KiB"]);
    command.arg("--log-file").arg(&log).arg("--token-file").arg(&token);
    let mount = |command: &mut Command| {
        finish(command.args(["--cluster", &address]).arg(&mount_point), PATIENCE)
    };
    full_log(&log);
    assert_eq!(mount(&mut command).expect_success(), "");
    files::write(mount_point.join("file"), "x");
    logs_anew(&mount_point, &log);
    // After a lazy unmount, programs can still use their open files, but cannot find the mount any
    // more.
    let mut file = files::open(mount_point.join("file"));
    let umount = |more: &[&str]| {
        let mut command = Command::new(skep_testkit::cluster::program());
        finish(command.arg("umount").args(more).arg(&mount_point), PATIENCE)
    };
    let busy = umount(&[]).expect_failure();
    assert!(busy.contains("programs use this mount") && busy.contains("--lazy"), "{busy}");
    umount(&["--lazy"]).expect_success();
    assert_eq!(place.shown(), None);
    assert!(!mount_point.join("file").exists());
    let mut text = String::new();
    file.read_to_string(&mut text).expect("read");
    assert_eq!(text, "x");
    assert_eq!(serves(), 1);
    drop(file);
    wait_for("the mount's process ends with its last user", PATIENCE, || {
        (serves() == 0).then_some(())
    });
    place.cluster.stop();
}

/// Command: skep mount.
///
/// `direct_io_sends_each_read_and_write_to_storage` in request_counts.rs counts the requests.
#[test]
fn direct_io_and_read_ahead_options_take_effect() {
    let place = Place::new();
    let mount_point = place.mount_point();
    let path = mount_point.join("file");
    let content: Vec<_> = (0..3_u32 << 20).map(|at| (at % 251) as u8).collect();
    place.helper("defaults").expect_success();
    assert_eq!(xattr_as_root(&mount_point, "user.skep.direct_io"), "false");
    assert_eq!(read_ahead_kib(&mount_point), 4096);
    files::write(&path, &content);
    place.umount();
    place.helper("direct_io,read_ahead=64KiB").expect_success();
    assert_eq!(xattr_as_root(&mount_point, "user.skep.direct_io"), "true");
    assert_eq!(read_ahead_kib(&mount_point), 64);
    assert!(files::read(&path) == content);
    // With this mount option, reads and writes need no alignment, unlike with `O_DIRECT`.
    let file = files::open_with(fs::OpenOptions::new().read(true).write(true), &path);
    files::write_all_at(&file, b"changed", 4_095);
    let mut bytes = [0; 9];
    files::read_exact_at(&file, &mut bytes, 4_094);
    let changed = [content[4_094..4_095].to_vec(), b"changed".to_vec(), vec![content[4_102]]];
    assert_eq!(bytes.as_slice(), changed.concat());
    // docs/semantics.md 2.8: programs can still map files, and a mapping shows the writes of this
    // mount.
    let script = "import mmap, os, sys\n\
                  f = os.open(sys.argv[1], os.O_RDWR)\n\
                  m = mmap.mmap(f, 0)\n\
                  assert m[4095:4102] == b'changed', m[4090:4110]\n\
                  os.pwrite(f, b'written', 4095)\n\
                  assert m[4095:4102] == b'written', m[4090:4110]\n\
                  m[0:6] = b'mapped'\n\
                  m.flush()\n\
                  assert os.pread(f, 6, 0) == b'mapped'\n";
    let mut program = Command::new("python3");
    finish(program.args(["-c", script]).arg(&path), PATIENCE).expect_success();
    drop(file);
    place.umount();
    place.cluster.stop();
}

#[test]
fn fstab_and_mount_accept_type_skep() {
    let place = Place::new();
    let table = format!(
        "{} {} skep noauto,_netdev,nodev,transport=device 0 0\n",
        place.cluster.data().display(),
        place.mount_point().display()
    );
    files::write(place.path.join("fstab"), table);
    let printed = place.with_mount(
        "mount -T fstab $PWD/mnt; grep $PWD/mnt /proc/mounts; echo hello >mnt/file; \
         mount -o remount,ro $PWD/mnt; echo more 2>&- >>mnt/file || echo refused; cat mnt/file; \
         umount $PWD/mnt; mount -t skep ../data $PWD/mnt; cat mnt/file; umount $PWD/mnt",
    );
    let lines: Vec<_> = printed.lines().collect();
    assert!(lines[0].contains(" fuse.skep rw,nodev,"), "{printed}");
    assert_eq!(lines[1..], ["refused", "hello", "hello"], "{printed}");
    place.cluster.stop();
}

/// Without the helper, umount(8) would return while the process of the mount still reports to the
/// servers.
#[test]
fn umount_returns_when_the_client_has_left_the_cluster() {
    let place = Place::new();
    let program = skep_testkit::cluster::program();
    let clients = format!("{} client list --cluster ../data --output json", program.display());
    let mount = "mount -t skep ../data $PWD/mnt; echo hello >mnt/file";
    let gone = "if mountpoint -q mnt; then exit 7; fi";
    let printed = place.with_mount(&format!(
        "{mount}; {clients}; echo; echo ---; umount $PWD/mnt; {gone}; {clients}"
    ));
    let (before, after) = printed.split_once("---").expect("two lists");
    let listed = |list: &str| {
        let list: serde_json::Value = serde_json::from_str(list).expect("JSON");
        let point = place.mount_point().display().to_string();
        list.as_array().expect("a list").iter().any(|it| it["mount_point"] == point)
    };
    assert!(listed(before), "{before}");
    assert!(!listed(after), "{after}");
    // If programs use the mount, the file system stays mounted, and the exit code is the exit code
    // of umount(8).
    let printed = place.with_mount(&format!(
        "{mount}; exec 9<mnt/file; umount $PWD/mnt 2>&1 || echo exit code $?; umount -l $PWD/mnt; \
         {gone}; cat <&9"
    ));
    assert!(printed.contains("target is busy"), "{printed}");
    assert!(printed.ends_with("exit code 32\nhello\n"), "{printed}");
    // umount(8) itself carries out a forced unmount, without the helper.
    place.with_mount(&format!("{mount}; umount -l -f $PWD/mnt; {gone}"));
    place.cluster.stop();
}

/// `mount -a` compares the kernel's table of mounts with the lines of `fstab`. So `mount -a` does
/// not mount a file system that is already mounted.
#[test]
fn mount_a_does_not_mount_a_mounted_file_system_again() {
    let place = Place::new();
    let (data, mount_point) = (place.cluster.data().display(), place.mount_point());
    let table = format!("{data} {} skep _netdev,transport=device 0 0\n", mount_point.display());
    files::write(place.path.join("fstab"), table);
    let printed = place.with_mount(
        "mount -a -T fstab; mount -a -T fstab; grep $PWD/mnt /proc/mounts; umount $PWD/mnt",
    );
    let sources: Vec<_> = printed.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(sources, [data.to_string()], "{printed}");
    place.cluster.stop();
}

/// docs/semantics.md 4.10.
#[test]
fn umount_succeeds_while_the_cluster_is_stopped() {
    for transport in [Transport::Uring, Transport::Device] {
        let mut cluster = small();
        let idle = cluster.mount(transport);
        let busy = cluster.mount(transport);
        files::write(busy.path().join("file"), vec![1; 1 << 20]);
        // Kill the supervisor first, because the supervisor would restart the other processes.
        for role in ["up", "management", "metadata", "storage"] {
            cluster.processes(role).iter().for_each(Process::kill);
        }
        // With this flag, the kernel requests the attributes from the mount instead of using its
        // cache.
        let flags = AtFlags::STATX_FORCE_SYNC;
        let found = rustix::fs::statx(rustix::fs::CWD, idle.path(), flags, StatxFlags::BASIC_STATS);
        assert_eq!(found.expect("shown").stx_ino, 1);
        finish(Command::new("df").arg(idle.path()), PATIENCE).expect_success();
        idle.unmount();
        let path = busy.path().join("file");
        // Start a program that waits for the dead cluster. After the forced unmount, the program
        // must get an error.
        let (tell, told) = std::sync::mpsc::channel();
        let reader = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid()).expect("the test receives the thread id");
            fs::read(path).map(|_| ())
        });
        let thread = told.recv().expect("the reading thread has started").as_raw_nonzero();
        wait_for("the reader waits for the cluster", PATIENCE, || {
            let place = fs::read_to_string(format!("/proc/self/task/{thread}/wchan")).ok()?;
            (place.contains("fuse") || place.contains("request_wait_answer")).then_some(())
        });
        let mut umount = Command::new("umount");
        let printed = finish(umount.arg(busy.path()), PATIENCE).expect_failure();
        assert!(printed.contains("busy"), "{printed}");
        finish(Command::new("umount").args(["-l", "-f"]).arg(busy.path()), PATIENCE)
            .expect_success();
        reader.join().expect("no panic").expect_err("the cluster is dead");
        busy.wait_for_end();
        cluster.kill_all();
    }
}
