//! Two mounts of one cluster, over different transports: what one has completed, the other sees.
//! Data from close to open, names and attributes within a second.

mod attributes;
mod kernel;
mod races;
mod shared;
mod statements;
mod versions;

use rustix::fs::{CWD, FallocateFlags, RenameFlags, copy_file_range, fallocate, renameat_with};
use skep_testkit::suite::{Case, Suite};
use skep_testkit::{Cluster, Random, Shape, Transport, seen_within, wait_for};
use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The same directory, through two mounts.
struct Mounts {
    one: PathBuf,
    other: PathBuf,
    /// Through a third, which keeps nothing of names and attributes.
    at_once: PathBuf,
}

const CASES: &[Case<Mounts>] = skep_testkit::cases![coherence:
    what_was_closed_is_seen_by_who_opens, its_length_is_seen_by_who_opens,
    new_names_are_seen_at_once, a_name_that_was_removed_leads_to_a_new_file,
    known_names_are_stale_for_a_second_at_most, attributes_are_stale_for_a_second_at_most,
    an_open_handle_sees_what_was_synced, appends_of_both_in_turns, locks_by_exclusive_creation,
    removed_under_an_open_handle, renames_over_each_other, truncated_by_the_other,
    truncated_to_what_no_disk_holds,
    punched_and_copied_by_the_other,
    writers_of_different_parts, listings_agree,
    listings_are_new_though_times_were_set_back, what_is_not_kept_is_seen_at_once,
    a_name_that_is_replaced_is_never_missing,
    names_that_are_exchanged_are_never_missing,
    directories_moved_into_each_other_stay_a_tree, numbers_of_files_are_never_used_again,
    pages_of_several_writers_are_whole, sizes_are_seen_when_the_writer_says_so,
];

/// Names and attributes may be this old, and a little for the machine's own delays.
const STALENESS: Duration = Duration::from_millis(1000);
const MARGIN: Duration = Duration::from_millis(300);

/// Semantics 2.2.
fn what_was_closed_is_seen_by_who_opens(mounts: &Mounts) {
    let mut random = Random::new(3);
    for round in 0..60 {
        let (from, to) = if round % 2 == 0 {
            (&mounts.one, &mounts.other)
        } else {
            (&mounts.other, &mounts.one)
        };
        let len = [0, 10, 4096, 600_000, 2_000_000][random.below(5)];
        let bytes = random.bytes(len);
        fs::write(from.join("file"), &bytes).expect("written");
        // Opening looks at the attributes anew; who opened sees everything.
        let found = fs::read(to.join("file")).expect("read");
        assert!(found == bytes, "round {round}: {} bytes, not {len}", found.len());
    }
}

/// Also by programs that don't ask for it: the kernel reads no further than the length it knows.
/// (`fs::read` asks, and for the time of creation as well, which the kernel never remembers.)
/// Semantics 2.2.
fn its_length_is_seen_by_who_opens(mounts: &Mounts) {
    let mut found = vec![0; 1_000_000];
    for round in 0..30_u64 {
        let (from, to) = if round % 2 == 0 {
            (&mounts.one, &mounts.other)
        } else {
            (&mounts.other, &mounts.one)
        };
        let name = format!("file-{}", round / 6);
        let append = |bytes: &[u8]| {
            let file = OpenOptions::new().append(true).create(true).open(from.join(&name));
            file.expect("opened").write_all(bytes).expect("written");
        };
        append(&[1; 10]);
        // The kernel remembers these attributes for a second.
        let before = fs::metadata(to.join(&name)).expect("there").len();
        append(&[2; 30_000]);
        let mut file = File::open(to.join(&name)).expect("opened");
        let count = file.read(&mut found).expect("read") as u64;
        assert_eq!(count, before + 30_000, "round {round}");
        assert_eq!(file.seek(SeekFrom::End(0)).expect("found"), count, "round {round}");
    }
}

/// A name that a mount never asked for isn't cached there.
fn new_names_are_seen_at_once(mounts: &Mounts) {
    for round in 0..60 {
        let name = format!("file-{round}");
        fs::write(mounts.one.join(&name), "x").expect("written");
        assert_eq!(fs::read(mounts.other.join(&name)).expect("seen"), b"x");
        fs::create_dir(mounts.other.join(format!("directory-{round}"))).expect("made");
        assert!(mounts.one.join(format!("directory-{round}")).is_dir());
    }
}

