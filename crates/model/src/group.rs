//! The group in the cluster map, and the changes of the group that management carries out. The
//! rules come from `cluster/src/groups.rs`.

use crate::log::{Index, Members};

/// The group in one version of the cluster map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Group {
    /// Epoch of the group. The epoch rises with each change of the primary or of the serving
    /// members.
    pub epoch: u8,
    /// The primary of the group.
    pub primary: Index,
    /// First epoch of the primary's term.
    pub since: u8,
    /// The members without which the primary acknowledges nothing.
    pub serving: Members,
}

impl Group {
    /// Returns a new group. All of its `members` members serve.
    pub fn new(members: usize) -> Self {
        Self { epoch: 1, primary: 0, since: 1, serving: Members::first(members) }
    }

    /// Returns the serving members except `member`.
    pub fn other_serving(&self, member: Index) -> Members {
        self.serving.without(member)
    }

    /// Makes a serving member the primary. The previous primary becomes a member that does not
    /// serve.
    pub fn take_over(&mut self, member: Index) {
        self.serving = self.serving.without(self.primary);
        self.hand_over(member);
    }

    /// Makes a serving member the primary. The previous primary serves as a backup member.
    pub fn hand_over(&mut self, member: Index) {
        assert!(self.serving.has(member) && self.primary != member, "only a backup takes over");
        self.epoch += 1;
        self.primary = member;
        self.since = self.epoch;
    }

    /// Removes a member other than the primary from the serving members. The epoch rises even if
    /// the member did not serve. The new epoch revokes requests to mark the member as in sync.
    pub fn drop_member(&mut self, member: Index) {
        assert!(self.primary != member, "the primary is not dropped");
        self.epoch += 1;
        self.serving = self.serving.without(member);
    }

    /// Makes a member serve that did not serve before.
    pub fn mark_in_sync(&mut self, member: Index) {
        assert!(!self.serving.has(member), "the member has not served");
        self.epoch += 1;
        self.serving = self.serving.with(member);
    }
}
