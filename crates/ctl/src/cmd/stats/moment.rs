//! The time of statistics: the time at which the services or the mount have counted, and its
//! maximum error.

use serde::Serialize;
use std::time::Duration;

/// The time at which statistics were collected. The fields are `None` for statistics of the
/// monitor, which are means over a past span.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct Moment {
    /// The midpoint between the request and the last reply, in seconds since 1970.
    at_unix_s: Option<f64>,
    /// The statistics were collected at most this number of seconds before or after `at_unix_s`.
    at_error_s: Option<f64>,
}

impl Moment {
    /// Returns the moment of replies that have just arrived. The request was sent at `asked`, a
    /// time by [`skep_env::now`].
    pub(crate) fn since(asked: Duration) -> Self {
        // The wall clock is read first. If the process is suspended between the two calls, the
        // error becomes larger, and the range still contains the true time.
        let wall = skep_env::wall_time();
        let wall = Duration::new(u64::try_from(wall.seconds).unwrap_or(0), wall.nanoseconds);
        Self::between(asked, skep_env::now(), wall)
    }

    /// Like [`Self::since`]. `replied` is the time of the last reply by the clock of `asked`, and
    /// `wall` is the same time since 1970.
    fn between(asked: Duration, replied: Duration, wall: Duration) -> Self {
        let half = replied.saturating_sub(asked).as_secs_f64() / 2.0;
        Self { at_unix_s: Some(wall.as_secs_f64() - half), at_error_s: Some(half) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_statistics_is_between_request_and_reply() {
        let found = |asked, replied| {
            let span = [asked, replied].map(Duration::from_millis);
            Moment::between(span[0], span[1], Duration::from_secs(1_800_000_000))
        };
        let expected = Moment { at_unix_s: Some(1_799_999_999.75), at_error_s: Some(0.25) };
        assert_eq!(found(500, 1_000), expected);
        assert_eq!(found(1_000, 500).at_error_s, Some(0.0));
    }
}
