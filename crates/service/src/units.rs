//! Units as people write them in a configuration file, such as `512 KiB` and `10 ms`.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use skep_types::size;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A number of bytes, written as `4096`, `512 KiB` or `1 TiB`. `skep_types::size` accepts more
/// forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

/// A time span, written as `10 ms`, `5 s`, `2 min` or `1 h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Interval(pub Duration);

const MILLISECONDS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1_000), ("min", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// Parses a time span such as `10 ms`. Returns the number of milliseconds.
fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = (text[..end].parse::<u64>().ok()?, text[end..].trim());
    // Accept `m` for minutes, as other programs do.
    let unit = if unit == "m" { "min" } else { unit };
    let factor = MILLISECONDS.iter().find(|(name, _)| *name == unit)?.1;
    number.checked_mul(factor)
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, unit) = size::whole(self.0);
        write!(f, "{number} {unit}")
    }
}

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        size::parse(text).map(Self).ok_or_else(|| {
            format!(
                "invalid size '{text}': expected a number of bytes, or a number with {}",
                size::SUFFIXES
            )
        })
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Chooses the largest unit that divides the time span without a remainder.
        let number = self.0.as_millis() as u64;
        let whole =
            |(_, factor): &&(&str, u64)| number >= *factor && number.is_multiple_of(*factor);
        let (name, factor) = MILLISECONDS.iter().rev().find(whole).unwrap_or(&MILLISECONDS[0]);
        write!(f, "{} {name}", number / factor)
    }
}

impl FromStr for Interval {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text).map(|ms| Self(Duration::from_millis(ms))).ok_or_else(|| {
            format!("invalid time '{text}': expected a number with ms, s, min, h or d")
        })
    }
}

macro_rules! as_text {
    ($($unit:ident)*) => {$(
        impl Serialize for $unit {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $unit {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
            }
        }
    )*};
}
as_text!(ByteSize Interval);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_durations_survive_formatting_and_parsing() {
        for (text, bytes) in
            [("0", 0), ("1000", 1_000), ("64KiB", 65_536), ("3 MiB", 3 << 20), ("1 TiB", 1 << 40)]
        {
            let size: ByteSize = text.parse().unwrap();
            assert_eq!(size.0, bytes);
            assert_eq!(size.to_string().parse(), Ok(size));
        }
        for (text, ms) in [("0 ms", 0), ("10ms", 10), ("90 s", 90_000), ("2 h", 7_200_000)] {
            let span: Interval = text.parse().unwrap();
            assert_eq!(span.0, Duration::from_millis(ms));
            assert_eq!(span.to_string().parse(), Ok(span));
        }
        assert_eq!(ByteSize(1 << 19).to_string(), "512 KiB");
        assert_eq!(Interval(Duration::from_secs(90)).to_string(), "90 s");
    }

    #[test]
    fn malformed_sizes_and_durations_are_refused() {
        for text in ["", "KiB", "1 KX", "-1", "1.5 MiB", "99999999999999 TiB"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
        for text in ["", "5", "5 seconds", "-1 s"] {
            assert!(text.parse::<Interval>().is_err(), "{text}");
        }
    }
}
