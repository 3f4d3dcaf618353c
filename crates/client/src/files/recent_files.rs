//! The files of the most recent events of one kind. An open looks for events of its file that the
//! mount has recorded since it sent the open. The reply to the open may be older than these events.
//! No I/O.

use crate::limits::MAX_RECENT_FILES;
use skep_types::InodeId;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// A position in the sequence of events: the number of events recorded up to some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position(u64);

/// The log of the most recent events.
#[derive(Debug, Default)]
pub(crate) struct RecentFiles {
    /// The newest events, each with its sequence number and its file, oldest first. The mutex
    /// protects only this list. A thread takes no other lock while it holds this mutex.
    events: Mutex<VecDeque<(u64, InodeId)>>,
    /// Number of recorded events. A thread changes this number only while it holds the mutex of
    /// `events`.
    count: AtomicU64,
}

impl RecentFiles {
    /// Returns the number of events recorded so far.
    pub(crate) fn position(&self) -> Position {
        Position(self.count.load(Ordering::Acquire))
    }

    /// Records an event of a file.
    pub(crate) fn note(&self, inode: InodeId) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let number = self.count.fetch_add(1, Ordering::AcqRel) + 1;
        events.push_back((number, inode));
        if events.len() > MAX_RECENT_FILES {
            events.pop_front();
        }
    }

    /// Returns whether an event of a file was recorded after `position`. If the log has dropped
    /// events that were recorded after `position`, returns `true`, because a dropped event may have
    /// been of this file.
    pub(crate) fn has_come_since(&self, position: Position, inode: InodeId) -> bool {
        if self.position() == position {
            return false;
        }
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let is_forgotten = events.front().is_some_and(|(oldest, _)| *oldest > position.0 + 1);
        let mut newer = events.iter().rev().take_while(|(number, _)| *number > position.0);
        is_forgotten || newer.any(|(_, file)| *file == inode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_of_a_file_during_its_open_is_detected() {
        let recent = RecentFiles::default();
        let (a, b) = (InodeId::new(1), InodeId::new(2));
        recent.note(a);
        let before = recent.position();
        assert!(!recent.has_come_since(before, a), "the event came before the open");
        recent.note(b);
        assert!(recent.has_come_since(before, b));
        assert!(!recent.has_come_since(before, a));
        for _ in 0..MAX_RECENT_FILES {
            recent.note(b);
        }
        assert!(recent.has_come_since(before, a), "the log no longer has events that old");
        assert!(!recent.has_come_since(recent.position(), a));
    }
}
