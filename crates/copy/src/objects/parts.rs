//! Uploads a large file in parts. Several parts are sent at the same time.
//!
//! A thread begins the upload, and then stores a note about it (`note`). After this, threads send
//! the parts. The thread that ends last compares the version of the file and completes the upload.
//! In a copy by several hosts, one process begins the upload, the process of each share sends its
//! parts, and the last process completes the upload.
//!
//! # Hazard: parts of another version
//! A run that continues an upload uses the parts of an earlier run without reading their bytes
//! again. To make this safe, the note contains the version of the file, and the note is stored
//! before the first part is sent.

use super::note::{self, Note, Wanted};
use super::source::Folder;
use super::units::{Step, Units};
use super::{MOST_PARTS, check, stored};
use crate::context::Context;
use crate::failure::Failure;
use crate::outcome::Counters;
use crate::plan::Version;
use crate::shares::{Key, Part};
use crate::version::{expect_unchanged, present_version};
use skep_s3::checksum::combine;
use skep_s3::store::{Content, StoredPart};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// Returns the length of the parts of a file. The length is `wanted`, unless the file would have
/// too many parts. In this case, the length is the smallest sufficient number of whole MiB.
pub(super) fn part_len(len: u64, wanted: u64) -> u64 {
    let least = len.div_ceil(MOST_PARTS).next_multiple_of(1 << 20);
    wanted.max(least)
}

/// A range of a file, which is sent as the body of a request.
pub(super) struct Bytes<'a> {
    pub(super) context: &'a Context,
    pub(super) file: &'a File,
    pub(super) version: Version,
    pub(super) range: Range<u64>,
}

impl Content for Bytes<'_> {
    fn size(&self) -> u64 {
        self.range.end - self.range.start
    }

    fn reader(&self, is_sent: bool) -> io::Result<Box<dyn Read + '_>> {
        Ok(Box::new(Reader { bytes: self, at: self.range.start, is_sent }))
    }
}

struct Reader<'a> {
    bytes: &'a Bytes<'a>,
    at: u64,
    is_sent: bool,
}

impl Read for Reader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.bytes;
        let left = bytes.range.end - self.at;
        let most = usize::try_from(left).unwrap_or(buffer.len()).min(buffer.len());
        if most == 0 {
            return Ok(0);
        }
        let count = bytes.file.read_at(&mut buffer[..most], self.at)?;
        let changed = || io::Error::other("a program changed the file during the copy");
        if count == 0 {
            return Err(changed());
        }
        self.at += count as u64;
        if self.is_sent {
            bytes.context.pace.take(count as u64);
            // Fails before the last bytes are sent if the file has changed. The object store
            // discards an incomplete request.
            let now = |it: Failure| io::Error::other(it.error.to_string());
            if self.at == bytes.range.end
                && present_version(bytes.file).map_err(now)? != bytes.version
            {
                return Err(changed());
            }
        }
        Ok(count)
    }
}

/// A file whose parts are being uploaded.
pub(super) struct Large<'a> {
    pub(super) folder: Arc<Folder<'a>>,
    pub(super) key: String,
    /// The name of the file, for messages.
    pub(super) shown: std::path::PathBuf,
    share: Key,
    source: File,
    version: Version,
    metadata: BTreeMap<String, String>,
    part: u64,
    note_key: String,
    note: Note,
    /// The parts that the object store has, by their numbers. A thread holds the lock only for one
    /// change of the map.
    stored: Mutex<BTreeMap<u32, StoredPart>>,
    units: Units,
}

/// Information about a file, which the thread that has found the file passes to the upload.
pub(super) struct Found<'a> {
    pub(super) folder: Arc<Folder<'a>>,
    pub(super) key: String,
    pub(super) shown: std::path::PathBuf,
    pub(super) share: Key,
    pub(super) source: File,
    pub(super) version: Version,
    pub(super) metadata: BTreeMap<String, String>,
}

