//! A copy that several hosts make together: chooses the hosts, and starts a process on each host.

use super::store::{Stores, is_store};
use super::with_progress;
use crate::account::Account;
use crate::slurm_job::job_hosts;
use skep_copy::context::Options;
use skep_copy::hosts::{Hosts, HostsOutcome, Lost, copy};
use skep_copy::outcome::Progress;
use skep_copy::shares::Part;
use skep_deploy::hosts::Deployment;
use skep_deploy::ondemand::{deployment, read_hosts};
use skep_deploy::ssh::Ssh;
use skep_types::text::shown;
use skep_types::{Error, ErrorCode, Result};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

/// Maximum length of a process's error text in a message.
const MOST_REASON: usize = 500;
/// Time limit in seconds for a process with the rights of a user. The limit is necessary because a
/// batch system waits until the process ends.
const MOST_SECONDS: u32 = 24 * 3600;

/// The ways in which the coordinator (the process of the command) starts processes on the hosts.
#[derive(Debug)]
pub(in crate::cmd) enum Transport {
    /// The coordinator starts processes by ssh on the hosts of a deployment.
    Ssh {
        /// The hosts, and the way to reach each host.
        deployment: Box<Deployment>,
        /// Whether the processes run as root instead of as the user who logs in by ssh.
        as_root: bool,
    },
    /// The coordinator starts processes as steps of the Slurm job to which this process belongs.
    Slurm {
        /// The nodes of the job.
        nodes: Vec<String>,
    },
    /// The coordinator starts processes on this host, with the rights of a user.
    User {
        /// Name of this host.
        host: String,
        /// The user with whose rights the processes run.
        account: Account,
    },
}

impl Transport {
    /// Returns the transport that the options request. `None` means that this host copies alone.
    pub(super) fn chosen(hosts: Option<&Path>, is_job: bool) -> Result<Option<Self>> {
        Ok(match (hosts, is_job) {
            (Some(file), _) => Some(Self::ssh(&read_hosts(file)?, false)),
            (None, true) => Some(Self::Slurm { nodes: job_hosts()? }),
            (None, false) => None,
        })
    }

    /// Returns the transport that reaches `hosts` by ssh.
    pub(in crate::cmd) fn ssh(hosts: &[String], as_root: bool) -> Self {
        Self::Ssh { deployment: Box::new(deployment("copy", "", hosts)), as_root }
    }

    fn names(&self) -> Vec<String> {
        match self {
            Self::Ssh { deployment, .. } => {
                deployment.hosts.iter().map(|it| it.name.clone()).collect()
            }
            Self::Slurm { nodes } => nodes.clone(),
            Self::User { host, .. } => vec![host.clone()],
        }
    }

    /// Copies files with all hosts, and shows the progress. `stores` are the settings and
    /// credentials for object stores. This process sends the credentials to the processes on the
    /// hosts.
    pub(in crate::cmd) fn copy(
        &self,
        sources: &[PathBuf],
        destination: &Path,
        options: &Options,
        stores: Option<&Stores>,
    ) -> Result<HostsOutcome> {
        with_progress(|report| self.copy_with(sources, destination, options, stores, report))
    }

    /// Copies files with all hosts, and calls `report` about once per second.
    pub(in crate::cmd) fn copy_with(
        &self,
        sources: &[PathBuf],
        destination: &Path,
        options: &Options,
        stores: Option<&Stores>,
        report: &dyn Fn(&Progress),
    ) -> Result<HostsOutcome> {
        let paths = sources.iter().map(PathBuf::as_path).chain([destination]);
        let paths = paths.map(shared_path).collect::<Result<Vec<_>>>()?;
        let names = self.names();
        let count = names.len();
        let command = |host: &str, part: Part| {
            let more = stores.map(Stores::words).unwrap_or_default();
            let words = words(options, part, count, (&more, &paths));
            self.command(host, &words)
        };
        let explain =
            |host: &str, status: ExitStatus, errors: &str| self.explain(host, status, errors);
        let line = || stores.map(Stores::line).unwrap_or_default();
        let hosts = Hosts { names: &names, command: &command, explain: &explain, line: &line };
        copy(&hosts, report)
    }

