//! Tests of whole copies between a directory and the object store of the test kit.

use super::*;
use crate::context::Options;
use crate::context::TEST_OPTIONS as OPTIONS;
use crate::outcome::Outcome;
use crate::plan::PIECE;
use crate::shares::{Part, Share};
use skep_s3::client::Client;
use skep_s3::credentials::{Credentials, Provider};
use skep_s3::location::Location;
use skep_s3::settings::Settings;
use skep_testkit::object_store::{ACCESS, BUCKET, Fault, ObjectStore, SECRET, Stored, TOKEN};
use skep_types::ErrorCode;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

const RESUME: Options = Options { resume: true, ..OPTIONS };

/// A directory, an object store, and a client of the store.
struct Site {
    directory: TempDir,
    store: ObjectStore,
    client: Client,
}

impl Site {
    fn new() -> Self {
        let (directory, store) = (TempDir::new().unwrap(), ObjectStore::start());
        let settings = Settings { endpoint: Some(store.url()), ..Settings::default() };
        let keys = Credentials {
            access_key_id: ACCESS.into(),
            secret_access_key: SECRET.into(),
            session_token: Some(TOKEN.into()),
            expires: None,
        };
        let location = Location { bucket: BUCKET.into(), key: String::new() };
        let provider = Arc::new(Provider::given(Some(keys)));
        let client = Client::new(&settings, &location, provider).unwrap();
        fs::create_dir(directory.path().join("source")).unwrap();
        Self { directory, store, client }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.directory.path().join(path)
    }

    fn pair(&self, path: &str, key: &str) -> Pair<'_> {
        let shown = format!("s3://{BUCKET}");
        Pair { bucket: &self.client, shown, key: key.to_owned(), path: self.path(path) }
    }

    fn up(&self, options: &Options) -> Outcome {
        upload(&[self.pair("source", "t")], options, LEAST_PART, &|_| ()).unwrap()
    }

    fn down(&self, options: &Options) -> Outcome {
        download(&[self.pair("copy", "t")], options, &|_| ()).unwrap()
    }
}

