//! `skep up` as an ordinary user: it mounts through `fusermount3`, and says what is missing where
//! that can't be.
//!
//! The user is `nobody`. Each test has a mount namespace of its own with its own `/dev/fuse`, so
//! that neither the rights nor the mounts of the machine are touched.

use skep_testkit::program::{Finished, finish};
use skep_testkit::{Scratch, cluster};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
const NOBODY: u32 = 65_534;
const SHAPE: &str = "--metadata-targets 1 --storage-services 1 --targets-per-service 2";

/// Runs a script as `nobody` in a directory of its own, with the program beside it. `/dev/fuse` has
/// the mode `device`.
fn as_nobody(device: &str, script: &str) -> Finished {
    let scratch = Scratch::new();
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).expect("its rights");
    let home = scratch.directory("home");
    chown(&home, Some(NOBODY), Some(NOBODY)).expect("given away");
    fs::copy(cluster::program(), scratch.join("skep")).expect("copied");
    let setup = format!(
        "mknod -m {device} ../fuse c 10 229 && mount --bind ../fuse /dev/fuse && \
         exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups sh -c \"$1\""
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", &setup, "sh", script]);
    finish(command.current_dir(home), PATIENCE)
}

#[test]
fn an_ordinary_user_starts_a_cluster_uses_it_and_ends_it() {
    let script = format!(
        "set -e; ../skep up --detach {SHAPE} >up.log; echo hello >skep-mnt/a; \
         cat skep-mnt/a; stat -c %u skep-mnt/a; grep /skep-mnt /proc/mounts; ../skep down"
    );
    let said = as_nobody("666", &script).expect_success();
    assert!(said.starts_with("hello\n65534\n"), "{said}");
    assert!(said.contains("fuse.skep"), "{said}");
    assert!(said.contains("is down; its data stays"), "{said}");
}

#[test]
fn a_missing_helper_is_named_with_its_package() {
    let script = format!(
        "mkdir bin; for it in umount mount; do ln -s $(command -v $it) bin/; done; \
         PATH=$PWD/bin ../skep up --detach {SHAPE}"
    );
    let said = as_nobody("666", &script).expect_failure();
    assert!(said.contains("fusermount3: install the package fuse3"), "{said}");
}

#[test]
fn a_device_for_root_alone_is_named_with_the_way_out() {
    let said = as_nobody("600", &format!("../skep up --detach {SHAPE}")).expect_failure();
    assert!(said.contains("/dev/fuse") && said.contains("chmod 666 /dev/fuse"), "{said}");
}
