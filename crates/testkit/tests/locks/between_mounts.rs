//! Locks of programs on two mounts, while no process dies.

use crate::Mounts;
use crate::program::Program;
use rustix::fs::{CWD, Mode, mkfifoat};
use skep_testkit::files;
use skep_testkit::suite::Case;
use skep_testkit::view::Typed;
use skep_testkit::{PATIENCE, cluster, wait_for};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub(crate) const CASES: &[Case<Mounts>] = skep_testkit::cases![locks:
    lock_excludes_programs_on_all_mounts,
    posix_locks_conflict_with_ofd_locks_but_not_with_flock,
    lock_wait_ends_when_the_lock_is_free,
    signal_ends_a_lock_wait,
    locked_ranges_split_merge_and_change_their_mode,
    closing_releases_posix_locks,
    flock_and_ofd_locks_last_until_the_last_close,
    lock_that_would_close_a_deadlock_cycle_is_refused,
    counter_under_locks_loses_no_update,
    each_of_many_waiters_gets_the_lock,
    lock_owner_has_at_most_1024_ranges,
    getlk_names_the_holder_on_the_same_mount,
    waiters_get_the_lock_in_order_of_arrival,
    readers_wait_a_second_after_overtaking_a_writer_64_times,
    grantable_lock_is_not_blocked_by_queued_waiters,
    each_worker_of_a_mount_serves_256_lock_waits,
    deadlocks_across_files_and_of_open_file_locks_are_refused,
    deadlock_across_metadata_targets_is_refused,
    locks_on_special_files_are_local_to_the_mount,
];

pub(crate) const KINDS: [&str; 3] = ["posix", "ofd", "flock"];
/// docs/semantics.md 6.1.
fn lock_excludes_programs_on_all_mounts(mounts: &Mounts) {
    mounts.both_ways(|here, there| {
        let (mut holder, mut other) = (Program::on(here), Program::on(there));
        let mut neighbour = Program::on(here);
        for kind in KINDS {
            assert_eq!(holder.try_lock(kind, "exclusive"), "ok");
            for mode in ["shared", "exclusive"] {
                assert_eq!(other.try_lock(kind, mode), "EAGAIN", "{kind}");
                assert_eq!(neighbour.try_lock(kind, mode), "EAGAIN", "{kind}");
            }
            assert_eq!(holder.try_lock(kind, "shared"), "ok");
            assert_eq!(other.try_lock(kind, "exclusive"), "EAGAIN");
            assert_eq!(other.try_lock(kind, "shared"), "ok");
            assert_eq!(holder.try_lock(kind, "exclusive"), "EAGAIN");
            holder.unlock(kind);
            assert_eq!(other.try_lock(kind, "exclusive"), "ok");
            assert_eq!(neighbour.try_lock(kind, "shared"), "EAGAIN");
            other.unlock(kind);
            assert_eq!(neighbour.try_lock(kind, "shared"), "ok");
            neighbour.unlock(kind);
        }
    });
}

/// The kernel itself handles locks on special files. If this test fails because a newer kernel
/// forwards these locks to FUSE, docs/semantics.md needs a new statement.
///
/// docs/semantics.md 6.1.
fn locks_on_special_files_are_local_to_the_mount(mounts: &Mounts) {
    let beside = |path: &Path, ending: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(ending);
        PathBuf::from(name)
    };
    files::create_dir(beside(&mounts.one, "-directory"));
    mkfifoat(CWD, beside(&mounts.one, "-fifo"), Mode::RUSR | Mode::WUSR).expect("made");
    for (ending, mode, kinds) in [("-directory", "read", &KINDS[2..]), ("-fifo", "write", &KINDS)] {
        let program = |path: &Path| {
            let mut program = Program::start();
            program.open("f", &beside(path, ending), mode);
            program
        };
        let (mut holder, mut other) = (program(&mounts.one), program(&mounts.other));
        let mut neighbour = program(&mounts.one);
        for kind in kinds {
            assert_eq!(holder.try_lock(kind, "exclusive"), "ok", "{ending} {kind}");
            assert_eq!(neighbour.try_lock(kind, "exclusive"), "EAGAIN", "{ending} {kind}");
            assert_eq!(other.try_lock(kind, "exclusive"), "ok", "{ending} {kind}");
            holder.unlock(kind);
            other.unlock(kind);
        }
    }
}

