//! Tests of statements in docs/semantics.md that belong to no other file of these tests. Each test
//! checks both mounts.

use crate::shared::with_pages;
use crate::{Mounts, within_a_second};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, RenameFlags, SeekFrom, Timespec, Timestamps, copy_file_range,
    fallocate, getxattr, renameat_with, seek, setxattr, utimensat,
};
use rustix::io::Errno;
use skep_testkit::files::{self, OrFail};
use skep_testkit::program::run_in;
use skep_testkit::suite::Case;
use skep_testkit::{PATIENCE, Random, eventually, spread, wait_for};
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

pub(crate) const CASES: &[Case<Mounts>] = skep_testkit::cases![statements:
    directory_that_is_replaced_is_never_missing,
    rename_leaves_a_whiteout_at_another_metadata_target,
    listing_is_complete_during_changes_by_the_other_mount,
    reading_changes_no_time,
    open_file_is_usable_after_a_loss_of_permission,
    directory_size_is_its_number_of_entries,
    directory_sizes_are_exact_after_renames_between_groups,
    block_count_of_a_file_without_holes_covers_its_length,
    block_count_never_exceeds_the_size,
    directory_removed_by_the_other_mount_is_empty,
    stat_succeeds_on_a_device_removed_by_the_other_mount,
    each_piece_of_a_large_write_has_bytes_of_one_writer,
    reported_write_times_are_visible_on_other_mounts,
    times_are_visible_after_fsync_or_close_without_stat,
    reported_write_replaces_times_that_another_mount_has_set,
    close_writes_mapped_pages,
    collapse_and_insert_range_are_refused,
    allocated_space_without_data_is_a_hole,
    copies_have_the_holes_of_their_source,
    copy_file_range_ends_at_the_cached_end_of_the_source,
    unsupported_chattr_flags_are_refused,
    removed_open_file_can_still_be_written,
];

fn new(path: &Path, bytes: &[u8]) -> File {
    files::write(path, bytes);
    files::open_with(OpenOptions::new().read(true).write(true), path)
}

/// A counter of the events of a thread. Another thread can wait for these events.
#[derive(Default)]
struct Done(AtomicUsize);

impl Done {
    fn count_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn is_at_least(&self, wanted: usize) -> bool {
        self.0.load(Ordering::Relaxed) >= wanted
    }
}

/// docs/semantics.md 1.4, for directories. A rename may replace an empty directory.
fn directory_that_is_replaced_is_never_missing(mounts: &Mounts) {
    // Use the mount that caches no names to look up the directory.
    let target = mounts.at_once.join("target");
    let (replaced, looks, is_done) = (Done::default(), Done::default(), AtomicBool::new(false));
    files::create_dir(mounts.one.join("target"));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                assert!(files::metadata(&target).is_dir());
                looks.count_one();
            }
        });
        let writer = scope.spawn(|| {
            for round in 0.. {
                if is_done.load(Ordering::Relaxed) {
                    return;
                }
                let next = mounts.one.join(format!("next-{round}"));
                files::create_dir(&next);
                files::rename(&next, mounts.one.join("target"));
                replaced.count_one();
            }
        });
        let ended = || reader.is_finished() || writer.is_finished();
        let were_many = eventually(PATIENCE, || {
            let is_enough = replaced.is_at_least(200) && looks.is_at_least(200);
            (ended() || is_enough).then_some(())
        });
        is_done.store(true, Ordering::Relaxed);
        writer.join().expect("each replacement succeeds");
        reader.join().expect("the name always exists");
        were_many.expect("many replacements during many reads");
    });
    assert_eq!(files::read_dir(&mounts.one).count(), 1);
}

