//! The history of a cluster: a frame for each second (for each round, if rounds are further apart)
//! of the last hour, for each minute of the last month, and for each hour of the last two years.
//!
//! The module owns the three tiers (seconds, minutes, hours), the limit of the total size, and the
//! reaction to a full disk. The module also adds up the frames of one tier to the frames of the
//! next tier. The newest seconds are also in memory, so the web page works even if the history
//! cannot be written.

use crate::codec;
use crate::frame::{Dimension, Frame};
use crate::limits::RECENT_FRAMES;
use crate::removals::Removals;
use crate::tier::{Tier, TierForm};
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::path::Path;

const SECOND_MS: u64 = 1000;
const MINUTE_MS: u64 = 60 * SECOND_MS;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;

/// The tiers, from the shortest frames to the longest.
const FORMS: [TierForm; 3] = [
    TierForm { name: "seconds", step_ms: SECOND_MS, file_ms: 5 * MINUTE_MS, keep_ms: HOUR_MS },
    TierForm { name: "minutes", step_ms: MINUTE_MS, file_ms: DAY_MS, keep_ms: 31 * DAY_MS },
    TierForm { name: "hours", step_ms: HOUR_MS, file_ms: 30 * DAY_MS, keep_ms: 731 * DAY_MS },
];
/// Time for which the clock must advance without a jump before old files are removed by their age.
/// A wrong clock makes all files seem old, and may be corrected soon.
const STEADY_MS: u64 = HOUR_MS;
/// Difference between the end of a frame and the start of the next frame above which the clock
/// counts as having jumped.
const JUMP_MS: u64 = 5 * MINUTE_MS;
/// Maximum share of each tier in the total size limit, as a number of quarters.
const QUARTERS: [u64; 3] = [1, 2, 1];
/// Longest time span of a query for which the tier with the same index is read. For a longer span,
/// the next tier is read.
const LONGEST_SPAN_MS: [u64; 2] = [HOUR_MS, 2 * DAY_MS];

/// The length of the frames that a query reads: the tier of the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resolution(usize);

impl Resolution {
    /// Returns the resolution for a query over `span_ms` milliseconds that begins `age_ms`
    /// milliseconds before now. The query reads a tier only if the tier still has the beginning of
    /// the span.
    pub fn of(span_ms: u64, age_ms: u64) -> Self {
        let by_span = LONGEST_SPAN_MS.iter().take_while(|longest| span_ms > **longest).count();
        let short = &FORMS[..FORMS.len() - 1];
        let by_age = short.iter().take_while(|form| age_ms > form.keep_ms).count();
        Self(by_span.max(by_age))
    }

    /// Returns the length of the frames in milliseconds.
    pub fn step_ms(self) -> u64 {
        step(self.0)
    }
}

/// The history of a cluster.
#[derive(Debug)]
pub struct History {
    tiers: Vec<Tier>,
    /// The current minute and the current hour, which are not complete yet. Each of them is the sum
    /// of frames of the previous tier.
    open: [Frame; 2],
    /// The newest frames, in the order of their times.
    recent: VecDeque<Frame>,
    max_bytes: u64,
    /// Time for which the clock has advanced without a jump, in milliseconds.
    steady_ms: u64,
    removals: Removals,
    problem: Option<String>,
}

/// The state of the history's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryState {
    /// Number of bytes in all files.
    pub bytes: u64,
    /// Maximum number of bytes in all files.
    pub max_bytes: u64,
    /// The reason why no frames are written to the files. `None` means that frames are written.
    pub problem: Option<String>,
}

