//! Random operations from two mounts, cross-directory renames among them, against one reference
//! tree: the same calls on the local file system. Each call must end the same way, and the trees
//! must be the same.
//!
//! The mounts take turns; between two turns the test waits until caches of names and attributes
//! have run out (a second), so that what is expected is exact. What happens within that second is
//! the subject of the coherence tests, operations at the same moment that of the simulation.
//!
//! A failing seed is printed with the command that repeats it. What led to the failure is then made
//! shorter by leaving operations out for as long as it still fails, and printed.

use rustix::fs::{CWD, RenameFlags, XattrFlags, renameat_with};
use skep_testkit::tree::{self, Node};
use skep_testkit::{Cluster, Random, Scratch, Shape, Transport, wait_for};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const TURNS: usize = 16;
const OPERATIONS_PER_TURN: usize = 150;
/// What is kept of names and attributes is at most so old.
const STALENESS: Duration = Duration::from_millis(1050);
/// Time for making a failure shorter.
const SHRINKING: Duration = Duration::from_secs(60);

/// One call. Paths are relative to the tree's root.
#[derive(Debug, Clone)]
enum Operation {
    Create(PathBuf),
    MakeDirectory(PathBuf),
    Symlink(PathBuf, PathBuf),
    Link(PathBuf, PathBuf),
    Rename(PathBuf, PathBuf),
    RenameOnlyIfFree(PathBuf, PathBuf),
    Exchange(PathBuf, PathBuf),
    Unlink(PathBuf),
    RemoveDirectory(PathBuf),
    Write(PathBuf, u64, usize, u8),
    Append(PathBuf, usize, u8),
    Truncate(PathBuf, u64),
    Permissions(PathBuf, u32),
    SetAttribute(PathBuf, u8),
    RemoveAttribute(PathBuf, u8),
    Read(PathBuf),
    List(PathBuf),
    Look(PathBuf),
}

/// A path of one to three components out of few names, so that paths meet.
fn path(random: &mut Random) -> PathBuf {
    let depth = 1 + random.below(3);
    (0..depth).map(|_| *random.one_of(&["a", "b", "c", "d"])).collect()
}

fn operation(random: &mut Random) -> Operation {
    let it = path(random);
    match random.below(25) {
        0..=2 => Operation::Create(it),
        3..=5 => Operation::MakeDirectory(it),
        6 => Operation::Symlink(path(random), it),
        7 => Operation::Link(it, path(random)),
        8..=10 => Operation::Rename(it, path(random)),
        11 => Operation::RenameOnlyIfFree(it, path(random)),
        12 => Operation::Unlink(it),
        13 => Operation::RemoveDirectory(it),
        14 | 15 => {
            let offset = *random.one_of(&[0, 1, 4095, 500_000, 524_287, 1_048_576]);
            let len = *random.one_of(&[1, 100, 4096, 70_000, 600_000]);
            Operation::Write(it, offset, len, random.number() as u8)
        }
        16 => Operation::Append(it, 1 + random.below(9000), random.number() as u8),
        17 => Operation::Truncate(it, *random.one_of(&[0, 1, 4096, 300_000, 524_288, 2_000_000])),
        18 => Operation::Permissions(it, *random.one_of(&[0o600, 0o755, 0o1777, 0o444])),
        19 => Operation::SetAttribute(it, random.below(4) as u8),
        20 => Operation::RemoveAttribute(it, random.below(4) as u8),
        21 => Operation::Read(it),
        22 => Operation::List(it),
        23 => Operation::Exchange(it, path(random)),
        _ => Operation::Look(it),
    }
}

/// What a call gave: something to compare, or an error number.
fn result<T>(
    result: Result<T, impl Into<io::Error>>,
    show: impl Fn(T) -> String,
) -> Result<String, i32> {
    result.map(show).map_err(|error| error.into().raw_os_error().unwrap_or(0))
}

fn nothing<T>(_: T) -> String {
    String::new()
}

