//! Notices that a copy makes no progress, for example because a file server does not answer. The
//! copy itself continues, because a file server may need minutes to restart.

use skep_copy::outcome::Progress;
use std::time::Duration;

/// Time without progress after which the user gets a warning. Without progress, further warnings
/// follow after the same time.
const SILENCE: Duration = Duration::from_secs(60);

/// The counts and the time of the last progress of a copy.
#[derive(Debug, Default)]
pub(super) struct StallWatch {
    /// Numbers of found entries, of completely copied entries, of copied bytes and of problems.
    last: [u64; 4],
    /// Time from the start of the copy to its last progress.
    changed: Duration,
    /// Time from the start of the copy to its last progress or to the last warning, whichever is
    /// later.
    warned: Duration,
}

impl StallWatch {
    /// Returns a warning if there was neither progress nor a warning for [`SILENCE`].
    pub(super) fn observe(&mut self, progress: &Progress) -> Option<String> {
        let Progress { found, done, bytes, problems, elapsed, .. } = *progress;
        let counts = [found, done, bytes, problems];
        if counts != self.last {
            *self = Self { last: counts, changed: elapsed, warned: elapsed };
            return None;
        }
        if elapsed.saturating_sub(self.warned) < SILENCE {
            return None;
        }
        self.warned = elapsed;
        Some(format!(
            "the copy has made no progress for {} s: check whether the file systems of the source \
             and of the destination answer; the copy continues as soon as these file systems \
             answer, and --resume continues an interrupted copy",
            elapsed.saturating_sub(self.changed).as_secs()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_without_progress_causes_a_warning_every_minute() {
        let mut watch = StallWatch::default();
        let mut observe = |seconds: u64, bytes: u64| {
            let elapsed = Duration::from_secs(seconds);
            watch.observe(&Progress { bytes, elapsed, ..Progress::default() })
        };
        assert_eq!((observe(59, 0), observe(60, 1), observe(119, 1)), (None, None, None));
        assert!(observe(120, 1).unwrap().contains("no progress for 60 s"));
        assert_eq!((observe(121, 1), observe(179, 1)), (None, None));
        assert!(observe(180, 1).unwrap().contains("no progress for 120 s"));
        assert_eq!((observe(240, 2), observe(299, 2)), (None, None));
    }
}
