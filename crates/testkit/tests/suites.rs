//! Test suites of others, on mounts over both transports: `pjdfstest` (what POSIX says of names,
//! attributes and errors) and `fsx` (random operations on one file, each read compared).
//!
//! `cargo xtask ci --only black-box` installs both programs first.

use skep_testkit::program::finish;
use skep_testkit::{Cluster, Random, Scratch, Shape, Transport};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(300);
const TRANSPORTS: [Transport; 2] = [Transport::Uring, Transport::Device];

/// Users that every Debian has. What only BSD has is left out.
const PJDFSTEST: &str = "
[features]
utime_now = {}
utimensat = {}
rename_ctime = {}
posix_fallocate = {}
[settings]
naptime = 0.01
allow_remount = REMOUNT
[dummy_auth]
entries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"]]
";

/// Operations on each mount.
const FSX_OPERATIONS: &str = "6000";
/// The file goes over several chunks on all targets.
const FSX: &str = "
flen = 6000000
[opsize]
max = 1300000
[weights]
close_open = 1
invalidate = 1
truncate = 3
fsync = 0.2
fdatasync = 0.2
posix_fallocate = 1
sendfile = 3
posix_fadvise = 1
copy_file_range = 3
";

fn suite(name: &str) -> PathBuf {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("two above");
    let program = top.join("target/suites/bin").join(name);
    assert!(program.exists(), "{name} is installed by `cargo xtask suites`");
    program
}

/// The tests of read-only file systems run by themselves: beside the others they find the file
/// system busy now and then, a local one too. Those others are 385, of which the one that asks for
/// `LINK_MAX` is skipped: `pathconf` doesn't tell.
#[test]
fn pjdfstest_passes() {
    for transport in TRANSPORTS {
        let cluster = Cluster::start(Shape { transport, ..Shape::default() });
        let root = cluster.path().join("pjd");
        fs::create_dir(&root).expect("made");
        fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).expect("its rights");
        let summary = pjdfstest(&root, false, "");
        assert!(summary.contains(" 0 failed, 14 skipped, 384 passed"), "{summary}");
        let summary = pjdfstest(&root, true, "erofs");
        assert!(summary.contains(" 0 failed, 0 skipped, 13 passed"), "{summary}");
        cluster.stop();
    }
}

/// Runs the suite and gives its last line. `mount -o remount` needs the helper, which mount(8)
/// finds in `/sbin` alone: a copy of that is put there, in a mount namespace of its own.
fn pjdfstest(root: &Path, remounts: bool, only: &str) -> String {
    let scratch = Scratch::new();
    let second = scratch.directory("second");
    for path in [scratch.path(), &second] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("its rights");
    }
    let settings = PJDFSTEST.replace("REMOUNT", &remounts.to_string());
    fs::write(scratch.join("pjd.toml"), settings).expect("written");
    symlink(skep_testkit::cluster::program(), scratch.join("mount.fuse.skep")).expect("linked");
    let setup = "cp -a /sbin/. sbin && cp -P mount.fuse.skep sbin && \
                 mount --bind sbin /sbin && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-ec", setup, "sh"]);
    command.arg(suite("pjdfstest")).args(["-c", "pjd.toml", "-s"]).arg(&second);
    command.arg("-p").arg(root).args((!only.is_empty()).then_some(only));
    command.env("RUST_BACKTRACE", "0").current_dir(scratch.path());
    let said = finish(&mut command, PATIENCE).expect_success();
    said.lines().last().unwrap_or_default().to_owned()
}

#[test]
fn fsx_finds_what_was_written() {
    let seed = Random::seed_of_run() >> 1;
    println!("seed {seed} (SKEP_TEST_SEED={} repeats it)", seed << 1);
    for transport in TRANSPORTS {
        let cluster = Cluster::start(Shape { transport, ..Shape::default() });
        let scratch = Scratch::new();
        fs::write(scratch.join("fsx.toml"), FSX).expect("written");
        let mut command = Command::new(suite("fsx"));
        command.args(["-N", FSX_OPERATIONS, "-S", &seed.to_string(), "-f"]);
        command.arg(scratch.join("fsx.toml")).arg("-P").arg(scratch.path());
        let said = finish(command.arg(cluster.path().join("file")), PATIENCE).expect_success();
        assert!(said.contains("A-OK"), "{said}");
        cluster.stop();
    }
}
