//! Runs a command on several hosts of a lab at the same time.

use crate::command::marked;
use crate::cpu_watch::{CpuUse, CpuWatch};
use crate::limits::TICK;
use crate::state::{Host, State};
use serde::Serialize;
use skep_types::{Error, ErrorCode, Result};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time limit for a command to end after SIGTERM, which the command gets at its timeout. After this
/// time, the command gets SIGKILL. The same limit applies to the output of background processes
/// after the end of the commands.
const END_PATIENCE: Duration = Duration::from_secs(2);
/// Environment variable that contains the name of the host on which a command runs.
const HOST_VARIABLE: &str = "SKEP_LAB_HOST";
/// Maximum number of output lines that wait for the caller. If the queue is full, the command must
/// wait until the caller has read some lines.
const WAITING_LINES: usize = 1024;
/// Maximum length in bytes of an output line. The reader passes a longer line to the caller in
/// pieces.
const MAX_LINE: u64 = 64 << 10;

/// The result of a command on one host.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HostRun {
    /// Name of the host on which the command ran.
    pub host: String,
    /// Exit code of the command. `None` means that a signal ended the command.
    pub exit_code: Option<i32>,
    /// The signal that ended the command, if any.
    pub signal: Option<i32>,
    /// Whether the command got SIGTERM because of the timeout.
    pub is_timed_out: bool,
    /// Seconds from the start of the run until the command ended on this host.
    pub seconds: f64,
    /// Number of bytes that the host sent during the run, including the headers of packets.
    pub sent_bytes: u64,
    /// Number of bytes that the host received during the run, including the headers of packets.
    pub received_bytes: u64,
}

/// The results of a command on all hosts of the run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Run {
    /// The result for each host, in the order in which the caller named the hosts.
    pub hosts: Vec<HostRun>,
    /// Seconds from the start of the run until the command and its output had ended on all hosts.
    pub seconds: f64,
    /// How busy the processors of this machine were during the run.
    pub cpu: CpuUse,
    /// Whether measurements in this run are valid. The measurements are invalid if the processors
    /// of this machine were the bottleneck.
    pub is_valid: bool,
}

impl Run {
    /// Whether the command exited with code 0 on all hosts.
    pub fn is_success(&self) -> bool {
        self.hosts.iter().all(|run| run.exit_code == Some(0))
    }
}

/// The stream to which a command wrote an output line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

struct HostProcess {
    child: Child,
    readers: Vec<JoinHandle<()>>,
    status: Option<ExitStatus>,
    ended: Duration,
    is_timed_out: bool,
}

/// Runs a command on several hosts at the same time. On a client host, the working directory of the
/// command is the mount. Passes each output line to `on_line`. Waits at most two seconds for
/// background processes that the command leaves behind and that have its output open.
///
/// # Errors
/// - `InvalidArgument`: the command is empty, or no host is named.
/// - `Io`: the command cannot be started on one of the hosts, or the traffic of a host cannot be
///   read. If the command cannot be started on a host, it is killed on the other hosts.
pub fn run(
    state: &State,
    hosts: &[&Host],
    command: &[OsString],
    timeout: Option<Duration>,
    on_line: &mut dyn FnMut(&str, Stream, &[u8]),
) -> Result<Run> {
    if command.is_empty() || hosts.is_empty() {
        let what = "cannot run a command in the lab: the command or the host is missing; name a \
                    host and a command";
        return Err(Error::new(ErrorCode::InvalidArgument, what));
    }
    let before: Vec<_> =
        hosts.iter().map(|host| crate::traffic(state, host)).collect::<Result<_>>()?;
    let (lines, received) = mpsc::sync_channel(WAITING_LINES);
    let watch = CpuWatch::start();
    let start = skep_env::now();
    let mut running = Vec::new();
    for (index, host) in hosts.iter().enumerate() {
        match start_on(state, host, command, index, &lines) {
            Ok(started) => running.push(started),
            Err(error) => {
                running.iter_mut().for_each(|it| end(it, libc::SIGKILL));
                return Err(error);
            }
        }
    }
    drop(lines);
    let mut report_line =
        |(index, stream, line): OutputLine| on_line(&hosts[index].name, stream, &line);
    await_all(&mut running, start, timeout, &received, &mut report_line)?;
    // Usually, the threads that read the output have ended together with the command. But a
    // background process may still have the output pipe open. So pass only the lines that are
    // already in the queue, and do not wait for further lines.
    for line in received.try_iter() {
        report_line(line);
    }
    let seconds = (skep_env::now() - start).as_secs_f64();
    let cpu = watch.finish();
    let mut runs = Vec::new();
    for ((host, run), before) in hosts.iter().zip(&running).zip(before) {
        let after = crate::traffic(state, host)?;
        runs.push(HostRun {
            host: host.name.clone(),
            exit_code: run.status.and_then(|status| status.code()),
            signal: run.status.and_then(|status| status.signal()),
            is_timed_out: run.is_timed_out,
            seconds: (run.ended - start).as_secs_f64(),
            sent_bytes: after.sent_bytes - before.sent_bytes,
            received_bytes: after.received_bytes - before.received_bytes,
        });
    }
    Ok(Run { hosts: runs, seconds, is_valid: !cpu.is_limit, cpu })
}