/// Whoever has the old file open. Its name is remembered for a second, but not opened.
/// Semantics 1.2.
fn a_name_that_was_removed_leads_to_a_new_file(mounts: &Mounts) {
    for round in 0..20 {
        let name = format!("file-{round}");
        let (here, there) = (mounts.one.join(&name), mounts.other.join(&name));
        fs::write(&here, "old").expect("written");
        let kept = (round % 2 == 0).then(|| File::open(&here).expect("opened"));
        assert!(there.exists());
        fs::remove_file(&here).expect("removed");
        let is_truncated = round % 4 < 2;
        let mut options = OpenOptions::new();
        let new = options
            .append(!is_truncated)
            .write(is_truncated)
            .truncate(is_truncated)
            .create(true)
            .open(&there);
        let mut new = new.expect("opened");
        new.write_all(b"new").expect("written");
        drop(new);
        assert_eq!(fs::read(&here).expect("it has a name"), b"new", "round {round}");
        if let Some(mut kept) = kept {
            let mut text = String::new();
            kept.read_to_string(&mut text).expect("read");
            assert_eq!(text, "old", "round {round}: what is still open isn't cut");
        }
    }
}

#[track_caller]
fn within_a_second(what: &str, is_seen: impl Fn() -> bool) {
    seen_within(what, STALENESS + MARGIN, is_seen);
}

/// Semantics 1.2 and 1.3.
fn known_names_are_stale_for_a_second_at_most(mounts: &Mounts) {
    for round in 0..4 {
        let name = format!("file-{round}");
        let (here, there) = (mounts.one.join(&name), mounts.other.join(&name));
        fs::write(&here, "x").expect("written");
        assert!(there.exists());
        fs::remove_file(&here).expect("removed");
        within_a_second("a removal", || !there.exists());
        fs::write(&here, "y").expect("written");
        assert!(there.exists(), "that there was nothing isn't remembered");
        fs::rename(&here, mounts.one.join("moved")).expect("renamed");
        within_a_second("a rename", || !there.exists() && mounts.other.join("moved").exists());
    }
}

/// Semantics 1.2 and 1.10.
fn attributes_are_stale_for_a_second_at_most(mounts: &Mounts) {
    let (here, there) = (mounts.one.join("file"), mounts.other.join("file"));
    fs::write(&here, "x").expect("written");
    for mode in [0o600, 0o777, 0o640] {
        assert!(there.exists());
        fs::set_permissions(&here, fs::Permissions::from_mode(mode)).expect("changed");
        within_a_second("a mode", || fs::metadata(&there).expect("there").mode() & 0o777 == mode);
        OpenOptions::new().append(true).open(&here).expect("opened").write_all(b"12").expect("ok");
        let len = fs::metadata(&here).expect("there").len();
        within_a_second("a length", || fs::metadata(&there).expect("there").len() == len);
    }
}

/// Who has a file open needn't see changes (close-to-open), but after a second and with another
/// open the bytes must be the new ones also through the page cache.
/// Semantics 2.3.
fn an_open_handle_sees_what_was_synced(mounts: &Mounts) {
    let (here, there) = (mounts.one.join("file"), mounts.other.join("file"));
    fs::write(&here, vec![1; 100_000]).expect("written");
    let reader = File::open(&there).expect("opened");
    let mut bytes = vec![0; 100_000];
    reader.read_exact_at(&mut bytes, 0).expect("read");
    let writer = OpenOptions::new().write(true).open(&here).expect("opened");
    writer.write_all_at(&[2; 5000], 40_000).expect("written");
    writer.sync_all().expect("synced");
    drop(writer);
    let again = File::open(&there).expect("opened");
    again.read_exact_at(&mut bytes, 0).expect("read");
    assert!(bytes[40_000..45_000].iter().all(|byte| *byte == 2));
    assert!(bytes[..40_000].iter().chain(&bytes[45_000..]).all(|byte| *byte == 1));
    drop(reader);
}

