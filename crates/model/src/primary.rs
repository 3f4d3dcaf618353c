//! The role of the primary: the watermarks *held* and *safe*, and the links to the other members.
//!
//! The rules come from `metadata/src/target/watermarks.rs`, `metadata/src/shipping/shipper.rs`
//! and `metadata/src/shipping/member_link.rs`.

use crate::bugs::PlantedBug;
use crate::group::Group;
use crate::log::{Index, Members, Progress};
use crate::messages::Reply;

/// Maximum number of members of a group.
pub const MOST_MEMBERS: usize = 3;

/// State that a primary keeps in memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Primary {
    /// First epoch of the term.
    pub since: u8,
    /// Last record that the primary and each serving or counted member have appended.
    pub held: u8,
    /// Last record that the primary and each serving or counted member have synced.
    pub safe: u8,
    /// Last record of the log when the process became the primary. Zero if all these records are
    /// safe.
    pub begun_with: u8,
    /// The previous primary, whose confirmation ends the wait for leases. `None` means that no
    /// confirmation ends the wait.
    pub former: Option<Index>,
    /// The other members. The element of the primary itself is unused.
    pub links: [Link; MOST_MEMBERS],
}

/// The state of a primary's link to another member.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Link {
    /// Whether replies wait for the member.
    pub standing: Standing,
    /// Whether the primary has asked management to mark the member as in sync.
    pub may_serve: bool,
    /// Whether the primary has a lease from the member.
    pub is_leased: bool,
    /// The progress that the member has reported in this epoch.
    pub progress: Progress,
    /// Whether the newest reply of this epoch came from the present process of the member.
    pub knows_process: bool,
}

/// Whether replies wait for a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Standing {
    /// The member does not serve.
    #[default]
    Absent,
    /// The member does not serve, but replies wait for it.
    Counted,
    /// The member serves.
    Serving,
}

impl Primary {
    /// Creates the state of a new primary. `own` is the progress of this member, and `stored` is
    /// the last record in its store.
    pub fn new(group: &Group, own: Progress, stored: u8, former: Option<Index>) -> Self {
        let (begun_with, since) = (own.appended, group.since);
        let links = Default::default();
        Self { since, held: stored, safe: stored, begun_with, former, links }
    }

    /// Begins an epoch. `serving` are the other serving members.
    pub fn begin_epoch(&mut self, serving: Members) {
        for (member, link) in self.links.iter_mut().enumerate() {
            let standing = if serving.has(member) { Standing::Serving } else { Standing::Absent };
            *link = Link { standing, ..Link::default() };
        }
    }

    /// Whether the primary has a lease from each member for which replies wait.
    pub fn has_leases(&self) -> bool {
        self.links.iter().all(|it| it.standing == Standing::Absent || it.is_leased)
    }

    /// Computes *held* and *safe*. `own` is the progress of the primary itself.
    pub fn rise(&mut self, own: Progress) {
        let counted = self.links.iter().filter(|it| it.standing != Standing::Absent);
        let least = counted.fold(own, |least, link| Progress {
            appended: least.appended.min(link.progress.appended),
            synced: least.synced.min(link.progress.synced),
        });
        self.held = self.held.max(least.appended);
        self.safe = self.safe.max(least.synced);
    }

    /// Returns the progress that a member must have made before it may serve.
    pub fn needed_to_serve(&self, bug: Option<PlantedBug>) -> Progress {
        let begun_with = match bug {
            Some(PlantedBug::ForgetBegin) => 0,
            _ => self.begun_with,
        };
        let synced = match bug {
            Some(PlantedBug::ServeAfterAppend) => 0,
            _ => self.safe.max(begun_with),
        };
        Progress { appended: self.held.max(begun_with), synced }
    }

    /// Forgets values that no longer affect the primary, so that the checker has fewer different
    /// states.
    pub fn forget_unused(&mut self) {
        if self.safe >= self.begun_with {
            self.begun_with = 0;
        }
    }

    /// Handles the reply of a member. `last` is the last record of the primary.
    pub fn receive(&mut self, from: Index, reply: &Reply, last: u8) {
        let link = &mut self.links[from];
        link.is_leased |= reply.grants;
        link.knows_process = reply.has_sender;
        let Progress { appended, synced } = reply.progress;
        let reported = Progress { appended: appended.min(last), synced: synced.min(last) };
        let is_lost = reply.is_behind && reported.appended < link.progress.appended;
        if is_lost && link.standing == Standing::Absent {
            // The progress of an absent member may fall, because no reply to a client relies on the
            // records that the member has lost.
            link.progress = reported;
        } else {
            link.progress = link.progress.max(reported);
        }
    }
}
