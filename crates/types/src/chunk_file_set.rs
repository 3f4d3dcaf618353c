//! A set of chunk files of one stripe pattern, as a bitmap.

use crate::codec::{Bytes, record};
use crate::{Error, ErrorCode, Result, StripePattern};

record! {
    /// A set of chunk files of one file and stripe pattern. The numbers of the chunk files begin at
    /// zero, and follow the order of the components, and within a component the stripe order.
    #[derive(Default)]
    pub struct ChunkFileSet {
        /// One bit for each chunk file, the lowest bit of each byte first. Missing bytes are zero.
        pub bits: Bytes,
    }
}

impl ChunkFileSet {
    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.bits.iter().all(|byte| *byte == 0)
    }

    /// Returns whether the set contains the chunk file with this number.
    pub fn contains(&self, number: usize) -> bool {
        self.bits.get(number / 8).is_some_and(|byte| byte & (1 << (number % 8)) != 0)
    }

    /// Adds the chunk file with this number.
    pub fn insert(&mut self, number: usize) {
        let bits = &mut self.bits.0;
        bits.resize(bits.len().max(number / 8 + 1), 0);
        bits[number / 8] |= 1 << (number % 8);
    }

    /// Removes the chunk file with this number.
    pub fn remove(&mut self, number: usize) {
        if let Some(byte) = self.bits.0.get_mut(number / 8) {
            *byte &= !(1 << (number % 8));
        }
    }

    /// Returns the numbers of all chunk files in the set, in ascending order.
    pub fn numbers(&self) -> impl Iterator<Item = usize> {
        (0..8 * self.bits.len()).filter(|number| self.contains(*number))
    }

    /// Adds all chunk files of another set.
    pub fn merge(&mut self, other: &Self) {
        let bits = &mut self.bits.0;
        bits.resize(bits.len().max(other.bits.len()), 0);
        for (byte, more) in bits.iter_mut().zip(other.bits.iter()) {
            *byte |= more;
        }
    }

    /// Checks that `pattern` has all chunk files of the set.
    ///
    /// # Errors
    /// Returns `InvalidArgument` if a chunk file does not belong to the pattern.
    pub fn check(&self, pattern: &StripePattern) -> Result<()> {
        let count = pattern.chunk_file_count();
        if self.bits.len() <= count.div_ceil(8)
            && (count..8 * self.bits.len()).all(|it| !self.contains(it))
        {
            return Ok(());
        }
        let text = format!(
            "invalid set of chunk files: the set contains a number that is not below {count}, the \
             number of chunk files of the stripe pattern"
        );
        Err(Error::new(ErrorCode::InvalidArgument, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Chooser, Component, GroupId, PatternOrigin, Redundancy};

    #[test]
    fn set_contains_inserted_and_merged_chunk_file_numbers() {
        let mut set = ChunkFileSet::default();
        assert!(set.is_empty() && !set.contains(0));
        set.insert(9);
        let mut other = ChunkFileSet::default();
        other.insert(0);
        other.merge(&set);
        assert!([0, 9].iter().all(|number| other.contains(*number)));
        assert!(!other.contains(1) && !other.contains(1000) && !other.is_empty());
        assert_eq!(other.numbers().collect::<Vec<_>>(), [0, 9]);
        other.remove(9);
        other.remove(1000);
        assert_eq!(other.numbers().collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn chunk_file_numbers_follow_the_order_of_components() {
        let component = |start, width| Component {
            start,
            chunk_bytes: 1 << 20,
            wanted: width,
            redundancy: Redundancy::Stripe,
            chooser: Chooser::Balanced,
            groups: (1..=u32::from(width)).map(GroupId::new).collect(),
        };
        let components = vec![Component::inline(), component(4096, 1), component(1 << 20, 4)];
        let pattern = StripePattern { generation: 1, origin: PatternOrigin::Cluster, components };
        let numbers = [(1, 0), (2, 0), (2, 3)]
            .map(|(component, index)| pattern.chunk_file_number(component, index).unwrap());
        assert_eq!(numbers, [0, 1, 4]);
        for number in 0..5 {
            let (component, index) = pattern.chunk_file_at(number).unwrap();
            assert_eq!(pattern.chunk_file_number(component, index), Some(number));
        }
        assert_eq!(pattern.chunk_file_at(5), None);
        for (component, index) in [(0, 0), (1, 1), (2, 4), (3, 0)] {
            assert_eq!(pattern.chunk_file_number(component, index), None);
        }
        let mut set = ChunkFileSet::default();
        set.insert(4);
        set.check(&pattern).unwrap();
        set.insert(5);
        assert!(set.check(&pattern).is_err());
    }
}
