//! Advice about stripe pattern, inline bytes and number of processes, for the files of a directory,
//! for one file or for a job (`skep advise`).
//!
//! An [`Observation`] contains the known data: the sizes of files, their pattern, the load that the
//! services have measured, and the accesses that Darshan has recorded. Each rule needs some of
//! these data. A rule without its data gives no advice, so no advice is based on a guess.
//! [`advise`] returns the advice with the numbers on which it is based. [`pattern_text`] returns
//! the proposed pattern as text.
//!
//! The module is pure: it does no I/O and reads no clock. The crate `ctl` collects the data.

mod darshan;
mod files;
mod rules;

pub use darshan::{Accesses, parse as parse_darshan};
pub use files::Sizes;
pub use rules::advise;

use serde::Serialize;
use skep_types::pattern::MAX_STRIPE_WIDTH;
use skep_types::{ClusterMap, Component, StripePattern};
use std::collections::BTreeMap;

/// The known data about files and their load.
#[derive(Debug, Clone, Default)]
pub struct Observation {
    /// The sizes of the files. Empty if the user names no path.
    pub sizes: Sizes,
    /// The pattern of the file. For a directory, the pattern of its new files.
    pub layout: Option<Layout>,
    /// Number of clients that have the file open for writing.
    pub writers: usize,
    /// The load in a time interval.
    pub load: Option<Load>,
    /// The accesses of a program, as Darshan has recorded them.
    pub accesses: Option<Accesses>,
    /// Number of storage targets of the cluster.
    pub targets: usize,
    /// Number of servers that have storage targets.
    pub servers: usize,
}

/// The parts of a stripe pattern that the rules compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Layout {
    /// Number of bytes at the beginning of each file that are stored in metadata.
    pub inline_bytes: u64,
    /// Number of targets of the first component that is not inline.
    pub narrow: usize,
    /// File offset from which a file is striped over [`Self::width`] targets.
    pub wide_from: u64,
    /// Number of targets of the last component.
    pub width: usize,
    /// Number of targets that the pattern requests for the last component. The cluster may have
    /// fewer targets.
    pub wanted: usize,
    /// Chunk size of the last component.
    pub chunk_bytes: u64,
    /// Number of targets that the file uses on a server: the smallest and the largest number over
    /// all servers. `None` for the pattern of new files.
    pub per_server: Option<(usize, usize)>,
}

impl Layout {
    /// Returns the layout of a stripe pattern.
    pub fn of(pattern: &StripePattern, map: &ClusterMap, targets: usize) -> Self {
        let striped: Vec<&Component> =
            pattern.components.iter().filter(|it| !it.is_inline()).collect();
        let inline_bytes = match pattern.components.first() {
            Some(first) if first.is_inline() => striped.first().map_or(0, |it| it.start),
            _ => 0,
        };
        let width = |it: Option<&&Component>| {
            let found = it.map_or(1, |it| match it.groups.len() {
                0 => usize::from(it.wanted),
                groups => groups,
            });
            found.clamp(1, targets.max(1))
        };
        let last = striped.last();
        Self {
            inline_bytes,
            narrow: width(striped.first()),
            wide_from: last.map_or(0, |it| if striped.len() > 1 { it.start } else { 0 }),
            width: width(last),
            wanted: last.map_or(1, |it| usize::from(it.wanted)),
            chunk_bytes: last.map_or(0, |it| it.chunk_bytes),
            per_server: last.and_then(|it| per_server(it, map)),
        }
    }

    /// Formats the numbers of targets in the syntax of pattern texts.
    fn counts(&self) -> String {
        let width = match self.wanted {
            MAX_STRIPE_WIDTH.. => "all".to_owned(),
            wanted => wanted.to_string(),
        };
        match self.wide_from {
            0 => format!("count={width}"),
            from => format!("count={}/from={},count={width}", self.narrow, words(from)),
        }
    }
}

/// Counts the targets of a component on each server that has storage targets. Returns the smallest
/// and the largest count.
fn per_server(component: &Component, map: &ClusterMap) -> Option<(usize, usize)> {
    if component.groups.is_empty() {
        return None;
    }
    let storage = map.targets.iter().filter(|it| it.kind == skep_types::TargetKind::Storage);
    let mut counts: BTreeMap<_, usize> = storage.map(|target| (target.node, 0)).collect();
    for target in component.groups.iter().filter_map(|group| map.primary(*group)) {
        *counts.entry(target.node).or_default() += 1;
    }
    counts.values().copied().min().zip(counts.values().copied().max())
}