/// docs/semantics.md 6.1.
fn posix_locks_conflict_with_ofd_locks_but_not_with_flock(mounts: &Mounts) {
    mounts.both_ways(|here, there| {
        let (mut one, mut other) = (Program::on(here), Program::on(there));
        for held in ["posix", "ofd"] {
            assert_eq!(one.try_lock(held, "exclusive"), "ok");
            for wanted in ["posix", "ofd"] {
                let reply = other.try_lock(wanted, "shared");
                assert_eq!(reply, "EAGAIN", "a {held} lock excludes a {wanted} lock");
            }
            let reply = other.try_lock("flock", "exclusive");
            assert_eq!(reply, "ok", "a {held} lock does not affect a flock lock");
            one.unlock(held);
            let reply = one.try_lock(held, "exclusive");
            assert_eq!(reply, "ok", "a flock lock does not affect a {held} lock");
            one.unlock(held);
            other.unlock("flock");
        }
    });
}

/// docs/semantics.md 6.4.
fn lock_wait_ends_when_the_lock_is_free(mounts: &Mounts) {
    mounts.both_ways(|here, there| {
        let (mut holder, mut waiter) = (Program::on(here), Program::on(there));
        for kind in KINDS {
            assert_eq!(holder.try_lock(kind, "exclusive"), "ok");
            waiter.wait(kind, "exclusive");
            let freed_at = Instant::now();
            holder.unlock(kind);
            assert_eq!(waiter.answer(), "ok");
            // The wait must end immediately, and not only at the mount's next poll (every five
            // seconds).
            assert!(freed_at.elapsed() < Duration::from_secs(3), "{:?}", freed_at.elapsed());
            assert_eq!(holder.try_lock(kind, "shared"), "EAGAIN");
            waiter.unlock(kind);
        }
    });
}

/// docs/semantics.md 6.4.
fn signal_ends_a_lock_wait(mounts: &Mounts) {
    mounts.both_ways(|here, there| {
        let (mut holder, mut waiter) = (Program::on(here), Program::on(there));
        let mut third = Program::on(here);
        for kind in KINDS {
            assert_eq!(holder.try_lock(kind, "exclusive"), "ok");
            let begun = Instant::now();
            assert_eq!(waiter.run(&format!("lock_until 0.5 f {kind} exclusive 0 0 wait")), "EINTR");
            let took = begun.elapsed();
            assert!(took > Duration::from_millis(400) && took < Duration::from_secs(4), "{took:?}");
            holder.unlock(kind);
            // No lock is reserved for a program whose wait was ended by a signal.
            assert_eq!(third.try_lock(kind, "exclusive"), "ok");
            third.unlock(kind);
        }
    });
}

/// docs/semantics.md 6.2.
fn locked_ranges_split_merge_and_change_their_mode(mounts: &Mounts) {
    mounts.both_ways(|here, there| {
        let (mut holder, mut other) = (Program::on(here), Program::on(there));
        for kind in ["posix", "ofd"] {
            holder.ok(&format!("lock f {kind} exclusive 0 100 try"));
            holder.ok(&format!("lock f {kind} unlock 40 20 try"));
            let test = |program: &mut Program, start: u32, len: u32| {
                let found = program.run(&format!("test f {kind} exclusive {start} {len}"));
                found.rsplit_once(' ').map_or(found.clone(), |(lock, _)| lock.to_owned())
            };
            assert_eq!(test(&mut other, 0, 0), "exclusive 0 40");
            assert_eq!(test(&mut other, 40, 20), "free");
            assert_eq!(test(&mut other, 50, 0), "exclusive 60 40");
            other.ok(&format!("lock f {kind} exclusive 40 20 try"));
            // Another program has locked the middle of the range, so the call fails and changes no
            // lock.
            assert_eq!(holder.run(&format!("lock f {kind} shared 0 100 try")), "EAGAIN");
            other.ok(&format!("lock f {kind} unlock 0 0 try"));
            holder.ok(&format!("lock f {kind} exclusive 40 20 try"));
            assert_eq!(test(&mut other, 0, 0), "exclusive 0 100", "the ranges are one lock again");
            holder.ok(&format!("lock f {kind} shared 10 10 try"));
            other.ok(&format!("lock f {kind} shared 10 10 try"));
            assert_eq!(other.run(&format!("lock f {kind} shared 10 11 try")), "EAGAIN");
            assert_eq!(holder.run(&format!("lock f {kind} exclusive 0 0 try")), "EAGAIN");
            other.unlock(kind);
            holder.ok(&format!("lock f {kind} exclusive 0 0 try"));
            assert_eq!(test(&mut other, 1_000_000, 1), "exclusive 0 0", "to the end of the file");
            holder.unlock(kind);
            assert_eq!(test(&mut other, 0, 0), "free");
        }
    });
}

