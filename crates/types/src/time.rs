//! Timestamps of files, and their form for people and programs.

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

    /// Returns the time that is one nanosecond later.
    #[must_use]
    pub fn plus_nanosecond(self) -> Self {
        match self.nanoseconds {
            0..999_999_999 => Self { nanoseconds: self.nanoseconds + 1, ..self },
            _ => Self { seconds: self.seconds.saturating_add(1), nanoseconds: 0 },
        }
    }
}

/// Formats a time in UTC by RFC 3339: 2026-11-21T18:50:20Z.
pub fn utc(time: Timestamp) -> String {
    let (days, second) = (time.seconds.div_euclid(86_400), time.seconds.rem_euclid(86_400));
    // Years begin on March 1 in this calculation and are counted in eras of 400 years, so that a
    // leap day is the last day of its year.
    let day_in_all = days + 719_468;
    let (era, day) = (day_in_all.div_euclid(146_097), day_in_all.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day_of_month:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_time_is_a_nanosecond_later() {
        for total in [-1, 0, 999_999_998, 999_999_999] {
            let next = Timestamp::from_nanoseconds(total).plus_nanosecond();
            assert_eq!(next, Timestamp::from_nanoseconds(total + 1));
        }
    }

    #[test]
    fn unix_times_are_printed_as_calendar_dates() {
        let check = |seconds, expected: &str| {
            assert_eq!(utc(Timestamp { seconds, nanoseconds: 0 }), expected);
        };
        check(0, "1970-01-01T00:00:00Z");
        check(-1, "1969-12-31T23:59:59Z");
        check(951_782_400, "2000-02-29T00:00:00Z");
        check(1_700_000_000, "2023-11-14T22:13:20Z");
        check(4_107_542_400, "2100-03-01T00:00:00Z");
    }
}