impl Operation {
    /// Makes the call on a tree.
    fn run(&self, root: &Path) -> Result<String, i32> {
        let at = |path: &PathBuf| root.join(path);
        match self {
            Self::Create(path) => result(File::create_new(at(path)), nothing),
            Self::MakeDirectory(path) => result(fs::create_dir(at(path)), nothing),
            Self::Symlink(target, path) => result(symlink(target, at(path)), nothing),
            Self::Link(from, to) => result(fs::hard_link(at(from), at(to)), nothing),
            Self::Rename(from, to) => result(fs::rename(at(from), at(to)), nothing),
            Self::RenameOnlyIfFree(from, to) => {
                let flags = RenameFlags::NOREPLACE;
                result(renameat_with(CWD, at(from), CWD, at(to), flags), nothing)
            }
            Self::Exchange(from, to) => {
                let flags = RenameFlags::EXCHANGE;
                result(renameat_with(CWD, at(from), CWD, at(to), flags), nothing)
            }
            Self::Unlink(path) => result(fs::remove_file(at(path)), nothing),
            Self::RemoveDirectory(path) => result(fs::remove_dir(at(path)), nothing),
            Self::Write(path, offset, len, byte) => {
                let file = OpenOptions::new().write(true).open(at(path));
                let written = file.and_then(|it| it.write_all_at(&vec![*byte; *len], *offset));
                result(written, nothing)
            }
            Self::Append(path, len, byte) => {
                let file = OpenOptions::new().append(true).open(at(path));
                result(file.and_then(|mut it| it.write_all(&vec![*byte; *len])), nothing)
            }
            Self::Truncate(path, len) => {
                let file = OpenOptions::new().write(true).open(at(path));
                result(file.and_then(|it| it.set_len(*len)), nothing)
            }
            Self::Permissions(path, mode) => {
                let mode = fs::Permissions::from_mode(*mode);
                result(fs::set_permissions(at(path), mode), nothing)
            }
            Self::SetAttribute(path, key) => {
                let (name, value) = (format!("user.{key}"), [*key; 50]);
                let set = rustix::fs::setxattr(at(path), name, &value, XattrFlags::empty());
                result(set, nothing)
            }
            Self::RemoveAttribute(path, key) => {
                result(rustix::fs::removexattr(at(path), format!("user.{key}")), nothing)
            }
            Self::Read(path) => {
                let read = File::open(at(path)).and_then(|file| match file.metadata()?.is_dir() {
                    true => Ok("a directory".into()),
                    false => Ok(format!("{:x}", tree::hash_of_file(&at(path)))),
                });
                result(read, |hash| hash)
            }
            Self::List(path) => result(fs::read_dir(at(path)), |entries| {
                let name = |entry: io::Result<fs::DirEntry>| {
                    format!("{:?}", entry.map(|it| it.file_name()))
                };
                let mut names: Vec<_> = entries.map(name).collect();
                names.sort();
                names.join(" ")
            }),
            Self::Look(path) => result(fs::symlink_metadata(at(path)), |found| {
                let is_file = found.is_file();
                let len = if is_file { found.len() } else { 0 };
                let links = if is_file { found.nlink() } else { 0 };
                format!("{:o} {len} {links} {}:{}", found.mode(), found.uid(), found.gid())
            }),
        }
    }
}

fn differences(expected: &Path, found: &Path) -> Vec<String> {
    let (expected, found) = (tree::take(expected, false), tree::take(found, false));
    let paths: std::collections::BTreeSet<_> = expected.keys().chain(found.keys()).collect();
    let differs = |path: &&&PathBuf| expected.get(**path) != found.get(**path);
    let show = |tree: &BTreeMap<PathBuf, Node>, path: &PathBuf| format!("{:?}", tree.get(path));
    let line = |path: &PathBuf| {
        format!("{}: {}, not {}", path.display(), show(&found, path), show(&expected, path))
    };
    paths.iter().filter(differs).map(|path| line(path)).collect()
}

