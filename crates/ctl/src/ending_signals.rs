//! The signals that end a command. A command that must first clean up uses this module.

use skep_env::Signals;
use skep_types::Result;
use std::time::Duration;

/// The signals of Ctrl-C, of `kill` without options, and of a terminal that is closed.
const NUMBERS: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
/// Time between two checks for a signal.
const PAUSE: Duration = Duration::from_millis(100);

/// The signals that end this command. The process has blocked these signals, so that no signal ends
/// the process immediately. The list does not contain signals that the process ignores, for example
/// SIGHUP under `nohup`.
#[derive(Debug)]
pub(crate) struct EndingSignals(Vec<i32>);

impl EndingSignals {
    /// Blocks the signals. The caller must call this function before any other thread starts. The
    /// caller must start child processes with functions of `skep_env`, which unblock the signals.
    ///
    /// # Errors
    /// Returns an error if the process is out of file descriptors.
    pub(crate) fn block() -> Result<Self> {
        let numbers = Signals::not_ignored(&NUMBERS);
        // The signals stay blocked after this value is dropped.
        drop(Signals::take(&numbers)?);
        Ok(Self(numbers))
    }

    /// Starts a thread that calls `at_signal` with the number of each signal that arrives, and of
    /// each signal that has arrived since [`Self::block`].
    ///
    /// # Errors
    /// Returns an error if the process is out of threads.
    pub(crate) fn follow(self, mut at_signal: impl FnMut(i32) + Send + 'static) -> Result<()> {
        // The thread polls, because waiting needs io_uring, which a host that is being set up may
        // lack.
        skep_env::spawn_thread("signals".into(), None, move || {
            let Ok(signals) = Signals::take(&self.0) else { return };
            while let Ok(pending) = signals.take_pending() {
                match pending {
                    Some(number) => at_signal(number),
                    None => std::thread::sleep(PAUSE),
                }
            }
        })?;
        Ok(())
    }
}
