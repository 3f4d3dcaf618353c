//! Tests of whole purges, in a temporary directory. `walk` has the tests of single steps, between
//! which other programs interfere.

use super::*;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::sync::Mutex;
use std::time::SystemTime;
use tempfile::TempDir;

/// Options that remove all files, whatever their age.
pub(super) fn all() -> Options {
    Options {
        threads: 4,
        older_than: Duration::ZERO,
        age: AgeBasis::Change,
        selection: Selection::default(),
        empty_directories: false,
        is_dry_run: false,
        files_per_second: None,
        max_share: 100,
        is_written: None,
    }
}

/// Options that remove the files that were last modified more than a day ago.
fn old() -> Options {
    Options { older_than: Duration::from_secs(86_400), age: AgeBasis::Modification, ..all() }
}

/// A temporary directory with a tree that is purged, and a directory beside this tree.
struct Site {
    directory: TempDir,
}

impl Site {
    /// Creates files with the given paths and lengths. Also creates the directories on these paths.
    fn new(files: &[(&str, usize)]) -> Self {
        let site = Self { directory: TempDir::new().unwrap() };
        fs::create_dir(site.path("")).unwrap();
        for (path, len) in files {
            site.write(path, *len);
        }
        site
    }

    fn path(&self, path: &str) -> PathBuf {
        self.directory.path().canonicalize().unwrap().join("tree").join(path)
    }

    fn write(&self, path: &str, len: usize) {
        fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
        fs::write(self.path(path), vec![1; len]).unwrap();
    }

    /// Sets the modification time of a file to a time three days ago.
    fn make_old(&self, path: &str) {
        let time = SystemTime::now() - Duration::from_secs(3 * 86_400);
        fs::File::open(self.path(path)).unwrap().set_modified(time).unwrap();
    }

    fn try_purge(&self, options: &Options, records: Records) -> Result<PurgeOutcome> {
        purge(&Top::open(&self.path(""))?, options, records, &|_| ControlFlow::Continue(()))
    }

    fn purge(&self, options: &Options) -> PurgeOutcome {
        let outcome = self.try_purge(options, Records::default()).unwrap();
        assert_eq!(outcome.problems, []);
        outcome
    }

    /// Returns the paths of all entries, sorted.
    fn entries(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut left = vec![self.path("")];
        while let Some(directory) = left.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let entry = entry.unwrap();
                let path = entry.path();
                found.push(path.strip_prefix(self.path("")).unwrap().display().to_string());
                if entry.file_type().unwrap().is_dir() {
                    left.push(path);
                }
            }
        }
        found.sort();
        found
    }
}

/// A receiver of lines that a test can read.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

#[test]
fn old_files_are_removed_and_young_files_stay() {
    let site = Site::new(&[("a/old", 10), ("a/b/old", 20), ("a/young", 5), ("c/young", 5)]);
    site.make_old("a/old");
    site.make_old("a/b/old");
    let before = site.entries();
    let dry = site.purge(&Options { is_dry_run: true, ..old() });
    assert_eq!(site.entries(), before);
    let done = site.purge(&old());
    for outcome in [&dry, &done] {
        assert_eq!((outcome.scanned, outcome.files, outcome.bytes), (4, 2, 30));
        assert_eq!(outcome.by_directory.len(), 1);
        assert_eq!(outcome.oldest.len(), 2);
    }
    assert!(dry.is_dry_run && !done.is_dry_run);
    assert_eq!(site.entries(), ["a", "a/b", "a/young", "c", "c/young"]);
}

#[test]
fn purge_keeps_an_unpacked_file_with_an_old_mtime_by_default() {
    let site = Site::new(&[("unpacked", 1)]);
    site.make_old("unpacked");
    let outcome = site.purge(&Options { age: AgeBasis::Change, ..old() });
    assert_eq!((outcome.files, site.entries().len()), (0, 1));
}

#[test]
fn directory_with_many_files_is_purged_completely() {
    let site = Site::new(&[]);
    for number in 0..3000 {
        fs::write(site.path(&format!("{number}")), "").unwrap();
    }
    let outcome = site.purge(&all());
    assert_eq!((outcome.scanned, outcome.files), (3000, 3000));
    assert_eq!(site.entries(), Vec::<String>::new());
}

