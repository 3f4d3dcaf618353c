//! Tests of entries that cannot be copied, and of interference by other programs and users.

use super::*;
use crate::version::Identity;
use std::os::unix::net::UnixListener;

#[test]
fn symlinks_at_the_destination_are_not_followed() {
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
    // The copy of a file replaces a symbolic link with the name of the file. A symbolic link with
    // the name of a directory is an error.
    assert!(!site.copy("victim").is_symlink());
    let [problem] = outcome.problems.as_slice() else { panic!("{outcome:?}") };
    assert!(problem.path.ends_with("source/sub"), "{problem:?}");
}

#[test]
fn entries_that_cannot_be_copied_are_reported() {
    let site = Site::new();
    let (reserved, _) = partial_names(OsStr::new("other"));
    for name in [OsStr::new("file"), OsStr::new("other"), &reserved] {
        fs::write(site.source("").join(name), "y").unwrap();
    }
    let _socket = UnixListener::bind(site.source("socket")).unwrap();
    fs::create_dir(site.copy("")).unwrap();
    fs::create_dir(site.copy("file")).unwrap();
    let outcome = site.run(&OPTIONS);
    assert_eq!((outcome.problem_count, outcome.files, outcome.others), (2, 1, 1));
    for (problem, words) in outcome.problems.iter().zip(["are reserved", "a directory has this"]) {
        assert!(problem.problem.contains(words), "{problem:?}");
    }
    assert_eq!(site.copied_names(), ["file", "other", "socket"]);
}

#[test]
fn proc_files_are_reported_and_not_copied() {
    let site = Site::new();
    let pair = Pair { source: "/proc/version".into(), destination: site.copy("version") };
    let outcome = copy(&[pair], &OPTIONS, &|_| ()).unwrap();
    assert!(outcome.problems[0].problem.contains("the kernel generates it"), "{outcome:?}");
    assert_eq!(site.copied_names(), [] as [&str; 0]);
}

#[test]
fn copy_does_not_read_a_file_that_replaced_the_listed_file() {
    let site = Site::new();
    fs::write(site.source("file"), "first").unwrap();
    fs::write(site.source("other"), "other").unwrap();
    let parent = File::open(site.source("")).unwrap();
    let name = OsStr::new("file");
    let seen = Seen::open(&parent, name).unwrap().unwrap();
    seen.open_file(&parent, name).unwrap();
    fs::rename(site.source("other"), site.source("file")).unwrap();
    assert!(seen.open_file(&parent, name).is_err());
    fs::remove_file(site.source("file")).unwrap();
    symlink("/etc/passwd", site.source("file")).unwrap();
    assert!(seen.open_file(&parent, name).is_err());
}

#[test]
fn entries_added_during_the_copy_are_reported() {
    let site = Site::new();
    fs::create_dir(site.copy("")).unwrap();
    let context = Arc::new(Context::new(&OPTIONS));
    let pair = Pair { source: site.source(""), destination: site.copy("") };
    let top = top(&context, 0, &pair).unwrap();
    let walk = Walk { context: context.clone(), links: Links::default(), tops: vec![None] };
    let work = walk.directory(&top.parent, &top.entry).unwrap();
    let before = fs::metadata(site.source("")).unwrap().modified().unwrap();
    while fs::metadata(site.source("")).unwrap().modified().unwrap() == before {
        fs::write(site.source("late"), "x").unwrap();
        fs::remove_file(site.source("late")).unwrap();
    }
    drop(work);
    let outcome = context.counters.outcome(false, Duration::ZERO);
    assert!(outcome.problems[0].problem.contains("added or removed entries"), "{outcome:?}");
}

#[test]
fn copies_do_not_keep_inherited_access_control_lists() {
    let site = Site::new();
    fs::create_dir(site.source("sub")).unwrap();
    fs::write(site.source("sub/file"), "x").unwrap();
    fs::write(site.source("file"), "x").unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        site.source("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    fs::create_dir(site.copy("")).unwrap();
    // Version 2 of an access control list: owner rwx, user 1234 rwx, group r-x, mask rwx, others
    // r-x.
    let entries: [(u16, u16, u32); 5] =
        [(1, 7, u32::MAX), (2, 7, 1234), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 5, u32::MAX)];
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        list.extend([tag.to_le_bytes(), rights.to_le_bytes()].concat());
        list.extend(id.to_le_bytes());
    }
    let default = "system.posix_acl_default";
    lsetxattr(site.copy(""), default, &list, XattrFlags::empty()).unwrap();
    site.succeed(&OPTIONS);
    for path in ["file", "pipe", "sub", "sub/file"] {
        for name in ["system.posix_acl_access", default] {
            let found = lgetxattr(site.copy(path), name, &mut [0_u8; 100][..]);
            assert!(found.is_err(), "{path} {name}");
        }
    }
    expect_same(&site);
}

