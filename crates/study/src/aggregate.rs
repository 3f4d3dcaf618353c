//! The aggregate bandwidth of applications that run at the same time. The aggregate bandwidth is
//! the number of bytes of all applications, divided by the time from the first start to the last
//! end. This is equation (1) in the published study whose protocol this crate follows.

use crate::record::ProcessRecord;

/// The bytes that one process or one application transferred, with their times.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share {
    /// Time of the start in seconds, on a clock that all shares of a run have in common.
    pub begin_seconds: f64,
    /// Time of the end in seconds, on the clock of `begin_seconds`.
    pub end_seconds: f64,
    /// Number of bytes transferred, or of operations done.
    pub bytes: u64,
}

impl Share {
    /// Returns the share of a process, counted in bytes.
    pub fn of_bytes(process: &ProcessRecord) -> Self {
        let ProcessRecord { begin_seconds, end_seconds, bytes, .. } = *process;
        Self { begin_seconds, end_seconds, bytes }
    }

    /// Returns the share of a process, counted in operations.
    pub fn of_operations(process: &ProcessRecord) -> Self {
        let ProcessRecord { begin_seconds, end_seconds, operations, .. } = *process;
        Self { begin_seconds, end_seconds, bytes: operations }
    }
}

/// Returns the aggregate bandwidth of all shares in bytes per second, or `None` if the time from
/// the first start to the last end is zero. If the shares count operations, the result is in
/// operations per second.
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
    fn aggregate_time_is_from_the_first_start_to_the_last_end() {
        check(&[(1.0, 3.0, 200)], Some(100.0));
        // Two shares that overlap transfer 600 bytes in the four seconds from 1 to 5. The result is
        // not the sum of their rates.
        check(&[(1.0, 3.0, 200), (2.0, 5.0, 400)], Some(150.0));
        // The two shares follow each other, with an idle second between them.
        check(&[(0.0, 1.0, 100), (2.0, 4.0, 100)], Some(50.0));
        check(&[], None);
        check(&[(2.0, 2.0, 5)], None);
    }
}
