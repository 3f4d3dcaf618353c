//! One tier of the history. A tier stores frames of one length. Each of its files covers one
//! period.
//!
//! The tier only appends to its files. To remove old frames, it removes its oldest file, which
//! requires no free space. After a crash, the last record of the newest file may be incomplete. In
//! this case, the tier truncates the file at the end of the last complete frame. Damaged frames
//! within a file stay in it, and readers skip them.
//!
//! # Clocks that are set back
//! The names of the files are in the order in which the tier has created them. After the clock was
//! set back, the newest file is named after a time in the future. The tier then begins further
//! files, whose names follow that of the newest file, so that the oldest frames are still removed
//! first. Readers also read these files, and select frames by the times in the frames.

use crate::codec;
use crate::frame::{Dimension, Frame};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The directory of a tier, and its time spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TierForm {
    /// Name of the tier's directory.
    pub name: &'static str,
    /// Length of the frames in milliseconds.
    pub step_ms: u64,
    /// Length of the period that one file covers, in milliseconds.
    pub file_ms: u64,
    /// Time for which frames are stored, in milliseconds.
    pub keep_ms: u64,
}

/// An open tier.
#[derive(Debug)]
pub struct Tier {
    form: TierForm,
    directory: PathBuf,
    /// The length of each file in bytes, by the start of its period in milliseconds.
    files: BTreeMap<u64, u64>,
    /// The newest file, open for appending.
    newest: Option<(u64, File)>,
    /// The start of the frame that was written last, in milliseconds since 1970. `None` means that
    /// the newest file has no frame.
    written_ms: Option<u64>,
    /// The files whose damage is in the log.
    damaged: RefCell<BTreeSet<u64>>,
}

