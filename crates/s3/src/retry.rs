//! Decides whether the client retries a failed request, and how long the client pauses before the
//! retry.

use std::time::Duration;

/// Maximum number of attempts of one request. All attempts with their pauses take about a minute.
/// After this time, a service that throttles or restarts usually answers again.
pub(crate) const MOST_ATTEMPTS: u32 = 10;
/// Maximum number of attempts while the service has answered no request yet. The number is small,
/// so that the client reports a wrong endpoint soon.
const MOST_FIRST_ATTEMPTS: u32 = 3;
/// The pause after the first attempt. The pause doubles after each further attempt.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Maximum pause, even if the service asks for a longer pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(20);

/// The next step of the client after the service has refused a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reaction {
    /// Retry the same request, because a later attempt may succeed.
    Repeat,
    /// Get new credentials, because the old credentials have expired, and retry once.
    Renew,
    /// Return the error, because the refusal is final.
    Give,
}

/// Returns the reaction to a reply with the status `status` and the error code `code`.
pub(crate) fn reaction(status: u16, code: &str) -> Reaction {
    match code {
        "ExpiredToken" | "TokenRefreshRequired" | "ExpiredTokenException" => Reaction::Renew,
        "SlowDown"
        | "SlowDownRead"
        | "SlowDownWrite"
        | "Throttling"
        | "ThrottlingException"
        | "RequestLimitExceeded"
        | "RequestTimeout"
        | "InternalError"
        | "ServiceUnavailable"
        | "IncompleteBody"
        | "BadDigest"
        | "OperationAborted" => Reaction::Repeat,
        _ if matches!(status, 408 | 429 | 500 | 502 | 503 | 504) => Reaction::Repeat,
        // The reply to HEAD has no body and so no code. The reason may be an expired session token.
        "" if status == 400 => Reaction::Renew,
        _ => Reaction::Give,
    }
}

/// Counts the attempts of one request.
#[derive(Debug)]
pub(crate) struct Attempts {
    made: u32,
    most: u32,
    has_renewed: bool,
}

impl Attempts {
    /// Creates a count that includes the first attempt. `has_answered` means that the service has
    /// answered an earlier request.
    pub(crate) fn new(has_answered: bool) -> Self {
        let most = if has_answered { MOST_ATTEMPTS } else { MOST_FIRST_ATTEMPTS };
        Self { made: 1, most, has_renewed: false }
    }

    /// Returns the number of attempts so far.
    pub(crate) fn made(&self) -> u32 {
        self.made
    }

    /// Returns whether one more attempt is allowed, and if so, first waits for the pause. `asked`
    /// is the pause that the service asks for.
    pub(crate) fn again(&mut self, asked: Option<Duration>) -> bool {
        if self.made >= self.most {
            return false;
        }
        std::thread::sleep(pause(self.made, asked, skep_env::random_u64()));
        self.made += 1;
        true
    }

    /// Allows the full number of attempts, because the service has answered.
    pub(crate) fn note_answer(&mut self) {
        self.most = MOST_ATTEMPTS;
    }

    /// Returns whether one more attempt with new credentials is allowed. Returns true only at the
    /// first call.
    pub(crate) fn renew(&mut self) -> bool {
        !std::mem::replace(&mut self.has_renewed, true)
    }
}

/// Returns the pause after an attempt. The pause is random, between half of its maximum and its
/// maximum, so that clients do not retry at the same time.
fn pause(attempt: u32, asked: Option<Duration>, random: u64) -> Duration {
    let doubled = FIRST_PAUSE * 2_u32.pow(attempt.saturating_sub(1).min(16));
    let length = doubled.max(asked.unwrap_or_default()).min(LONGEST_PAUSE);
    length.mul_f64(0.5 + (random >> 11) as f64 / (1_u64 << 54) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throttled_requests_are_retried_and_refusals_are_final() {
        for (status, code, expected) in [
            (503, "SlowDown", Reaction::Repeat),
            (503, "", Reaction::Repeat),
            (500, "InternalError", Reaction::Repeat),
            (400, "RequestTimeout", Reaction::Repeat),
            (400, "ExpiredToken", Reaction::Renew),
            (400, "", Reaction::Renew),
            (400, "InvalidArgument", Reaction::Give),
            (403, "SignatureDoesNotMatch", Reaction::Give),
            (404, "NoSuchKey", Reaction::Give),
            (412, "PreconditionFailed", Reaction::Give),
        ] {
            assert_eq!(reaction(status, code), expected, "{status} {code}");
        }
    }

    #[test]
    fn pauses_between_retries_grow_to_a_limit() {
        let second = Duration::from_secs(1);
        assert_eq!(pause(1, None, 0), FIRST_PAUSE / 2);
        assert_eq!(pause(4, None, 0), FIRST_PAUSE * 4);
        assert_eq!(pause(1, Some(second * 3), 0), second * 3 / 2);
        for attempt in [9, 30, u32::MAX] {
            assert_eq!(pause(attempt, Some(second * 900), 0), LONGEST_PAUSE / 2);
            assert!(pause(attempt, None, u64::MAX) <= LONGEST_PAUSE);
        }
    }
}
