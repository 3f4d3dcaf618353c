//! The time of day of a target, which determines file times and the ages of records.
//!
//! The host's clock may jump: an administrator sets it, or a wrong time server moves it by years. A
//! file with a time in the future would keep this time, since file times never go back. So the
//! target ignores and logs a jump of more than [`MAX_CLOCK_STEP`]. After an ignored jump, the
//! target's time of day continues with the clock since boot. The target's time follows the host's
//! clock again when both times differ by at most [`MAX_CLOCK_STEP`].

use crate::limits::MAX_CLOCK_STEP;
use skep_types::Timestamp;
use std::time::Duration;

/// A time of day that follows the host's clock, except for jumps.
#[derive(Debug)]
pub(crate) struct WallClock {
    /// Time since boot at the last reading of the host's clock.
    read_at: Duration,
    /// Accepted time of day at the last reading, in nanoseconds.
    accepted: i128,
    /// Highest accepted time of day.
    newest: Timestamp,
    /// Whether the last reading of the host's clock was refused.
    is_refusing: bool,
}

fn nanoseconds(time: Timestamp) -> i128 {
    i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds)
}

impl WallClock {
    /// Creates a clock that accepts the host's time `wall`. `now` is the time since boot.
    pub(crate) fn new(now: Duration, wall: Timestamp) -> Self {
        Self { read_at: now, accepted: nanoseconds(wall), newest: wall, is_refusing: false }
    }

    /// Handles a reading of the host's clock: `wall` is the time of day at the time `now` since
    /// boot.
    pub(crate) fn read(&mut self, now: Duration, wall: Timestamp) {
        let expected = self.accepted + now.saturating_sub(self.read_at).as_nanos() as i128;
        let read = nanoseconds(wall);
        let step = (read - expected).unsigned_abs();
        let is_refused = step > MAX_CLOCK_STEP.as_nanos();
        if is_refused && !self.is_refusing {
            let direction = if read > expected { "ahead" } else { "back" };
            tracing::error!(
                "the clock of this host jumped {direction} by {} s: file times do not follow this \
                 jump; correct the clock, or restart this service if the new time is right",
                step / 1_000_000_000
            );
        } else if !is_refused && self.is_refusing {
            tracing::info!("file times follow the clock of this host again");
        }
        self.is_refusing = is_refused;
        self.accepted = if is_refused { expected } else { read };
        self.read_at = self.read_at.max(now);
        self.newest = self.newest.max(Timestamp::from_nanoseconds(self.accepted));
    }

    /// Returns the highest accepted time of day, which never goes back.
    pub(crate) fn newest(&self) -> Timestamp {
        self.newest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp { seconds, nanoseconds: 0 }
    }

    #[test]
    fn file_times_do_not_follow_jumps_of_the_host_clock() {
        let mut clock = WallClock::new(Duration::from_secs(10), at(1_000_000));
        let mut read = |boot, wall, expected| {
            clock.read(Duration::from_secs(boot), at(wall));
            assert_eq!(clock.newest(), at(expected), "boot {boot}, wall {wall}");
        };
        read(11, 1_000_001, 1_000_001);
        // The host's clock makes a small step forward, and a small step back.
        read(12, 1_000_100, 1_000_100);
        read(13, 1_000_050, 1_000_100);
        // The host's clock is 30 years ahead for a while.
        read(20, 1_900_000_000, 1_000_100);
        read(120, 1_900_000_100, 1_000_157);
        read(121, 1_000_158, 1_000_158);
        // The host's clock jumps back.
        read(131, 5, 1_000_168);
        read(132, 1_000_169, 1_000_169);
    }
}
