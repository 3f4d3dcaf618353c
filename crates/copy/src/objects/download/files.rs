//! Copies one object that is not large to a file or a symbolic link.

use super::Run;
use crate::failure::Failure;
use crate::objects::check;
use crate::objects::local::Folder;
use crate::objects::stored::{Kind, Stored};
use crate::outcome::Counters;
use crate::publish::Temporary;
use crate::shares::Part;
use crate::tree::Seen;
use crate::verification;
use crate::version::Identity;
use rustix::fs::symlinkat;
use skep_s3::checksum::Crc;
use skep_s3::store::{Head, Object};
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};

/// Maximum length of an object that is read into memory before it is written. Such an object may be
/// a symbolic link.
const SMALL: u64 = 256 << 10;
/// Maximum length of the target of a symbolic link in bytes.
const MOST_TARGET: usize = 4095;

impl Run<'_> {
    /// Whether the existing file is a complete copy of the object, made by an earlier run. Also
    /// sets its attributes if they differ.
    pub(super) fn is_complete(
        &self,
        folder: &Folder<'_>,
        object: &Object,
        (existing, name): (&Seen, &str),
    ) -> std::result::Result<bool, Failure> {
        let options = &self.context.options;
        let destination =
            folder.destination.as_ref().expect("the folder of an entry has a destination");
        let found = &existing.metadata;
        if !found.is_file() || found.len() != object.size {
            return Ok(false);
        }
        let pair = &folder.top.pair;
        let head = pair.bucket.head(&object.key).map_err(Failure::of_store("read the object"))?;
        let Some(head) = head else { return Ok(false) };
        let stored = Stored::of(&head.metadata);
        let modified = stored.modified.unwrap_or((head.modified, 0));
        if (found.mtime(), found.mtime_nsec()) != modified
            || !matches!(stored.kind(), None | Some(Kind::File))
        {
            return Ok(false);
        }
        let is_own = found.nlink() == 1;
        let is_equal = folder.has_attributes(found, &stored);
        if !is_equal && !is_own {
            return Ok(false);
        }
        let verify = options.verify && !matches!(options.part, Part::Finish | Part::Prepare);
        if options.is_dry_run || (is_equal && !verify && !options.sync) {
            return Ok(true);
        }
        let copy = existing.open_file(&destination.file, OsStr::new(name))?;
        if verify {
            let opened = verification::open(&destination.file, OsStr::new(name), &copy)?;
            let ours = verification::checksum(&opened, 0..object.size, |_| ())?;
            if ours != Some(check::checksum(&self.context, pair, &object.key, &head)?) {
                return Err(check::differs());
            }
        }
        if !is_equal {
            folder.set(&copy, &stored, 0o666, Some(head.modified))?;
        }
        if options.sync {
            copy.sync_all().map_err(Failure::of("sync"))?;
        }
        Ok(true)
    }

    /// Copies an object that is not large.
    pub(super) fn small(
        &self,
        folder: &Folder<'_>,
        object: &Object,
        (name, replaces): (&str, bool),
    ) -> std::result::Result<(), Failure> {
        let context = &self.context;
        let destination = folder.destination.as_ref().expect("not in a dry run");
        let temporary = Temporary::new(context, destination, OsStr::new(name));
        let is_small = object.size <= SMALL;
        let file = if is_small { None } else { Some(temporary.create()?) };
        let (mut bytes, mut at, mut crc) = (Vec::new(), 0, Crc::default());
        let mut take = |part: &[u8]| {
            context.pace.take(part.len() as u64);
            match &file {
                Some(file) => file.write_all_at(part, at)?,
                None => bytes.extend_from_slice(part),
            }
            at += part.len() as u64;
            crc.update(part);
            Ok(())
        };
        let bucket = folder.top.pair.bucket;
        let head = bucket.get(&object.key, None, Some(&object.etag), &mut take);
        let head = head.map_err(Failure::of_store("download"))?;
        if at != object.size || head.size != at {
            return Err(Failure::changed());
        }
        let stored = Stored::of(&head.metadata);
        match (stored.kind(), file) {
            (Some(Kind::Link), None) => {
                return self.link(folder, temporary, (&bytes, name, replaces), &stored);
            }
            (None | Some(Kind::File), Some(file)) => {
                self.publish(folder, (temporary, &file), (&head, crc.value()), (name, replaces))?;
            }
            (None | Some(Kind::File), None) => {
                let file = temporary.create()?;
                file.write_all_at(&bytes, 0).map_err(Failure::of("write"))?;
                self.publish(folder, (temporary, &file), (&head, crc.value()), (name, replaces))?;
            }
            _ => {
                let reason = "the metadata of this object describes an entry that cannot be \
                              created: a FIFO, a device, a link whose target is too long, or a \
                              directory whose key does not end with /";
                return Err(Failure::because("copy", reason));
            }
        }
        Counters::add(&context.counters.bytes, object.size);
        Counters::add(&context.counters.files, 1);
        Ok(())
    }

    /// Sets the attributes of a complete file, and renames the file to its final name.
    fn publish(
        &self,
        folder: &Folder<'_>,
        (temporary, file): (Temporary<'_>, &File),
        (head, crc): (&Head, u32),
        (name, replaces): (&str, bool),
    ) -> std::result::Result<(), Failure> {
        let options = &self.context.options;
        let destination = folder.destination.as_ref().expect("not in a dry run");
        folder.set(file, &Stored::of(&head.metadata), 0o666, Some(head.modified))?;
        if options.sync {
            file.sync_all().map_err(Failure::of("sync"))?;
        }
        if options.verify {
            let stored = verification::open(&destination.file, &temporary.name, file)?;
            let compared = |bytes| Counters::add(&self.context.counters.verified, bytes);
            if verification::checksum(&stored, 0..head.size, compared)? != Some(crc) {
                return Err(check::differs());
            }
        }
        let metadata = file.metadata().map_err(Failure::of("read the attributes of the copy"))?;
        if metadata.len() != head.size {
            return Err(Failure::because("copy", "another program has changed the copy"));
        }
        temporary.put_in_place(Identity::of(&metadata), OsStr::new(name), replaces)
    }

    fn link(
        &self,
        folder: &Folder<'_>,
        temporary: Temporary<'_>,
        (target, name, replaces): (&[u8], &str, bool),
        stored: &Stored,
    ) -> std::result::Result<(), Failure> {
        let destination = folder.destination.as_ref().expect("not in a dry run");
        let target = CString::new(target)
            .ok()
            .filter(|it| !it.is_empty() && it.as_bytes().len() <= MOST_TARGET)
            .ok_or_else(|| {
                Failure::because("copy", "the body of this object is not the target of a link")
            })?;
        symlinkat(&target, &destination.file, &temporary.name)
            .map_err(Failure::of("create the symbolic link"))?;
        let link = temporary.open()?;
        if !link.metadata.is_symlink() || link.metadata.nlink() != 1 {
            let reason = "another program has replaced the copy; copy the object again with \
                          --resume";
            return Err(Failure::because("create the copy", reason));
        }
        folder.set_link(&link, stored)?;
        temporary.put_in_place(link.identity(), OsStr::new(name), replaces)?;
        Counters::add(&self.context.counters.others, 1);
        Ok(())
    }
}
