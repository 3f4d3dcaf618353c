//! One tier of the history. A tier stores frames of one length. Each of its files covers one
//! period.
//!
//! The tier only appends to its files. To remove old frames, it removes files, which requires no
//! free space. If the last record of the newest file is incomplete after a crash, the tier
//! truncates the file at the end of the last complete frame. Damaged frames stay in their file, and
//! readers skip them.
//!
//! # Clocks that are set back
//! The names of the files are in the order in which the tier has created them. After the clock was
//! set back, the name of the newest file is a time in the future. The names of the next files
//! follow this name, so these names are not the times of the frames in the files. For this reason,
//! the tier has the times of the frames of each file in memory. With these times, readers find
//! frames, and the tier finds old files that it removes.

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

/// The length of a file, and the times of its frames.
#[derive(Debug, Clone, Default)]
struct HistoryFile {
    /// Length in bytes.
    len: u64,
    /// A span that contains all frames, in milliseconds since 1970. `None` means that the file has
    /// no frame.
    times: Option<Range<u64>>,
}

impl HistoryFile {
    /// Records that the file has a frame of the time `added`.
    fn add_times(&mut self, added: Range<u64>) {
        let all = match &self.times {
            Some(times) => times.start.min(added.start)..times.end.max(added.end),
            None => added,
        };
        self.times = Some(all);
    }

    fn may_have(&self, span: &Range<u64>) -> bool {
        self.times.as_ref().is_some_and(|it| it.start < span.end && span.start < it.end)
    }
}

