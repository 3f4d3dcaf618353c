//! Points in time as files carry them.

use crate::codec::record;

record! {
    /// A point in time: seconds since 1970-01-01 UTC (negative before it) and nanoseconds after
    /// them.
    #[derive(Copy, Default, PartialOrd, Ord, Hash)]
    pub struct Timestamp {
        /// Whole seconds, rounded towards the past.
        pub seconds: i64,
        /// 0 to 999,999,999.
        pub nanoseconds: u32,
    }
}

impl Timestamp {
    /// From nanoseconds since 1970.
    pub fn from_nanoseconds(total: i128) -> Self {
        let seconds = total.div_euclid(1_000_000_000) as i64;
        Self { seconds, nanoseconds: total.rem_euclid(1_000_000_000) as u32 }
    }
}
