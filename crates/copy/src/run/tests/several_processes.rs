//! Tests of copies by several processes. Each process does one part of the copy.

use super::*;
use crate::plan::{LARGE, PIECE};
use crate::shares::Share;

fn part(options: &Options, part: Part) -> Options {
    Options { part, ..options.clone() }
}

fn share(options: &Options, index: u32, count: u32) -> Options {
    part(options, Part::Share(Share::new(index, count, true).unwrap()))
}

/// Runs all parts of a copy, with all shares at the same time. Returns the outcomes of the shares
/// and the outcome of the last part.
fn run_all(site: &Site, options: &Options, count: u32) -> (Vec<Outcome>, Outcome) {
    site.succeed(&part(options, Part::Prepare));
    let shares = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|index| scope.spawn(move || site.run(&share(options, index, count))))
            .collect();
        threads.into_iter().map(|it| it.join().unwrap()).collect()
    });
    (shares, site.run(&part(options, Part::Finish)))
}

/// Creates a large file with data at the beginning of each of its three pieces.
fn add_large(site: &Site) {
    let file = File::create(site.source("a/large")).unwrap();
    file.set_len(LARGE + 5).unwrap();
    for piece in 0..3_u8 {
        file.write_all_at(&[piece + 1; 5], u64::from(piece) * PIECE).unwrap();
    }
    // The file has holes, so each piece has one block of data.
    assert!(file.metadata().unwrap().blocks() < 1000);
}

#[test]
fn shares_copy_each_file_once_and_all_kinds_of_entries() {
    let site = Site::new();
    fill(&site.source(""));
    add_large(&site);
    let (shares, finish) = run_all(&site, &Options { sync: true, ..OPTIONS }, 3);
    for it in shares.iter().chain([&finish]) {
        assert_eq!(it.problems, []);
    }
    expect_same(&site);
    let files: Vec<_> = shares.iter().map(|it| it.files).collect();
    // The last part copies the large file, and one of the 42 small files, because this file has
    // three names.
    assert_eq!((files.iter().sum::<u64>(), finish.files), (41, 2), "{shares:?} {finish:?}");
    assert!(files.iter().all(|it| *it > 5), "{files:?}");
    let others: u64 = shares.iter().map(|it| it.others).sum();
    assert_eq!((others, finish.others), (3, 2));
    // The process of each share has compared its pieces of the large file, in which data and holes
    // alternate.
    let verified: u64 = shares.iter().map(|it| it.verified_bytes).sum();
    // No piece is compared twice.
    assert!((LARGE..LARGE + PIECE).contains(&verified) && finish.verified_bytes < PIECE);
    assert!(shares.iter().filter(|it| it.verified_bytes > PIECE).count() >= 2, "{shares:?}");
    let again = site.succeed(&Options { resume: true, verify: false, ..OPTIONS });
    assert_eq!((again.files, again.bytes), (0, 0));
}

#[test]
fn finish_part_copies_entries_that_no_host_has_copied() {
    let site = Site::new();
    fill(&site.source(""));
    add_large(&site);
    let options = Options { verify: false, ..OPTIONS };
    site.succeed(&part(&options, Part::Prepare));
    site.succeed(&share(&options, 0, 2));
    site.succeed(&part(&options, Part::Finish));
    expect_same(&site);
}

#[test]
fn interrupted_copy_continues_with_another_number_of_hosts() {
    let site = Site::new();
    fill(&site.source(""));
    add_large(&site);
    let resume = Options { resume: true, verify: false, ..OPTIONS };
    site.succeed(&part(&resume, Part::Prepare));
    let first = site.succeed(&share(&resume, 1, 2));
    // Each piece of the file has one block of data.
    let block = site.source("").metadata().unwrap().blksize();
    assert!(first.bytes > block, "{first:?}");
    let (shares, finish) = run_all(&site, &resume, 3);
    expect_same(&site);
    let bytes: u64 = shares.iter().map(|it| it.bytes).sum::<u64>() + finish.bytes;
    let whole = Site::new();
    fill(&whole.source(""));
    add_large(&whole);
    let all = whole.succeed(&OPTIONS).bytes;
    assert_eq!(first.bytes + bytes, all, "{first:?} {shares:?} {finish:?}");
}

#[test]
fn share_reports_wrong_bytes_of_an_earlier_run() {
    let site = Site::new();
    fs::write(site.source("file"), "right").unwrap();
    site.succeed(&OPTIONS);
    let time = fs::metadata(site.source("file")).unwrap().modified().unwrap();
    fs::write(site.copy("file"), "wrong").unwrap();
    File::options().write(true).open(site.copy("file")).unwrap().set_modified(time).unwrap();
    let (shares, finish) = run_all(&site, &Options { resume: true, ..OPTIONS }, 2);
    let problems: Vec<_> = shares.iter().flat_map(|it| &it.problems).collect();
    assert_eq!((problems.len(), finish.problems.len()), (1, 0), "{problems:?}");
    assert!(problems[0].problem.contains("differs from the source"), "{problems:?}");
    // Without the option `resume`, all files are copied again.
    let (shares, finish) = run_all(&site, &OPTIONS, 2);
    assert_eq!(shares.iter().map(|it| it.files).sum::<u64>(), 1, "{shares:?} {finish:?}");
    expect_same(&site);
}

#[test]
fn large_file_of_an_earlier_copy_is_replaced_by_several_hosts() {
    let site = Site::new();
    fs::create_dir(site.source("a")).unwrap();
    add_large(&site);
    site.succeed(&OPTIONS);
    // Length and time stay equal, but some bytes differ.
    let time = fs::metadata(site.source("a/large")).unwrap().modified().unwrap();
    let copy = File::options().write(true).open(site.copy("a/large")).unwrap();
    copy.write_all_at(b"wrong", PIECE).unwrap();
    copy.set_modified(time).unwrap();
    let (shares, finish) = run_all(&site, &OPTIONS, 2);
    for it in shares.iter().chain([&finish]) {
        assert_eq!(it.problems, []);
    }
    assert_eq!((finish.files, finish.skipped), (1, 0), "{shares:?} {finish:?}");
    expect_same(&site);
    assert_eq!(site.copied_names(), ["a"]);
}

#[test]
fn copy_by_one_process_is_refused_while_a_share_runs() {
    let site = Site::new();
    fs::write(site.source("file"), "x").unwrap();
    site.succeed(&OPTIONS);
    let other = File::open(site.copy("")).unwrap();
    flock(&other, FlockOperation::LockShared).unwrap();
    // While one share holds the lock, another share of the same copy can take it too.
    site.succeed(&share(&OPTIONS, 0, 1));
    let pair = Pair { source: site.source(""), destination: site.copy("") };
    let refused = copy(&[pair], &OPTIONS, &|_| ()).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::Busy, "{refused}");
}
