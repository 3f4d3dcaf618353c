//! Random numbers that a seed determines. The same seed produces the same numbers on every machine.

use skep_types::random::SplitMix64;

/// A random number generator. A failing test prints its seed, so that a developer can run the test
/// again with the same numbers.
#[derive(Debug, Clone)]
pub struct Random(SplitMix64);

impl Random {
    /// Creates a generator from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    /// Returns the seed of this run: the value of `SKEP_TEST_SEED`, or the current time if this
    /// variable is not set. The caller must print the seed.
    ///
    /// # Panics
    /// Panics if `SKEP_TEST_SEED` is not a number.
    pub fn seed_of_run() -> u64 {
        match std::env::var("SKEP_TEST_SEED") {
            Ok(text) => text.parse().expect("SKEP_TEST_SEED is a number"),
            Err(_) => std::time::UNIX_EPOCH.elapsed().map_or(1, |time| time.as_nanos() as u64),
        }
    }

    /// Returns a random number.
    pub fn number(&mut self) -> u64 {
        self.0.number()
    }

    /// Returns a random number below `end`. `end` must not be zero.
    pub fn below(&mut self, end: usize) -> usize {
        self.0.below(end as u64) as usize
    }

    /// Returns a random element of `choices`.
    ///
    /// # Panics
    /// Panics if `choices` is empty.
    pub fn one_of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }

    /// Returns `len` random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend(self.number().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}