/// An output line: the index of the host, the stream, and the bytes of the line, including the line
/// end.
type OutputLine = (usize, Stream, Vec<u8>);
type LineSender = std::sync::mpsc::SyncSender<OutputLine>;

fn start_on(
    state: &State,
    host: &Host,
    command: &[OsString],
    index: usize,
    lines: &LineSender,
) -> Result<HostProcess> {
    let enter = host.enter();
    let mut starting: Command = marked(&state.name, &enter[0]);
    starting.args(&enter[1..]).args(command).env(HOST_VARIABLE, &host.name);
    if let Some(point) = &host.mount_point {
        starting.current_dir(point);
    }
    starting.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // The child process gets its own process group, and gets SIGTERM when the calling thread ends.
    let mut child = skep_env::spawn_child(&mut starting)
        .map_err(|error| Error::from(error).within(format_args!("on {}", host.name)))?;
    let readers = vec![
        reader(child.stdout.take(), index, Stream::Out, lines.clone()),
        reader(child.stderr.take(), index, Stream::Err, lines.clone()),
    ];
    let ended = Duration::ZERO;
    Ok(HostProcess { child, readers, status: None, ended, is_timed_out: false })
}

fn reader(
    from: Option<impl Read + Send + 'static>,
    index: usize,
    stream: Stream,
    lines: LineSender,
) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let Some(from) = from else { return };
        let mut from = BufReader::new(from);
        loop {
            let mut line = Vec::new();
            match from.by_ref().take(MAX_LINE).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) if lines.send((index, stream, line)).is_err() => return,
                Ok(_) => {}
            }
        }
    })
}

/// Sends a signal to the command on one host, and to all processes in its process group.
fn end(running: &mut HostProcess, signal: i32) {
    if running.status.is_none() {
        let _ = skep_env::send_group_signal(running.child.id(), signal);
    }
}

/// Passes output lines to `on_line` until all commands and their output have ended. If background
/// processes have the output open, waits at most [`END_PATIENCE`] after the end of the commands.
/// Signals commands that exceed the timeout.
fn await_all(
    running: &mut [HostProcess],
    start: Duration,
    timeout: Option<Duration>,
    received: &Receiver<OutputLine>,
    on_line: &mut dyn FnMut(OutputLine),
) -> Result<()> {
    let deadline = timeout.map(|timeout| start + timeout);
    loop {
        if let Ok(line) = received.recv_timeout(TICK) {
            on_line(line);
            received.try_iter().take(WAITING_LINES).for_each(&mut *on_line);
        }
        let now = skep_env::now();
        for run in running.iter_mut().filter(|run| run.status.is_none()) {
            run.status = run.child.try_wait()?;
            run.ended = now;
        }
        let has_ended = |run: &HostProcess| {
            run.status.is_some() && run.readers.iter().all(JoinHandle::is_finished)
        };
        if running.iter().all(has_ended) {
            return Ok(());
        }
        if running.iter().all(|run| run.status.is_some() && now > run.ended + END_PATIENCE) {
            return Ok(());
        }
        let Some(deadline) = deadline.filter(|deadline| now > *deadline) else { continue };
        for run in running.iter_mut().filter(|run| run.status.is_none()) {
            let signal = match (run.is_timed_out, now > deadline + END_PATIENCE) {
                (false, _) => libc::SIGTERM,
                (true, true) => libc::SIGKILL,
                (true, false) => continue,
            };
            run.is_timed_out = true;
            end(run, signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_output_lines_are_forwarded_in_pieces() {
        let (lines, received): (LineSender, _) = mpsc::sync_channel(WAITING_LINES);
        let mut text = vec![b'x'; MAX_LINE as usize + 5];
        text.extend_from_slice(b"\nlast");
        let read = reader(Some(std::io::Cursor::new(text)), 3, Stream::Err, lines);
        read.join().unwrap();
        let pieces: Vec<_> = received.iter().collect();
        let lengths: Vec<_> = pieces.iter().map(|(_, _, line)| line.len()).collect();
        assert_eq!(lengths, [MAX_LINE as usize, 6, 4]);
        assert!(pieces.iter().all(|(index, stream, _)| (*index, *stream) == (3, Stream::Err)));
    }
}
