//! Copies results out of the file system of a Slurm job, in the epilog. Lines of the job's script
//! ask for these copies (`skep_deploy::job_lines`).
//!
//! The first node copies for all nodes. The other nodes keep their parts of the data until the
//! first node has written the final state into the record that all nodes share (`job_results`). The
//! record is in the job's file system, so the first node then waits until all other nodes have read
//! the record.
//!
//! # Invariants
//! - No node removes its part before the copy has succeeded and all bytes were compared.
//! - If the copy fails, or if a node does not get the final state, the node keeps its part. The
//!   epilog fails, and Slurm drains the node.
//! - A process with the rights of the user makes each copy. Root opens no path from the script.
//!
//! The invariants concern several nodes and Slurm, so no function here can check them.
//!
//! Held by the tests `stage_out_lines_copy_results_before_removal_of_the_data` and
//! `job_results_stay_until_their_destination_is_repaired`, and by the external check
//! `slurm_jobs_get_an_on_demand_file_system` (the drained nodes).

use super::job_copy::{JobCopy, STALL};
use super::job_results::{Record, Results};
use super::staging;
use crate::account::Account;
use crate::cmd::copy::hosts_as_text;
use crate::output::warn;
use crate::slurm_job::Job;
use skep_copy::outcome::Progress;
use skep_deploy::ondemand::{Command, HostState, OnDemand, Reach, Removal, StageOut};
use skep_types::text::shown;
use skep_types::{Error, ErrorCode, Result};
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time between two reads of the record.
const POLL: Duration = Duration::from_secs(1);
/// Time without a new state after which a node stops waiting. The first node writes its progress
/// every 10 s. Before the first node begins the copy, Slurm may need minutes to end the last task
/// and to begin the epilog of the first node.
const SILENCE: Duration = STALL;
/// Time for which the first node waits until all other nodes have read the final state. The epilogs
/// of all nodes begin at about the same time.
const READERS: Duration = Duration::from_secs(120);
/// If the first node fails to copy the results, the other nodes wait this time for its next
/// attempt.
const NEW_ATTEMPT: Duration = Duration::from_secs(30);
/// Time for which a mount may show an older state of names and sizes (`docs/semantics.md` 1.2).
const CACHED: Duration = Duration::from_millis(1500);
/// Time limit of the check whether the source exists, in seconds.
const LOOK_SECONDS: u32 = 60;
/// Exit code of [`LOOK`] if no entry has the path. Shells and `setpriv` use other codes for their
/// own failures.
const MISSING: i32 = 44;
/// Shell script that looks for the entry with the path `$1`. `[ -e ]` would not distinguish a
/// missing entry from an entry that the user cannot reach or that the file system cannot show.
const LOOK: &str = r#"
error=$(LC_ALL=C stat -- "$1" 2>&1 >/dev/null) && exit 0
case $error in *': No such file or directory' | *': Not a directory') exit 44 ;; esac
printf '%s\n' "$error" >&2
exit 1
"#;
/// Maximum length of a program's error text in a message.
const MOST_REASON: usize = 300;

