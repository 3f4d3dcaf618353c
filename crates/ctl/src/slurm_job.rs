//! Finds the name, the nodes and the script of the Slurm job that this process belongs to, and
//! holds this job. Uses the environment variables of the job, and `scontrol`.
//!
//! # The race between a prolog and the end of its job
//! slurmd starts the script of a job after the prolog has ended. If `slurmctld` has notified slurmd
//! that the job has ended, slurmd does not start the script. But this notification may come too
//! late, so the script may start although the prolog has held the job. For this reason,
//! [`Job::refuse`] first creates a file. `deploy/slurm/task-prolog.sh` runs before each task, and
//! ends the task if this file exists.
//!
//! The user of the job chooses its name, its script, and the path of its output. Root opens neither
//! this path nor a path in the script, and passes such texts to other programs only as single
//! arguments.

use crate::account::Account;
use crate::output::warn;
use skep_types::text::shown;
use skep_types::{Error, ErrorCode, Result};
use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Returns the nodes of the Slurm job of this process.
///
/// # Errors
/// - `Configuration` if this process does not belong to a job.
/// - `NotFound` if `scontrol` cannot expand the list of nodes.
pub(crate) fn job_hosts() -> Result<Vec<String>> {
    node_names(&job_variable(&["SLURM_JOB_NODELIST", "SLURM_NODELIST"])?)
}

/// Returns the name of the on-demand file system that belongs to the job of this process.
///
/// # Errors
/// `Configuration` if this process does not belong to a job.
pub(crate) fn name_of_job() -> Result<String> {
    Ok(format!("job-{}", job_variable(&["SLURM_JOB_ID"])?))
}

/// Returns the value of the first environment variable in `names` that is set.
///
/// # Errors
/// `Configuration` if no variable in `names` is set.
pub(crate) fn job_variable(names: &[&str]) -> Result<String> {
    let value = names.iter().find_map(|name| std::env::var(name).ok());
    value.filter(|value| !value.is_empty()).ok_or_else(|| {
        let what = format!(
            "cannot use --job: the environment variable {} is not set; run the command in the job \
             (skep copy), or in the prolog or epilog of slurmd (skep ondemand), or name the hosts \
             with --hosts",
            names.join(" or ")
        );
        Error::new(ErrorCode::Configuration, what)
    })
}

/// Directory with a file for each job on this node whose tasks must not begin. The name of the file
/// is the id of the job. `deploy/slurm/task-prolog.sh` contains the same path. Only root can write
/// to the directory.
const REFUSED: &str = "/run/skep-refused-jobs";
/// Maximum number of characters of a reason in the comment of a job.
const MOST_REASON: usize = 1000;
/// Time limit for appending a line to the output of a job, in seconds. The output may be a pipe
/// that no program reads.
const LINE_SECONDS: u32 = 10;

/// The Slurm job of the prolog or epilog to which this process belongs.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    id: String,
    user: u32,
}

impl Job {
    /// Returns the job of this process.
    ///
    /// # Errors
    /// `Configuration` if this process does not belong to a prolog.
    pub(crate) fn of_prolog() -> Result<Self> {
        let id = number("SLURM_JOB_ID")?.to_string();
        Ok(Self { id, user: number("SLURM_JOB_UID")? })
    }

    /// Returns the job of this process, which may be an epilog. `user` is the user of the job.
    ///
    /// # Errors
    /// `Configuration` if this process does not belong to a job.
    pub(crate) fn of_epilog(user: u32) -> Result<Self> {
        Ok(Self { id: number("SLURM_JOB_ID")?.to_string(), user })
    }

    /// Returns the job id.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Returns the user of the job.
    pub(crate) fn user(&self) -> u32 {
        self.user
    }

    /// Returns the batch script of the job. The text is empty if the job has no script, for example
    /// a job of `salloc`.
    ///
    /// # Errors
    /// `NotFound` if Slurm does not send the script.
    pub(crate) fn script(&self) -> Result<String> {
        let result = scontrol(&["write", "batch_script", &self.id, "-"]);
        if result.is_err() && self.facts().split_whitespace().any(|it| it == "BatchFlag=0") {
            return Ok(String::new());
        }
        result.map_err(|reason| {
            let what = format!("cannot read the script of job {}: {reason}", self.id);
            Error::new(ErrorCode::NotFound, what)
        })
    }

    /// Returns the properties of the job that `scontrol` prints. The text is empty if Slurm does
    /// not answer.
    fn facts(&self) -> String {
        scontrol(&["show", "job", &self.id]).unwrap_or_default()
    }

    /// Whether the job has ended, for example because its user has cancelled it. If Slurm does not
    /// answer, the job counts as running.
    pub(crate) fn has_ended(&self) -> bool {
        has_ended(&self.facts())
    }

    /// Whether the script of the job has ended with the exit code 0. If Slurm does not answer, the
    /// job counts as a success.
    pub(crate) fn has_succeeded(&self) -> bool {
        let facts = self.facts();
        let code = facts.split_whitespace().find_map(|it| it.strip_prefix("ExitCode="));
        code.is_none_or(|it| it == "0:0") && !facts.contains("JobState=CANCELLED")
    }

    /// Appends a reason to the output of the job, for its user.
    pub(crate) fn report(&self, reason: &str) {
        if let (Ok(account), Some(output)) = (Account::of(self.user), output_of(&self.facts())) {
            append(account, output, &format!("skep: {reason}"));
        }
    }

    /// Prevents all tasks of the job from beginning on this node, until a call of [`allow_tasks`].
    ///
    /// # Errors
    /// `Io` if the file cannot be written. After this error, the prolog must fail.
    pub(crate) fn refuse(&self) -> Result<()> {
        refuse_in(Path::new(REFUSED), &self.id)
    }

