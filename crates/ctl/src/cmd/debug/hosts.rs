//! The archives of other hosts in a bundle. Each host writes an archive to the standard output of
//! an ssh session: its logs, its settings and facts about its kernel.
//!
//! The size of each archive and the time for writing it are limited. If a host does not answer, the
//! bundle lacks only the archive of this host.

use serde::Serialize;
use skep_deploy::hosts::{Deployment, Host};
use skep_deploy::ssh::Ssh;
use std::io::Read;
use std::process::{Command, ExitStatus, Stdio};

/// Number of hosts that write their archives at the same time. The archives of these hosts are in
/// memory.
const AT_ONCE: usize = 8;
/// Maximum size of the archive of one host, in bytes.
const MOST_BYTES: u64 = 32 << 20;
/// Maximum length of the standard error of one session, in bytes.
const MOST_ERROR_BYTES: u64 = 16 << 10;
/// Time limit for the archive of one host, in seconds.
const MOST_SECONDS: u32 = 120;
/// Exit code of `timeout` after `timeout` has ended a command.
const TIMED_OUT: i32 = 124;

/// Whether the bundle has the archive of one host, in the JSON output.
#[derive(Debug, Serialize, PartialEq, Eq)]
pub(super) struct HostResult {
    pub(super) host: String,
    /// The reason why the bundle has no archive of the host, or only a part of the archive.
    pub(super) problem: Option<String>,
}

/// The hosts whose archives a bundle gets.
#[derive(Debug)]
pub(super) struct OtherHosts {
    pub(super) deployment: Deployment,
    /// Whether the hosts write their archives as root. `false` means that the hosts write their
    /// archives as the ssh login user.
    pub(super) as_root: bool,
}

/// An ssh session that has ended.
struct Session {
    status: ExitStatus,
    output: Vec<u8>,
    errors: String,
}

impl OtherHosts {
    /// Gets the archives of all hosts, and calls `add` with the name of each host that has written
    /// an archive, and with the archive. Returns the results of all hosts.
    ///
    /// # Errors
    /// The errors of `add`.
    pub(super) fn collect<E>(
        &self,
        mut add: impl FnMut(&str, Vec<u8>) -> Result<(), E>,
    ) -> Result<Vec<HostResult>, E> {
        let mut results = Vec::new();
        for hosts in self.deployment.hosts.chunks(AT_ONCE) {
            let archives: Vec<_> = std::thread::scope(|scope| {
                let all: Vec<_> =
                    hosts.iter().map(|host| scope.spawn(move || self.archive_of(host))).collect();
                let what =
                    "cannot get the archive: its thread has panicked, which is a bug of skep";
                let failed = |_| (Vec::new(), Some(what.to_owned()));
                all.into_iter().map(|thread| thread.join().unwrap_or_else(failed)).collect()
            });
            for (host, (archive, problem)) in hosts.iter().zip(archives) {
                if !archive.is_empty() {
                    add(&host.name, archive)?;
                }
                results.push(HostResult { host: host.name.clone(), problem });
            }
        }
        Ok(results)
    }

    /// Returns the archive of a host, and the problem if the archive is missing or incomplete.
    fn archive_of(&self, host: &Host) -> (Vec<u8>, Option<String>) {
        let ssh = Ssh::new(&self.deployment);
        let words = ["skep", "debug", "bundle", "--of-host"].map(str::to_owned);
        match run(&ssh.program(host, &words, self.as_root), MOST_SECONDS, MOST_BYTES) {
            Ok(session) => judged(session, |status, errors| ssh.explain(host, status, errors).0),
            Err(error) => (Vec::new(), Some(format!("cannot run ssh: {error}"))),
        }
    }
}

