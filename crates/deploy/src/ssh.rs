//! Runs scripts on hosts through the `ssh` client that is installed on this host. Each ssh session
//! runs one script as root.
//!
//! A script arrives on standard input, so that its secrets appear in no list of processes and in no
//! file. The only exception is a script that is followed by a file (the program). This script is on
//! the command line, and contains no secret. `ssh` itself decides about keys and known hosts. This
//! module never asks the user, and never accepts an unknown host key. [`run_here`] runs a script on
//! this host without ssh. [`Ssh::program`] returns a command that runs a program on a host. The
//! caller uses the streams of this command.

use crate::hosts::{Deployment, Host};
use serde::Serialize;
use skep_types::{Error, ErrorCode, Result};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Time limit for a connection attempt, in seconds.
const CONNECT_SECONDS: u32 = 10;
/// Time limit for a script that only observes a host. Such a script takes seconds, unless a disk or
/// a file system of the host does not answer.
const OBSERVATION_LIMIT: Duration = Duration::from_secs(180);
/// Maximum number of bytes of each output of a script that are kept.
const MOST_OUTPUT: u64 = 16 << 20;
/// Exit code of `ssh` if the ssh session itself has failed.
const SESSION_FAILED: i32 = 255;
/// Exit code of a shell that cannot find the program.
const NOT_FOUND: i32 = 127;

/// A problem or warning of one host.
#[derive(Debug, Clone, Serialize)]
pub struct HostProblem {
    /// Name of the host.
    pub host: String,
    /// The problem, and how to fix it.
    pub problem: String,
}

/// The output of a script that succeeded.
#[derive(Debug)]
pub struct Output {
    /// The standard output of the script.
    pub text: String,
    /// Wall clock of this host before the ssh session, as time since 1970.
    pub began: Duration,
    /// Wall clock of this host after the ssh session, as time since 1970.
    pub ended: Duration,
}

/// Runs scripts on the hosts of a deployment.
#[derive(Debug)]
pub struct Ssh<'a> {
    deployment: &'a Deployment,
}

impl<'a> Ssh<'a> {
    /// Creates a value that uses the ssh options of the deployment.
    pub fn new(deployment: &'a Deployment) -> Self {
        Self { deployment }
    }

    /// Runs a script on a host as root until it ends. Returns its standard output.
    ///
    /// # Errors
    /// - `Disconnected` if the host does not answer.
    /// - `PermissionDenied` if the host refuses the user, or the user cannot become root.
    /// - `Io` with the standard error of the script if the script fails. The caller adds the name
    ///   of the step.
    pub fn run(&self, host: &Host, script: &str) -> Result<Output> {
        self.run_within(host, script, None)
    }

    /// Runs a script that only observes a host.
    ///
    /// # Errors
    /// - The errors of [`Self::run`].
    /// - `TimedOut` if the script does not end within [`OBSERVATION_LIMIT`].
    pub fn observe(&self, host: &Host, script: &str) -> Result<Output> {
        self.run_within(host, script, Some(OBSERVATION_LIMIT))
    }

    fn run_within(&self, host: &Host, script: &str, limit: Option<Duration>) -> Result<Output> {
        let command = "if [ \"$(id -u)\" = 0 ]; then exec sh -s; else exec sudo -n sh -s; fi";
        let mut child = self.start(host, &format!("exec sh -c {}", quoted(command)))?;
        let mut input = child.stdin.take().expect("standard input is a pipe");
        let script = script.to_owned();
        let writer = std::thread::spawn(move || {
            // If the session ends early, the write fails. The exit code of the session shows the
            // reason.
            let _ = input.write_all(script.as_bytes());
        });
        let finished = self.finish(host, child, limit);
        let _ = writer.join();
        finished
    }

    /// Runs a script on a host as root, with a file as the standard input of the script.
    ///
    /// # Errors
    /// The errors of [`Self::run`].
    pub fn send(&self, host: &Host, script: &str, file: &std::path::Path) -> Result<Output> {
        let named = |error: std::io::Error| {
            Error::from(error).within(format_args!("cannot read {}", file.display()))
        };
        let mut payload = File::open(file).map_err(named)?;
        let script = quoted(script);
        let command = format!(
            "if [ \"$(id -u)\" = 0 ]; then exec sh -c {script}; \
             else exec sudo -n sh -c {script}; fi"
        );
        let mut child = self.start(host, &format!("exec sh -c {}", quoted(&command)))?;
        let mut input = child.stdin.take().expect("standard input is a pipe");
        let writer = std::thread::spawn(move || {
            let _ = std::io::copy(&mut payload, &mut input);
        });
        let finished = self.finish(host, child, None);
        let _ = writer.join();
        finished
    }

