//! The step `black-box` of CI: runs the test programs of `skep-testkit`, two at a time.
//!
//! The tests of a program run one at a time, since each test starts a whole cluster. The tests
//! spend most of their time waiting, so two programs can share two cores. Each program in [`ALONE`]
//! checks the state of the whole host, so it runs while no other program runs.

use crate::repository::{Outcome, root, run as call};
use crate::suites;
use serde_json::Value;
use std::collections::VecDeque;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

/// Programs that run alone. They compare the contents of directories of the host, or use fixed
/// ports for the programs that they start.
const ALONE: &[&str] = &["deploy", "ondemand", "staging"];

/// Programs that take minutes. They start first, so that no worker has to wait for one of them at
/// the end.
const LONG: &[&str] =
    &["metadata_groups", "large", "packages", "posix", "studies", "power_losses", "kills", "locks"];

/// Number of programs that run at the same time.
const WORKERS: usize = 2;

/// A built test program.
struct Program {
    name: String,
    executable: PathBuf,
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
    let (shared, alone) = split(programs()?)?;
    let mut failed = run_all(shared, WORKERS)?;
    failed.extend(run_all(alone, 1)?);
    let documents = ["test", "--release", "--package", "skep-testkit", "--doc"];
    if call(cargo, &documents, &[]).is_err() {
        failed.push("examples in comments".into());
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}

/// Returns the built test programs of `skep-testkit`.
fn programs() -> Outcome<Vec<Program>> {
    let build = ["test", "--release", "--package", "skep-testkit", "--no-run"];
    let output = Command::new(env!("CARGO"))
        .args(build)
        .args(["--message-format", "json-render-diagnostics"])
        .current_dir(root())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo {}: {}", build.join(" "), output.status));
    }
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| program(line).transpose())
        .collect()
}

/// Returns the test program that a message of cargo names. `None` means that the message is not
/// about a test program.
fn program(message: &str) -> Outcome<Option<Program>> {
    let message: Value =
        serde_json::from_str(message).map_err(|error| format!("message of cargo: {error}"))?;
    let is_test = message["profile"]["test"] == Value::Bool(true);
    let (Some(executable), true) = (message["executable"].as_str(), is_test) else {
        return Ok(None);
    };
    let name = message["target"]["name"].as_str().ok_or("a test program of cargo has no name")?;
    Ok(Some(Program { name: name.into(), executable: executable.into() }))
}

/// Returns the programs that may run at the same time as others, the long ones first, and the
/// programs that run alone.
fn split(programs: Vec<Program>) -> Outcome<(Vec<Program>, Vec<Program>)> {
    for name in ALONE.iter().chain(LONG) {
        if !programs.iter().any(|program| program.name == *name) {
            return Err(format!("no test program is called {name}: correct black_box.rs"));
        }
    }
    let (alone, mut shared): (Vec<_>, Vec<_>) =
        programs.into_iter().partition(|program| ALONE.contains(&program.name.as_str()));
    let position = |name: &str| LONG.iter().position(|long| *long == name);
    shared.sort_by_key(|program| position(&program.name).unwrap_or(LONG.len()));
    Ok((shared, alone))
}

/// Runs programs on a number of workers. Returns the names of the programs that failed.
fn run_all(programs: Vec<Program>, workers: usize) -> Outcome<Vec<String>> {
    let queue = Mutex::new(VecDeque::from(programs));
    let failed = Mutex::new(Vec::new());
    let work = || -> Outcome {
        loop {
            let next = queue.lock().expect("no worker panics").pop_front();
            let Some(program) = next else { return Ok(()) };
            if !run_one(&program)? {
                failed.lock().expect("no worker panics").push(program.name);
            }
        }
    };
    let outcomes: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no worker panics")).collect()
    });
    outcomes.into_iter().collect::<Outcome>()?;
    Ok(failed.into_inner().expect("no worker panics"))
}

/// Runs one program, and prints its output when it has ended. Returns whether all tests passed.
fn run_one(program: &Program) -> Outcome<bool> {
    let package = root().join("crates/testkit");
    let logs = root().join("target/black-box");
    fs::create_dir_all(&logs).map_err(|error| format!("{}: {error}", logs.display()))?;
    let log = logs.join(format!("{}.log", program.name));
    let begin = Instant::now();
    let is_success = run_into(&log, program, &package)
        .map_err(|error| format!("{}: {error}", program.executable.display()))?;
    let text = fs::read(&log).map_err(|error| format!("{}: {error}", log.display()))?;
    let word = if is_success { "ok" } else { "FAILED" };
    let seconds = begin.elapsed().as_secs_f64();
    // Print the whole text in one call, so that the lines of two programs do not mix.
    println!("{}\n{} {word} {seconds:.1} s", String::from_utf8_lossy(&text), program.name);
    Ok(is_success)
}

/// Runs a program as `cargo test` does, with both output streams in one file.
///
/// Each program has its own mount namespace. A mount stays until the last mount namespace with a
/// copy of it ends, and programs create such namespaces (`ip netns exec` does). Without this, a
/// namespace of one program could keep the mounts of another program that runs at the same time.
fn run_into(log: &Path, program: &Program, package: &Path) -> std::io::Result<bool> {
    let out = File::create(log)?;
    let errors = out.try_clone()?;
    let status = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--"])
        .arg(&program.executable)
        .args(["--test-threads", "1"])
        .env("CARGO", env!("CARGO"))
        .env("CARGO_MANIFEST_DIR", package)
        .current_dir(package)
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
        Program { name: name.into(), executable: PathBuf::new() }
    }

    #[test]
    fn only_test_programs_are_taken_from_the_messages_of_cargo() {
        let message = |test: bool, executable: &str| {
            format!(
                "{{\"reason\":\"compiler-artifact\",\"target\":{{\"name\":\"locks\"}},\
                 \"profile\":{{\"test\":{test}}},\"executable\":{executable}}}"
            )
        };
        let found = program(&message(true, "\"/locks\"")).expect("valid").expect("a test");
        assert_eq!((found.name.as_str(), found.executable), ("locks", "/locks".into()));
        for other in [message(true, "null"), message(false, "\"/skep\""), "{}".into()] {
            assert!(program(&other).expect("valid").is_none(), "{other}");
        }
        assert!(program("text").is_err());
    }

    #[test]
    fn test_programs_for_the_whole_host_run_alone() {
        let names = ["up"].iter().chain(ALONE).chain(LONG).map(|name| named(name)).collect();
        let (shared, alone) = split(names).expect("all names exist");
        assert_eq!(alone.iter().map(|it| &it.name[..]).collect::<Vec<_>>(), ALONE);
        assert_eq!(shared[0].name, LONG[0]);
        assert_eq!(shared.last().expect("not empty").name, "up");
        assert!(split(vec![named("up")]).is_err(), "a list names a program that does not exist");
    }
}
