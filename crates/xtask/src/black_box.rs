//! The step `black-box` of CI: runs the test programs of `skep-testkit`, two at a time.
//!
//! The tests of a program run one at a time, since each test starts a whole cluster. The tests
//! spend most of their time waiting, so two programs can share two cores. Programs in
//! [`OF_THE_HOST`] check the state of the whole host, so they run after all others.
//!
//! The step ends with a table of the programs and their times, the slowest first. [`SECONDS`] has
//! the expected times.

use crate::built::{self, Program, RELEASE_TESTS};
use crate::repository::{Outcome, root, run as call};
use crate::suites;
use std::collections::VecDeque;
use std::fmt::Write;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

/// Programs that compare the contents of directories of the host before and after a test. Each of
/// their hosts has its own `/run`, so these programs do not see each other's networks and can run
/// at the same time. All other programs must have ended.
const OF_THE_HOST: &[&str] = &["deploy", "ondemand", "staging"];

/// Expected times of the programs that take long, in seconds, on a host with two cores and two
/// programs at a time. The program with the longest time starts first, so that both workers end at
/// nearly the same time. After a change of the tests, take the times from the table that the step
/// prints.
#[rustfmt::skip]
const SECONDS: &[(&str, u64)] = &[
    ("metadata_groups", 290), ("deploy", 230), ("packages", 220), ("ondemand", 180),
    ("power_losses", 110), ("locks", 100), ("posix", 100), ("kills", 90), ("notifications", 85),
    ("several_hosts", 85), ("staging", 80), ("bench", 76), ("coherence", 76), ("mount_ends", 76),
    ("studies", 73), ("output", 73), ("large", 70), ("monitor", 63), ("lab", 60),
    ("power_of_hosts", 50), ("administration", 47), ("patterns", 47), ("templates", 47),
    ("model", 40), ("programs", 40), ("tutorials", 40), ("up", 38), ("failing_disks", 37),
    ("suites", 33), ("debug_bundle", 32), ("mount_helper", 30), ("stalled_mounts", 31),
];

/// Expected time of each other program, in seconds.
const OTHER_SECONDS: u64 = 25;

/// Number of programs that run at the same time.
const WORKERS: usize = 2;

/// A test program that has ended.
struct Ended {
    name: String,
    is_success: bool,
    seconds: f64,
}

impl Ended {
    fn word(&self) -> &'static str {
        if self.is_success { "ok" } else { "FAILED" }
    }

    /// Whether the program took at least one and a half times as long as expected.
    fn is_slow(&self) -> bool {
        self.seconds >= expected(&self.name) as f64 * 1.5
    }
}

/// Returns the expected time of a program in seconds.
fn expected(name: &str) -> u64 {
    SECONDS.iter().find(|(long, _)| *long == name).map_or(OTHER_SECONDS, |(_, seconds)| *seconds)
}

/// Builds the programs and runs all of them.
///
/// # Errors
/// Lists the programs that had a failed test.
pub(crate) fn run() -> Outcome {
    suites::run()?;
    // The tests run the programs `skep` and `xtask`.
    let cargo = env!("CARGO");
    call(cargo, &["build", "--release", "--package", "skep-ctl", "--package", "xtask"], &[])?;
    let package = root().join("crates/testkit");
    let mut programs = built::programs(RELEASE_TESTS)?;
    programs.retain(|program| program.is_test && program.package == package);
    let (shared, of_the_host) = split(programs)?;
    let begin = Instant::now();
    let mut ended = run_all(shared, WORKERS)?;
    ended.extend(run_all(of_the_host, WORKERS)?);
    println!("\n{}", table(&mut ended));
    println!("{} programs ran for {:.1} s", ended.len(), begin.elapsed().as_secs_f64());
    let failed = ended.into_iter().filter(|program| !program.is_success);
    let mut failed: Vec<_> = failed.map(|program| program.name).collect();
    if call(cargo, &[RELEASE_TESTS, &["--doc"]].concat(), &[]).is_err() {
        failed.push("examples in comments".into());
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}

/// Sorts the programs by their times, the slowest first. Returns a line for each program, and a
/// warning for each program that took much longer than expected.
fn table(ended: &mut [Ended]) -> String {
    ended.sort_by(|one, two| two.seconds.total_cmp(&one.seconds));
    let mut text = String::new();
    for program in ended.iter() {
        let Ended { name, seconds, .. } = program;
        writeln!(text, "{name:<22} {:<6} {seconds:>7.1} s", program.word())
            .expect("a string takes all text");
    }
    for Ended { name, seconds, .. } in ended.iter().filter(|program| program.is_slow()) {
        let expected = expected(name);
        writeln!(text, "warning: {name} took {seconds:.0} s, expected {expected} s")
            .expect("a string takes all text");
    }
    text
}

/// Returns the programs that may run at the same time as all others, and the programs that check
/// the host. Both lists begin with the program that is expected to take the longest time.
fn split(mut programs: Vec<Program>) -> Outcome<(Vec<Program>, Vec<Program>)> {
    for name in OF_THE_HOST.iter().chain(SECONDS.iter().map(|(name, _)| name)) {
        if !programs.iter().any(|program| program.name == *name) {
            return Err(format!("no test program is called {name}: correct black_box.rs"));
        }
    }
    programs.sort_by_key(|program| std::cmp::Reverse(expected(&program.name)));
    let checks_host = |program: &Program| OF_THE_HOST.contains(&program.name.as_str());
    let (of_the_host, shared) = programs.into_iter().partition(checks_host);
    Ok((shared, of_the_host))
}

/// Runs programs on a number of workers.
fn run_all(programs: Vec<Program>, workers: usize) -> Outcome<Vec<Ended>> {
    let queue = Mutex::new(VecDeque::from(programs));
    let work = || -> Outcome<Vec<Ended>> {
        let mut ended = Vec::new();
        loop {
            let next = queue.lock().expect("no worker panics").pop_front();
            let Some(program) = next else { return Ok(ended) };
            ended.push(run_one(program)?);
        }
    };
    let outcomes: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no worker panics")).collect()
    });
    Ok(outcomes.into_iter().collect::<Outcome<Vec<_>>>()?.into_iter().flatten().collect())
}

