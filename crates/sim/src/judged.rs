//! Counts the cases that a checker could not check. Tests limit the share of these cases, because a
//! checker that checks too few cases finds no bug.

/// Number of cases that a checker has received, and number of cases that the checker has skipped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Judged {
    /// Number of all cases.
    pub seen: u64,
    /// Number of cases that the checker could not check.
    pub skipped: u64,
}

impl Judged {
    /// Counts a case. If `is_judged` is false, the checker has skipped the case.
    pub(crate) fn count(&mut self, is_judged: bool) {
        self.seen += 1;
        self.skipped += u64::from(!is_judged);
    }

    /// Returns the sum of two counts.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { seen: self.seen + other.seen, skipped: self.skipped + other.skipped }
    }

    /// Whether the checker skipped at most `percent` % of the cases. With fewer than 100 cases, a
    /// checker may skip `percent` cases.
    pub fn is_within(self, percent: u64) -> bool {
        self.skipped * 100 <= self.seen.max(100) * percent
    }
}
