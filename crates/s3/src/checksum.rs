//! CRC-32C, the checksum of objects and of their parts. This module does no I/O.

use crc_fast::{CrcAlgorithm, Digest, checksum_combine};

/// A CRC-32C that is computed step by step.
pub struct Crc(Digest);

impl std::fmt::Debug for Crc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Crc({:08x})", self.value())
    }
}

impl Default for Crc {
    fn default() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }
}

impl Crc {
    /// Adds bytes to the checksum.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the checksum of all bytes that were added.
    pub fn value(&self) -> u32 {
        self.0.finalize() as u32
    }
}

/// Returns the checksum of the concatenation of two byte sequences. `first` and `second` are the
/// checksums of the two sequences, and `len` is the length of the second sequence.
pub fn combine(first: u32, second: u32, len: u64) -> u32 {
    checksum_combine(CrcAlgorithm::Crc32Iscsi, first.into(), second.into(), len) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, prop, prop_assert_eq, proptest};

    fn of(bytes: &[u8]) -> u32 {
        let mut crc = Crc::default();
        crc.update(bytes);
        crc.value()
    }

    #[test]
    fn checksum_is_crc_32c() {
        assert_eq!(of(b"123456789"), 0xe306_9283);
        assert_eq!(of(b""), 0);
    }

    proptest! {
        #[test]
        fn checksums_of_parts_combine_to_the_checksum_of_the_object(
            first in prop::collection::vec(any::<u8>(), 0..300),
            second in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let whole = of(&[&first[..], &second].concat());
            prop_assert_eq!(combine(of(&first), of(&second), second.len() as u64), whole);
        }
    }
}
