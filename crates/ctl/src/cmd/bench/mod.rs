//! The subcommands of `skep bench`, the lists of hosts in their arguments, and the thread that
//! interrupts a run when a signal arrives. [`witness`] prints progress and results.

mod args;
mod io;
mod metadata;
mod net;
mod presets;
mod results;
mod slow_targets;
mod storage;
mod validity;
mod witness;

use crate::cmd::tune::deviating_rules;
use args::{HostArgs, RunnerArgs};
use clap::Subcommand;
use skep_bench::Host;
use skep_bench::environment::ProgramReport;
use skep_bench::statistics::warm_up;
use skep_bench::tool::{Runner, Tool};
use skep_types::{Error, ErrorCode, Result};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Host names that stand for the host of this process.
const HERE: [&str; 1] = ["localhost"];

/// Measure the performance of applications and of the parts of a cluster
#[derive(Debug, Subcommand)]
pub(crate) enum BenchVerb {
    Io(io::IoArgs),
    Metadata(metadata::MetadataArgs),
    Net(net::NetArgs),
    Storage(storage::StorageArgs),
    SlowTargets(slow_targets::SlowTargetsArgs),
    /// The process that controls a benchmark's worker processes on a host.
    #[command(hide = true)]
    Agent,
    /// A worker process of a benchmark.
    #[command(hide = true)]
    Worker,
}

impl BenchVerb {
    /// Runs the chosen subcommand.
    pub(super) fn run(self) -> Result<ExitCode> {
        match self {
            Self::Io(args) => io::run(&args),
            Self::Metadata(args) => metadata::run(&args),
            Self::Net(args) => net::run(&args),
            Self::Storage(args) => storage::run(&args),
            Self::SlowTargets(args) => slow_targets::run(&args),
            Self::Agent => {
                let program = ProgramReport {
                    version: skep_service::PROGRAM_VERSION.to_owned(),
                    deviating_rules: deviating_rules(),
                };
                skep_bench::agent(&program).map(|()| ExitCode::SUCCESS)
            }
            Self::Worker => skep_bench::worker().map(|()| ExitCode::SUCCESS),
        }
    }
}

/// Returns the hosts on which processes run.
fn hosts(args: &HostArgs) -> Result<Vec<Host>> {
    let Some(name) = &args.lab else {
        return listed(&args.hosts, args.host_file.as_deref(), &args.enter);
    };
    let lab = skep_lab::State::load(name)?;
    let clients = lab.hosts_of(skep_lab::Role::Client);
    Ok(clients.map(|host| Host { name: host.name.clone(), enter: host.enter() }).collect())
}

/// Returns a prefix for titles that names the external benchmark program. Empty for the built-in
/// benchmark.
fn by(tool: &str) -> String {
    if tool == "skep" { String::new() } else { format!("by {tool}: ") }
}

/// Formats a latency in microseconds. A dash means that the benchmark has not measured the latency.
fn microseconds(latency: Option<f64>) -> String {
    latency.map_or_else(|| "-".to_owned(), |latency| format!("{latency:.0}"))
}

/// Returns the external program that does the work, or `None` for the built-in benchmark.
fn runner(tool: Option<&str>, args: &RunnerArgs) -> Option<Runner> {
    let mpirun = args.mpirun.split_whitespace().map(str::to_owned).collect();
    tool.and_then(Tool::named).map(|tool| Runner { tool, mpirun })
}

/// Converts a path in the arguments to a path that is valid on all hosts. In a lab, a relative path
/// is relative to the mount of each host.
fn path_on_hosts(args: &HostArgs, path: &Path, option: &str) -> Result<PathBuf> {
    let lab = match &args.lab {
        Some(name) if path.is_relative() => skep_lab::State::load(name)?,
        _ => {
            return std::path::absolute(path).map_err(|error| {
                let what = format!("invalid {option} {}: {error}", path.display());
                Error::new(ErrorCode::InvalidArgument, what)
            });
        }
    };
    // In a lab, the mount points of all clients are in one directory. The name of a mount point is
    // the name of its client.
    let first = lab.hosts_of(skep_lab::Role::Client).find_map(|host| host.mount_point.clone());
    let Some(place) = first.as_deref().and_then(Path::parent) else {
        let what = format!(
            "cannot use lab '{}': the lab has no client host with a mount; `skep lab status` shows \
             its hosts",
            lab.name
        );
        return Err(Error::new(ErrorCode::NotFound, what));
    };
    Ok(place.join("{host}").join(path))
}

