//! The controller's connection to an agent.

use super::Host;
use super::protocol::{Answer, Order, read_line, write_line};
use crate::limits::{KEPT_ERRORS_BYTES, LAST_PATIENCE};
use skep_types::{Error, ErrorCode, Result};
use std::io::{BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::SyncSender;
use std::thread::JoinHandle;
use std::time::Duration;

/// Arguments that make `skep` run as an agent.
const AGENT_ARGUMENTS: [&str; 2] = ["bench", "agent"];

/// A report of a thread that reads the output of an agent.
#[derive(Debug)]
pub(super) enum AgentEvent {
    Answer(Box<Answer>),
    /// The agent has exited. The text is the end of its error output.
    Ended(String),
}

/// The controller's connection to an agent.
pub(super) struct Link {
    pub(super) name: String,
    child: Child,
    input: Option<ChildStdin>,
    reader: Option<JoinHandle<()>>,
}

impl Link {
    /// Starts an agent on a host. A thread puts the agent's answers into `inbox`, each together
    /// with the agent's `number`.
    ///
    /// # Errors
    /// Fails if the command that reaches the host cannot be started.
    pub(super) fn start(
        host: &Host,
        number: usize,
        inbox: SyncSender<(usize, AgentEvent)>,
    ) -> Result<Self> {
        let named = |error: std::io::Error| {
            let by = host.enter.first().map_or("skep", String::as_str);
            let what = format!("cannot reach host {} by '{by}': {error}", host.name);
            Error::new(ErrorCode::Disconnected, what)
        };
        let program = program_on(host).map_err(named)?;
        let mut words = host.enter.iter().map(PathBuf::from).chain([program]);
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).args(AGENT_ARGUMENTS);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = skep_env::spawn_child(&mut command).map_err(named)?;
        let input = child.stdin.take();
        let (Some(output), Some(errors)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(Error::new(
                ErrorCode::Io,
                format!(
                    "cannot reach host {}: the program that connects to this host has no pipes",
                    host.name
                ),
            ));
        };
        let read = move || read_agent(number, output, errors, &inbox);
        let reader = skep_env::spawn_thread(format!("agent-{number}"), None, read)?;
        Ok(Self { name: host.name.clone(), child, input, reader: Some(reader) })
    }

    /// Sends an order to the agent. Ignores a write error, because if the agent has exited, the
    /// loop that waits for the answer gets [`AgentEvent::Ended`].
    pub(super) fn send(&mut self, order: &Order) {
        if self.input.as_mut().is_some_and(|input| write_line(input, order).is_err()) {
            self.input = None;
        }
    }

    /// Closes the agent's input, which makes the agent exit.
    pub(super) fn dismiss(&mut self) {
        self.input = None;
    }

    /// Whether the agent has exited.
    pub(super) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.input = None;
        // The agent had time to exit by itself, so the controller kills an agent that still runs.
        if !self.has_ended() {
            let _ = self.child.kill();
        }
        // The wait has a limit. An agent that hangs in a system call exits only when the system
        // call returns.
        let _ = within(LAST_PATIENCE, || self.has_ended());
        drop(self.reader.take());
    }
}

/// Calls `is_over` repeatedly until it returns true or the time `limit` has passed. Returns whether
/// `is_over` has returned true.
fn within(limit: Duration, mut is_over: impl FnMut() -> bool) -> bool {
    let deadline = skep_env::now() + limit;
    while !is_over() {
        if skep_env::now() > deadline {
            return false;
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
    true
}

/// Returns the path of the program `skep` for a host. For a host behind ssh, returns the name
/// `skep`. The search path of this host must contain the program. For other hosts, returns the
/// executable of this process.
fn program_on(host: &Host) -> std::io::Result<PathBuf> {
    let is_remote = host.enter.first().is_some_and(|word| word.ends_with("ssh"));
    if is_remote { Ok("skep".into()) } else { std::env::current_exe() }
}

fn read_agent(
    number: usize,
    output: ChildStdout,
    errors: ChildStderr,
    inbox: &SyncSender<(usize, AgentEvent)>,
) {
    // A separate thread reads the error output. Without this thread, an agent whose error pipe is
    // full would block.
    let complaints = skep_env::spawn_thread(format!("errors-{number}"), None, || last_of(errors));
    let mut output = BufReader::new(output);
    let why = loop {
        match read_line::<Answer>(&mut output) {
            Ok(Some(answer)) => {
                if inbox.send((number, AgentEvent::Answer(Box::new(answer)))).is_err() {
                    return;
                }
            }
            Ok(None) => break String::new(),
            Err(error) => break error.to_string(),
        }
    };
    // If the agent was killed, one of its workers may keep the error pipe open, so the wait has a
    // limit.
    let complaints = complaints.ok().filter(|it| within(LAST_PATIENCE, || it.is_finished()));
    let said = complaints.filter(|_| why.is_empty()).and_then(|it| it.join().ok());
    let what = [why, said.unwrap_or_default()].concat();
    let _ = inbox.send((number, AgentEvent::Ended(what.trim().to_owned())));
}

/// Reads a stream until it ends, and returns its last bytes.
fn last_of(mut from: impl Read) -> String {
    let keep = KEPT_ERRORS_BYTES as usize;
    let mut last = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(len) = from.read(&mut buffer) {
        if len == 0 {
            break;
        }
        last.extend_from_slice(&buffer[..len]);
        last.drain(..last.len().saturating_sub(keep));
    }
    String::from_utf8_lossy(&last).into_owned()
}
