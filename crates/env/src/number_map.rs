//! A hash map whose keys are numbers that the process assigns one after the other, such as the ids
//! of operations and requests.
//!
//! Do not use the map for keys that another process can choose, because such a process could make
//! the map slow. The hash function of the map costs one multiplication. The hash function of `std`
//! costs some 20 ns, and a request looks up about 20 numbers.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map from numbers that this process assigns.
pub type NumberMap<V> = HashMap<u64, V, BuildHasherDefault<NumberHasher>>;

/// The factor of the hash function: 2^64 divided by the golden ratio. The factor is odd and its
/// bits look random, so neighbouring numbers differ in the upper and in the lower bits of the
/// product.
const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;

/// The hasher of a [`NumberMap`].
#[derive(Debug, Default, Clone, Copy)]
pub struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(FACTOR);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn hashes_of_consecutive_numbers_differ_in_high_and_low_bits() {
        let hash = |number| {
            let mut hasher = NumberHasher::default();
            hasher.write_u64(number);
            hasher.finish()
        };
        let distinct = |part: fn(u64) -> u64| (0..128).map(|it| part(hash(it))).collect();
        let (low, high): (HashSet<u64>, HashSet<u64>) =
            (distinct(|hash| hash % 128), distinct(|hash| hash >> 57));
        assert_eq!(low.len(), 128);
        assert!(high.len() > 100, "{}", high.len());
    }
}
