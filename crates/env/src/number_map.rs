//! Hash maps whose keys are numbers that are assigned one after the other. This process assigns the
//! ids of operations and requests, and management assigns the ids of targets and groups.
//!
//! Do not use these maps for keys that a client or a program can choose, because chosen keys could
//! make a map slow. For such keys use the keyed hash function of `std`. Also do not use these maps
//! for numbers that all have the same lower bits, such as the keys in one part of a divided table.
//! The hashes of such numbers have the same lower bits too.
//!
//! The hash function of these maps costs one multiplication. The hash function of `std` costs some
//! 20 ns, and a request looks up about 20 numbers.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map from numbers that this process assigns.
pub type NumberMap<V> = IdMap<u64, V>;

/// A map from ids of one number each, which this process or management assigns.
pub type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;

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

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(FACTOR);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::hash::BuildHasher;

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

    #[test]
    fn ids_of_32_and_64_bits_have_equal_hashes() {
        let builder = BuildHasherDefault::<NumberHasher>::default();
        for number in [0, 1, 7, 1 << 20, u32::MAX] {
            assert_eq!(builder.hash_one(number), builder.hash_one(u64::from(number)));
        }
    }
}
