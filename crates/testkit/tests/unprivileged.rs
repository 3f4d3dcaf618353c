//! `skep up` and `skep mount` run by an ordinary user. The commands mount by `fusermount3`. If a
//! command cannot mount, its message names the missing package or permission. The commands log to a
//! directory to which only this user can write.
//!
//! The user is `nobody`. Each test has its own mount namespace with its own `/dev/fuse`, so the
//! tests change neither the permissions nor the mounts of the machine.

use skep_testkit::files;
use skep_testkit::program::{Finished, finish};
use skep_testkit::{Cluster, PATIENCE, Scratch, Shape, cluster};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

const NOBODY: u32 = 65_534;
const SHAPE: &str = "--metadata-targets 1 --storage-services 1 --targets-per-service 2";

/// Runs a script as the user `nobody` in a directory of that user. The program `skep` is in the
/// parent directory. `device` is the mode of `/dev/fuse`.
fn as_nobody(device: &str, script: &str) -> Finished {
    as_root(device, "nobody \"$1\"", &[script])
}

/// Runs a script as root in a directory that belongs to the user `nobody`. The program `skep` is in
/// the parent directory. In the script, the shell function `nobody` runs another script as that
/// user.
fn as_root(device: &str, script: &str, arguments: &[&str]) -> Finished {
    let scratch = Scratch::new();
    files::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755));
    let home = scratch.directory("home");
    files::chown(&home, Some(NOBODY), Some(NOBODY));
    files::copy(cluster::program(), scratch.join("skep"));
    let setup = format!(
        "mknod -m {device} ../fuse c 10 229 && mount --bind ../fuse /dev/fuse && \
         nobody() {{ HOME=$PWD setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups \
         sh -c \"$1\"; }}; \
         {script}"
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", &setup, "sh"]);
    command.args(arguments);
    finish(command.current_dir(home), PATIENCE)
}

#[test]
fn ordinary_user_can_start_use_and_end_a_cluster() {
    let script = format!(
        "set -e; ../skep up --detach {SHAPE} >up.log; echo hello >skep-mnt/a; \
         cat skep-mnt/a; stat -c %u skep-mnt/a; grep /skep-mnt /proc/mounts; ../skep down"
    );
    let printed = as_nobody("666", &script).expect_success();
    assert!(printed.starts_with("hello\n65534\n"), "{printed}");
    assert!(printed.contains("fuse.skep"), "{printed}");
    assert!(printed.contains("is down; its data is kept"), "{printed}");
}

fn cluster_of_root() -> Cluster {
    Cluster::start(Shape::small())
}

/// Starts a cluster with a directory that belongs to the ordinary user.
fn cluster_with_a_home() -> Cluster {
    let cluster = cluster_of_root();
    let home = cluster.path().join("nobody");
    files::create_dir(&home);
    files::chown(&home, Some(NOBODY), Some(NOBODY));
    cluster
}

/// Only the user that has mounted the cluster can access the mount. This user can change and end
/// the mount without root.
///
/// Command: skep mount, skep umount.
#[test]
fn ordinary_user_can_mount_a_cluster_of_root() {
    let cluster = cluster_with_a_home();
    files::write(cluster.path().join("secret"), "x");
    let secret = fs::Permissions::from_mode(0o600);
    files::set_permissions(cluster.path().join("secret"), secret);
    let token = cluster.data().join("management/join-token").display().to_string();
    let mount = "mkdir mnt; ../skep mount --detach --cluster $(sed 's/.*@//' token) \
                 --token-file token mnt && echo mine >mnt/nobody/file && stat -c %u \
                 mnt/nobody/file; cat mnt/secret 2>&1; touch mnt/new 2>&1; \
                 ../skep mount -o remount,ro mnt 2>&1 || echo no remount";
    let umount = "cat mnt/nobody/file; ../skep umount mnt && ls mnt | wc -l";
    let script = "cp \"$1\" token; chown nobody: token; nobody \"$2\"; ls mnt 2>&1; \
                  grep \" $PWD/mnt \" /proc/mounts; nobody \"$3\"";
    let printed = as_root("666", script, &[&token, mount, umount]).expect_success();
    let lines: Vec<_> = printed.lines().collect();
    let mut expected = [
        "is mounted;",
        "65534",
        "cat: mnt/secret: Permission denied",
        "touch: cannot touch 'mnt/new': Permission denied",
        "mnt",
        "no remount",
        "ls: cannot",
        "fuse.skep rw,nosuid,nodev",
        "mine",
        "0",
    ]
    .into_iter();
    for line in &lines {
        let words = expected.next().unwrap_or("an end");
        assert!(line.contains(words), "no '{words}' in '{line}': {printed}");
    }
    assert_eq!(expected.next(), None, "{printed}");
    assert_eq!(files::read(cluster.path().join("nobody/file")), b"mine\n");
    cluster.stop();
}

/// `allow_other` needs an entry in `/etc/fuse.conf`. Without this entry, `fusermount3` refuses a
/// mount with the option.
#[test]
fn user_mounts_accept_allow_other_if_fuse_conf_permits_it() {
    let cluster = cluster_of_root();
    files::write(cluster.path().join("file"), "for all\n");
    let token = cluster.data().join("management/join-token").display().to_string();
    let mount = "mkdir -p mnt; ../skep mount --detach --cluster $(sed 's/.*@//' token) \
                 --token-file token -o allow_other mnt 2>&1 || echo refused";
    let umount = "../skep umount mnt";
    let script = "cp \"$1\" token; chown nobody: token; \
                  echo >../fuse.conf; mount --bind ../fuse.conf /etc/fuse.conf; nobody \"$2\"; \
                  cat mnt/file; echo user_allow_other >../fuse.conf; nobody \"$2\"; \
                  cat mnt/file; nobody \"$3\"";
    let printed = as_root("666", script, &[&token, mount, umount]).expect_success();
    let (first, second) = printed.split_once("refused\n").expect("refused at first");
    assert!(first.contains("user_allow_other"), "{printed}");
    assert!(second.contains("is mounted;") && second.ends_with("for all\n"), "{printed}");
    cluster.stop();
}

