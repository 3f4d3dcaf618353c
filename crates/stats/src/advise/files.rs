//! The sizes of many files, in classes.

/// Number of classes. There is one class for each power of two.
const CLASSES: usize = 64;

/// The number of files and the sum of their bytes in each class of sizes. Class `n` contains the
/// files of at most 2^n bytes that belong to no lower class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sizes {
    counts: [u64; CLASSES],
    bytes: [u64; CLASSES],
    largest: u64,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { counts: [0; CLASSES], bytes: [0; CLASSES], largest: 0 }
    }
}

impl Sizes {
    /// Adds a file of `size` bytes.
    pub fn add(&mut self, size: u64) {
        let class = size
            .max(1)
            .checked_next_power_of_two()
            .map_or(CLASSES - 1, |power| power.trailing_zeros() as usize);
        let class = class.min(CLASSES - 1);
        self.counts[class] += 1;
        self.bytes[class] = self.bytes[class].saturating_add(size);
        self.largest = self.largest.max(size);
    }

    /// Returns the number of files.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.bytes.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Returns the size of the largest file.
    pub fn largest(&self) -> u64 {
        self.largest
    }

    /// Returns the share of the files that have at most `limit` bytes. `limit` must be a power of
    /// two.
    pub fn share_up_to(&self, limit: u64) -> f64 {
        let end = limit.max(1).trailing_zeros() as usize;
        let small: u64 = self.counts[..=end.min(CLASSES - 1)].iter().sum();
        small as f64 / self.count().max(1) as f64
    }

    /// Returns the share of the bytes that are in files of more than `limit` bytes. `limit` must be
    /// a power of two.
    pub fn bytes_share_above(&self, limit: u64) -> f64 {
        let end = limit.max(1).trailing_zeros() as usize;
        let large = self.bytes[(end + 1).min(CLASSES)..].iter();
        let large = large.fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
        large as f64 / self.bytes().max(1) as f64
    }
}
