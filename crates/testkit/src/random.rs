//! Random numbers from a seed, the same on every machine.

/// A generator (SplitMix64). Each use prints its seed on failure, so that it can be repeated.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The numbers of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A seed for this run: from `SKEP_TEST_SEED` if set, else from the clock. Print it.
    ///
    /// # Panics
    /// If the variable is no number.
    pub fn seed_of_run() -> u64 {
        match std::env::var("SKEP_TEST_SEED") {
            Ok(text) => text.parse().expect("SKEP_TEST_SEED is a number"),
            Err(_) => std::time::UNIX_EPOCH.elapsed().map_or(1, |time| time.as_nanos() as u64),
        }
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which isn't zero.
    pub fn below(&mut self, end: usize) -> usize {
        (self.number() % end as u64) as usize
    }

    /// One of several.
    ///
    /// # Panics
    /// If there is none.
    pub fn one_of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }

    /// So many random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend(self.number().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}