/// Moves a file through sixteen directories. Two consecutive directories are on different metadata
/// groups. docs/semantics.md 1.4.
fn rename_leaves_a_whiteout_at_another_metadata_target(mounts: &Mounts) {
    let (here, there) = (&mounts.one, &mounts.at_once);
    let name = |number: u32| format!("whiteouts-{number}/file");
    spread::create_dirs(here, (0..16).map(|number| format!("whiteouts-{number}")));
    files::write(here.join(name(0)), "text");
    for number in 1..16 {
        let (from, to) = (here.join(name(number - 1)), here.join(name(number)));
        renameat_with(CWD, &from, CWD, &to, RenameFlags::WHITEOUT).or_fail("renameat2", &from);
        assert_eq!(files::read(there.join(name(number))), b"text");
        for place in [here, there] {
            let left = files::symlink_metadata(place.join(name(number - 1)));
            assert!(left.file_type().is_char_device() && left.rdev() == 0, "{number}");
        }
    }
}

/// docs/semantics.md 1.6.
fn listing_is_complete_during_changes_by_the_other_mount(mounts: &Mounts) {
    const STAYING: usize = 700;
    for number in 0..STAYING {
        files::write(mounts.one.join(format!("stays-{number}")), "");
    }
    let (changes, is_done) = (Done::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let changer = scope.spawn(|| {
            for number in 0.. {
                if is_done.load(Ordering::Relaxed) {
                    return;
                }
                let path = mounts.other.join(format!("passes-{number}"));
                files::write(&path, "");
                if number >= 50 {
                    let old = mounts.other.join(format!("passes-{}", number - 50));
                    files::remove_file(old);
                }
                changes.count_one();
            }
        });
        let list = || {
            let mut found: HashMap<_, usize> = HashMap::new();
            for entry in files::read_dir(&mounts.one) {
                *found.entry(entry.expect("an entry").file_name()).or_default() += 1;
            }
            found
        };
        let mut listings = Vec::new();
        let were_many = eventually(PATIENCE, || {
            listings.push(list());
            let is_enough = listings.len() >= 30 && changes.is_at_least(200);
            (changer.is_finished() || is_enough).then_some(())
        });
        is_done.store(true, Ordering::Relaxed);
        changer.join().expect("no failure");
        were_many.expect("many changes during many listings");
        for found in listings {
            assert!(found.values().all(|count| *count == 1), "an entry is listed twice");
            let is_staying = |name: &&std::ffi::OsString| name.to_string_lossy().starts_with("s");
            assert_eq!(found.keys().filter(is_staying).count(), STAYING);
        }
    });
}

/// docs/semantics.md 1.9. Reading changes no time of a file. Other file systems update an access
/// time that is older than the modification time, but Skep does not.
fn reading_changes_no_time(mounts: &Mounts) {
    let at = |seconds| Timespec { tv_sec: seconds, tv_nsec: 7 };
    let times = Timestamps { last_access: at(1000), last_modification: at(2000) };
    files::create_dir(mounts.one.join("directory"));
    files::write(mounts.one.join("directory/file"), vec![1; 100_000]);
    for name in ["directory/file", "directory"] {
        utimensat(CWD, mounts.one.join(name), &times, AtFlags::empty())
            .or_fail("utimensat", mounts.one.join(name));
    }
    for place in [&mounts.other, &mounts.one] {
        assert_eq!(files::read(place.join("directory/file")).len(), 100_000);
        assert_eq!(files::read_dir(place.join("directory")).count(), 1);
    }
    for place in [&mounts.other, &mounts.one, &mounts.at_once] {
        for name in ["directory/file", "directory"] {
            let found = files::metadata(place.join(name));
            assert_eq!((found.atime(), found.atime_nsec()), (1000, 7), "{name}");
        }
    }
}

/// A program that waits for a line of input before each of its steps.
pub(crate) struct Stepwise {
    child: Child,
    says: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Stepwise {
    pub(crate) fn start(directory: &Path, command: &mut Command) -> Self {
        command.current_dir(directory).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("started");
        let says = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        Self { child, says }
    }

    /// Returns the next line of the program's output.
    pub(crate) fn line(&mut self) -> String {
        self.says.next().expect("a line").expect("text")
    }

    /// Sends a line to the program.
    pub(crate) fn send(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().expect("a pipe"), "{line}").expect("the process runs");
    }

