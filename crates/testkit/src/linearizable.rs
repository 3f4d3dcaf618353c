//! Checks the linearizability of recorded operations of several programs on one object. The object
//! is a name in a directory, two names between which programs move files, or a register. Each
//! operation must seem to happen at one moment between its call and its return.
//!
//! This module contains the types of operations, and the check. The caller records the operations.
//! The caller must mount the file system such that the kernel does not cache names.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::Instant;

/// The outcome of an operation on an object.
pub trait Outcome: Copy + Debug {
    /// The state of the object. The default is the state before the first operation.
    type State: Clone + Debug + Default + Ord;

    /// Returns the state of the object after the operation. `None` means that the operation cannot
    /// have this outcome in the state `before`.
    fn apply(self, before: &Self::State) -> Option<Self::State>;

    /// Whether the operation may take effect several times before it returns, for example because a
    /// client sends a write again after a take-over.
    fn may_repeat(self) -> bool {
        false
    }
}

/// The outcome of an operation on the name that all clients of the test use. A file is identified
/// by its inode number, because no two files of a file system ever have the same number. The state
/// is the file that has the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameOutcome {
    /// The operation created this file.
    Created(u64),
    /// The operation created no file because the name existed.
    Exists,
    /// The operation removed the name.
    Removed,
    /// The name did not exist, so a removal, a rename or a lookup failed.
    Absent,
    /// A lookup found this file.
    Found(u64),
}

impl Outcome for NameOutcome {
    type State = Option<u64>;

    fn apply(self, file: &Option<u64>) -> Option<Option<u64>> {
        match (self, *file) {
            (Self::Created(new), None) => Some(Some(new)),
            (Self::Exists, Some(_)) | (Self::Absent, None) => Some(*file),
            (Self::Removed, Some(_)) => Some(None),
            (Self::Found(found), Some(known)) if found == known => Some(*file),
            _ => None,
        }
    }
}

/// The outcome of an operation on two names. Programs rename files from one name to the other while
/// the other name is free. The state is the file of each name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PairOutcome {
    /// The outcome of an operation on one of the two names. The other name did not change.
    OfName {
        /// Index of the name.
        name: usize,
        /// The outcome of the operation.
        outcome: NameOutcome,
    },
    /// A rename moved the file of the name with the index `from` to the other name.
    Moved {
        /// Index of the name that the file had before the rename.
        from: usize,
    },
}

impl Outcome for PairOutcome {
    type State = [Option<u64>; 2];

    fn apply(self, files: &[Option<u64>; 2]) -> Option<[Option<u64>; 2]> {
        let mut after = *files;
        match self {
            Self::OfName { name, outcome } => after[name] = outcome.apply(&files[name])?,
            Self::Moved { from } => {
                let is_possible = files[from].is_some() && files[1 - from].is_none();
                after.swap(0, 1);
                return is_possible.then_some(after);
            }
        }
        Some(after)
    }
}

/// The outcome of an operation on a register: bytes of a file that programs read and overwrite as
/// one number. The initial value is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegisterOutcome {
    /// The operation read this value.
    Read(u64),
    /// The operation wrote this value.
    Written(u64),
}

impl Outcome for RegisterOutcome {
    type State = u64;

    fn apply(self, value: &u64) -> Option<u64> {
        match self {
            Self::Read(read) => (read == *value).then_some(read),
            Self::Written(new) => Some(new),
        }
    }

    fn may_repeat(self) -> bool {
        matches!(self, Self::Written(_))
    }
}

/// A recorded operation.
#[derive(Debug, Clone, Copy)]
pub struct Operation<O> {
    /// Time at which the program called the operation.
    pub began: Instant,
    /// Time at which the operation returned.
    pub ended: Instant,
    /// The outcome that the operation returned.
    pub outcome: O,
}

/// A possible state of the object, and the indices of the running operations whose effects the
/// state includes.
type Past<O> = (<O as Outcome>::State, BTreeSet<usize>);

/// Adds to `pasts` all states that are possible if some of the running operations take effect now.
fn extend<O: Outcome>(
    pasts: &mut BTreeSet<Past<O>>,
    running: &BTreeSet<usize>,
    operations: &[Operation<O>],
) {
    let mut new: Vec<_> = pasts.iter().cloned().collect();
    while let Some((state, effective)) = new.pop() {
        for index in running {
            let outcome = operations[*index].outcome;
            if effective.contains(index) && !outcome.may_repeat() {
                continue;
            }
            let Some(state) = outcome.apply(&state) else { continue };
            let mut effective = effective.clone();
            effective.insert(*index);
            let past = (state, effective);
            if pasts.insert(past.clone()) {
                new.push(past);
            }
        }
    }
}

