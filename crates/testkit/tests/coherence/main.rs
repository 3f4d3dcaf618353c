//! These tests check after how much time a change by one mount is visible on another mount of the
//! same cluster. The mounts have different transports. After a `close` on one mount, an open on the
//! other mount reads the written data. Changed names and attributes are visible within a second.

mod attributes;
mod kernel;
mod races;
mod shared;
mod small_files;
mod statements;
mod two_groups;
mod versions;

use rustix::fs::{CWD, FallocateFlags, RenameFlags, copy_file_range, renameat_with};
use skep_testkit::feature_level::STAGING;
use skep_testkit::files::{self, OrFail};
use skep_testkit::suite::{Case, Suite};
use skep_testkit::{
    Cluster, EndGuard, PATIENCE, Random, Shape, Transport, seen_within, spread, wait_for,
};
use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The paths of a single directory on several mounts.
struct Mounts {
    one: PathBuf,
    other: PathBuf,
    /// The path of the directory on a third mount, which caches neither names nor attributes.
    at_once: PathBuf,
}

const CASES: &[Case<Mounts>] = skep_testkit::cases![coherence:
    open_after_a_close_reads_the_written_bytes,
    open_after_a_write_reads_the_new_length,
    new_names_are_visible_immediately,
    recreated_name_opens_the_new_file,
    cached_names_are_stale_for_at_most_a_second,
    cached_attributes_are_stale_for_at_most_a_second,
    open_handle_reads_bytes_that_another_mount_synced,
    alternating_appends_of_both_mounts_lose_no_line,
    counter_under_a_lock_file_loses_no_update,
    open_handle_survives_removal_by_the_other_mount,
    concurrent_renames_over_one_name_leave_one_file,
    truncation_by_the_other_mount_is_visible_at_the_next_open,
    file_size_may_exceed_the_free_space_of_the_disks,
    holes_and_copies_are_visible_on_the_other_mount,
    concurrent_writers_of_different_ranges_keep_all_bytes,
    both_mounts_list_the_same_entries,
    listing_has_new_entries_after_the_directory_time_is_reset,
    changes_are_visible_immediately_without_caching,
    name_that_is_replaced_is_never_missing,
    names_that_are_exchanged_are_never_missing,
    directories_moved_into_each_other_stay_a_tree,
    inode_numbers_are_never_reused,
    each_page_has_the_bytes_of_exactly_one_concurrent_writer,
    reported_sizes_are_visible_on_other_mounts,
];

/// Maximum age of cached names and attributes. The tests add [`MARGIN`] for delays of a busy
/// machine.
const STALENESS: Duration = Duration::from_millis(1000);
const MARGIN: Duration = Duration::from_millis(300);

/// docs/semantics.md 2.2.
fn open_after_a_close_reads_the_written_bytes(mounts: &Mounts) {
    let mut random = Random::new(3);
    for round in 0..60 {
        let (from, to) = if round % 2 == 0 {
            (&mounts.one, &mounts.other)
        } else {
            (&mounts.other, &mounts.one)
        };
        let len = [0, 10, 4096, 600_000, 2_000_000][random.below(5)];
        let bytes = random.bytes(len);
        // The first write of a file decides whether the file has inline bytes.
        let name = format!("file-{}", round / 6);
        files::write(from.join(&name), &bytes);
        // Each open requests the attributes, so an open after the write reads all bytes.
        let found = files::read(to.join(&name));
        assert!(found == bytes, "round {round}: {} bytes, not {len}", found.len());
    }
}

/// The kernel does not read beyond its cached length of a file. So the kernel must have the new
/// length in its cache even if the program does not call stat. (`fs::read` calls stat, and requests
/// the creation time, which the kernel never caches.) docs/semantics.md 2.2.
fn open_after_a_write_reads_the_new_length(mounts: &Mounts) {
    let mut found = vec![0; 1_000_000];
    for round in 0..30_u64 {
        let (from, to) = if round % 2 == 0 {
            (&mounts.one, &mounts.other)
        } else {
            (&mounts.other, &mounts.one)
        };
        let name = format!("file-{}", round / 6);
        let append = |bytes: &[u8]| {
            files::open_with(OpenOptions::new().append(true).create(true), from.join(&name))
                .write_all(bytes)
                .expect("written");
        };
        append(&[1; 10]);
        // Because of this stat, the kernel caches the attributes for a second.
        let before = files::metadata(to.join(&name)).len();
        append(&[2; 30_000]);
        let mut file = files::open(to.join(&name));
        let count = file.read(&mut found).expect("read") as u64;
        assert_eq!(count, before + 30_000, "round {round}");
        assert_eq!(file.seek(SeekFrom::End(0)).expect("found"), count, "round {round}");
    }
}

