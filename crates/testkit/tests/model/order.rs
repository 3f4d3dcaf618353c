//! Searches for an order of concurrent calls on the shared names that explains all their results
//! and the resulting tree. A call takes effect between its begin and its end, so a call that ended
//! before the begin of another call comes first. [`crate::call_steps`] has the steps of a call.
//!
//! `skep_testkit::linearizable` checks long histories of a single object, whose operations have one
//! step each. That check keeps all states that are possible after each return. The histories of
//! this module are short, but a call has several steps, and many states are possible. So this
//! search is in depth, and visits each state once. The search first continues the call that ended
//! first. Therefore, if an order exists, the search rarely needs more than a few steps for each
//! call.

use crate::call_steps::{CurrentCall, LENGTH, Progress, VALUE};
use crate::shared_call::{Recorded, SharedCall, SharedResult, WHOLE};
use crate::shared_tree::{FIRST_NEW, SharedTree};
use std::cmp::Reverse;
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

/// Maximum number of states that a search visits. A search for a burst usually visits some thousand
/// states.
const MAX_STATES: usize = 5_000_000;

/// A state of the search: the tree, and the progress of each thread.
#[derive(Hash)]
struct State {
    tree: SharedTree,
    threads: Vec<Progress>,
}

/// Checks that some order of the calls explains their results, and that the tree changes from
/// `before` to `after`. `threads` has the calls of each thread in their order.
///
/// # Errors
/// States that no order explains the results, or that the search has become too long.
pub(crate) fn check(
    before: &SharedTree,
    threads: &[Vec<Recorded>],
    after: &SharedTree,
) -> Result<(), String> {
    check_mixed_bytes(threads)?;
    let start = vec![Progress::default(); threads.len()];
    let mut waiting = vec![State { tree: before.clone(), threads: start }];
    // The hash of a state has 64 bits, so the search practically never confuses two states.
    let (mut visited, hasher) = (HashSet::new(), RandomState::new());
    while let Some(state) = waiting.pop() {
        if !visited.insert(hasher.hash_one(&state)) {
            continue;
        }
        if visited.len() > MAX_STATES {
            return Err(format!("no order was found within {MAX_STATES} states"));
        }
        let running = state.threads.iter().enumerate();
        let mut running: Vec<(usize, &Recorded)> = running
            .filter_map(|(thread, it)| Some((thread, threads[thread].get(it.returned)?)))
            .collect();
        let Some(first_end) = running.iter().map(|(_, it)| it.ended).min() else {
            if state.tree.is_shown_as(after) {
                return Ok(());
            }
            continue;
        };
        // The call that ended first comes before all calls that began after its end.
        running.retain(|(_, it)| it.began <= first_end);
        // The search continues with the last state of the list.
        running.sort_by_key(|(_, it)| Reverse(it.ended));
        for (thread, recorded) in running {
            let progress = state.threads[thread];
            let earlier: usize = threads[..thread].iter().map(Vec::len).sum();
            let call = CurrentCall {
                recorded,
                new_directory: FIRST_NEW + earlier + progress.returned,
                concurrent: written_meanwhile(recorded, thread, threads),
                progress,
                tree: &state.tree,
            };
            for (progress, tree) in call.next_steps() {
                let mut threads = state.threads.clone();
                threads[thread] = progress;
                waiting.push(State { tree, threads });
            }
        }
    }
    Err("no order of the calls explains their results and the tree after them".into())
}

/// Returns the calls of other threads that change bytes at the same time as this call.
fn changes_meanwhile<'a>(
    call: &'a Recorded,
    thread: usize,
    threads: &'a [Vec<Recorded>],
) -> impl Iterator<Item = SharedCall> + 'a {
    let others = threads.iter().enumerate().filter(move |(other, _)| *other != thread);
    let changes = others.flat_map(|(_, it)| it).filter(|it| it.call.changes_bytes());
    changes.filter(move |it| it.overlaps(call)).map(|it| it.call)
}

/// Returns a bit mask of the pieces (length and value) of the bytes that a call has read. A bit is
/// set if a concurrent write or truncation may have written this piece. Until the change has
/// returned, each read may return the bytes from before or after the change (docs/semantics.md 2.3,
/// 2.5 and 2.7).
fn written_meanwhile(call: &Recorded, thread: usize, threads: &[Vec<Recorded>]) -> u8 {
    let Ok(SharedResult::Bytes(len, byte)) = call.result else { return 0 };
    let changes = changes_meanwhile(call, thread, threads);
    changes.fold(0, |seen, change| {
        let (changed_len, value) = match change {
            SharedCall::Write(_, value) => (WHOLE, value),
            // An empty file becomes longer by zeros.
            SharedCall::Truncate(_, len) => (len, 0),
            _ => return seen,
        };
        let length = if changed_len == len { LENGTH } else { 0 };
        seen | length | if value == byte { VALUE } else { 0 }
    })
}