/// The load of a job or of a whole cluster in a time interval, as the services have counted it.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Load {
    /// Length of the interval in seconds.
    pub seconds: f64,
    /// Number of requests to storage.
    pub storage_requests: u64,
    /// Number of requests to metadata.
    pub metadata_requests: u64,
    /// Number of requests to services of an unknown kind. The monitor stores the requests of a job
    /// to metadata and to storage as one sum.
    pub other_requests: u64,
    /// Bytes of file data that were read or written.
    pub bytes: u64,
    /// Sum of the times from the arrival of each storage request to its reply, in seconds.
    pub storage_busy_seconds: f64,
}

impl Load {
    /// Adds up rows, such as the rows of one job or of the whole cluster. The rules about requests
    /// use only rows that name their service ([`crate::rows_by_service`]). These rules must not mix
    /// storage requests with metadata requests, because metadata requests move no file data, and
    /// their durations are not comparable.
    pub fn of<'a>(rows: impl IntoIterator<Item = &'a crate::Row>, seconds: f64) -> Self {
        let mut load = Self { seconds, ..Self::default() };
        for row in rows {
            match row.service.as_str() {
                "metadata" => load.metadata_requests += row.operations,
                "storage" => {
                    load.storage_requests += row.operations;
                    load.bytes += row.read_bytes + row.written_bytes;
                    load.storage_busy_seconds += row.busy_ns as f64 / 1e9;
                }
                _ => {
                    load.other_requests += row.operations;
                    load.bytes += row.read_bytes + row.written_bytes;
                }
            }
        }
        load
    }

    /// Returns the mean number of storage requests in progress.
    pub fn in_progress(&self) -> f64 {
        if self.seconds > 0.0 { self.storage_busy_seconds / self.seconds } else { 0.0 }
    }
}

/// The part of a pattern, or the program, that a piece of advice would change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    /// The number of inline bytes of each file.
    InlineBytes,
    /// The number of targets of a file.
    Targets,
    /// The chunk size.
    ChunkSize,
    /// The policy that chooses targets.
    Chooser,
    /// The program, or the number of its processes. No pattern can change the program or this
    /// number.
    Program,
}

/// One piece of advice.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Advice {
    /// The part of the pattern that the advice would change, or the program.
    pub subject: Subject,
    /// The current value.
    pub present: String,
    /// The proposed value. A value for a pattern is in the syntax of pattern texts.
    pub proposed: String,
    /// The reason for the advice, with numbers.
    pub why: String,
    /// The expected effect, with numbers.
    pub expected: String,
}

/// Returns the pattern for new files that `advice` proposes, as a text that `skep entry set`
/// accepts. `None` means that no advice changes the pattern. `own` is the pattern of the directory
/// itself. The result contains the values of `own` that no advice changes.
pub fn pattern_text(advice: &[Advice], own: Option<&Layout>) -> Option<String> {
    let proposed = |subject: Subject| {
        advice.iter().find(|it| it.subject == subject).map(|it| it.proposed.as_str())
    };
    let changes = [Subject::InlineBytes, Subject::Targets, Subject::ChunkSize, Subject::Chooser];
    if changes.into_iter().all(|subject| proposed(subject).is_none()) {
        return None;
    }
    let inline = match proposed(Subject::InlineBytes) {
        Some(bytes) => bytes.to_owned(),
        None => words(own.map_or(0, |it| it.inline_bytes)),
    };
    // A pattern text has a chunk size for each component, so each component gets the same chunk
    // size.
    let chunk = match (proposed(Subject::ChunkSize), own) {
        (Some(size), _) => format!(",chunk-size={size}"),
        (None, Some(own)) if own.chunk_bytes > 0 => {
            format!(",chunk-size={}", words(own.chunk_bytes))
        }
        (None, _) => String::new(),
    };
    let chooser = match proposed(Subject::Chooser) {
        Some(chooser) => format!(",chooser={chooser}"),
        None => String::new(),
    };
    let counts = match (proposed(Subject::Targets), own) {
        (Some(counts), _) => counts.to_owned(),
        (None, Some(own)) => own.counts(),
        (None, None) => String::new(),
    };
    let component = |counts: &str| format!("{counts}{chunk}{chooser}");
    let mut parts: Vec<String> = counts.split('/').map(component).collect();
    if inline != "0" {
        if let Some(first) = parts.first_mut() {
            *first = format!("from={inline},{}", first.trim_start_matches(','));
            *first = first.trim_end_matches(',').to_owned();
        }
        parts.insert(0, "inline".into());
    }
    Some(parts.join("/").trim_start_matches(',').to_owned())
}

/// Formats a number of bytes in the syntax of pattern texts, such as `4KiB`.
pub(crate) fn words(bytes: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match UNITS.iter().find(|(unit, _)| bytes > 0 && bytes.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{}{name}", bytes / unit),
        None => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests;
