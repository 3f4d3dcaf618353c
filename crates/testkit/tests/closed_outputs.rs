//! Commands and services that cannot write their output: the disk is full, or the reader of the
//! pipe has ended.

use rustix::process::Signal;
use skep_testkit::{PATIENCE, Scratch, cluster, process, wait_for};
use std::fs::OpenOptions;
use std::process::{Child, Command, ExitStatus, Stdio};

/// Returns an output to which each write fails with `ENOSPC`.
fn full_disk() -> Stdio {
    OpenOptions::new().write(true).open("/dev/full").expect("/dev/full can be opened").into()
}

/// Returns a pipe whose reader has ended.
fn closed_pipe() -> Stdio {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    writer.into()
}

fn skep(arguments: &[&str], stdout: Stdio, stderr: Stdio) -> Child {
    let mut command = Command::new(cluster::program());
    command.args(arguments).stdin(Stdio::null()).stdout(stdout).stderr(stderr);
    command.spawn().expect("skep can be started")
}

fn end_of(mut child: Child) -> ExitStatus {
    wait_for("the program ends", PATIENCE, || child.try_wait().expect("a child of this process"))
}

/// Regression test: `skep` printed error messages with a macro that panics if the write to standard
/// error fails.
#[test]
fn command_without_stderr_keeps_its_exit_code() {
    for (arguments, exit_code) in [
        (&["node", "lst"][..], 2),
        (&["node", "lst", "--output", "json"], 2),
        (&["entry", "info", "/nowhere"], 4),
        (&["entry", "info", "/nowhere", "--output", "json"], 4),
    ] {
        for stderr in [full_disk(), closed_pipe()] {
            let status = end_of(skep(arguments, Stdio::null(), stderr));
            assert_eq!(status.code(), Some(exit_code), "{arguments:?}: {status}");
        }
    }
}

#[test]
fn command_fails_at_a_full_disk_but_not_at_a_closed_pipe() {
    for arguments in [&["deploy", "units"][..], &["monitor", "--print-sample"]] {
        let at_full_disk = end_of(skep(arguments, full_disk(), Stdio::null()));
        assert_eq!(at_full_disk.code(), Some(1), "{arguments:?}: {at_full_disk}");
        let at_closed_pipe = end_of(skep(arguments, closed_pipe(), Stdio::null()));
        assert!(at_closed_pipe.success(), "{arguments:?}: {at_closed_pipe}");
    }
}

/// Regression test: after a failed write to the log, the logger reported the failure with a macro
/// that panics if printing fails. So a full disk ended the service at the next log line.
#[test]
fn service_serves_while_its_log_cannot_be_written() {
    let scratch = Scratch::new();
    let place = scratch.join("management").display().to_string();
    let service = ["management", "--directory", &place];
    let init = [&service[..], &["--init", "--listen", "127.0.0.1:0"]].concat();
    cluster::skep(init).expect_success();
    for stderr in [full_disk(), closed_pipe()] {
        let running = skep(&service, Stdio::null(), stderr);
        wait_for("management answers", PATIENCE, || {
            let listed = cluster::skep(["node", "list", "--cluster", &place]);
            listed.status.success().then_some(())
        });
        for process in process::below(scratch.path()) {
            process.signal(Signal::TERM);
        }
        let status = end_of(running);
        assert!(status.success(), "{status}");
    }
}
