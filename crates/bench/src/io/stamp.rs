//! The content of written data. Each word of eight bytes identifies the run, the rank and the
//! offset, so that readers can verify the data.
//!
//! From the highest bit, a word consists of 12 bits of the run's signature, 14 bits of the writer's
//! rank, and 38 bits of the word's index in the file. For this reason, the content repeats after 2
//! TiB. Readers can distinguish data from holes, because the signature is not zero, so no word is
//! zero.

use super::plan::WORD_BYTES;
use std::fmt;

const PLACE_BITS: u32 = 38;
const RANK_BITS: u32 = 14;
const RUN_BITS: u32 = 12;
const WORD: usize = WORD_BYTES as usize;

/// The run and the rank that wrote a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    run: u64,
    rank: u64,
}

/// A difference between the bytes that a process read and the expected bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mismatch {
    /// Offset of the first wrong word in the file.
    offset: u64,
    expected: u64,
    found: u64,
    /// Number of wrong words in the range that was compared.
    pub(crate) words: u64,
}

impl Stamp {
    pub(crate) fn new(signature: u32, rank: u32) -> Self {
        let kinds = (1 << RUN_BITS) - 1;
        Self { run: u64::from(signature) % kinds + 1, rank: u64::from(rank) % (1 << RANK_BITS) }
    }

    /// Returns the word at offset zero. The word at another offset differs only in its index.
    fn base(self) -> u64 {
        (self.run << (RANK_BITS + PLACE_BITS)) | (self.rank << PLACE_BITS)
    }

    fn words(self, offset: u64) -> impl Iterator<Item = u64> {
        let first = offset / WORD_BYTES;
        let base = self.base();
        (0_u64..).map(move |index| base | ((first + index) & ((1 << PLACE_BITS) - 1)))
    }

    /// Fills a buffer with the data that belongs at `offset` in the file. The length of the buffer
    /// and the offset must be multiples of [`WORD_BYTES`].
    pub(crate) fn fill(self, buffer: &mut [u8], offset: u64) {
        for (bytes, word) in buffer.chunks_exact_mut(WORD).zip(self.words(offset)) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
    }

    /// Compares bytes that were read at `offset` with the expected bytes. Returns the difference.
    /// `None` means that both are equal.
    pub(crate) fn compare(self, buffer: &[u8], offset: u64) -> Option<Mismatch> {
        let mut first = None;
        let mut words = 0;
        let pairs = buffer.chunks_exact(WORD).zip(self.words(offset));
        for (index, (bytes, expected)) in pairs.enumerate() {
            let found = u64::from_le_bytes(bytes.try_into().expect("a chunk is a word long"));
            if found != expected {
                words += 1;
                first.get_or_insert((offset + (index * WORD) as u64, expected, found));
            }
        }
        let (offset, expected, found) = first?;
        Some(Mismatch { offset, expected, found, words })
    }
}

/// Describes the run, the rank and the offset that the bits of a word name.
fn describe(word: u64) -> String {
    if word == 0 {
        return "zeros".into();
    }
    let run = word >> (RANK_BITS + PLACE_BITS);
    let rank = (word >> PLACE_BITS) & ((1 << RANK_BITS) - 1);
    let place = (word & ((1 << PLACE_BITS) - 1)) * WORD_BYTES;
    format!("{word:016x} (this value stands for run {run}, process {rank}, byte {place})")
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (expected, found) = (describe(self.expected), describe(self.found));
        write!(f, "byte {}: expected {expected}, read {found}", self.offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_data_identifies_its_run_rank_and_offset() {
        let (mut buffer, stamp) = (vec![0; 4096], Stamp::new(7, 3));
        stamp.fill(&mut buffer, 8192);
        assert_eq!(stamp.compare(&buffer, 8192), None);
        let wrong = |stamp: Stamp, offset| stamp.compare(&buffer, offset).unwrap();
        assert_eq!(wrong(stamp, 0).words, 512);
        assert!(wrong(stamp, 0).to_string().contains("run 8, process 3, byte 8192"));
        assert_eq!(wrong(Stamp::new(8, 3), 8192).words, 512);
        assert_eq!(wrong(Stamp::new(7, 4), 8192).words, 512);
        buffer[4000..4008].fill(0);
        let hole = stamp.compare(&buffer, 8192).unwrap();
        assert_eq!((hole.words, hole.offset), (1, 8192 + 4000));
        assert!(hole.to_string().ends_with("read zeros"));
    }

    #[test]
    fn no_eight_byte_word_of_the_data_is_zero() {
        for signature in [0, 4094, 4095, u32::MAX] {
            let mut buffer = [0; 8];
            Stamp::new(signature, 0).fill(&mut buffer, 0);
            assert_ne!(u64::from_le_bytes(buffer), 0, "{signature}");
        }
    }
}