/// Checks whether the operations on an object are linearizable. The run time grows linearly with
/// the number of operations, and exponentially with the number of concurrent operations.
///
/// # Errors
/// Describes the first operation whose outcome no order of the operations explains, and lists the
/// operations that ran shortly before it.
pub fn check<O: Outcome>(operations: &[Operation<O>]) -> Result<(), String> {
    let begins = operations.iter().enumerate().map(|(index, it)| (it.began, false, index));
    let ends = operations.iter().enumerate().map(|(index, it)| (it.ended, true, index));
    let mut events: Vec<_> = begins.chain(ends).collect();
    events.sort();
    let mut pasts = BTreeSet::from([(O::State::default(), BTreeSet::new())]);
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
            .map(|(state, mut effective)| {
                effective.remove(index);
                (state, effective)
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
                "no order of the operations explains that operation {index} returned {:?}; possible \
                 states of the object before its return: {before:?}; operations around it: \
                 {close:#?}",
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

    fn operations<O: Outcome>(listed: &[(u64, u64, O)]) -> Vec<Operation<O>> {
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
    fn check_accepts_concurrent_operations_in_any_order() {
        let listed = operations(&[
            (0, 10, NameOutcome::Created(1)),
            (1, 9, NameOutcome::Absent),
            (2, 8, NameOutcome::Found(1)),
            (11, 20, NameOutcome::Removed),
            (12, 19, NameOutcome::Absent),
            (13, 21, NameOutcome::Created(2)),
            (22, 23, NameOutcome::Exists),
        ]);
        assert_eq!(check(&listed), Ok(()));
    }

    #[test]
    fn check_refuses_the_loss_of_a_finished_change() {
        let lost = operations(&[(0, 1, NameOutcome::Created(1)), (2, 3, NameOutcome::Absent)]);
        assert!(check(&lost).is_err());
        let twice = operations(&[
            (0, 1, NameOutcome::Created(1)),
            (2, 3, NameOutcome::Removed),
            (4, 5, NameOutcome::Removed),
        ]);
        assert!(check(&twice).is_err());
    }

    #[test]
    fn check_refuses_the_loss_of_an_observed_effect() {
        let listed = operations(&[
            (0, 100, NameOutcome::Created(1)),
            (10, 20, NameOutcome::Found(1)),
            (30, 40, NameOutcome::Absent),
        ]);
        assert!(check(&listed).is_err());
    }

    #[test]
    fn check_refuses_a_lookup_that_finds_a_replaced_file() {
        let listed = operations(&[
            (0, 1, NameOutcome::Created(1)),
            (2, 3, NameOutcome::Removed),
            (4, 5, NameOutcome::Created(2)),
            (6, 7, NameOutcome::Found(1)),
        ]);
        assert!(check(&listed).is_err());
    }

    #[test]
    fn check_requires_that_a_rename_changes_two_names_atomically() {
        let of_name = |name, outcome| PairOutcome::OfName { name, outcome };
        let created = (0, 1, of_name(0, NameOutcome::Created(1)));
        let moved = (2, 10, PairOutcome::Moved { from: 0 });
        let found = |began: u64, name| (began, began + 1, of_name(name, NameOutcome::Found(1)));
        let absent = |began: u64, name| (began, began + 1, of_name(name, NameOutcome::Absent));
        let good = [created, moved, found(3, 0), found(5, 1), absent(7, 0), found(11, 1)];
        assert_eq!(check(&operations(&good)), Ok(()));
        assert!(check(&operations(&[created, moved, found(3, 1), found(5, 0)])).is_err());
        assert!(check(&operations(&[created, moved, absent(3, 0), absent(5, 1)])).is_err());
        assert!(check(&operations(&[created, moved, found(11, 0)])).is_err());
        let occupied = (2, 3, of_name(1, NameOutcome::Created(2)));
        assert!(check(&operations(&[created, occupied, (4, 5, moved.2)])).is_err());
    }

    #[test]
    fn check_allows_a_write_to_take_effect_again_until_it_returns() {
        use RegisterOutcome::{Read, Written};
        let twice = [(0, 10, Written(1)), (1, 4, Written(2)), (5, 6, Read(2)), (7, 8, Read(1))];
        assert_eq!(check(&operations(&twice)), Ok(()));
        let seen = [(0, 10, Written(1)), (1, 2, Read(1)), (3, 4, Written(2)), (5, 6, Read(2))];
        let (mut repeated, mut late) = (seen.to_vec(), seen.to_vec());
        repeated.push((7, 8, Read(1)));
        assert_eq!(check(&operations(&repeated)), Ok(()));
        late.extend([(11, 12, Written(3)), (13, 14, Read(1))]);
        assert!(check(&operations(&late)).is_err());
        assert!(check(&operations(&[(0, 1, Written(1)), (2, 3, Read(0))])).is_err());
    }
}