impl Tier {
    /// Opens a tier in `parent`. Creates the directory of the tier if it is missing. If the newest
    /// file ends with an incomplete record, removes this record.
    ///
    /// # Errors
    /// The errors of the file system.
    pub fn open(parent: &Path, form: TierForm) -> io::Result<Self> {
        let directory = parent.join(form.name);
        fs::create_dir_all(&directory)?;
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            if let Some(start) = start_of(&entry.file_name().to_string_lossy()) {
                files.insert(start, entry.metadata()?.len());
            }
        }
        let (newest, written_ms, damaged) = (None, None, RefCell::default());
        let mut tier = Self { form, directory, files, newest, written_ms, damaged };
        if let Some((start, len)) = tier.files.last_key_value().map(|(start, len)| (*start, *len)) {
            let path = tier.path(start);
            let summary = codec::records(&fs::read(&path)?, |payload| {
                tier.written_ms = codec::start_ms(payload).or(tier.written_ms);
            });
            tier.note_damage(start, summary.damaged_bytes);
            let whole = summary.end as u64;
            if whole < len {
                OpenOptions::new().write(true).open(&path)?.set_len(whole)?;
                tracing::warn!(
                    "{}: removed {} bytes at the end of this history file, since a crash left an \
                     unfinished write there",
                    path.display(),
                    len - whole
                );
                tier.files.insert(start, whole);
            }
        }
        Ok(tier)
    }

    fn path(&self, start: u64) -> PathBuf {
        self.directory.join(format!("{start}.frames"))
    }

    /// Logs that a file has `bytes` damaged bytes, but only once for each file.
    fn note_damage(&self, start: u64, bytes: usize) {
        if bytes > 0 && self.damaged.borrow_mut().insert(start) {
            tracing::warn!(
                "the history file {} has {bytes} damaged bytes, so graphs have a gap there; check \
                 the disk and the memory of this host",
                self.path(start).display()
            );
        }
    }

    /// Returns the form of the tier.
    pub fn form(&self) -> TierForm {
        self.form
    }

    /// Returns the number of bytes in all files.
    pub fn bytes(&self) -> u64 {
        self.files.values().sum()
    }

    /// Returns the name of the file for a frame with the start `start_ms`.
    fn file_of(&self, start_ms: u64) -> u64 {
        let period = |ms: u64| ms / self.form.file_ms * self.form.file_ms;
        let wanted = period(start_ms);
        match self.files.keys().next_back() {
            // The clock was set back. One file still covers one period at most.
            Some(newest) if *newest > wanted => match self.written_ms.map(period) {
                Some(written) if written != wanted => newest.saturating_add(1),
                _ => *newest,
            },
            _ => wanted,
        }
    }

    /// Appends a frame.
    ///
    /// # Errors
    /// The errors of the file system. The frames of the tier do not change in this case.
    pub fn append(&mut self, frame: &Frame) -> io::Result<()> {
        let start = self.file_of(frame.start_ms);
        if self.newest.as_ref().is_none_or(|(open, _)| *open != start) {
            let file = OpenOptions::new().create(true).append(true).open(self.path(start))?;
            self.newest = Some((start, file));
        }
        let Some((_, file)) = &mut self.newest else { return Ok(()) };
        let before = self.files.get(&start).copied().unwrap_or(0);
        let record = codec::record(frame);
        match file.write_all(&record) {
            Ok(()) => {
                self.files.insert(start, before + record.len() as u64);
                self.written_ms = Some(frame.start_ms);
                Ok(())
            }
            Err(error) => {
                // The file may contain a part of the record. This part is removed, because it would
                // use space until the file is removed.
                let _ = file.set_len(before);
                self.newest = None;
                Err(error)
            }
        }
    }

    /// Removes the oldest file, unless it is the only one. Returns whether a file was removed.
    pub fn remove_oldest(&mut self) -> bool {
        if self.files.len() < 2 {
            return false;
        }
        let Some((start, _)) = self.files.pop_first() else { return false };
        if let Err(error) = fs::remove_file(self.path(start)) {
            tracing::warn!(
                "cannot remove the old history file {}: {error}; it uses space, and the next start \
                 of the monitor tries again",
                self.path(start).display()
            );
        }
        true
    }

    /// Removes the files whose frames are all too old at the time `now_ms`. Then removes the oldest
    /// files while the tier has more than `max_bytes`.
    pub fn trim(&mut self, now_ms: u64, max_bytes: u64) {
        let is_old = |start: u64| start + self.form.file_ms + self.form.keep_ms < now_ms;
        let old = self.files.keys().filter(|start| is_old(**start)).count();
        for _ in 0..old {
            self.remove_oldest();
        }
        while self.bytes() > max_bytes && self.remove_oldest() {}
    }

    /// Calls `visit` with each frame that starts in `span`, in the order of the files. The frames
    /// have only the loads of the dimensions for which `is_wanted` returns `true`. Logs a warning
    /// for a file that cannot be read, and skips the file.
    pub fn read(
        &self,
        span: Range<u64>,
        is_wanted: impl Fn(Dimension) -> bool,
        mut visit: impl FnMut(Frame),
    ) {
        for start in self.files_of(&span) {
            let bytes = match fs::read(self.path(start)) {
                Ok(bytes) => bytes,
                Err(error) => {
                    tracing::warn!(
                        "cannot read the history file {}: {error}; graphs have a gap for the time \
                         of this file",
                        self.path(start).display()
                    );
                    continue;
                }
            };
            let summary = codec::records(&bytes, |payload| {
                // A file can have more than a thousand frames of other times, so decode only the
                // wanted ones.
                let start_ms = codec::start_ms(payload);
                if start_ms.is_none_or(|start_ms| !span.contains(&start_ms)) {
                    return;
                }
                if let Some(frame) = codec::decode_some(payload, &is_wanted) {
                    visit(frame);
                }
            });
            self.note_damage(start, summary.damaged_bytes);
        }
    }

    /// Returns the names of the files that may have frames in `span`.
    fn files_of(&self, span: &Range<u64>) -> impl Iterator<Item = u64> {
        let first = self.files.range(..=span.start).next_back();
        let first = first.map_or(span.start, |(start, _)| *start);
        // If the clock was set back by less than a period, files of the next period have frames of
        // the span.
        let end = span.end.saturating_add(self.form.file_ms);
        let written_ms = self.written_ms;
        let is_read = move |start: &u64| {
            let is_in_future = written_ms.is_some_and(|written_ms| *start > written_ms);
            *start < end || is_in_future
        };
        self.files.range(first..).map(|(start, _)| *start).filter(is_read)
    }

    /// Returns the newest frame of the tier. `None` means that the tier has no file, or that its
    /// newest file has no valid frame.
    pub fn last(&self) -> Option<Frame> {
        let (start, _) = self.files.last_key_value()?;
        let bytes = fs::read(self.path(*start)).ok()?;
        let mut last = None;
        codec::records(&bytes, |payload| last = codec::decode(payload).or(last.take()));
        last
    }
}