/// New names are visible immediately, because a mount has no cached entry for a name that the mount
/// has never looked up.
fn new_names_are_visible_immediately(mounts: &Mounts) {
    for round in 0..60 {
        let name = format!("file-{round}");
        files::write(mounts.one.join(&name), "x");
        assert_eq!(files::read(mounts.other.join(&name)), b"x");
        files::create_dir(mounts.other.join(format!("directory-{round}")));
        assert!(mounts.one.join(format!("directory-{round}")).is_dir());
    }
}

/// If a program has the old file of a recreated name open, the program can still use the old file.
/// The kernel caches the name for a second, but each open looks up the name. docs/semantics.md 1.2.
fn recreated_name_opens_the_new_file(mounts: &Mounts) {
    for round in 0..20 {
        let name = format!("file-{round}");
        let (here, there) = (mounts.one.join(&name), mounts.other.join(&name));
        // The bytes of a short file are in metadata.
        let [old, new_bytes] = ["old", "new"].map(|it| it.repeat(1 + round % 8 / 4 * 10_000));
        files::write(&here, &old);
        let kept = (round % 2 == 0).then(|| files::open(&here));
        assert!(there.exists());
        files::remove_file(&here);
        let is_truncated = round % 4 < 2;
        let mut options = OpenOptions::new();
        let new = options
            .append(!is_truncated)
            .write(is_truncated)
            .truncate(is_truncated)
            .create(true)
            .open(&there);
        let mut new = new.expect("opened");
        new.write_all(new_bytes.as_bytes()).expect("written");
        drop(new);
        assert!(files::read(&here) == new_bytes.as_bytes(), "round {round}");
        if let Some(mut kept) = kept {
            let mut text = String::new();
            kept.read_to_string(&mut text).expect("read");
            assert!(text == old, "round {round}: the open old file has its bytes");
        }
    }
}

#[track_caller]
fn within_a_second(what: &str, is_seen: impl Fn() -> bool) {
    seen_within(what, STALENESS + MARGIN, is_seen);
}

/// docs/semantics.md 1.2 and 1.3.
fn cached_names_are_stale_for_at_most_a_second(mounts: &Mounts) {
    for round in 0..4 {
        let name = format!("file-{round}");
        let (here, there) = (mounts.one.join(&name), mounts.other.join(&name));
        files::write(&here, "x");
        assert!(there.exists());
        files::remove_file(&here);
        within_a_second("a removal", || !there.exists());
        files::write(&here, "y");
        assert!(there.exists(), "the mount does not cache the absence of a name");
        files::rename(&here, mounts.one.join("moved"));
        within_a_second("a rename", || !there.exists() && mounts.other.join("moved").exists());
    }
}

/// docs/semantics.md 1.2 and 1.10.
fn cached_attributes_are_stale_for_at_most_a_second(mounts: &Mounts) {
    let (here, there) = (mounts.one.join("file"), mounts.other.join("file"));
    files::write(&here, "x");
    for mode in [0o600, 0o777, 0o640] {
        assert!(there.exists());
        files::set_permissions(&here, fs::Permissions::from_mode(mode));
        within_a_second("a mode", || files::metadata(&there).mode() & 0o777 == mode);
        files::write_all(&files::open_with(OpenOptions::new().append(true), &here), b"12");
        let len = files::metadata(&here).len();
        within_a_second("a length", || files::metadata(&there).len() == len);
    }
}