impl<'a> Large<'a> {
    /// Begins an upload, or finds the upload that an earlier run has begun. `None` means that other
    /// processes of the copy do the rest of the work.
    pub(super) fn begin(found: Found<'a>) -> Result<Option<Arc<Self>>, Failure> {
        let top = &found.folder.top;
        let context = &found.folder.context;
        let pair = &top.pair;
        let part = part_len(found.version.len, top.part);
        let wanted = Wanted {
            key: &found.key,
            version: found.version,
            metadata: &found.metadata,
            part,
            copy: &top.copy,
        };
        let note_key = note::key(&top.notes, &found.key);
        let failed = || Failure::of_store("begin the upload");
        let old = note::read(pair, &note_key).map_err(failed())?;
        let options = &context.options;
        let continues = options.resume || !matches!(options.part, Part::Whole | Part::Prepare);
        let fitting = old.as_ref().filter(|it| continues && it.fits(&wanted));
        let continued = match fitting {
            Some(note) => {
                let parts = pair.bucket.parts(&found.key, &note.upload).map_err(failed())?;
                parts.map(|parts| (note.clone(), parts))
            }
            None => None,
        };
        let (note, parts) = match (continued, options.part) {
            (Some(found), _) => found,
            // The file may have changed since the process of `Part::Prepare` began its upload. The
            // process of `Part::Finish` then uploads it.
            (None, Part::Share(_)) => return Ok(None),
            (None, _) => {
                note::discard(pair, &note_key, old.as_ref()).map_err(failed())?;
                let upload = pair.bucket.begin(&found.key, &found.metadata).map_err(failed())?;
                let note = Note::new(&wanted, upload);
                note::write(pair, &note_key, &note).map_err(failed())?;
                (note, Vec::new())
            }
        };
        if options.part == Part::Prepare {
            return Ok(None);
        }
        let Found { folder, key, shown, share, source, version, metadata } = found;
        let large = Self {
            folder,
            key,
            shown,
            share,
            source,
            version,
            metadata,
            part,
            note_key,
            note,
            stored: Mutex::default(),
            units: Units::default(),
        };
        let is_whole = |it: &StoredPart| {
            large.range_of(it.number).is_some_and(|range| range.end - range.start == it.size)
        };
        let usable = parts.into_iter().filter(is_whole).map(|it| (it.number, it)).collect();
        let large = Self { stored: Mutex::new(usable), ..large };
        let left = (0..large.count()).filter(|it| large.has_work(*it)).count() as u64;
        let counters = &large.folder.context.counters;
        Counters::add(&counters.pending_bytes, left * part);
        Ok(Some(Arc::new(large)))
    }

    /// Returns the number of parts of the upload.
    fn count(&self) -> u64 {
        self.version.len.div_ceil(self.part)
    }

    /// Returns the byte range of the part with this number. `None` means that the file has no such
    /// part.
    fn range_of(&self, number: u32) -> Option<Range<u64>> {
        let start = u64::from(number.checked_sub(1)?) * self.part;
        (start < self.version.len).then(|| start..self.version.len.min(start + self.part))
    }

