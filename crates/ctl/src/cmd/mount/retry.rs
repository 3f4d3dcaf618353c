//! The option that limits how long a starting mount retries while management is unreachable.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Default time for retries. Management can restart within this time, and a user who has mistyped
/// the address does not wait longer.
const USUAL: Duration = Duration::from_secs(15);
/// Maximum time for retries. In practice, a longer time would not differ from `forever`.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
const FOREVER: &str = "forever";

/// How long a mount retries while management is unreachable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retry {
    /// Retry for this time. The mount makes at least one attempt, even if the time is zero.
    For(Duration),
    Forever,
}

impl Retry {
    /// Returns the time limit for retries. `None` means that there is no limit.
    pub(crate) fn patience(self) -> Option<Duration> {
        match self {
            Self::For(span) => Some(span),
            Self::Forever => None,
        }
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self::For(USUAL)
    }
}

impl fmt::Display for Retry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::For(span) => write!(f, "{}", span.as_secs_f64()),
            Self::Forever => f.write_str(FOREVER),
        }
    }
}

impl FromStr for Retry {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == FOREVER {
            return Ok(Self::Forever);
        }
        let span = text.parse::<f64>().ok();
        let span = span.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        span.filter(|span| *span <= LONGEST).map(Self::For).ok_or_else(|| {
            format!("expected a number of seconds, at most {}, or {FOREVER}", LONGEST.as_secs())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_option_survives_formatting_and_parsing() {
        for (text, expected) in [
            ("80", Retry::For(Duration::from_secs(80))),
            ("0", Retry::For(Duration::ZERO)),
            ("0.25", Retry::For(Duration::from_millis(250))),
            ("86400", Retry::For(LONGEST)),
            ("forever", Retry::Forever),
        ] {
            let retry: Retry = text.parse().unwrap();
            assert_eq!(retry, expected);
            assert_eq!(retry.to_string(), text);
        }
        for wrong in ["", "soon", "-1", "nan", "inf", "86401", "1e300", "80s"] {
            let why = wrong.parse::<Retry>().unwrap_err();
            assert!(why.contains("at most 86400") && why.contains("forever"), "{wrong}: {why}");
        }
    }
}
