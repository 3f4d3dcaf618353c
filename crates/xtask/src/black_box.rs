//! The step `black-box` of CI: runs the test programs of `skep-testkit`, several at a time.
//!
//! The tests of a program run one at a time, since each test starts a whole cluster. The tests
//! spend most of their time waiting, so two programs can share two cores. At the same time, one
//! program of [`WAITING`] runs. Changes that other programs make on the host would disturb the
//! programs in [`OF_THE_HOST`], so these programs run after all other programs.
//!
//! The step ends with a table of the programs and their times, the slowest first. [`SECONDS`] has
//! the expected times.

use crate::built::{self, BLACK_BOX, Program};
use crate::repository::{Outcome, run as call};
use crate::runner::{Ended, Runner, failed, table};
use crate::suites;
use std::process::Command;
use std::thread;
use std::time::Instant;

/// Programs that compare the directories of simulated hosts before and after a test. The root
/// directory of a simulated host is an overlay over the root directory of the real host, in which
/// other programs change files. So these programs start when all other programs have ended. Each
/// simulated host has its own `/run`, so each of these programs has a separate list of networks.
/// For this reason, the programs can run at the same time.
const OF_THE_HOST: &[&str] = &["deploy", "ondemand", "deploy_copies", "staging"];

/// Programs that wait for timers nearly all of the time: for the ends of leases, time limits,
/// retries and alerts. A separate worker runs these programs, because they need little processor
/// time. All programs of the list together should take as long as the other programs take on
/// [`WORKERS`] workers. If the list took less time, its worker would end early, and processors
/// would be idle.
///
/// The worker runs the programs in this order. The tests in `metadata_groups` fail if an operation
/// pauses for too long, so this program runs last. By then, the programs with the most disk traffic
/// (`kills`, `power_losses`, `packages`) have ended.
const WAITING: &[&str] = &[
    "notifications",
    "mount_ends",
    "foreign_processes",
    "administration",
    "debug_bundle",
    "stalled_mounts",
    "dead_clients",
    "eviction",
    "mount_waits",
    "several_hosts",
    "groups",
    "without_management",
    "retirement",
    "lost_targets",
    "process_pauses",
    "metadata_groups",
];

/// Expected times of the programs that take long, in seconds, on a host with two cores. The times
/// are from one run of the step, at the same time as unit tests. The program with the longest time
/// starts first, so that both workers end at nearly the same time. After a change of the tests,
/// take the times from the table that the step prints.
#[rustfmt::skip]
const SECONDS: &[(&str, u64)] = &[
    ("metadata_groups", 350), ("deploy", 340), ("ondemand", 310), ("deploy_copies", 260),
    ("kills", 145), ("power_losses", 135), ("packages", 135), ("monitor", 121), ("staging", 120),
    ("command_pages", 110), ("posix", 105), ("notifications", 92), ("mount_ends", 91),
    ("studies", 91), ("several_hosts", 91), ("bench", 87), ("output", 82), ("coherence", 81),
    ("volatile_disk", 72), ("power_of_hosts", 70), ("locks", 66), ("templates", 66), ("lab", 57),
    ("suites", 56), ("administration", 55), ("large", 51), ("tutorials", 49), ("programs", 43),
    ("up", 41), ("failing_disks", 39), ("mount_helper", 36), ("stalled_mounts", 35),
    ("inline", 34), ("debug_bundle", 33), ("model", 32), ("management_nodes", 31),
    ("dead_clients", 30), ("bad_input", 29),
];

/// Expected time of each other program, in seconds.
const OTHER_SECONDS: u64 = 25;

/// Directory for the outputs of the programs, relative to the repository.
pub(crate) const LOGS: &str = "target/black-box";

/// Directory in which the tests create their clusters.
const DATA: &str = "/tmp";

/// Default of the setting `low-percent`: `skep health check` reports a target with less free space.
const LOW_PERCENT: u64 = 10;

/// Number of programs that run at the same time, without the program of [`WAITING`].
const WORKERS: usize = 2;

/// The programs by the time at which they run. The list `waiting` has the order of [`WAITING`].
/// Each other list begins with the program that is expected to take the longest time.
struct Plan {
    waiting: Vec<Program>,
    of_the_host: Vec<Program>,
    others: Vec<Program>,
}

/// Returns the expected time of a program in seconds.
fn expected(name: &str) -> u64 {
    SECONDS.iter().find(|(long, _)| *long == name).map_or(OTHER_SECONDS, |(_, seconds)| *seconds)
}