    pub(crate) fn go_on(&mut self) {
        self.send("");
    }

    pub(crate) fn end(mut self) {
        assert!(self.child.wait().expect("our own child").success());
    }
}

impl Drop for Stepwise {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// docs/semantics.md 1.10.
fn open_file_is_usable_after_a_loss_of_permission(mounts: &Mounts) {
    let set_mode = |path: &Path, mode| {
        files::set_permissions(path, fs::Permissions::from_mode(mode));
    };
    let path = mounts.one.join("file");
    set_mode(&mounts.one, 0o755);
    files::write(&path, "first\n");
    set_mode(&path, 0o666);
    let script = "exec 3<>file; echo open; read go; cat <&3; echo second >&3; \
                  cat file 2>&1 | grep -o denied";
    let mut user = Command::new("setpriv");
    user.args(["--reuid", "23456", "--regid", "23456", "--clear-groups", "sh", "-c", script]);
    let mut user = Stepwise::start(&mounts.other, &mut user);
    assert_eq!(user.line(), "open");
    set_mode(&path, 0o600);
    within_a_second("the new mode", || {
        files::metadata(mounts.other.join("file")).mode() & 0o777 == 0o600
    });
    user.go_on();
    assert_eq!(user.line(), "first");
    assert_eq!(user.line(), "denied", "the result of another open");
    user.end();
    assert_eq!(files::read(&path), b"first\nsecond\n");
}

/// docs/semantics.md 1.12.
fn directory_size_is_its_number_of_entries(mounts: &Mounts) {
    let has = |size, links| {
        for place in [&mounts.one, &mounts.other] {
            within_a_second("size and links", || {
                let found = files::metadata(place);
                (found.len(), found.nlink()) == (size, links)
            });
        }
    };
    has(0, 2);
    files::write(mounts.one.join("file"), "x");
    files::create_dir(mounts.one.join("first"));
    files::create_dir(mounts.other.join("second"));
    files::hard_link(mounts.other.join("file"), mounts.other.join("second/link"));
    files::symlink("file", mounts.other.join("link"));
    has(4, 4);
    files::remove_dir(mounts.one.join("first"));
    files::remove_file(mounts.one.join("file"));
    has(2, 3);
}

/// docs/semantics.md 1.1, 1.2 and 1.12: the mount that renames an entry, and a mount without a
/// cache, see the new sizes and link counts of both directories immediately. The directories are on
/// different metadata groups.
fn directory_sizes_are_exact_after_renames_between_groups(mounts: &Mounts) {
    spread::create_dirs(&mounts.one, ["a", "b"]);
    let [a, b] = ["a", "b"].map(|name| mounts.one.join(name));
    files::create_dir(a.join("directory"));
    files::write(a.join("file"), "");
    let check = |round: usize, in_a: (u64, u64), in_b: (u64, u64)| {
        for place in [&mounts.one, &mounts.at_once] {
            let shown = ["a", "b"].map(|name| {
                let found = files::metadata(place.join(name));
                (found.len(), found.nlink())
            });
            assert_eq!(shown, [in_a, in_b], "round {round}, {}", place.display());
        }
    };
    for round in 0..20 {
        check(round, (2, 3), (0, 2));
        files::rename(a.join("directory"), b.join("directory"));
        check(round, (1, 2), (1, 3));
        files::rename(a.join("file"), b.join("file"));
        check(round, (0, 2), (2, 3));
        files::rename(b.join("file"), a.join("file"));
        let (from, to) = (b.join("directory"), a.join("file"));
        renameat_with(CWD, &from, CWD, &to, RenameFlags::EXCHANGE).or_fail("renameat2", &from);
        check(round, (1, 3), (1, 2));
        renameat_with(CWD, &from, CWD, &to, RenameFlags::EXCHANGE).or_fail("renameat2", &from);
        files::rename(b.join("directory"), a.join("directory"));
    }
}

/// docs/semantics.md 1.13.
fn block_count_of_a_file_without_holes_covers_its_length(mounts: &Mounts) {
    for (len, blocks) in [(0, 0), (1, 1), (512, 1), (513, 2), (700_000, 1368), (5_000_001, 9766)] {
        // The first write of a file decides whether the file has inline bytes.
        let name = format!("file-{len}");
        files::write(mounts.one.join(&name), vec![1; len]);
        for place in [&mounts.one, &mounts.other] {
            within_a_second("the blocks", || {
                let found = files::metadata(place.join(&name));
                (found.len(), found.blocks()) == (len as u64, blocks)
            });
        }
    }
}

/// The file has a hole of only 100 bytes, so none of its blocks is a hole. With the checksums, the
/// chunk file takes more space than the size of the file. docs/semantics.md 1.13.
fn block_count_never_exceeds_the_size(mounts: &Mounts) {
    const PART: usize = 20_000;
    let file = files::create(mounts.one.join("file"));
    // The first write is larger than the inline bytes.
    files::write_all_at(&file, &[1; PART], 0);
    files::write_all_at(&file, &[2; PART], (PART + 100) as u64);
    let found = files::metadata_of(&file);
    assert_eq!((found.len(), found.blocks()), (40_100, 79));
    drop(file);
    within_a_second("the blocks", || {
        let found = files::metadata(mounts.other.join("file"));
        (found.len(), found.blocks()) == (40_100, 79)
    });
}

/// docs/semantics.md 1.14.
fn directory_removed_by_the_other_mount_is_empty(mounts: &Mounts) {
    files::create_dir(mounts.one.join("directory"));
    files::write(mounts.one.join("directory/file"), "x");
    run_in(&mounts.one, "setfacl", ["-m", "u:34567:rx", "directory"]);
    run_in(&mounts.one, "chown", ["23456", "directory"]);
    let open = files::open(mounts.other.join("directory"));
    let script = "echo there; read go; stat -c '%h %F' .; ls -A | wc -l; touch new 2>&1 | \
                  grep -o 'No such file'";
    let mut inside = Command::new("sh");
    inside.args(["-c", script]);
    let mut inside = Stepwise::start(&mounts.other.join("directory"), &mut inside);
    assert_eq!(inside.line(), "there");
    files::remove_file(mounts.one.join("directory/file"));
    files::remove_dir(mounts.one.join("directory"));
    within_a_second("the removed directory has no links", || {
        let found = open.metadata().expect("an open file exists after its name is removed");
        found.is_dir() && found.nlink() == 0
    });
    within_a_second("the directory's name is removed", || !mounts.other.join("directory").exists());
    let changed = open.set_permissions(fs::Permissions::from_mode(0o700));
    assert_eq!(
        changed.expect_err("the directory is removed").kind(),
        ErrorKind::StaleNetworkFileHandle
    );
    // A lookup in the removed directory fails as in an empty directory, even if the removed
    // directory had an access control list.
    let step = || rustix::fs::statat(&open, "any/other", AtFlags::empty());
    for _ in 0..3 {
        assert_eq!(step().expect_err("a removed directory is empty"), Errno::NOENT);
    }
    inside.go_on();
    assert_eq!(inside.line(), "0 directory");
    assert_eq!(inside.line(), "0");
    assert_eq!(inside.line(), "No such file");
    inside.end();
}

/// docs/semantics.md 1.14.
fn stat_succeeds_on_a_device_removed_by_the_other_mount(mounts: &Mounts) {
    let path = mounts.one.join("null");
    run_in(&mounts.one, "mknod", ["null", "c", "1", "3"]);
    let open = files::open(mounts.other.join("null"));
    files::remove_file(&path);
    within_a_second("the removed device has no links", || {
        let found = open.metadata().expect("an open file exists after its name is removed");
        found.file_type().is_char_device() && found.nlink() == 0
    });
    let changed = open.set_permissions(fs::Permissions::from_mode(0o600));
    assert_eq!(
        changed.expect_err("the device is removed").kind(),
        ErrorKind::StaleNetworkFileHandle
    );
}

/// docs/semantics.md 2.5.
fn each_piece_of_a_large_write_has_bytes_of_one_writer(mounts: &Mounts) {
    const LEN: usize = 3 << 20;
    for round in 0..8_u8 {
        let writers = [&mounts.one, &mounts.other].map(|place| place.join("file"));
        let opened: Vec<_> = writers
            .iter()
            .map(|path| {
                let mut options = OpenOptions::new();
                options.write(true).create(true).truncate(false).open(path).expect("opened")
            })
            .collect();
        std::thread::scope(|scope| {
            for (index, file) in opened.iter().enumerate() {
                let (bytes, start) = with_pages(2 * round + 1 + index as u8, LEN);
                scope.spawn(move || {
                    files::write_all_at(file, &bytes[start..start + LEN], 0);
                });
            }
        });
        drop(opened);
        let found = files::read(mounts.one.join("file"));
        assert_eq!(found.len(), LEN);
        for page in found.chunks(4096) {
            assert!(
                [2 * round + 1, 2 * round + 2].contains(&page[0]),
                "round {round}: the page has outdated bytes"
            );
            assert!(
                page.iter().all(|byte| *byte == page[0]),
                "round {round}: the page has bytes of two writes"
            );
        }
        assert!(files::read(mounts.other.join("file")) == found, "round {round}");
    }
}

/// docs/semantics.md 2.4.
fn reported_write_times_are_visible_on_other_mounts(mounts: &Mounts) {
    let time = |place: &Path| {
        let found = files::metadata(place.join("file"));
        (found.mtime(), found.mtime_nsec())
    };
    let file = new(&mounts.one.join("file"), b"x");
    let mut before = time(&mounts.one);
    for round in 0..6_u64 {
        // Wait until the clock has advanced. The times come from the clock of the host that sets
        // them.
        wait_for("a write has a new time", Duration::from_secs(10), || {
            files::write_all_at(&file, b"more", 10 * round);
            (time(&mounts.one) > before).then_some(())
        });
        before = time(&mounts.one);
        if round % 2 == 0 {
            files::sync_all(&file);
        }
        within_a_second("the time", || time(&mounts.other) == before);
    }
}

/// docs/semantics.md 2.4. The writing mount calls no `stat`, because a `stat` would report the
/// times of the writes. Each write extends the file, so the exception for writes within a durable
/// size does not apply.
fn times_are_visible_after_fsync_or_close_without_stat(mounts: &Mounts) {
    const OLD: i64 = 1_000_000;
    let path = mounts.one.join("file");
    let old = Timespec { tv_sec: OLD, tv_nsec: 0 };
    let old = Timestamps { last_access: old, last_modification: old };
    files::write(&path, "x");
    for round in 0..8_u64 {
        let file = files::open_with(OpenOptions::new().write(true), &path);
        utimensat(CWD, &path, &old, AtFlags::empty()).or_fail("utimensat", &path);
        let seen = || files::metadata(mounts.other.join("file"));
        within_a_second("the old time", || seen().mtime() == OLD);
        files::write_all_at(&file, b"more", 1 + 4 * round);
        let open = if round % 2 == 0 {
            files::sync_all(&file);
            Some(file)
        } else {
            drop(file);
            None
        };
        within_a_second("the time and the size", || {
            seen().mtime() > OLD && seen().len() == 5 + 4 * round
        });
        drop(open);
    }
}

/// docs/semantics.md 2.4. The other mount sets the time after the write, and before the writer
/// reports the write to metadata. The bytes are on storage, because metadata sets the times of
/// writes of inline bytes immediately.
fn reported_write_replaces_times_that_another_mount_has_set(mounts: &Mounts) {
    const OLD: i64 = 1_000_000;
    let old = Timespec { tv_sec: OLD, tv_nsec: 0 };
    let old = Timestamps { last_access: old, last_modification: old };
    for round in 0..6 {
        let (here, there) = match round % 2 {
            0 => (&mounts.one, &mounts.other),
            _ => (&mounts.other, &mounts.one),
        };
        let name = format!("file-{round}");
        let file = new(&here.join(&name), &[1; 20_000]);
        files::write_all_at(&file, &[2; 5000], 20_000);
        utimensat(CWD, there.join(&name), &old, AtFlags::empty())
            .or_fail("utimensat", there.join(&name));
        let open = if round < 3 {
            files::sync_all(&file);
            Some(file)
        } else {
            drop(file);
            None
        };
        for place in [there, here] {
            within_a_second("the time of the write", || {
                files::metadata(place.join(&name)).mtime() > OLD
            });
        }
        drop(open);
    }
}

/// docs/semantics.md 2.8. `close` writes the mapped pages even if the program has not called
/// `msync`.
fn close_writes_mapped_pages(mounts: &Mounts) {
    files::write(mounts.one.join("file"), vec![b'a'; 2_000_000]);
    let program = "import mmap\n\
         with open('file', 'r+b') as file:\n\
         \x20   mapped = mmap.mmap(file.fileno(), 0)\n\
         \x20   mapped[5000:5004] = b'here'\n\
         \x20   mapped[1999996:] = b'last'\n\
         \x20   mapped.close()\n";
    run_in(&mounts.one, "python3", ["-c", program]);
    let found = files::read(mounts.other.join("file"));
    assert_eq!((&found[4999..5005], &found[1_999_995..]), (&b"aherea"[..], &b"alast"[..]));
}

/// docs/semantics.md 2.11.
fn collapse_and_insert_range_are_refused(mounts: &Mounts) {
    let bytes = Random::new(4).bytes(1 << 20);
    let file = new(&mounts.one.join("file"), &bytes);
    for flags in [FallocateFlags::COLLAPSE_RANGE, FallocateFlags::INSERT_RANGE] {
        assert_eq!(fallocate(&file, flags, 0, 65_536), Err(Errno::OPNOTSUPP));
    }
    assert!(files::read(mounts.other.join("file")) == bytes);
    // The block count of a file does not include space that is allocated beyond the end of the
    // file.
    files::fallocate(&file, FallocateFlags::KEEP_SIZE, 1 << 20, 8 << 20);
    for place in [&mounts.one, &mounts.other] {
        let found = files::metadata(place.join("file"));
        assert_eq!(found.len(), 1 << 20);
        assert!(found.blocks() <= 2048, "{} blocks", found.blocks());
    }
}

/// docs/semantics.md 2.12.
fn allocated_space_without_data_is_a_hole(mounts: &Mounts) {
    let file = new(&mounts.one.join("file"), b"");
    files::fallocate(&file, FallocateFlags::empty(), 0, 3 << 20);
    let there = files::open(mounts.other.join("file"));
    for file in [&file, &there] {
        assert_eq!(seek(file, SeekFrom::Data(0)), Err(Errno::NXIO));
        assert_eq!(seek(file, SeekFrom::Hole(5)), Ok(5));
    }
    files::write_all_at(&file, b"x", 2 << 20);
    for file in [&file, &there] {
        assert_eq!(seek(file, SeekFrom::Data(0)), Ok(2 << 20));
        let end = seek(file, SeekFrom::Hole(2 << 20)).expect("there is one");
        assert!(end > 2 << 20 && end <= (2 << 20) + 4096, "{end}");
    }
}

/// docs/semantics.md 2.13, for files on the same targets.
fn copies_have_the_holes_of_their_source(mounts: &Mounts) {
    const PATTERN: &str = "user.skep.pattern";
    let source = new(&mounts.one.join("source"), b"begins");
    files::write_all_at(&source, b"ends", 20 << 20);
    let mut text = [0; 256];
    let len =
        getxattr(mounts.one.join("source"), PATTERN, &mut text).expect("the source has a pattern");
    let path = mounts.one.join("copy");
    files::write(&path, "");
    let flags = rustix::fs::XattrFlags::empty();
    setxattr(&path, PATTERN, &text[..len], flags).or_fail("setxattr", &path);
    let copy = files::open_with(OpenOptions::new().read(true).write(true), &path);
    let size = files::metadata_of(&source).len();
    let (mut from, mut to) = (0, 0);
    while from < size {
        let rest = usize::try_from(size - from).expect("not much");
        let done = copy_file_range(&source, Some(&mut from), &copy, Some(&mut to), rest);
        assert!(done.expect("copied") > 0);
    }
    files::sync_all(&copy);
    assert!(files::read(mounts.other.join("copy")) == files::read(mounts.other.join("source")));
    for file in [&source, &copy] {
        let blocks = files::metadata_of(file).blocks();
        assert!(blocks < 1000, "{blocks} blocks");
    }
    assert_eq!(seek(&copy, SeekFrom::Data(1 << 20)), Ok(20 << 20));
}

/// docs/semantics.md 2.13. The kernel copies only up to its cached size of the source file. This
/// cached size is the size that the last `fstat` returned.
fn copy_file_range_ends_at_the_cached_end_of_the_source(mounts: &Mounts) {
    for round in 0..20_u64 {
        let name = format!("source-{round}");
        let source = new(&mounts.one.join(&name), b"");
        let copy = new(&mounts.one.join(format!("copy-{round}")), b"");
        let len = 100_000 * (1 + round % 3);
        assert_eq!(files::metadata_of(&source).len(), 0);
        let bytes = vec![round as u8; len as usize];
        let there = mounts.other.join(&name);
        let there = files::open_with(OpenOptions::new().write(true), there);
        files::write_all_at(&there, &bytes, 0);
        if round % 2 == 0 {
            drop(there);
        }
        assert_eq!(files::metadata_of(&source).len(), len);
        let (mut from, mut to) = (0, 0);
        while from < len {
            let rest = usize::try_from(len - from).expect("not much");
            let done = copy_file_range(&source, Some(&mut from), &copy, Some(&mut to), rest);
            assert!(done.expect("copied") > 0, "round {round}: {from} of {len} bytes");
        }
        assert!(files::read(mounts.other.join(format!("copy-{round}"))) == bytes);
    }
}

/// docs/semantics.md 1.20.
fn unsupported_chattr_flags_are_refused(mounts: &Mounts) {
    files::write(mounts.one.join("file"), "x");
    for flag in ["+i", "+a", "+d"] {
        let mut call = Command::new("chattr");
        let call = call.args([flag, "file"]).current_dir(&mounts.other).env("LC_ALL", "C");
        let printed = call.output().expect("chattr runs");
        assert!(!printed.status.success());
        let printed = String::from_utf8_lossy(&printed.stderr).into_owned();
        assert!(printed.contains("Operation not supported"), "{flag}: {printed}");
    }
    files::write(mounts.other.join("file"), "still");
}

/// docs/semantics.md 4.9.
fn removed_open_file_can_still_be_written(mounts: &Mounts) {
    let mut expected = Random::new(8).bytes(1_000_000);
    files::write(mounts.one.join("file"), &expected);
    let path = mounts.other.join("file");
    let file = files::open_with(OpenOptions::new().read(true).write(true), &path);
    let reader = files::open(&path);
    files::remove_file(mounts.one.join("file"));
    files::write_all_at(&file, &[7; 700_000], 900_000);
    expected.resize(1_600_000, 0);
    expected[900_000..].fill(7);
    files::sync_all(&file);
    let mut found = vec![0; expected.len()];
    files::read_exact_at(&reader, &mut found, 0);
    assert!(found == expected);
    files::set_len(&file, 10);
    assert_eq!(files::metadata_of(&reader).len(), 10);
    within_a_second("the file's name is removed", || !path.exists());
}
