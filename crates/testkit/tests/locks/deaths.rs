//! Locks when a client or a metadata service dies or is suspended for longer than a lease.

use crate::between_mounts::KINDS;
use crate::program::Program;
use rustix::process::Signal;
use skep_testkit::files;
use skep_testkit::suite::Case;
use skep_testkit::{Cluster, Mounted, Random, Shape, Transport, wait_for};
use std::path::Path;
use std::time::Duration;

pub(crate) const CASES: &[Case<()>] = skep_testkit::cases![locks:
    locked_counters_survive_kills_of_metadata_and_clients, locks_survive_a_restart_of_metadata,
    client_suspended_past_its_lease_loses_its_locks,
];

/// Time limit for the cluster to notice a dead client. Leases last 5 s, and on a busy machine the
/// cluster notices the end of a lease with a delay.
const PATIENCE: Duration = Duration::from_secs(30);
const PROGRAMS: u64 = 4;

/// Kills one client at a time while programs increment a counter. Returns the number of increments
/// that the programs on the killed mounts have made.
fn kill_one_by_one(clients: Vec<Mounted>, victims: &[Program], goes_on: impl Fn(u64)) -> u64 {
    for client in clients {
        goes_on(20);
        // The programs on the killed mount exit with an error. Some of these programs have the lock
        // at that moment.
        client.kill();
    }
    let count = |victim: &Program| {
        let answer = victim.answer();
        let (times, error) = answer.split_once(' ').expect("a number and an error");
        println!("    a program on a killed mount: {answer}");
        assert_ne!(error, "EIO", "{answer}");
        times.parse::<u64>().expect("a number")
    };
    victims.iter().map(count).sum()
}

/// docs/semantics.md 6.6 and 6.8.
fn locked_counters_survive_kills_of_metadata_and_clients((): &()) {
    let mut random = Random::new(Random::seed_of_run());
    for kind in KINDS {
        let mut cluster = Cluster::start(Shape::default());
        let clients: Vec<_> = Transport::ALL.into_iter().map(|it| cluster.mount(it)).collect();
        // In one of the tested clusters, the bytes of the counter are on storage.
        if kind == KINDS[0] {
            cluster.turn_off_inline_bytes();
        }
        let here = cluster.path().join("counter");
        files::write(&here, "00000000");
        let mut survivors: Vec<_> = (0..PROGRAMS).map(|_| Program::on(&here)).collect();
        let of_clients = clients.iter().flat_map(|client| [client, client]);
        let mut victims: Vec<_> =
            of_clients.map(|client| Program::on(&client.path().join("counter"))).collect();
        for program in survivors.iter_mut().chain(&mut victims) {
            program.begin(&format!("count f {kind} 150"));
        }
        let count = || files::read_to_string(&here).parse::<u64>().unwrap_or(0);
        let goes_on = |by: u64| {
            let from = count();
            wait_for("the programs count on", PATIENCE, || (count() >= from + by).then_some(()));
        };
        for _ in 0..3 {
            goes_on(20 + random.below(20) as u64);
            for metadata in cluster.processes("metadata") {
                metadata.kill();
            }
        }
        let mut done = kill_one_by_one(clients, &victims, goes_on);
        for survivor in &survivors {
            assert_eq!(survivor.answer(), "150 ok");
            done += 150;
        }
        // Each program on a killed mount may have written one further number without getting the
        // reply.
        let (found, most) = (count(), done + victims.len() as u64);
        assert!(
            (done..=most).contains(&found),
            "the file has the count {found}; programs acknowledged {done} increments"
        );
        drop((survivors, victims));
        let mut last = Program::on(&here);
        assert_eq!(last.try_lock(kind, "exclusive"), "ok", "no lock is left behind");
        drop(last);
        wait_for("no lock is left in any list", PATIENCE, || {
            let locks = cluster.skep_json(&["lock", "list"]);
            locks.as_array()?.is_empty().then_some(())
        });
        cluster.stop();
    }
}