    /// Holds the job, so that Slurm does not start its script, and shows the reason to its user.
    /// The user corrects the input and releases the job. Cancels the job if Slurm cannot requeue
    /// it. A job that has ended stays unchanged.
    pub(crate) fn hold(&self, reason: &str) {
        if self.has_ended() {
            return;
        }
        let comment = format!("AdminComment={}", shown(&format!("skep: {reason}"), MOST_REASON));
        if let Err(error) = scontrol(&["update", &format!("JobId={}", self.id), &comment]) {
            warn(&format!("cannot write the comment of job {}: {error}", self.id));
        }
        self.report(reason);
        if scontrol(&["requeuehold", "State=SpecialExit", &self.id]).is_ok() {
            return;
        }
        if let Err(error) = run("scancel", &[&self.id]) {
            warn(&format!("cannot hold or cancel job {}: {error}", self.id));
        }
    }
}

/// Permits the tasks of this process's Slurm job on this node: removes the file that
/// [`Job::refuse`] has created. A job that its user releases (`scontrol release`) keeps its job id.
/// Without the removal, the file would also refuse the tasks at the next start of the job.
///
/// # Errors
/// `Configuration` if this process does not belong to a job, and `Io` if the file cannot be
/// removed.
pub(crate) fn allow_tasks() -> Result<()> {
    allow_in(Path::new(REFUSED), &number("SLURM_JOB_ID")?.to_string())
}

fn refuse_in(directory: &Path, job: &str) -> Result<()> {
    // A task has the rights of its user and must see the file, with any umask of slurmd.
    let write = || {
        fs::create_dir_all(directory)?;
        fs::set_permissions(directory, Permissions::from_mode(0o755))?;
        fs::write(directory.join(job), "")
    };
    write().map_err(|error| {
        let what = format!(
            "cannot prevent the start of tasks of job {job} by a file in {}",
            directory.display()
        );
        Error::from(error).within(what)
    })
}

fn allow_in(directory: &Path, job: &str) -> Result<()> {
    match fs::remove_file(directory.join(job)) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            let what = format!(
                "cannot let the tasks of job {job} start on this node: cannot remove {}",
                directory.join(job).display()
            );
            Err(Error::from(error).within(what))
        }
        _ => Ok(()),
    }
}

/// Returns the number in the environment variable `name` of the job.
fn number(name: &str) -> Result<u32> {
    let text = job_variable(&[name])?;
    text.parse().map_err(|_| {
        let what = format!("invalid {name} '{text}': expected a number");
        Error::new(ErrorCode::Configuration, what)
    })
}

/// Whether the properties of a job in `facts` show that the job has ended.
fn has_ended(facts: &str) -> bool {
    let state = facts.split_whitespace().find_map(|it| it.strip_prefix("JobState="));
    state.is_some_and(|it| !["PENDING", "CONFIGURING", "RUNNING"].contains(&it))
}

/// Returns the path of the job's output from the properties of the job in `facts`.
fn output_of(facts: &str) -> Option<&str> {
    let path = facts.lines().find_map(|it| it.trim_start().strip_prefix("StdOut="))?;
    path.starts_with('/').then_some(path)
}

/// Appends a line to a file, with the rights of a user.
fn append(account: Account, path: &str, line: &str) {
    let words = ["sh", "-c", "printf '%s\\n' \"$2\" >>\"$1\"", "sh", path, line];
    let mut command = account.command(LINE_SECONDS, &words.map(str::to_owned));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if !command.status().is_ok_and(|it| it.success()) {
        warn(&format!(
            "cannot append a message to the output file {} of the job",
            shown(path, MOST_REASON)
        ));
    }
}

/// Runs `scontrol`, and returns its output, or the reason why `scontrol` failed.
fn scontrol(arguments: &[&str]) -> Result<String, String> {
    run("scontrol", arguments)
}

fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|error| {
        format!("cannot run {program}: {error}; check that {program} is in the PATH")
    })?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

/// Expands Slurm's form of a list of nodes, such as `n[1-4]`, with the program `scontrol`.
fn node_names(list: &str) -> Result<Vec<String>> {
    let output = scontrol(&["show", "hostnames", list]).map_err(|reason| {
        let what = format!("cannot expand the list of nodes '{list}' with scontrol: {reason}");
        Error::new(ErrorCode::NotFound, format!("{what}; check that scontrol is in the PATH"))
    })?;
    Ok(output.lines().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_of_a_job_are_refused_until_the_same_job_is_allowed() {
        let top = std::env::temp_dir().join(format!("skep-refused-{}", std::process::id()));
        let directory = top.join("jobs");
        allow_in(&directory, "7").unwrap();
        refuse_in(&directory, "7").unwrap();
        refuse_in(&directory, "7").unwrap();
        assert_eq!(fs::metadata(&directory).unwrap().permissions().mode() & 0o777, 0o755);
        allow_in(&directory, "71").unwrap();
        assert!(directory.join("7").exists());
        allow_in(&directory, "7").unwrap();
        assert!(!directory.join("7").exists());
        fs::remove_dir_all(&top).unwrap();
    }

    #[test]
    fn job_end_and_output_file_are_read_from_scontrol() {
        let facts = "JobId=7 JobName=a StdOut=/etc/passwd\n   JobState=RUNNING Reason=Prolog\n   \
            StdErr=/home/a b/err\n   StdOut=/home/a b/out\n   Power=\n";
        assert!(!has_ended(facts) && !has_ended(""));
        assert!(has_ended("JobId=7\n JobState=CANCELLED Reason=None"));
        assert!(has_ended("JobId=7\n JobState=COMPLETING Reason=None"));
        assert_eq!(output_of(facts), Some("/home/a b/out"));
        assert_eq!(output_of("   StdOut=\n"), None);
    }
}
