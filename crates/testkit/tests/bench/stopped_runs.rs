//! Runs of `skep bench io` that end earlier than planned: a process dies or makes no progress, or
//! the user stops the run.

use super::{PATIENCE, bench, names};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use skep_testkit::schema::check;
use skep_testkit::view::Typed;
use skep_testkit::{Scratch, files, process, wait_for};
use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};

/// Returns the child processes of a process, in ascending order of process ids.
fn children(parent: u32) -> Vec<process::Process> {
    let is_child = |it: &process::Process| {
        let status = fs::read_to_string(format!("/proc/{}/status", it.pid)).unwrap_or_default();
        status.lines().any(|line| *line == format!("PPid:\t{parent}"))
    };
    let mut found = process::below(Path::new("bench"));
    found.retain(is_child);
    found
}

/// A benchmark run that ends only when the test stops the run.
struct Endless {
    child: Child,
    scratch: Scratch,
}

/// The result of a benchmark run that the test has stopped.
struct Ended {
    code: Option<i32>,
    outcome: Value,
    error: String,
}

impl Endless {
    fn start(more: &[&str]) -> Self {
        let scratch = Scratch::new();
        let path = scratch.directory("work").join("file").display().to_string();
        let arguments = ["io", "-o", &path, "-i", "9999", "-b", "64m", "-t", "1m", "-F"];
        let child = bench(&[&arguments[..], more].concat())
            .args(["--processes-per-host", "2"])
            .stdin(Stdio::null())
            .stdout(files::create(scratch.join("out")))
            .stderr(files::create(scratch.join("log")))
            .spawn()
            .expect("skep can be started");
        wait_for("files are written", PATIENCE, || {
            (names(&scratch.join("work")).len() == 2).then_some(())
        });
        Self { child, scratch }
    }

    /// Waits until the run has removed the files of its first repetition and created the files of
    /// the next repetition.
    fn wait_for_repetitions(&self) {
        let file = self.scratch.join("work/file.00000000");
        let number = || fs::metadata(&file).and_then(|it| it.created()).ok();
        let first = wait_for("a file", PATIENCE, number);
        wait_for("the file of a later repetition", PATIENCE, || {
            number().filter(|it| *it != first).map(drop)
        });
    }

    fn workers(&self) -> Vec<process::Process> {
        let agents = children(self.child.id());
        assert_eq!(agents.len(), 1, "{agents:?}");
        let workers = children(agents[0].pid);
        assert_eq!(workers.len(), 2, "{workers:?}");
        workers
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("our own child");
    }

    fn end(&mut self) -> Ended {
        let status = wait_for("the stopped benchmark ends", PATIENCE, || {
            self.child.try_wait().expect("our child")
        });
        let read = |name: &str| files::read_to_string(self.scratch.join(name));
        let outcome = serde_json::from_str(&read("out")).unwrap_or_default();
        Ended { code: status.code(), outcome, error: read("log") }
    }

    fn wait_for_clean(&self) {
        wait_for("the benchmark removes its files", PATIENCE, || {
            names(&self.scratch.join("work")).is_empty().then_some(())
        });
    }
}

#[test]
fn io_bench_keeps_its_results_when_a_process_dies() {
    let mut run = Endless::start(&["--output", "json"]);
    run.wait_for_repetitions();
    run.workers()[1].kill();
    let ended = run.end();
    assert_eq!(ended.code, Some(1), "{}", ended.error);
    check("bench-io", &ended.outcome);
    assert!(ended.outcome["phases"].list().len() >= 2);
    let why = ended.outcome["failure"].text();
    assert!(why.contains("has ended too early: killed by signal 9"), "{why}");
    assert!(ended.error.contains("signal 9"), "{}", ended.error);
    run.wait_for_clean();
}

#[test]
fn io_bench_ends_when_a_process_makes_no_progress() {
    let mut run = Endless::start(&["--output", "json", "--patience", "10"]);
    run.wait_for_repetitions();
    let workers = run.workers();
    workers.iter().for_each(|worker| worker.signal(Signal::STOP));
    let ended = run.end();
    assert_eq!(ended.code, Some(1), "{}", ended.error);
    let why = ended.outcome["failure"].as_str().unwrap_or(&ended.error);
    assert!(why.contains("no process made progress for 10 s"), "{why}");
    // After the suspended worker processes have resumed, they remove their files.
    workers.iter().for_each(|worker| worker.signal(Signal::CONT));
    run.wait_for_clean();
}

#[test]
fn io_bench_removes_its_files_after_ctrl_c_and_kill() {
    let mut run = Endless::start(&["--output", "json"]);
    run.wait_for_repetitions();
    run.signal(process::ctrl_c());
    let ended = run.end();
    assert_eq!(ended.outcome["failure"], "interrupted", "{}", ended.error);
    run.wait_for_clean();
    let mut run = Endless::start(&[]);
    let workers = run.workers();
    run.signal(Signal::KILL);
    run.end();
    run.wait_for_clean();
    wait_for("the processes of the benchmark end", PATIENCE, || {
        (!workers.iter().any(process::Process::runs)).then_some(())
    });
}