/// Semantics 2.9.
fn appends_of_both_in_turns(mounts: &Mounts) {
    for round in 0..40 {
        let place = if round % 2 == 0 { &mounts.one } else { &mounts.other };
        let path = place.join("log");
        let mut file = OpenOptions::new().append(true).create(true).open(path).expect("opened");
        file.write_all(format!("round {round}\n").as_bytes()).expect("written");
    }
    let expected: String = (0..40).map(|round| format!("round {round}\n")).collect();
    assert_eq!(fs::read_to_string(mounts.one.join("log")).expect("read"), expected);
    assert_eq!(fs::read_to_string(mounts.other.join("log")).expect("read"), expected);
}

/// Semantics 1.5.
fn locks_by_exclusive_creation(mounts: &Mounts) {
    let counter = mounts.one.join("counter");
    fs::write(&counter, "0").expect("written");
    let work = |place: &Path| {
        for _ in 0..30 {
            wait_for("the lock", Duration::from_secs(60), || {
                File::create_new(place.join("lock")).ok()
            });
            let text = fs::read_to_string(place.join("counter")).expect("read");
            let count: u32 = text.parse().expect("a number");
            fs::write(place.join("counter"), format!("{}", count + 1)).expect("written");
            fs::remove_file(place.join("lock")).expect("removed");
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| work(&mounts.one));
        scope.spawn(|| work(&mounts.other));
    });
    assert_eq!(fs::read_to_string(&counter).expect("read"), "60");
}

/// Semantics 4.9.
fn removed_under_an_open_handle(mounts: &Mounts) {
    let bytes = Random::new(8).bytes(1_000_000);
    fs::write(mounts.one.join("file"), &bytes).expect("written");
    let file = File::open(mounts.other.join("file")).expect("opened");
    fs::remove_file(mounts.one.join("file")).expect("removed");
    let mut found = vec![0; bytes.len()];
    file.read_exact_at(&mut found, 0).expect("still there for who has it open");
    assert!(found == bytes);
}

fn renames_over_each_other(mounts: &Mounts) {
    std::thread::scope(|scope| {
        for (index, place) in [&mounts.one, &mounts.other].into_iter().enumerate() {
            scope.spawn(move || {
                for round in 0..100 {
                    let own = place.join(format!("own-{index}"));
                    fs::write(&own, format!("{index} {round}\n").repeat(1000)).expect("written");
                    fs::rename(&own, place.join("shared")).expect("renamed");
                }
            });
        }
    });
    for place in [&mounts.one, &mounts.other] {
        let text = fs::read_to_string(place.join("shared")).expect("read");
        let first = text.lines().next().expect("not empty");
        assert!(text.lines().count() == 1000 && text.lines().all(|line| line == first));
        let names = fs::read_dir(place).expect("listed").count();
        assert_eq!(names, 1);
    }
}

/// Semantics 2.7.
fn truncated_by_the_other(mounts: &Mounts) {
    for round in 1..20_u64 {
        fs::write(mounts.one.join("file"), vec![7; 1_500_000]).expect("written");
        let len = round * 71_111;
        let file = OpenOptions::new().write(true).open(mounts.other.join("file")).expect("opened");
        file.set_len(len).expect("truncated");
        file.set_len(1_000_000).expect("grown");
        drop(file);
        let bytes = fs::read(mounts.one.join("file")).expect("read");
        assert_eq!(bytes.len(), 1_000_000);
        let cut = (len as usize).min(1_000_000);
        assert!(bytes[..cut].iter().all(|byte| *byte == 7), "round {round}");
        assert!(bytes[cut..].iter().all(|byte| *byte == 0), "round {round}");
    }
}