impl History {
    /// Opens the history in a directory. Computes the incomplete minute and hour from the seconds
    /// and minutes on disk.
    ///
    /// # Errors
    /// The errors of the file system.
    pub fn open(directory: &Path, max_bytes: u64) -> io::Result<Self> {
        let tiers: Vec<Tier> =
            FORMS.iter().map(|form| Tier::open(directory, *form)).collect::<io::Result<_>>()?;
        let mut open = [Frame::default(), Frame::default()];
        for (index, sum) in open.iter_mut().enumerate() {
            let complete = tiers[index + 1].last();
            let after = complete.map_or(0, |it| it.start_ms / step(index + 1) * step(index + 1));
            let from = if after == 0 { 0 } else { after + step(index + 1) };
            let newest = tiers[index].last().map_or(0, |frame| frame.start_ms);
            let from = from.max(newest / step(index + 1) * step(index + 1));
            tiers[index].read(from..newest + 1, |_| true, |frame| sum.add(&frame));
        }
        let mut recent = VecDeque::new();
        let newest = tiers[0].last().map_or(0, |frame| frame.start_ms);
        let from = newest.saturating_sub(RECENT_FRAMES as u64 * SECOND_MS);
        tiers[0].read(from..newest + 1, |_| true, |frame| add_newest(&mut recent, frame));
        let (steady_ms, removals, problem) = (0, Removals::default(), None);
        Ok(Self { tiers, open, recent, max_bytes, steady_ms, removals, problem })
    }

    /// Adds the frame of one round. If the write of the frame fails, the error is logged,
    /// [`Self::state`] reports it, and the frame stays in memory.
    pub fn add(&mut self, frame: Frame) {
        let now_ms = frame.start_ms + frame.span_ms;
        self.note_clock(&frame);
        self.store(0, &frame);
        self.add_to_open(0, &frame);
        add_newest(&mut self.recent, frame);
        let quarter = self.max_bytes / 4;
        for (tier, quarters) in self.tiers.iter_mut().zip(QUARTERS) {
            if self.steady_ms >= STEADY_MS {
                tier.trim_by_age(now_ms);
            }
            tier.trim_by_size(quarter * quarters);
        }
    }

    /// Adds the time of a new frame to the time for which the clock has advanced without a jump.
    fn note_clock(&mut self, frame: &Frame) {
        let expected = self.recent.back().map_or(0, |last| last.start_ms + last.span_ms);
        let is_steady = frame.start_ms.abs_diff(expected) <= JUMP_MS;
        let before = if is_steady { self.steady_ms } else { 0 };
        self.steady_ms = before.saturating_add(frame.span_ms);
    }

    /// Adds a frame of tier `index` to the incomplete frame of the next tier. If `frame` belongs to
    /// another minute or hour than the incomplete frame, stores the completed minute or hour first.
    fn add_to_open(&mut self, index: usize, frame: &Frame) {
        let Some(sum) = self.open.get_mut(index) else { return };
        let length = step(index + 1);
        let is_other = frame.start_ms / length != sum.start_ms / length;
        if sum.samples > 0 && is_other {
            let mut complete = std::mem::take(sum);
            complete.bound();
            self.store(index + 1, &complete);
            self.add_to_open(index + 1, &complete);
        }
        self.open[index].add(frame);
    }

    /// Writes a frame to tier `index`. If the disk is full, removes the oldest file of the tier
    /// that has the most bytes, and repeats the write. [`Removals`] limits these removals.
    fn store(&mut self, index: usize, frame: &Frame) {
        // The loop ends, because each iteration removes a file.
        let error = loop {
            match self.tiers[index].append(frame) {
                Ok(written) => {
                    self.removals.count_written(written);
                    if self.problem.take().is_some() {
                        tracing::info!("the monitor writes its history again");
                    }
                    return;
                }
                Err(error) if is_full(&error) && self.make_space(frame) => {}
                Err(error) => break error,
            }
        };
        let problem = format!(
            "cannot write the history: {error}; the figures of the newest {RECENT_FRAMES} seconds \
             are in memory only; free up space on the disk of the monitor's directory"
        );
        if self.problem.as_ref() != Some(&problem) {
            tracing::warn!("{problem}");
            self.problem = Some(problem);
        }
    }

    /// Removes a file, so that there is space for `frame`. Returns whether a file was removed.
    fn make_space(&mut self, frame: &Frame) -> bool {
        let wanted = codec::record(frame).len() as u64;
        if !self.removals.may_remove(frame.start_ms, wanted) {
            return false;
        }
        let mut by_size: Vec<usize> = (0..self.tiers.len()).collect();
        by_size.sort_by_key(|index| std::cmp::Reverse(self.tiers[*index].bytes()));
        let before = self.bytes();
        let is_removed = by_size.into_iter().any(|index| self.tiers[index].remove_oldest());
        if is_removed {
            self.removals.add(frame.start_ms, before.saturating_sub(self.bytes()));
        }
        is_removed
    }