#[test]
fn deep_directory_with_many_files_is_purged_completely() {
    let site = Site::new(&[]);
    let deep = ["d"; 40].join("/");
    for number in 0..100 {
        site.write(&format!("{deep}/{number}"), 1);
        site.write(&format!("{deep}/sub-{number}/file"), 1);
    }
    let outcome = site.purge(&Options { empty_directories: true, ..all() });
    assert_eq!((outcome.files, outcome.directories), (200, 140));
    assert_eq!(site.entries(), Vec::<String>::new());
}

#[test]
fn symbolic_link_is_removed_and_its_target_stays() {
    let site = Site::new(&[("a/file", 1)]);
    let outside = site.directory.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "x").unwrap();
    symlink(&outside, site.path("a/link")).unwrap();
    assert_eq!(site.purge(&all()).files, 2);
    assert_eq!(site.entries(), ["a"]);
    assert!(outside.join("file").exists());
}

#[test]
fn all_names_of_an_old_file_are_removed() {
    let site = Site::new(&[("a/first", 99)]);
    for name in ["a/second", "third"] {
        fs::hard_link(site.path("a/first"), site.path(name)).unwrap();
    }
    // At this rate, the second removal sets a change time after the beginning of the purge,
    // although the kernel raises its clock for files only every few milliseconds.
    let options = Options { threads: 1, files_per_second: Some(20), ..all() };
    let outcome = site.purge(&options);
    assert_eq!((outcome.files, outcome.bytes), (3, 99));
    assert_eq!(site.entries(), ["a"]);
}

#[test]
fn empty_directories_are_removed_only_on_request() {
    let files = &[("a/b/c/file", 1), ("d/young", 1), ("e/keep/file", 1)];
    let site = Site::new(files);
    fs::create_dir_all(site.path("empty/below")).unwrap();
    let exclude = ["young", "keep"].map(|it| it.parse::<Glob>().unwrap()).to_vec();
    let selection = Selection { exclude, ..Selection::default() };
    let options = Options { empty_directories: true, selection, ..all() };
    let dry = site.purge(&Options { is_dry_run: true, ..options.clone() });
    assert_eq!((dry.files, dry.directories, dry.skipped.excluded), (1, 5, 2));
    assert!(site.path("a/b/c/file").exists());
    let done = site.purge(&options);
    assert_eq!((done.files, done.directories, done.skipped.excluded), (1, 5, 2));
    assert_eq!(site.entries(), ["d", "d/young", "e", "e/keep", "e/keep/file"]);
}

#[test]
fn purge_selects_files_by_owner_and_size() {
    let site = Site::new(&[("small", 10), ("large", 11)]);
    let own = fs::metadata(site.path("small")).unwrap().uid();
    let purge = |selection| site.purge(&Options { selection, ..all() }).files;
    let of_others = Selection { users: vec![own + 1], ..Selection::default() };
    assert_eq!(purge(of_others), 0);
    assert_eq!(purge(Selection { excluded_users: vec![own], ..Selection::default() }), 0);
    let large = Selection { larger_than: Some(10), users: vec![own], ..Selection::default() };
    assert_eq!(purge(large), 1);
    assert_eq!(site.entries(), ["small"]);
}

#[test]
fn purge_removes_nothing_if_it_would_exceed_the_max_share() {
    let site = Site::new(&[("a", 1), ("b", 1), ("c", 1), ("d", 1)]);
    for name in ["a", "b", "c"] {
        site.make_old(name);
    }
    let limited = |max_share| {
        let options = Options { max_share, ..old() };
        site.try_purge(&options, Records::default())
    };
    let refused = limited(74).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::LimitReached);
    assert!(refused.context().contains("3 of 4 files would be removed"), "{refused}");
    assert_eq!(site.entries().len(), 4);
    assert_eq!(limited(75).unwrap().files, 3);
}

#[test]
fn file_that_is_open_for_writing_is_not_purged() {
    let site = Site::new(&[("a", 1), ("b", 1)]);
    let is_written: IsWritten = |file| {
        let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        Ok(path.ends_with("b"))
    };
    let outcome = site.purge(&Options { is_written: Some(is_written), ..all() });
    assert_eq!((outcome.files, outcome.skipped.in_use), (1, 1));
    assert_eq!(site.entries(), ["b"]);
}