/// Returns the holder of the lock that `F_GETLK` returns.
fn holder_of(program: &mut Program) -> String {
    program.run("test f posix exclusive 0 0")
}

/// docs/semantics.md 6.2 and 6.3.
fn closing_releases_posix_locks(mounts: &Mounts) {
    mounts.both_ways(|here, there| {
        let (mut holder, mut other) = (Program::on(here), Program::on(there));
        let mut neighbour = Program::on(here);
        assert_eq!(holder.try_lock("posix", "exclusive"), "ok");
        assert_eq!(
            holder_of(&mut other),
            "exclusive 0 0 0",
            "the id of a process on another mount is 0"
        );
        assert_eq!(holder_of(&mut neighbour), format!("exclusive 0 0 {}", holder.pid()));
        holder.ok("fork_and_close f");
        assert_eq!(other.try_lock("posix", "shared"), "EAGAIN", "the child had no locks");
        // Each close of the file by the process releases the lock, even the close of another
        // descriptor.
        for mode in ["write", "read"] {
            holder.open("g", here, mode);
            holder.ok("close g");
            assert_eq!(other.try_lock("posix", "exclusive"), "ok", "{mode}");
            other.unlock("posix");
            assert_eq!(holder.try_lock("posix", "exclusive"), "ok");
        }
        other.wait("posix", "exclusive");
        holder.kill();
        assert_eq!(other.answer(), "ok");
    });
}

fn is_free_soon(program: &mut Program, kind: &str) {
    // Wait, because close(2) returns before the kernel has processed the last close of the file.
    wait_for("the lock is free", Duration::from_secs(10), || {
        (program.try_lock(kind, "exclusive") == "ok").then_some(())
    });
    program.unlock(kind);
}

/// docs/semantics.md 6.3.
fn flock_and_ofd_locks_last_until_the_last_close(mounts: &Mounts) {
    mounts.both_ways(|here, there| {
        let mut other = Program::on(there);
        for kind in ["ofd", "flock"] {
            let mut holder = Program::on(here);
            assert_eq!(holder.try_lock(kind, "exclusive"), "ok");
            holder.ok("fork_and_close f");
            holder.ok("duplicate f g");
            holder.open("h", here, "read");
            holder.ok("close h");
            holder.ok("close f");
            assert_eq!(other.try_lock(kind, "shared"), "EAGAIN", "{kind}");
            holder.ok("close g");
            is_free_soon(&mut other, kind);
            // The kernel may reuse the lock owner number of the closed file for the newly opened
            // file. Repeat these steps, because this reuse does not happen each time.
            for _ in 0..50 {
                holder.open("f", here, "write");
                assert_eq!(holder.try_lock(kind, "exclusive"), "ok");
                assert_eq!(other.try_lock(kind, "shared"), "EAGAIN", "{kind}");
                holder.ok("close f");
                is_free_soon(&mut other, kind);
            }
        }
    });
}

/// docs/semantics.md 6.5.
fn lock_that_would_close_a_deadlock_cycle_is_refused(mounts: &Mounts) {
    mounts.both_ways(|here, there| {
        let (mut one, mut other) = (Program::on(here), Program::on(there));
        one.ok("lock f posix exclusive 0 1 try");
        other.ok("lock f posix exclusive 1 1 try");
        one.begin("lock f posix exclusive 1 1 wait");
        until_they_wait(1, here);
        assert_eq!(other.run("lock f posix exclusive 0 1 wait"), "EDEADLK");
        other.unlock("posix");
        assert_eq!(one.answer(), "ok");
    });
}

/// Returns the number that a file contains.
fn number(path: &Path) -> u64 {
    let text = files::read_to_string(path);
    text.parse().expect("a number")
}

