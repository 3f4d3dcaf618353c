//! The group of a backup member in its newest cluster map, and the check of each request against
//! this map.
//!
//! # A cluster map that is older than the log
//! A process can end before it has stored its newest cluster map, and then starts with an older
//! map. If the log has a record of a higher epoch than this map, the member may have served in the
//! higher epoch under another primary. So the member refuses all requests until a map of the higher
//! epoch arrives. Without this rule, the primary of the older map could replace acknowledged
//! records.
//!
//! This module does not own the records ([`super::backup`]).

use skep_types::{
    ClusterMap, Epoch, Error, ErrorCode, Group, GroupId, GroupMember, MemberState, Result, TargetId,
};
use skep_wire::Request;
use skep_wire::frame::Header;
use skep_wire::log_shipping::{AwaitLogSync, CopyStore, ShipLog};
use skep_wire::senders::SenderEpochs;
use std::sync::Arc;

/// The facts that a backup member uses to check each request: the ids of its group and its target,
/// its newest cluster map, and the highest epochs that it has seen.
#[derive(Debug)]
pub(super) struct OwnGroup {
    pub(super) group: GroupId,
    pub(super) target: TargetId,
    map: Arc<ClusterMap>,
    senders: SenderEpochs,
    /// The highest epoch of the records in the log, including records that later records have
    /// replaced.
    newest_epoch: Epoch,
}

impl OwnGroup {
    /// Creates the state of a member with this map. `newest_epoch` is the highest epoch of a record
    /// in its log.
    pub(super) fn new(
        group: GroupId,
        target: TargetId,
        map: Arc<ClusterMap>,
        newest_epoch: Epoch,
    ) -> Self {
        Self { group, target, map, senders: SenderEpochs::default(), newest_epoch }
    }

    /// Raises `newest_epoch` to the epoch of a record that the caller appends to the log.
    pub(super) fn note_record(&mut self, epoch: Epoch) {
        self.newest_epoch = self.newest_epoch.max(epoch);
    }

    /// Returns the highest epoch of the records in the log, including records that later ones have
    /// replaced.
    pub(super) fn newest_epoch(&self) -> Epoch {
        self.newest_epoch
    }

    /// Returns the newest cluster map.
    pub(super) fn map(&self) -> &Arc<ClusterMap> {
        &self.map
    }

    /// Replaces the cluster map. If `map` begins another epoch of the group, returns the previous
    /// epoch.
    pub(super) fn set_map(&mut self, map: Arc<ClusterMap>) -> Option<Epoch> {
        let before = self.epoch();
        self.map = map;
        (self.epoch() != before).then_some(before)
    }

    /// Returns the group in the newest map.
    pub(super) fn entry(&self) -> Option<&Group> {
        self.map.group(self.group)
    }

    fn member(&self) -> Option<&GroupMember> {
        self.entry()?.members.iter().find(|member| member.target == self.target)
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.entry().map(|group| group.epoch).unwrap_or_default()
    }

    /// Whether this target is the primary in the map.
    pub(super) fn is_primary(&self) -> bool {
        self.entry().is_some_and(|group| group.primary == self.target)
    }

    /// Whether this target is a member and not the primary.
    pub(super) fn is_backup(&self) -> bool {
        self.member().is_some() && !self.is_primary()
    }

    /// Whether this target is a serving member and not the primary.
    pub(super) fn serves(&self) -> bool {
        let is_serving = self.member().is_some_and(|it| it.state == MemberState::Serving);
        is_serving && !self.is_primary()
    }

    /// Checks that a request comes from the primary of the group, in the epoch of this member's
    /// map. Refuses every request of a client, since only the primary serves clients. Refuses every
    /// request while the map is older than the log.
    pub(super) fn admit(&mut self, header: &Header) -> Result<()> {
        let stale = |what: String| Err(Error::new(ErrorCode::StaleMap, what));
        let (own, target, epoch) = (self.group, self.target, self.epoch());
        if ![ShipLog::ID, AwaitLogSync::ID, CopyStore::ID].contains(&header.message) {
            return stale(format!(
                "cannot execute the request: target {target} is not the primary of group {own}; \
                 send the request to the primary"
            ));
        }
        if header.sender_group != own || header.group != own {
            let sender = header.sender_group;
            let what = format!("group {sender} cannot ship its log to a member of group {own}");
            return Err(Error::new(ErrorCode::Protocol, what));
        }
        self.senders.check(header, &self.map)?;
        if header.epoch != epoch || !self.is_backup() {
            return stale(format!(
                "target {target} cannot append a record of epoch {} of group {own}: its cluster \
                 map has epoch {epoch}",
                header.epoch
            ));
        }
        let newest = self.newest_epoch;
        if newest > epoch {
            return stale(format!(
                "target {target} cannot append a record yet, and waits for a newer cluster map \
                 from management: its log has records of epoch {newest} of group {own}, and its \
                 map has epoch {epoch}"
            ));
        }
        Ok(())
    }
}