/// Runs one program, and prints its output when it has ended.
fn run_one(program: Program) -> Outcome<Ended> {
    let logs = root().join("target/black-box");
    fs::create_dir_all(&logs).map_err(|error| format!("{}: {error}", logs.display()))?;
    let log = logs.join(format!("{}.log", program.name));
    let begin = Instant::now();
    let is_success = run_into(&log, &program)
        .map_err(|error| format!("{}: {error}", program.executable.display()))?;
    let text = fs::read(&log).map_err(|error| format!("{}: {error}", log.display()))?;
    let seconds = begin.elapsed().as_secs_f64();
    let ended = Ended { name: program.name, is_success, seconds };
    // Print the whole text in one call, so that the lines of two programs do not mix.
    let (name, word) = (&ended.name, ended.word());
    println!("{}\n{name} {word} {seconds:.1} s", String::from_utf8_lossy(&text));
    Ok(ended)
}

/// Runs a program as `cargo test` does, with both output streams in one file.
///
/// Each program has its own mount namespace. A mount stays until the last mount namespace with a
/// copy of it ends, and programs create such namespaces (`ip netns exec` does). Without this, a
/// namespace of one program could keep the mounts of another program that runs at the same time.
fn run_into(log: &Path, program: &Program) -> std::io::Result<bool> {
    let out = File::create(log)?;
    let errors = out.try_clone()?;
    let status = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--"])
        .arg(&program.executable)
        .args(["--test-threads", "1"])
        .env("CARGO", env!("CARGO"))
        .env("CARGO_MANIFEST_DIR", &program.package)
        .current_dir(&program.package)
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(errors)
        .status()?;
    Ok(status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn programs_that_check_the_host_run_after_all_others() {
        let long = SECONDS.iter().map(|(name, _)| *name);
        let programs = ["advise"].into_iter().chain(long).map(named).collect();
        let (shared, of_the_host) = split(programs).expect("all names exist");
        assert_eq!(names(&of_the_host), OF_THE_HOST);
        assert!(names(&shared).iter().all(|name| !OF_THE_HOST.contains(name)));
        assert_eq!(shared.len() + of_the_host.len(), SECONDS.len() + 1);
        assert!(split(vec![named("advise")]).is_err(), "a list names an absent program");
    }

    #[test]
    fn programs_that_take_longest_start_first() {
        let long = SECONDS.iter().map(|(name, _)| *name).rev();
        let (shared, _) = split(["advise"].into_iter().chain(long).map(named).collect())
            .expect("all names exist");
        assert_eq!(shared[0].name, "metadata_groups");
        assert_eq!(shared.last().expect("not empty").name, "advise");
        let expected: Vec<_> = shared.iter().map(|program| expected(&program.name)).collect();
        assert!(expected.is_sorted_by(|one, two| one >= two), "{expected:?}");
    }

    #[test]
    fn table_begins_with_the_slowest_program_and_warns_of_slow_ones() {
        let ended = |name: &str, is_success: bool, seconds: f64| Ended {
            name: name.into(),
            is_success,
            seconds,
        };
        let slow = OTHER_SECONDS as f64 * 2.0;
        let mut ended =
            [ended("advise", true, 3.0), ended("up", false, 39.04), ended("tune", true, slow)];
        let text = table(&mut ended);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "tune                   ok        50.0 s");
        assert_eq!(lines[1], "up                     FAILED    39.0 s");
        assert_eq!(lines[2], "advise                 ok         3.0 s");
        assert_eq!(lines[3..], ["warning: tune took 50 s, expected 25 s"]);
    }
}
