//! Eq. 1 of the study that this protocol follows: the bandwidth of applications that run at the
//! same time is the sum of their volumes over the time from the first begin to the last end.

/// What one process, or one application, has moved, and when.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share {
    /// In seconds, on a clock that all share.
    pub begin_seconds: f64,
    /// In seconds, on the same clock.
    pub end_seconds: f64,
    /// Bytes.
    pub bytes: u64,
}

/// Bytes for each second of all together. None if nothing took any time.
pub fn bandwidth(shares: impl IntoIterator<Item = Share>) -> Option<f64> {
    let (mut begin, mut end, mut bytes) = (f64::INFINITY, f64::NEG_INFINITY, 0_u64);
    for share in shares {
        begin = begin.min(share.begin_seconds);
        end = end.max(share.end_seconds);
        bytes += share.bytes;
    }
    (end > begin).then(|| bytes as f64 / (end - begin))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(shares: &[(f64, f64, u64)], expected: Option<f64>) {
        let shares = shares.iter().map(|&(begin_seconds, end_seconds, bytes)| Share {
            begin_seconds,
            end_seconds,
            bytes,
        });
        assert_eq!(bandwidth(shares), expected);
    }

    #[test]
    fn the_whole_counts_from_the_first_begin_to_the_last_end() {
        check(&[(1.0, 3.0, 200)], Some(100.0));
        // Two that overlap: 600 bytes in the four seconds from 1 to 5, not the sum of both.
        check(&[(1.0, 3.0, 200), (2.0, 5.0, 400)], Some(150.0));
        // One after the other, with a second in which nobody does anything.
        check(&[(0.0, 1.0, 100), (2.0, 4.0, 100)], Some(50.0));
        check(&[], None);
        check(&[(2.0, 2.0, 5)], None);
    }
}
