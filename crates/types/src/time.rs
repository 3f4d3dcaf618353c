//! Timestamps of files.

use crate::codec::record;

record! {
    /// A point in time: `seconds` since 1970-01-01 UTC (negative before that date) plus
    /// `nanoseconds`.
    #[derive(Copy, Default, PartialOrd, Ord, Hash)]
    pub struct Timestamp {
        /// Whole seconds, rounded down.
        pub seconds: i64,
        /// Nanoseconds within the second: 0 to 999,999,999.
        pub nanoseconds: u32,
    }
}

impl Timestamp {
    /// Converts nanoseconds since 1970-01-01 UTC.
    pub fn from_nanoseconds(total: i128) -> Self {
        let seconds = total.div_euclid(1_000_000_000) as i64;
        Self { seconds, nanoseconds: total.rem_euclid(1_000_000_000) as u32 }
    }
}