/// Builds and runs all programs.
///
/// # Errors
/// Lists the programs that had a failed test. Says how much space is missing if the disk is nearly
/// full.
pub(crate) fn run() -> Outcome {
    check_space(DATA)?;
    suites::run()?;
    let cargo = env!("CARGO");
    call(cargo, &["build", "--release", "--package", "skep-ctl"], &[])?;
    let mut programs = built::programs(BLACK_BOX)?;
    programs.retain(|program| program.is_test);
    let Plan { waiting, of_the_host, others } = plan(programs)?;
    let runner = Runner { logs: LOGS, workers: WORKERS, command };
    let one_at_a_time = Runner { workers: 1, ..runner };
    // These programs are few, and no other program runs at this time. So all of them start at once.
    let at_the_end = Runner { workers: OF_THE_HOST.len(), ..runner };
    let begin = Instant::now();
    let ticks = Ticks::now();
    let (waiting, others) = thread::scope(|scope| {
        let waiting = scope.spawn(|| one_at_a_time.run(waiting));
        let others = runner.run(others);
        (waiting.join().expect("no worker panics"), others)
    });
    let mut ended = waiting?;
    ended.extend(others?);
    let ticks_at_the_end = Ticks::now();
    ended.extend(at_the_end.run(of_the_host)?);
    let idle = [ticks.idle_percent(ticks_at_the_end), ticks_at_the_end.idle_percent(Ticks::now())];
    println!("\n{}", table(&mut ended));
    println!("{} programs ran for {:.1} s", ended.len(), begin.elapsed().as_secs_f64());
    let [idle, idle_at_the_end] = idle;
    println!("processors were idle for {idle} % of the time, then for {idle_at_the_end} %");
    ended.iter().filter_map(warning).for_each(|line| println!("{line}"));
    let mut failed = failed(&ended);
    if call(cargo, &[BLACK_BOX, &["--doc"]].concat(), &[]).is_err() {
        failed.push("examples in comments".into());
    }
    if failed.is_empty() {
        Ok(())
    } else {
        Err(format!("these tests failed: {}", failed.join(", ")))
    }
}

/// Times of all processors of the host since the host was started, in ticks of the kernel. All
/// values are zero if the kernel does not show them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Ticks {
    all: u64,
    /// The time in which a processor had no work, or only waited for a disk.
    idle: u64,
}

impl Ticks {
    fn now() -> Self {
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        Self::parse(&stat).unwrap_or_default()
    }

    /// Parses the text of `/proc/stat`. Its first line has the times of all processors: user, nice,
    /// system, idle, iowait, irq, softirq and steal. The fields after these (guest and guest_nice)
    /// are already part of user and nice.
    fn parse(stat: &str) -> Option<Self> {
        let fields = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().take(8);
        let times = fields.map(|field| field.parse().ok()).collect::<Option<Vec<u64>>>()?;
        Some(Self { all: times.iter().sum(), idle: times.get(3)? + times.get(4)? })
    }

    /// Returns the share of the time until `end` in which processors were idle, in percent. A large
    /// share means that another worker could shorten the step.
    fn idle_percent(self, end: Self) -> u64 {
        let all = end.all.saturating_sub(self.all).max(1);
        end.idle.saturating_sub(self.idle) * 100 / all
    }
}

/// Checks that new clusters below a directory will not be low on free space.
///
/// # Errors
/// Names the free space and the ways to get more.
fn check_space(directory: &str) -> Outcome {
    let found = rustix::fs::statvfs(directory)
        .map_err(|error| format!("cannot read the free space of {directory}: {error}"))?;
    let total = found.f_blocks - found.f_bfree + found.f_bavail;
    if found.f_bavail >= total / 100 * LOW_PERCENT {
        return Ok(());
    }
    let gib = |blocks: u64| (blocks * found.f_frsize) >> 30;
    Err(format!(
        "{} of {} GiB are free at {directory}, less than {LOW_PERCENT} %. Many tests would fail, \
         because `skep health check` reports targets with so little free space. Delete files; \
         `cargo clean --profile dev` removes the unit tests, which the black-box tests do not need",
        gib(found.f_bavail),
        gib(total),
    ))
}

/// Returns a warning if a program took at least one and a half times as long as expected.
fn warning(program: &Ended) -> Option<String> {
    let Ended { name, seconds, .. } = program;
    let expected = expected(name);
    (*seconds >= expected as f64 * 1.5)
        .then(|| format!("warning: {name} took {seconds:.0} s, expected {expected} s"))
}