    fn bytes(&self) -> u64 {
        self.tiers.iter().map(Tier::bytes).sum()
    }

    /// Returns the newest frames of single rounds, the oldest first, at most [`RECENT_FRAMES`].
    pub fn recent(&self) -> &VecDeque<Frame> {
        &self.recent
    }

    /// Calls `visit` with the frames of a resolution that start in `span`, the oldest first. The
    /// frames have at least the loads of the dimensions for which `is_wanted` returns `true`.
    pub fn read(
        &self,
        resolution: Resolution,
        span: Range<u64>,
        is_wanted: impl Fn(Dimension) -> bool,
        mut visit: impl FnMut(&Frame),
    ) {
        let index = resolution.0;
        if index == 0 {
            let in_memory = self.recent.front().map_or(u64::MAX, |frame| frame.start_ms);
            if in_memory > span.start {
                let stored = span.start..span.end.min(in_memory);
                self.tiers[0].read(stored, is_wanted, |frame| visit(&frame));
            }
            let is_meant = |frame: &&Frame| span.contains(&frame.start_ms);
            self.recent.iter().filter(is_meant).for_each(visit);
            return;
        }
        self.tiers[index].read(span.clone(), is_wanted, |frame| visit(&frame));
        // Visit the incomplete frames, the longest first: the incomplete hour, and then its
        // incomplete minute.
        for sum in self.open[..index].iter().rev() {
            if sum.samples > 0 && span.contains(&sum.start_ms) {
                visit(sum);
            }
        }
    }

    /// Returns the state of the history's files.
    pub fn state(&self) -> HistoryState {
        HistoryState {
            bytes: self.bytes(),
            max_bytes: self.max_bytes,
            problem: self.problem.clone(),
        }
    }
}

fn step(index: usize) -> u64 {
    FORMS[index].step_ms
}

/// Adds a frame to the newest frames, which are in the order of their times. If the clock was set
/// back, drops the frames whose times are now in the future, so that no query finds a second twice.
fn add_newest(recent: &mut VecDeque<Frame>, frame: Frame) {
    while recent.back().is_some_and(|last| last.start_ms >= frame.start_ms) {
        recent.pop_back();
    }
    recent.push_back(frame);
    if recent.len() > RECENT_FRAMES {
        recent.pop_front();
    }
}

