//! The volatile write cache: two images of the disk, and the writes that only one of the images
//! contains.
//!
//! The image `live` contains every write, and reads use this image. The image `durable` contains
//! the bytes that no power loss can destroy. A write is in `unflushed` until a flush copies the
//! write to `durable`.
//!
//! # Invariants
//! - While the power is on, `live` has the contents that `durable` would have after all writes in
//!   `unflushed`, in their order.
//! - While the power is off, `durable` does not change.
//!
//! `check_invariants` checks the first invariant. This function reads both images, so only the unit
//! tests call it. The test `writes_between_power_loss_and_restore_are_discarded` checks the second
//! invariant.

use skep_testkit::Random;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// Maximum number of unflushed bytes. When the cache exceeds this limit, the cache writes the older
/// half of the unflushed writes to `durable`. A real disk also writes back when its cache is full.
const MAX_UNFLUSHED_BYTES: usize = 256 << 20;

#[derive(Debug)]
struct Write {
    offset: u64,
    bytes: Vec<u8>,
}

/// Numbers of unflushed writes that a power loss dropped, kept and tore.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Losses {
    dropped: usize,
    kept: usize,
    torn: usize,
}

/// A disk with a volatile write cache.
#[derive(Debug)]
pub(crate) struct Cache {
    live: File,
    durable: File,
    unflushed: Vec<Write>,
    unflushed_bytes: usize,
    /// `None` while the power is on. After a power loss, the ranges (offset and length) in which
    /// `live` differs from `durable`.
    lost: Option<Vec<(u64, usize)>>,
    random: Random,
    ignores_flushes: bool,
    /// Minimum duration of each read, write and flush.
    delay: Duration,
}

/// The effect of a power loss on one unflushed write.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Dropped,
    Kept,
    /// The disk keeps some randomly selected sectors of the write, and loses the other sectors.
    Torn,
}

impl fmt::Display for Losses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dropped, kept, torn } = self;
        write!(f, "{dropped} unflushed writes were dropped, {kept} kept, {torn} torn")
    }
}

impl Cache {
    /// Creates a disk from two equal images. The random numbers of `seed` decide the fate of
    /// unflushed writes.
    pub(crate) fn new(live: File, durable: File, seed: u64) -> Self {
        Self {
            live,
            durable,
            unflushed: Vec::new(),
            unflushed_bytes: 0,
            lost: None,
            random: Random::new(seed),
            ignores_flushes: false,
            delay: Duration::ZERO,
        }
    }

    /// After this call, each read, write and flush takes at least `delay`.
    pub(crate) fn set_delay(&mut self, delay: Duration) {
        self.delay = delay;
    }

    pub(crate) fn delay(&self) -> Duration {
        self.delay
    }

    /// Returns the newest bytes, including unflushed writes.
    pub(crate) fn read(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.live.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.live.write_all_at(bytes, offset)?;
        if let Some(lost) = &mut self.lost {
            lost.push((offset, bytes.len()));
            return Ok(());
        }
        self.unflushed.push(Write { offset, bytes: bytes.to_vec() });
        self.unflushed_bytes += bytes.len();
        if self.unflushed_bytes > MAX_UNFLUSHED_BYTES {
            self.write_out(self.unflushed.len().div_ceil(2))?;
        }
        Ok(())
    }

