//! `skep lab run`: runs a command on hosts of a lab.

use crate::help::{Example, examples};
use crate::output::{is_for_people, print, render, size, table};
use serde::Serialize;
use skep_lab::{CpuUse, DEFAULT_NAME, Host, HostRun, Role, State, Stream};
use skep_service::Interval;
use skep_types::Result;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

const EXAMPLES: &[Example] = &[
    ("run a command on all client hosts", "skep lab run -- stat --file-system ."),
    (
        "run a command on one host, for at most a minute",
        "skep lab run --host c1 --timeout 60s -- ls -l",
    ),
];

/// Run a command on all client hosts of a lab at the same time
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct RunArgs {
    /// Name of the lab
    #[arg(long, default_value = DEFAULT_NAME)]
    name: String,
    /// Host to run on; may be repeated [default: all client hosts]
    #[arg(long, value_name = "HOST", conflicts_with = "is_on_all")]
    host: Vec<String>,
    /// Run on all client hosts, which is the default
    #[arg(long = "all-clients")]
    is_on_all: bool,
    /// Stop the command after this time: 30s, 5min
    #[arg(long, value_name = "TIME")]
    timeout: Option<Interval>,
    /// Command to run; its working directory is the mount of the host
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Exit code if the command failed on at least one host.
const FAILED: u8 = 1;
/// Maximum number of bytes of one host's output in the JSON report. A command with more output
/// should write its output to a file.
const MAX_KEPT_BYTES: usize = 1 << 20;

/// The JSON output: the result of a run.
#[derive(Debug, Serialize)]
struct RunReport {
    seconds: f64,
    is_valid: bool,
    cpu: CpuUse,
    hosts: Vec<HostReport>,
}

#[derive(Debug, Serialize)]
struct HostReport {
    #[serde(flatten)]
    run: HostRun,
    /// Output of the command, truncated to [`MAX_KEPT_BYTES`].
    stdout: String,
    stderr: String,
}

pub(crate) fn run(args: &RunArgs) -> Result<ExitCode> {
    let state = State::load(&args.name)?;
    let hosts: Vec<&Host> = match args.host.as_slice() {
        [] => state.hosts_of(Role::Client).collect(),
        names => names.iter().map(|name| state.host(name)).collect::<Result<_>>()?,
    };
    let mut kept: BTreeMap<String, [Vec<u8>; 2]> = BTreeMap::new();
    let is_one = hosts.len() == 1;
    let mut on_line = |host: &str, stream: Stream, line: &[u8]| {
        if is_for_people() {
            pass_on(host, stream, line, is_one);
            return;
        }
        let [out, err] = kept.entry(host.to_owned()).or_default();
        let kept = if stream == Stream::Out { out } else { err };
        let free = MAX_KEPT_BYTES.saturating_sub(kept.len()).min(line.len());
        kept.extend_from_slice(&line[..free]);
    };
    let timeout = args.timeout.map(|timeout| timeout.0);
    let run = skep_lab::run(&state, &hosts, &args.command, timeout, &mut on_line)?;
    let is_success = run.is_success();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let report = |run: HostRun| {
        let [stdout, stderr] = kept.remove(&run.host).unwrap_or_default().map(text);
        HostReport { run, stdout, stderr }
    };
    let report = RunReport {
        seconds: run.seconds,
        is_valid: run.is_valid,
        cpu: run.cpu,
        hosts: run.hosts.into_iter().map(report).collect(),
    };
    print(&report, shown)?;
    Ok(if is_success { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

/// Prints a line that the command has printed on one host. If several hosts run the command, the
/// name of the host precedes the line.
fn pass_on(host: &str, stream: Stream, line: &[u8], is_one: bool) {
    let mut text = if is_one { Vec::new() } else { format!("{host}: ").into_bytes() };
    text.extend_from_slice(line);
    if !is_one && !line.ends_with(b"\n") {
        text.push(b'\n');
    }
    // Ignore errors, because a closed pipe at standard output or standard error must not stop the
    // run.
    let _ = match stream {
        Stream::Out => std::io::stdout().lock().write_all(&text),
        Stream::Err => std::io::stderr().lock().write_all(&text),
    };
}

fn shown(report: &RunReport) -> String {
    let mut hosts = table(&["Host", "Ended with", ">Seconds", ">Sent", ">Received"]);
    for HostReport { run, .. } in &report.hosts {
        let end = match (run.is_timed_out, run.exit_code, run.signal) {
            (true, _, _) => "stopped: timeout".into(),
            (_, Some(code), _) => format!("exit code {code}"),
            (_, None, Some(signal)) => format!("signal {signal}"),
            (_, None, None) => "-".into(),
        };
        let seconds = format!("{:.2}", run.seconds);
        let (sent, received) = (size(run.sent_bytes), size(run.received_bytes));
        hosts.add_row([run.host.clone(), end, seconds, sent, received]);
    }
    format!("{}{}", render(&hosts), report.cpu.in_words())
}