/// Returns `len` bytes that form no repeated pattern.
fn bytes(len: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Returns the text of the problem of an entry.
fn problem(outcome: &Outcome, path: &str) -> String {
    let found = outcome.problems.iter().find(|it| it.path.ends_with(path));
    found.unwrap_or_else(|| panic!("no problem of {path}: {outcome:?}")).problem.clone()
}

fn complete(outcome: &Outcome) -> (u64, u64) {
    assert_eq!(outcome.problems, []);
    (outcome.files, outcome.skipped)
}

#[test]
fn tree_copied_to_a_bucket_and_back_has_its_attributes() {
    let site = Site::new();
    let source = |path: &str| site.path("source").join(path);
    fs::create_dir_all(source("a/empty")).unwrap();
    fs::write(source("a/file"), bytes(300_000)).unwrap();
    fs::write(source("a/none"), b"").unwrap();
    fs::write(source("large"), bytes(12_000_000)).unwrap();
    symlink("../a target", source("a/link")).unwrap();
    fs::set_permissions(source("a/file"), fs::Permissions::from_mode(0o4751)).unwrap();
    fs::set_permissions(source("a/empty"), fs::Permissions::from_mode(0o2700)).unwrap();
    let old = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    fs::File::open(source("a/file")).unwrap().set_modified(old).unwrap();
    fs::File::open(source("a")).unwrap().set_modified(old).unwrap();
    assert_eq!(complete(&site.up(&OPTIONS)), (3, 0));
    assert_eq!(
        site.store.keys(),
        ["t/", "t/a/", "t/a/empty/", "t/a/file", "t/a/link", "t/a/none", "t/large"]
    );
    assert_eq!(site.store.uploads(), 0);
    assert_eq!(site.store.get("t/a/file").unwrap().metadata["mtime"], "1000000000.123456789");
    let trusted = Options { store_owners: true, ..OPTIONS };
    let outcome = site.down(&trusted);
    assert_eq!(complete(&outcome), (3, 0));
    assert_eq!((outcome.directories, outcome.others), (3, 1));
    let copy = |path: &str| site.path("copy").join(path);
    for path in ["a/file", "a/none", "large"] {
        assert!(fs::read(copy(path)).unwrap() == fs::read(source(path)).unwrap(), "{path}");
    }
    assert_eq!(fs::read_link(copy("a/link")).unwrap(), PathBuf::from("../a target"));
    for path in ["", "a", "a/empty", "a/file", "a/link", "large"] {
        let [ours, theirs] = [source(path), copy(path)].map(|it| it.symlink_metadata().unwrap());
        let of = |it: &fs::Metadata| (it.uid(), it.gid(), it.mtime(), it.mtime_nsec());
        assert_eq!(of(&theirs), of(&ours), "{path}");
        // The copy of a file from a bucket never has the bits `setuid` and `setgid`.
        let mask = if ours.is_file() { 0o170_777 } else { 0o177_777 };
        assert_eq!(theirs.mode(), ours.mode() & mask, "{path}");
    }
    assert_eq!(complete(&site.up(&RESUME)), (0, 4));
    assert_eq!(complete(&site.down(&Options { resume: true, ..trusted })), (0, 3));
}

/// All users who may write to a bucket choose the metadata of its objects.
#[test]
fn bucket_determines_owners_only_if_the_user_asks_for_it() {
    let site = Site::new();
    let owner = [("uid", "1234"), ("gid", "4321")];
    // These are the modes of a directory with the bit setgid, of a file, and of a link.
    for (key, mode) in [("t/d/", 0o042_755), ("t/d/file", 0o100_644), ("t/d/link", 0o120_777)] {
        let mode = u32::to_string(&mode);
        let metadata = [owner[0], owner[1], ("mode", mode.as_str())];
        let bytes: &[u8] = if key.ends_with('/') { b"" } else { b"1" };
        site.store.put(key, Stored::new(bytes, &metadata));
    }
    let parent = fs::metadata(site.path("")).unwrap();
    for store_owners in [false, true] {
        let options = Options { store_owners, ..OPTIONS };
        assert_eq!(complete(&site.down(&options)), (1, 0));
        let found = |path: &str| site.path("copy").join(path).symlink_metadata().unwrap();
        assert_eq!(found("d").mode() & 0o7777, if store_owners { 0o2755 } else { 0o755 });
        // Only root can set owners.
        if rustix::process::geteuid().is_root() {
            let expected = if store_owners { (1234, 4321) } else { (parent.uid(), parent.gid()) };
            for path in ["d", "d/file", "d/link"] {
                assert_eq!((found(path).uid(), found(path).gid()), expected, "{path}");
            }
        }
    }
}

#[test]
fn changed_files_and_objects_are_copied_again() {
    let site = Site::new();
    let file = site.path("source/file");
    fs::write(&file, b"first").unwrap();
    site.up(&OPTIONS);
    site.down(&OPTIONS);
    fs::write(&file, b"other").unwrap();
    fs::File::open(&file).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
    assert_eq!(complete(&site.up(&RESUME)), (1, 0));
    assert_eq!(complete(&site.down(&RESUME)), (1, 0));
    assert_eq!(fs::read(site.path("copy/file")).unwrap(), b"other");
    // Length and time stay equal, but the bytes differ, so only a comparison finds the difference.
    let mut object = site.store.get("t/file").unwrap();
    object.bytes = b"OTHER".to_vec();
    site.store.put("t/file", object);
    let fast = Options { verify: false, ..RESUME };
    assert_eq!(complete(&site.down(&fast)), (0, 1));
    assert!(problem(&site.down(&RESUME), "file").contains("differs"));
    assert!(problem(&site.up(&RESUME), "file").contains("differs"));
}

#[test]
fn keys_that_are_no_valid_paths_are_reported_by_name() {
    let site = Site::new();
    for key in ["t/a", "t/a/b", "t/x//y", "t/../out", "t/d/.", "t/full/", "t/ok-", "t/ok/z", "t2"] {
        let bytes: &[u8] = if key.ends_with("ok/z") { b"" } else { b"1" };
        site.store.put(key, Stored::new(bytes, &[]));
    }
    site.store.put("t/fifo", Stored::new(b"", &[("mode", "4516")]));
    let outcome = site.down(&OPTIONS);
    assert!(problem(&outcome, "t/a/b").contains("a is an object too"));
    assert!(problem(&outcome, "t/x//y").contains("empty name"));
    assert!(problem(&outcome, "t/../out").contains(".."));
    assert!(problem(&outcome, "t/d/.").contains("no file can have"));
    assert!(problem(&outcome, "t/full/").contains("the object has bytes"));
    assert!(problem(&outcome, "t/fifo").contains("FIFO"));
    assert_eq!((outcome.problem_count, outcome.files), (6, 3));
    assert!(!site.path("out").exists() && site.path("copy/ok/z").exists());
    let error = download(&[site.pair("other", "missing")], &OPTIONS, &|_| ()).unwrap_err();
    assert_eq!(error.code(), ErrorCode::NotFound);
    site.store.put("t", Stored::new(b"", &[]));
    let error = download(&[site.pair("other", "t")], &OPTIONS, &|_| ()).unwrap_err();
    assert!(error.context().contains("other objects have keys below this key"), "{error}");
}

#[test]
fn files_that_no_object_can_represent_are_reported_by_name() {
    use std::os::unix::ffi::OsStrExt;
    let site = Site::new();
    let source = |name: &[u8]| site.path("source").join(std::ffi::OsStr::from_bytes(name));
    fs::write(source(b"\xff"), b"1").unwrap();
    fs::write(source(b".skep-copy-x"), b"1").unwrap();
    fs::write(source(b"good"), b"1").unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        source(b"fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    let mut deep = source(b"deep");
    for _ in 0..5 {
        deep.push("x".repeat(250));
    }
    fs::create_dir_all(&deep).unwrap();
    let outcome = site.up(&OPTIONS);
    assert!(problem(&outcome, "\\xff").contains("UTF-8"));
    assert!(problem(&outcome, ".skep-copy-x").contains("reserved"));
    assert!(problem(&outcome, "fifo").contains("FIFOs"));
    assert!(problem(&outcome, "xxx").contains("1023"));
    assert_eq!((outcome.files, outcome.problem_count), (1, 4));
}

#[test]
fn link_at_the_destination_is_never_followed() {
    let site = Site::new();
    site.store.put("t/d/file", Stored::new(b"1", &[]));
    site.store.put("t/file", Stored::new(b"2", &[]));
    fs::create_dir_all(site.path("copy")).unwrap();
    fs::create_dir_all(site.path("outside")).unwrap();
    symlink(site.path("outside"), site.path("copy/d")).unwrap();
    symlink(site.path("outside/file"), site.path("copy/file")).unwrap();
    let outcome = site.down(&OPTIONS);
    assert_eq!(outcome.problem_count, 1);
    problem(&outcome, "t/d/file");
    assert_eq!(fs::read_dir(site.path("outside")).unwrap().count(), 0);
    assert_eq!(fs::read(site.path("copy/file")).unwrap(), b"2");
}

#[test]
fn interrupted_upload_continues_with_the_missing_parts() {
    let site = Site::new();
    let contents = bytes(4 * LEAST_PART as usize + 10);
    fs::write(site.path("source/large"), &contents).unwrap();
    let one = Options { threads: 1, ..OPTIONS };
    site.store.fail("PUT", "partNumber=3", Fault::Denied, 1);
    let outcome = site.up(&one);
    assert!(problem(&outcome, "large").contains("AccessDenied"));
    assert_eq!((site.store.get("t/large").is_none(), site.store.uploads()), (true, 1));
    site.store.forget();
    assert_eq!(complete(&site.up(&RESUME)), (1, 0));
    assert_eq!(site.store.count("PUT", "partNumber="), 3);
    assert!(site.store.get("t/large").unwrap().bytes == contents);
    assert_eq!((site.store.uploads(), site.store.keys().len()), (0, 2));
    // Parts of another version of the file are not used. If the file no longer exists, its upload
    // is removed.
    for (change, sent) in [("other", 5), ("", 0)] {
        site.store.fail("PUT", "partNumber=3", Fault::Denied, 1);
        fs::write(site.path("source/large"), [&contents[..], b"1"].concat()).unwrap();
        site.up(&one);
        assert_eq!(site.store.uploads(), 1);
        match change {
            "" => fs::remove_file(site.path("source/large")).unwrap(),
            _ => fs::write(site.path("source/large"), [&contents[..], b"2"].concat()).unwrap(),
        }
        site.store.forget();
        complete(&site.up(&RESUME));
        assert_eq!(site.store.count("PUT", "partNumber="), sent);
        assert_eq!(site.store.uploads(), 0);
        assert!(site.store.keys().iter().all(|it| !it.contains(".skep-copy-")));
    }
}

#[test]
fn upload_of_a_file_keeps_interrupted_uploads_of_other_files() {
    let site = Site::new();
    fs::write(site.path("source/one"), bytes(2 * LEAST_PART as usize)).unwrap();
    fs::write(site.path("source/two"), b"2").unwrap();
    let up = |name: &str, options: &Options| {
        let pair = site.pair(&format!("source/{name}"), &format!("t/{name}"));
        upload(&[pair], options, LEAST_PART, &|_| ()).unwrap()
    };
    site.store.fail("PUT", "partNumber=2", Fault::Denied, 1);
    let outcome = up("one", &Options { threads: 1, ..OPTIONS });
    assert!(problem(&outcome, "one").contains("AccessDenied"));
    assert_eq!(complete(&up("two", &OPTIONS)), (1, 0));
    assert_eq!(site.store.uploads(), 1, "it may belong to a copy that is in progress");
    site.store.forget();
    assert_eq!(complete(&up("one", &RESUME)), (1, 0));
    assert_eq!(site.store.count("PUT", "partNumber="), 1);
    assert_eq!(site.store.uploads(), 0);
    assert!(site.store.keys().iter().all(|it| !it.contains(".skep-copy-")));
}

/// Two hosts may copy different trees to the same place at the same time.
#[test]
fn upload_of_a_tree_keeps_uploads_of_other_trees() {
    let site = Site::new();
    fs::create_dir(site.path("other")).unwrap();
    fs::write(site.path("other/large"), bytes(2 * LEAST_PART as usize)).unwrap();
    fs::write(site.path("source/file"), b"1").unwrap();
    let up = |options: &Options| {
        upload(&[site.pair("other", "t")], options, LEAST_PART, &|_| ()).unwrap()
    };
    site.store.fail("PUT", "partNumber=2", Fault::Denied, 1);
    let outcome = up(&Options { threads: 1, ..OPTIONS });
    assert!(problem(&outcome, "large").contains("AccessDenied"));
    assert_eq!(complete(&site.up(&OPTIONS)), (1, 0));
    assert_eq!(site.store.uploads(), 1, "it may be in progress");
    site.store.forget();
    assert_eq!(complete(&up(&RESUME)), (1, 0));
    assert_eq!(site.store.count("PUT", "partNumber="), 1);
    assert_eq!(site.store.uploads(), 0);
    assert!(site.store.keys().iter().all(|it| !it.contains(".skep-copy-")));
}

#[test]
fn interrupted_download_continues_with_the_missing_pieces() {
    let site = Site::new();
    // For an object this large, the test store would take long to compute the entity tag.
    let object = |number: u8| {
        let mut contents = vec![number; 2 * PIECE as usize + 10];
        contents.iter_mut().step_by(4099).zip(0..).for_each(|(it, at)| *it = at as u8);
        Stored { bytes: contents, etag: format!("\"{number}\""), ..Stored::default() }
    };
    let first = object(1);
    site.store.put("t/large", first.clone());
    let sync = Options { sync: true, threads: 1, ..OPTIONS };
    site.store.fail_later("GET", "t/large", Fault::Denied, (1, 1));
    assert!(problem(&site.down(&sync), "t/large").contains("AccessDenied"));
    assert!(!site.path("copy/large").exists());
    site.store.forget();
    let outcome = site.down(&Options { resume: true, ..sync.clone() });
    assert_eq!(complete(&outcome), (1, 0));
    assert_eq!(site.store.count("GET", "t/large"), 2);
    assert!(fs::read(site.path("copy/large")).unwrap() == first.bytes);
    assert_eq!(fs::read_dir(site.path("copy")).unwrap().count(), 1);
    // Pieces of another version of the object are not used.
    fs::remove_file(site.path("copy/large")).unwrap();
    site.store.fail_later("GET", "t/large", Fault::Denied, (1, 1));
    site.down(&sync);
    let other = object(2);
    site.store.put("t/large", other.clone());
    assert_eq!(complete(&site.down(&Options { resume: true, ..sync })), (1, 0));
    assert!(fs::read(site.path("copy/large")).unwrap() == other.bytes);
}

#[test]
fn object_that_changes_during_the_copy_is_reported() {
    let site = Site::new();
    site.store.put("t/file", Stored::new(b"1", &[]));
    site.store.fail("GET", "t/file", Fault::Change, 1);
    let outcome = site.down(&OPTIONS);
    assert!(problem(&outcome, "t/file").contains("during the copy"));
    assert!(!site.path("copy/file").exists());
}

#[test]
fn shares_of_several_hosts_make_a_whole_copy() {
    let site = Site::new();
    let contents = bytes(3 * LEAST_PART as usize + 10);
    fs::write(site.path("source/large"), &contents).unwrap();
    for number in 0..20 {
        fs::write(site.path("source").join(format!("f{number}")), number.to_string()).unwrap();
    }
    let parts = |run: &dyn Fn(&Options) -> Outcome| {
        let of = |part| Options { part, ..OPTIONS };
        let prepared = run(&of(Part::Prepare));
        assert_eq!((prepared.files, prepared.problem_count), (0, 0));
        let mut files = 0;
        for index in 0..3 {
            let outcome = run(&of(Part::Share(Share::new(index, 3, true).unwrap())));
            assert!(outcome.bytes > 0 && outcome.problem_count == 0, "{outcome:?}");
            files += outcome.files;
        }
        assert_eq!(files, 20);
        complete(&run(&of(Part::Finish)))
    };
    assert_eq!(parts(&|options| site.up(options)), (1, 20));
    assert_eq!(site.store.count("PUT", "partNumber="), 4);
    assert!(site.store.get("t/large").unwrap().bytes == contents);
    assert_eq!(site.store.uploads(), 0);
    let large = site.store.get("t/large").unwrap();
    assert_eq!(parts_down(&site), 21);
    assert!(fs::read(site.path("copy/large")).unwrap() == large.bytes);
}

/// Copies from the store in three shares, and returns the number of copied files.
fn parts_down(site: &Site) -> u64 {
    let of = |part| Options { part, ..OPTIONS };
    site.down(&of(Part::Prepare));
    let mut files = 0;
    for index in 0..3 {
        let outcome = site.down(&of(Part::Share(Share::new(index, 3, false).unwrap())));
        assert_eq!(outcome.problems, []);
        files += outcome.files;
    }
    assert_eq!(complete(&site.down(&of(Part::Finish))), (0, files));
    files
}

#[test]
fn large_object_of_an_earlier_copy_is_replaced_by_several_hosts() {
    let site = Site::new();
    let contents = bytes(LEAST_PART as usize + 10);
    fs::write(site.path("source/large"), &contents).unwrap();
    site.up(&OPTIONS);
    // Length and metadata stay equal, but a byte differs.
    let mut object = site.store.get("t/large").unwrap();
    object.bytes[7] ^= 1;
    site.store.put("t/large", object);
    let parts = [Part::Prepare, Part::Share(Share::new(0, 1, true).unwrap()), Part::Finish];
    let of = |part| Options { part, ..OPTIONS };
    let outcomes = parts.map(|part| complete(&site.up(&of(part))));
    assert_eq!(outcomes, [(0, 0), (0, 0), (1, 0)]);
    assert!(site.store.get("t/large").unwrap().bytes == contents);
    assert_eq!(site.store.uploads(), 0);
}

#[test]
fn large_download_by_several_hosts_replaces_an_earlier_file() {
    let site = Site::new();
    let contents = vec![7; 2 * PIECE as usize];
    // For an object this large, the test store would take long to compute the entity tag.
    let object = Stored { bytes: contents, etag: "\"7\"".into(), ..Stored::default() };
    site.store.put("t/large", object.clone());
    assert_eq!(complete(&site.down(&OPTIONS)), (1, 0));
    // Length and time stay equal, but a byte differs.
    let copy = fs::File::options().write(true).open(site.path("copy/large")).unwrap();
    let time = copy.metadata().unwrap().modified().unwrap();
    copy.write_all_at(b"x", PIECE).unwrap();
    copy.set_modified(time).unwrap();
    let parts = [Part::Prepare, Part::Share(Share::new(0, 1, true).unwrap()), Part::Finish];
    let of = |part| Options { part, ..OPTIONS };
    let outcomes = parts.map(|part| complete(&site.down(&of(part))));
    assert_eq!(outcomes, [(0, 0), (0, 0), (1, 0)]);
    assert!(fs::read(site.path("copy/large")).unwrap() == object.bytes);
}

#[test]
fn dry_run_changes_nothing() {
    let site = Site::new();
    fs::write(site.path("source/file"), b"12345").unwrap();
    let dry = Options { is_dry_run: true, ..RESUME };
    let outcome = site.up(&dry);
    assert_eq!((outcome.files, outcome.bytes, site.store.keys().len()), (1, 5, 0));
    site.up(&OPTIONS);
    assert_eq!(complete(&site.up(&dry)), (0, 1));
    let outcome = site.down(&dry);
    assert_eq!((outcome.files, outcome.bytes, site.path("copy").exists()), (1, 5, false));
}

#[test]
fn expired_credentials_end_the_copy() {
    let site = Site::new();
    for number in 0..50 {
        site.store.put(&format!("t/{number:02}"), Stored::new(b"1", &[]));
    }
    site.store.fail("GET", "t/", Fault::Expired, 1);
    let outcome = site.down(&Options { threads: 1, ..OPTIONS });
    assert!(outcome.has_ended_early && outcome.files < 50, "{outcome:?}");
    assert_eq!(outcome.problem_count, 1);
    assert!(outcome.problems[0].problem.contains("get new ones"), "{outcome:?}");
}
