//! Tests of whole copies, in the directory of temporary files.

use super::*;
use crate::plan::{LARGE, PIECE, list_head, partial_names};
use rustix::fs::{XattrFlags, lgetxattr, lsetxattr};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use tempfile::TempDir;

const OPTIONS: Options = Options {
    threads: 4,
    bytes_per_second: None,
    resume: false,
    verify: true,
    sync: false,
    is_dry_run: false,
};

/// A directory with a source; the copy is next to it.
struct Site {
    directory: TempDir,
}

impl Site {
    fn new() -> Self {
        let site = Self { directory: TempDir::new().unwrap() };
        fs::create_dir(site.source("")).unwrap();
        site
    }

    fn source(&self, path: &str) -> PathBuf {
        self.directory.path().join("source").join(path)
    }

    fn copy(&self, path: &str) -> PathBuf {
        self.directory.path().join("copy").join(path)
    }

    fn run(&self, options: &Options) -> Outcome {
        let pair = Pair { source: self.source(""), destination: self.copy("") };
        copy(&[pair], options, &|_| ()).unwrap()
    }

    /// Copies, and expects no problem.
    fn succeed(&self, options: &Options) -> Outcome {
        let outcome = self.run(options);
        assert_eq!(outcome.problems, []);
        outcome
    }
}

/// Creates entries of all kinds.
fn fill(top: &Path) {
    for directory in ["a", "a/b", "a/b/c", "empty", "closed"] {
        fs::create_dir(top.join(directory)).unwrap();
    }
    for number in 0..40 {
        fs::write(top.join(format!("a/b/file-{number}")), vec![number; 1000 * number as usize])
            .unwrap();
    }
    fs::write(top.join("closed/file"), "x").unwrap();
    fs::set_permissions(top.join("closed"), fs::Permissions::from_mode(0o555)).unwrap();
    fs::set_permissions(top.join("a/b/file-3"), fs::Permissions::from_mode(0o4751)).unwrap();
    let name = OsStr::from_bytes(b"a/\xff\n name");
    fs::write(top.join(name), "a name that is not text").unwrap();
    fs::hard_link(top.join("a/b/file-7"), top.join("a/second-name")).unwrap();
    fs::hard_link(top.join("a/b/file-7"), top.join("empty/third-name")).unwrap();
    symlink("b/file-7", top.join("a/link")).unwrap();
    symlink("/nowhere/at/all", top.join("a/broken")).unwrap();
    let file = top.join("a/b/file-9");
    lsetxattr(&file, "user.note", b"a value", XattrFlags::empty()).unwrap();
    let fifo = top.join("a/fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o622),
        0,
    )
    .unwrap();
    fs::set_permissions(&fifo, fs::Permissions::from_mode(0o622)).unwrap();
    let old = std::time::UNIX_EPOCH + Duration::new(1_000_000_007, 123_456_789);
    for path in ["a/b/file-5", "empty", "a"] {
        let file = File::open(top.join(path)).unwrap();
        file.set_times(fs::FileTimes::new().set_modified(old)).unwrap();
    }
}

/// Returns a description of each entry of a tree, by its path.
fn describe(top: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut directories = vec![top.to_owned()];
    let mut inodes: BTreeMap<u64, PathBuf> = BTreeMap::new();
    while let Some(directory) = directories.pop() {
        let mut paths: Vec<_> =
            fs::read_dir(&directory).unwrap().map(|it| it.unwrap().path()).collect();
        paths.sort();
        for path in paths.into_iter().chain([directory.clone()]) {
            let below = path.strip_prefix(top).unwrap().to_owned();
            let metadata = path.symlink_metadata().unwrap();
            let contents = match tree::file_type(&metadata) {
                FileType::RegularFile => checksum(&fs::read(&path).unwrap()),
                FileType::Symlink => format!("{:?}", fs::read_link(&path).unwrap()),
                _ => String::new(),
            };
            let mut note = [0; 100];
            let note = lgetxattr(&path, "user.note", &mut note[..])
                .map_or_else(|_| String::new(), |len| format!("{:?}", &note[..len]));
            let mut first = below.clone();
            if metadata.is_dir() {
                if path != directory {
                    directories.push(path);
                    continue;
                }
            } else {
                first = inodes.entry(metadata.ino()).or_insert_with(|| below.clone()).clone();
            }
            let text = format!(
                "{:o} {} {} {} {}.{} {first:?} {note} {contents}",
                metadata.mode(),
                metadata.uid(),
                metadata.gid(),
                if metadata.is_dir() { 0 } else { metadata.len() },
                metadata.mtime(),
                metadata.mtime_nsec()
            );
            found.insert(below, text);
        }
    }
    found
}