/// An open tier.
#[derive(Debug)]
pub struct Tier {
    form: TierForm,
    directory: PathBuf,
    /// The files, by the numbers in their names.
    files: BTreeMap<u64, HistoryFile>,
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
                let times = Some(start..start.saturating_add(form.file_ms));
                files.insert(start, HistoryFile { len: entry.metadata()?.len(), times });
            }
        }
        let (newest, written_ms, damaged) = (None, None, RefCell::default());
        let mut tier = Self { form, directory, files, newest, written_ms, damaged };
        tier.read_newest()?;
        tier.read_unusual();
        Ok(tier)
    }

    /// Reads the times of the newest file, and truncates this file after its last complete frame.
    ///
    /// # Errors
    /// The errors of the file system.
    fn read_newest(&mut self) -> io::Result<()> {
        let Some(start) = self.files.keys().next_back().copied() else { return Ok(()) };
        let path = self.path(start);
        let (written_ms, end) = self.read_times(start, &fs::read(&path)?);
        self.written_ms = written_ms;
        let Some(file) = self.files.get_mut(&start) else { return Ok(()) };
        if end < file.len {
            OpenOptions::new().write(true).open(&path)?.set_len(end)?;
            tracing::warn!(
                "{}: removed {} bytes at the end of this history file, since a crash left an \
                 unfinished write there",
                path.display(),
                file.len - end
            );
            file.len = end;
        }
        Ok(())
    }

    /// Reads the times of the frames in files whose names may not be times of their frames, because
    /// the clock was set back. Skips the newest file, because its times are known. If a file cannot
    /// be read, the tier keeps the times that follow from its name.
    fn read_unusual(&mut self) {
        let Some(written_ms) = self.written_ms else { return };
        let file_ms = self.form.file_ms;
        let is_unusual = |start: &u64| !start.is_multiple_of(file_ms) || *start > written_ms;
        let but_newest = self.files.keys().rev().skip(1).copied();
        let unusual: Vec<u64> = but_newest.filter(is_unusual).collect();
        for start in unusual {
            if let Ok(bytes) = fs::read(self.path(start)) {
                self.read_times(start, &bytes);
            }
        }
    }

    /// Computes the times of the frames in a file from the content of the file. Returns the start
    /// of its last frame, and the end of this frame in bytes.
    fn read_times(&mut self, start: u64, content: &[u8]) -> (Option<u64>, u64) {
        let step_ms = self.form.step_ms;
        let mut file = HistoryFile { len: content.len() as u64, times: None };
        let mut last = None;
        let summary = codec::records(content, |payload| {
            if let Some(start_ms) = codec::start_ms(payload) {
                file.add_times(start_ms..start_ms.saturating_add(step_ms));
                last = Some(start_ms);
            }
        });
        self.note_damage(start, summary.damaged_bytes);
        self.files.insert(start, file);
        (last, summary.end as u64)
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
        self.files.values().map(|file| file.len).sum()
    }

    /// Returns the name of the file for a frame with the start `start_ms`.
    fn file_of(&self, start_ms: u64) -> u64 {
        let period = |ms: u64| ms / self.form.file_ms * self.form.file_ms;
        let wanted = period(start_ms);
        match self.files.keys().next_back() {
            // The clock was set back. A file still covers at most one period.
            Some(newest) if *newest > wanted => match self.written_ms.map(period) {
                Some(written) if written == wanted => *newest,
                _ => newest.saturating_add(1),
            },
            _ => wanted,
        }
    }

    /// Appends a frame. Returns the number of written bytes.
    ///
    /// # Errors
    /// The errors of the file system. After an error, the frames of the tier are unchanged.
    pub fn append(&mut self, frame: &Frame) -> io::Result<u64> {
        let start = self.file_of(frame.start_ms);
        if self.newest.as_ref().is_none_or(|(open, _)| *open != start) {
            let file = OpenOptions::new().create(true).append(true).open(self.path(start))?;
            self.newest = Some((start, file));
        }
        let Some((_, file)) = &mut self.newest else { return Ok(0) };
        let before = self.files.get(&start).map_or(0, |file| file.len);
        let record = codec::record(frame);
        let written = record.len() as u64;
        match file.write_all(&record) {
            Ok(()) => {
                let stored = self.files.entry(start).or_default();
                stored.len = before + written;
                stored.add_times(frame.start_ms..frame.start_ms.saturating_add(self.form.step_ms));
                self.written_ms = Some(frame.start_ms);
                Ok(written)
            }
            Err(error) => {
                // The file may contain a part of the record. Remove this part, because it would use
                // space until the tier removes the file.
                let _ = file.set_len(before);
                self.newest = None;
                Err(error)
            }
        }
    }

    /// Removes the oldest file, unless it is the only file. Returns whether a file was removed.
    pub fn remove_oldest(&mut self) -> bool {
        let oldest = self.files.keys().next().copied().filter(|_| self.files.len() > 1);
        oldest.into_iter().for_each(|start| self.remove(start));
        oldest.is_some()
    }

    fn remove(&mut self, start: u64) {
        self.files.remove(&start);
        self.damaged.borrow_mut().remove(&start);
        if let Err(error) = fs::remove_file(self.path(start)) {
            tracing::warn!(
                "cannot remove the old history file {}: {error}; this file uses space, and the \
                 next start of the monitor tries again",
                self.path(start).display()
            );
        }
    }

    /// Removes the files whose frames are all too old at the time `now_ms`, except for the newest
    /// file. After the clock was set back, the removed files need not be the oldest files.
    pub fn trim_by_age(&mut self, now_ms: u64) {
        let keep_ms = self.form.keep_ms;
        let is_old = |file: &HistoryFile| {
            file.times.as_ref().is_none_or(|it| it.end.saturating_add(keep_ms) < now_ms)
        };
        let but_newest = self.files.iter().rev().skip(1);
        let old: Vec<u64> =
            but_newest.filter(|(_, file)| is_old(file)).map(|(start, _)| *start).collect();
        old.into_iter().for_each(|start| self.remove(start));
    }

    /// Removes the oldest files while the tier has more than `max_bytes`.
    pub fn trim_by_size(&mut self, max_bytes: u64) {
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
        for (start, _) in self.files.iter().filter(|(_, file)| file.may_have(&span)) {
            let bytes = match fs::read(self.path(*start)) {
                Ok(bytes) => bytes,
                Err(error) => {
                    tracing::warn!(
                        "cannot read the history file {}: {error}; graphs have a gap for the time \
                         of this file",
                        self.path(*start).display()
                    );
                    continue;
                }
            };
            let summary = codec::records(&bytes, |payload| {
                // A file can have more than a thousand frames of other times, so decode only the
                // frames of the requested time.
                let start_ms = codec::start_ms(payload);
                if start_ms.is_none_or(|start_ms| !span.contains(&start_ms)) {
                    return;
                }
                if let Some(frame) = codec::decode_some(payload, &is_wanted) {
                    visit(frame);
                }
            });
            self.note_damage(*start, summary.damaged_bytes);
        }
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

/// Returns the number in the name of a file. Unless the clock was set back, this number is the
/// start of the period of the file.
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

    /// Appends a frame for each of these seconds.
    fn add(tier: &mut Tier, seconds: Range<u64>) {
        for second in seconds {
            tier.append(&frame(second, second)).unwrap();
        }
    }

    #[test]
    fn restarted_monitor_finds_stored_frames_by_their_time() {
        let directory = tempfile::tempdir().unwrap();
        let mut tier = Tier::open(directory.path(), FORM).unwrap();
        add(&mut tier, 100..150);
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
        add(&mut tier, 100..105);
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
    fn tier_removes_expired_and_surplus_files_except_the_newest() {
        let directory = tempfile::tempdir().unwrap();
        let mut tier = Tier::open(directory.path(), FORM).unwrap();
        add(&mut tier, 100..200);
        let whole = tier.bytes();
        tier.trim_by_age(200_000);
        assert_eq!(seconds(&tier, 0, 1000).first(), Some(&130), "60 s and the file around them");
        tier.trim_by_size(whole / 4);
        assert!(tier.bytes() <= whole / 4);
        assert_eq!(seconds(&tier, 0, 1000).last(), Some(&199), "the newest frames stay");
        tier.trim_by_size(0);
        tier.trim_by_age(u64::MAX);
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
        add(&mut tier, 100..110);
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
    fn frames_of_a_wrong_clock_are_removed_by_their_age() {
        let directory = tempfile::tempdir().unwrap();
        let files = || fs::read_dir(directory.path().join("seconds")).unwrap().count();
        let mut tier = Tier::open(directory.path(), FORM).unwrap();
        add(&mut tier, 100..110);
        // The clock is in the future for two seconds, and later in the past for two seconds.
        add(&mut tier, 90_000..90_002);
        add(&mut tier, 110..150);
        add(&mut tier, 5..7);
        add(&mut tier, 150..200);
        for _ in 0..2 {
            tier.trim_by_age(200_000);
            assert_eq!(seconds(&tier, 0, 80_000), (130..200).collect::<Vec<_>>());
            assert_eq!(files(), 8, "the files of 70 s, and the file of the future");
            drop(tier);
            tier = Tier::open(directory.path(), FORM).unwrap();
        }
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
        tier.trim_by_size(most);
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
