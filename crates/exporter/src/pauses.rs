//! Logs the times in which no thread of the process ran. The reason can be a signal or a debugger
//! that stopped the process, a suspended host, or other programs that used all processors. Without
//! these lines, the log of a server that other processes reported as silent would not show the
//! cause.

use skep_types::{Timestamp, utc};
use std::time::Duration;

/// Interval between two readings of the clock.
const PERIOD: Duration = Duration::from_secs(1);

/// Minimum length of a pause that is logged. On a busy host, delays of a thread are shorter than
/// this time.
const WORTH_A_LINE: Duration = Duration::from_secs(3);

/// Logs each pause in which this thread's event loop did not run. Ends when the caller drops the
/// future. The future must run on a thread whose other futures never block.
pub async fn log_pauses() {
    loop {
        let (late, since) = next_pause(PERIOD, WORTH_A_LINE).await;
        tracing::warn!("{}", line(late, since));
    }
}

/// Starts timers of length `period`, until a timer fires at least `least` too late. Returns the
/// delay of this timer, and the time of day of its start.
async fn next_pause(period: Duration, least: Duration) -> (Duration, Timestamp) {
    loop {
        let (begun, since) = (skep_env::now(), skep_env::wall_time());
        skep_env::sleep(period).await;
        let late = skep_env::now().saturating_sub(begun + period);
        if late >= least {
            return (late, since);
        }
    }
}

fn line(late: Duration, since: Timestamp) -> String {
    format!(
        "this process did not run for {} s, from {}: the process or its host was suspended, or \
         other programs used all processors of the host; requests waited during this time",
        late.as_secs(),
        utc(since)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocked_event_loop_is_detected_with_its_delay() {
        let (late, _) = skep_env::block_on(async {
            let blocking = skep_env::spawn(async {
                let end = skep_env::now() + Duration::from_millis(200);
                while skep_env::now() < end {
                    std::hint::spin_loop();
                }
            });
            let (period, least) = (Duration::from_millis(1), Duration::from_millis(150));
            let found = next_pause(period, least).await;
            blocking.await;
            found
        })
        .unwrap();
        assert!(late >= Duration::from_millis(150), "{late:?}");
    }

    #[test]
    fn pause_of_the_event_loop_is_logged_with_its_start() {
        let since = Timestamp { seconds: 1_795_982_559, nanoseconds: 0 };
        let line = line(Duration::from_millis(620_400), since);
        assert!(line.starts_with("this process did not run for 620 s, from 2026-11-29T"), "{line}");
    }
}