/// Reads through an open handle need not return new bytes immediately (close-to-open consistency).
/// But after a second and another open of the file, these reads must return the new bytes. This
/// also holds if the kernel answers from the page cache. docs/semantics.md 2.3.
fn open_handle_reads_bytes_that_another_mount_synced(mounts: &Mounts) {
    let (here, there) = (mounts.one.join("file"), mounts.other.join("file"));
    files::write(&here, vec![1; 100_000]);
    let reader = files::open(&there);
    let mut bytes = vec![0; 100_000];
    files::read_exact_at(&reader, &mut bytes, 0);
    let writer = files::open_with(OpenOptions::new().write(true), &here);
    files::write_all_at(&writer, &[2; 5000], 40_000);
    files::sync_all(&writer);
    drop(writer);
    let again = files::open(&there);
    files::read_exact_at(&again, &mut bytes, 0);
    assert!(bytes[40_000..45_000].iter().all(|byte| *byte == 2));
    assert!(bytes[..40_000].iter().chain(&bytes[45_000..]).all(|byte| *byte == 1));
    drop(reader);
}

/// docs/semantics.md 2.9.
fn alternating_appends_of_both_mounts_lose_no_line(mounts: &Mounts) {
    // The bytes of the first log are in metadata, and the bytes of the second log on storage.
    for (name, repetitions) in [("short", 1), ("long", 3000)] {
        let lines = |round: usize| format!("round {round}\n").repeat(repetitions);
        for round in 0..40 {
            let place = if round % 2 == 0 { &mounts.one } else { &mounts.other };
            let path = place.join(name);
            let file = files::open_with(OpenOptions::new().append(true).create(true), path);
            files::write_all(&file, lines(round).as_bytes());
        }
        let expected: String = (0..40).map(lines).collect();
        for place in [&mounts.one, &mounts.other] {
            assert!(files::read_to_string(place.join(name)) == expected, "{name}");
        }
    }
}

/// docs/semantics.md 1.5.
fn counter_under_a_lock_file_loses_no_update(mounts: &Mounts) {
    let counter = mounts.one.join("counter");
    files::write(&counter, "0");
    let work = |place: &Path| {
        for _ in 0..30 {
            wait_for("the lock", Duration::from_secs(60), || {
                File::create_new(place.join("lock")).ok()
            });
            let text = files::read_to_string(place.join("counter"));
            let count: u32 = text.parse().expect("a number");
            files::write(place.join("counter"), format!("{}", count + 1));
            files::remove_file(place.join("lock"));
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| work(&mounts.one));
        scope.spawn(|| work(&mounts.other));
    });
    assert_eq!(files::read_to_string(&counter), "60");
}

/// docs/semantics.md 4.9.
fn open_handle_survives_removal_by_the_other_mount(mounts: &Mounts) {
    let bytes = Random::new(8).bytes(1_000_000);
    files::write(mounts.one.join("file"), &bytes);
    let file = files::open(mounts.other.join("file"));
    files::remove_file(mounts.one.join("file"));
    let mut found = vec![0; bytes.len()];
    file.read_exact_at(&mut found, 0).expect("an open file exists after its name is removed");
    assert!(found == bytes);
}

fn concurrent_renames_over_one_name_leave_one_file(mounts: &Mounts) {
    std::thread::scope(|scope| {
        for (index, place) in [&mounts.one, &mounts.other].into_iter().enumerate() {
            scope.spawn(move || {
                for round in 0..100 {
                    let own = place.join(format!("own-{index}"));
                    // The bytes of every second file and of the last file are on storage.
                    let lines = if round % 2 == 0 { 1000 } else { 5000 };
                    files::write(&own, format!("{index} {round}\n").repeat(lines));
                    files::rename(&own, place.join("shared"));
                }
            });
        }
    });
    for place in [&mounts.one, &mounts.other] {
        let text = files::read_to_string(place.join("shared"));
        let first = text.lines().next().expect("not empty");
        assert!(text.lines().count() == 5000 && text.lines().all(|line| line == first));
        let names = files::read_dir(place).count();
        assert_eq!(names, 1);
    }
}

/// docs/semantics.md 2.7.
fn truncation_by_the_other_mount_is_visible_at_the_next_open(mounts: &Mounts) {
    for round in 1..20_u64 {
        files::write(mounts.one.join("file"), vec![7; 1_500_000]);
        let len = round * 71_111;
        let file = files::open_with(OpenOptions::new().write(true), mounts.other.join("file"));
        files::set_len(&file, len);
        files::set_len(&file, 1_000_000);
        drop(file);
        let bytes = files::read(mounts.one.join("file"));
        assert_eq!(bytes.len(), 1_000_000);
        let cut = (len as usize).min(1_000_000);
        assert!(bytes[..cut].iter().all(|byte| *byte == 7), "round {round}");
        assert!(bytes[cut..].iter().all(|byte| *byte == 0), "round {round}");
    }
}