/// docs/semantics.md 6.6. Each program has the file open all the time. A program that has the lock
/// must read the bytes that the other programs have written.
fn counter_under_locks_loses_no_update(mounts: &Mounts) {
    let mut expected = 0;
    for kind in KINDS {
        let mut programs: Vec<_> = (0..8)
            .map(|index| Program::on(if index % 2 == 0 { &mounts.one } else { &mounts.other }))
            .collect();
        programs.iter_mut().for_each(|program| program.begin(&format!("count f {kind} 60")));
        for program in &programs {
            assert_eq!(program.answer(), "60 ok", "{kind}");
        }
        expected += 8 * 60;
        assert_eq!(number(&mounts.one), expected, "{kind}");
        drop(programs);
    }
}

/// docs/semantics.md 6.4.
fn each_of_many_waiters_gets_the_lock(mounts: &Mounts) {
    let mut holder = Program::on(&mounts.one);
    assert_eq!(holder.try_lock("flock", "exclusive"), "ok");
    // Each mount gets more waiting requests than one worker of the mount can have in progress.
    let mut waiting: Vec<_> = (0..80)
        .map(|index| Program::on(if index % 2 == 0 { &mounts.one } else { &mounts.other }))
        .collect();
    waiting.iter_mut().for_each(|program| program.begin("lock f flock exclusive 0 0 wait"));
    assert!(waiting.iter().take(3).all(Program::is_waiting));
    let path = mounts.one.with_file_name("served-meanwhile");
    std::fs::write(&path, "x").expect("others are served");
    holder.unlock("flock");
    // Each program has the lock for a moment, and releases the lock by closing the file.
    std::thread::scope(|scope| {
        for mut program in waiting {
            scope.spawn(move || {
                assert_eq!(program.answer(), "ok");
                program.ok("close f");
            });
        }
    });
    is_free_soon(&mut holder, "flock");
}

/// docs/semantics.md 6.2.
fn lock_owner_has_at_most_1024_ranges(mounts: &Mounts) {
    mounts.both_ways(|here, there| {
        let (mut holder, mut other) = (Program::on(here), Program::on(there));
        for kind in ["posix", "ofd"] {
            assert_eq!(holder.run(&format!("every_other f {kind} 1025")), "1024 ENOLCK");
            // Each lock owner has its own limit. After the owner has unlocked one range, this owner
            // can lock exactly one further range.
            other.ok(&format!("lock f {kind} exclusive 1 1 try"));
            holder.ok(&format!("lock f {kind} unlock 0 1 try"));
            holder.ok(&format!("lock f {kind} exclusive 5000 1 try"));
            assert_eq!(holder.run(&format!("lock f {kind} exclusive 6000 1 try")), "ENOLCK");
            // At the limit, the owner can still set a lock that merges two of its ranges, and can
            // still unlock a range.
            holder.ok(&format!("lock f {kind} exclusive 3 1 try"));
            holder.ok(&format!("lock f {kind} exclusive 6000 1 try"));
            holder.unlock(kind);
            other.unlock(kind);
            assert_eq!(other.try_lock(kind, "exclusive"), "ok");
            other.unlock(kind);
        }
    });
}

/// docs/semantics.md 6.2.
fn getlk_names_the_holder_on_the_same_mount(mounts: &Mounts) {
    mounts.both_ways(|here, there| {
        let (mut holder, mut other) = (Program::on(here), Program::on(there));
        let mut neighbour = Program::on(here);
        for kind in ["posix", "ofd"] {
            for (mode, wanted) in [("exclusive", "shared"), ("shared", "exclusive")] {
                holder.ok(&format!("lock f {kind} {mode} 7 5 try"));
                let ask = format!("test f posix {wanted} 0 0");
                assert_eq!(neighbour.run(&ask), format!("{mode} 7 5 {}", holder.pid()), "{kind}");
                assert_eq!(
                    other.run(&ask),
                    format!("{mode} 7 5 0"),
                    "{kind}: the process is on another mount"
                );
                holder.unlock(kind);
            }
        }
    });
}

/// Returns the number of waits for locks of a file, according to `skep lock list`.
fn waiting_for(path: &Path) -> usize {
    let path = path.to_str().expect("ASCII");
    let text = cluster::skep(["lock", "list", path, "--output", "json"]).expect_success();
    let list: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    list.list().iter().filter(|it| it["is_waiting"] == true).count()
}

fn until_they_wait(count: usize, path: &Path) {
    wait_for("the programs wait for the lock", PATIENCE, || {
        (waiting_for(path) == count).then_some(())
    });
}

