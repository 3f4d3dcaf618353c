//! The one source of randomness of a run, made from the seed. Its numbers are part of what a seed
//! means, so they come from our own generator and never change with a library.

use skep_types::random::SplitMix64;
use std::time::Duration;

/// Random numbers from a seed.
#[derive(Debug, Clone)]
pub(crate) struct Random(SplitMix64);

impl Random {
    /// The stream of a seed.
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Self(SplitMix64::new(seed ^ 0x5EED_0F5E_ED0F_5EED));
        random.bits();
        random
    }

    /// 64 random bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.0.number()
    }

    /// A number below `end`, which must not be zero.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.bits() % end
    }

    /// An index of a list of `len`, which must not be zero.
    pub(crate) fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// A number from `from` to `to`, both included.
    pub(crate) fn within(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    /// True in `percent` of 100 cases.
    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of a list, if it has any.
    pub(crate) fn pick<T: Clone>(&mut self, list: &[T]) -> Option<T> {
        if list.is_empty() { None } else { list.get(self.index(list.len())).cloned() }
    }

    /// A time from `from` to `to`, in microseconds.
    pub(crate) fn micros(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_micros(self.within(from, to))
    }
}