/// Setting the size of a file allocates no space, so the size may exceed the free space of the
/// disks. The test also sets sizes while a writer has the file open. In this state, metadata does
/// not have the lengths of the chunk files. docs/semantics.md 2.10.
fn file_size_may_exceed_the_free_space_of_the_disks(mounts: &Mounts) {
    let (here, there) = (mounts.one.join("file"), mounts.other.join("file"));
    let writer = files::create(&here);
    files::write_all_at(&writer, b"text", 0);
    for size in [1 << 50, i64::MAX as u64, 1 << 62, 1 << 44, 700_000, i64::MAX as u64, 6] {
        files::set_len(&writer, size);
        assert_eq!(files::metadata_of(&writer).len(), size);
        within_a_second("a size", || files::metadata(&there).len() == size);
    }
    writer.write_all_at(b"x", 1 << 62).expect_err("no disk holds it");
    drop(writer);
    assert_eq!(files::read(&there), b"text\0\0");
}

/// docs/semantics.md 2.2, for holes and copies.
fn holes_and_copies_are_visible_on_the_other_mount(mounts: &Mounts) {
    let mut expected = Random::new(8).bytes(3_000_000);
    files::write(mounts.one.join("file"), &expected);
    for round in 0..20_usize {
        let (here, there) = match round % 2 {
            0 => (&mounts.one, &mounts.other),
            _ => (&mounts.other, &mounts.one),
        };
        // Read on the other mount, so that its kernel caches the file's pages.
        assert!(files::read(there.join("file")) == expected, "round {round}");
        let path = here.join("file");
        let file = files::open_with(OpenOptions::new().read(true).write(true), path);
        let (start, length) = (round * 100_003, 70_001);
        let flags = FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE;
        files::fallocate(&file, flags, start as u64, length as u64);
        expected[start..start + length].fill(0);
        let (mut from, mut to) = (2_500_000_u64, start as u64 + 10_000);
        let copied = copy_file_range(&file, Some(&mut from), &file, Some(&mut to), 5000);
        assert_eq!(copied, Ok(5000));
        expected.copy_within(2_500_000..2_505_000, start + 10_000);
        drop(file);
        let found = files::open(there.join("file"));
        let sought = rustix::fs::SeekFrom::Hole(start as u64);
        let hole = rustix::fs::seek(&found, sought).expect("a hole");
        assert_eq!(hole, (start as u64).next_multiple_of(4096), "round {round}");
        assert!(files::read(there.join("file")) == expected, "round {round}");
    }
}

fn concurrent_writers_of_different_ranges_keep_all_bytes(mounts: &Mounts) {
    const PART: usize = 100_001;
    files::create(mounts.one.join("file"));
    std::thread::scope(|scope| {
        for (index, place) in [&mounts.one, &mounts.other].into_iter().enumerate() {
            scope.spawn(move || {
                let file = files::open_with(OpenOptions::new().write(true), place.join("file"));
                for part in (index..40).step_by(2) {
                    let bytes = vec![part as u8 + 1; PART];
                    files::write_all_at(&file, &bytes, (part * PART) as u64);
                }
                files::sync_all(&file);
            });
        }
    });
    for place in [&mounts.one, &mounts.other] {
        let bytes = files::read(place.join("file"));
        assert_eq!(bytes.len(), 40 * PART);
        for (part, found) in bytes.chunks_exact(PART).enumerate() {
            assert!(found.iter().all(|byte| usize::from(*byte) == part + 1), "part {part}");
        }
    }
}

fn both_mounts_list_the_same_entries(mounts: &Mounts) {
    std::thread::scope(|scope| {
        for (index, place) in [&mounts.one, &mounts.other].into_iter().enumerate() {
            scope.spawn(move || {
                for round in 0..300 {
                    files::write(place.join(format!("{index}-{round}")), "x");
                    if round % 3 == 0 {
                        files::remove_file(place.join(format!("{index}-{round}")));
                    }
                }
            });
        }
    });
    let names = |place: &Path| {
        let entries = files::read_dir(place);
        let mut names: Vec<_> = entries.map(|entry| entry.expect("an entry").file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&mounts.one).len(), 400);
    assert_eq!(names(&mounts.one), names(&mounts.other));
}