/// Decides which programs run at the same time, and in which order.
fn plan(mut programs: Vec<Program>) -> Outcome<Plan> {
    let long = SECONDS.iter().map(|(name, _)| name);
    for name in OF_THE_HOST.iter().chain(WAITING).chain(long) {
        if !programs.iter().any(|program| program.name == *name) {
            return Err(format!(
                "cannot find the test program {name}: correct the name in black_box.rs"
            ));
        }
    }
    programs.sort_by_key(|program| std::cmp::Reverse(expected(&program.name)));
    let is_in = |list: &[&str], program: &Program| list.contains(&program.name.as_str());
    let (mut waiting, others): (Vec<_>, Vec<_>) =
        programs.into_iter().partition(|program| is_in(WAITING, program));
    waiting.sort_by_key(|program| WAITING.iter().position(|name| *name == program.name));
    let (of_the_host, others) = others.into_iter().partition(|program| is_in(OF_THE_HOST, program));
    Ok(Plan { waiting, of_the_host, others })
}

/// A shell script that sets up the network of a new namespace and then executes its arguments. The
/// namespace has a loopback interface, and an interface with an address of its own, as a host has.
/// The address is from a range for documentation (RFC 5737).
const NETWORK: &str = "set -e; ip link set lo up; ip link add lan type veth peer name lan-peer; \
    ip address add 192.0.2.1/24 dev lan; ip link set lan up; ip link set lan-peer up; exec \"$@\"";

/// Returns the command that runs a program as `cargo test` does.
///
/// Each program has its own mount namespace. A mount stays until the last mount namespace with a
/// copy of the mount ends. Test programs create mount namespaces, for example by `ip netns exec`.
/// If all programs shared one namespace, a namespace that one program has created could keep a
/// mount of another program alive.
///
/// Each program also has its own network namespace ([`NETWORK`]). A cluster that starts again needs
/// the port of its management service. In a shared namespace, a service of another program could
/// have taken this port while the cluster was stopped.
fn command(program: &Program) -> Command {
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "private", "--net", "--"])
        .args(["sh", "-c", NETWORK, "sh"])
        .arg(&program.executable)
        .args(["--test-threads", "1"])
        .env("CARGO", env!("CARGO"))
        .env("CARGO_MANIFEST_DIR", &program.package)
        .current_dir(&program.package);
    // The tests of packages run the executable of xtask.
    if let Ok(xtask) = std::env::current_exe() {
        command.env("SKEP_XTASK", xtask);
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn named(name: &str) -> Program {
        Program {
            name: name.into(),
            executable: "/program".into(),
            package: "/testkit".into(),
            is_test: true,
        }
    }

    fn names(programs: &[Program]) -> Vec<&str> {
        programs.iter().map(|program| program.name.as_str()).collect()
    }

    /// Returns a program for each name in a list, and one program that is in no list.
    fn all() -> Vec<Program> {
        let long = SECONDS.iter().map(|(name, _)| *name);
        let listed = OF_THE_HOST.iter().chain(WAITING).copied().chain(long);
        let listed: BTreeSet<_> = listed.chain(["advise"]).collect();
        listed.into_iter().map(named).collect()
    }

    #[test]
    fn each_test_program_runs_once_and_the_longest_starts_first() {
        let count = all().len();
        let Plan { waiting, of_the_host, others } = plan(all()).expect("all names exist");
        assert_eq!(waiting.len() + of_the_host.len() + others.len(), count);
        assert_eq!(names(&of_the_host), OF_THE_HOST);
        assert_eq!(names(&waiting), WAITING);
        assert_eq!(names(&others)[0], "kills");
        assert_eq!(names(&others).last(), Some(&"advise"));
        for list in [of_the_host, others] {
            let expected: Vec<_> = list.iter().map(|program| expected(&program.name)).collect();
            assert!(expected.is_sorted_by(|one, two| one >= two), "{expected:?}");
        }
    }

    #[test]
    fn share_of_idle_time_comes_from_two_readings_of_proc_stat() {
        let begin = Ticks::parse("cpu  10 0 10 70 10 0 0 0 5 0\ncpu0 1 2").expect("all fields");
        assert_eq!(begin, Ticks { all: 100, idle: 80 });
        let end = Ticks::parse("cpu  60 0 60 170 10 0 0 0 9 0").expect("all fields");
        assert_eq!(begin.idle_percent(end), 50);
        assert_eq!(begin.idle_percent(begin), 0);
        assert_eq!(Ticks::parse("intr 1 2"), None);
        assert_eq!(Ticks::parse("cpu  1 2"), None);
    }

    #[test]
    fn listed_test_program_that_does_not_exist_is_an_error() {
        assert!(plan(vec![named("advise")]).is_err());
    }

    #[test]
    fn program_that_takes_much_longer_than_expected_gives_a_warning() {
        let ended = |seconds: f64| Ended {
            name: "tune".into(),
            is_success: true,
            seconds,
            panics: Vec::new(),
        };
        assert_eq!(warning(&ended(OTHER_SECONDS as f64)), None);
        let line = warning(&ended(50.0));
        assert_eq!(line.as_deref(), Some("warning: tune took 50 s, expected 25 s"));
    }
}