/// Checks all reads that returned bytes of different values. Only a read at the same time as a
/// change of bytes by another thread may return a part of a write (docs/semantics.md 2.5).
fn check_mixed_bytes(threads: &[Vec<Recorded>]) -> Result<(), String> {
    for (thread, calls) in threads.iter().enumerate() {
        for read in calls.iter().filter(|it| it.result == Ok(SharedResult::MixedBytes)) {
            if changes_meanwhile(read, thread, threads).next().is_none() {
                return Err(format!("{:?} returned bytes of different writes", read.call));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared_call::{CallResult, SharedPath};
    use crate::shared_tree::{Contents, Directory, Entry, ROOT};
    use rustix::fs::RenameFlags;
    use rustix::io::Errno;
    use std::time::{Duration, Instant};

    const A: SharedPath = SharedPath { directory: None, name: 0 };
    const B: SharedPath = SharedPath { directory: None, name: 1 };
    const B_A: SharedPath = SharedPath { directory: Some(1), name: 0 };
    const DONE: CallResult = Ok(SharedResult::Done);
    const PLAIN: RenameFlags = RenameFlags::empty();
    const LONG: Contents = Contents { len: WHOLE, byte: 7 };

    /// The calls of one thread, each with the milliseconds of its begin and its end.
    type Listed<'a> = &'a [(u64, u64, SharedCall, CallResult)];

    fn verdict(before: &SharedTree, threads: &[Listed<'_>], after: &SharedTree) -> bool {
        let start = Instant::now();
        let at = |milliseconds: &u64| start + Duration::from_millis(*milliseconds);
        let recorded = |listed: &Listed<'_>| {
            let calls = listed.iter().map(|(began, ended, call, result)| Recorded {
                call: *call,
                result: *result,
                began: at(began),
                ended: at(ended),
            });
            calls.collect::<Vec<_>>()
        };
        check(before, &threads.iter().map(recorded).collect::<Vec<_>>(), after).is_ok()
    }

    /// Returns a tree with these entries, and these bytes of files.
    fn tree(entries: &[((usize, usize), Entry)], files: &[(u64, Contents)]) -> SharedTree {
        let mut tree = SharedTree::empty();
        for (slot, entry) in entries {
            if let Entry::Directory(number) = entry {
                tree.directories.insert(*number, Directory::default());
            }
            tree.set(*slot, Some(*entry));
        }
        tree.files.extend(files.iter().copied());
        tree
    }

    fn file(name: usize, ino: u64) -> ((usize, usize), Entry) {
        ((ROOT, name), Entry::File(ino))
    }

    #[test]
    fn check_accepts_only_one_success_of_two_exclusive_creates() {
        let created = Ok(SharedResult::File(50));
        let first = (0, 10, SharedCall::Create(A), created);
        let after = tree(&[file(0, 50)], &[(50, Contents::default())]);
        let before = SharedTree::empty();
        let second = |result| (5, 8, SharedCall::Create(A), result);
        assert!(verdict(&before, &[&[first], &[second(Err(Errno::EXIST))]], &after));
        assert!(!verdict(&before, &[&[first], &[second(Ok(SharedResult::File(51)))]], &after));
        assert!(!verdict(&before, &[&[first], &[second(created)]], &after), "inode numbers");
        let before_it = (5, 8, SharedCall::LookUp(A), Err(Errno::NOENT));
        assert!(verdict(&before, &[&[first], &[before_it]], &after));
        let after_it = (11, 12, SharedCall::LookUp(A), Err(Errno::NOENT));
        assert!(!verdict(&before, &[&[first], &[after_it]], &after), "the create has returned");
    }

    #[test]
    fn check_compares_the_calls_with_the_resulting_tree() {
        let (one, two) = ((50, LONG), (51, Contents::default()));
        let before = tree(&[file(0, 50), file(1, 51)], &[one, two]);
        let renamed = tree(&[file(1, 50)], &[one]);
        let rename = [(0, 1, SharedCall::Rename(A, B, PLAIN), DONE)];
        assert!(verdict(&before, &[&rename], &renamed));
        assert!(!verdict(&before, &[&rename], &before), "the rename had no effect");
        let other_bytes = tree(&[file(1, 50)], &[two, (50, Contents { len: WHOLE, byte: 8 })]);
        assert!(!verdict(&before, &[&rename], &other_bytes));
    }

    #[test]
    fn check_refuses_a_missing_new_name_during_a_rename() {
        let before = tree(&[file(0, 50), file(1, 51)], &[(50, LONG), (51, LONG)]);
        let after = tree(&[file(1, 50)], &[(50, LONG)]);
        let rename = [(0, 10, SharedCall::Rename(A, B, PLAIN), DONE)];
        let find = |began: u64, path, result| (began, began + 1, SharedCall::LookUp(path), result);
        let (old, new) = (Ok(SharedResult::File(51)), Ok(SharedResult::File(50)));
        assert!(verdict(&before, &[&rename, &[find(1, B, old), find(3, B, new)]], &after));
        assert!(!verdict(&before, &[&rename, &[find(1, B, new), find(3, B, old)]], &after));
        assert!(!verdict(&before, &[&rename, &[find(1, B, Err(Errno::NOENT))]], &after));
        let moved = [find(1, B, new), find(3, A, new)];
        assert!(!verdict(&before, &[&rename, &moved], &after), "two names at the same moment");
    }

    #[test]
    fn check_refuses_a_rename_without_effect_if_it_runs_alone() {
        let before = tree(&[file(0, 50)], &[(50, LONG)]);
        let after = tree(&[file(1, 50)], &[(50, LONG)]);
        let rename = |began, ended| [(began, ended, SharedCall::Rename(A, B, PLAIN), DONE)];
        assert!(verdict(&before, &[&rename(0, 10), &rename(5, 8)], &after));
        assert!(!verdict(&before, &[&rename(0, 4), &rename(5, 8)], &after));
    }

    #[test]
    fn check_refuses_a_new_entry_in_a_removed_directory() {
        let before = tree(&[((ROOT, 1), Entry::Directory(2))], &[]);
        let remove = [(0, 10, SharedCall::RemoveDirectory(1), DONE)];
        let create = |result| [(0, 10, SharedCall::Create(B_A), result)];
        let (after, gone) = (SharedTree::empty(), Err(Errno::NOENT));
        assert!(verdict(&before, &[&remove, &create(gone)], &after));
        let created = Ok(SharedResult::File(50));
        assert!(!verdict(&before, &[&remove, &create(created)], &after));
        let mut full = before.clone();
        full.set((2, 0), Some(Entry::File(50)));
        full.files.insert(50, Contents::default());
        let refused = [(0, 10, SharedCall::RemoveDirectory(1), Err(Errno::NOTEMPTY))];
        assert!(verdict(&before, &[&refused, &create(created)], &full));
    }

    #[test]
    fn check_refuses_a_listing_without_a_name_that_always_existed() {
        let before = tree(&[file(0, 50)], &[(50, LONG)]);
        let after = tree(&[file(0, 50), file(1, 51)], &[(50, LONG), (51, Contents::default())]);
        let create = [(0, 10, SharedCall::Create(B), Ok(SharedResult::File(51)))];
        let list = |counts| [(1, 9, SharedCall::List(None), Ok(SharedResult::Listed(counts)))];
        assert!(verdict(&before, &[&create, &list([1, 0, 0])], &after));
        assert!(verdict(&before, &[&create, &list([1, 1, 0])], &after));
        assert!(!verdict(&before, &[&create, &list([0, 1, 0])], &after));
        assert!(!verdict(&before, &[&create, &list([2, 1, 0])], &after));
    }

    #[test]
    fn check_refuses_a_read_of_old_bytes_after_a_write() {
        let before = tree(&[file(0, 50)], &[(50, LONG)]);
        let after = tree(&[file(0, 50)], &[(50, Contents { len: WHOLE, byte: 8 })]);
        let write = [(0, 10, SharedCall::Write(A, 8), DONE)];
        let read = |began: u64, byte| {
            let result = Ok(SharedResult::Bytes(WHOLE, byte));
            (began, began + 1, SharedCall::Read(A), result)
        };
        assert!(verdict(&before, &[&write, &[read(1, 8), read(3, 7)]], &after));
        assert!(!verdict(&before, &[&write, &[read(11, 7)]], &after));
        assert!(!verdict(&before, &[&write, &[read(1, 9)]], &after));
        let mixed =
            |began: u64| [(began, began + 1, SharedCall::Read(A), Ok(SharedResult::MixedBytes))];
        assert!(verdict(&before, &[&write, &mixed(1)], &after));
        assert!(!verdict(&before, &[&write, &mixed(11)], &after));
    }
}
