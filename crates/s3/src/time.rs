//! The three forms in which the protocol of S3 contains times. This module does no I/O.

use skep_types::{Timestamp, utc};

/// Number of seconds in a day.
const DAY: i64 = 86_400;
/// English names of the months, in the form of HTTP.
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Returns the number of days from 1970 to a date (Howard Hinnant's algorithm `days_from_civil`).
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let of_era = year.rem_euclid(400);
    let shifted = if month > 2 { month - 3 } else { month + 9 };
    let of_year = (153 * shifted + 2) / 5 + day - 1;
    year.div_euclid(400) * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// Formats a time in seconds since 1970 in the form `20130524T000000Z`.
pub(crate) fn basic(seconds: i64) -> String {
    utc(Timestamp { seconds, nanoseconds: 0 }).replace(['-', ':'], "")
}

/// Returns a time in seconds since 1970. `None` if a part of the date or of the clock time is out
/// of range.
fn seconds(date: [i64; 3], clock: [i64; 3]) -> Option<i64> {
    let ([year, month, day], [hour, minute, second]) = (date, clock);
    let is_valid = (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && (0..24).contains(&hour)
        && (0..60).contains(&minute)
        && (0..=60).contains(&second);
    is_valid.then(|| days(year, month, day) * DAY + hour * 3600 + minute * 60 + second)
}

/// Parses three numbers that are separated by `separator`.
fn three(text: &str, separator: char) -> Option<[i64; 3]> {
    let mut parts = text.split(separator);
    let mut next = || parts.next()?.parse().ok();
    let numbers = [next()?, next()?, next()?];
    parts.next().is_none().then_some(numbers)
}

/// Parses a time in the form `2009-10-12T17:50:30.000Z`. Ignores fractions of a second.
pub(crate) fn parse_iso(text: &str) -> Option<i64> {
    let (date, clock) = text.strip_suffix('Z')?.split_once('T')?;
    let clock = clock.split_once('.').map_or(clock, |(whole, _)| whole);
    seconds(three(date, '-')?, three(clock, ':')?)
}

/// Parses a time in the form `Mon, 12 Oct 2009 17:50:30 GMT`.
pub(crate) fn parse_http(text: &str) -> Option<i64> {
    let (_, rest) = text.split_once(", ")?;
    let mut parts = rest.strip_suffix(" GMT")?.split(' ');
    let day = parts.next()?.parse().ok()?;
    let name = parts.next()?;
    let month = MONTHS.iter().position(|it| *it == name)? as i64 + 1;
    let year = parts.next()?.parse().ok()?;
    seconds([year, month, day], three(parts.next()?, ':')?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{prop_assert_eq, proptest};

    #[test]
    fn times_have_the_formats_of_the_s3_protocol() {
        assert_eq!(basic(1_369_353_600), "20130524T000000Z");
        assert_eq!(basic(951_827_696), "20000229T123456Z");
        assert_eq!(parse_iso("2013-05-24T00:00:00.000Z"), Some(1_369_353_600));
        assert_eq!(parse_iso("2000-02-29T12:34:56Z"), Some(951_827_696));
        assert_eq!(parse_http("Fri, 24 May 2013 00:00:00 GMT"), Some(1_369_353_600));
        for wrong in ["", "2013-13-01T00:00:00Z", "2013-05-24 00:00:00", "2013-05T00:00:00Z"] {
            assert_eq!(parse_iso(wrong), None, "{wrong}");
        }
        for wrong in ["", "Fri, 24 Mai 2013 00:00:00 GMT", "Fri, 24 May 2013 24:00:00 GMT"] {
            assert_eq!(parse_http(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn each_time_survives_formatting_and_parsing(
            day in -100_000..100_000_i64,
            of_day in 0..DAY,
        ) {
            let seconds = day * DAY + of_day;
            prop_assert_eq!(parse_iso(&utc(Timestamp { seconds, nanoseconds: 0 })), Some(seconds));
        }
    }
}