/// docs/semantics.md 6.4.
fn waiters_get_the_lock_in_order_of_arrival(mounts: &Mounts) {
    for kind in KINDS {
        let mut holder = Program::on(&mounts.one);
        assert_eq!(holder.try_lock(kind, "exclusive"), "ok");
        let mut waiting: Vec<_> = (0..6)
            .map(|index| {
                let place = if index % 3 == 0 { &mounts.one } else { &mounts.other };
                let mut program = Program::on(place);
                program.begin(&format!("lock f {kind} exclusive 0 0 wait"));
                until_they_wait(index + 1, &mounts.one);
                program
            })
            .collect();
        holder.unlock(kind);
        // Only one program has the lock at any time. If metadata granted the lock in a wrong order,
        // the program `program` would not get a reply.
        for program in &mut waiting {
            assert_eq!(program.answer(), "ok", "{kind}");
            program.unlock(kind);
        }
    }
}

/// After 64 readers have overtaken the waiting writer, no other reader gets the lock for a second.
/// After this second, a waiting reader gets the lock, although the other readers have not released
/// their locks. docs/semantics.md 6.4.
fn readers_wait_a_second_after_overtaking_a_writer_64_times(mounts: &Mounts) {
    for kind in KINDS {
        let (mut reader, mut writer) = (Program::on(&mounts.one), Program::on(&mounts.other));
        let mut later = Program::on(&mounts.one);
        assert_eq!(reader.try_lock(kind, "shared"), "ok");
        writer.begin(&format!("lock f {kind} exclusive 0 0 wait"));
        until_they_wait(1, &mounts.one);
        let mut before_last = Instant::now();
        for time in 1..=64 {
            before_last = Instant::now();
            assert_eq!(later.try_lock(kind, "shared"), "ok", "{kind}, time {time}");
            later.unlock(kind);
        }
        let answer = later.try_lock(kind, "shared");
        // Check this refusal only within the second for which the lock is reserved for the writer.
        // On a busy machine, this second may have passed.
        if before_last.elapsed() < Duration::from_secs(1) {
            assert_eq!(answer, "EAGAIN", "{kind}");
        }
        assert_eq!(later.run(&format!("lock f {kind} shared 0 0 wait")), "ok", "{kind}");
        later.unlock(kind);
        reader.unlock(kind);
        assert_eq!(writer.answer(), "ok", "{kind}");
        assert_eq!(reader.try_lock(kind, "shared"), "EAGAIN", "{kind}");
        writer.unlock(kind);
    }
}

/// docs/semantics.md 6.4.
fn grantable_lock_is_not_blocked_by_queued_waiters(mounts: &Mounts) {
    for kind in ["posix", "ofd"] {
        let (mut first, mut last) = (Program::on(&mounts.one), Program::on(&mounts.other));
        first.ok(&format!("lock f {kind} shared 0 10 try"));
        last.ok(&format!("lock f {kind} exclusive 20 10 try"));
        let (mut writer, mut reader) = (Program::on(&mounts.other), Program::on(&mounts.one));
        writer.begin(&format!("lock f {kind} exclusive 0 30 wait"));
        until_they_wait(1, &mounts.one);
        reader.begin(&format!("lock f {kind} shared 5 20 wait"));
        until_they_wait(2, &mounts.one);
        // The writer has waited longer than the reader, but cannot get its lock yet.
        last.unlock(kind);
        assert_eq!(reader.answer(), "ok", "{kind}");
        reader.unlock(kind);
        first.unlock(kind);
        assert_eq!(writer.answer(), "ok", "{kind}");
        writer.unlock(kind);
    }
}

/// docs/semantics.md 6.4. (With `/dev/fuse`, any worker of the mount may receive a request.)
fn each_worker_of_a_mount_serves_256_lock_waits(mounts: &Mounts) {
    let (mut holder, mut crowd) = (Program::on(&mounts.other), Program::start());
    let path = mounts.one.display();
    for round in 0..2 {
        assert_eq!(holder.try_lock("posix", "exclusive"), "ok");
        let first = crowd.run(&format!("crowd_begins {path} 257"));
        assert_eq!(first, "ENOLCK", "round {round}: a wait beyond the limit fails");
        until_they_wait(256, &mounts.one);
        // The mount serves other requests while the programs wait for locks.
        assert_eq!(Program::on(&mounts.one).try_lock("flock", "exclusive"), "ok");
        holder.unlock("posix");
        assert_eq!(crowd.run("crowd_ends 256"), "ok", "round {round}");
        is_free_soon(&mut holder, "posix");
    }
}