/// docs/semantics.md 6.8.
fn locks_survive_a_restart_of_metadata((): &()) {
    let mut cluster = Cluster::start(Shape::default());
    let second = cluster.mount(Transport::Device);
    let (here, there) = (cluster.path().join("file"), second.path().join("file"));
    let (mut holder, mut other) = (Program::on(&here), Program::on(&there));
    for kind in KINDS {
        assert_eq!(holder.try_lock(kind, "exclusive"), "ok");
        other.wait(kind, "exclusive");
        for metadata in cluster.processes("metadata") {
            metadata.kill();
        }
        // The refusal shows that the restarted service still has the lock.
        assert_eq!(Program::on(&there).try_lock(kind, "shared"), "EAGAIN");
        assert!(other.is_waiting());
        holder.unlock(kind);
        assert_eq!(other.answer(), "ok", "the earlier waiter keeps waiting");
        other.unlock(kind);
    }
    drop((holder, other));
    second.unmount();
    cluster.stop();
}

/// Starts a program that opens a file for reading only, locks the file, and reads no byte. The file
/// is beside the file `here`. The path of `here` on the mount of the program is `there`.
///
/// A descriptor for writing would not suffice to test lost locks, because after the lease such a
/// descriptor fails even without locks (docs/semantics.md 3.8).
fn locked_reader(kind: &str, here: &Path, there: &Path) -> Program {
    files::write(here.with_extension("read-only"), "bytes");
    let mut reader = Program::start();
    reader.open("f", &there.with_extension("read-only"), "read");
    assert_eq!(reader.try_lock(kind, "shared"), "ok", "{kind}");
    reader
}

/// docs/semantics.md 6.7.
fn client_suspended_past_its_lease_loses_its_locks((): &()) {
    let mut cluster = Cluster::start(Shape::default());
    let second = cluster.mount(Transport::Device);
    let files = KINDS.map(|kind| (kind, cluster.path().join(kind), second.path().join(kind)));
    let mut programs: Vec<_> = files
        .iter()
        .map(|(kind, here, there)| {
            files::write(here, "first");
            let (mut sleeper, other, mut reader) =
                (Program::on(there), Program::on(here), Program::start());
            reader.open("f", there, "read");
            assert_eq!(sleeper.run("read f 5"), "first");
            assert_eq!(sleeper.try_lock(kind, "exclusive"), "ok");
            (*kind, there, sleeper, other, reader)
        })
        .collect();
    let mut locked_readers: Vec<_> =
        files.iter().map(|(kind, here, there)| locked_reader(kind, here, there)).collect();
    second.signal(Signal::STOP);
    for (kind, _, _, other, _) in &mut programs {
        other.begin(&format!("lock f {kind} exclusive 0 0 wait"));
        assert_eq!(other.answer(), "ok", "{kind}: after the lease");
        other.ok("write f other");
    }
    second.signal(Signal::CONT);
    for (kind, there, sleeper, other, reader) in &mut programs {
        assert_eq!(sleeper.run("write f wrong"), "EIO", "{kind}");
        assert_eq!(sleeper.try_lock(kind, "unlock"), "EIO", "{kind}: the error lasts until close");
        // A program that only reads the file and has no lock gets no error.
        assert_eq!(reader.run("read f 5"), "other", "{kind}");
        assert_eq!(sleeper.run("close f"), "EIO", "{kind}: close reports the lost lock again");
        sleeper.open("f", there, "write");
        assert_eq!(sleeper.try_lock(kind, "shared"), "EAGAIN", "{kind}");
        other.unlock(kind);
        assert_eq!(sleeper.try_lock(kind, "shared"), "ok", "{kind}");
        assert_eq!(sleeper.run("read f 5"), "other", "{kind}");
    }
    for (kind, reader) in KINDS.into_iter().zip(&mut locked_readers) {
        // The page cache has no byte of the file, so the mount must read all bytes.
        assert_eq!(reader.run("read f 5"), "EIO", "{kind}: reads fail too");
    }
    drop((programs, locked_readers));
    second.unmount();
    cluster.stop();
}
