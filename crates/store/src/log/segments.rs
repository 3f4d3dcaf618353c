//! Reads the segments of a log: their names, their order, and the records in them.
//!
//! The functions here change no file, so that the check of a stopped cluster can use them too. Does
//! not own appends or the truncation of an incomplete last record ([`super::Log`]).

use skep_format::log::{LogOwner, RECORD_HEADER_BYTES, Record, scan};
use skep_types::{Epoch, Error, ErrorCode, Lsn, Result};
use std::path::{Path, PathBuf};

/// All segments of a log, and the records in them.
#[derive(Debug, Default)]
pub struct Segments {
    /// LSNs of the segments' first records, in ascending order.
    pub first: Vec<Lsn>,
    /// The records of the segments that were read, in ascending order of their LSNs.
    pub records: Vec<Record>,
    /// Group epoch of the last record, or zero if there is no record.
    pub epoch: Epoch,
    /// End of the last complete record, in bytes from the start of the last segment.
    pub end: u64,
    /// Length of the last segment in bytes, without the zeros that the log writes ahead. The bytes
    /// between `end` and `length` belong to records that were not written completely.
    pub length: u64,
    /// Bytes of the records after the last record that any record names as synced. These bytes are
    /// in the last segment, and end at `end`. The device may lack these bytes.
    pub(super) tail: Vec<u8>,
}

impl Segments {
    /// Reads from a directory the segments with records from `needed` on, and one segment before
    /// them. Does not read earlier segments, because a log may keep many of them for absent members
    /// of its group. A primary keeps the records of one segment in memory for such members. A
    /// missing directory counts as a log without segments. Blocks.
    ///
    /// # Errors
    /// - `Corrupt`, which names file and offset, if a synced record is damaged or a segment is
    ///   missing.
    /// - `Unsupported` if the log has records of another version.
    /// - Errors of the file system.
    pub fn read(directory: &Path, owner: LogOwner, needed: Lsn) -> Result<Self> {
        let mut read = Self { first: list(directory)?, ..Self::default() };
        let mut synced = Lsn::default();
        let old = read.first.iter().skip(1).take_while(|next| **next <= needed).count();
        let skipped = old.saturating_sub(1);
        for (index, first) in read.first.iter().enumerate().skip(skipped) {
            let path = path_of(directory, *first);
            let bytes = std::fs::read(&path).map_err(at(&path))?;
            let within =
                |error: Error| error.within(format_args!("cannot read log {}", path.display()));
            if let Some(last) = read.records.last().map(|it| it.lsn)
                && first.raw() != last.raw() + 1
            {
                let context = format!(
                    "the file does not continue record {last}: the segment before it is missing"
                );
                return Err(within(Error::new(ErrorCode::Corrupt, context)));
            }
            let found = scan(owner, *first, &bytes).map_err(within)?;
            if found.end < bytes.len() && index + 1 < read.first.len() {
                let problem = format!(
                    "the file is damaged at byte {}, although a later segment exists",
                    found.end
                );
                return Err(within(Error::new(ErrorCode::Corrupt, problem)));
            }
            let zeros = bytes[found.end..].iter().rev().take_while(|it| **it == 0).count();
            (read.end, read.length) = (found.end as u64, (bytes.len() - zeros) as u64);
            synced = found.records.iter().map(|it| it.synced).fold(synced, Lsn::max);
            read.tail = bytes[offset_after(&found.records, synced)..found.end].to_vec();
            match found.records.first().map(|it| it.epoch) {
                Some(first_epoch) if first_epoch < read.epoch => {
                    let problem = format!(
                        "the file begins with records of group epoch {first_epoch}, after records \
                         of epoch {}",
                        read.epoch
                    );
                    return Err(within(Error::new(ErrorCode::Corrupt, problem)));
                }
                _ => read.epoch = found.records.last().map_or(read.epoch, |it| it.epoch),
            }
            read.records.extend(found.records);
        }
        Ok(read)
    }
}

/// Returns the path of the segment that begins with the record `first`.
pub(super) fn path_of(directory: &Path, first: Lsn) -> PathBuf {
    directory.join(format!("{:016x}.log", first.raw()))
}

fn at(path: &Path) -> impl Fn(std::io::Error) -> Error + '_ {
    move |error| Error::from(error).within(path.display())
}

/// Returns the offset in a segment at which the record `lsn` ends. `records` are all records of the
/// segment.
pub(super) fn offset_after(records: &[Record], lsn: Lsn) -> usize {
    let older = records.iter().take_while(|it| it.lsn <= lsn);
    older.map(|it| RECORD_HEADER_BYTES + it.payload.len()).sum()
}

fn list(directory: &Path) -> Result<Vec<Lsn>> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        found => found.map_err(at(directory))?,
    };
    let mut segments = Vec::new();
    for entry in entries {
        let name = entry.map_err(at(directory))?.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(".log"));
        if let Some(first) = number.and_then(|hex| u64::from_str_radix(hex, 16).ok()) {
            segments.push(Lsn::new(first));
        }
    }
    segments.sort();
    Ok(segments)
}
