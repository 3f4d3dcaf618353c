//! Several mounts make the same call, or conflicting calls, at the same time, and exactly one of
//! these calls may succeed.

use crate::{Mounts, create_spread_rounds, within_a_second};
use rustix::fs::{CWD, FileType, Mode, RenameFlags, mknodat, renameat_with};
use rustix::io::Errno;
use skep_testkit::files;
use skep_testkit::suite::Case;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Barrier;

pub(crate) const CASES: &[Case<Mounts>] = skep_testkit::cases![races:
    exactly_one_of_many_creators_of_a_name_succeeds,
    two_concurrent_exchanges_of_directories_keep_a_tree,
    three_concurrent_exchanges_of_directories_keep_a_tree,
];

/// A call of contender `number` that tries to create the name `new` in `place`. A call that needs
/// an existing file uses the contender's own file, whose name contains `number`.
type Make = fn(place: &Path, number: usize) -> io::Result<()>;

const WAYS: [(&str, Make); 6] = [
    ("mkdir", |place, _| fs::create_dir(place.join("new"))),
    ("open", |place, number| {
        use std::io::Write;
        fs::File::create_new(place.join("new"))?.write_all(number.to_string().as_bytes())
    }),
    ("link", |place, number| fs::hard_link(place.join(format!("own-{number}")), place.join("new"))),
    ("symlink", |place, number| symlink(format!("own-{number}"), place.join("new"))),
    ("mknod", |place, _| {
        mknodat(CWD, place.join("new"), FileType::Fifo, Mode::RUSR, 0).map_err(io::Error::from)
    }),
    ("rename", |place, number| {
        let own = place.join(format!("own-{number}"));
        renameat_with(CWD, own, CWD, place.join("new"), RenameFlags::NOREPLACE)
            .map_err(io::Error::from)
    }),
];

/// docs/semantics.md 1.5, and the rule of 1.4 that `RENAME_NOREPLACE` replaces no entry.
fn exactly_one_of_many_creators_of_a_name_succeeds(mounts: &Mounts) {
    const ROUNDS: usize = 15;
    for (way, make) in WAYS {
        for round in 0..ROUNDS {
            let name = format!("{way}-{round}");
            // The list contains one mount twice, so that requests of a single mount also compete
            // with each other.
            let all = [&mounts.one, &mounts.other, &mounts.at_once, &mounts.other];
            let places: Vec<_> = all.into_iter().map(|it| it.join(&name)).collect();
            files::create_dir(&places[0]);
            for number in 0..places.len() {
                let own = places[0].join(format!("own-{number}"));
                files::write(own, number.to_string());
            }
            let winner =
                only_one_succeeds(&name, &places, ErrorKind::AlreadyExists, |number, place| {
                    make(place, number)
                });
            places.iter().for_each(|place| check_winner(way, place, winner));
        }
    }
}

/// Calls `act` for each path at the same time. Exactly one call must succeed, and all others must
/// fail with `expected`. Returns the index of the call that has succeeded.
#[track_caller]
pub(crate) fn only_one_succeeds(
    what: &str,
    paths: &[PathBuf],
    expected: ErrorKind,
    act: impl Fn(usize, &Path) -> io::Result<()> + Sync,
) -> usize {
    let starts = Barrier::new(paths.len());
    let results: Vec<_> = std::thread::scope(|scope| {
        let all = paths.iter().enumerate().map(|(index, path)| {
            let (starts, act) = (&starts, &act);
            scope.spawn(move || {
                starts.wait();
                act(index, path)
            })
        });
        let all: Vec<_> = all.collect();
        all.into_iter().map(|it| it.join().expect("no panic")).collect()
    });
    let winners: Vec<_> = (0..paths.len()).filter(|index| results[*index].is_ok()).collect();
    let [winner] = winners[..] else { panic!("{what}: {results:?}") };
    for error in results.iter().filter_map(|it| it.as_ref().err()) {
        assert_eq!(error.kind(), expected, "{what}: {error}");
    }
    winner
}

