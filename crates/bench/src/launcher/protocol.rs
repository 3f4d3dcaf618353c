//! Messages between controller, agents and workers: one line of JSON each.

use crate::environment::Environment;
use crate::io;
use crate::limits::MAX_LINE_BYTES;
use crate::{metadata, net, tool};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Read, Write};

/// The work of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Job {
    Io(io::Plan),
    Metadata(metadata::Plan),
    Net(net::Assignment),
    Tool(Box<tool::Assignment>),
}

/// The position of a process among all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Seat {
    pub(crate) rank: u32,
    /// Processes over all hosts.
    pub(crate) of: u32,
    /// Name of its host.
    pub(crate) host: String,
}

/// A phase of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Step {
    pub(crate) phase: String,
    /// The repetition, from 1.
    pub(crate) repetition: u32,
    /// Bytes or operations of all processes by its end, for the progress display.
    pub(crate) total: u64,
}

/// Orders of the controller.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    /// Describe your host. The path is the one on which the benchmark will work.
    Hello { path: Option<String> },
    /// Report the time of your clock.
    Clock,
    /// Start workers with these ranks.
    Start { job: Job, ranks: Vec<u32>, of: u32, host: String },
    /// Write back dirty pages, and drop the caches.
    DropCaches,
    /// Run this command in a shell.
    Run(String),
    /// To all workers: get ready for a phase.
    Prepare(Step),
    /// To all workers: begin.
    Go,
    /// To all workers: give the phase up.
    Abort,
    /// To all workers: remove the files of the run; the first worker of an agent also removes those
    /// of these dead ones.
    Clean { dead: Vec<u32> },
    /// To all workers: the run is over. A worker whose input ends without this order removes its
    /// files.
    Finish,
}

/// Answers of an agent.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    Hello(Environment),
    /// Seconds since boot.
    Clock(f64),
    /// Why caches were not dropped; `None` if they were.
    CachesDropped(Option<String>),
    /// Why the shell command failed; `None` if it did not.
    Ran(Option<String>),
    /// A message of a worker.
    Worker {
        rank: u32,
        message: WorkerMessage,
    },
    /// A worker has ended without an order to end.
    Died {
        rank: u32,
        how: String,
    },
    /// All workers have ended a phase, in which CPUs were busy for this share of the time.
    CpuBusy(f64),
    /// An order failed.
    Failed(String),
}

/// Messages of a worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WorkerMessage {
    /// It has read its job.
    Ready,
    /// It is ready for a phase, or the reason why it cannot be.
    Prepared(Result<(), String>),
    /// Bytes or operations of this worker in this phase until now.
    Moved(u64),
    /// A phase has ended.
    Done { measure: Measure, failure: Option<String> },
    /// Its files are removed.
    Cleaned,
}

/// The results of a process in a phase. Times are seconds on the clock of its host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Measure {
    /// When it began.
    pub begin_s: f64,
    /// When it was done.
    pub end_s: f64,
    /// Time in `open`.
    pub open_s: f64,
    /// Time in `fsync` and `close`.
    pub close_s: f64,
    /// Bytes that it moved.
    pub bytes: u64,
    /// Operations that it did.
    pub operations: u64,
    /// Operations that returned wrong data.
    pub errors: u64,
    /// The first of these, in words.
    pub first_error: Option<String>,
    /// The command line of another program, if one did the work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The report of that program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported: Option<serde_json::Value>,
    /// The measured links, for a job that measures links. The times in them are on the controller's
    /// time line, too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<LinkMeasure>,
}

/// The results of a process for the network to a service.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkMeasure {
    /// Id of the service's node.
    pub node: u32,
    /// The address at which the service answered.
    pub address: String,
    /// Bytes that were moved.
    pub bytes: u64,
    /// Begin and end of each stream, in seconds.
    pub streams: Vec<(f64, f64)>,
    /// Each round trip, in microseconds.
    pub round_trips_us: Vec<f64>,
}

/// Writes a line.
pub(crate) fn write_line<T: Serialize>(to: &mut impl Write, what: &T) -> std::io::Result<()> {
    let mut line = serde_json::to_string(what)?;
    line.push('\n');
    to.write_all(line.as_bytes())?;
    to.flush()
}

/// Reads a line; `None` at the end of the input.
///
/// # Errors
/// The error of the system; `InvalidData` for a malformed line.
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
        std::io::Error::new(std::io::ErrorKind::InvalidData, format!("'{begin}': {error}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_a_round_trip() {
        let mut lines = Vec::new();
        let order = Order::Start {
            job: Job::Io(io::Plan::default()),
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
        // A line without an end must not fill the memory.
        let endless = vec![b'x'; 2 * MAX_LINE_BYTES];
        assert!(read_line::<Order>(&mut endless.as_slice()).is_err());
    }
}
