//! Tests of large files, which are copied in pieces, and of copies that are continued.

use super::*;
use crate::partial::Partial;
use crate::plan::{LARGE, PIECE, Version, list_head};
use crate::version::version_of;

#[test]
fn resumed_copy_of_a_large_file_copies_missing_pieces() {
    let site = Site::new();
    let len = LARGE + 5;
    let source = File::create(site.source("large")).unwrap();
    source.set_len(len).unwrap();
    source.write_all_at(b"first", 0).unwrap();
    source.write_all_at(b"second", PIECE).unwrap();
    source.write_all_at(b"third", 2 * PIECE).unwrap();
    // Creates the incomplete copy of a run that has finished the first piece. The bytes of the copy
    // differ from the source, so that the test can see which pieces are copied again.
    fs::create_dir(site.copy("")).unwrap();
    let (partial, list) = partial_names(OsStr::new("large"));
    let copy = File::create(site.copy("").join(&partial)).unwrap();
    copy.set_len(len).unwrap();
    copy.write_all_at(b"FIRST", 0).unwrap();
    copy.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
    let version = version_of(&source.metadata().unwrap());
    let head = list_head(OsStr::new("large"), version, copy.metadata().unwrap().ino());
    let text = [&head[..], b"1"].concat();
    write_private(&site.copy("").join(&list), &text);
    let resume = Options { resume: true, verify: false, ..OPTIONS };
    let read = |at: u64, len: usize| {
        let mut found = vec![0; len];
        File::open(site.copy("large")).unwrap().read_exact_at(&mut found, at).unwrap();
        found
    };
    site.succeed(&resume);
    assert_eq!((read(0, 5), read(PIECE, 6)), (b"FIRST".to_vec(), b"second".to_vec()));
    assert_eq!(read(2 * PIECE, 5), b"third");
    assert_eq!(site.copied_names(), ["large"]);
    // Without --resume, all pieces are copied. Holes remain holes.
    let outcome = site.succeed(&OPTIONS);
    assert!(outcome.bytes < 1 << 20, "{outcome:?}");
    assert_eq!(read(0, 5), b"first");
}

/// Creates an incomplete copy of the source `large`. Its bytes differ from the source, and all its
/// pieces are listed as finished.
fn plant_incomplete(site: &Site, source: &File) {
    let len = source.metadata().unwrap().len();
    fs::create_dir(site.copy("")).unwrap();
    let (partial, list) = partial_names(OsStr::new("large"));
    write_private(&site.copy("").join(&partial), b"OTHER");
    let copy = File::options().write(true).open(site.copy("").join(&partial)).unwrap();
    copy.set_len(len).unwrap();
    let version = version_of(&source.metadata().unwrap());
    let head = list_head(OsStr::new("large"), version, copy.metadata().unwrap().ino());
    write_private(&site.copy("").join(&list), &[&head[..], b"111"].concat());
}

fn write_private(path: &Path, contents: &[u8]) {
    fs::write(path, contents).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

fn large_source(site: &Site) -> File {
    let source = File::create(site.source("large")).unwrap();
    source.set_len(LARGE + 5).unwrap();
    source.write_all_at(b"first", 0).unwrap();
    source
}

fn first_bytes(path: &Path) -> Vec<u8> {
    let mut found = vec![0; 5];
    File::open(path).unwrap().read_exact_at(&mut found, 0).unwrap();
    found
}

#[test]
fn pieces_of_an_earlier_source_version_are_not_used() {
    let site = Site::new();
    let source = large_source(&site);
    let time = source.metadata().unwrap().modified().unwrap();
    plant_incomplete(&site, &source);
    // The new version has the length and the modification time of the old version. Only `ctime`
    // differs.
    let before = version_of(&source.metadata().unwrap()).changed;
    while version_of(&source.metadata().unwrap()).changed == before {
        source.write_all_at(b"later", 0).unwrap();
        source.set_modified(time).unwrap();
    }
    site.succeed(&Options { resume: true, verify: false, ..OPTIONS });
    assert_eq!(first_bytes(&site.copy("large")), b"later");
    assert_eq!(site.copied_names(), ["large"]);
}

#[test]
fn pieces_writable_by_other_users_are_not_used() {
    let site = Site::new();
    let source = large_source(&site);
    plant_incomplete(&site, &source);
    let names: [OsString; 2] = partial_names(OsStr::new("large")).into();
    let resume = Options { resume: true, verify: false, ..OPTIONS };
    for name in names {
        let path = site.copy("").join(name);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        site.succeed(&resume);
        assert_eq!(first_bytes(&site.copy("large")), b"first");
        assert_eq!(site.copied_names(), ["large"]);
        fs::remove_dir_all(site.copy("")).unwrap();
        plant_incomplete(&site, &source);
    }
}

#[test]
fn pieces_with_wrong_bytes_of_an_earlier_run_are_discarded() {
    let site = Site::new();
    plant_incomplete(&site, &large_source(&site));
    let resume = Options { resume: true, ..OPTIONS };
    let outcome = site.run(&resume);
    let [problem] = outcome.problems.as_slice() else { panic!("{outcome:?}") };
    assert!(problem.problem.contains("differs from the source at byte 0"), "{problem:?}");
    assert_eq!(site.copied_names(), [] as [&str; 0]);
    site.succeed(&resume);
    assert_eq!(first_bytes(&site.copy("large")), b"first");
}

#[test]
fn large_file_that_another_run_copies_is_not_copied() {
    let site = Site::new();
    plant_incomplete(&site, &large_source(&site));
    let (_, list) = partial_names(OsStr::new("large"));
    let list = File::open(site.copy("").join(list)).unwrap();
    flock(&list, FlockOperation::LockExclusive).unwrap();
    let outcome = site.run(&OPTIONS);
    let [problem] = outcome.problems.as_slice() else { panic!("{outcome:?}") };
    assert!(problem.problem.contains("copies this file now"), "{problem:?}");
    assert_eq!(site.copied_names().len(), 2);
}

#[test]
fn hosts_of_a_copy_share_a_file_and_lock_out_another_copy() {
    let site = Site::new();
    let source = large_source(&site);
    let version = version_of(&source.metadata().unwrap());
    let name = OsStr::new("large");
    fs::create_dir(site.copy("")).unwrap();
    let parent = File::open(site.copy("")).unwrap();
    assert!(Partial::join(&parent, name, version).unwrap().is_none());
    drop(Partial::open(&parent, name, version, false).unwrap());
    let first = Partial::join(&parent, name, version).unwrap().unwrap();
    let second = Partial::join(&parent, name, version).unwrap().unwrap();
    // When two hosts record pieces, neither host overwrites the record of the other host.
    second.note(2).unwrap();
    first.note(0).unwrap();
    assert!(Partial::open(&parent, name, version, true).is_err());
    let other = Version { len: LARGE + 6, ..version };
    assert!(Partial::join(&parent, name, other).unwrap().is_none());
    drop((first, second));
    let whole = Partial::open(&parent, name, version, true).unwrap();
    assert_eq!(whole.finished, [true, false, true]);
    assert!(Partial::join(&parent, name, version).is_err());
}
