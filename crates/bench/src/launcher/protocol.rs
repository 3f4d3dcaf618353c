//! The messages between controller, agents and workers. Each message is one line of JSON.

use crate::environment::Environment;
use crate::io;
use crate::latency::Durations;
use crate::limits::MAX_LINE_BYTES;
use crate::{metadata, net, tool};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Read, Write};

/// The work of the workers in a run, as the plan of one of the engines.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Job {
    Io(io::Plan),
    Metadata(metadata::Plan),
    Net(net::Assignment),
    Tool(Box<tool::Assignment>),
}

/// The position of a process among all processes of the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Seat {
    pub(crate) rank: u32,
    /// Number of all processes of the run, on all hosts.
    pub(crate) of: u32,
    /// Name of the host on which the process runs.
    pub(crate) host: String,
}

/// One phase in one repetition of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Step {
    pub(crate) phase: String,
    /// The repetition, counted from 1.
    pub(crate) repetition: u32,
    /// Number of bytes or operations of all processes in the whole phase. The display of the
    /// progress needs this number.
    pub(crate) total: u64,
}

impl Step {
    /// Returns the error of a worker process whose version of the program does not have the phase.
    pub(crate) fn unknown(&self) -> String {
        format!(
            "cannot run the phase {}: unknown phase; use the same version on all hosts",
            self.phase
        )
    }
}

/// An order of the controller to an agent. The agent forwards some orders to its workers.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    /// Asks the agent to describe its host. `path` is the path on which the benchmark will work.
    Hello { path: Option<String> },
    /// Asks the agent for the time of its clock.
    Clock,
    /// Asks the agent to start a worker for each rank in `ranks`.
    Start { job: Box<Job>, ranks: Vec<u32>, of: u32, host: String },
    /// Asks the agent to write back dirty pages and drop the caches of its host.
    DropCaches,
    /// Asks the agent to run this command in a shell.
    Run(String),
    /// To all workers: prepare a phase.
    Prepare(Step),
    /// To all workers: begin the prepared phase.
    Go,
    /// To all workers: give up the current phase.
    Abort,
    /// To all workers: remove the files of the run. The first worker of an agent also removes the
    /// files of the workers in `dead`, which have exited.
    Clean { dead: Vec<u32> },
    /// To all workers: the run has succeeded, so the remaining files stay. A worker that does not
    /// get this order removes its files when its input ends.
    Finish,
}

/// An answer of an agent to the controller.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    Hello(Box<Environment>),
    /// The time of the agent's clock, in seconds since boot.
    Clock(f64),
    /// The answer to `DropCaches`: the reason why the agent has not dropped the caches, or `None`
    /// if the agent has dropped them.
    CachesDropped(Option<String>),
    /// The answer to `Run`: the reason why the shell command failed, or `None` if the command
    /// succeeded.
    Ran(Option<String>),
    /// A message of a worker, which the agent forwards.
    Worker {
        rank: u32,
        message: WorkerMessage,
    },
    /// A worker exited without an order to exit.
    Died {
        rank: u32,
        how: String,
    },
    /// All workers of the agent have ended a phase. The value is the share of the phase in which
    /// the CPUs of the host were busy, from 0 to 1.
    CpuBusy(f64),
    /// The agent could not carry out an order. The text gives the reason.
    Failed(String),
}

/// A message of a worker to its agent.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WorkerMessage {
    /// The worker has received its job.
    Ready,
    /// The worker has prepared a phase, or could not prepare it. The error gives the reason.
    Prepared(Result<(), String>),
    /// The number of bytes or operations that this worker has finished in the current phase so far.
    Moved(u64),
    /// The worker has ended a phase. If the phase failed, `failure` gives the reason.
    Done { measure: Box<Measure>, failure: Option<String> },
    /// The worker has removed its files.
    Cleaned,
}

