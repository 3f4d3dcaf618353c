//! Studies: plans, journals and reports, and complete studies on real clusters.

mod labs;
mod plans;
mod reports;
mod runs;

use rustix::process::{Pid, kill_process};
use serde_json::Value;
use skep_testkit::process::ctrl_c;
use skep_testkit::program::{Finished, finish};
use skep_testkit::schema::{check, check_lines};
use skep_testkit::{Scratch, cluster, files, wait_for};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Maximum duration of a whole study.
const STUDY_PATIENCE: Duration = Duration::from_secs(1200);

fn skep(directory: &Path, arguments: &[&str]) -> Finished {
    let mut command = Command::new(cluster::program());
    finish(command.current_dir(directory).args(arguments), STUDY_PATIENCE)
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Returns the complete lines of a study's journal. An empty list means that the study has no
/// journal yet.
fn journal_of(study: &Path) -> Vec<String> {
    let text = fs::read_to_string(study.join("journal.ndjson")).unwrap_or_default();
    let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    whole.map(|line| line.trim_end().to_owned()).collect()
}

/// Returns the runs in a study's journal.
fn runs_of(study: &Path) -> Vec<Value> {
    let records = journal_of(study).into_iter().map(|line| parse(&line));
    records.filter(|record| record["kind"] == "run").collect()
}

/// Runs a command that must succeed, and checks its output as `ndjson` and then as `json` against
/// the schema. Returns the JSON value.
fn checked(directory: &Path, arguments: &[&str], name: &str) -> Value {
    let run = |format: &str| {
        skep(directory, &[arguments, &["--output", format]].concat()).expect_success()
    };
    check_lines(name, &run("ndjson"));
    let value = parse(&run("json"));
    check(name, &value);
    value
}

/// Writes a plan, and creates the directory in which its runs write. Returns the scratch directory,
/// and the path of the study in this directory.
fn prepare(plan: &str) -> (Scratch, PathBuf) {
    let scratch = Scratch::new();
    files::write(scratch.join("plan.toml"), plan);
    files::create_dir(scratch.join("mount"));
    let study = scratch.join("study");
    (scratch, study)
}

/// Starts a study in the scratch directory, and sends the signal of Ctrl-C to this study after some
/// runs. Calls `before_the_signal` just before the signal. Returns the journal before the signal,
/// and the output of the study.
fn interrupt(
    scratch: &Scratch,
    study: &Path,
    arguments: &[&str],
    before_the_signal: impl FnOnce(),
) -> (Vec<String>, String) {
    let mut command = Command::new(cluster::program());
    command.current_dir(scratch.path()).args(arguments).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::null()).spawn().expect("started");
    let before = wait_for("the study has completed some runs", STUDY_PATIENCE, || {
        let lines = journal_of(study);
        (lines.len() > 4).then_some(lines)
    });
    before_the_signal();
    kill_process(Pid::from_child(&child), ctrl_c()).expect("our own child");
    let status = wait_for("the interrupted study ends", STUDY_PATIENCE, || {
        child.try_wait().expect("our own child")
    });
    assert!(status.success(), "{status}");
    let mut printed = String::new();
    let mut stdout = child.stdout.take().expect("a pipe");
    stdout.read_to_string(&mut printed).expect("text");
    (before, printed)
}
