//! Tests how requests that wait for locks end, and that these requests do not block other requests.

use crate::harness::wait_until;
use crate::{Test, mounted};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) const TESTS: &[Test] = &[
    ("a_wait_for_a_lock_ends_with_a_signal", a_wait_for_a_lock_ends_with_a_signal),
    ("lock_waits_do_not_block_other_requests", lock_waits_do_not_block_other_requests),
    (
        "unlock_queued_behind_many_lock_waits_is_served",
        unlock_queued_behind_many_lock_waits_is_served,
    ),
    ("killed_lock_waiter_exits_without_the_lock", killed_lock_waiter_exits_without_the_lock),
];

/// A program that waits for a lock of `flock` and then for a lock of `fcntl`, each until a signal
/// interrupts the wait.
const WAITING: &str = "
import fcntl, signal, sys
class Interrupted(Exception): pass
def interrupt(*_): raise Interrupted
signal.signal(signal.SIGUSR1, interrupt)
file = open(sys.argv[1], 'r+')
for lock in 5 * [fcntl.flock] + 5 * [fcntl.lockf]:
    try:
        lock(file, fcntl.LOCK_EX)
        sys.exit('it got the lock')
    except Interrupted:
        print('interrupted', flush=True)
lock(file, fcntl.LOCK_UN)
";

/// Waits until a process sleeps inside the kernel's FUSE code during the system call `call`.
fn wait_until_blocked(child: &Child, call: libc::c_long) {
    let shown = |what: &str| fs::read_to_string(format!("/proc/{}/{what}", child.id()));
    wait_until("the caller waits for the server", || {
        let is_call = shown("syscall").is_ok_and(|now| now.starts_with(&format!("{call} ")));
        let is_inside =
            |place: String| place.contains("fuse") || place.contains("request_wait_answer");
        is_call && shown("wchan").is_ok_and(is_inside)
    });
}

/// Locks all bytes of a file with `fcntl`.
fn lock_bytes(file: &File) {
    use std::os::fd::AsRawFd;
    // SAFETY: all-zero is a valid lock and means the whole file. The descriptor is open.
    unsafe {
        let mut lock = std::mem::zeroed::<libc::flock>();
        lock.l_type = libc::F_WRLCK as i16;
        assert_eq!(libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const lock), 0);
    }
}

/// docs/semantics.md 4.4 and 6.4.
fn a_wait_for_a_lock_ends_with_a_signal(transport: &str) {
    let it = mounted(transport);
    let file = File::create(it.join("file")).unwrap();
    file.lock().unwrap();
    lock_bytes(&file);
    let mut child = Command::new("python3")
        .args(["-c", WAITING])
        .arg(it.join("file"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ended = BufReader::new(child.stdout.take().unwrap()).lines();
    for call in [libc::SYS_flock, libc::SYS_fcntl] {
        let mut end_a_wait = || {
            wait_until_blocked(&child, call);
            let sent_at = Instant::now();
            // SAFETY: the call takes no pointers. The test has not waited for the child yet, so the
            // id is still the child's.
            assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGUSR1) }, 0);
            assert_eq!(ended.next().unwrap().unwrap(), "interrupted");
            sent_at.elapsed()
        };
        // A signal must end the wait faster than the periodic check for killed callers would. Use
        // the fastest of five attempts, since the machine may be busy for a moment.
        let fastest = (0..5).map(|_| end_a_wait()).min().unwrap();
        assert!(fastest < Duration::from_millis(200), "{fastest:?}");
    }
    assert!(child.wait().unwrap().success());
}

fn locking(path: &Path) -> Child {
    Command::new("flock").arg(path).arg("true").stderr(Stdio::null()).spawn().unwrap()
}

fn lock_waits_do_not_block_other_requests(transport: &str) {
    let it = mounted(transport);
    // The requests of the second round reuse slots of the first round.
    for round in 0..2 {
        let file = File::create(it.join("file")).unwrap();
        file.lock().unwrap();
        let mut waiting: Vec<_> = (0..60).map(|_| locking(&it.join("file"))).collect();
        waiting.iter().for_each(|child| wait_until_blocked(child, libc::SYS_flock));
        fs::write(it.join(&format!("other-{round}")), "served").unwrap();
        assert!(waiting.iter_mut().all(|child| child.try_wait().unwrap().is_none()));
        file.unlock().unwrap();
        assert!(waiting.iter_mut().all(|child| child.wait().unwrap().success()));
    }
}

/// A program whose threads all run on one CPU. Many threads wait for a lock, then another thread
/// releases the lock. Each thread that gets the lock releases it again.
const QUEUEING: &str = "
import fcntl, os, sys, threading, time
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
held = open(sys.argv[1])
fcntl.flock(held, fcntl.LOCK_EX)
files = [open(sys.argv[1]) for _ in range(60)]
def take_turn(file):
    fcntl.flock(file, fcntl.LOCK_EX)
    fcntl.flock(file, fcntl.LOCK_UN)
def wait_until_inside(count):
    def call(task):
        return open(f'/proc/self/task/{task}/syscall').read().split()[0]
    while [call(task) for task in os.listdir('/proc/self/task')].count(sys.argv[2]) < count:
        time.sleep(0.001)
print('ready', flush=True)
sys.stdin.readline()
threads = [threading.Thread(target=take_turn, args=(file,)) for file in files]
for thread in threads:
    thread.start()
wait_until_inside(60)
threads.append(threading.Thread(target=fcntl.flock, args=(held, fcntl.LOCK_UN)))
threads[-1].start()
wait_until_inside(61)
print('queued', flush=True)
for thread in threads:
    thread.join()
";

/// Without the kicks of the worker, the kernel would leave the unlock in its queue. A new slot gets
/// only requests that arrive after the registration of the slot.
fn unlock_queued_behind_many_lock_waits_is_served(transport: &str) {
    let it = mounted(transport);
    File::create(it.join("file")).unwrap();
    let mut child = Command::new("python3")
        .args(["-c", QUEUEING])
        .arg(it.join("file"))
        .arg(libc::SYS_flock.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(output.next().unwrap().unwrap(), "ready");
    // Suspend the server, so that all requests are in the queue before the server reads the first
    // one.
    it.signal(libc::SIGSTOP);
    writeln!(child.stdin.take().unwrap(), "go").unwrap();
    assert_eq!(output.next().unwrap().unwrap(), "queued");
    it.signal(libc::SIGCONT);
    wait_until("all threads have had the lock", || child.try_wait().unwrap().is_some());
    assert!(child.wait().unwrap().success());
}

fn killed_lock_waiter_exits_without_the_lock(transport: &str) {
    let it = mounted(transport);
    let file = File::create(it.join("file")).unwrap();
    file.lock().unwrap();
    let mut killed: Vec<_> = (0..3).map(|_| locking(&it.join("file"))).collect();
    killed.iter().for_each(|child| wait_until_blocked(child, libc::SYS_flock));
    killed.iter_mut().for_each(|child| child.kill().unwrap());
    assert!(killed.iter_mut().all(|child| !child.wait().unwrap().success()));
    file.unlock().unwrap();
    let other = File::open(it.join("file")).unwrap();
    wait_until("the lock is free", || other.try_lock().is_ok());
}