    /// Copies all unflushed writes to `durable`, unless the disk has no power or ignores flushes.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        if self.lost.is_some() || self.ignores_flushes {
            return Ok(());
        }
        self.write_out(self.unflushed.len())
    }

    /// Makes the disk acknowledge all later flushes without carrying them out.
    pub(crate) fn ignore_flushes(&mut self) {
        self.ignores_flushes = true;
    }

    fn write_out(&mut self, count: usize) -> io::Result<()> {
        for write in self.unflushed.drain(..count) {
            self.durable.write_all_at(&write.bytes, write.offset)?;
            self.unflushed_bytes -= write.bytes.len();
        }
        Ok(())
    }

    /// Simulates a power loss. With a probability of one quarter, the power loss drops all
    /// unflushed writes. Otherwise the power loss drops each unflushed write with a probability of
    /// one half, and keeps or tears the remaining writes. A torn write loses some of its sectors of
    /// `sector` bytes. A second power loss before the next [`Self::restore`] changes nothing.
    pub(crate) fn lose_power(&mut self, sector: usize) -> io::Result<Losses> {
        let mut losses = Losses::default();
        if self.lost.is_some() {
            return Ok(losses);
        }
        let drops_all = self.random.below(4) == 0;
        let writes = std::mem::take(&mut self.unflushed);
        self.unflushed_bytes = 0;
        for write in &writes {
            let fate = match self.random.below(4) {
                _ if drops_all => Fate::Dropped,
                0 => Fate::Kept,
                1 => Fate::Torn,
                _ => Fate::Dropped,
            };
            let count = match fate {
                Fate::Dropped => &mut losses.dropped,
                Fate::Kept => &mut losses.kept,
                Fate::Torn => &mut losses.torn,
            };
            *count += 1;
            self.survive(write, fate, sector)?;
        }
        self.lost = Some(writes.iter().map(|it| (it.offset, it.bytes.len())).collect());
        self.ignores_flushes = false;
        Ok(losses)
    }

    /// Writes to `durable` the sectors of an unflushed write that the power loss does not destroy.
    fn survive(&mut self, write: &Write, fate: Fate, sector: usize) -> io::Result<()> {
        let mut offset = write.offset;
        let mut rest = &write.bytes[..];
        while !rest.is_empty() {
            // If a write begins in the middle of a sector, the first piece of the write ends at the
            // end of this sector.
            let within = usize::try_from(offset).expect("64 bits") % sector;
            let (piece, after) = rest.split_at(rest.len().min(sector - within));
            let survives = match fate {
                Fate::Dropped => false,
                Fate::Kept => true,
                Fate::Torn => self.random.below(2) == 0,
            };
            if survives {
                self.durable.write_all_at(piece, offset)?;
            }
            offset += piece.len() as u64;
            rest = after;
        }
        Ok(())
    }

    /// Ends the power loss. Reads then return the bytes that the power loss did not destroy. Does
    /// nothing while the power is on.
    pub(crate) fn restore(&mut self) -> io::Result<()> {
        let mut bytes = Vec::new();
        for (offset, len) in self.lost.take().unwrap_or_default() {
            bytes.resize(len, 0);
            self.durable.read_exact_at(&mut bytes, offset)?;
            self.live.write_all_at(&bytes, offset)?;
        }
        Ok(())
    }

    /// Panics if an invariant of the images is violated.
    #[cfg(test)]
    fn check_invariants(&self) {
        if self.lost.is_some() {
            assert!(self.unflushed.is_empty(), "no unflushed write while the power is off");
            return;
        }
        let image = |file: &File| {
            let len = file.metadata().expect("the length of the image").len();
            let mut bytes = vec![0; len as usize];
            file.read_exact_at(&mut bytes, 0).expect("a read of the image");
            bytes
        };
        let mut expected = image(&self.durable);
        for Write { offset, bytes } in &self.unflushed {
            let start = *offset as usize;
            expected[start..start + bytes.len()].copy_from_slice(bytes);
        }
        assert!(image(&self.live) == expected, "`live` equals `durable` plus unflushed writes");
        let unflushed: usize = self.unflushed.iter().map(|it| it.bytes.len()).sum();
        assert_eq!(
            self.unflushed_bytes, unflushed,
            "`unflushed_bytes` is the number of unflushed bytes"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_testkit::Scratch;

    const LEN: usize = 64 << 10;
    const SECTOR: usize = 512;

    fn cache(scratch: &Scratch, seed: u64) -> Cache {
        let image = |name: &str| {
            let path = scratch.join(name);
            let file =
                File::options().read(true).write(true).create(true).truncate(true).open(path);
            let file = file.unwrap();
            file.set_len(LEN as u64).unwrap();
            file
        };
        Cache::new(image("live"), image("durable"), seed)
    }

    /// Simulates a power loss, and returns the contents of the disk after it.
    fn after_loss(cache: &mut Cache) -> Vec<u8> {
        cache.check_invariants();
        cache.lose_power(SECTOR).unwrap();
        cache.check_invariants();
        cache.restore().unwrap();
        cache.check_invariants();
        cache.read(0, LEN).unwrap()
    }

    #[test]
    fn power_loss_keeps_flushed_and_may_drop_unflushed_writes() {
        let scratch = Scratch::new();
        let (mut dropped, mut kept) = (0, 0);
        for seed in 0..64 {
            let mut cache = cache(&scratch, seed);
            cache.write(0, &[1; 4096]).unwrap();
            cache.flush().unwrap();
            cache.write(4096, &[2; SECTOR]).unwrap();
            assert_eq!(cache.read(4096, 1).unwrap(), [2], "reads see unflushed writes");
            let found = after_loss(&mut cache);
            assert!(found[..4096] == [1; 4096], "seed {seed}");
            match found[4096] {
                0 => dropped += 1,
                _ => kept += 1,
            }
        }
        assert!(dropped > 20 && kept > 10, "{dropped} dropped, {kept} kept");
    }

    #[test]
    fn torn_write_leaves_each_sector_either_old_or_new() {
        let scratch = Scratch::new();
        let mut mixed = 0;
        for seed in 0..64 {
            let mut cache = cache(&scratch, seed);
            // This write begins and ends in the middle of a sector.
            cache.write(100, &[3; 8 * SECTOR]).unwrap();
            let found = after_loss(&mut cache);
            let sectors: Vec<_> = found[..9 * SECTOR].chunks(SECTOR).map(|it| it[200]).collect();
            let last = found[8 * SECTOR + 50];
            let is_mixed = sectors.contains(&3) && sectors[..8].contains(&0);
            mixed += usize::from(is_mixed);
            for (at, byte) in sectors[..8].iter().enumerate() {
                let from = (at * SECTOR).max(100);
                let sector = &found[from..(at + 1) * SECTOR];
                assert!(sector.iter().all(|it| it == byte), "seed {seed}, sector {at}");
            }
            assert!(last == 0 || last == 3);
        }
        assert!(mixed > 5, "{mixed} torn writes");
    }

    #[test]
    fn writes_between_power_loss_and_restore_are_discarded() {
        let scratch = Scratch::new();
        let mut cache = cache(&scratch, 1);
        cache.write(0, &[1; SECTOR]).unwrap();
        cache.flush().unwrap();
        cache.check_invariants();
        cache.lose_power(SECTOR).unwrap();
        cache.write(0, &[2; SECTOR]).unwrap();
        cache.flush().unwrap();
        assert_eq!(
            cache.read(0, 1).unwrap(),
            [2],
            "a disk without power still returns written bytes"
        );
        cache.restore().unwrap();
        assert_eq!(cache.read(0, 1).unwrap(), [1]);
        cache.write(0, &[4; SECTOR]).unwrap();
        cache.flush().unwrap();
        assert_eq!(after_loss(&mut cache)[0], 4, "the disk works again");
    }

    #[test]
    fn overlapping_writes_reach_the_durable_image_in_order() {
        let scratch = Scratch::new();
        let mut cache = cache(&scratch, 1);
        for (number, offset) in (1..).zip([0, 100, 50, 4096, 0]) {
            cache.write(offset, &[number; 200]).unwrap();
            cache.check_invariants();
        }
        // A full cache writes its oldest bytes to `durable`.
        cache.write_out(2).unwrap();
        cache.check_invariants();
        cache.flush().unwrap();
        cache.check_invariants();
        assert!(after_loss(&mut cache)[..200] == [5; 200]);
    }

    #[test]
    #[should_panic(expected = "`live` equals `durable` plus unflushed writes")]
    fn invariant_check_detects_a_write_that_bypasses_the_cache() {
        let scratch = Scratch::new();
        let cache = cache(&scratch, 1);
        cache.live.write_all_at(&[1], 0).unwrap();
        cache.check_invariants();
    }

    #[test]
    fn disk_that_ignores_flushes_loses_flushed_writes() {
        let scratch = Scratch::new();
        let is_lost = |seed| {
            let mut cache = cache(&scratch, seed);
            cache.ignore_flushes();
            cache.write(0, &[1; SECTOR]).unwrap();
            cache.flush().unwrap();
            after_loss(&mut cache)[0] == 0
        };
        assert!((0..16).any(is_lost));
    }
}
