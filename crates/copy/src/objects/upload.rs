//! Copies trees of files into a bucket.
//!
//! Each file is opened in the same way as in copies between file systems. All decisions about an
//! entry are based on one descriptor. The version of the file is compared after its bytes were
//! sent. A directory becomes an empty object, so that empty directories and the modes of
//! directories are preserved.

use super::note;
use super::parts::{Bytes, Found, Large};
use super::pool::Pool;
use super::source::{Folder, Top};
use super::{MOST_OBJECT, Pair, check, names, stored};
use crate::context::{Context, Options};
use crate::failure::Failure;
use crate::outcome::{Counters, Outcome, Progress};
use crate::shares::{Key, Part};
use crate::special;
use crate::tree::{self, Seen, count_found};
use crate::version::{expect_unchanged, version_of};
use rustix::fs::{Dir, FileType};
use skep_s3::checksum::Crc;
use skep_types::{Error, ErrorCode, Result};
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Maximum number of entries of a directory that a thread lists at a time.
const BATCH: usize = 1024;

/// A unit of work for a thread.
enum Work<'a> {
    Entry { folder: Arc<Folder<'a>>, name: OsString, key: Option<String> },
    List { folder: Arc<Folder<'a>>, stream: Dir },
    Part { large: Arc<Large<'a>> },
}

/// A running copy to a bucket.
struct Run<'a> {
    context: Arc<Context>,
    pool: Pool<Work<'a>>,
}

/// Uploads the file or tree at the path of each pair to the object key of the pair. If
/// `options.part` is not `Whole`, does only this part of the copy. Uploads large files in parts of
/// `part` bytes. Calls `report` once per second, and at the end.
///
/// # Errors
/// Returns the error of a source or bucket that cannot be opened. After such an error, nothing was
/// copied. Problems of single entries are in the outcome.
pub fn upload(
    pairs: &[Pair<'_>],
    options: &Options,
    part: u64,
    report: &dyn Fn(&Progress),
) -> Result<Outcome> {
    let begin = Instant::now();
    crate::run::raise_descriptor_limit();
    let run = Run { context: Arc::new(Context::new(options)), pool: Pool::new() };
    let mut tops = Vec::new();
    for (number, pair) in pairs.iter().enumerate() {
        tops.push(run.top(number, pair, part)?);
    }
    let mut leftovers = Vec::new();
    for (_, folder, _) in &tops {
        leftovers.push(run.leftovers(&folder.top)?);
    }
    let all: Vec<_> = tops.iter().map(|(_, folder, _)| folder.top.clone()).collect();
    let produce = || {
        for (name, folder, key) in tops {
            run.pool.add(Work::Entry { folder, name, key: Some(key) });
        }
    };
    run.pool.run(&run.context, report, produce, |work| run.perform(work));
    let outcome = run.context.counters.outcome(options.is_dry_run, begin.elapsed());
    let is_last = matches!(options.part, Part::Whole | Part::Finish) && !options.is_dry_run;
    if is_last && outcome.problem_count == 0 {
        for (top, notes) in all.iter().zip(leftovers) {
            run.remove(top, &notes);
        }
        return Ok(run.context.counters.outcome(false, begin.elapsed()));
    }
    Ok(outcome)
}

impl<'a> Run<'a> {
    /// Opens a source. Returns its name, the directory that contains it, and the key of its object.
    fn top(
        &self,
        number: usize,
        pair: &Pair<'a>,
        part: u64,
    ) -> Result<(OsString, Arc<Folder<'a>>, String)> {
        let named = |failure: Failure| {
            Error::from(failure.error).within(format!(
                "cannot {} {}",
                failure.what,
                pair.path.display()
            ))
        };
        let path = crate::run::behind_link(&crate::plan::Pair {
            source: pair.path.clone(),
            destination: PathBuf::new(),
        })?
        .source;
        let (parent, name) = crate::run::parent_and_name(&path);
        let file = tree::open_source_parent(&parent).map_err(named)?;
        let seen = Seen::open(&file, name).map_err(named)?.ok_or_else(|| {
            let what = format!("cannot copy {}: it does not exist", pair.path.display());
            Error::new(ErrorCode::NotFound, what)
        })?;
        let is_directory = seen.kind() == FileType::Directory;
        let key = pair.key.trim_end_matches('/');
        if key.is_empty() && !is_directory {
            let what = format!(
                "cannot copy {}: a file needs a key; name the key, as in {}/name",
                pair.path.display(),
                pair.shown
            );
            return Err(Error::new(ErrorCode::InvalidArgument, what));
        }
        let prefix = match (is_directory, key.rsplit_once('/')) {
            (true, _) if key.is_empty() => String::new(),
            (true, _) => format!("{key}/"),
            (false, Some((above, _))) => format!("{above}/"),
            (false, None) => String::new(),
        };
        count_found(&self.context.counters, seen.kind());
        let leftovers = match is_directory {
            true => note::all(&prefix),
            false => note::key(&prefix, key),
        };
        let device = seen.metadata.dev();
        let directory = if is_directory { seen.metadata.clone() } else { file.metadata()? };
        let copy = note::identity(&std::path::absolute(&path)?, &directory);
        let top = Top { pair: pair.clone(), notes: prefix, leftovers, copy, part, device };
        let folder = Folder {
            top: Arc::new(top),
            context: self.context.clone(),
            file,
            prefix: String::new(),
            shown: parent,
            share: Key::of_pair(number),
            before: None,
        };
        Ok((name.to_owned(), Arc::new(folder), key.to_owned()))
    }

    /// Returns the keys of the notes that earlier runs have left. This first request to the bucket
    /// also shows whether the bucket can be used.
    fn leftovers(&self, top: &Top<'_>) -> Result<Vec<String>> {
        let mut keys = Vec::new();
        let mut next = None;
        loop {
            let page = top.pair.bucket.list(&top.leftovers, next.as_deref());
            let page =
                page.map_err(|error| error.within(format!("cannot use {}", top.pair.shown)))?;
            keys.extend(page.objects.into_iter().map(|it| it.key));
            next = page.next;
            if next.is_none() {
                return Ok(keys);
            }
        }
    }

    /// Removes the uploads of earlier runs of this copy that this run could not use, because their
    /// files have changed or no longer exist.
    fn remove(&self, top: &Top<'_>, notes: &[String]) {
        for key in notes {
            let removed = note::read(&top.pair, key).and_then(|note| match note {
                Some(note) if !note.is_of(&top.copy) => Ok(()),
                note => note::discard(&top.pair, key, note.as_ref()),
            });
            if let Err(error) = removed {
                let failure = Failure::of_store("remove an upload of an earlier run")(error);
                self.context.problem(&top.pair.shown(key), &failure);
            }
        }
    }

    /// Does one unit of work, and returns the units that follow from it.
    fn perform(&self, work: Work<'a>) -> Vec<Work<'a>> {
        let (shown, result) = match work {
            Work::Entry { folder, name, key } => {
                (folder.shown.join(&name), self.entry(&folder, name, key))
            }
            Work::List { folder, stream } => (folder.shown.clone(), self.list(folder, stream)),
            Work::Part { large } => {
                let result = large.step();
                let more = |goes_on| {
                    if goes_on { vec![Work::Part { large: large.clone() }] } else { vec![] }
                };
                (large.shown.clone(), result.map(more))
            }
        };
        result.unwrap_or_else(|failure| {
            self.context.problem(&shown, &failure);
            Vec::new()
        })
    }

    fn list(
        &self,
        folder: Arc<Folder<'a>>,
        mut stream: Dir,
    ) -> std::result::Result<Vec<Work<'a>>, Failure> {
        let counters = &self.context.counters;
        let entries = tree::list(&mut stream, BATCH);
        let is_end = entries.as_ref().map_or(true, |it| it.len() < BATCH);
        if is_end {
            counters.unread.fetch_sub(1, Ordering::Relaxed);
        }
        let work = |(name, kind): (OsString, FileType)| {
            count_found(counters, kind);
            Work::Entry { folder: folder.clone(), name, key: None }
        };
        let mut all: Vec<_> = entries?.into_iter().map(work).collect();
        if !is_end {
            all.insert(0, Work::List { folder, stream });
        }
        Ok(all)
    }

    /// Copies an entry of a directory. `key` is `None` for every entry except the top of a source.
    fn entry(
        &self,
        folder: &Arc<Folder<'a>>,
        name: OsString,
        key: Option<String>,
    ) -> std::result::Result<Vec<Work<'a>>, Failure> {
        let is_top = key.is_some();
        let key = match key {
            Some(key) => Ok(key),
            None => names::key(&folder.prefix, &name),
        };
        let Some(seen) = Seen::open(&folder.file, &name)? else {
            return Err(Failure::because("copy", "a program removed this entry during the copy"));
        };
        let key = key.map_err(|reason| Failure::because("copy", reason))?;
        match seen.kind() {
            FileType::Directory => self.directory(folder, &name, (key, is_top)),
            FileType::RegularFile => self.file(folder, &name, key, &seen),
            FileType::Symlink => self.link(folder, &name, &key, &seen),
            _ => {
                let reason = "an object store cannot hold FIFOs, sockets and devices; leave this \
                              entry out of the copy, or copy to a file system";
                Err(Failure::because("copy", reason))
            }
        }
    }

    fn directory(
        &self,
        folder: &Arc<Folder<'a>>,
        name: &OsStr,
        (key, is_top): (String, bool),
    ) -> std::result::Result<Vec<Work<'a>>, Failure> {
        let options = &self.context.options;
        let file = tree::open_directory(&folder.file, name);
        let file = file.map_err(Failure::of("open the directory"))?;
        let metadata = file.metadata().map_err(Failure::of("read the attributes"))?;
        let counters = &self.context.counters;
        Counters::add(&counters.directories, 1);
        let prefix = if key.is_empty() { String::new() } else { format!("{key}/") };
        if !prefix.is_empty() && !matches!(options.part, Part::Share(_)) {
            self.marker(folder, &prefix, &metadata)?;
        }
        if options.one_file_system && !is_top && metadata.dev() != folder.top.device {
            counters.unread.fetch_sub(1, Ordering::Relaxed);
            return Ok(Vec::new());
        }
        let stream = Dir::read_from(&file).map_err(Failure::of("list the directory"))?;
        let folder = Arc::new(Folder {
            top: folder.top.clone(),
            context: folder.context.clone(),
            before: Some(version_of(&metadata)),
            file,
            prefix,
            shown: folder.shown.join(name),
            share: folder.share.entry(name),
        });
        Ok(vec![Work::List { folder, stream }])
    }

    /// Stores the object that stands for a directory.
    fn marker(
        &self,
        folder: &Folder<'_>,
        key: &str,
        metadata: &Metadata,
    ) -> std::result::Result<(), Failure> {
        let options = &self.context.options;
        let bucket = folder.top.pair.bucket;
        let metadata = stored::metadata(metadata, options.owners);
        if options.is_dry_run {
            return Ok(());
        }
        if options.skips_complete(true) {
            let head = bucket.head(key).map_err(Failure::of_store("read the object"))?;
            if head.is_some_and(|it| it.size == 0 && stored::has(&it.metadata, &metadata)) {
                return Ok(());
            }
        }
        let put = bucket.put(key, &&b""[..], &metadata);
        put.map(drop).map_err(Failure::of_store("store the directory"))
    }

    fn file(
        &self,
        folder: &Arc<Folder<'a>>,
        name: &OsStr,
        key: String,
        seen: &Seen,
    ) -> std::result::Result<Vec<Work<'a>>, Failure> {
        let context = &self.context;
        let options = &context.options;
        let len = seen.metadata.len();
        if len > MOST_OBJECT {
            return Err(Failure::because(
                "copy",
                "an object has at most 5 TiB, and this file is larger; split the file",
            ));
        }
        let is_large = len > folder.top.part;
        let share = folder.share.entry(name);
        if !self.has_work(share, is_large) {
            return Ok(Vec::new());
        }
        if options.part == Part::Prepare {
            Counters::add(&context.counters.large, 1);
        }
        let metadata = stored::metadata(&seen.metadata, options.owners);
        let is_finish = options.part == Part::Finish;
        let source = || seen.open_file(&folder.file, name);
        if options.skips_complete(!is_large) {
            let bucket = folder.top.pair.bucket;
            let head = bucket.head(&key).map_err(Failure::of_store("read the object"))?;
            if let Some(head) =
                head.filter(|it| it.size == len && stored::has(&it.metadata, &metadata))
            {
                // In the last part of a copy by several hosts, the process of a share has already
                // compared this object.
                if options.verify && !is_finish && !options.is_dry_run {
                    let ours = checksum(&source()?, len)?;
                    if check::checksum(context, &folder.top.pair, &key, &head)? != ours {
                        return Err(check::differs());
                    }
                }
                Counters::add(&context.counters.skipped, 1);
                return Ok(Vec::new());
            }
        }
        if options.is_dry_run {
            Counters::add(&context.counters.files, 1);
            Counters::add(&context.counters.bytes, len);
            return Ok(Vec::new());
        }
        let version = version_of(&seen.metadata);
        let source = source()?;
        let shown = folder.shown.join(name);
        let found = Found { folder: folder.clone(), key, shown, share, source, version, metadata };
        match is_large {
            true => self.large(found),
            false => self.small(&found).map(|()| Vec::new()),
        }
    }

    /// Whether this process has to upload a file, or some parts of it, or begin its upload.
    fn has_work(&self, share: Key, is_large: bool) -> bool {
        match self.context.options.part {
            Part::Whole | Part::Finish => true,
            Part::Prepare => is_large,
            Part::Share(it) => is_large || it.has_entry(share),
        }
    }

    fn large(&self, found: Found<'a>) -> std::result::Result<Vec<Work<'a>>, Failure> {
        let Some(large) = Large::begin(found)? else { return Ok(Vec::new()) };
        Ok((0..large.units()).map(|_| Work::Part { large: large.clone() }).collect())
    }

    fn small(&self, found: &Found<'_>) -> std::result::Result<(), Failure> {
        let context = &self.context;
        let (file, version) = (&found.source, found.version);
        if version.len == 0 && file.read_at(&mut [0], 0).map_err(Failure::of("read"))? > 0 {
            let reason = "the file has bytes although its length is 0, because the kernel \
                          generates its contents at each read; copy this file with cat";
            return Err(Failure::because("copy", reason));
        }
        let pair = &found.folder.top.pair;
        let bytes = Bytes { context, file, version, range: 0..version.len };
        let put = pair.bucket.put(&found.key, &bytes, &found.metadata);
        let crc = put.map_err(Failure::of_store("upload"))?;
        expect_unchanged(file, version)?;
        Counters::add(&context.counters.bytes, version.len);
        if context.options.verify {
            check::expect(context, pair, &found.key, (version.len, crc))?;
        }
        Counters::add(&context.counters.files, 1);
        Ok(())
    }

    /// Stores a symbolic link as an object whose body is the link's target.
    fn link(
        &self,
        folder: &Folder<'_>,
        name: &OsStr,
        key: &str,
        seen: &Seen,
    ) -> std::result::Result<Vec<Work<'a>>, Failure> {
        let options = &self.context.options;
        if !self.has_work(folder.share.entry(name), false) {
            return Ok(Vec::new());
        }
        let target = special::target(seen)?;
        let target = target.as_bytes();
        let metadata = stored::metadata(&seen.metadata, options.owners);
        let bucket = folder.top.pair.bucket;
        let counters = &self.context.counters;
        if options.skips_complete(true) {
            let head = bucket.head(key).map_err(Failure::of_store("read the object"))?;
            if let Some(head) = head
                && head.size == target.len() as u64
                && stored::has(&head.metadata, &metadata)
                && check::checksum(&self.context, &folder.top.pair, key, &head)? == of(target)
            {
                Counters::add(&counters.skipped, 1);
                return Ok(Vec::new());
            }
        }
        if !options.is_dry_run {
            let put = bucket.put(key, &target, &metadata);
            put.map_err(Failure::of_store("store the symbolic link"))?;
        }
        Counters::add(&counters.others, 1);
        Ok(Vec::new())
    }
}

fn of(bytes: &[u8]) -> u32 {
    let mut crc = Crc::default();
    crc.update(bytes);
    crc.value()
}

/// Returns the CRC-32C of the first `len` bytes of a source file.
fn checksum(file: &File, len: u64) -> std::result::Result<u32, Failure> {
    let found = crate::verification::checksum(file, 0..len, |_| ())?;
    found.ok_or_else(Failure::changed)
}
