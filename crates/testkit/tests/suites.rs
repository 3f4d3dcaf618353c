//! External test suites on mounts with both transports: `pjdfstest` (POSIX rules for names,
//! attributes and errors) and `fsx` (random operations on one file; `fsx` checks each read).
//!
//! `cargo xtask ci --only black-box` installs `pjdfstest` and `fsx` before it runs this test.

use skep_testkit::files;
use skep_testkit::program::{Finished, finish};
use skep_testkit::{Cluster, EndGuard, Random, Scratch, Shape, Transport};
use std::fs;
use std::io::{Read, Seek};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Time limit for one suite. The slowest suite ends within this limit.
const PATIENCE: Duration = Duration::from_secs(300);
/// Minimum rate of `fsx` in operations per second, even on a busy machine.
const FSX_SLOWEST: u64 = 50;
const TRANSPORTS: [Transport; 2] = [Transport::Uring, Transport::Device];

/// The test of `pjdfstest` that may fail, because it opens a running program with `O_RDONLY` and
/// `O_TRUNC` (`docs/tests/external.md`).
const MAY_FAIL: &str = "open::etxtbsy";
/// The message of this failure: the call has succeeded, instead of failing with `ETXTBSY`.
const NO_ERROR: &str = "called `Result::unwrap_err()` on an `Ok` value";

/// Settings of `pjdfstest`, with users that every Debian system has. The settings omit tests of BSD
/// features.
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

/// Default number of operations on each mount.
const FSX_OPERATIONS: u64 = 6000;
const FSX_OPERATIONS_VARIABLE: &str = "SKEP_FSX_OPERATIONS";
/// Maximum number of operations of a single `fsx` process. After more operations, the process would
/// exceed the limit of memory mappings.
const FSX_LONGEST_RUN: u64 = 20_000;
/// Number of operations in a segment. After each segment, the test compares the file on both
/// mounts.
const FSX_SEGMENT: u64 = 2000;
/// Maximum length of the file in bytes, so that the file has several chunks on each target. The
/// minimum size of an operation in [`FSX`] is 1, because `posix_fallocate` with a length of 0 is
/// invalid.
const FSX_FILE_BYTES: usize = 6_000_000;
const FSX: &str = "
flen = 6000000
[opsize]
min = 1
max = 1300000
[weights]
read = 1
write = 1
mapread = 1
mapwrite = 1
close_open = 1
invalidate = 1
truncate = 3
fsync = 0.2
fdatasync = 0.2
posix_fallocate = 2
punch_hole = 4
sendfile = 3
posix_fadvise = 1
copy_file_range = 4
";

fn suite(name: &str) -> PathBuf {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("two above");
    let program = top.join("target/suites/bin").join(name);
    assert!(program.exists(), "{name} is installed by `cargo xtask suites`");
    program
}

/// A separate test runs the tests about read-only file systems. `docs/tests/external.md` lists the
/// skipped tests, with the reasons.
#[test]
fn pjdfstest_passes_on_mounts_of_each_transport() {
    for transport in TRANSPORTS {
        let cluster = Cluster::start(Shape { transport, ..Shape::default() });
        let root = cluster.path().join("pjd");
        files::create_dir(&root);
        files::set_permissions(&root, fs::Permissions::from_mode(0o755));
        let Finished { status, stdout, stderr, .. } = pjdfstest(&root, false, "");
        let failed = stdout.lines().filter_map(|line| line.strip_suffix("FAILED"));
        let failed: Vec<_> = failed.map(str::trim).collect();
        let (expected, exit_code) = match failed[..] {
            [MAY_FAIL] if stdout.contains(NO_ERROR) => (" 1 failed, 14 skipped, 383 passed", 1),
            _ => (" 0 failed, 14 skipped, 384 passed", 0),
        };
        assert!(summary(&stdout).contains(expected), "{stdout}\n{stderr}");
        assert_eq!(status.code(), Some(exit_code), "{stdout}\n{stderr}");
        let printed = pjdfstest(&root, true, "erofs").expect_success();
        assert!(summary(&printed).contains(" 0 failed, 0 skipped, 13 passed"), "{printed}");
        cluster.stop();
    }
}

/// Returns the last line of the output of `pjdfstest`, which has the numbers of tests.
fn summary(stdout: &str) -> &str {
    stdout.lines().last().unwrap_or_default()
}