fn checksum(bytes: &[u8]) -> String {
    use std::hash::Hasher;
    let mut hasher = siphasher::sip::SipHasher13::new();
    hasher.write(bytes);
    format!("{:016x}", hasher.finish())
}

/// Compares both trees, and names the entries that differ.
fn expect_same(site: &Site) {
    let [source, copy] = [site.source(""), site.copy("")].map(|top| describe(&top));
    let differences: Vec<_> = source
        .keys()
        .chain(copy.keys())
        .filter(|path| source.get(*path) != copy.get(*path))
        .map(|path| (path, source.get(path), copy.get(path)))
        .collect();
    assert!(differences.is_empty(), "{differences:#?}");
}

#[test]
fn copy_has_everything_of_its_source() {
    let site = Site::new();
    fill(&site.source(""));
    let outcome = site.succeed(&OPTIONS);
    expect_same(&site);
    // 40 files with one name copied of three, and two files more.
    assert_eq!((outcome.files, outcome.directories, outcome.others), (42, 6, 5));
    assert_eq!(outcome.bytes, outcome.verified_bytes);
    // A copy over the first replaces everything, also with other kinds of entries in the way.
    fs::remove_file(site.copy("a/link")).unwrap();
    fs::write(site.copy("a/link"), "a file").unwrap();
    fs::write(site.copy("a/b/file-30"), "other contents").unwrap();
    site.succeed(&OPTIONS);
    expect_same(&site);
}

#[test]
fn resumed_copy_makes_only_the_difference() {
    let site = Site::new();
    fill(&site.source(""));
    site.succeed(&OPTIONS);
    let resume = Options { resume: true, ..OPTIONS };
    let again = site.succeed(&resume);
    assert_eq!((again.files, again.others, again.bytes), (0, 0, 0));
    assert!(again.verified_bytes > 0);
    fs::remove_file(site.copy("a/b/file-8")).unwrap();
    fs::remove_file(site.copy("a/link")).unwrap();
    // An interrupted run has not set the time of its last file.
    let file = File::options().write(true).open(site.copy("a/b/file-9")).unwrap();
    file.set_len(10).unwrap();
    let dry = site.succeed(&Options { is_dry_run: true, ..resume.clone() });
    assert_eq!((dry.files, dry.others), (2, 1));
    let outcome = site.succeed(&resume);
    assert_eq!((outcome.files, outcome.others), (2, 1));
    expect_same(&site);
    fs::remove_file(site.copy("a/second-name")).unwrap();
    site.succeed(&resume);
    expect_same(&site);
}

#[test]
fn dry_run_creates_nothing() {
    let site = Site::new();
    fill(&site.source(""));
    let outcome = site.succeed(&Options { is_dry_run: true, ..OPTIONS });
    assert_eq!((outcome.files, outcome.directories), (42, 6));
    assert!(!site.copy("").exists());
}