/// Returns the hosts that the list `hosts` or the host file names, or this host if the user names
/// no hosts.
pub(super) fn listed(hosts: &[String], file: Option<&Path>, enter: &str) -> Result<Vec<Host>> {
    let names = match file {
        None => hosts.to_vec(),
        Some(file) => {
            let text = std::fs::read_to_string(file).map_err(|error| {
                let what = format!("cannot read host file {}: {error}", file.display());
                Error::new(ErrorCode::InvalidArgument, what)
            })?;
            let words = text.lines().filter_map(|line| {
                line.split('#').next().and_then(|line| line.split_whitespace().next())
            });
            let names: Vec<_> = words.map(str::to_owned).collect();
            if names.is_empty() {
                let what = format!(
                    "cannot use host file {}: the file names no host; write one host name per line",
                    file.display()
                );
                return Err(Error::new(ErrorCode::InvalidArgument, what));
            }
            names
        }
    };
    match names.is_empty() {
        true => Ok(vec![Host::here()]),
        false => Ok(named(&names, enter)),
    }
}

/// Creates hosts from their names. `enter` is a command prefix that makes a command run on another
/// host.
pub(super) fn named(names: &[String], enter: &str) -> Vec<Host> {
    let host = |name: &String| Host {
        name: name.clone(),
        enter: match HERE.contains(&name.as_str()) {
            true => Vec::new(),
            false => enter.split_whitespace().map(|word| word.replace("{host}", name)).collect(),
        },
    };
    names.iter().map(host).collect()
}

/// Returns a line for each phase whose first repetition shows a warm-up. `phases` has the name of
/// each phase and its rates in all repetitions.
fn warm_ups(phases: impl IntoIterator<Item = (&'static str, Vec<f64>)>) -> String {
    let line = |(phase, rates): (&'static str, Vec<f64>)| {
        let percent = warm_up(&rates)? * 100.0;
        Some(format!(
            "\n{phase}: the first repetition is {percent:.0} % below the others, as in a warm-up, \
             and lowers the mean\n"
        ))
    };
    phases.into_iter().filter_map(line).collect()
}

/// Makes Ctrl-C and SIGTERM interrupt the run, unless the parent of this process has set these
/// signals to be ignored. An interrupted run cleans up and reports the results that it has so far.
/// The caller must call this function before any other thread starts.
fn end_on_signals() -> Result<()> {
    let numbers = skep_env::Signals::not_ignored(&[libc::SIGINT, libc::SIGTERM]);
    // Blocks the signals in this thread and in all threads that this thread starts after this call.
    // The thread that `spawn_thread` starts below waits for the signals.
    drop(skep_env::Signals::take(&numbers)?);
    skep_env::spawn_thread("signals".into(), None, move || {
        let waited = skep_env::block_on(async move {
            let signals = skep_env::Signals::take(&numbers)?;
            signals.next().await
        });
        // If waiting fails, the thread ends. The signals then stay blocked and have no effect.
        if waited.is_ok_and(|number| number.is_ok()) {
            skep_bench::interrupt();
        }
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_names_phases_with_a_slow_first_repetition() {
        let slow_first = vec![60.0, 100.0, 100.0];
        let text = warm_ups([("write", slow_first), ("read", vec![100.0; 3])]);
        assert!(text.contains("write: the first repetition is 40 % below"), "{text}");
        assert_eq!(text.trim().lines().count(), 1, "{text}");
    }

    #[test]
    fn commands_for_remote_hosts_begin_with_the_enter_prefix() {
        let names = ["localhost".to_owned(), "n1".to_owned()];
        let found = named(&names, "ip netns exec {host}");
        assert_eq!(found[0], Host::here());
        assert_eq!(found[1].enter, ["ip", "netns", "exec", "n1"]);
        assert_eq!(named(&names, "ssh -o BatchMode=yes {host}")[1], Host::over_ssh("n1"));
    }

    #[test]
    fn host_file_has_one_name_per_line() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("hosts");
        std::fs::write(&file, "# all\na slots=4\n\n  b # two\n").unwrap();
        let args = HostArgs { host_file: Some(file.clone()), ..HostArgs::default() };
        let names: Vec<_> = hosts(&args).unwrap().into_iter().map(|host| host.name).collect();
        assert_eq!(names, ["a", "b"]);
        std::fs::write(&file, "# none\n").unwrap();
        assert!(hosts(&args).unwrap_err().context().contains("names no host"));
    }
}