    /// Whether this process has to send the part with this index, which is counted from 0.
    fn has_work(&self, index: u64) -> bool {
        let is_mine = match self.folder.context.options.part {
            Part::Share(share) => share.has_piece(self.share, index),
            _ => true,
        };
        let number = u32::try_from(index + 1).unwrap_or(u32::MAX);
        is_mine && !self.lock().contains_key(&number)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u32, StoredPart>> {
        self.stored.lock().expect("no thread panics while it has the lock")
    }

    /// Returns the number of units of work, one for each thread that may send parts of this file.
    /// The caller must call [`Self::step`] for each of them until the unit has ended, because the
    /// unit that ends last completes the upload.
    pub(super) fn units(&self) -> u64 {
        let units = self.count().clamp(1, self.folder.context.options.threads.max(1) as u64);
        self.units.set(units);
        units
    }

    /// Makes one step of a unit of work: sends the next part. Returns `false` if the unit has
    /// ended. The unit that ends last completes the upload.
    pub(super) fn step(&self) -> Result<bool, Failure> {
        let work = |index| {
            let result = self.send(index);
            let pending = &self.folder.context.counters.pending_bytes;
            pending.fetch_sub(self.part, Ordering::Relaxed);
            result
        };
        let step = self.units.step(self.count(), |index| self.has_work(index), work)?;
        let is_own = !matches!(self.folder.context.options.part, Part::Share(_));
        if step == Step::AllDone && is_own {
            self.complete()?;
        }
        Ok(step == Step::GoesOn)
    }

    fn send(&self, index: u64) -> Result<(), Failure> {
        let pair = &self.folder.top.pair;
        let context = &self.folder.context;
        let number = u32::try_from(index + 1).expect("at most 10,000 parts");
        let range = self.range_of(number).expect("a part of the file");
        let bytes = Bytes { context, file: &self.source, version: self.version, range };
        let sent = pair.bucket.put_part(&self.key, &self.note.upload, number, &bytes);
        let part = sent.map_err(Failure::of_store("upload a part"))?;
        Counters::add(&context.counters.bytes, part.size);
        self.lock().insert(number, part);
        Ok(())
    }

    /// Completes the upload, which creates the object. If the file has changed, removes the upload
    /// instead.
    fn complete(&self) -> Result<(), Failure> {
        let pair = &self.folder.top.pair;
        let context = &self.folder.context;
        let parts: Vec<_> = self.lock().values().cloned().collect();
        if parts.len() as u64 != self.count() {
            return Err(Failure::because(
                "upload",
                "the upload lacks parts; continue with --resume",
            ));
        }
        if let Err(failure) = expect_unchanged(&self.source, self.version) {
            // The caller reports that the file has changed. If this removal fails, a later run
            // removes the upload.
            let _ = note::discard(pair, &self.note_key, Some(&self.note));
            return Err(failure);
        }
        let crc = parts.iter().try_fold(0, |crc, it| Some(combine(crc, it.crc?, it.size)));
        match pair.bucket.complete(&self.key, &self.note.upload, &parts, crc) {
            // The upload no longer exists. Its completion may have succeeded although the reply was
            // lost, so the object is checked below.
            Err(error) if error.code() == skep_types::ErrorCode::NotFound => {}
            other => other.map_err(Failure::of_store("complete the upload"))?,
        }
        self.expect_stored(crc)?;
        pair.bucket
            .remove(&self.note_key)
            .map_err(Failure::of_store("remove the record of the upload"))?;
        Counters::add(&context.counters.files, 1);
        match (context.options.verify, crc) {
            (true, Some(crc)) => check::expect(context, pair, &self.key, (self.version.len, crc)),
            (true, None) => Err(Failure::because(
                "verify",
                "the object store returns no checksums of the parts that an earlier run uploaded; \
                 copy the file without --resume",
            )),
            (false, _) => Ok(()),
        }
    }

    /// Fails if the object in the store is not the object of this upload.
    fn expect_stored(&self, crc: Option<u32>) -> Result<(), Failure> {
        let head = self.folder.top.pair.bucket.head(&self.key);
        let head = head.map_err(Failure::of_store("read the object"))?.unwrap_or_default();
        let is_equal = head.size == self.version.len
            && stored::has(&head.metadata, &self.metadata)
            && head.crc.is_none_or(|it| crc.is_none_or(|crc| crc == it));
        match is_equal {
            true => Ok(()),
            false => Err(Failure::because(
                "complete the upload",
                "the object store has another object under this key now; copy the file again",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_the_largest_object_stay_below_the_part_limit() {
        let wanted = 64 << 20;
        assert_eq!(part_len(wanted, wanted), wanted);
        for len in [MOST_PARTS * wanted + 1, super::super::MOST_OBJECT] {
            let part = part_len(len, wanted);
            assert!(part > wanted && len.div_ceil(part) <= MOST_PARTS, "{part}");
            assert!(part <= super::super::MOST_PART);
        }
    }
}
