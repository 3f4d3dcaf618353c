//! The log of a metadata target on disk: segment files of checksummed records.
//!
//! Owns files, their order and their syncs; the bytes are `skep_format::log`'s. A segment is the
//! file `<number of its first record>.log`; it is synced as a whole before the next is begun, so
//! that only the last can end in a gap.
//!
//! # A full disk
//! Room is allocated ahead of the end, so that what ends things can still be logged when others
//! have filled the disk. A segment is begun only where there is room for it; without, the present
//! one goes on. An append that finds no space nevertheless leaves the log as it was.

use crate::atomic::sync_directory;
use skep_env::File;
use skep_format::log::{encode_record, scan};
use skep_types::{Error, ErrorCode, Lsn, Result, TargetId};
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Bytes after which a new segment is begun.
const SEGMENT_BYTES: u64 = 32 << 20;
/// Bytes that are allocated ahead of the end; again when half of them are used up.
const AHEAD_BYTES: u64 = 32 << 20;
/// Bytes after which room is asked for again that the disk didn't have: asking a full file system
/// makes it search everything that it could free.
const ASK_AGAIN_BYTES: u64 = 1 << 20;
/// Name of a segment that isn't begun yet.
const NEXT_SEGMENT: &str = "next";

/// An open log, to be appended to.
#[derive(Debug)]
pub struct Log {
    directory: PathBuf,
    target: TargetId,
    /// First records of the segments, by rising number; the last is appended to.
    segments: Vec<Lsn>,
    file: File,
    offset: u64,
    /// Up to where the file's room is allocated.
    allocated: u64,
    /// Where more of it is asked for.
    ask_at: u64,
    /// Where the next segment is begun.
    segment_ends_at: u64,
}

/// What a log held when it was opened.
#[derive(Debug)]
pub struct Recovered {
    /// The log, ready for the next record.
    pub log: Log,
    /// Its records.
    pub records: Vec<(Lsn, Vec<u8>)>,
    /// Bytes after the last whole record that were cut off.
    pub cut_bytes: u64,
}

fn segment_path(directory: &Path, first: Lsn) -> PathBuf {
    directory.join(format!("{:016x}.log", first.raw()))
}

fn at(path: &Path) -> impl Fn(std::io::Error) -> Error + '_ {
    move |error| Error::from(error).within(path.display())
}

fn open_segment(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    File::open(path, &options).map_err(at(path))
}

/// A file with room for a segment.
fn make_segment(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true);
    let file = File::open(path, &options)?;
    match file.reserve(0..AHEAD_BYTES) {
        // Some file systems can't.
        Err(error) if error.kind() != ErrorKind::Unsupported => Err(error),
        _ => Ok(file),
    }
}