/// Returns the archive that a session has written, and the problem if the archive is missing or
/// incomplete.
fn judged(
    session: Session,
    explain: impl FnOnce(ExitStatus, &str) -> String,
) -> (Vec<u8>, Option<String>) {
    let Session { status, output, errors } = session;
    let problem = if output.len() as u64 >= MOST_BYTES {
        let bytes = MOST_BYTES >> 20;
        Some(format!(
            "the archive is longer than {bytes} MiB, and the bundle has only its beginning"
        ))
    } else if status.code() == Some(TIMED_OUT) {
        Some(format!("the host has not written its archive within {MOST_SECONDS} s"))
    } else if status.success() {
        None
    } else {
        Some(explain(status, &errors))
    };
    (output, problem)
}

/// Runs a command for at most `seconds` seconds. Reads at most `most` bytes of its standard output.
fn run(command: &Command, seconds: u32, most: u64) -> std::io::Result<Session> {
    let mut bounded = Command::new("timeout");
    bounded.arg("--kill-after=5").arg(seconds.to_string()).arg(command.get_program());
    bounded.args(command.get_args()).stdin(Stdio::null());
    bounded.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = skep_env::spawn_child(&mut bounded)?;
    let output = child.stdout.take().expect("standard output is a pipe");
    let mut errors = child.stderr.take().expect("standard error is a pipe");
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = errors.by_ref().take(MOST_ERROR_BYTES).read_to_end(&mut bytes);
        // The thread also reads all further bytes, because the session would wait if the pipe were
        // full.
        let _ = std::io::copy(&mut errors, &mut std::io::sink());
        String::from_utf8_lossy(&bytes).into_owned()
    });
    let mut bytes = Vec::new();
    // After this statement, the pipe is closed. A session that writes more bytes then gets an
    // error, and ends.
    let read = output.take(most).read_to_end(&mut bytes);
    let status = child.wait()?;
    let errors = reader.join().unwrap_or_default();
    read?;
    Ok(Session { status, output: bytes, errors })
}

/// Overwrites each byte of each occurrence of the secret by another byte. So the archive stays
/// readable, because no length in the archive changes.
pub(super) fn hide(archive: &mut [u8], secret: &str) {
    let secret = secret.as_bytes();
    if secret.is_empty() || archive.len() < secret.len() {
        return;
    }
    for start in 0..=archive.len() - secret.len() {
        let part = &mut archive[start..start + secret.len()];
        if part == secret {
            part.fill(b'x');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn session_to_a_host_is_bounded_in_time_and_output_size() {
        let ended = run(&shell("printf archive; echo reason >&2; exit 3"), 60, 100).unwrap();
        assert_eq!((ended.status.code(), ended.output.as_slice()), (Some(3), &b"archive"[..]));
        assert_eq!(ended.errors, "reason\n");
        let endless = run(&shell("exec yes"), 60, 1 << 20).unwrap();
        assert_eq!(endless.output.len(), 1 << 20);
        let late = run(&shell("printf begin; exec sleep 600"), 1, 100).unwrap();
        assert_eq!((late.status.code(), late.output.as_slice()), (Some(TIMED_OUT), &b"begin"[..]));
        let (archive, problem) = judged(late, |_, _| "not asked".into());
        assert_eq!(archive, b"begin");
        assert!(problem.unwrap().contains("within 120 s"));
    }

    #[test]
    fn failed_session_to_a_host_is_reported_with_its_error_text() {
        let of = |script: &str| judged(run(&shell(script), 60, 100).unwrap(), |_, it| it.into());
        assert_eq!(of("printf archive"), (b"archive".to_vec(), None));
        assert_eq!(of("printf refused >&2; exit 255"), (Vec::new(), Some("refused".into())));
    }

    #[test]
    fn secret_in_an_archive_is_replaced_without_a_change_of_length() {
        let mut archive = b"one abcdef two\0abcdefabcdef".to_vec();
        hide(&mut archive, "abcdef");
        assert_eq!(archive, b"one xxxxxx two\0xxxxxxxxxxxx");
        hide(&mut archive, "");
        assert_eq!(archive.len(), 27);
    }
}
