//! Counts the cases that a checker could not check. Tests limit their share, since a checker that
//! is switched off finds no bug.

/// Number of cases that a checker has seen and skipped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Judged {
    /// Number of all cases.
    pub seen: u64,
    /// Number of cases in which the checker was switched off.
    pub skipped: u64,
}

impl Judged {
    /// Counts a case, which the checker has skipped if `is_judged` is false.
    pub(crate) fn count(&mut self, is_judged: bool) {
        self.seen += 1;
        self.skipped += u64::from(!is_judged);
    }

    /// Returns the sum of two counts.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { seen: self.seen + other.seen, skipped: self.skipped + other.skipped }
    }

    /// Whether the checker skipped at most `percent` % of the cases. Of fewer than 100 cases, it
    /// may skip `percent` cases.
    pub fn is_within(self, percent: u64) -> bool {
        self.skipped * 100 <= self.seen.max(100) * percent
    }
}