/// The results of one process in a phase. Times are in seconds, by the clock of the process's host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Measure {
    /// Time at which the process began its work in the phase.
    pub begin_s: f64,
    /// Time at which the process finished its work in the phase.
    pub end_s: f64,
    /// Number of seconds that the process spent in `open`.
    pub open_s: f64,
    /// Number of seconds that the process spent in `fsync` and `close`.
    pub close_s: f64,
    /// Number of bytes that the process transferred.
    pub bytes: u64,
    /// Number of operations that the process did.
    pub operations: u64,
    /// Number of operations that returned wrong data.
    pub errors: u64,
    /// A description of the first operation that returned wrong data.
    pub first_error: Option<String>,
    /// The progress of the process, if the plan asks for samples: times in seconds, each with the
    /// number of bytes that the process had transferred at this time. In the records of a run, the
    /// controller converts the times to its own clock.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<(f64, u64)>,
    /// The durations of the operations. Empty in the records of a run, which have the latencies of
    /// all processes together.
    #[serde(default, skip_serializing_if = "Durations::is_empty")]
    pub durations: Durations,
    /// The command line of the external program, if the process ran an external program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The report of the external program, as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported: Option<serde_json::Value>,
    /// The links that the process has measured. In the records of a run, the controller converts
    /// the times in this list to its own clock.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<LinkMeasure>,
}

/// The results that a process has measured for the link to one service.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkMeasure {
    /// Node id of the service.
    pub node: u32,
    /// The address of the service that accepted the connection.
    pub address: String,
    /// Number of bytes that all streams transferred.
    pub bytes: u64,
    /// Start and end of each stream, in seconds.
    pub streams: Vec<(f64, f64)>,
    /// Durations of the single round trips, in microseconds.
    pub round_trips_us: Vec<f64>,
    /// The packets that arrive on the path. `None` if this process has not probed the path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<ProbedPath>,
}

/// The result of a probe of the path from a host to a service: whether packets of the MTU of the
/// host's interface arrive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbedPath {
    /// The address of the service to which this host sent the packets.
    pub address: String,
    /// MTU of the host's interface, in bytes.
    pub interface_mtu: u32,
    /// Size of the largest packet that arrives, as far as the probe has found out. `None` means
    /// that no packet got an answer.
    pub arriving_bytes: Option<u32>,
    /// Whether a router has reported that larger packets are too large. `false` means that larger
    /// packets are lost without a report.
    pub is_reported: bool,
}

/// Writes a message as one line, and flushes the output.
pub(crate) fn write_line<T: Serialize>(to: &mut impl Write, what: &T) -> std::io::Result<()> {
    let mut line = serde_json::to_string(what)?;
    line.push('\n');
    to.write_all(line.as_bytes())?;
    to.flush()
}

/// Reads one line and parses the message in this line. Returns `None` at the end of the input.
///
/// # Errors
/// - The error of the read.
/// - `InvalidData` if the line is malformed or too long.
pub(crate) fn read_line<T: DeserializeOwned>(
    from: &mut impl BufRead,
) -> std::io::Result<Option<T>> {
    let mut line = String::new();
    from.take(MAX_LINE_BYTES as u64).read_line(&mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    serde_json::from_str(&line).map(Some).map_err(|error| {
        let begin: String = line.trim_end().chars().take(80).collect();
        std::io::Error::new(
            std::io::ErrorKind::InvalidData,
            format!("cannot read the message '{begin}': {error}"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoded_launcher_messages_equal_the_encoded_messages() {
        let mut lines = Vec::new();
        let order = Order::Start {
            job: Box::new(Job::Io(io::Plan::default())),
            ranks: vec![1, 3],
            of: 4,
            host: "a".into(),
        };
        write_line(&mut lines, &order).unwrap();
        write_line(&mut lines, &Order::Go).unwrap();
        let mut input = lines.as_slice();
        assert!(matches!(
            read_line(&mut input).unwrap(),
            Some(Order::Start { ranks, of: 4, .. }) if ranks == [1, 3]
        ));
        assert!(matches!(read_line(&mut input).unwrap(), Some(Order::Go)));
        assert!(read_line::<Order>(&mut input).unwrap().is_none());
        let refused = read_line::<Order>(&mut "Welcome to a host!\n".as_bytes()).unwrap_err();
        assert!(refused.to_string().contains("Welcome"), "{refused}");
        // A line that never ends must not fill the memory.
        let endless = vec![b'x'; 2 * MAX_LINE_BYTES];
        assert!(read_line::<Order>(&mut endless.as_slice()).is_err());
    }
}