/// In the prolog, records on this node the copies that must succeed before the file system is
/// removed. Each node except the first also records that this node will read the final state.
///
/// # Errors
/// `Io` if this node cannot record the copies.
pub(super) fn note(
    system: &mut OnDemand,
    job: &Job,
    here: &str,
    outputs: Vec<StageOut>,
) -> Result<()> {
    if outputs.is_empty() {
        return Ok(());
    }
    system.stage_out = outputs;
    system.owner = Some(job.user());
    system.check()?;
    let is_first = system.hosts.first().is_some_and(|it| it == here);
    let record = Record::at(&system.mount);
    match is_first {
        true => show_running(&record)?,
        false => record.add_reader(here)?,
    }
    let noted = system.run(Command::KeepOfJob, None, &Reach::Here(here.to_owned()))?;
    match super::args::failure("record the stage-out of", &noted) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// Writes into the record that the job has not ended yet.
///
/// # Errors
/// `Io` if the record cannot be written.
pub(super) fn show_running(record: &Record) -> Result<()> {
    record
        .write(&Results::Pending("the job has not ended, so its results are not copied yet".into()))
}

/// Writes into the record that the job does not begin, so that no epilog waits for results.
///
/// # Errors
/// `Io` if the record cannot be written.
pub(super) fn note_never_begun(system: &OnDemand) -> Result<()> {
    Record::at(&system.mount).write(&Results::NeverBegun)
}

/// Copies the results on the first node, and waits for the end of this copy on the other nodes.
/// Then permits the removal of `system`. Does nothing if no line of the script asks for a copy.
///
/// # Errors
/// An error means that the file system must not be removed.
pub(super) fn save(system: &mut OnDemand, reach: &Reach) -> Result<()> {
    let status = system.run(Command::Status, None, reach)?;
    let Some(state) = status.hosts.first() else { return Ok(()) };
    let Some(user) = state.job_user else { return Ok(()) };
    // If a file `.skep-hold` protects the data, the script refuses the removal anyway. So no copy
    // is necessary.
    if state.stage_out.is_empty() || state.since.is_none() || state.hold.is_some() {
        return Ok(());
    }
    let job = Job::of_epilog(user)?;
    match state.is_first {
        true => copy_all(system, state, &job)?,
        false => wait(system, state)?,
    }
    system.removal = Removal::Saved;
    Ok(())
}

fn copy_all(system: &OnDemand, state: &HostState, job: &Job) -> Result<()> {
    let record = Record::at(&system.mount);
    // When the state is `Saved`, other nodes remove their parts. If this epilog is killed after the
    // state is `Saved`, and runs again, another copy would wait for the removed parts.
    if !matches!(record.read(), Ok(Some(Results::NeverBegun | Results::Saved))) {
        copy_outputs(system, state, job, &record)?;
    }
    await_readers(&record)
}

fn copy_outputs(system: &OnDemand, state: &HostState, job: &Job, record: &Record) -> Result<()> {
    let fail = |source: &str, error: &Error| {
        let reason = error.context();
        let what = format!(
            "cannot stage out {source}: {reason}; {}; repair the cause, and run the epilogs of all \
             nodes again at the same time, or delete the data with --discard",
            place(system, state)
        );
        job.report(&what);
        if let Err(error) = record.write(&Results::Failed(what.clone())) {
            warn(&format!(
                "cannot record for the other nodes of the job that the stage-out of {source} \
                 failed: {error}; these nodes wait for a time limit, and then keep their parts of \
                 the file system"
            ));
        }
        Error::new(error.code(), what)
    };
    let begun = Results::Pending("the first node begins to stage out".into());
    record.write(&begun).map_err(|error| fail(&system.mount, &error))?;
    // Wait until this mount shows the last changes that a program made on another node.
    sleep(CACHED);
    for it in state.stage_out.iter().filter_map(|it| StageOut::parse(it)) {
        copy(system, state, job, record, &it).map_err(|error| fail(&it.source, &error))?;
    }
    // If the write of the state fails, the other nodes keep their parts.
    record.write(&Results::Saved).map_err(|error| {
        error.within(format!(
            "the results of {} are staged out, but the other nodes of the job may not have \
             received this state, and then keep their parts of the file system; run the epilogs of \
             all nodes again at the same time",
            system.name
        ))
    })
}

/// Waits until the other nodes have read the final state.
fn await_readers(record: &Record) -> Result<()> {
    let begun = Instant::now();
    loop {
        let readers = record.readers()?;
        if readers.is_empty() {
            return Ok(());
        }
        if begun.elapsed() >= READERS {
            warn(&format!(
                "hosts {} have not confirmed within {} s that the results are staged out; if these \
                 hosts keep their parts of the file system, remove the parts there with `skep \
                 ondemand stop --job --discard`",
                skep_deploy::ondemand::shown(&readers),
                READERS.as_secs()
            ));
            return Ok(());
        }
        sleep(POLL);
    }
}

fn copy(
    system: &OnDemand,
    state: &HostState,
    job: &Job,
    record: &Record,
    output: &StageOut,
) -> Result<()> {
    if !state.is_mounted {
        let what = format!("the file system is not mounted on {}", state.host);
        return Err(Error::new(ErrorCode::Disconnected, what));
    }
    check_servers(system, &state.host)?;
    let account = Account::of(job.user())?;
    if is_missing(account, &output.source)? {
        if job.has_succeeded() {
            let what = "it does not exist, although the job has succeeded; check the path after \
                        `#SKEP stage-out`";
            return Err(Error::new(ErrorCode::NotFound, what));
        }
        warn(&format!(
            "did not stage out {}: the job has failed, and no entry with this path exists",
            output.source
        ));
        return Ok(());
    }
    let copy = JobCopy {
        job,
        host: &state.host,
        source: &output.source,
        destination: &output.destination,
        sync: true,
    };
    let outcome = copy.run(&mut |progress| {
        show_progress(record, "staging out", &output.source, progress);
        check_servers(system, &state.host)
    })?;
    warn(&format!("staged out {}: {}", output.source, hosts_as_text(&outcome)));
    Ok(())
}

/// Checks that no storage server is lost. Without this check, the copy would wait for a lost server
/// until [`STALL`].
///
/// # Errors
/// `Disconnected` with the names of the lost servers.
fn check_servers(system: &OnDemand, here: &str) -> Result<()> {
    let status = system.run(Command::Status, None, &Reach::Here(here.to_owned()))?;
    match staging::lost_servers(&status.hosts) {
        Some(lost) => Err(Error::new(ErrorCode::Disconnected, lost)),
        None => Ok(()),
    }
}

/// Shows the progress of a copy to `skep ondemand status` and to the other nodes.
pub(super) fn show_progress(record: &Record, verb: &str, source: &str, progress: &Progress) {
    let Progress { found, done, bytes, elapsed, .. } = progress;
    let seconds = elapsed.as_secs();
    let text =
        format!("{verb} {source}: {done} of {found} files, {bytes} bytes, after {seconds} s");
    if let Err(error) = record.write(&Results::Pending(text)) {
        warn(&format!(
            "cannot record the progress of the copy of {source} for `skep ondemand status` and the \
             other nodes of the job: {error}"
        ));
    }
}

/// Returns whether no entry has this path, according to a process with the rights of the user.
fn is_missing(account: Account, path: &str) -> Result<bool> {
    let words = ["sh", "-c", LOOK, "sh", path];
    look(account.command(LOOK_SECONDS, &words.map(str::to_owned)), path)
}

/// Runs a command that executes [`LOOK`] with `path`. Returns whether no entry has this path.
///
/// # Errors
/// `Io` if the command could not determine whether the entry exists. The entry must then count as
/// existing, because the file system is removed when no entry is left to copy.
fn look(mut command: std::process::Command, path: &str) -> Result<bool> {
    let output = command.stdin(Stdio::null()).output()?;
    match output.status.code() {
        Some(0) => Ok(false),
        Some(MISSING) => Ok(true),
        _ => {
            let reason = String::from_utf8_lossy(&output.stderr);
            let reason = shown(reason.trim(), MOST_REASON);
            let what = format!("cannot check whether {path} exists: {reason} ({})", output.status);
            Err(Error::new(ErrorCode::Io, what))
        }
    }
}

/// Waits until the first node has copied the results.
fn wait(system: &OnDemand, state: &HostState) -> Result<()> {
    let record = Record::at(&system.mount);
    let here = state.address.as_deref().unwrap_or(&state.host);
    let kept = |reason: &str| kept(system, state, reason);
    record.begin_wait(here).map_err(|error| kept(&error.to_string()))?;
    let (mut last, mut changed) = (None, Instant::now());
    loop {
        let results = record.read();
        if let Ok(Some(Results::Saved | Results::NeverBegun)) = &results {
            if let Err(error) = record.remove_reader(here) {
                warn(&format!(
                    "cannot confirm to the first node of the job that this node has read the state \
                     of the results: {error}; the first node waits for this confirmation until a \
                     time limit"
                ));
            }
            return Ok(());
        }
        let (shown, limit) = match results {
            // After a failed attempt, the administrator repairs the cause and runs the epilogs of
            // all nodes again. The first node may write the state of its new attempt a moment
            // later.
            Ok(Some(Results::Failed(reason))) => (reason, NEW_ATTEMPT),
            Ok(Some(Results::Pending(text))) => (text, SILENCE),
            Ok(_) => {
                ("no node has recorded whether the results are staged out".to_owned(), SILENCE)
            }
            Err(error) => (error.to_string(), SILENCE),
        };
        if last.as_ref() != Some(&shown) {
            (last, changed) = (Some(shown.clone()), Instant::now());
        }
        if changed.elapsed() >= limit {
            return Err(kept(&shown));
        }
        sleep(POLL);
    }
}

/// Returns the error of a node that keeps its part of the data, because the results are possibly
/// not copied.
fn kept(system: &OnDemand, state: &HostState, reason: &str) -> Error {
    let first = system.hosts.first().map_or("unknown", String::as_str);
    let what = format!(
        "the first node of the job, {first}, has not staged out the results of {} ({reason}); {}. \
         This node keeps its part of the data. When {first} has staged out the results, remove \
         this part with --discard",
        system.name,
        place(system, state)
    );
    Error::new(ErrorCode::Busy, what)
}

fn place(system: &OnDemand, state: &HostState) -> String {
    format!(
        "nothing was removed: the data is on {} of {}, and in the directory {}/skep-ondemand of \
         each node",
        system.mount, state.hosts, system.directory
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_source_of_a_stage_out_does_not_count_as_missing() {
        let scratch = tempfile::TempDir::new().unwrap();
        let path = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
        std::fs::write(path("file"), "x").unwrap();
        std::os::unix::fs::symlink("nowhere", path("broken")).unwrap();
        let is_missing = |name: &str| {
            let mut command = std::process::Command::new("sh");
            command.args(["-c", LOOK, "sh", &path(name)]);
            look(command, name)
        };
        for (name, expected) in
            [("file", false), ("broken", false), ("missing", true), ("file/below", true)]
        {
            assert_eq!(is_missing(name).unwrap(), expected, "{name}");
        }
        // `stat` fails for another reason.
        let error = is_missing(&"n".repeat(300)).unwrap_err();
        assert!(error.context().starts_with("cannot check whether"), "{error}");
    }
}