fn is_out_of_space(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

impl Log {
    /// Opens the log in a directory (made if need be) and reads all of its records. A tail that was
    /// never synced and is damaged is cut off. `next` is the number of the first record if there
    /// are no segments. Blocks.
    ///
    /// # Errors
    /// `Corrupt` naming file and place if a synced record is damaged; errors of the file system.
    pub fn open(directory: &Path, target: TargetId, next: Lsn) -> Result<Recovered> {
        std::fs::create_dir_all(directory).map_err(at(directory))?;
        let mut segments = list_segments(directory)?;
        let mut records: Vec<(Lsn, Vec<u8>)> = Vec::new();
        let mut end = (0, 0);
        for (index, first) in segments.iter().enumerate() {
            let path = segment_path(directory, *first);
            let bytes = std::fs::read(&path).map_err(at(&path))?;
            let within = |error: Error| error.within(format_args!("log {}", path.display()));
            if let Some((last, _)) = records.last()
                && first.raw() != last.raw() + 1
            {
                let what = format!("begins after record {last}: a segment before it is missing");
                return Err(within(Error::new(ErrorCode::Corrupt, what)));
            }
            let found = scan(target, *first, &bytes).map_err(within)?;
            if found.end < bytes.len() && index + 1 < segments.len() {
                let what = format!("damaged at byte {}, though a later segment exists", found.end);
                return Err(within(Error::new(ErrorCode::Corrupt, what)));
            }
            end = (found.end as u64, bytes.len() as u64);
            records.extend(found.records.into_iter().map(|it| (it.lsn, it.payload)));
        }
        if segments.is_empty() {
            segments.push(next);
        }
        let path = segment_path(directory, segments[segments.len() - 1]);
        let file = open_segment(&path)?;
        let (offset, length) = end;
        {
            let std_file = file.borrow_std();
            std_file.set_len(offset).map_err(at(&path))?;
            // What is replayed must not be lost by a later power loss: it goes into the store.
            std_file.sync_all().map_err(at(&path))?;
        }
        sync_directory(directory)?;
        let mut log = Self {
            directory: directory.to_owned(),
            target,
            segments,
            file,
            offset,
            allocated: offset,
            ask_at: offset,
            segment_ends_at: SEGMENT_BYTES,
        };
        log.allocate_ahead(0);
        Ok(Recovered { log, records, cut_bytes: length - offset })
    }

    /// Appends a record: it survives the end of the process, and after a sync a power loss.
    ///
    /// # Errors
    /// `TooLarge` if the record is one that nobody could read back, `NoSpace` if the disk is full:
    /// the log is as it was. Those of the file system, with the path; the log must not be appended
    /// to any more then.
    pub fn append(&mut self, lsn: Lsn, synced: Lsn, payload: &[u8]) -> Result<()> {
        let bytes = encode_record(self.target, lsn, synced, payload)?;
        if self.offset >= self.segment_ends_at {
            self.begin_segment(lsn)?;
        }
        self.allocate_ahead(bytes.len() as u64);
        if let Err(error) = self.file.write_now(&bytes, self.offset) {
            return Err(self.take_back(error));
        }
        self.offset += bytes.len() as u64;
        Ok(())
    }

    /// Allocates room ahead of the end if little of it is left. That there is none is no error yet.
    fn allocate_ahead(&mut self, bytes: u64) {
        let end = self.offset + bytes;
        if end < self.ask_at {
            return;
        }
        let wanted = end + AHEAD_BYTES;
        if self.file.reserve(self.allocated.max(self.offset)..wanted).is_ok() {
            self.allocated = wanted;
            self.ask_at = wanted - AHEAD_BYTES / 2;
        } else {
            self.ask_at = end + ASK_AGAIN_BYTES;
        }
    }

    /// Removes what a failed append may have left.
    fn take_back(&self, error: std::io::Error) -> Error {
        let failed = self.failed(error);
        match self.file.borrow_std().set_len(self.offset) {
            Ok(()) => failed,
            Err(_) => Error::new(ErrorCode::DeviceFailed, failed.context()),
        }
    }

    fn failed(&self, error: std::io::Error) -> Error {
        let last = self.segments[self.segments.len() - 1];
        let path = segment_path(&self.directory, last);
        let what = format!("log {}: {error}", path.display());
        match is_out_of_space(&error) {
            true => Error::new(ErrorCode::NoSpace, what),
            false => Error::new(ErrorCode::DeviceFailed, what),
        }
    }

    fn unsynced(&self, error: std::io::Error) -> Error {
        // Whatever the reason, nobody knows what of it is on the device.
        Error::new(ErrorCode::DeviceFailed, self.failed(error).context())
    }

    /// Begins the next segment, if there is room for it.
    fn begin_segment(&mut self, first: Lsn) -> Result<()> {
        let made = self.directory.join(NEXT_SEGMENT);
        let file = match make_segment(&made) {
            Err(error) if is_out_of_space(&error) => {
                self.segment_ends_at = self.offset + ASK_AGAIN_BYTES;
                return match std::fs::remove_file(&made) {
                    Err(error) if error.kind() != ErrorKind::NotFound => Err(at(&made)(error)),
                    _ => Ok(()),
                };
            }
            made_or_not => made_or_not.map_err(at(&made))?,
        };
        // What was allocated beyond its end is for others.
        self.file.borrow_std().set_len(self.offset).map_err(|error| self.unsynced(error))?;
        self.sync()?;
        let path = segment_path(&self.directory, first);
        std::fs::rename(&made, &path).map_err(at(&path))?;
        self.file = file;
        self.segments.push(first);
        self.offset = 0;
        self.allocated = AHEAD_BYTES;
        self.ask_at = AHEAD_BYTES / 2;
        self.segment_ends_at = SEGMENT_BYTES;
        sync_directory(&self.directory)
    }

    /// The file whose sync makes all that was appended durable.
    pub fn file(&self) -> File {
        self.file.clone()
    }

    /// Makes all that was appended durable. Blocks.
    ///
    /// # Errors
    /// `DeviceFailed` naming the file.
    pub fn sync(&self) -> Result<()> {
        self.file.borrow_std().sync_data().map_err(|error| self.unsynced(error))
    }

    /// Removes segments all of whose records are up to `lsn`.
    ///
    /// # Errors
    /// Those of the file system, with the path.
    pub fn trim(&mut self, lsn: Lsn) -> Result<()> {
        while self.segments.len() > 1 && self.segments[1].raw() <= lsn.raw() + 1 {
            let path = segment_path(&self.directory, self.segments[0]);
            std::fs::remove_file(&path).map_err(at(&path))?;
            self.segments.remove(0);
        }
        Ok(())
    }
}

fn list_segments(directory: &Path) -> Result<Vec<Lsn>> {
    let mut segments = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(at(directory))? {
        let name = entry.map_err(at(directory))?.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(".log"));
        if let Some(first) = number.and_then(|hex| u64::from_str_radix(hex, 16).ok()) {
            segments.push(Lsn::new(first));
        }
    }
    segments.sort();
    Ok(segments)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: TargetId = TargetId::new(1);

    fn open(path: &Path) -> Result<Recovered> {
        Log::open(path, TARGET, Lsn::new(1))
    }

    fn fill(path: &Path, count: u64, bytes: usize) {
        let mut log = open(path).unwrap().log;
        for lsn in 1..=count {
            log.append(Lsn::new(lsn), Lsn::new(lsn - 1), &vec![lsn as u8; bytes]).unwrap();
        }
    }

    #[test]
    fn records_are_found_again_and_a_cut_tail_is_dropped() {
        let directory = tempfile::tempdir().unwrap();
        fill(directory.path(), 3, 100);
        let path = segment_path(directory.path(), Lsn::new(1));
        let len = std::fs::metadata(&path).unwrap().len();
        std::fs::File::options().write(true).open(&path).unwrap().set_len(len - 1).unwrap();
        let mut recovered = open(directory.path()).unwrap();
        assert_eq!(recovered.records.len(), 2);
        assert_eq!(recovered.cut_bytes, 131);
        recovered.log.append(Lsn::new(3), Lsn::new(2), b"again").unwrap();
        let records = open(directory.path()).unwrap().records;
        assert_eq!(records[2], (Lsn::new(3), b"again".to_vec()));
    }

    #[test]
    fn a_record_that_could_not_be_read_back_is_not_appended() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = open(directory.path()).unwrap().log;
        let payload = vec![1; skep_format::log::MAX_PAYLOAD_BYTES + 1];
        let error = log.append(Lsn::new(1), Lsn::new(0), &payload).unwrap_err();
        assert_eq!(error.code(), ErrorCode::TooLarge);
        log.append(Lsn::new(1), Lsn::new(0), b"small").unwrap();
        let records = open(directory.path()).unwrap().records;
        assert_eq!(records, [(Lsn::new(1), b"small".to_vec())]);
    }

    #[test]
    fn segments_follow_one_another_and_are_trimmed() {
        let directory = tempfile::tempdir().unwrap();
        fill(directory.path(), 5, SEGMENT_BYTES as usize - 10);
        let mut recovered = open(directory.path()).unwrap();
        assert_eq!((recovered.records.len(), recovered.log.segments.len()), (5, 5));
        recovered.log.trim(Lsn::new(2)).unwrap();
        let recovered = open(directory.path()).unwrap();
        assert_eq!(recovered.records.first().map(|it| it.0), Some(Lsn::new(3)));
    }

    #[test]
    fn damage_in_an_earlier_segment_names_file_and_place() {
        let directory = tempfile::tempdir().unwrap();
        fill(directory.path(), 2, SEGMENT_BYTES as usize);
        let path = segment_path(directory.path(), Lsn::new(1));
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[1000] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let error = open(directory.path()).unwrap_err();
        assert_eq!(error.code(), ErrorCode::Corrupt);
        assert!(error.context().contains("0000000000000001.log"), "{error}");
    }

    /// A small file system, unmounted when dropped. Needs the right to mount.
    struct Disk(tempfile::TempDir);

    fn succeeds(program: &str, arguments: &[&str]) -> bool {
        let ended = std::process::Command::new(program).args(arguments).output();
        ended.is_ok_and(|output| output.status.success())
    }

    impl Drop for Disk {
        fn drop(&mut self) {
            succeeds("umount", &["-l", self.0.path().to_str().unwrap()]);
        }
    }

    #[test]
    fn a_full_disk_leaves_room_to_log_and_takes_nothing() {
        let disk = Disk(tempfile::tempdir().unwrap());
        let (root, payload) = (disk.0.path(), vec![7; 1 << 20]);
        if !succeeds("mount", &["-t", "tmpfs", "-o", "size=90m", "log", root.to_str().unwrap()]) {
            eprintln!("skipped: needs root");
            return;
        }
        let directory = root.join("log");
        let mut log = open(&directory).unwrap().log;
        let mut written = 0;
        let mut append = |log: &mut Log| {
            log.append(Lsn::new(written + 1), Lsn::new(written), &payload)?;
            written += 1;
            Ok::<u64, Error>(written)
        };
        while append(&mut log).unwrap() < 20 {}
        let mut stranger = std::fs::File::create(root.join("stranger")).unwrap();
        while std::io::Write::write_all(&mut stranger, &[1; 4096]).is_ok() {}
        let error = loop {
            if let Err(error) = append(&mut log) {
                break error;
            }
        };
        assert_eq!(error.code(), ErrorCode::NoSpace, "{error}");
        assert!(error.context().contains("0000000000000001.log"), "{error}");
        let recovered = open(&directory).unwrap();
        let count = recovered.records.len() as u64;
        assert!(count >= 20 + AHEAD_BYTES / 2 / (1 << 20), "{count} fitted");
        assert_eq!((recovered.cut_bytes, recovered.log.segments.len()), (0, 1));
        drop(stranger);
        std::fs::remove_file(root.join("stranger")).unwrap();
        assert_eq!(append(&mut log).unwrap(), count + 1, "it was as if nothing had been tried");
        append(&mut log).unwrap();
        assert_eq!(log.segments.len(), 2, "the next segment is begun when it has space");
        assert_eq!(open(&directory).unwrap().records.len() as u64, count + 2);
    }
}