/// docs/semantics.md 1.4. Every second directory is on another metadata group than the replaced
/// name.
fn name_that_is_replaced_is_never_missing(mounts: &Mounts) {
    spread::create_dirs(&mounts.one, (0..8).map(|index| format!("from-{index}")));
    files::write(mounts.one.join("name"), "first");
    let (is_done, reads) = (AtomicBool::new(false), [AtomicU64::new(0), AtomicU64::new(0)]);
    std::thread::scope(|scope| {
        for (place, reads) in [&mounts.one, &mounts.other].into_iter().zip(&reads) {
            let is_done = &is_done;
            scope.spawn(move || {
                let (mut rounds, mut stale) = (0, 0);
                while !is_done.load(Ordering::Relaxed) {
                    match fs::read_to_string(place.join("name")) {
                        Ok(text) => assert!(
                            text.len() >= 5,
                            "the file was complete before its rename: {text}"
                        ),
                        Err(error) if error.kind() == ErrorKind::StaleNetworkFileHandle => {
                            stale += 1;
                        }
                        Err(error) => panic!("the name is never missing: {error}"),
                    }
                    rounds += 1;
                    reads.store(rounds, Ordering::Relaxed);
                }
                // docs/semantics.md 1.4 allows that an `open` fails with `ESTALE`, but such
                // failures must be rare.
                assert!(stale <= 2, "{stale} of {rounds} opens failed with ESTALE");
            });
        }
        let _end = EndGuard(&is_done);
        let begin = Instant::now();
        let has_read = || reads.iter().all(|it| it.load(Ordering::Relaxed) > 10);
        // On a busy host, the readers may need more rounds.
        for round in (0..).take_while(|round| *round < 400 || !has_read()) {
            assert!(begin.elapsed() < PATIENCE, "the readers do not go on");
            let new = mounts.one.join(format!("from-{}", round % 8)).join("new");
            // The bytes of every second file are on storage.
            files::write(&new, format!("round {round}").repeat(1 + round % 2 * 3000));
            files::rename(&new, mounts.one.join("name"));
        }
    });
}

/// docs/semantics.md 1.4. Both mounts exchange two names again and again. At any time, each name
/// must refer to one of the two files. The names are on different metadata groups.
fn names_that_are_exchanged_are_never_missing(mounts: &Mounts) {
    spread::create_dirs(&mounts.one, ["a", "b"]);
    for name in ["a", "b"] {
        files::write(mounts.one.join(name).join("it"), format!("made as {name}"));
    }
    let is_done = AtomicBool::new(false);
    let exchange = |place: &Path| {
        let (a, b) = (place.join("a/it"), place.join("b/it"));
        renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).expect("exchanged");
    };
    std::thread::scope(|scope| {
        let mut readers = Vec::new();
        for place in [&mounts.one, &mounts.other] {
            let is_done = &is_done;
            readers.push(scope.spawn(move || {
                let mut rounds = 0;
                while !is_done.load(Ordering::Relaxed) {
                    let text =
                        fs::read_to_string(place.join("a/it")).expect("the name is never missing");
                    assert!(text == "made as a" || text == "made as b", "{text}");
                    rounds += 1;
                }
                rounds
            }));
        }
        scope.spawn(|| (0..50).for_each(|_| exchange(&mounts.other))).join().expect("no panic");
        (0..51).for_each(|_| exchange(&mounts.one));
        is_done.store(true, Ordering::Relaxed);
        for reader in readers {
            assert!(reader.join().expect("no panic") > 10, "the reader has read often enough");
        }
    });
    // The mounts have exchanged the files an odd number of times.
    within_a_second("the last exchange", || {
        files::read(mounts.other.join("a/it")) == b"made as b"
            && files::read(mounts.other.join("b/it")) == b"made as a"
    });
}

