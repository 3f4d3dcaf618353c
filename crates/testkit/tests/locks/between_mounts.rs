//! What locks mean, while nothing dies.

use crate::Mounts;
use crate::program::Program;
use skep_testkit::suite::Case;
use skep_testkit::wait_for;
use std::path::Path;
use std::time::{Duration, Instant};

pub(crate) const CASES: &[Case<Mounts>] = skep_testkit::cases![locks:
    a_lock_excludes_on_all_mounts, kinds_do_not_see_each_other, a_wait_ends_when_the_lock_is_free,
    a_signal_ends_a_wait, ranges_split_merge_and_change, closing_gives_posix_locks_back,
    other_locks_last_until_the_last_close, circles_are_refused, counters_lose_no_update,
    many_wait_and_all_get_their_turn,
];

const KINDS: [&str; 3] = ["posix", "ofd", "flock"];

/// Semantics 6.1.
fn a_lock_excludes_on_all_mounts(mounts: &Mounts) {
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

/// Semantics 6.1.
fn kinds_do_not_see_each_other(mounts: &Mounts) {
    let (mut one, mut other) = (Program::on(&mounts.one), Program::on(&mounts.other));
    assert_eq!(one.try_lock("posix", "exclusive"), "ok");
    assert_eq!(other.try_lock("flock", "exclusive"), "ok");
    assert_eq!(other.try_lock("ofd", "shared"), "EAGAIN", "these two do");
}

/// Semantics 6.4.
fn a_wait_ends_when_the_lock_is_free(mounts: &Mounts) {
    mounts.both_ways(|here, there| {
        let (mut holder, mut waiter) = (Program::on(here), Program::on(there));
        for kind in KINDS {
            assert_eq!(holder.try_lock(kind, "exclusive"), "ok");
            waiter.wait(kind, "exclusive");
            let freed_at = Instant::now();
            holder.unlock(kind);
            assert_eq!(waiter.answer(), "ok");
            // At once, not when somebody looks again.
            assert!(freed_at.elapsed() < Duration::from_secs(1), "{:?}", freed_at.elapsed());
            assert_eq!(holder.try_lock(kind, "shared"), "EAGAIN");
            waiter.unlock(kind);
        }
    });
}

/// Semantics 6.4.
fn a_signal_ends_a_wait(mounts: &Mounts) {
    mounts.both_ways(|here, there| {
        let (mut holder, mut waiter) = (Program::on(here), Program::on(there));
        let mut third = Program::on(here);
        for kind in KINDS {
            assert_eq!(holder.try_lock(kind, "exclusive"), "ok");
            let begun = Instant::now();
            waiter.ok("alarm 0.5");
            assert_eq!(waiter.run(&format!("lock f {kind} exclusive 0 0 wait")), "EINTR");
            let took = begun.elapsed();
            assert!(took > Duration::from_millis(400) && took < Duration::from_secs(2), "{took:?}");
            holder.unlock(kind);
            // Nor is anything kept for who has gone.
            assert_eq!(third.try_lock(kind, "exclusive"), "ok");
            third.unlock(kind);
        }
    });
}

/// Semantics 6.2.
fn ranges_split_merge_and_change(mounts: &Mounts) {
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
            // What is between belongs to another now: nothing changes.
            assert_eq!(holder.run(&format!("lock f {kind} shared 0 100 try")), "EAGAIN");
            other.ok(&format!("lock f {kind} unlock 0 0 try"));
            holder.ok(&format!("lock f {kind} exclusive 40 20 try"));
            assert_eq!(test(&mut other, 0, 0), "exclusive 0 100", "one again");
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

/// Who has the lock, as `F_GETLK` says it.
fn holder_of(program: &mut Program) -> String {
    program.run("test f posix exclusive 0 0")
}

/// Semantics 6.2 and 6.3.
fn closing_gives_posix_locks_back(mounts: &Mounts) {
    mounts.both_ways(|here, there| {
        let (mut holder, mut other) = (Program::on(here), Program::on(there));
        let mut neighbour = Program::on(here);
        assert_eq!(holder.try_lock("posix", "exclusive"), "ok");
        assert_eq!(holder_of(&mut other), "exclusive 0 0 0", "a process of another mount");
        assert_eq!(holder_of(&mut neighbour), format!("exclusive 0 0 {}", holder.pid()));
        holder.ok("fork_and_close f");
        assert_eq!(other.try_lock("posix", "shared"), "EAGAIN", "the child had no locks");
        // Any close by the process, also of another descriptor of the file.
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
    // The kernel doesn't wait for the end of a file's last close.
    wait_for("the lock is free", Duration::from_secs(10), || {
        (program.try_lock(kind, "exclusive") == "ok").then_some(())
    });
    program.unlock(kind);
}

/// Semantics 6.3.
fn other_locks_last_until_the_last_close(mounts: &Mounts) {
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
            // The kernel gives the new file the number of the old one.
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

/// Semantics 6.5.
fn circles_are_refused(mounts: &Mounts) {
    mounts.both_ways(|here, there| {
        let (mut one, mut other) = (Program::on(here), Program::on(there));
        one.ok("lock f posix exclusive 0 1 try");
        other.ok("lock f posix exclusive 1 1 try");
        one.begin("lock f posix exclusive 1 1 wait");
        assert!(one.is_waiting());
        assert_eq!(other.run("lock f posix exclusive 0 1 wait"), "EDEADLK");
        other.unlock("posix");
        assert_eq!(one.answer(), "ok");
    });
}

/// The number in a file.
fn number(path: &Path) -> u64 {
    let text = std::fs::read_to_string(path).expect("read");
    text.parse().expect("a number")
}

/// Semantics 6.6: each program has the file open all the time, and reads what others wrote.
fn counters_lose_no_update(mounts: &Mounts) {
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

/// Semantics 6.4.
fn many_wait_and_all_get_their_turn(mounts: &Mounts) {
    let mut holder = Program::on(&mounts.one);
    assert_eq!(holder.try_lock("flock", "exclusive"), "ok");
    // More than a worker has places for requests, on each mount.
    let mut waiting: Vec<_> = (0..80)
        .map(|index| Program::on(if index % 2 == 0 { &mounts.one } else { &mounts.other }))
        .collect();
    waiting.iter_mut().for_each(|program| program.begin("lock f flock exclusive 0 0 wait"));
    assert!(waiting.iter().take(3).all(Program::is_waiting));
    let path = mounts.one.with_file_name("served-meanwhile");
    std::fs::write(&path, "x").expect("others are served");
    holder.unlock("flock");
    // Each has it for a moment, until it closes the file.
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