#[test]
fn log_and_list_have_a_line_per_removed_file() {
    let site = Site::new(&[("a", 3), ("b/c\nd", 4)]);
    let records = |log: &Lines, list: &Lines| {
        Records::new(Some(Box::new(log.clone())), Some(Box::new(list.clone())))
    };
    let (log, list) = (Lines::default(), Lines::default());
    let dry = Options { is_dry_run: true, ..all() };
    site.try_purge(&dry, records(&log, &list)).unwrap();
    assert_eq!((log.text().as_str(), list.text().lines().count()), ("", 2));
    site.try_purge(&all(), records(&log, &Lines::default())).unwrap();
    let mut lines: Vec<_> = log.text().lines().map(str::to_owned).collect();
    lines.sort_by_key(|line| line.contains("size=4"));
    assert_eq!(lines.len(), 2);
    assert!(lines[0].ends_with("/tree/a") && lines[0].contains(" size=3 uid="), "{lines:?}");
    assert!(lines[1].ends_with("/tree/b/c\\nd"), "{lines:?}");
    for line in list.text().lines() {
        let record: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(record["kind"], "file");
    }
}

#[test]
fn purge_ends_when_its_log_cannot_be_written() {
    struct Full;
    impl io::Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::Error::from(io::ErrorKind::StorageFull))
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let site = Site::new(&[]);
    for number in 0..100 {
        site.write(&number.to_string(), 1);
    }
    let records = Records::new(Some(Box::new(Full)), None);
    let refused = site.try_purge(&Options { threads: 1, ..all() }, records).unwrap_err();
    assert!(refused.context().contains("cannot write the log"), "{refused}");
    assert_eq!(site.entries().len(), 99);
}

#[test]
fn interrupted_purge_reports_and_logs_the_removed_files() {
    let site = Site::new(&[]);
    for number in 0..100 {
        site.write(&number.to_string(), 1);
    }
    let log = Lines::default();
    let records = Records::new(Some(Box::new(log.clone())), None);
    let options = Options { threads: 1, files_per_second: Some(10), ..all() };
    let top = Top::open(&site.path("")).unwrap();
    let outcome = purge(&top, &options, records, &|_| ControlFlow::Break(())).unwrap();
    assert!(outcome.is_interrupted && outcome.has_ended_early);
    assert!(outcome.files < 100, "{outcome:?}");
    assert_eq!(site.entries().len() as u64, 100 - outcome.files);
    assert_eq!(log.text().lines().count() as u64, outcome.files);
}

#[test]
fn purge_refuses_the_root_directory_and_symbolic_links() {
    let site = Site::new(&[("file", 1)]);
    symlink(site.path(""), site.directory.path().join("link")).unwrap();
    let refused = Top::open(&site.directory.path().join("link")).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::InvalidArgument);
    assert!(refused.context().contains("symbolic link"), "{refused}");
    for root in ["/", "/tmp/.."] {
        assert!(Top::open(Path::new(root)).unwrap_err().context().contains("root directory"));
    }
    let code = |path: &str| Top::open(&site.path(path)).unwrap_err().code();
    assert_eq!((code("absent"), code("file")), (ErrorCode::NotFound, ErrorCode::NotDirectory));
}

#[test]
fn very_long_age_selects_no_file() {
    let now = Timestamp { seconds: 1_800_000_000, nanoseconds: 5 };
    let day = Duration::from_secs(86_400);
    assert_eq!(earlier(now, day), Timestamp { seconds: 1_799_913_600, nanoseconds: 5 });
    for seconds in [i64::MAX as u64, u64::MAX] {
        assert!(earlier(now, Duration::from_secs(seconds)).seconds < 0, "{seconds}");
    }
    let site = Site::new(&[("a", 1)]);
    assert_eq!(site.purge(&Options { older_than: Duration::MAX, ..all() }).files, 0);
}

#[test]
fn remaining_time_is_estimated_while_files_are_removed() {
    let elapsed = Duration::from_secs(10);
    let progress = PurgeProgress {
        is_removing: true,
        files: 100,
        expected: Some(300),
        elapsed,
        ..Default::default()
    };
    assert_eq!(progress.time_left(), Some(Duration::from_secs(20)));
    let counting = PurgeProgress { is_removing: false, ..progress.clone() };
    assert_eq!(counting.time_left(), None);
    assert_eq!(PurgeProgress { expected: None, ..progress }.time_left(), None);
}
