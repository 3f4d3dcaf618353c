//! Downloads a large object in pieces. Several pieces are copied at the same time. The pieces are
//! written to an incomplete copy, which later runs and other hosts find ([`crate::partial`]).
//!
//! Each piece is read from the object with the entity tag of the listing. The piece is written
//! through its own descriptor and synced. After the sync, the list of finished pieces records the
//! piece. See the hazard in [`crate::large`].

use super::local::Folder;
use super::stored::Stored;
use super::units::{Step, Units};
use crate::failure::Failure;
use crate::outcome::Counters;
use crate::partial::Partial;
use crate::plan::{Version, piece, piece_count};
use crate::publish::put_in_place;
use crate::shares::{Key, Part};
use crate::verification;
use crate::version::Identity;
use sha2::{Digest, Sha256};
use skep_s3::checksum::{Crc, combine};
use skep_s3::store::Object;
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// Returns a value of the type [`Version`] that identifies the version of an object. The list of
/// finished pieces contains it.
pub(super) fn version(object: &Object) -> Version {
    let hash: [u8; 32] = Sha256::digest(format!("{} {}", object.etag, object.key)).into();
    let number = |at: usize| u64::from_le_bytes(*hash[at..].first_chunk().expect("32 bytes"));
    Version {
        device: 0,
        inode: number(0),
        len: object.size,
        modified: (object.modified, 0),
        changed: (number(8) as i64 >> 1, 0),
    }
}

/// A large object whose pieces are being copied.
pub(super) struct Large<'a> {
    pub(super) folder: Arc<Folder<'a>>,
    pub(super) object: Object,
    name: OsString,
    share: Key,
    partial: Partial,
    /// Whether the destination already has an entry with the name of the copy.
    replaces: bool,
    /// The checksums of the pieces that this process has copied. A thread holds the lock only for
    /// one change of the list.
    sums: Mutex<Vec<Option<u32>>>,
    units: Units,
}

impl<'a> Large<'a> {
    /// Opens the incomplete copy. `None` means that other processes of the copy do the rest of the
    /// work.
    pub(super) fn begin(
        folder: &Arc<Folder<'a>>,
        object: &Object,
        name: &str,
        replaces: bool,
    ) -> Result<Option<Arc<Self>>, Failure> {
        let options = &folder.context.options;
        let parent = &folder.destination.as_ref().expect("not in a dry run").file;
        let (name, version) = (OsString::from(name), version(object));
        let partial = match options.part {
            Part::Whole | Part::Prepare => {
                Some(Partial::open(parent, &name, version, options.resume)?)
            }
            Part::Share(_) => Partial::join(parent, &name, version)?,
            Part::Finish => Some(Partial::open(parent, &name, version, true)?),
        };
        let Some(partial) = partial.filter(|_| options.part != Part::Prepare) else {
            return Ok(None);
        };
        let count = piece_count(object.size);
        let large = Self {
            share: folder.share.entry(&name),
            folder: folder.clone(),
            object: object.clone(),
            name,
            partial,
            replaces,
            sums: Mutex::new(vec![None; usize::try_from(count).unwrap_or(usize::MAX)]),
            units: Units::new(count.min(options.threads.max(1) as u64)),
        };
        let left = (0..count).filter(|it| large.has_work(*it));
        let bytes = left.map(|it| len(it, object.size)).sum();
        Counters::add(&folder.context.counters.pending_bytes, bytes);
        Ok(Some(Arc::new(large)))
    }

    /// Returns the number of units of work that copy this object. The caller must call
    /// [`Self::step`] for each of them until the unit has ended, because the unit that ends last
    /// completes the copy.
    pub(super) fn units(&self) -> u64 {
        self.units.running()
    }

    fn has_work(&self, index: u64) -> bool {
        let is_mine = match self.folder.context.options.part {
            Part::Share(share) => share.has_piece(self.share, index),
            _ => true,
        };
        is_mine && !self.partial.is_finished(index)
    }

    fn parent(&self) -> &File {
        &self.folder.destination.as_ref().expect("not in a dry run").file
    }

    /// Makes one step of a unit of work: copies the next piece. Returns `false` if the unit has
    /// ended. The unit that ends last renames the copy to its final name.
    pub(super) fn step(&self) -> Result<bool, Failure> {
        let work = |index| {
            let result = self.copy(index);
            let pending = &self.folder.context.counters.pending_bytes;
            pending.fetch_sub(len(index, self.object.size), Ordering::Relaxed);
            result
        };
        let step =
            self.units.step(piece_count(self.object.size), |index| self.has_work(index), work)?;
        let is_own = !matches!(self.folder.context.options.part, Part::Share(_));
        if step == Step::AllDone && is_own {
            self.complete()?;
        }
        Ok(step == Step::GoesOn)
    }