/// A size is a number: no disk under it need have space for it. Also while a writer has the file
/// open, when nobody knows how far its chunk files reach.
/// Semantics 2.10.
fn truncated_to_what_no_disk_holds(mounts: &Mounts) {
    let (here, there) = (mounts.one.join("file"), mounts.other.join("file"));
    let writer = File::create(&here).expect("made");
    writer.write_all_at(b"text", 0).expect("written");
    for size in [1 << 50, i64::MAX as u64, 1 << 62, 1 << 44, 700_000, i64::MAX as u64, 6] {
        writer.set_len(size).expect("taken");
        assert_eq!(writer.metadata().expect("there").len(), size);
        within_a_second("a size", || fs::metadata(&there).expect("there").len() == size);
    }
    writer.write_all_at(b"x", 1 << 62).expect_err("no disk holds it");
    drop(writer);
    assert_eq!(fs::read(&there).expect("read"), b"text\0\0");
}

/// Semantics 2.2, for holes and copies.
fn punched_and_copied_by_the_other(mounts: &Mounts) {
    let mut expected = Random::new(8).bytes(3_000_000);
    fs::write(mounts.one.join("file"), &expected).expect("written");
    for round in 0..20_usize {
        let (here, there) = match round % 2 {
            0 => (&mounts.one, &mounts.other),
            _ => (&mounts.other, &mounts.one),
        };
        // What it holds is in the page cache of the other.
        assert!(fs::read(there.join("file")).expect("read") == expected, "round {round}");
        let path = here.join("file");
        let file = OpenOptions::new().read(true).write(true).open(path).expect("opened");
        let (start, length) = (round * 100_003, 70_001);
        let flags = FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE;
        fallocate(&file, flags, start as u64, length as u64).expect("punched");
        expected[start..start + length].fill(0);
        let (mut from, mut to) = (2_500_000_u64, start as u64 + 10_000);
        let copied = copy_file_range(&file, Some(&mut from), &file, Some(&mut to), 5000);
        assert_eq!(copied, Ok(5000));
        expected.copy_within(2_500_000..2_505_000, start + 10_000);
        drop(file);
        let found = File::open(there.join("file")).expect("opened");
        let sought = rustix::fs::SeekFrom::Hole(start as u64);
        let hole = rustix::fs::seek(&found, sought).expect("a hole");
        assert_eq!(hole, (start as u64).next_multiple_of(4096), "round {round}");
        assert!(fs::read(there.join("file")).expect("read") == expected, "round {round}");
    }
}

fn writers_of_different_parts(mounts: &Mounts) {
    const PART: usize = 100_001;
    File::create(mounts.one.join("file")).expect("made");
    std::thread::scope(|scope| {
        for (index, place) in [&mounts.one, &mounts.other].into_iter().enumerate() {
            scope.spawn(move || {
                let file = OpenOptions::new().write(true).open(place.join("file")).expect("opened");
                for part in (index..40).step_by(2) {
                    let bytes = vec![part as u8 + 1; PART];
                    file.write_all_at(&bytes, (part * PART) as u64).expect("written");
                }
                file.sync_all().expect("synced");
            });
        }
    });
    for place in [&mounts.one, &mounts.other] {
        let bytes = fs::read(place.join("file")).expect("read");
        assert_eq!(bytes.len(), 40 * PART);
        for (part, found) in bytes.chunks_exact(PART).enumerate() {
            assert!(found.iter().all(|byte| usize::from(*byte) == part + 1), "part {part}");
        }
    }
}

fn listings_agree(mounts: &Mounts) {
    std::thread::scope(|scope| {
        for (index, place) in [&mounts.one, &mounts.other].into_iter().enumerate() {
            scope.spawn(move || {
                for round in 0..300 {
                    fs::write(place.join(format!("{index}-{round}")), "x").expect("written");
                    if round % 3 == 0 {
                        fs::remove_file(place.join(format!("{index}-{round}"))).expect("removed");
                    }
                }
            });
        }
    });
    let names = |place: &Path| {
        let entries = fs::read_dir(place).expect("listed");
        let mut names: Vec<_> = entries.map(|entry| entry.expect("an entry").file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&mounts.one).len(), 400);
    assert_eq!(names(&mounts.one), names(&mounts.other));
}

