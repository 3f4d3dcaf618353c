//! The only source of random numbers in a run. The numbers come from Skep's own generator, so that
//! a seed always gives the same run, even with newer versions of libraries.

use skep_types::random::SplitMix64;
use std::time::Duration;

/// A generator of random numbers that a seed determines.
#[derive(Debug, Clone)]
pub(crate) struct Random(SplitMix64);

impl Random {
    /// Creates the generator for a seed.
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Self(SplitMix64::new(seed ^ 0x5EED_0F5E_ED0F_5EED));
        random.bits();
        random
    }

    /// Returns 64 random bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.0.number()
    }

    /// Returns a random number below `end`. `end` must not be zero.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.bits() % end
    }

    /// Returns a random index into a list of `len` elements. `len` must not be zero.
    pub(crate) fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// Returns a random number from `from` to `to` (inclusive).
    pub(crate) fn within(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    /// Returns true with a probability of `percent` %.
    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Returns a random element of a list, or `None` if the list is empty.
    pub(crate) fn pick<T: Clone>(&mut self, list: &[T]) -> Option<T> {
        if list.is_empty() { None } else { list.get(self.index(list.len())).cloned() }
    }

    /// Returns a random duration from `from` to `to` microseconds (inclusive).
    pub(crate) fn micros(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_micros(self.within(from, to))
    }
}
