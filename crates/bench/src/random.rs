//! Random orders that need no memory. Equal seeds produce equal orders.

pub(crate) use skep_types::random::mix;

/// A permutation of `0..count`.
///
/// The permutation uses four rounds of a Feistel network over a range that is at most four times as
/// large as `count`. A result outside of `0..count` makes further passes through the network, on
/// average fewer than four.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Permutation {
    count: u64,
    half_bits: u32,
    seed: u64,
}

impl Permutation {
    /// Creates a permutation of `0..count` that depends on `seed`.
    pub(crate) fn new(count: u64, seed: u64) -> Self {
        let bits = u64::BITS - count.saturating_sub(1).leading_zeros();
        Self { count, half_bits: bits.div_ceil(2).max(1), seed: mix(seed) }
    }

    /// Returns the element at `index`, which must be less than `count`.
    pub(crate) fn at(&self, index: u64) -> u64 {
        assert!(index < self.count, "the index is less than the number of elements");
        let mut value = self.once(index);
        while value >= self.count {
            value = self.once(value);
        }
        value
    }

    fn once(&self, value: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for round in 0..4 {
            let mixed = mix(right ^ self.seed.rotate_left(round * 16)) & mask;
            (left, right) = (right, left ^ mixed);
        }
        (left << self.half_bits) | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permutation_has_each_number_once_and_depends_on_its_seed() {
        for count in [1, 2, 3, 7, 64, 1000, 4097] {
            let order = |seed| {
                let permutation = Permutation::new(count, seed);
                (0..count).map(|index| permutation.at(index)).collect::<Vec<_>>()
            };
            let mut sorted = order(1);
            sorted.sort_unstable();
            assert_eq!(sorted, (0..count).collect::<Vec<_>>());
            assert_eq!(order(1), order(1));
            if count > 7 {
                assert_ne!(order(1), order(2));
                assert_ne!(order(1), sorted);
            }
        }
    }
}
