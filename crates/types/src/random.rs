//! Deterministic pseudo-random numbers. A seed gives the same numbers on every machine and with
//! every version of the program.
//!
//! All crates use the generator of this module (SplitMix64, Steele, Lea and Flood 2014). Placement,
//! the order of runs in studies and the seeds of tests rely on the exact numbers of the generator,
//! so these numbers must never change. The generator is unsuitable for secrets, because each number
//! reveals all later numbers.

/// Difference between two consecutive states of the generator. The step is odd, so the period is
/// 2^64.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// Mixes the bits of a number: every input bit affects every output bit. The function is a
/// bijection, and zero stays zero.
pub const fn finish(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ (number >> 31)
}

/// Returns the first random number of the seed `number`. Neighbouring numbers, including zero and
/// one, give unrelated results.
pub const fn mix(number: u64) -> u64 {
    finish(number.wrapping_add(STEP))
}

/// A generator of random numbers.
#[derive(Debug, Clone)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// Creates a generator from a seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the state. A generator with this state as its seed continues the sequence.
    pub const fn state(&self) -> u64 {
        self.0
    }

    /// Returns the next 64 random bits.
    pub const fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        finish(self.0)
    }

    /// Returns a random number below `end`: the next random bits modulo `end`.
    ///
    /// # Panics
    /// Panics if `end` is zero.
    pub const fn below(&mut self, end: u64) -> u64 {
        self.number() % end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The authors of the generator published the expected numbers.
    #[test]
    fn generator_returns_the_published_numbers_of_a_seed() {
        let mut random = SplitMix64::new(1_234_567);
        let numbers = [0; 3].map(|_: u64| random.number());
        let published =
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(numbers, published);
        assert_eq!(mix(0), 0xE220_A839_7B1D_CDAF);
        assert_eq!(finish(0), 0);
    }
}
