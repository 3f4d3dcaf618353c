//! The window of an operation in flight: all outcomes that the reference model had for the
//! operation at any moment since the client sent the request.

use crate::known_sizes::{ModelSize, note_size};
use crate::model::Model;
use crate::operation::{Op, Summary};
use skep_types::codec::crc32c;
use skep_types::{ErrorCode, FileKind, InodeId, SessionId};
use skep_wire::metadata::OpenReply;
use std::collections::{BTreeMap, BTreeSet};

/// The window of one operation.
pub(crate) struct Window {
    pub(crate) op: Op,
    session: SessionId,
    pub(crate) outcomes: Vec<Result<Summary, ErrorCode>>,
    /// For a rename or an exchange: the pairs of states that its two names had at the same moment.
    states: BTreeSet<(NameState, NameState)>,
    /// For a rename or an exchange: the pairs of projects at the same moment. The first is the
    /// project of a moved inode, and the second is the project that entries of the inode's new
    /// directory inherit.
    moves: BTreeSet<(Direction, Option<u32>, Option<u32>)>,
    /// Whether both names of a rename referred to one file at any moment of the window.
    were_same: bool,
    /// For a listing: the entries that existed during the whole window, and the entries that
    /// existed at any moment of the window.
    pub(crate) always: BTreeMap<Vec<u8>, InodeId>,
    pub(crate) ever: BTreeSet<(Vec<u8>, InodeId)>,
    /// For an open: each pair of size and inline bytes that the file had at the same moment.
    contents: BTreeSet<(u64, Vec<u8>)>,
    /// If the inode whose group serves the request is a regular file: the sizes that the file had
    /// at any moment.
    pub(crate) sizes: BTreeSet<ModelSize>,
    /// For a wait for a lock: whether another client may have waited for this client at any moment.
    /// If true, the wait may be part of a deadlock cycle.
    may_be_deadlock: bool,
    /// Whether a power loss has reverted operations during the window. If true, the checker cannot
    /// check the result of a listing.
    pub(crate) is_void: bool,
    /// Whether the reply comes from a previous primary, which replied before its successor did. The
    /// state of this primary is older than the reference model, which has the changes of the
    /// successor.
    pub(crate) is_of_former_primary: bool,
    /// Oldest version of the inode that the reply may show. The oldest version is the newest
    /// version that any client had received when this client sent the request.
    pub(crate) oldest_version: u64,
}

/// One of the two renames of a `RENAME_EXCHANGE`. A rename without an exchange consists of
/// [`Self::There`] only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Direction {
    There,
    Back,
}

/// The state of one name of a rename.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum NameState {
    /// The directory does not exist.
    Missing,
    Free,
    Taken {
        is_directory: bool,
        is_full: bool,
    },
}

impl Window {
    /// Opens the window of an operation when the client sends its request.
    pub(crate) fn new(op: Op, session: SessionId, model: &Model) -> Self {
        let mut always = BTreeMap::new();
        if let Op::ReadDirectory(it) = &op
            && let Some(directory) = model.inodes.get(&it.directory)
        {
            always = directory.entries.clone();
        }
        let mut window = Self {
            op,
            session,
            outcomes: Vec::new(),
            states: BTreeSet::new(),
            moves: BTreeSet::new(),
            were_same: false,
            always,
            ever: BTreeSet::new(),
            contents: BTreeSet::new(),
            sizes: BTreeSet::new(),
            may_be_deadlock: false,
            is_void: false,
            is_of_former_primary: false,
            oldest_version: 0,
        };
        window.update(model);
        window
    }

    /// Whether a reply was correct at any moment of the window.
    pub(crate) fn is_right(&self, answer: &Result<Summary, ErrorCode>) -> bool {
        let is_cycle = self.may_be_deadlock && *answer == Err(ErrorCode::Deadlock);
        self.outcomes.contains(answer) || is_cycle || is_right_at_two_moments(self, answer)
    }

    /// Whether the file had both the bytes and the size in the reply to an open at one moment of
    /// the window.
    pub(crate) fn has_right_bytes(&self, opened: &OpenReply) -> bool {
        let Some(inline) = &opened.inline else { return true };
        let size = opened.attributes.size;
        let without_zeros = |bytes: &[u8]| {
            let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            bytes[..end].to_vec()
        };
        let found = without_zeros(&inline.bytes);
        crc32c(&inline.bytes) == inline.checksum
            && self.contents.iter().any(|(at_size, bytes)| {
                let end = bytes.len().min(usize::try_from(size).unwrap_or(usize::MAX));
                *at_size == size && without_zeros(&bytes[..end]) == found
            })
    }

    /// Whether this is the window of `op`, and `op` is a rename or exchange whose two names
    /// referred to the same file at any moment.
    pub(crate) fn may_have_no_effect(&self, session: SessionId, op: &Op) -> bool {
        self.were_same && self.session == session && self.op == *op
    }