#[test]
fn second_copy_to_the_same_destination_is_refused() {
    let site = Site::new();
    fs::create_dir(site.copy("")).unwrap();
    fs::set_permissions(site.copy(""), fs::Permissions::from_mode(0o711)).unwrap();
    let lock = File::open(site.copy("")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let pair = Pair { source: site.source(""), destination: site.copy("") };
    let error = copy(&[pair], &OPTIONS, &|_| ()).unwrap_err();
    assert!(error.context().contains("copies to this destination"), "{error}");
    assert_eq!(fs::metadata(site.copy("")).unwrap().permissions().mode() & 0o777, 0o711);
    drop(lock);
    site.succeed(&OPTIONS);
}

#[test]
fn copy_over_its_own_source_is_refused() {
    let site = Site::new();
    fs::create_dir_all(site.copy("a/a")).unwrap();
    fs::write(site.copy("a/a/file"), "x").unwrap();
    let pair = Pair { source: site.copy("a"), destination: site.copy("") };
    let outcome = copy(&[pair], &OPTIONS, &|_| ()).unwrap();
    assert!(
        outcome.problems[0].problem.contains("the directory would be in the source"),
        "{outcome:?}"
    );
    assert!(!site.copy("a/file").exists());
    fs::write(site.source("file"), "x").unwrap();
    fs::hard_link(site.source("file"), site.copy("file")).unwrap();
    let pair = Pair { source: site.source("file"), destination: site.copy("file") };
    let outcome = copy(&[pair], &OPTIONS, &|_| ()).unwrap();
    assert!(outcome.problems[0].problem.contains("are the same file"), "{outcome:?}");
}

#[test]
fn copy_never_replaces_an_entry_created_during_the_copy() {
    let site = Site::new();
    fs::create_dir(site.copy("")).unwrap();
    fs::write(site.copy("new"), "new").unwrap();
    fs::write(site.copy("name"), "old").unwrap();
    let destination = Destination::new(File::open(site.copy("")).unwrap(), false).unwrap();
    let put = |copy, replaces| {
        let [new, name] = ["new", "name"].map(OsStr::new);
        crate::publish::put_in_place(&destination, new, copy, name, replaces)
    };
    let [new, old] = ["new", "name"].map(|name| fs::metadata(site.copy(name)).unwrap());
    assert!(put(Identity::of(&new), false).is_err());
    // Another program has replaced the incomplete copy.
    assert!(put(Identity::of(&old), true).is_err());
    assert_eq!(fs::read(site.copy("name")).unwrap(), b"old");
    put(Identity::of(&new), true).unwrap();
    assert_eq!(fs::read(site.copy("name")).unwrap(), b"new");
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
    let error = copy(&[missing], &OPTIONS, &|_| ()).unwrap_err();
    assert_eq!(error.code(), ErrorCode::NotFound);
    assert!(!site.copy("").exists());
}

#[test]
fn copy_of_several_sources_into_one_of_them_is_refused() {
    let site = Site::new();
    fs::create_dir(site.source("a")).unwrap();
    fs::create_dir(site.source("b")).unwrap();
    let pair = |source: &str, destination| Pair { source: site.source(source), destination };
    let pairs = [pair("a", site.copy("a")), pair("b", site.source("a/new/b"))];
    let error = copy(&pairs, &OPTIONS, &|_| ()).unwrap_err();
    assert!(error.context().contains("name a destination outside"), "{error}");
    assert!(!site.source("a/new").exists() && !site.copy("").exists());
    let sync = Options { sync: true, ..OPTIONS };
    copy(&[pair("a", site.copy("new/deep/a"))], &sync, &|_| ()).unwrap();
    assert!(site.copy("new/deep/a").is_dir());
}
