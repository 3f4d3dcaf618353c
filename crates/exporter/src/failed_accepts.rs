//! The log of a listener that cannot accept connections, for example because the process has no
//! free file descriptor.
//!
//! After a failed accept, a listener accepts again after a short pause, so a line for each failure
//! would fill the log. The code of each listener makes the pause, because listeners have pauses of
//! different lengths.

use skep_metrics::LineLimit;
use std::io;
use std::time::Duration;

/// Logs the failed accepts of one listener, at most one line a minute.
#[derive(Debug)]
pub struct FailedAccepts {
    listener: String,
    lines: LineLimit,
}

impl FailedAccepts {
    /// Creates the log of a listener. Each line begins with `listener`, such as `the page at
    /// ADDRESS`.
    pub fn new(listener: impl Into<String>) -> Self {
        Self { listener: listener.into(), lines: LineLimit::default() }
    }

    /// Logs a failed accept, or only counts the failure if the last line is less than a minute old.
    pub fn note(&self, error: &io::Error) {
        if let Some(line) = self.line(skep_env::now(), error) {
            tracing::warn!("{line}");
        }
    }

    fn line(&self, now: Duration, error: &io::Error) -> Option<String> {
        let Self { listener, lines } = self;
        let failures = lines.count(now)?;
        let line = format!("{listener} cannot accept a connection, and retries: {error}");
        Some(match failures {
            1 => line,
            _ => format!("{line}; {failures} failures since the last such line"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_accepts_are_logged_at_most_once_a_minute() {
        let failed = FailedAccepts::new("the page at 192.0.2.1:80");
        let error = io::Error::other("too many open files");
        // Two minutes with a failure every 100 ms.
        let times = (0..1200).map(|number| Duration::from_millis(5_000 + 100 * number));
        let lines: Vec<_> = times.filter_map(|now| failed.line(now, &error)).collect();
        let text = "the page at 192.0.2.1:80 cannot accept a connection, and retries: too many \
                    open files";
        let second = format!("{text}; 600 failures since the last such line");
        assert_eq!(lines, [text, second.as_str()]);
    }
}