    /// Adds the current outcome of the operation.
    pub(crate) fn update(&mut self, model: &Model) {
        let states = match &self.op {
            Op::Rename(it) => {
                Some((it.from_directory, &it.from_name, it.to_directory, &it.to_name))
            }
            Op::Exchange(it) => {
                Some((it.from_directory, &it.from_name, it.to_directory, &it.to_name))
            }
            _ => None,
        };
        if let Some((from, from_name, to, to_name)) = states {
            self.states
                .insert((name_state(model, from, from_name), name_state(model, to, to_name)));
            let inode = |directory, name: &[u8]| {
                model.inodes.get(&directory).and_then(|it| it.entries.get(name))
            };
            let found = inode(from, from_name);
            self.were_same |= found.is_some() && found == inode(to, to_name);
            let (moved, handed_down) = projects(model, (from, from_name), to);
            self.moves.insert((Direction::There, moved, handed_down));
            if matches!(self.op, Op::Exchange(_)) {
                let (moved, handed_down) = projects(model, (to, to_name), from);
                self.moves.insert((Direction::Back, moved, handed_down));
            }
        }
        note_size(&mut self.sizes, model.inodes.get(&self.op.home()));
        let outcome = model.outcome(&self.op);
        if !self.outcomes.contains(&outcome) {
            self.outcomes.push(outcome);
        }
        match &self.op {
            Op::SetPattern(it) => {
                // After a writer has died, the target must assume that the file has data, until the
                // target has recovered the size.
                let inode = model.inodes.get(&it.inode);
                let in_use = Err(ErrorCode::InUse);
                if inode.is_some_and(|it| it.was_left_open) && !self.outcomes.contains(&in_use) {
                    self.outcomes.push(in_use);
                }
            }
            Op::ReportWritten(it) if it.written.is_some_and(|it| it.ends_inline.is_some()) => {
                // The target refuses to end an inline component that may be in use.
                let refused = Err(ErrorCode::Stale);
                if !self.outcomes.contains(&refused) {
                    self.outcomes.push(refused);
                }
            }
            Op::Open(it) => {
                let inode = model.inodes.get(&it.inode);
                self.contents.extend(inode.map(|it| (it.size, it.inline.clone())));
            }
            Op::WaitLock(it) => {
                self.may_be_deadlock |= model.may_be_waited_for(self.session, &it.lock);
            }
            Op::ReadDirectory(it) => {
                let empty = BTreeMap::new();
                let entries = model.inodes.get(&it.directory).map_or(&empty, |it| &it.entries);
                self.always.retain(|name, inode| entries.get(name) == Some(inode));
                self.ever.extend(entries.iter().map(|(name, inode)| (name.clone(), *inode)));
            }
            _ => {}
        }
    }
}

/// Whether the refusal of a rename or exchange is correct if the two names were looked up at two
/// different moments. The two directories may be on different targets, which look up the two names
/// at different times. A refused operation has locked neither name.
fn is_right_at_two_moments(window: &Window, answer: &Result<Summary, ErrorCode>) -> bool {
    let Err(code) = answer else { return false };
    if *code == ErrorCode::CrossDevice {
        let moves = || window.moves.iter();
        return moves().any(|(direction, moved, _)| {
            let mut handed_down = moves().filter(|it| it.0 == *direction).filter_map(|it| it.2);
            moved.is_some_and(|moved| handed_down.any(|it| it != moved))
        });
    }
    let it = match &window.op {
        Op::Rename(it) => it,
        Op::Exchange(_) => {
            let is_there = |state: &NameState| matches!(state, NameState::Taken { .. });
            let is_directory =
                |state: &NameState| matches!(state, NameState::Taken { is_directory: true, .. });
            let states = || window.states.iter();
            // Each of the two entries existed at some moment. At least one of the two entries was a
            // directory, which may have been an ancestor of the other entry.
            let has_both = states().any(|(from, _)| is_there(from))
                && states().any(|(_, to)| is_there(to))
                && states().any(|(from, to)| is_directory(from) || is_directory(to));
            return *code == ErrorCode::NotFound
                && states().any(|(from, to)| !is_there(from) || !is_there(to))
                || *code == ErrorCode::InvalidArgument && has_both;
        }
        _ => return false,
    };
    window.states.iter().any(|(from, _)| {
        window.states.iter().any(|(_, to)| match (from, to) {
            (_, NameState::Missing) | (NameState::Missing | NameState::Free, _) => {
                *code == ErrorCode::NotFound
            }
            (_, NameState::Free) => false,
            (NameState::Taken { .. }, NameState::Taken { .. }) if it.no_replace => {
                *code == ErrorCode::Exists
            }
            (
                NameState::Taken { is_directory: a, .. },
                NameState::Taken { is_directory: b, is_full },
            ) => match (a, b) {
                (true, false) => *code == ErrorCode::NotDirectory,
                (false, true) => *code == ErrorCode::IsDirectory,
                _ => *is_full && *code == ErrorCode::NotEmpty,
            },
        })
    })
}

fn name_state(model: &Model, directory: InodeId, name: &[u8]) -> NameState {
    let Some(directory) = model.inodes.get(&directory) else { return NameState::Missing };
    let found = directory.entries.get(name).and_then(|it| model.inodes.get(it));
    found.map_or(NameState::Free, |inode| NameState::Taken {
        is_directory: inode.kind == FileKind::Directory,
        is_full: !inode.entries.is_empty(),
    })
}

/// Returns the project of the inode to which a name refers, and the project that new entries of the
/// directory `to` inherit.
fn projects(
    model: &Model,
    (directory, name): (InodeId, &[u8]),
    to: InodeId,
) -> (Option<u32>, Option<u32>) {
    let at = |inode| model.inodes.get(inode);
    let moved = at(&directory).and_then(|it| it.entries.get(name)).and_then(at);
    let to = at(&to).filter(|it| it.hands_down_project);
    (moved.map(|it| it.project), to.map(|it| it.project))
}
