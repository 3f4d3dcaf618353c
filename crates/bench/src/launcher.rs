//! Starts the processes of a benchmark on hosts, synchronises them with barriers, and converts
//! their times to the clock of the controller.
//!
//! The controller is the process that the user starts. For each host, the launcher runs the host's
//! command prefix to start an *agent* ([`agent()`]) on this host. The launcher exchanges lines of
//! JSON with the agent over standard input and output. Such an exchange needs no port, and works
//! with any command that runs a program on a host, such as ssh or `ip netns exec`. On the host of
//! the controller, the exchange needs no such command. An agent starts the *workers* of its host
//! ([`worker()`]), one for each process, and forwards their messages. If the controller exits for
//! any reason, the input of agents and workers ends. The workers then remove the files that they
//! have created, and exit.
//!
//! Every wait has a time limit. A phase fails if no process makes progress for the time limit of
//! the plan.

mod agent;
mod fleet;
mod link;
mod protocol;
mod record;
mod worker;

pub use agent::agent;
pub(crate) use fleet::{Fleet, Setup};
pub(crate) use protocol::{Job, Seat, Step};
pub use protocol::{LinkMeasure, Measure, ProbedPath};
pub use record::{HostRecord, HostUse, PhaseRecord, ProcessRecord};
pub use worker::worker;
pub(crate) use worker::{Control, Engine, STOPPED};

use crate::limits::{MAX_HOSTS, MAX_PROCESSES, MAX_PROCESSES_PER_HOST};
use serde::{Deserialize, Serialize};
use skep_types::{Error, ErrorCode, Result};

/// A host on which a benchmark runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Name of the host in results, and the value of `{host}` in paths.
    pub name: String,
    /// The command prefix that runs a command on the host. Empty means the host of this process.
    pub enter: Vec<String>,
}

impl Host {
    /// Returns the host on which this process runs.
    pub fn here() -> Self {
        Self { name: "localhost".into(), enter: Vec::new() }
    }

    /// Returns a host that is reached by ssh without a password, and on which `skep` is in the
    /// search path.
    pub fn over_ssh(name: &str) -> Self {
        let enter = ["ssh", "-o", "BatchMode=yes", name];
        Self { name: name.into(), enter: enter.map(str::to_owned).into() }
    }
}

/// Returns the number of processes over all hosts.
///
/// # Errors
/// `InvalidArgument` if the number of processes is zero or exceeds the limit, or if two hosts have
/// the same name.
pub(crate) fn processes(hosts: &[Host], per_host: u32) -> Result<u32> {
    let refuse = |what: String| Err(Error::new(ErrorCode::InvalidArgument, what));
    if hosts.is_empty() {
        return refuse("cannot run a benchmark on 0 hosts: name at least one host".into());
    }
    if per_host == 0 {
        return refuse(
            "cannot run a benchmark with 0 processes per host: expected at least 1".into(),
        );
    }
    if hosts.len() > MAX_HOSTS {
        return refuse(format!(
            "invalid number of hosts {}: expected at most {MAX_HOSTS}",
            hosts.len()
        ));
    }
    if per_host > MAX_PROCESSES_PER_HOST {
        let limit = MAX_PROCESSES_PER_HOST;
        return refuse(format!(
            "invalid number of processes per host {per_host}: expected at most {limit}"
        ));
    }
    for (index, host) in hosts.iter().enumerate() {
        if hosts[..index].iter().any(|other| other.name == host.name) {
            return refuse(format!(
                "host {} is listed twice; remove one of the two entries",
                host.name
            ));
        }
    }
    let all = per_host.saturating_mul(hosts.len() as u32);
    if all > MAX_PROCESSES {
        return refuse(format!(
            "invalid number of processes {all}: expected at most {MAX_PROCESSES}"
        ));
    }
    Ok(all)
}