/// Returns two files on different metadata targets. Metadata spreads new directories in the root
/// over the targets, by a hash of their names.
fn apart(place: &Path) -> [PathBuf; 2] {
    let root = place.parent().expect("the path is in the mount");
    let target = |path: &Path| {
        let info =
            cluster::skep(["entry", "info", "--output", "json", &path.display().to_string()]);
        let info: serde_json::Value =
            serde_json::from_str(&info.expect_success()).expect("the output is JSON");
        info["metadata"]["target"].clone()
    };
    let mut files = (0..64).map(|number| {
        let directory = root.join(format!("apart-{number}"));
        files::create_dir_all(&directory);
        let file = directory.join("file");
        files::write(&file, "");
        file
    });
    let first = files.next().expect("64");
    let other = files.find(|it| target(it) != target(&first)).expect("directories are spread");
    [first, other]
}

/// docs/semantics.md 6.5.
fn deadlock_across_metadata_targets_is_refused(mounts: &Mounts) {
    mounts.both_ways(|here, there| {
        let files = apart(here);
        let there = |file: &PathBuf| {
            let root = here.parent().expect("the path is in the mount");
            there.parent().expect("in the other").join(file.strip_prefix(root).expect("below it"))
        };
        let (mut one, mut other) = (Program::start(), Program::start());
        for (name, file) in ["a", "b"].into_iter().zip(&files) {
            one.open(name, file, "write");
            other.open(name, &there(file), "write");
        }
        one.ok("lock a posix exclusive 0 1 try");
        other.ok("lock b posix exclusive 0 1 try");
        one.begin("lock b posix exclusive 0 1 wait");
        other.begin("lock a posix exclusive 0 1 wait");
        // Exactly one of the two waiting programs gets EDEADLK.
        let (is_one, printed) = wait_for("one of the two programs gets a reply", PATIENCE, || {
            let by_one = one.try_answer().map(|it| (true, it));
            by_one.or_else(|| other.try_answer().map(|it| (false, it)))
        });
        assert_eq!(printed, "EDEADLK");
        let (gave_way, left) = if is_one { (&mut one, &mut other) } else { (&mut other, &mut one) };
        gave_way.ok(&format!("lock {} posix unlock 0 1 try", if is_one { "a" } else { "b" }));
        assert_eq!(left.answer(), "ok");
    });
}

/// docs/semantics.md 6.5.
fn deadlocks_across_files_and_of_open_file_locks_are_refused(mounts: &Mounts) {
    mounts.both_ways(|here, there| {
        // Files in the same directory are on the same metadata target.
        let second = |place: &Path| place.with_extension("second");
        let (mut one, mut other) = (Program::on(here), Program::on(there));
        one.open("g", &second(here), "write");
        other.open("g", &second(there), "write");
        one.ok("lock f posix exclusive 0 0 try");
        other.ok("lock g posix exclusive 0 0 try");
        one.begin("lock g posix exclusive 0 0 wait");
        until_they_wait(1, &second(here));
        assert_eq!(other.run("lock f posix exclusive 0 0 wait"), "EDEADLK");
        other.ok("lock g posix unlock 0 0 try");
        assert_eq!(one.answer(), "ok");
        one.ok("close g");
        one.unlock("posix");

        // Three programs wait, each for a lock of the next program.
        let mut third = Program::on(here);
        for (byte, program) in [&mut one, &mut other, &mut third].into_iter().enumerate() {
            program.ok(&format!("lock f posix exclusive {byte} 1 try"));
        }
        one.begin("lock f posix exclusive 1 1 wait");
        other.begin("lock f posix exclusive 2 1 wait");
        until_they_wait(2, here);
        assert_eq!(third.run("lock f posix exclusive 0 1 wait"), "EDEADLK");
        third.unlock("posix");
        assert_eq!(other.answer(), "ok");
        other.unlock("posix");
        assert_eq!(one.answer(), "ok");
        one.unlock("posix");

        one.ok("lock f ofd exclusive 0 1 try");
        other.ok("lock f ofd exclusive 1 1 try");
        one.begin("lock f ofd exclusive 1 1 wait");
        until_they_wait(1, here);
        assert_eq!(other.run("lock f ofd exclusive 0 1 wait"), "EDEADLK");
        other.unlock("ofd");
        assert_eq!(one.answer(), "ok");
    });
}
