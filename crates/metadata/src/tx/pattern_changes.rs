//! Files whose stripe pattern has changed in log records that are not *safe* yet. The change of a
//! pattern either sets another pattern, or ends the inline component, at the request of a client or
//! after the death of a client. The transaction adds the file to
//! `UnloggedFields::changed_patterns`.
//!
//! # Hazard: a change of a pattern that is reverted and made again
//! Suppose that the reply to an open contained a pattern that is not safe. The client would write
//! bytes where this pattern places them. A power loss could then revert the change of the pattern
//! together with the open, and another client could change the pattern again before the first
//! client notices the power loss. Both changes have the same generation, so the first client could
//! not distinguish the two patterns, and would miss the loss of its bytes. The second pattern could
//! even place other chunks in the same chunk files. So an open waits until the change is safe, and
//! a client never uses a pattern that can be reverted. The exception is a client that has ended the
//! inline component itself. Either this client has the LSN of its change, and can find out whether
//! the change was lost. Or the client repeats the end in each report and close until the end is
//! durable.
//!
//! Changes from before the current start need no entry. No open runs before the record of the start
//! is safe, and this record comes later in the log than these changes.

use skep_types::{InodeId, Lsn};
use std::collections::HashMap;

/// The newest unsafe change of each pattern. The table has at most one entry for each file that was
/// changed since the last sync.
#[derive(Debug, Default)]
pub(crate) struct PatternChanges(HashMap<InodeId, Lsn>);

impl PatternChanges {
    /// Adds a change of the pattern of `inode`, which the log record `lsn` contains.
    pub(crate) fn note(&mut self, inode: InodeId, lsn: Lsn) {
        self.0.insert(inode, lsn);
    }

    /// Whether no power loss can revert a change of the pattern of `inode`.
    pub(crate) fn is_safe(&self, inode: InodeId) -> bool {
        !self.0.contains_key(&inode)
    }

    /// Removes the changes that are *safe* now. `lsn` is the last safe record.
    pub(crate) fn safe(&mut self, lsn: Lsn) {
        self.0.retain(|_, changed| *changed > lsn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_is_safe_when_its_newest_change_is_safe() {
        let (mut changes, inode) = (PatternChanges::default(), InodeId::new(7));
        assert!(changes.is_safe(inode));
        changes.note(inode, Lsn::new(10));
        changes.note(inode, Lsn::new(12));
        changes.safe(Lsn::new(11));
        assert!(!changes.is_safe(inode) && changes.is_safe(InodeId::new(8)));
        changes.safe(Lsn::new(12));
        assert!(changes.is_safe(inode));
    }
}
