//! Requests that made this program panic. A panic ends the process, the service manager restarts
//! the service, and the client retries its request. Without this module, one such request would
//! keep the service down for ever.
//!
//! At a panic the process appends the fingerprint of the request to the file `quarantine` in its
//! directory. After [`REFUSED_AFTER`] panics, the service refuses the request. After repeated
//! panics, the service delays its start. Panics of another version of the program do not count.
//!
//! This module does not prevent panics. A panic that no request has caused can delay the next
//! start, but causes no refusal of requests.
//!
//! # Hazard: the panic hook
//! The panic hook may run at any point of the program. So the hook only reads one thread-local
//! value, and writes one short line with a few direct system calls.

use crate::PROGRAM_VERSION;
use skep_types::codec::crc32c;
use skep_types::{Error, ErrorCode, Result};
use std::cell::Cell;
use std::collections::HashMap;
use std::fs::OpenOptions;
use std::future::{Future, poll_fn};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Once, OnceLock};
use std::time::Duration;

/// Name of the file with the panics, in a service's directory.
pub const QUARANTINE_FILE: &str = "quarantine";
/// Number of panics after which the service refuses a request. The first panic may have had another
/// cause.
const REFUSED_AFTER: usize = 3;
/// Maximum number of lines of the file that a start reads, beginning with the newest line.
const MAX_LINES: usize = 1000;
/// Age up to which a panic counts for the delay of the next start, in seconds.
const RECENT_SECONDS: i64 = 300;
/// Maximum number of recent panics for a start without a delay.
const PANICS_WITHOUT_DELAY: u32 = 2;
/// Longest delay of a start after panics.
const LONGEST_DELAY: Duration = Duration::from_secs(30);

/// Fingerprint of a request, from its message number and its contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mark {
    message: u16,
    len: usize,
    crc: u32,
}

impl Mark {
    /// Returns the fingerprint of a request.
    pub fn of(message: u16, body: &[u8]) -> Self {
        Self { message, len: body.len(), crc: crc32c(body) }
    }
}

thread_local! {
    /// The fingerprint of the request that this thread is handling.
    static CURRENT: Cell<Option<Mark>> = const { Cell::new(None) };
}

/// The panics in the file of a service's directory.
#[derive(Debug)]
struct Quarantine {
    path: PathBuf,
    panics: HashMap<Mark, usize>,
    recent: u32,
}

static QUARANTINE: OnceLock<Quarantine> = OnceLock::new();
static HOOK: Once = Once::new();

/// Reads the quarantine of a service's directory, and records later panics in the file of this
/// directory. Each process must call this function once, before the service accepts requests.
/// Returns the delay after which the service should start.
pub fn start(directory: &Path) -> Duration {
    let quarantine = Quarantine::read(directory, skep_env::wall_time().seconds);
    let delay = quarantine.delay();
    for (request, _) in quarantine.panics.iter().filter(|(_, count)| **count >= REFUSED_AFTER) {
        tracing::error!(
            "this service refuses a certain request with message number {}, because this request \
             made the service panic; to accept the request again, remove the file {}",
            request.message,
            quarantine.path.display()
        );
    }
    // Ignore an error, because only tests run more than one service in a process.
    let _ = QUARANTINE.set(quarantine);
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if let Some(quarantine) = QUARANTINE.get() {
                quarantine.record(CURRENT.get(), skep_env::wall_time().seconds);
            }
            before(info);
        }));
    });
    delay
}

/// Refuses a request that has made this program panic repeatedly.
///
/// # Errors
/// `Io`, with a remedy, if the request is in quarantine.
pub fn check(message: u16, body: &[u8]) -> Result<()> {
    match QUARANTINE.get() {
        Some(quarantine) if !quarantine.panics.is_empty() => quarantine.check(message, body),
        _ => Ok(()),
    }
}

/// While this value exists, the thread counts as handling a request.
#[derive(Debug)]
pub struct Handling(());

impl Drop for Handling {
    fn drop(&mut self) {
        // If a panic unwinds this thread, the panic hook has already read this value.
        CURRENT.set(None);
    }
}

/// Records that this thread handles a request, until the returned guard is dropped.
#[must_use]
pub fn handling(message: u16, body: &[u8]) -> Handling {
    CURRENT.set(Some(Mark::of(message, body)));
    Handling(())
}

/// Runs a future. During each poll, the thread counts as handling `request`.
pub async fn watch<F: Future>(request: Mark, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|context| {
        CURRENT.set(Some(request));
        let _handling = Handling(());
        future.as_mut().poll(context)
    })
    .await
}

