//! What controller, agents and workers say to each other: a line of JSON each.

use crate::environment::Environment;
use crate::io;
use crate::limits::MAX_LINE_BYTES;
use crate::{metadata, net, tool};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Read, Write};

/// What workers are to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Job {
    Io(io::Plan),
    Metadata(metadata::Plan),
    Net(net::Assignment),
    Tool(Box<tool::Assignment>),
}

/// A process among all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Seat {
    pub(crate) rank: u32,
    /// Processes over all hosts.
    pub(crate) of: u32,
    /// Its host's name.
    pub(crate) host: String,
}

/// A phase of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Step {
    pub(crate) phase: String,
    /// From 1.
    pub(crate) repetition: u32,
    /// What all processes will have moved at its end, for progress.
    pub(crate) total: u64,
}

/// From the controller.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    /// Who are you? The path is where the benchmark will work.
    Hello { path: Option<String> },
    /// What time is it?
    Clock,
    /// Start workers with these ranks.
    Start { job: Job, ranks: Vec<u32>, of: u32, host: String },
    /// Write back what is dirty, and forget what is cached.
    DropCaches,
    /// Let a shell do this.
    Run(String),
    /// To all workers: get ready for a phase.
    Prepare(Step),
    /// To all workers: begin.
    Go,
    /// To all workers: give the phase up.
    Abort,
    /// To all workers: take back what was made; the first of an agent also for these dead ones.
    Clean { dead: Vec<u32> },
    /// To all workers: all is done. One whose input ends without that takes back what it made.
    Finish,
}

/// From an agent.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    Hello(Environment),
    /// Seconds since boot.
    Clock(f64),
    /// What kept caches from being dropped, if anything did.
    CachesDropped(Option<String>),
    /// What kept a shell from doing what it was to, if anything did.
    Ran(Option<String>),
    /// A worker says something.
    Worker {
        rank: u32,
        says: Says,
    },
    /// A worker has ended without being told to.
    Died {
        rank: u32,
        how: String,
    },
    /// All workers are done with a phase, in which CPUs were busy for this share of the time.
    CpuBusy(f64),
    /// An order can't be followed.
    Failed(String),
}

/// From a worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Says {
    /// It has read its job.
    Ready,
    /// It is ready for a phase, or why it can't be.
    Prepared(Result<(), String>),
    /// It has moved so much in this phase.
    Moved(u64),
    /// A phase has ended.
    Done { measure: Measure, failure: Option<String> },
    /// What was made is taken back.
    Cleaned,
}

/// What a process has measured in a phase. Times are seconds on the clock of its host.
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
    /// Bytes that were moved.
    pub bytes: u64,
    /// Operations that were done.
    pub operations: u64,
    /// Operations that gave wrong data.
    pub errors: u64,
    /// The first of them.
    pub first_error: Option<String>,
    /// What another program was called with, if it did the work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// What it reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported: Option<serde_json::Value>,
    /// Links that were measured, where that is what was done. Times of a phase are on the
    /// controller's time line here, too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<LinkMeasure>,
}

/// What a process has measured of the network to a service.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkMeasure {
    /// Id of the service's node.
    pub node: u32,
    /// Where it answered.
    pub address: String,
    /// Bytes that were moved.
    pub bytes: u64,
    /// Begin and end of each stream, in seconds.
    pub streams: Vec<(f64, f64)>,
    /// Each round trip, in microseconds.
    pub round_trips_us: Vec<f64>,
}

/// Writes a line.
pub(crate) fn say<T: Serialize>(to: &mut impl Write, what: &T) -> std::io::Result<()> {
    let mut line = serde_json::to_string(what)?;
    line.push('\n');
    to.write_all(line.as_bytes())?;
    to.flush()
}

/// Reads a line; none at the end of the input.
///
/// # Errors
/// The system's; `InvalidData` for what can't be understood.
pub(crate) fn hear<T: DeserializeOwned>(from: &mut impl BufRead) -> std::io::Result<Option<T>> {
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
    fn what_is_said_is_heard() {
        let mut lines = Vec::new();
        let order = Order::Start {
            job: Job::Io(io::Plan::default()),
            ranks: vec![1, 3],
            of: 4,
            host: "a".into(),
        };
        say(&mut lines, &order).unwrap();
        say(&mut lines, &Order::Go).unwrap();
        let mut input = lines.as_slice();
        assert!(matches!(
            hear(&mut input).unwrap(),
            Some(Order::Start { ranks, of: 4, .. }) if ranks == [1, 3]
        ));
        assert!(matches!(hear(&mut input).unwrap(), Some(Order::Go)));
        assert!(hear::<Order>(&mut input).unwrap().is_none());
        let refused = hear::<Order>(&mut "Welcome to a host!\n".as_bytes()).unwrap_err();
        assert!(refused.to_string().contains("Welcome"), "{refused}");
        // A line without an end doesn't fill the memory.
        let endless = vec![b'x'; 2 * MAX_LINE_BYTES];
        assert!(hear::<Order>(&mut endless.as_slice()).is_err());
    }
}