    /// Returns the command that runs a program on a host, as root or as the user who logs in by
    /// ssh. The streams of the command are the streams of the program.
    pub fn program(&self, host: &Host, words: &[String], as_root: bool) -> Command {
        let words: Vec<_> = words.iter().map(|word| quoted(word)).collect();
        let words = words.join(" ");
        // Because of `exit`, the shell does not replace itself by the program. So if the program is
        // killed, the exit code of the shell differs from the exit code of `ssh` for a lost
        // session.
        let line = match as_root {
            false => format!("{words}; exit $?"),
            true => {
                format!("if [ \"$(id -u)\" = 0 ]; then {words}; else sudo -n {words}; fi; exit $?")
            }
        };
        self.client(host, &format!("exec sh -c {}", quoted(&line)))
    }

    /// Explains why a program of [`Self::program`] has failed. The second returned value is true if
    /// the program has certainly ended.
    pub fn explain(&self, host: &Host, status: ExitStatus, errors: &str) -> (String, bool) {
        match status.code() {
            Some(SESSION_FAILED) => (self.session_error(host, errors).context().to_owned(), false),
            Some(code) if errors.contains("sudo: ") => {
                (no_root(host, errors).context().to_owned(), code != SESSION_FAILED)
            }
            Some(NOT_FOUND) => {
                let reason = last_lines(errors, "");
                let what =
                    format!("skep is not installed on the host ({reason}); install its package");
                (what, true)
            }
            Some(_) => (format!("{status}: {}", last_lines(errors, "")), true),
            // The ssh client itself was killed.
            None => (format!("ssh ended: {status}"), false),
        }
    }

    fn start(&self, host: &Host, command: &str) -> Result<Child> {
        let mut ssh = self.client(host, command);
        ssh.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        ssh.spawn().map_err(|error| match error.kind() {
            ErrorKind::NotFound => Error::new(
                ErrorCode::NotFound,
                "cannot run ssh: the program is not installed; install the package \
                 openssh-client (Debian) or openssh-clients (RHEL)",
            ),
            _ => Error::from(error).within("cannot run ssh"),
        })
    }