#[test]
fn large_file_continues_at_its_missing_pieces() {
    let site = Site::new();
    let len = LARGE + 5;
    let source = File::create(site.source("large")).unwrap();
    source.set_len(len).unwrap();
    source.write_all_at(b"first", 0).unwrap();
    source.write_all_at(b"second", PIECE).unwrap();
    source.write_all_at(b"third", 2 * PIECE).unwrap();
    // The copy of a run that has finished the first piece. Its bytes differ from the source, so
    // that the test sees which pieces are copied.
    fs::create_dir(site.copy("")).unwrap();
    let (partial, list) = partial_names(OsStr::new("large"));
    let copy = File::create(site.copy("").join(&partial)).unwrap();
    copy.set_len(len).unwrap();
    copy.write_all_at(b"FIRST", 0).unwrap();
    let version = tree::version(&source.metadata().unwrap());
    let head = list_head(OsStr::new("large"), version);
    let text = [&head[..], b"0\n1"].concat();
    fs::write(site.copy("").join(&list), &text).unwrap();
    let outcome = site.run(&Options { resume: true, ..OPTIONS });
    // The comparison finds the difference in the first piece only.
    let [problem] = outcome.problems.as_slice() else { panic!("{outcome:?}") };
    assert!(problem.problem.contains("differs from the source at byte 0"), "{problem:?}");
    let read = |at: u64, len: usize| {
        let mut found = vec![0; len];
        File::open(site.copy("large")).unwrap().read_exact_at(&mut found, at).unwrap();
        found
    };
    assert_eq!((read(0, 5), read(PIECE, 6)), (b"FIRST".to_vec(), b"second".to_vec()));
    assert_eq!(read(2 * PIECE, 5), b"third");
    assert_eq!(fs::read_dir(site.copy("")).unwrap().count(), 1);
    // Without --resume, all pieces are copied, and the holes stay.
    let outcome = site.succeed(&OPTIONS);
    assert!(outcome.bytes < 1 << 20, "{outcome:?}");
    assert_eq!(read(0, 5), b"first");
    // The list of another version is not used.
    fs::remove_file(site.copy("large")).unwrap();
    fs::write(site.copy("").join(&partial), "FIRST").unwrap();
    fs::write(site.copy("").join(&list), [b"other ", &text[..]].concat()).unwrap();
    site.succeed(&Options { resume: true, ..OPTIONS });
    assert_eq!(read(0, 5), b"first");
}

#[test]
fn links_at_the_destination_do_not_lead_out() {
    let site = Site::new();
    fs::create_dir(site.source("sub")).unwrap();
    fs::write(site.source("sub/file"), "new").unwrap();
    fs::write(site.source("victim"), "new").unwrap();
    let outside = site.directory.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "old").unwrap();
    fs::create_dir(site.copy("")).unwrap();
    symlink(&outside, site.copy("sub")).unwrap();
    symlink(outside.join("file"), site.copy("victim")).unwrap();
    let outcome = site.run(&OPTIONS);
    assert_eq!(fs::read(outside.join("file")).unwrap(), b"old");
    // The link in the place of a file is replaced. The one in the place of a directory is an error.
    assert!(!site.copy("victim").is_symlink());
    let [problem] = outcome.problems.as_slice() else { panic!("{outcome:?}") };
    assert!(problem.path.ends_with("source/sub"), "{problem:?}");
}

#[test]
fn entries_that_cannot_be_copied_are_named() {
    let site = Site::new();
    fs::write(site.source("file"), "x").unwrap();
    fs::write(site.source("other"), "y").unwrap();
    let _socket = UnixListener::bind(site.source("socket")).unwrap();
    fs::create_dir(site.copy("")).unwrap();
    fs::create_dir(site.copy("file")).unwrap();
    let outcome = site.run(&OPTIONS);
    assert_eq!((outcome.problem_count, outcome.files), (2, 1));
    for (problem, words) in outcome.problems.iter().zip(["a directory has this name", "socket"]) {
        assert!(problem.problem.contains(words), "{problem:?}");
    }
    assert_eq!(fs::read(site.copy("other")).unwrap(), b"y");
}

#[test]
fn copy_into_its_own_source_is_refused() {
    let site = Site::new();
    for below in ["", "new", "new/deeper"] {
        let pair = Pair { source: site.source(""), destination: site.source(below) };
        let error = copy(&[pair], &OPTIONS, &|_| ()).unwrap_err();
        assert!(error.context().contains("name a destination outside"), "{error}");
    }
    let missing = Pair { source: site.source("missing"), destination: site.copy("") };
    assert!(copy(&[missing], &OPTIONS, &|_| ()).is_err());
    assert!(!site.copy("").exists());
}