/// docs/semantics.md 1.7. If two concurrent renames together would create a loop, metadata refuses
/// one of the two renames. The two directories are on different metadata groups.
fn directories_moved_into_each_other_stay_a_tree(mounts: &Mounts) {
    const ROUNDS: usize = 25;
    create_spread_rounds(&mounts.one, ROUNDS, &["a", "b"]);
    for round in 0..ROUNDS {
        let top = mounts.one.join(format!("round-{round}"));
        for name in ["a", "b"] {
            files::create_dir_all(top.join(name).join("below"));
        }
        let there = mounts.other.join(format!("round-{round}"));
        let move_into = |top: &Path, what: &str, into: &str| {
            fs::rename(top.join(what), top.join(into).join("below").join(what))
        };
        let results = std::thread::scope(|scope| {
            let one = scope.spawn(|| move_into(&top, "a", "b"));
            let other = scope.spawn(|| move_into(&there, "b", "a"));
            [one.join().expect("no panic"), other.join().expect("no panic")]
        });
        let moved = results.iter().filter(|result| result.is_ok()).count();
        assert_eq!(moved, 1, "round {round}: {results:?}");
        let (outer, inner) = if results[0].is_ok() { ("b", "a") } else { ("a", "b") };
        within_a_second("the tree", || {
            let path = top.join(outer).join("below").join(inner).join("below");
            path.is_dir() && files::read_dir(&top).count() == 1
        });
    }
}

/// Creates the directories `round-0`, `round-1`, ... in `place`, and the directories `names` in
/// each round directory. Neighbours in the list of all created directories are on different
/// metadata groups.
fn create_spread_rounds(place: &Path, rounds: usize, names: &[&str]) {
    for round in 0..rounds {
        files::create_dir(place.join(format!("round-{round}")));
    }
    let all = (0..rounds).flat_map(|round| {
        names.iter().map(move |name| Path::new(&format!("round-{round}")).join(name))
    });
    spread::create_dirs(place, all);
}

/// docs/semantics.md 1.8.
fn inode_numbers_are_never_reused(mounts: &Mounts) {
    let mut seen = HashSet::new();
    for round in 0..100 {
        let place = if round % 2 == 0 { &mounts.one } else { &mounts.other };
        let path = place.join(format!("file-{round}"));
        files::write(&path, "x");
        assert!(seen.insert(files::metadata(&path).ino()), "round {round}");
        files::remove_file(&path);
    }
}

/// docs/semantics.md 2.5. The bytes of one file are in metadata, and the bytes of the other file
/// are on storage.
fn each_page_has_the_bytes_of_exactly_one_concurrent_writer(mounts: &Mounts) {
    for (name, pages) in [("small", 3), ("large", 9)] {
        write_one_page_on_both_mounts(mounts, name, pages);
    }
}

/// Both mounts overwrite the second page of a file, while the test reads the page.
fn write_one_page_on_both_mounts(mounts: &Mounts, name: &str, pages: usize) {
    const PAGE: usize = 4096;
    files::write(mounts.one.join(name), vec![0; pages * PAGE]);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (index, place) in [&mounts.one, &mounts.other].into_iter().enumerate() {
            let is_done = &is_done;
            scope.spawn(move || {
                let file = files::open_with(OpenOptions::new().write(true), place.join(name));
                let mut round = 0;
                while !is_done.load(Ordering::Relaxed) {
                    let page = [(2 * round + index) as u8; PAGE];
                    files::write_all_at(&file, &page, PAGE as u64);
                    round += 1;
                }
            });
        }
        let looked = std::panic::catch_unwind(|| {
            for _ in 0..200 {
                // Open the file each time, because a new open reads the current contents, and not
                // cached contents.
                let bytes = files::read(mounts.other.join(name));
                let page = &bytes[PAGE..2 * PAGE];
                assert!(
                    page.iter().all(|byte| *byte == page[0]),
                    "the page has bytes of one write only"
                );
            }
        });
        is_done.store(true, Ordering::Relaxed);
        assert!(looked.is_ok(), "a check of the page failed");
    });
}

/// docs/semantics.md 1.6. rsync and tar set the modification time of a directory back to its old
/// value.
fn listing_has_new_entries_after_the_directory_time_is_reset(mounts: &Mounts) {
    let time = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let directory = |path: &PathBuf| path.join("directory");
    files::create_dir(directory(&mounts.one));
    for round in 0..4 {
        let (here, there) = match round % 2 {
            0 => (directory(&mounts.one), directory(&mounts.other)),
            _ => (directory(&mounts.other), directory(&mounts.one)),
        };
        File::open(&here).and_then(|it| it.set_modified(time)).or_fail("set_modified", &here);
        let count = || files::read_dir(&there).count();
        within_a_second("the time", || {
            count() == round && files::metadata(&there).modified().ok() == Some(time)
        });
        files::write(here.join(format!("file-{round}")), "x");
        File::open(&here).and_then(|it| it.set_modified(time)).or_fail("set_modified", &here);
        within_a_second("a new entry", || count() == round + 1);
    }
}