impl Quarantine {
    /// Reads the file. If the file is missing or cannot be read, the result contains no panics.
    fn read(directory: &Path, now: i64) -> Self {
        let path = directory.join(QUARANTINE_FILE);
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let lines: Vec<_> = text.lines().rev().take(MAX_LINES).collect();
        let mut quarantine = Self { path, panics: HashMap::new(), recent: 0 };
        for line in lines {
            let words: Vec<_> = line.split(' ').collect();
            let [version, seconds, message, len, crc] = words[..] else { continue };
            if version != PROGRAM_VERSION {
                continue;
            }
            let age = now - seconds.parse::<i64>().unwrap_or_default();
            quarantine.recent += u32::from((0..RECENT_SECONDS).contains(&age));
            let (Ok(message), Ok(len), Ok(crc)) = (message.parse(), len.parse(), crc.parse())
            else {
                continue;
            };
            *quarantine.panics.entry(Mark { message, len, crc }).or_default() += 1;
        }
        quarantine
    }

    /// Appends a panic to the file. Ignores errors, because the panic ends the process even if the
    /// file cannot be written.
    fn record(&self, request: Option<Mark>, now: i64) {
        let words = match request {
            Some(Mark { message, len, crc }) => format!("{message} {len} {crc}"),
            None => "- - -".into(),
        };
        let line = format!("{PROGRAM_VERSION} {now} {words}\n");
        if let Ok(mut file) = OpenOptions::new().create(true).append(true).open(&self.path) {
            let _ = file.write_all(line.as_bytes()).and_then(|()| file.sync_all());
        }
    }

    fn delay(&self) -> Duration {
        let more = self.recent.saturating_sub(PANICS_WITHOUT_DELAY);
        if more == 0 {
            return Duration::ZERO;
        }
        Duration::from_secs(1 << more.min(10)).min(LONGEST_DELAY)
    }

    fn check(&self, message: u16, body: &[u8]) -> Result<()> {
        let panics = self.panics.get(&Mark::of(message, body)).copied().unwrap_or_default();
        if panics < REFUSED_AFTER {
            return Ok(());
        }
        let what = format!(
            "cannot execute the request: the service panicked {panics} times when it executed this \
             request; report the panic from the log of the service, and remove the file {} on the \
             host of the service to allow another attempt",
            self.path.display()
        );
        Err(Error::new(ErrorCode::Io, what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Context;

    #[test]
    fn request_that_caused_repeated_panics_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let poison = Mark::of(7, b"poison");
        for panics in 0..REFUSED_AFTER {
            let quarantine = Quarantine::read(dir.path(), 1000);
            assert!(quarantine.check(7, b"poison").is_ok(), "{panics} panics");
            quarantine.record(Some(poison), 1000);
            // A panic without a request does not count as a panic of any request.
            quarantine.record(None, 1000);
        }
        let quarantine = Quarantine::read(dir.path(), 1000);
        let error = quarantine.check(7, b"poison").unwrap_err();
        assert!(error.context().contains(QUARANTINE_FILE), "{error}");
        assert!(quarantine.check(7, b"other").is_ok());
        assert!(quarantine.check(8, b"poison").is_ok());
        // An administrator removes the file, which ends the quarantine.
        std::fs::remove_file(&quarantine.path).unwrap();
        assert!(Quarantine::read(dir.path(), 1000).check(7, b"poison").is_ok());
    }

    #[test]
    fn starts_are_delayed_after_recent_panics() {
        let dir = tempfile::tempdir().unwrap();
        let delay = |now| Quarantine::read(dir.path(), now).delay().as_secs();
        let mut delays = Vec::new();
        for _ in 0..8 {
            delays.push(delay(1000));
            Quarantine::read(dir.path(), 1000).record(None, 1000);
        }
        assert_eq!(delays, [0, 0, 0, 2, 4, 8, 16, 30]);
        assert_eq!(delay(1000 + RECENT_SECONDS), 0);
        // Panics of another version do not count, because this version may not have the bug.
        let path = dir.path().join(QUARANTINE_FILE);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace(PROGRAM_VERSION, "0.0.0-other")).unwrap();
        assert_eq!(delay(1000), 0);
    }

    #[test]
    fn panic_hook_records_the_request_of_the_panicking_thread() {
        let dir = tempfile::tempdir().unwrap();
        start(dir.path());
        let panicked = std::thread::spawn(|| {
            drop(handling(1, b"finished"));
            let _handling = handling(7, b"poison");
            panic!("a test of the panic hook");
        })
        .join();
        assert!(panicked.is_err());
        let waits = std::future::pending::<()>();
        let mut watched = Box::pin(watch(Mark::of(9, b"waits"), waits));
        let waker = std::task::Waker::noop();
        assert!(watched.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
        assert_eq!(CURRENT.get(), None, "while the request waits, the thread handles no request");
        let quarantine = Quarantine::read(dir.path(), skep_env::wall_time().seconds);
        assert_eq!(quarantine.panics.get(&Mark::of(7, b"poison")), Some(&1));
        assert_eq!(quarantine.recent, 1);
    }
}
