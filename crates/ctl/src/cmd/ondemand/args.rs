//! Options that the subcommands of `skep ondemand` share.

use crate::slurm_job::{job_hosts, job_variable, name_of_job};
use clap::Args;
use skep_deploy::ondemand::{
    OnDemand, OnDemandOutcome, Reach, Removal, Run, read_hosts, run_of_job, shown,
};
use skep_types::{Error, ErrorCode, Result};
use std::path::PathBuf;

/// The hosts of a file system on demand, and its directories and ports on these hosts.
#[derive(Debug, Args)]
pub(super) struct OndemandArgs {
    /// List of hosts, one per line; the command works on all of them by ssh. The first host runs
    /// management and metadata, and all hosts store data
    #[arg(long, value_name = "FILE", conflicts_with = "job", required_unless_present = "job")]
    hosts: Option<PathBuf>,
    /// For the prolog or epilog of a Slurm job: acts only on this node's part of the file system,
    /// which spans all nodes of the job. The file of --secret must be the same on all nodes
    #[arg(long)]
    job: bool,
    /// Name of the file system [default: `ondemand`, or `job-` and the job id]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Directory on a local disk of each host. Users other than root must not be able to replace
    /// its entries
    #[arg(long, value_name = "DIR", default_value = "/var/lib")]
    directory: String,
    /// Mount point on each host
    #[arg(long, value_name = "DIR", default_value = "/mnt/ondemand")]
    mount: String,
    /// First of the three ports of the services on each host
    #[arg(long, value_name = "PORT", default_value_t = 7600,
        value_parser = clap::value_parser!(u16).range(1024..65533))]
    port: u16,
    /// With --job: file with the secret of the site, at least 32 random bytes
    #[arg(long, value_name = "FILE", default_value = "/etc/skep/ondemand.secret")]
    secret: PathBuf,
    /// Seconds for which a host waits for its services, its mount, or another command
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
        value_parser = clap::value_parser!(u32).range(1..3600))]
    patience: u32,
}

impl OndemandArgs {
    /// Returns the arguments of a start: the file system, the id of its run, and the way to reach
    /// the hosts. All starts of a Slurm job have the same id. `owner` is the user that owns the top
    /// directory. `None` means the user of the job.
    pub(super) fn start(&self, owner: Option<u32>) -> Result<(OnDemand, Run, Reach)> {
        if let Some(file) = &self.hosts {
            let system = self.system("ondemand", read_hosts(file)?, owner)?;
            return Ok((system, Run::random()?, Reach::Ssh));
        }
        let name = name_of_job()?;
        let hosts = job_hosts()?;
        let here = job_variable(&["SLURMD_NODENAME"])?;
        let user = job_variable(&["SLURM_JOB_UID"])?;
        let user = user.parse::<u32>().map_err(|_| {
            let what = format!("invalid SLURM_JOB_UID '{user}': expected a number");
            Error::new(ErrorCode::Configuration, what)
        })?;
        let system = self.system(&name, hosts, Some(owner.unwrap_or(user)))?;
        let run = run_of_job(&self.secret, &system.name)?;
        Ok((system, run, Reach::Here(here)))
    }

    /// Returns the arguments of `status` and `stop`: the file system, and the way to reach the
    /// hosts.
    pub(super) fn existing(&self) -> Result<(OnDemand, Reach)> {
        if let Some(file) = &self.hosts {
            return Ok((self.system("ondemand", read_hosts(file)?, None)?, Reach::Ssh));
        }
        let here = "localhost".to_owned();
        Ok((self.system(&name_of_job()?, vec![here.clone()], None)?, Reach::Here(here)))
    }

    fn system(&self, name: &str, hosts: Vec<String>, owner: Option<u32>) -> Result<OnDemand> {
        let system = OnDemand {
            name: self.name.clone().unwrap_or_else(|| name.to_owned()),
            hosts,
            directory: self.directory.clone(),
            mount: self.mount.clone(),
            port: self.port,
            owner,
            patience: self.patience,
            sources: Vec::new(),
            stage_out: Vec::new(),
            removal: Removal::Unneeded,
        };
        system.check()?;
        Ok(system)
    }
}

/// Returns the error of a command that failed on some hosts. `None` means that the command
/// succeeded on all hosts.
pub(super) fn failure(what: &str, outcome: &OnDemandOutcome) -> Option<Error> {
    if outcome.problems.is_empty() {
        return None;
    }
    let what = format!("cannot {what} {}:{}", outcome.name, problems(outcome));
    Some(Error::new(ErrorCode::Io, what))
}

/// Returns the problems of hosts as text. Hosts that have the same problem share one line.
pub(super) fn problems(outcome: &OnDemandOutcome) -> String {
    let mut lines: Vec<(&str, Vec<String>)> = Vec::new();
    for it in &outcome.problems {
        match lines.iter_mut().find(|(problem, _)| *problem == it.problem) {
            Some((_, hosts)) => hosts.push(it.host.clone()),
            None => lines.push((&it.problem, vec![it.host.clone()])),
        }
    }
    let lines = lines.iter().map(|(problem, hosts)| format!("\n  {}: {problem}", shown(hosts)));
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use skep_deploy::ssh::HostProblem;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        ondemand: OndemandArgs,
    }

    fn parse(words: &str) -> Result<OndemandArgs, clap::Error> {
        let line = Line::try_parse_from(["x"].into_iter().chain(words.split_whitespace()));
        line.map(|it| it.ondemand)
    }

    fn outcome(problems: &[(&str, &str)]) -> OnDemandOutcome {
        let problem = |(host, problem): &(&str, &str)| HostProblem {
            host: (*host).to_owned(),
            problem: (*problem).to_owned(),
        };
        OnDemandOutcome {
            name: "x".into(),
            mount: "/mnt/x".into(),
            hosts: Vec::new(),
            problems: problems.iter().map(problem).collect(),
            seconds: 1.0,
        }
    }

    #[test]
    fn exactly_one_of_host_list_and_job_is_required() {
        assert!(parse("--hosts nodes").is_ok());
        assert!(parse("--job").is_ok());
        for wrong in ["", "--hosts nodes --job", "--hosts n --port 80"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn options_set_name_port_and_paths_of_the_file_system() {
        let args = parse("--hosts n --name a --directory /local --mount /s --port 9000");
        let system = args.unwrap().system("ondemand", vec!["n1".into()], Some(7)).unwrap();
        assert_eq!((system.name.as_str(), system.port, system.owner), ("a", 9000, Some(7)));
        assert_eq!((system.directory.as_str(), system.mount.as_str()), ("/local", "/s"));
        let system = parse("--hosts n").unwrap().system("job-3", vec!["n1".into()], None).unwrap();
        assert_eq!((system.name.as_str(), system.directory.as_str()), ("job-3", "/var/lib"));
    }

    #[test]
    fn hosts_with_the_same_problem_share_a_line() {
        assert!(failure("start", &outcome(&[])).is_none());
        let some = outcome(&[("n1", "is running"), ("n2", "no answer"), ("n3", "is running")]);
        let error = failure("start", &some).unwrap();
        assert_eq!(error.context(), "cannot start x:\n  n1, n3: is running\n  n2: no answer");
    }
}