    fn client(&self, host: &Host, command: &str) -> Command {
        let settings = &self.deployment.ssh;
        let mut ssh = Command::new("ssh");
        ssh.args(["-T", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=10"]);
        ssh.args(["-o", "ServerAliveCountMax=3", "-o"]);
        ssh.arg(format!("ConnectTimeout={CONNECT_SECONDS}"));
        for option in &settings.options {
            ssh.args(["-o", option]);
        }
        if !settings.identity.is_empty() {
            ssh.arg("-i").arg(self.deployment.directory.join(&settings.identity));
            ssh.args(["-o", "IdentitiesOnly=yes"]);
        }
        if settings.port != 0 {
            ssh.args(["-p", &settings.port.to_string()]);
        }
        if !settings.user.is_empty() {
            ssh.args(["-l", &settings.user]);
        }
        ssh.args(["--", &host.address, command]);
        ssh
    }

    /// Waits until an ssh session has ended, and returns its output. `limit` is the time limit.
    /// `None` means that there is no limit.
    fn finish(&self, host: &Host, mut child: Child, limit: Option<Duration>) -> Result<Output> {
        let began = now();
        let output = child.stdout.take().expect("standard output is a pipe");
        let errors = child.stderr.take().expect("standard error is a pipe");
        let (sender, ended) = sync_channel(1);
        let output = std::thread::spawn(move || {
            let bytes = read_all(output);
            // After the time limit, no receiver waits for this message.
            let _ = sender.send(());
            bytes
        });
        let errors = std::thread::spawn(move || read_all(errors));
        if let Some(limit) = limit
            && ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout)
        {
            // If the session has ended a moment ago, the kill fails. The threads end with the
            // streams of the session.
            let _ = child.kill();
            let _ = child.wait();
            return Err(silent(host, limit));
        }
        let bytes = output.join().expect("the thread does not panic")?;
        let status = child.wait()?;
        let errors = errors.join().expect("the thread does not panic").unwrap_or_default();
        let errors = String::from_utf8_lossy(&errors).into_owned();
        if status.success() {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            return Ok(Output { text, began, ended: now() });
        }
        Err(match status.code() {
            Some(SESSION_FAILED) => self.session_error(host, &errors),
            _ if errors.contains("sudo: ") => no_root(host, &errors),
            _ => Error::new(ErrorCode::Io, last_lines(&errors, &String::from_utf8_lossy(&bytes))),
        })
    }

    /// Returns the error for an ssh session that could not begin, or that was lost.
    fn session_error(&self, host: &Host, errors: &str) -> Error {
        let reason = last_lines(errors, "");
        let place = match self.deployment.ssh.user.as_str() {
            "" => host.address.clone(),
            user => format!("{user}@{}", host.address),
        };
        let (code, way_out) =
            if reason.contains("Host key verification failed") || reason.contains("host key") {
                let way_out = format!(
                    "compare the host key, then connect once with `ssh {place}`; if the host was \
                 installed anew, first run `ssh-keygen -R {}`",
                    host.address
                );
                (ErrorCode::AuthenticationFailed, way_out)
            } else if reason.contains("Permission denied") {
                let way_out = format!(
                    "add the public key to its authorized_keys (`ssh-copy-id {place}`), or set \
                 ssh.user and ssh.identity in the hosts file"
                );
                (ErrorCode::PermissionDenied, way_out)
            } else {
                let way_out = "check the address, the network, and that sshd runs there".to_owned();
                (ErrorCode::Disconnected, way_out)
            };
        let what = format!("cannot reach host {} by ssh ({place}): {reason}; {way_out}", host.name);
        Error::new(code, what)
    }
}

/// Checks that the key file `ssh.identity` of the hosts file exists. `ssh` itself only warns, in
/// each session, and then tries to log in without the key.
///
/// # Errors
/// The error of the key file, with its path. Not for paths that only `ssh` can expand.
pub fn check_identity(deployment: &Deployment) -> Result<()> {
    let path = deployment.directory.join(&deployment.ssh.identity);
    let text = path.to_string_lossy();
    if deployment.ssh.identity.is_empty() || text.starts_with('~') || text.contains(['%', '$']) {
        return Ok(());
    }
    std::fs::metadata(&path).map(drop).map_err(|error| {
        let what = format!(
            "cannot use the key file {text} for ssh: {error}; correct ssh.identity in the hosts \
             file (a relative path starts at the directory of that file)"
        );
        Error::new(Error::from(error).code(), what)
    })
}

/// Runs a script on this host with the rights of this process.
///
/// # Errors
/// Returns `Io` with the standard error of the script if the script fails.
pub fn run_here(script: &str) -> Result<Output> {
    let mut shell = Command::new("sh");
    shell.arg("-s").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let began = now();
    let mut child = shell.spawn().map_err(|error| Error::from(error).within("cannot run sh"))?;
    if let Some(mut input) = child.stdin.take() {
        // If the script ends early, the write fails. The exit code of the script shows the reason.
        let _ = input.write_all(script.as_bytes());
    }
    let output = child.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(Output { text, began, ended: now() });
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let why = match last_lines(&errors, &text) {
        // A script that was killed has printed nothing to standard error.
        lines if lines.is_empty() => {
            format!("the script on the host was killed ({})", output.status)
        }
        lines => lines,
    };
    Err(Error::new(ErrorCode::Io, why))
}

/// Reads a stream until its end. Drops all bytes after the first [`MOST_OUTPUT`].
fn read_all(mut stream: impl Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    (&mut stream).take(MOST_OUTPUT).read_to_end(&mut bytes)?;
    std::io::copy(&mut stream, &mut std::io::sink())?;
    Ok(bytes)
}

/// Returns the error for a script that has not ended within `limit`.
fn silent(host: &Host, limit: Duration) -> Error {
    let what = format!(
        "host {} has not reported its state within {} s: a disk, a file system or systemd may not \
         answer there; log in to the host, and look at the processes in state D (`ps -eo \
         state,pid,args | grep ^D`)",
        host.name,
        limit.as_secs()
    );
    Error::new(ErrorCode::TimedOut, what)
}

fn no_root(host: &Host, errors: &str) -> Error {
    let what = format!(
        "cannot become root on host {}: {}; set ssh.user = \"root\" in the hosts file, or permit \
         this user to run sudo without a password",
        host.name,
        last_lines(errors, "")
    );
    Error::new(ErrorCode::PermissionDenied, what)
}

/// Returns the last lines of the standard error. If it is empty, returns the last lines of the
/// standard output.
fn last_lines(errors: &str, output: &str) -> String {
    let is_noise =
        |line: &&str| !line.trim().is_empty() && !line.starts_with("Warning: Permanently added");
    let text = if errors.trim().is_empty() { output } else { errors };
    let lines: Vec<&str> = text.lines().filter(is_noise).map(str::trim).collect();
    let from = lines.len().saturating_sub(6);
    lines[from..].join(" | ")
}

/// Quotes a text for a POSIX shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_errors_name_the_host_and_a_remedy() {
        let deployment = Deployment::parse(crate::hosts::tests::GOOD).unwrap();
        let (ssh, host) = (Ssh::new(&deployment), &deployment.hosts[1]);
        let check = |errors: &str, code: ErrorCode, words: &[&str]| {
            let error = ssh.session_error(host, errors);
            assert_eq!(error.code(), code, "{errors}");
            for word in words.iter().chain(&["host s1", "root@10.0.0.2"]) {
                assert!(error.context().contains(word), "{word}: {}", error.context());
            }
        };
        check(
            "ssh: connect to host 10.0.0.2 port 22: Connection timed out\n",
            ErrorCode::Disconnected,
            &["Connection timed out", "sshd runs"],
        );
        check(
            "root@10.0.0.2: Permission denied (publickey).\r\n",
            ErrorCode::PermissionDenied,
            &["ssh-copy-id root@10.0.0.2", "ssh.identity"],
        );
        check(
            "No ED25519 host key is known for 10.0.0.2 and you have requested strict checking.\n\
             Host key verification failed.\n",
            ErrorCode::AuthenticationFailed,
            &["ssh-keygen -R 10.0.0.2"],
        );
        let no_root = no_root(host, "sudo: a password is required\n");
        assert!(no_root.context().contains("sudo without a password"), "{no_root}");
    }

    #[test]
    fn ssh_error_states_why_the_remote_program_failed() {
        use std::os::unix::process::ExitStatusExt;
        let deployment = Deployment::parse(crate::hosts::tests::GOOD).unwrap();
        let (ssh, host) = (Ssh::new(&deployment), &deployment.hosts[1]);
        let explain =
            |status: i32, errors: &str| ssh.explain(host, ExitStatus::from_raw(status), errors);
        for (status, errors, word, has_ended) in [
            (255 << 8, "Connection reset by peer\n", "cannot reach host s1", false),
            (127 << 8, "sh: 1: skep: not found\n", "install its package", true),
            (137 << 8, "Killed\n", "exit status: 137: Killed", true),
            (1 << 8, "sudo: a password is required\n", "cannot become root", true),
            (9, "", "ssh ended", false),
        ] {
            let (text, ended) = explain(status, errors);
            assert!(text.contains(word), "{word}: {text}");
            assert_eq!(ended, has_ended, "{word}");
        }
        let command = ssh.program(host, &["skep".into(), "a 'b'".into()], false);
        let last = command.get_args().last().unwrap().to_str().unwrap();
        let output =
            Command::new("sh").args(["-c", &last.replace("skep", "echo")]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "a 'b'\n");
    }

    #[test]
    fn host_that_does_not_answer_a_script_is_reported_in_time() {
        let deployment = Deployment::parse(crate::hosts::tests::GOOD).unwrap();
        let (ssh, host) = (Ssh::new(&deployment), &deployment.hosts[1]);
        let session = |script: &str| {
            let mut shell = Command::new("sh");
            shell.args(["-c", script]);
            shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            shell.spawn().unwrap()
        };
        // The shell waits for input, which never comes.
        let mut waiting = session("read -r line");
        let _input = waiting.stdin.take();
        let error = ssh.finish(host, waiting, Some(Duration::from_millis(20))).unwrap_err();
        assert_eq!(error.code(), ErrorCode::TimedOut);
        assert!(error.context().contains("host s1 has not reported"), "{error}");
        let limit = Some(Duration::from_secs(60));
        let output = ssh.finish(host, session("echo out; echo err >&2"), limit).unwrap();
        assert_eq!(output.text, "out\n");
        let error = ssh.finish(host, session("echo err >&2; exit 3"), None).unwrap_err();
        assert_eq!((error.code(), error.context()), (ErrorCode::Io, "err"));
    }

    #[test]
    fn missing_key_file_is_reported_before_the_first_session() {
        let mut deployment = Deployment::parse(crate::hosts::tests::GOOD).unwrap();
        assert!(check_identity(&deployment).is_ok(), "no key file is set");
        for (identity, is_good) in [("/proc/self/none", false), ("/", true), ("~/key", true)] {
            deployment.ssh.identity = identity.into();
            assert_eq!(check_identity(&deployment).is_ok(), is_good, "{identity}");
        }
        deployment.ssh.identity = "/proc/self/none".into();
        let error = check_identity(&deployment).unwrap_err();
        assert!(error.context().contains("key file /proc/self/none for ssh"), "{error}");
    }

    #[test]
    fn quoted_text_reaches_the_shell_unchanged() {
        assert_eq!(quoted("echo 'a b'"), r"'echo '\''a b'\'''");
    }
}