/// docs/semantics.md 1.2, with `attribute_timeout=0`.
fn changes_are_visible_immediately_without_caching(mounts: &Mounts) {
    let (here, there) = (mounts.one.join("file"), mounts.at_once.join("file"));
    for round in 0..50 {
        assert!(!there.exists(), "round {round}");
        files::write(&here, "x");
        assert_eq!(files::metadata(&there).len(), 1);
        files::set_permissions(&here, fs::Permissions::from_mode(0o600 + round));
        assert_eq!(files::metadata(&there).mode() & 0o777, 0o600 + round);
        files::write_all(&files::open_with(OpenOptions::new().append(true), &here), b"12");
        assert_eq!(files::metadata(&there).len(), 3);
        files::rename(&here, mounts.one.join("moved"));
        assert!(!there.exists() && mounts.at_once.join("moved").exists());
    }
}

/// docs/semantics.md 2.4.
fn reported_sizes_are_visible_on_other_mounts(mounts: &Mounts) {
    // The bytes of the first file are in metadata, and the bytes of the second file on storage.
    for len in [1000_u64, 20_000] {
        let name = format!("file-{len}");
        let (here, there) = (mounts.one.join(&name), mounts.other.join(&name));
        let file = files::create(&here);
        let is_seen = |len| files::metadata(&there).len() == len;
        let bytes = vec![1_u8; len as usize];
        files::write_all_at(&file, &bytes, 0);
        files::sync_all(&file);
        within_a_second("a size after fsync", || is_seen(len));
        files::write_all_at(&file, &bytes, len);
        assert_eq!(files::metadata_of(&file).len(), 2 * len);
        within_a_second("a size after the writer's stat", || is_seen(2 * len));
        files::write_all_at(&file, &bytes, 2 * len);
        drop(file);
        within_a_second("a size after close", || is_seen(3 * len));
    }
}

/// Runs each case in a directory of its own. `place` is the first part of the case names.
fn run_all(
    suite: &mut Suite,
    place: &str,
    tables: &[&[Case<Mounts>]],
    [first, second, third]: [&Path; 3],
) {
    for case in tables.iter().copied().flatten() {
        let name = format!("{place}-{}", case.name.replace("::", "-"));
        let mounts = Mounts {
            one: first.join(&name),
            other: second.join(&name),
            at_once: third.join(&name),
        };
        suite.check("a directory for each test", || {
            files::create_dir(&mounts.one);
        });
        suite.run(place, &[&[Case { name: case.name, body: case.body }]], &mounts);
    }
}

fn main() -> ExitCode {
    let mut suite = Suite::from_arguments();
    let (place, staged) = ("uring-and-device", "feature-level-2");
    let all = [
        CASES,
        attributes::CASES,
        kernel::CASES,
        races::CASES,
        shared::CASES,
        small_files::CASES,
        statements::CASES,
        two_groups::CASES,
        versions::CASES,
    ];
    let has_level_1 = suite.starts(place, &all);
    let has_level_2 = suite.starts(staged, &[two_groups::CASES]);
    if has_level_1 || has_level_2 {
        let mut cluster = Cluster::start(Shape::default());
        let second = cluster.mount(Transport::Device);
        let third = cluster.mount_with(Transport::Uring, "attribute_timeout=0");
        let mounts = [cluster.path(), second.path(), third.path()];
        run_all(&mut suite, place, &all, mounts);
        if has_level_2 {
            suite.check("the feature level rises while the cluster is in use", || {
                cluster.raise_feature_level(STAGING);
            });
            run_all(&mut suite, staged, &[two_groups::CASES], mounts);
        }
        suite.check("the other mounts end", || {
            second.unmount();
            third.unmount();
        });
        suite.check("the cluster stops", || cluster.stop_checked(&[]));
    }
    suite.end()
}