/// This test checks that mount(8), the helper and `fusermount3` work together. The test checks no
/// statement of docs/semantics.md.
#[test]
fn fstab_line_with_user_can_be_mounted_by_ordinary_users() {
    let cluster = cluster_with_a_home();
    let token = cluster.data().join("management/join-token").display().to_string();
    let use_it = "mount $PWD/mnt && echo mine >mnt/nobody/file && cat mnt/nobody/file; \
                  grep \" $PWD/mnt \" /proc/mounts; umount $PWD/mnt && ls mnt | wc -l";
    let script = "set -e; cp \"$1\" token; chown nobody: token; mkdir mnt ../sbin; \
                  chown nobody: mnt; cp -a /sbin/. ../sbin; \
                  ln -s $(realpath ../skep) ../sbin/mount.skep; mount --bind ../sbin /sbin; \
                  echo \"$(sed 's/.*@//' token) $PWD/mnt skep \
                  noauto,user,token_file=$PWD/token,log_file=$PWD/mount.log 0 0\" \
                  >../fstab; mount --bind ../fstab /etc/fstab; nobody \"$2\"";
    let printed = as_root("666", script, &[&token, use_it]).expect_success();
    let lines: Vec<_> = printed.lines().collect();
    assert_eq!((lines[0], lines[lines.len() - 1]), ("mine", "0"), "{printed}");
    assert!(lines[1].contains("fuse.skep rw,nosuid,nodev"), "{printed}");
    assert_eq!(files::read(cluster.path().join("nobody/file")), b"mine\n");
    cluster.stop();
}

/// Script that tries to mount an unreachable cluster. The attempt fails, but creates a log. The
/// script prints the path of this log.
const TRY: &str = "../skep mount --detach --cluster 127.0.0.1:1 --token-file token --retry 0 mnt \
                   2>&1 | sed -n 's/Full log: //p'";

/// Each mount point has its own log, in a directory in which no other user can create files.
#[test]
fn logs_of_background_mounts_are_writable_only_by_their_user() {
    let script = format!(
        "set -e; umask 022; ../skep management --init --directory m --listen 127.0.0.1:0 \
         >init.log; cp m/join-token token; chown nobody: token; mkdir mnt tmp ../log; \
         chown nobody: tmp; mount --bind ../log /var/log; pwd; {TRY}; {TRY}; \
         stat -c %a /var/log/skep; ls /var/log/skep | wc -l; \
         LOGS_DIRECTORY=$PWD/unit:/nowhere {TRY}; nobody \"{TRY}\"; \
         stat -c %a .local/state/skep; nobody \"XDG_STATE_HOME=$PWD/state {TRY}\"; \
         temporary=\"XDG_STATE_HOME=state HOME=/nowhere TMPDIR=$PWD/tmp {TRY}\"; \
         nobody \"$temporary\"; stat -c %a tmp/skep-{NOBODY}; rm -r tmp/skep-{NOBODY}; \
         mkdir -m 777 tmp/skep-{NOBODY}; nobody \"$temporary\"; ls tmp/skep-{NOBODY} | wc -l"
    );
    let printed = as_root("666", &script, &[]).expect_success();
    let lines: Vec<_> = printed.lines().collect();
    let home = lines[0];
    let log = format!("mount{}-mnt.log", home.replace('/', "-"));
    let expected = [
        format!("/var/log/skep/{log}"),
        format!("/var/log/skep/{log}"),
        "755".into(),
        "1".into(),
        format!("{home}/unit/{log}"),
        format!("{home}/.local/state/skep/{log}"),
        "700".into(),
        format!("{home}/state/skep/{log}"),
        format!("{home}/tmp/skep-{NOBODY}/{log}"),
        "700".into(),
    ];
    assert_eq!(lines.len(), 1 + expected.len() + 2, "{printed}");
    assert_eq!(lines[1..=expected.len()], expected, "{printed}");
    // If the log directory belongs to another user, the mount does not use this directory.
    let (other, within) = (lines[lines.len() - 2], lines[lines.len() - 1]);
    assert!(other.starts_with(&format!("{home}/tmp/skep-{NOBODY}-")), "{printed}");
    assert_eq!(within, "0", "{printed}");
}

#[test]
fn error_for_a_missing_helper_names_its_package() {
    let script = format!(
        "mkdir bin; for it in umount mount; do ln -s $(command -v $it) bin/; done; \
         PATH=$PWD/bin ../skep up --detach {SHAPE}"
    );
    let printed = as_nobody("666", &script).expect_failure();
    assert!(
        printed.contains("fusermount3 to mount") && printed.contains("package fuse3"),
        "{printed}"
    );
    assert!(printed.contains("--no-mount") && !printed.contains("ended"), "{printed}");
}

#[test]
fn error_for_an_inaccessible_device_names_the_fix() {
    let printed = as_nobody("600", &format!("../skep up --detach {SHAPE}")).expect_failure();
    assert!(printed.contains("/dev/fuse") && printed.contains("chmod 666 /dev/fuse"), "{printed}");
}