    fn copy(&self, index: u64) -> Result<(), Failure> {
        let context = &self.folder.context;
        let bucket = self.folder.top.pair.bucket;
        let range = piece(index, self.object.size);
        let file = self.partial.reopen(self.parent())?;
        let (mut at, mut crc) = (range.start, Crc::default());
        let mut take = |bytes: &[u8]| {
            context.pace.take(bytes.len() as u64);
            file.write_all_at(bytes, at)?;
            crc.update(bytes);
            at += bytes.len() as u64;
            Counters::add(&context.counters.bytes, bytes.len() as u64);
            Ok(())
        };
        let (key, etag) = (&self.object.key, Some(self.object.etag.as_str()));
        bucket.get(key, Some(range.clone()), etag, &mut take).map_err(|error| {
            if error.code() == skep_types::ErrorCode::Stale {
                self.partial.discard(self.parent());
            }
            Failure::of_store("download a piece")(error)
        })?;
        if at != range.end {
            return Err(Failure::changed());
        }
        if context.options.sync
            && let Err(error) = file.sync_data()
        {
            // This piece may be lost, and also other pieces that the kernel has not written to the
            // device yet. So discard the incomplete copy.
            self.partial.discard(self.parent());
            return Err(Failure::of("sync")(error));
        }
        let crc = crc.value();
        if context.options.verify {
            let stored = verification::open(self.parent(), &self.partial.name, &file)?;
            let compared = |bytes| Counters::add(&context.counters.verified, bytes);
            if verification::checksum(&stored, range, compared)? != Some(crc) {
                self.partial.discard(self.parent());
                return Err(super::check::differs());
            }
        }
        if context.options.sync {
            self.partial.note(index)?;
        }
        if let Ok(index) = usize::try_from(index) {
            self.sums.lock().expect("no thread panics while it has the lock")[index] = Some(crc);
        }
        Ok(())
    }

    /// Returns the checksum of the whole copy. Reads the pieces that other processes or runs have
    /// copied. `None` means that the copy is too short.
    fn checksum(&self) -> Result<Option<u32>, Failure> {
        let sums = self.sums.lock().expect("no thread panics while it has the lock").clone();
        let mut whole = 0;
        for (index, sum) in (0..).zip(sums) {
            let range = piece(index, self.object.size);
            let size = range.end - range.start;
            let sum = match sum {
                Some(sum) => Some(sum),
                None => verification::checksum(&self.partial.copy, range, |_| ())?,
            };
            let Some(sum) = sum else { return Ok(None) };
            whole = combine(whole, sum, size);
        }
        Ok(Some(whole))
    }

    fn complete(&self) -> Result<(), Failure> {
        let folder = &self.folder;
        let context = &folder.context;
        let destination = folder.destination.as_ref().expect("not in a dry run");
        let head = folder.top.pair.bucket.head(&self.object.key);
        let head = head.map_err(Failure::of_store("read the object"))?;
        let head = head.filter(|it| it.etag == self.object.etag).ok_or_else(|| {
            self.partial.discard(&destination.file);
            Failure::changed()
        })?;
        if head.crc.is_some() && self.checksum()? != head.crc {
            self.partial.discard(&destination.file);
            return Err(super::check::differs());
        }
        let copy = &self.partial.copy;
        let stored = Stored::of(&head.metadata);
        folder.set(copy, &stored, 0o666, Some(head.modified))?;
        if context.options.sync
            && let Err(error) = copy.sync_all()
        {
            self.partial.discard(&destination.file);
            return Err(Failure::of("sync")(error));
        }
        let metadata = copy.metadata().map_err(Failure::of("read the attributes of the copy"))?;
        if metadata.len() != self.object.size {
            return Err(Failure::because("copy", "another program has changed the copy"));
        }
        let identity = Identity::of(&metadata);
        put_in_place(destination, &self.partial.name, identity, &self.name, self.replaces)?;
        self.partial.remove_list(&destination.file)?;
        Counters::add(&context.counters.files, 1);
        Ok(())
    }
}

fn len(index: u64, size: u64) -> u64 {
    let range = piece(index, size);
    range.end - range.start
}
