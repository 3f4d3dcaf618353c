//! The take-over of a group whose clients have many open files and locks.

use crate::pair::{MOUNTS, Pair};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use skep_testkit::{PATIENCE, files, wait_for};
use std::fs::File;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Number of files that programs have open, unless `SKEP_OPENS` sets it.
const OPENS: usize = 10_000;
/// Number of open files for each locked file.
const LOCK_EVERY: usize = 10;
/// Number of open files for each unlinked open file with bytes. The bytes of every second such file
/// are on storage, because the file's first write is larger than the inline bytes.
const UNNAMED_EVERY: usize = 1_000;
/// Number of processes that open the files. Many hosts allow only 20,000 open files per process, so
/// a single process is not enough.
const PROGRAMS: usize = 6;
/// Maximum time from the map that names the new primary to the first reply of this primary.
const LONGEST_START: Duration = Duration::from_secs(1);

/// Python program that creates files and keeps these files open. The program prints a line when all
/// its files are open. After a line of input, the program checks the bytes of the files without
/// names, and ends.
const PROGRAM: &str = "\
import fcntl, os, sys\n\
directory, first, count, step, lock_every, unnamed_every = sys.argv[1], *map(int, sys.argv[2:])\n\
unnamed = []\n\
for number in range(first, count, step):\n\
\x20   name = 'open-%d' % number\n\
\x20   path = os.path.join(directory, name)\n\
\x20   file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR)\n\
\x20   if number % lock_every == 1: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n\
\x20   if number % unnamed_every == 0:\n\
\x20       is_large = number % (2 * unnamed_every) == 0\n\
\x20       os.write(file, name.encode().ljust(20000 if is_large else 0))\n\
\x20       os.unlink(path)\n\
\x20       unnamed.append((file, name))\n\
print('open', flush=True)\n\
sys.stdin.readline()\n\
for file, name in unnamed: assert os.pread(file, 100, 0).split() == [name.encode()], name\n\
print('checked', flush=True)\n";

fn number_of_opens() -> usize {
    std::env::var("SKEP_OPENS").map_or(OPENS, |it| it.parse().expect("a number"))
}

fn name(number: usize) -> String {
    format!("open-{number}")
}

/// A running [`PROGRAM`]. Dropping this value kills the program.
struct Holder {
    program: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Holder {
    /// Starts the program that opens every [`PROGRAMS`]th file, beginning with `first`.
    fn start(directory: &Path, first: usize, opens: usize) -> Self {
        let numbers = [first, opens, PROGRAMS, LOCK_EVERY, UNNAMED_EVERY].map(|it| it.to_string());
        let mut command = Command::new("python3");
        command.args(["-c", PROGRAM]).arg(directory).args(numbers);
        let mut program = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 can be started");
        let stdout = program.stdout.take().expect("a pipe");
        Self { program, lines: BufReader::new(stdout).lines() }
    }

    fn expect_line(&mut self, expected: &str) {
        let line = self.lines.next().expect("the program has seen no error");
        assert_eq!(line.expect("a line of text"), expected);
    }

    fn check(&mut self) {
        let input = self.program.stdin.as_mut().expect("a pipe");
        input.write_all(b"\n").expect("the program reads");
        self.expect_line("checked");
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

/// Creates files until `stop` is set. Returns the time at which the slowest creation ended.
fn end_of_pause(root: PathBuf, stop: &AtomicBool) -> Instant {
    let mut longest = (Duration::ZERO, Instant::now());
    for number in 0.. {
        let began = Instant::now();
        File::create_new(root.join(format!("probe-{number}"))).expect("a new file");
        longest = longest.max((began.elapsed(), Instant::now()));
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    longest.1
}

#[test]
fn new_primary_with_many_opens_and_locks_replies_promptly() {
    let opens = number_of_opens();
    let mut pair = Pair::begin();
    let [here, there] = MOUNTS.map(|name| pair.scratch.join(name));
    files::create_dir(here.join("probes"));
    let began = Instant::now();
    let mut holders: Vec<_> =
        (0..PROGRAMS).map(|first| Holder::start(&here, first, opens)).collect();
    holders.iter_mut().for_each(|it| it.expect_line("open"));
    eprintln!("{opens} files created and kept open in {:?}", began.elapsed());

    let (primary, backup) = pair.roles();
    let stop = AtomicBool::new(false);
    let (shown, first_reply) = std::thread::scope(|scope| {
        let probing = scope.spawn(|| end_of_pause(here.join("probes"), &stop));
        wait_for("the probe has begun", PATIENCE, || {
            here.join("probes/probe-1").exists().then_some(())
        });
        pair.kill(primary);
        let shown = wait_for("the other member takes over", PATIENCE, || {
            let asked = Instant::now();
            (pair.roles().0 == backup).then_some(asked)
        });
        wait_for("a reply of the new primary", PATIENCE, || {
            there.join(name(1)).exists().then_some(())
        });
        stop.store(true, Ordering::Relaxed);
        (shown, probing.join().expect("no panic"))
    });
    let start = first_reply.saturating_duration_since(shown);
    eprintln!("first reply {start:?} after the map with the new primary");

    for number in (0..opens).filter(|number| number % LOCK_EVERY == 1) {
        let file = File::open(there.join(name(number))).expect("the file exists");
        let refused = flock(&file, FlockOperation::NonBlockingLockExclusive);
        assert_eq!(
            refused,
            Err(Errno::WOULDBLOCK),
            "the program still has the lock of file {number}"
        );
    }
    holders.iter_mut().for_each(Holder::check);
    assert!(start <= LONGEST_START, "{start:?}");
    drop(holders);
    pair.start_service("metadata", primary);
    pair.wait_for_serving(2);
}
