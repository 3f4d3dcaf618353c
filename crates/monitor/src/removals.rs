//! Limits the removal of old history on a full disk.
//!
//! If the history itself fills the disk, the space of each removed file is enough for new frames of
//! the same length. If another program fills the disk, this program also takes the space of the
//! removed files. Without a limit, the monitor would then remove years of history within a minute,
//! and would gain nothing.
//!
//! The module is pure: the caller passes the time, and removes the files.

/// Minimum number of freed bytes from which the module judges a removal. File systems allocate
/// blocks, so a small file may free less space than its length.
const LEAST_BYTES: u64 = 64 << 10;
/// Time after which the history may remove a file again although other programs took the space of
/// the last removed file, in milliseconds. These programs may have stopped in this time.
const AGAIN_AFTER_MS: u64 = 3_600_000;

/// The last removal of a file.
#[derive(Debug, Clone, Copy)]
struct Removal {
    /// Time of the removal in milliseconds since 1970.
    at_ms: u64,
    /// Number of bytes that the removal has freed.
    freed: u64,
    /// Number of bytes that the history has written since the removal.
    used: u64,
}

/// The removals of files because of a full disk.
#[derive(Debug, Default)]
pub(crate) struct Removals(Option<Removal>);

impl Removals {
    /// Whether the history may remove a file at the time `now_ms`, because it has no space for
    /// `wanted` bytes.
    pub(crate) fn may_remove(&self, now_ms: u64, wanted: u64) -> bool {
        let Some(Removal { at_ms, freed, used }) = self.0 else { return true };
        let is_recent = now_ms.abs_diff(at_ms) < AGAIN_AFTER_MS;
        let is_judged = freed >= LEAST_BYTES.max(wanted.saturating_mul(2));
        !(is_recent && is_judged && used < freed / 2)
    }

    /// Records that a removal at the time `now_ms` has freed `freed` bytes.
    pub(crate) fn add(&mut self, now_ms: u64, freed: u64) {
        // Several small files may be necessary for one frame, so removals for one frame count as
        // one removal.
        let unused = self.0.filter(|last| last.at_ms == now_ms && last.used == 0);
        let freed = freed.saturating_add(unused.map_or(0, |last| last.freed));
        self.0 = Some(Removal { at_ms: now_ms, freed, used: 0 });
    }

    /// Records that the history has written `bytes` bytes.
    pub(crate) fn count_written(&mut self, bytes: u64) {
        if let Some(last) = &mut self.0 {
            last.used = last.used.saturating_add(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000_000;
    const MIB: u64 = 1 << 20;

    #[test]
    fn history_that_fills_the_disk_keeps_removing_old_files() {
        let mut removals = Removals::default();
        let mut now_ms = NOW;
        for _ in 0..10 {
            assert!(removals.may_remove(now_ms, 10_000));
            removals.add(now_ms, 3 * MIB);
            // The last blocks of the files are not full.
            for _ in 0..310 {
                now_ms += 1000;
                removals.count_written(10_000);
            }
        }
    }

    #[test]
    fn history_loses_a_file_an_hour_if_other_programs_fill_the_disk() {
        let mut removals = Removals::default();
        let removed = (0..10_800).filter(|second| {
            let now_ms = NOW + second * 1000;
            let may_remove = removals.may_remove(now_ms, 10_000);
            if may_remove {
                removals.add(now_ms, 3 * MIB);
            }
            may_remove
        });
        assert_eq!(removed.count(), 3);
    }

    #[test]
    fn several_small_files_may_be_removed_for_one_frame() {
        let mut removals = Removals::default();
        let mut removed = 0;
        while removals.may_remove(NOW, MIB) {
            removals.add(NOW, MIB / 4);
            removed += 1;
        }
        assert_eq!(removed, 8, "twice the length of the frame");
    }
}
