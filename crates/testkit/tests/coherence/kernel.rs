//! Kernel functions that work only among the programs of one mount. For example, watches and leases
//! of files do not report changes by other mounts. This file also contains tests of functions that
//! Skep does not support.

use crate::statements::Stepwise;
use crate::{Mounts, within_a_second};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use skep_testkit::files;
use skep_testkit::program::run_in;
use skep_testkit::suite::Case;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::process::Command;

pub(crate) const CASES: &[Case<Mounts>] = skep_testkit::cases![kernel:
    inotify_reports_changes_of_its_own_mount_only, fanotify_reports_writes_of_its_own_mount_only,
    file_leases_are_broken_by_opens_on_their_mount_only, quota_calls_fail_with_enosys,
];

/// Returns all pending events of a watch. Each event has the name of an entry.
fn read_events(watch: &OwnedFd) -> Vec<(ReadFlags, String)> {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(watch, &mut buffer);
    let mut events = Vec::new();
    loop {
        match reader.next() {
            Ok(event) => {
                let name = event.file_name().map(|name| name.to_string_lossy().into_owned());
                events.push((event.events(), name.unwrap_or_default()));
            }
            Err(Errno::AGAIN) => return events,
            Err(error) => panic!("{error}"),
        }
    }
}

/// docs/semantics.md 5.8.
fn inotify_reports_changes_of_its_own_mount_only(mounts: &Mounts) {
    for (here, there) in [(&mounts.one, &mounts.other), (&mounts.other, &mounts.one)] {
        let watch = inotify::init(CreateFlags::NONBLOCK).expect("a watch");
        let changes = WatchFlags::CREATE
            | WatchFlags::MODIFY
            | WatchFlags::ATTRIB
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::MOVE
            | WatchFlags::DELETE;
        inotify::add_watch(&watch, here.as_path(), changes).expect("watched");
        files::write(there.join("theirs"), "x");
        assert_eq!(files::read(here.join("theirs")), b"x");
        files::open_with(OpenOptions::new().append(true), there.join("theirs"))
            .write_all(b"yz")
            .expect("written");
        assert_eq!(files::read(here.join("theirs")), b"xyz");
        files::rename(there.join("theirs"), there.join("moved"));
        within_a_second("the rename", || !here.join("theirs").exists());
        assert!(here.join("moved").exists());
        files::remove_file(there.join("moved"));
        within_a_second("the removal", || !here.join("moved").exists());
        let foreign = read_events(&watch);
        assert!(foreign.is_empty(), "{foreign:?}");

        files::write(here.join("ours"), "x");
        files::remove_file(here.join("ours"));
        let events = read_events(&watch);
        for change in
            [ReadFlags::CREATE, ReadFlags::MODIFY, ReadFlags::CLOSE_WRITE, ReadFlags::DELETE]
        {
            assert!(events.contains(&(change, "ours".to_owned())), "{change:?}: {events:?}");
        }
    }
}

/// A program that watches its working directory with `fanotify(7)` for files that are closed after
/// writing. After each line of input, the program prints the number of these files.
const WATCHER: &str = "
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
FAN_NONBLOCK, FAN_MARK_ADD, AT_FDCWD = 2, 1, -100
FAN_CLOSE_WRITE, FAN_EVENT_ON_CHILD = 8, 0x08000000
group = libc.fanotify_init(FAN_NONBLOCK, os.O_RDONLY)
mask = ctypes.c_uint64(FAN_CLOSE_WRITE | FAN_EVENT_ON_CHILD)
assert libc.fanotify_mark(group, FAN_MARK_ADD, mask, AT_FDCWD, b'.') == 0, ctypes.get_errno()
print('watches', flush=True)
for line in sys.stdin:
    count = 0
    try:
        events = os.read(group, 4096)
    except BlockingIOError:
        events = b''
    while events:
        length, _, _, _, _, file, _ = struct.unpack_from('=IBBHQii', events)
        os.close(file)
        events = events[length:]
        count += 1
    print(count, flush=True)
";

/// docs/semantics.md 5.8.
fn fanotify_reports_writes_of_its_own_mount_only(mounts: &Mounts) {
    for (here, there) in [(&mounts.one, &mounts.other), (&mounts.other, &mounts.one)] {
        let mut watcher = Stepwise::start(here, Command::new("python3").args(["-c", WATCHER]));
        assert_eq!(watcher.line(), "watches");
        for (place, expected) in [(there, "0"), (here, "1")] {
            files::write(place.join("file"), "x");
            assert_eq!(files::read(here.join("file")), b"x");
            watcher.go_on();
            assert_eq!(watcher.line(), expected);
        }
        files::remove_file(here.join("file"));
    }
}

/// A program that takes a write lease on a file. After the first line of input, the program prints
/// whether it still has the lease. When the kernel requests the release of the lease, the program
/// releases the lease.
const LEASER: &str = "
import fcntl, os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])
file = os.open('file', os.O_RDWR)
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print('has it', flush=True)
sys.stdin.readline()
has_it = fcntl.fcntl(file, fcntl.F_GETLEASE) == fcntl.F_WRLCK and not signal.sigpending()
print('still has it' if has_it else 'was asked', flush=True)
asked = signal.sigtimedwait([signal.SIGIO], 60)
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
print('was asked' if asked else 'was never asked', flush=True)
";

/// docs/semantics.md 5.9.
fn file_leases_are_broken_by_opens_on_their_mount_only(mounts: &Mounts) {
    files::write(mounts.one.join("file"), "ours");
    for (here, there) in [(&mounts.one, &mounts.other), (&mounts.other, &mounts.one)] {
        let mut leaser = Stepwise::start(here, Command::new("python3").args(["-c", LEASER]));
        assert_eq!(leaser.line(), "has it");
        files::write(there.join("file"), "theirs");
        leaser.go_on();
        assert_eq!(leaser.line(), "still has it");
        std::thread::scope(|scope| {
            let opener = scope.spawn(|| File::open(here.join("file")));
            assert_eq!(leaser.line(), "was asked");
            opener
                .join()
                .expect("no panic")
                .expect("the open succeeds after the release of the lease");
        });
        leaser.end();
    }
}

/// docs/semantics.md 5.6.
fn quota_calls_fail_with_enosys(mounts: &Mounts) {
    // This program calls quotactl_fd(2) to read the quota of user 0.
    let program = "import ctypes, errno, os\n\
         libc, buffer = ctypes.CDLL(None, use_errno=True), ctypes.create_string_buffer(256)\n\
         file = os.open('.', os.O_RDONLY)\n\
         answer = libc.syscall(443, file, 0x800007 << 8, 0, buffer)\n\
         print(answer, errno.errorcode[ctypes.get_errno()])\n";
    for place in [&mounts.one, &mounts.other] {
        assert_eq!(run_in(place, "python3", ["-c", program]), "-1 ENOSYS\n");
    }
}
