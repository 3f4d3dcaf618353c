//! The controller's end of an agent.

use super::Host;
use super::protocol::{Answer, Order, hear, say};
use crate::limits::{KEPT_ERRORS_BYTES, LAST_PATIENCE};
use skep_types::{Error, ErrorCode, Result};
use std::io::{BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::SyncSender;
use std::thread::JoinHandle;
use std::time::Duration;

/// Arguments of `skep` that make it an agent.
const AGENT_ARGUMENTS: [&str; 2] = ["bench", "agent"];

/// What an agent's readers give the controller.
#[derive(Debug)]
pub(super) enum Heard {
    Answer(Box<Answer>),
    /// It has ended; the last that it wrote to its error output.
    Ended(String),
}

/// An agent.
pub(super) struct Link {
    pub(super) name: String,
    child: Child,
    input: Option<ChildStdin>,
    reader: Option<JoinHandle<()>>,
}

impl Link {
    /// Starts an agent; what it says comes through `inbox` with its number.
    ///
    /// # Errors
    /// If the command that is to reach the host can't be started.
    pub(super) fn start(
        host: &Host,
        number: usize,
        inbox: SyncSender<(usize, Heard)>,
    ) -> Result<Self> {
        let named = |error: std::io::Error| {
            let by = host.enter.first().map_or("skep", String::as_str);
            let what = format!("host {} can't be reached by '{by}': {error}", host.name);
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
            return Err(Error::new(ErrorCode::Io, "a child without pipes"));
        };
        let read = move || read_agent(number, output, errors, &inbox);
        let reader = skep_env::spawn_thread(format!("agent-{number}"), None, read)?;
        Ok(Self { name: host.name.clone(), child, input, reader: Some(reader) })
    }

    /// Says something to it. If it has gone, whoever waits for its answer will hear of that.
    pub(super) fn tell(&mut self, order: &Order) {
        if self.input.as_mut().is_some_and(|input| say(input, order).is_err()) {
            self.input = None;
        }
    }

    /// Lets it end: its input ends.
    pub(super) fn dismiss(&mut self) {
        self.input = None;
    }

    /// Whether it has ended.
    pub(super) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.input = None;
        // By now it has been given time to end by itself.
        if !self.has_ended() {
            let _ = self.child.kill();
        }
        // One that hangs in the kernel can't be waited for; it ends with what it hangs on.
        let _ = within(LAST_PATIENCE, || self.has_ended());
        drop(self.reader.take());
    }
}

/// Looks again and again, for so long.
fn within(patience: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let deadline = skep_env::now() + patience;
    while !holds() {
        if skep_env::now() > deadline {
            return false;
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
    true
}

/// The program on a host: behind ssh it is looked for there, elsewhere it is this one.
fn program_on(host: &Host) -> std::io::Result<PathBuf> {
    let is_remote = host.enter.first().is_some_and(|word| word.ends_with("ssh"));
    if is_remote { Ok("skep".into()) } else { std::env::current_exe() }
}

fn read_agent(
    number: usize,
    output: ChildStdout,
    errors: ChildStderr,
    inbox: &SyncSender<(usize, Heard)>,
) {
    // Read beside the answers, or an agent with much to complain about would wait for ever.
    let complaints = skep_env::spawn_thread(format!("errors-{number}"), None, || last_of(errors));
    let mut output = BufReader::new(output);
    let why = loop {
        match hear::<Answer>(&mut output) {
            Ok(Some(answer)) => {
                if inbox.send((number, Heard::Answer(Box::new(answer)))).is_err() {
                    return;
                }
            }
            Ok(None) => break String::new(),
            Err(error) => break error.to_string(),
        }
    };
    // A worker may hold the pipe of an agent that was killed.
    let complaints = complaints.ok().filter(|it| within(LAST_PATIENCE, || it.is_finished()));
    let said = complaints.filter(|_| why.is_empty()).and_then(|it| it.join().ok());
    let what = [why, said.unwrap_or_default()].concat();
    let _ = inbox.send((number, Heard::Ended(what.trim().to_owned())));
}

/// The end of what can be read.
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
