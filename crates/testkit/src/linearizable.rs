//! Checks the linearizability of recorded operations, which several programs performed on one name
//! of a directory. Each operation must seem to happen at one moment between its call and its
//! return.
//!
//! This module owns the type of an operation, and the check. The caller records the operations. The
//! caller must mount the file system such that the kernel does not cache names.

use std::collections::BTreeSet;
use std::time::Instant;

/// The outcome of an operation on the name that all clients of the test use. A file is identified
/// by its inode number, because no two files of a file system ever have the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The operation created this file.
    Created(u64),
    /// The operation created no file because the name existed.
    Exists,
    /// The operation removed the name.
    Removed,
    /// The name did not exist, so a removal or a lookup failed.
    Absent,
    /// A lookup found this file.
    Found(u64),
}

impl Outcome {
    /// Returns the file that has the name after the operation, or `None` if no file has it. The
    /// outer `None` means that the operation cannot have this outcome while `file` has the name.
    fn apply(self, file: Option<u64>) -> Option<Option<u64>> {
        match (self, file) {
            (Self::Created(new), None) => Some(Some(new)),
            (Self::Exists, Some(_)) | (Self::Absent, None) => Some(file),
            (Self::Removed, Some(_)) => Some(None),
            (Self::Found(found), Some(known)) if found == known => Some(file),
            _ => None,
        }
    }
}

/// A recorded operation.
#[derive(Debug, Clone, Copy)]
pub struct Operation {
    /// Time at which the program called the operation.
    pub began: Instant,
    /// Time at which the operation returned.
    pub ended: Instant,
    /// The outcome that the operation returned.
    pub outcome: Outcome,
}

/// A possible state of the name: the file that has the name, and the running operations that have
/// already taken effect.
type Past = (Option<u64>, BTreeSet<usize>);

/// Adds all states that are possible if some of the running operations take effect now.
fn extend(pasts: &mut BTreeSet<Past>, running: &BTreeSet<usize>, operations: &[Operation]) {
    let mut new: Vec<_> = pasts.iter().cloned().collect();
    while let Some((file, effective)) = new.pop() {
        for index in running.difference(&effective) {
            let Some(file) = operations[*index].outcome.apply(file) else { continue };
            let mut effective = effective.clone();
            effective.insert(*index);
            let past = (file, effective);
            if pasts.insert(past.clone()) {
                new.push(past);
            }
        }
    }
}

/// Checks the operations on a name that did not exist at first. The run time is proportional to the
/// number of operations, and to the number of subsets of operations that ran at the same time.
///
/// # Errors
/// Describes the first operation after which no state is possible, with the operations that
/// preceded it.
pub fn check(operations: &[Operation]) -> Result<(), String> {
    let begins = operations.iter().enumerate().map(|(index, it)| (it.began, false, index));
    let ends = operations.iter().enumerate().map(|(index, it)| (it.ended, true, index));
    let mut events: Vec<_> = begins.chain(ends).collect();
    events.sort();
    let mut pasts = BTreeSet::from([(None, BTreeSet::new())]);
    let mut running = BTreeSet::new();
    for (at, (_, is_end, index)) in events.iter().enumerate() {
        if !is_end {
            running.insert(*index);
            continue;
        }
        let before = pasts.clone();
        extend(&mut pasts, &running, operations);
        pasts.retain(|(_, effective)| effective.contains(index));
        pasts = pasts
            .into_iter()
            .map(|(file, mut effective)| {
                effective.remove(index);
                (file, effective)
            })
            .collect();
        running.remove(index);
        if pasts.is_empty() {
            let first = events[at.saturating_sub(20)].0;
            let close: Vec<_> = operations
                .iter()
                .filter(|it| it.ended >= first && it.began <= events[at].0)
                .collect();
            return Err(format!(
                "operation {index} could not return {:?}: before it the name was one of {before:?}, \
                 and the operations around it were {close:#?}",
                operations[*index].outcome
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn operations(listed: &[(u64, u64, Outcome)]) -> Vec<Operation> {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let listed = listed.iter();
        listed
            .map(|(began, ended, outcome)| Operation {
                began: at(*began),
                ended: at(*ended),
                outcome: *outcome,
            })
            .collect()
    }

    #[test]
    fn concurrent_operations_may_take_effect_in_any_order() {
        let listed = operations(&[
            (0, 10, Outcome::Created(1)),
            (1, 9, Outcome::Absent),
            (2, 8, Outcome::Found(1)),
            (11, 20, Outcome::Removed),
            (12, 19, Outcome::Absent),
            (13, 21, Outcome::Created(2)),
            (22, 23, Outcome::Exists),
        ]);
        assert_eq!(check(&listed), Ok(()));
    }

    #[test]
    fn a_change_that_returned_may_not_be_lost() {
        let lost = operations(&[(0, 1, Outcome::Created(1)), (2, 3, Outcome::Absent)]);
        assert!(check(&lost).is_err());
        let twice = operations(&[
            (0, 1, Outcome::Created(1)),
            (2, 3, Outcome::Removed),
            (4, 5, Outcome::Removed),
        ]);
        assert!(check(&twice).is_err());
    }

    #[test]
    fn an_effect_that_was_seen_may_not_disappear() {
        let listed = operations(&[
            (0, 100, Outcome::Created(1)),
            (10, 20, Outcome::Found(1)),
            (30, 40, Outcome::Absent),
        ]);
        assert!(check(&listed).is_err());
    }

    #[test]
    fn an_earlier_file_may_not_be_found_again() {
        let listed = operations(&[
            (0, 1, Outcome::Created(1)),
            (2, 3, Outcome::Removed),
            (4, 5, Outcome::Created(2)),
            (6, 7, Outcome::Found(1)),
        ]);
        assert!(check(&listed).is_err());
    }
}