/// A mount's turn.
type Turn = Vec<Operation>;

struct Mounts {
    scratch: Scratch,
    mounts: [PathBuf; 2],
    runs: u32,
}

impl Mounts {
    /// Runs turns on new trees, and says what went wrong and in which turn.
    fn run(&mut self, turns: &[Turn]) -> Result<(), (usize, String)> {
        self.runs += 1;
        let name = format!("run-{}", self.runs);
        let reference = self.scratch.directory(&name);
        let roots = [0, 1].map(|it| self.mounts[it].join(&name));
        fs::create_dir(&roots[0]).expect("made");
        for (number, turn) in turns.iter().enumerate() {
            let mount = number % 2;
            for operation in turn {
                let expected = operation.run(&reference);
                let found = operation.run(&roots[mount]);
                if found != expected {
                    let what = format!("{operation:?} gave {found:?}, not {expected:?}");
                    return Err((number, format!("on mount {mount}: {what}")));
                }
            }
            // The mount itself sees its work at once, the other one when its caches have run out.
            let start = Instant::now();
            let check = |mount: usize| {
                let wrong = differences(&reference, &roots[mount]);
                let text = format!("tree of mount {mount}:\n{}", wrong.join("\n"));
                if wrong.is_empty() { Ok(()) } else { Err((number, text)) }
            };
            check(mount)?;
            wait_for("caches run out", Duration::from_secs(10), || {
                (start.elapsed() > STALENESS).then_some(())
            });
            check(1 - mount)?;
        }
        for root in &roots[..1] {
            fs::remove_dir_all(root).expect("removed");
        }
        Ok(())
    }

    /// Leaves operations out for as long as the rest still fails.
    fn shrink(&mut self, mut turns: Vec<Turn>) -> (Vec<Turn>, String) {
        let deadline = Instant::now() + SHRINKING;
        let mut last = String::from("it doesn't fail again");
        let mut share = 2;
        while Instant::now() < deadline {
            let longest = turns.iter().map(Vec::len).max().unwrap_or(0);
            let mut has_shrunk = false;
            for turn in 0..turns.len() {
                let len = turns[turn].len().div_ceil(share).max(1);
                let mut from = 0;
                while from < turns[turn].len() && Instant::now() < deadline {
                    let mut fewer = turns.clone();
                    let to = (from + len).min(fewer[turn].len());
                    fewer[turn].drain(from..to);
                    match self.run(&fewer) {
                        Err((_, what)) => {
                            (turns, last, has_shrunk) = (fewer, what, true);
                        }
                        Ok(()) => from += len,
                    }
                }
            }
            if !has_shrunk && share >= longest {
                break;
            }
            share *= 2;
        }
        (turns, last)
    }
}

/// Semantics 1.1.
#[test]
fn random_operations_from_two_mounts() {
    let seed = Random::seed_of_run();
    println!("seed {seed}: SKEP_TEST_SEED={seed} cargo test -p skep-testkit --test model");
    let mut random = Random::new(seed);
    let turns: Vec<Turn> = (0..TURNS)
        .map(|_| (0..OPERATIONS_PER_TURN).map(|_| operation(&mut random)).collect())
        .collect();
    let mut cluster = Cluster::start(Shape::default());
    let second = cluster.mount(Transport::Device);
    let mounts = [cluster.path().to_owned(), second.path().to_owned()];
    let mut mounts = Mounts { scratch: Scratch::new(), mounts, runs: 0 };
    if let Err((turn, what)) = mounts.run(&turns) {
        println!("turn {turn}: {what}");
        let (shortest, last) = mounts.shrink(turns[..=turn].to_vec());
        for (number, turn) in shortest.iter().enumerate().filter(|(_, turn)| !turn.is_empty()) {
            println!("turn {number}, mount {}:", number % 2);
            turn.iter().for_each(|operation| println!("    {operation:?}"));
        }
        panic!("seed {seed}: {what}\nthe shorter one: {last}");
    }
    second.unmount();
    cluster.stop();
}
