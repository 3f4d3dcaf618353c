//! Changes the log level of a running mount: SIGUSR1 makes the log one step more detailed, SIGUSR2
//! restores the configured level.
//!
//! `skep node log-level` changes the level through management. Signals also work if management or
//! the mount no longer replies. In this situation, administrators need a detailed log most.

use skep_service::logging;
use skep_types::Result;

const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// Starts a thread that waits for the two signals and changes the level. The caller must call this
/// function before any other thread starts.
pub(super) fn follow_signals() -> Result<()> {
    const NUMBERS: [i32; 2] = [libc::SIGUSR1, libc::SIGUSR2];
    // Blocks the two signals in this thread and in all threads that this thread starts after this
    // call. So only the thread that `spawn_thread` starts below receives the two signals.
    drop(skep_env::Signals::take(&NUMBERS)?);
    // The new thread also blocks the signals that end the mount. Without the block, the default
    // action of these signals in the new thread would kill the process before the unmount.
    let ending = skep_env::Signals::not_ignored(&[libc::SIGTERM, libc::SIGINT]);
    drop(skep_env::Signals::take(&ending)?);
    skep_env::spawn_thread("skep-log-level".into(), None, move || {
        let followed = skep_env::block_on(async move {
            let signals = skep_env::Signals::take(&NUMBERS)?;
            while let Ok(number) = signals.next().await {
                let current = logging::level().map(|level| level.current).unwrap_or_default();
                let wanted = match number {
                    libc::SIGUSR1 => more_detailed(&current),
                    _ => "",
                };
                if let Err(error) = logging::change(wanted) {
                    tracing::warn!(
                        "a signal has requested another log level, and this mount cannot change \
                         its log level: {error}"
                    );
                }
            }
            std::io::Result::Ok(())
        });
        if let Err(error) = followed.flatten() {
            tracing::warn!(
                "this mount cannot receive SIGUSR1 and SIGUSR2, which change its log level: \
                 {error}; `skep node log-level` also changes the level"
            );
        }
    })?;
    Ok(())
}

/// Returns the level that is one step more detailed than `current`. If `current` is a filter with
/// levels for single modules, returns `debug` for the whole program.
fn more_detailed(current: &str) -> &'static str {
    match LEVELS.iter().position(|level| *level == current) {
        Some(index) => LEVELS[(index + 1).min(LEVELS.len() - 1)],
        None => "debug",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sigusr1_makes_the_log_more_detailed_up_to_trace() {
        assert_eq!(more_detailed("info"), "debug");
        assert_eq!(more_detailed("trace"), "trace");
        assert_eq!(more_detailed("info,skep_client=trace"), "debug");
    }
}
