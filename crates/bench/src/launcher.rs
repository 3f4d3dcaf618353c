//! Starts processes on hosts, holds them at barriers, and converts their times to one time line.
//!
//! The controller starts an *agent* on each host ([`agent()`]) by the host's prefix command and
//! exchanges lines of JSON with it over the agent's standard input and output. That needs no port,
//! and any command that reaches a host works (ssh, `ip netns exec`, or none). An agent starts the
//! *workers* of its host ([`worker()`]), one process each, and forwards their messages. When a
//! controller ends, in whatever way, agents and workers see the end of their input, remove the
//! files that they made, and end too.
//!
//! Nothing waits for ever: the run fails when a process sends nothing for the time limit of the
//! run.

mod agent;
mod fleet;
mod link;
mod protocol;
mod record;
mod worker;

pub use agent::agent;
pub(crate) use fleet::{Fleet, Setup};
pub(crate) use protocol::{Job, Seat, Step};
pub use protocol::{LinkMeasure, Measure};
pub use record::{HostRecord, HostUse, PhaseRecord, ProcessRecord};
pub use worker::worker;
pub(crate) use worker::{Control, Engine};

use crate::limits::{MAX_HOSTS, MAX_PROCESSES, MAX_PROCESSES_PER_HOST};
use serde::{Deserialize, Serialize};
use skep_types::{Error, ErrorCode, Result};

/// A host of a benchmark.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Its name in results, and for `{host}` in paths.
    pub name: String,
    /// The command prefix that runs a command there; empty for this host.
    pub enter: Vec<String>,
}

impl Host {
    /// The host on which this process runs.
    pub fn here() -> Self {
        Self { name: "localhost".into(), enter: Vec::new() }
    }

    /// A host that ssh reaches without a password, and on which `skep` is in the search path.
    pub fn over_ssh(name: &str) -> Self {
        let enter = ["ssh", "-o", "BatchMode=yes", name];
        Self { name: name.into(), enter: enter.map(str::to_owned).into() }
    }
}

/// Returns the number of processes over all hosts.
///
/// # Errors
/// `InvalidArgument` for zero processes or more than the limit, or for two hosts of one name.
pub(crate) fn processes(hosts: &[Host], per_host: u32) -> Result<u32> {
    let refuse = |what: String| Err(Error::new(ErrorCode::InvalidArgument, what));
    if hosts.is_empty() || per_host == 0 {
        return refuse("at least one process on one host is needed".into());
    }
    if hosts.len() > MAX_HOSTS {
        return refuse(format!("{} hosts; at most {MAX_HOSTS} are possible", hosts.len()));
    }
    if per_host > MAX_PROCESSES_PER_HOST {
        let limit = MAX_PROCESSES_PER_HOST;
        return refuse(format!("{per_host} processes on a host; at most {limit} are possible"));
    }
    for (index, host) in hosts.iter().enumerate() {
        if hosts[..index].iter().any(|other| other.name == host.name) {
            return refuse(format!("host {} is named twice", host.name));
        }
    }
    let all = per_host.saturating_mul(hosts.len() as u32);
    if all > MAX_PROCESSES {
        return refuse(format!("{all} processes; at most {MAX_PROCESSES} are possible"));
    }
    Ok(all)
}