/// Semantics 1.4: also between directories, which may lie on different metadata targets.
fn a_name_that_is_replaced_is_never_missing(mounts: &Mounts) {
    for index in 0..8 {
        fs::create_dir(mounts.one.join(format!("from-{index}"))).expect("made");
    }
    fs::write(mounts.one.join("name"), "first").expect("written");
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut readers = Vec::new();
        for place in [&mounts.one, &mounts.other] {
            let is_done = &is_done;
            readers.push(scope.spawn(move || {
                let mut rounds = 0;
                while !is_done.load(Ordering::Relaxed) {
                    match fs::read_to_string(place.join("name")) {
                        Ok(text) => assert!(text.len() >= 5, "whole when it got the name: {text}"),
                        // Replaced twice while it was being opened.
                        Err(error) if error.kind() == ErrorKind::StaleNetworkFileHandle => {}
                        Err(error) => panic!("never missing: {error}"),
                    }
                    rounds += 1;
                }
                rounds
            }));
        }
        for round in 0..400 {
            let new = mounts.one.join(format!("from-{}", round % 8)).join("new");
            fs::write(&new, format!("round {round}")).expect("written");
            fs::rename(&new, mounts.one.join("name")).expect("renamed");
        }
        is_done.store(true, Ordering::Relaxed);
        for reader in readers {
            assert!(reader.join().expect("no panic") > 10, "it looked often enough");
        }
    });
}

/// Semantics 1.4. Two names swap what they have, from both mounts: each always has one of the two.
fn names_that_are_exchanged_are_never_missing(mounts: &Mounts) {
    for name in ["a", "b"] {
        fs::create_dir(mounts.one.join(name)).expect("made");
        fs::write(mounts.one.join(name).join("it"), format!("made as {name}")).expect("written");
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
                    let text = fs::read_to_string(place.join("a/it")).expect("never missing");
                    assert!(text == "made as a" || text == "made as b", "{text}");
                    rounds += 1;
                }
                rounds
            }));
        }
        scope.spawn(|| (0..150).for_each(|_| exchange(&mounts.other))).join().expect("no panic");
        (0..151).for_each(|_| exchange(&mounts.one));
        is_done.store(true, Ordering::Relaxed);
        for reader in readers {
            assert!(reader.join().expect("no panic") > 10, "it looked often enough");
        }
    });
    // An odd number of times.
    within_a_second("the last exchange", || {
        fs::read(mounts.other.join("a/it")).expect("there") == b"made as b"
            && fs::read(mounts.other.join("b/it")).expect("there") == b"made as a"
    });
}

/// Semantics 1.7: of two renames that would together make a loop, one is refused.
fn directories_moved_into_each_other_stay_a_tree(mounts: &Mounts) {
    for round in 0..60 {
        let top = mounts.one.join(format!("round-{round}"));
        for name in ["a", "b"] {
            fs::create_dir_all(top.join(name).join("below")).expect("made");
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
            path.is_dir() && fs::read_dir(&top).expect("listed").count() == 1
        });
    }
}

/// Semantics 1.8.
fn numbers_of_files_are_never_used_again(mounts: &Mounts) {
    let mut seen = HashSet::new();
    for round in 0..100 {
        let place = if round % 2 == 0 { &mounts.one } else { &mounts.other };
        let path = place.join(format!("file-{round}"));
        fs::write(&path, "x").expect("written");
        assert!(seen.insert(fs::metadata(&path).expect("there").ino()), "round {round}");
        fs::remove_file(&path).expect("removed");
    }
}

/// Semantics 2.5.
fn pages_of_several_writers_are_whole(mounts: &Mounts) {
    const PAGE: usize = 4096;
    fs::write(mounts.one.join("file"), [0; 3 * PAGE]).expect("written");
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (index, place) in [&mounts.one, &mounts.other].into_iter().enumerate() {
            let is_done = &is_done;
            scope.spawn(move || {
                let path = place.join("file");
                let file = OpenOptions::new().write(true).open(path).expect("opened");
                let mut round = 0;
                while !is_done.load(Ordering::Relaxed) {
                    let page = [(2 * round + index) as u8; PAGE];
                    file.write_all_at(&page, PAGE as u64).expect("written");
                    round += 1;
                }
            });
        }
        let looked = std::panic::catch_unwind(|| {
            for _ in 0..200 {
                // An open that comes later sees all that is there, not what the cache has.
                let bytes = fs::read(mounts.other.join("file")).expect("read");
                let page = &bytes[PAGE..2 * PAGE];
                assert!(page.iter().all(|byte| *byte == page[0]), "of one write alone");
            }
        });
        is_done.store(true, Ordering::Relaxed);
        assert!(looked.is_ok(), "see above");
    });
}