/// Checks that the name `new` refers to the file of the contender `winner`, and that all other
/// contenders still have their own files.
fn check_winner(way: &str, place: &Path, winner: usize) {
    let new = place.join("new");
    let found = files::symlink_metadata(&new);
    let winners = place.join(format!("own-{winner}"));
    let text = || files::read_to_string(&new);
    match way {
        "mkdir" => assert!(found.is_dir()),
        "mknod" => assert!(found.file_type().is_fifo()),
        "symlink" => assert_eq!(place.join(files::read_link(&new)), winners),
        "link" => {
            assert_eq!(found.ino(), files::metadata(&winners).ino());
            within_a_second("the number of links", || {
                (0..4).all(|number| {
                    let own = fs::metadata(place.join(format!("own-{number}")));
                    own.expect("the file stays").nlink() == 1 + u64::from(number == winner)
                })
            });
        }
        _ => assert_eq!(text(), winner.to_string()),
    }
    let moved = usize::from(way == "rename");
    within_a_second("the remaining files of the contenders", || {
        let own = (0..4).filter(|number| place.join(format!("own-{number}")).exists());
        own.count() == 4 - moved && winners.exists() == (moved == 0)
    });
    if way == "rename" {
        for number in (0..4).filter(|number| *number != winner) {
            let own = fs::read_to_string(place.join(format!("own-{number}")));
            assert_eq!(own.expect("the file stays"), number.to_string());
        }
    }
}

/// Adds the paths of all mark files below `directory` to `found`. A mark file contains a text. The
/// key in `found` is this text.
fn places_of_marks(directory: &Path, found: &mut BTreeMap<String, Vec<String>>) {
    for entry in files::read_dir(directory).map(|it| it.expect("an entry")) {
        let path = entry.path();
        if path.is_dir() {
            places_of_marks(&path, found);
        } else {
            let mark = files::read_to_string(&path);
            found.entry(mark).or_default().push(path.display().to_string());
        }
    }
}

fn exchange(top: &Path, first: &str, second: &str) -> rustix::io::Result<()> {
    renameat_with(CWD, top.join(first), CWD, top.join(second), RenameFlags::EXCHANGE)
}

/// In each round, one mount for each name in `ring` exchanges the directory with this name and the
/// directory below the next name in the ring. All exchanges run at the same time. All exchanges
/// together would create a loop that is not reachable from the root, so metadata must refuse the
/// exchange that would close the loop. The directories of the ring are on two metadata groups.
///
/// The error of the refused exchange depends on whether its mount already shows the other
/// exchanges. In a tree with the other exchanges, the names in the refused call refer to different
/// directories.
fn exchange_in_a_ring(mounts: &Mounts, ring: &[&str], rounds: usize) {
    create_spread_rounds(&mounts.at_once, rounds, ring);
    for round in 0..rounds {
        let name = format!("round-{round}");
        let top = mounts.at_once.join(&name);
        for directory in ring {
            for place in [top.join(directory), top.join(directory).join("below/inner")] {
                files::create_dir_all(&place);
                let mark =
                    place.strip_prefix(&top).expect("a path below the top").display().to_string();
                files::write(place.join("mark"), mark);
            }
        }
        let starts = Barrier::new(ring.len());
        let results: Vec<_> = std::thread::scope(|scope| {
            let all = [&mounts.one, &mounts.other, &mounts.at_once].into_iter().zip(ring);
            let all = all.enumerate().map(|(index, (place, first))| {
                let (place, starts) = (place.join(&name), &starts);
                let second = format!("{}/below/inner", ring[(index + 1) % ring.len()]);
                // Look up the paths, so that the mounts cache the paths and need no lookups during
                // the exchange.
                assert!(place.join(first).is_dir() && place.join(&second).is_dir());
                scope.spawn(move || {
                    starts.wait();
                    exchange(&place, first, &second)
                })
            });
            let all: Vec<_> = all.collect();
            all.into_iter().map(|it| it.join().expect("no panic")).collect()
        });
        let done = results.iter().filter(|it| it.is_ok()).count();
        assert!((1..ring.len()).contains(&done), "{name}: {results:?}");
        for error in results.iter().filter_map(|it| it.err()) {
            // NOENT and STALE are allowed, because after a new lookup the names may refer to other
            // directories or may not exist.
            let allowed = [Errno::INVAL, Errno::NOENT, Errno::STALE];
            assert!(allowed.contains(&error), "{name}: {results:?}");
        }
        let mut found = BTreeMap::new();
        places_of_marks(&top, &mut found);
        assert_eq!(found.len(), 2 * ring.len(), "{name}: {results:?}: {found:?}");
        assert!(found.values().all(|places| places.len() == 1), "{name}: {found:?}");
    }
}

/// docs/semantics.md 1.7.
fn two_concurrent_exchanges_of_directories_keep_a_tree(mounts: &Mounts) {
    exchange_in_a_ring(mounts, &["a", "b"], 25);
}

/// docs/semantics.md 1.7. Any two of the three exchanges can both succeed, but all three together
/// would create a loop.
fn three_concurrent_exchanges_of_directories_keep_a_tree(mounts: &Mounts) {
    exchange_in_a_ring(mounts, &["a", "b", "c"], 25);
}