/// Runs the suite, and returns its output. `mount -o remount` needs the mount helper, and
/// mount(8) looks for helpers only in `/sbin`. Therefore the suite runs in its own mount namespace,
/// with a copy of `/sbin` that contains the helper.
fn pjdfstest(root: &Path, remounts: bool, only: &str) -> Finished {
    let scratch = Scratch::new();
    let second = scratch.directory("second");
    for path in [scratch.path(), &second] {
        files::set_permissions(path, fs::Permissions::from_mode(0o755));
    }
    let settings = PJDFSTEST.replace("REMOUNT", &remounts.to_string());
    files::write(scratch.join("pjd.toml"), settings);
    files::symlink(skep_testkit::cluster::program(), scratch.join("mount.fuse.skep"));
    let setup = "cp -a /sbin/. sbin && cp -P mount.fuse.skep sbin && \
                 mount --bind sbin /sbin && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-ec", setup, "sh"]);
    command.arg(suite("pjdfstest")).args(["-c", "pjd.toml", "-s"]).arg(&second);
    command.arg("-p").arg(root).args((!only.is_empty()).then_some(only));
    command.env("RUST_BACKTRACE", "0").current_dir(scratch.path());
    finish(&mut command, PATIENCE)
}

fn fsx_operations() -> u64 {
    let wanted = std::env::var(FSX_OPERATIONS_VARIABLE).ok();
    wanted.map_or(FSX_OPERATIONS, |it| it.parse().expect("a number of operations"))
}

/// Returns a seed for `fsx`. `fsx` accepts only 63 bits.
fn fsx_seed() -> u64 {
    let seed = Random::seed_of_run() >> 1;
    println!("seed {seed} (SKEP_TEST_SEED={} repeats it)", seed << 1);
    seed
}

fn fsx(file: &Path, seed: u64, operations: u64) {
    let scratch = Scratch::new();
    files::write(scratch.join("fsx.toml"), FSX);
    let mut command = Command::new(suite("fsx"));
    command.args(["-N", &operations.to_string(), "-S", &seed.to_string(), "-f"]);
    command.arg(scratch.join("fsx.toml")).arg("-P").arg(scratch.path());
    let patience = PATIENCE + Duration::from_secs(operations / FSX_SLOWEST);
    let printed = finish(command.arg(file), patience).expect_success();
    assert!(printed.contains("A-OK"), "{printed}");
}

/// `SKEP_FSX_OPERATIONS` sets the number of operations on each mount.
#[test]
fn fsx_reads_its_own_writes() {
    let seed = fsx_seed();
    for transport in TRANSPORTS {
        let cluster = Cluster::start(Shape { transport, ..Shape::default() });
        for begun in (0..fsx_operations()).step_by(FSX_LONGEST_RUN as usize) {
            let operations = FSX_LONGEST_RUN.min(fsx_operations() - begun);
            fsx(&cluster.path().join("file"), seed + begun, operations);
        }
        cluster.stop();
    }
}

/// Reads a file repeatedly through a single handle until `stop` is set, so that the reading and the
/// writing mount share the file. Returns the bytes of a last read that began after `stop` was set.
fn read_until(stop: &AtomicBool, path: &Path) -> Vec<u8> {
    let mut file = files::open(path);
    let mut bytes = Vec::new();
    loop {
        let is_last = stop.load(Ordering::SeqCst);
        bytes.clear();
        file.rewind()
            .and_then(|()| file.read_to_end(&mut bytes))
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(bytes.len() <= FSX_FILE_BYTES, "{} bytes", bytes.len());
        if is_last {
            return bytes;
        }
    }
}

/// During a segment, `fsx` compares the file with its model. Between two segments, the file must be
/// equal on both mounts. The mounts write alternately. So the writes of one mount make data in the
/// other mount's cache outdated. In every second pair of segments, the mount that does not write
/// reads the file all the time through a single handle. After the segment, a read through this
/// handle must return the same bytes as a read on the writing mount.
#[test]
fn file_written_by_fsx_is_equal_on_both_mounts() {
    let seed = fsx_seed();
    let mut cluster = Cluster::start(Shape::default());
    let second = cluster.mount(Transport::Device);
    let files = [cluster.path().join("file"), second.path().join("file")];
    for segment in 0..fsx_operations().div_ceil(FSX_SEGMENT) {
        let (file, other) = (&files[segment as usize % 2], &files[(segment as usize + 1) % 2]);
        let stop = AtomicBool::new(false);
        let read = std::thread::scope(|scope| {
            let reader = (segment % 4 >= 2).then(|| scope.spawn(|| read_until(&stop, other)));
            let stops = EndGuard(&stop);
            fsx(file, seed + segment, FSX_SEGMENT);
            drop(stops);
            reader.map(|it| it.join().expect("no read fails"))
        });
        if let Some(read) = read {
            assert!(read == files::read(file), "segment {segment}: the handle of the reader");
        }
        let [one, other] = files.each_ref().map(|path| files::read(path));
        assert_eq!(one.len(), other.len(), "segment {segment}");
        assert!(one == other, "segment {segment}");
    }
    second.unmount();
    cluster.stop();
}