/// Semantics 1.6: as rsync and tar leave a directory, with the modification time of before.
fn listings_are_new_though_times_were_set_back(mounts: &Mounts) {
    let time = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let directory = |path: &PathBuf| path.join("directory");
    fs::create_dir(directory(&mounts.one)).expect("made");
    for round in 0..4 {
        let (here, there) = match round % 2 {
            0 => (directory(&mounts.one), directory(&mounts.other)),
            _ => (directory(&mounts.other), directory(&mounts.one)),
        };
        File::open(&here).and_then(|it| it.set_modified(time)).expect("set");
        let count = || fs::read_dir(&there).expect("listed").count();
        within_a_second("the time", || {
            count() == round && fs::metadata(&there).expect("there").modified().ok() == Some(time)
        });
        fs::write(here.join(format!("file-{round}")), "x").expect("written");
        File::open(&here).and_then(|it| it.set_modified(time)).expect("set");
        within_a_second("a new entry", || count() == round + 1);
    }
}

/// Semantics 1.2, with `attribute_timeout=0`.
fn what_is_not_kept_is_seen_at_once(mounts: &Mounts) {
    let (here, there) = (mounts.one.join("file"), mounts.at_once.join("file"));
    for round in 0..50 {
        assert!(!there.exists(), "round {round}");
        fs::write(&here, "x").expect("written");
        assert_eq!(fs::metadata(&there).expect("seen").len(), 1);
        fs::set_permissions(&here, fs::Permissions::from_mode(0o600 + round)).expect("changed");
        assert_eq!(fs::metadata(&there).expect("seen").mode() & 0o777, 0o600 + round);
        OpenOptions::new().append(true).open(&here).expect("opened").write_all(b"12").expect("ok");
        assert_eq!(fs::metadata(&there).expect("seen").len(), 3);
        fs::rename(&here, mounts.one.join("moved")).expect("renamed");
        assert!(!there.exists() && mounts.at_once.join("moved").exists());
    }
}

/// Semantics 2.4.
fn sizes_are_seen_when_the_writer_says_so(mounts: &Mounts) {
    let (here, there) = (mounts.one.join("file"), mounts.other.join("file"));
    let file = File::create(&here).expect("made");
    let is_seen = |len| fs::metadata(&there).expect("there").len() == len;
    file.write_all_at(&[1; 1000], 0).expect("written");
    file.sync_all().expect("synced");
    within_a_second("a size after fsync", || is_seen(1000));
    file.write_all_at(&[1; 1000], 1000).expect("written");
    assert_eq!(file.metadata().expect("there").len(), 2000);
    within_a_second("a size after the writer's stat", || is_seen(2000));
    file.write_all_at(&[1; 1000], 2000).expect("written");
    drop(file);
    within_a_second("a size after close", || is_seen(3000));
}

fn main() -> ExitCode {
    let mut suite = Suite::from_arguments();
    let place = "uring-and-device";
    let all = [
        CASES,
        attributes::CASES,
        kernel::CASES,
        races::CASES,
        shared::CASES,
        statements::CASES,
        versions::CASES,
    ];
    if suite.starts(place, &all) {
        let mut cluster = Cluster::start(Shape::default());
        let second = cluster.mount(Transport::Device);
        let third = cluster.mount_with(Transport::Uring, "attribute_timeout=0");
        for case in all.into_iter().flatten() {
            let name = case.name.replace("::", "-");
            let mounts = Mounts {
                one: cluster.path().join(&name),
                other: second.path().join(&name),
                at_once: third.path().join(&name),
            };
            suite.check("a directory for each test", || {
                fs::create_dir(&mounts.one).expect("a directory");
            });
            suite.run(place, &[&[Case { name: case.name, body: case.body }]], &mounts);
        }
        suite.check("the other mounts end", || {
            second.unmount();
            third.unmount();
        });
        suite.check("the cluster stops", || cluster.stop());
    }
    suite.end()
}