/// Returns the start of a file's period, which is in the name of the file.
fn start_of(name: &str) -> Option<u64> {
    name.strip_suffix(".frames")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::tests::frame;

    const FORM: TierForm =
        TierForm { name: "seconds", step_ms: 1000, file_ms: 10_000, keep_ms: 60_000 };

    fn seconds(tier: &Tier, from: u64, to: u64) -> Vec<u64> {
        let mut found = Vec::new();
        let span = from * 1000..to * 1000;
        tier.read(span, |_| true, |frame| found.push(frame.start_ms / 1000));
        found
    }

    #[test]
    fn restarted_monitor_finds_stored_frames_by_their_time() {
        let directory = tempfile::tempdir().unwrap();
        let mut tier = Tier::open(directory.path(), FORM).unwrap();
        for second in 100..150 {
            tier.append(&frame(second, second)).unwrap();
        }
        drop(tier);
        let tier = Tier::open(directory.path(), FORM).unwrap();
        assert_eq!(seconds(&tier, 105, 125), (105..125).collect::<Vec<_>>());
        assert_eq!(seconds(&tier, 0, 1000).len(), 50);
        assert_eq!(tier.last(), Some(frame(149, 149)));
    }

    #[test]
    fn torn_file_continues_after_its_last_complete_frame() {
        let directory = tempfile::tempdir().unwrap();
        let mut tier = Tier::open(directory.path(), FORM).unwrap();
        for second in 100..105 {
            tier.append(&frame(second, second)).unwrap();
        }
        let path = tier.path(100_000);
        drop(tier);
        let len = fs::metadata(&path).unwrap().len();
        OpenOptions::new().write(true).open(&path).unwrap().set_len(len - 3).unwrap();
        let mut tier = Tier::open(directory.path(), FORM).unwrap();
        tier.append(&frame(105, 105)).unwrap();
        assert_eq!(seconds(&tier, 0, 1000), [100, 101, 102, 103, 105]);
        let content = fs::read(&path).unwrap();
        let expected = codec::FileSummary { end: content.len(), damaged_bytes: 0 };
        assert_eq!(codec::records(&content, |_| ()), expected, "no bytes remain between frames");
    }

    #[test]
    fn old_files_and_files_over_the_limit_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let mut tier = Tier::open(directory.path(), FORM).unwrap();
        for second in 100..200 {
            tier.append(&frame(second, second)).unwrap();
        }
        let whole = tier.bytes();
        tier.trim(200_000, u64::MAX);
        assert_eq!(seconds(&tier, 0, 1000).first(), Some(&130), "60 s and the file around them");
        tier.trim(200_000, whole / 4);
        assert!(tier.bytes() <= whole / 4);
        assert_eq!(seconds(&tier, 0, 1000).last(), Some(&199), "the newest frames stay");
        tier.trim(200_000, 0);
        assert_eq!(
            seconds(&tier, 0, 1000),
            (190..200).collect::<Vec<_>>(),
            "the newest file stays"
        );
        let on_disk = fs::read_dir(directory.path().join("seconds")).unwrap().count();
        assert_eq!(on_disk, 1);
    }

    #[test]
    fn damaged_frame_hides_no_other_frame_and_stays_after_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let mut tier = Tier::open(directory.path(), FORM).unwrap();
        for second in 100..110 {
            tier.append(&frame(second, second)).unwrap();
        }
        let path = tier.path(100_000);
        let mut content = fs::read(&path).unwrap();
        let record_bytes = codec::record(&frame(100, 100)).len();
        content[3 * record_bytes + record_bytes / 2] ^= 0x10;
        fs::write(&path, &content).unwrap();
        let expected = [100, 101, 102, 104, 105, 106, 107, 108, 109];
        assert_eq!(seconds(&tier, 0, 1000), expected);
        drop(tier);
        let mut tier = Tier::open(directory.path(), FORM).unwrap();
        assert_eq!(seconds(&tier, 0, 1000), expected);
        assert_eq!(tier.last(), Some(frame(109, 109)));
        assert_eq!(fs::read(&path).unwrap(), content, "the restart removes nothing");
        tier.append(&frame(110, 110)).unwrap();
        assert_eq!(seconds(&tier, 109, 1000), [109, 110]);
    }

    #[test]
    fn clock_that_is_set_back_loses_no_frame() {
        let directory = tempfile::tempdir().unwrap();
        let mut tier = Tier::open(directory.path(), FORM).unwrap();
        for second in [200, 201, 150, 151] {
            tier.append(&frame(second, second)).unwrap();
        }
        let mut found = Vec::new();
        tier.read(0..u64::MAX, |_| true, |frame| found.push(frame.start_ms / 1000));
        assert_eq!(found, [200, 201, 150, 151]);
    }

    #[test]
    fn frames_after_a_clock_error_are_found_and_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let mut tier = Tier::open(directory.path(), FORM).unwrap();
        let add = |tier: &mut Tier, seconds: std::ops::Range<u64>| {
            seconds.for_each(|second| tier.append(&frame(second, second)).unwrap());
        };
        add(&mut tier, 100..110);
        // The clock is wrong for two seconds, and is then set back.
        add(&mut tier, 90_000..90_002);
        add(&mut tier, 110..115);
        let mut tier = Tier::open(directory.path(), FORM).unwrap();
        add(&mut tier, 115..150);
        assert_eq!(seconds(&tier, 100, 150), (100..150).collect::<Vec<_>>());
        assert_eq!(seconds(&tier, 112, 133), (112..133).collect::<Vec<_>>());
        assert_eq!(tier.last(), Some(frame(149, 149)));
        let most = tier.bytes() / 2;
        tier.trim(150_000, most);
        assert!(tier.bytes() <= most);
        let newest = seconds(&tier, 0, 80_000);
        assert_eq!(newest.last(), Some(&149), "the oldest files are removed");
        assert!(newest.is_sorted() && newest[0] > 110, "{newest:?}");
        // The clock is set back by less than a period, and later catches up.
        let mut tier = Tier::open(&directory.path().join("other"), FORM).unwrap();
        add(&mut tier, 100..112);
        add(&mut tier, 107..130);
        assert_eq!(seconds(&tier, 105, 110), [105, 106, 107, 108, 109, 107, 108, 109]);
    }
}
