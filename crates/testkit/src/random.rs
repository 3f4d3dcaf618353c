//! Random numbers from a seed, the same on every machine.

use skep_types::random::SplitMix64;

/// A generator. Each test that uses it prints the seed on failure, so that the run can be repeated.
#[derive(Debug, Clone)]
pub struct Random(SplitMix64);

impl Random {
    /// The numbers of this seed.
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    /// A seed for this run: from `SKEP_TEST_SEED` if set, else from the clock. Print it.
    ///
    /// # Panics
    /// If the variable is set to something else than a number.
    pub fn seed_of_run() -> u64 {
        match std::env::var("SKEP_TEST_SEED") {
            Ok(text) => text.parse().expect("SKEP_TEST_SEED is a number"),
            Err(_) => std::time::UNIX_EPOCH.elapsed().map_or(1, |time| time.as_nanos() as u64),
        }
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0.number()
    }

    /// A number below `end`, which must not be zero.
    pub fn below(&mut self, end: usize) -> usize {
        self.0.below(end as u64) as usize
    }

    /// One of several.
    ///
    /// # Panics
    /// If `choices` is empty.
    pub fn one_of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }

    /// `len` random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend(self.number().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}