    fn command(&self, host: &str, words: &[String]) -> Command {
        match self {
            Self::Ssh { deployment, as_root } => {
                let host = deployment.host(host).expect("the name of a host of the deployment");
                Ssh::new(deployment).program(host, words, *as_root)
            }
            Self::Slurm { .. } => {
                let mut step = Command::new("srun");
                // `--overlap` lets the step share its processors with the other steps of the job.
                step.args(["--overlap", "--nodes=1", "--ntasks=1", "--quiet", "--unbuffered"]);
                step.arg(format!("--nodelist={host}")).args(words);
                step
            }
            Self::User { account, .. } => account.command(MOST_SECONDS, words),
        }
    }

    fn explain(&self, host: &str, status: ExitStatus, errors: &str) -> Lost {
        match self {
            Self::Ssh { deployment, .. } => {
                let host = deployment.host(host).expect("the name of a host of the deployment");
                let (problem, has_ended) = Ssh::new(deployment).explain(host, status, errors);
                Lost { problem, has_ended }
            }
            Self::Slurm { .. } => {
                let errors: String = errors.trim().chars().take(MOST_REASON).collect();
                // If a node does not answer, `srun` ends although the process on the node may still
                // run. So an exit of `srun` does not show that the process has ended.
                Lost { problem: format!("srun ended with {status}: {errors}"), has_ended: false }
            }
            Self::User { .. } => {
                let problem = format!(
                    "the process ended with {status}: {}",
                    shown(errors.trim(), MOST_REASON)
                );
                Lost { problem, has_ended: true }
            }
        }
    }
}

/// Returns the absolute form of a path, which processes on all hosts can use. Refuses a path that
/// is not UTF-8.
fn shared_path(path: &Path) -> Result<String> {
    let absolute = match is_store(path) {
        true => path.to_owned(),
        false => std::path::absolute(path)?,
    };
    absolute.into_os_string().into_string().map_err(|path| {
        let what = format!(
            "cannot copy {}: a copy by several hosts needs a path in UTF-8; copy the directory \
             above this path",
            path.display()
        );
        Error::new(ErrorCode::InvalidArgument, what)
    })
}

/// Returns the command line of a process that copies one part. `more` are the options of object
/// stores.
fn words(
    options: &Options,
    part: Part,
    hosts: usize,
    (more, paths): (&[String], &[String]),
) -> Vec<String> {
    let mut words = vec!["skep".to_owned(), "copy".to_owned()];
    words.extend(["--part".to_owned(), part.to_string()]);
    words.extend(["--threads".to_owned(), options.threads.to_string()]);
    if let Some(rate) = options.bytes_per_second {
        let hosts = if matches!(part, Part::Share(_)) { hosts as u64 } else { 1 };
        words.extend(["--rate".to_owned(), rate.div_ceil(hosts).to_string()]);
    }
    let flags = [
        (options.resume, "--resume"),
        (options.verify, "--verify"),
        (!options.sync, "--no-sync"),
        (options.one_file_system, "--one-file-system"),
        (!options.owners, "--no-owners"),
        (!options.xattrs, "--no-xattrs"),
    ];
    words.extend(flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| (*flag).to_owned()));
    words.extend(more.iter().cloned());
    words.push("--".to_owned());
    words.extend(paths.iter().cloned());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_of_a_remote_copy_process_has_all_options() {
        let options = Options {
            threads: 3,
            bytes_per_second: Some(100),
            resume: true,
            verify: true,
            sync: false,
            is_dry_run: false,
            one_file_system: true,
            owners: false,
            store_owners: false,
            xattrs: false,
            part: Part::Whole,
        };
        let paths = ["/a".to_owned(), "/b/".to_owned()];
        let share = "1/3+".parse().unwrap();
        assert_eq!(
            words(&options, share, 3, (&["--s3-anonymous".to_owned()], &paths)).join(" "),
            "skep copy --part 1/3+ --threads 3 --rate 34 --resume --verify --no-sync \
             --one-file-system --no-owners --no-xattrs --s3-anonymous -- /a /b/"
        );
        let plain = words(&Options::default(), Part::Finish, 3, (&[], &paths));
        assert_eq!(plain.join(" "), "skep copy --part finish --threads 16 -- /a /b/");
    }
}