/// Whether an error means that space is missing, so that a write may succeed after files were
/// removed.
fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::tests::frame;

    const START: u64 = 1_800_000_000 / 3600 * 3600;

    fn operations(history: &History, from_s: u64, to_s: u64) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        let span = from_s * 1000..to_s * 1000;
        let resolution = Resolution::of(span.end - span.start, span.end - span.start);
        let note = |frame: &Frame| {
            let load = frame.loads.values().next().unwrap();
            found.push((frame.start_ms / 1000, load.operations));
        };
        history.read(resolution, span, |_| true, note);
        found
    }

    #[test]
    fn minutes_and_hours_are_the_sums_of_their_seconds() {
        let directory = tempfile::tempdir().unwrap();
        let mut history = History::open(directory.path(), 1 << 30).unwrap();
        for second in 0..3 * 3600 {
            history.add(frame(START + second, 1));
        }
        let minutes = operations(&history, START, START + 3 * 3600);
        assert_eq!(minutes.len(), 180);
        assert!(minutes.iter().all(|(_, operations)| *operations == 60), "{minutes:?}");
        let hours = operations(&history, START - 30 * 86_400, START + 3 * 3600);
        let sum: u64 = hours.iter().map(|(_, operations)| operations).sum();
        assert_eq!((hours[0], hours[1]), ((START, 3600), (START + 3600, 3600)));
        assert_eq!(sum, 3 * 3600, "each second is in one frame: {hours:?}");
        let last_hour = operations(&history, START + 2 * 3600, START + 3 * 3600);
        assert_eq!(last_hour.len(), 3600);
        assert_eq!(history.recent().len(), RECENT_FRAMES);
    }

    #[test]
    fn resolution_depends_on_the_span_and_on_its_age() {
        for (span_s, age_s, step_s) in [
            (300, 300, 1),
            (3600, 3600, 1),
            (300, 3601, 60),
            (7200, 7200, 60),
            (300, 31 * 86_400, 60),
            (300, 32 * 86_400, 3600),
            (30 * 86_400, 30 * 86_400, 3600),
            (300, 2000 * 86_400, 3600),
        ] {
            let resolution = Resolution::of(span_s * 1000, age_s * 1000);
            assert_eq!(resolution.step_ms(), step_s * 1000, "{span_s} s, {age_s} s ago");
        }
    }

    #[test]
    fn killed_monitor_continues_the_sums_of_minute_and_hour() {
        let directory = tempfile::tempdir().unwrap();
        let mut history = History::open(directory.path(), 1 << 30).unwrap();
        for second in 0..3600 + 90 {
            history.add(frame(START + second, 1));
        }
        // Drop the history without a final write, as if the process had been killed.
        drop(history);
        let mut history = History::open(directory.path(), 1 << 30).unwrap();
        assert_eq!(history.recent().len(), RECENT_FRAMES);
        for second in 3600 + 90..2 * 3600 + 1 {
            history.add(frame(START + second, 1));
        }
        let minutes = operations(&history, START, START + 2 * 3600);
        assert_eq!(minutes.len(), 120);
        assert!(minutes.iter().all(|(_, operations)| *operations == 60), "{minutes:?}");
        let hours = operations(&history, START - 30 * 86_400, START + 2 * 3600);
        assert_eq!(hours, [(START, 3600), (START + 3600, 3600)]);
    }

    #[test]
    fn each_frame_is_found_once_after_the_clock_was_set_back() {
        for back_s in [7, 900, 86_400] {
            let directory = tempfile::tempdir().unwrap();
            let mut history = History::open(directory.path(), 1 << 30).unwrap();
            let now = START + 86_400 + 50;
            (now..now + 20).for_each(|second| history.add(frame(second, 1)));
            let begin = now + 20 - back_s;
            (begin..begin + 700).for_each(|second| history.add(frame(second, 2)));
            let check = |history: &History| {
                let found = operations(history, begin, begin + 700);
                let later = found.iter().filter(|(_, operations)| *operations == 2);
                let seconds: Vec<u64> = later.map(|(second, _)| *second).collect();
                assert_eq!(seconds, (begin..begin + 700).collect::<Vec<_>>(), "{back_s}");
                let minutes = operations(history, begin - 3 * 3600, begin + 700);
                let sum: u64 = minutes.iter().map(|(_, operations)| operations).sum();
                assert!((1400..=1420).contains(&sum), "{back_s}: {minutes:?}");
            };
            check(&history);
            drop(history);
            check(&History::open(directory.path(), 1 << 30).unwrap());
        }
    }

    #[test]
    fn clock_that_is_wrong_for_a_moment_removes_no_history() {
        let directory = tempfile::tempdir().unwrap();
        let mut history = History::open(directory.path(), 1 << 30).unwrap();
        let seconds = |history: &History| {
            let mut found = 0;
            history.tiers[0].read(0..u64::MAX, |_| false, |_| found += 1);
            found
        };
        (0..600).for_each(|second| history.add(frame(START + second, 1)));
        let year = 365 * 86_400;
        history.add(frame(START + year, 1));
        (601..900).for_each(|second| history.add(frame(START + second, 1)));
        assert_eq!(seconds(&history), 900);
        // If the clock stays right for hours, the history removes the old files.
        (900..4 * 3600).for_each(|second| history.add(frame(START + second, 1)));
        let left = seconds(&history);
        assert!((3600..4201).contains(&left), "{left}");
    }

    #[test]
    fn history_stays_within_its_size_limit() {
        let directory = tempfile::tempdir().unwrap();
        let mut history = History::open(directory.path(), 64 << 10).unwrap();
        for second in 0..3 * 3600 {
            history.add(frame(START + second, 1));
        }
        // The newest file of each tier is never removed, even if the limit is very small.
        assert!(history.state().bytes < 128 << 10, "{:?}", history.state());
        assert_eq!(history.recent().back(), Some(&frame(START + 3 * 3600 - 1, 1)));
    }
}
