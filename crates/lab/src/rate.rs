//! Parses and formats rates of links and storage targets, such as `400Mbit` and `30MB/s`.

use crate::limits::{MAX_RATE, MIN_RATE};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use std::fmt;
use std::str::FromStr;

/// A rate in bytes per second. The rate is within the range of rates that a lab can emulate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(u64);

/// The units of rates, each with its number of bytes per second. Units in bits use factors of 1000,
/// as is usual for networks.
const UNITS: [(&str, f64); 9] = [
    ("kbit", 1e3 / 8.0),
    ("Mbit", 1e6 / 8.0),
    ("Gbit", 1e9 / 8.0),
    ("kB/s", 1e3),
    ("MB/s", 1e6),
    ("GB/s", 1e9),
    ("KiB/s", 1024.0),
    ("MiB/s", 1_048_576.0),
    ("GiB/s", 1_073_741_824.0),
];

impl Rate {
    /// Returns the rate in bytes per second.
    pub fn bytes_per_second(self) -> u64 {
        self.0
    }

    /// Returns the rate as text in bits per second, which is the usual unit for links: `400Mbit`.
    pub fn in_bits(self) -> String {
        let bits = self.0 as f64 * 8.0;
        match bits {
            bits if bits >= 1e9 => format!("{}Gbit", round(bits / 1e9)),
            bits if bits >= 1e6 => format!("{}Mbit", round(bits / 1e6)),
            bits => format!("{}kbit", round(bits / 1e3)),
        }
    }
}

/// Rounds a number to three decimal places.
fn round(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}MB/s", self.0 as f64 / 1e6)
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let trimmed = text.trim();
        let end = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = (trimmed[..end].parse::<f64>(), trimmed[end..].trim());
        let unit = UNITS.iter().find(|(name, _)| *name == unit);
        let (Ok(number), Some((_, factor))) = (number, unit) else {
            return Err(format!(
                "invalid rate '{text}': expected bits per second as in 400Mbit, or bytes as in \
                 30MB/s"
            ));
        };
        let bytes = number * factor;
        if !(MIN_RATE as f64..=MAX_RATE as f64).contains(&bytes) {
            return Err(format!("invalid rate '{text}': expected a rate from 1Mbit to 100Gbit"));
        }
        Ok(Self(bytes.round() as u64))
    }
}

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_parsed_in_bits_and_bytes() {
        for (text, bytes) in [
            ("400Mbit", 50_000_000),
            ("1.5 Gbit", 187_500_000),
            ("8000kbit", 1_000_000),
            ("30MB/s", 30_000_000),
            ("1MiB/s", 1 << 20),
            (" 100 Gbit ", 12_500_000_000),
        ] {
            let rate: Rate = text.parse().unwrap();
            assert_eq!(rate.bytes_per_second(), bytes, "{text}");
            assert_eq!(rate.to_string().parse(), Ok(rate));
        }
        let shown = |text: &str| text.parse::<Rate>().unwrap().in_bits();
        assert_eq!(shown("50MB/s"), "400Mbit");
        assert_eq!(shown("12.5Gbit"), "12.5Gbit");
    }

    #[test]
    fn malformed_rates_are_refused() {
        for text in ["", "400", "Mbit", "400 Mb", "-1Mbit", "1e3Mbit", "0Mbit", "1..5Mbit"] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
        let slow = "100kbit".parse::<Rate>().unwrap_err();
        assert!(slow.contains("from 1Mbit"), "{slow}");
        assert!("200Gbit".parse::<Rate>().is_err());
    }
}
