//! The check of the sender of a request: whether a metadata or storage target that sends a request
//! is still the primary of its group.
//!
//! This module is responsible for the newest epochs that a receiver has seen in requests. Each
//! receiver itself checks the group to which a request is addressed.
//!
//! # Effects of a deposed primary
//! A primary whose process was suspended for some seconds may continue its work after another
//! member has become the primary. Without this check, requests of the old primary to other targets
//! and to management would have effects that are missing in the state of the new primary. So each
//! receiver refuses these requests.

use crate::bounds::{Senders, bounds};
use crate::frame::Header;
use skep_types::{ClusterMap, Epoch, Error, ErrorCode, GroupId, Result};
use std::collections::BTreeMap;

/// The sender of a request: the group that the sender leads as primary, and the epoch of that
/// group. Group and epoch are zero for clients, tools and nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sender {
    /// The group.
    pub group: GroupId,
    /// Epoch of the group in the sender's cluster map.
    pub epoch: Epoch,
}

/// The newest epochs of groups that the receiver has seen in requests. Has only groups whose epoch
/// in such a request was newer than in the receiver's cluster map.
#[derive(Debug, Default)]
pub struct SenderEpochs {
    newest: BTreeMap<GroupId, Epoch>,
}

impl SenderEpochs {
    /// Checks that the sender of a request is the primary of its group. `map` is the newest cluster
    /// map of the receiver.
    ///
    /// # Errors
    /// - `Deposed` if another member has become the primary since the sender's epoch.
    /// - `StaleMap` if the sender's epoch is older than an epoch that the receiver has seen, but
    ///   the sender may still be the primary. The sender retries the request with a newer map. The
    ///   receiver also returns `StaleMap` if its map does not have the group yet.
    /// - `Protocol` if only targets may send this request and the header has no sender.
    pub fn check(&mut self, header: &Header, map: &ClusterMap) -> Result<()> {
        let (group, epoch) = (header.sender_group, header.sender_epoch);
        if group.raw() == 0 {
            return check_without_sender(header.message);
        }
        let Some(entry) = map.group(group) else {
            let context = format!(
                "cannot accept a request of group {group}: the group is not in cluster map {}",
                map.version
            );
            return Err(Error::new(ErrorCode::StaleMap, context));
        };
        if epoch < entry.primary_since {
            let context = format!(
                "cannot accept a request of group {group} in epoch {epoch}: another member has \
                 been the primary of this group since epoch {}",
                entry.primary_since
            );
            return Err(Error::new(ErrorCode::Deposed, context));
        }
        let seen = self.newest.get(&group).copied().unwrap_or_default().max(entry.epoch);
        if epoch < seen {
            let context = format!(
                "cannot accept a request of group {group} in epoch {epoch}: the group has epoch \
                 {seen}"
            );
            return Err(Error::new(ErrorCode::StaleMap, context));
        }
        if epoch > entry.epoch {
            self.newest.insert(group, epoch);
        }
        Ok(())
    }
}

fn check_without_sender(message: u16) -> Result<()> {
    match bounds(message).senders {
        Senders::Any | Senders::Services | Senders::Management => Ok(()),
        Senders::Metadata | Senders::Storage => {
            let context = format!(
                "cannot accept message {message}: the message does not name the group of its sender"
            );
            Err(Error::new(ErrorCode::Protocol, context))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Request;
    use crate::metadata::{GetAttributes, Prepare};
    use crate::storage::TruncateChunk;
    use skep_types::{ClusterId, Group, TargetId, TargetKind};

    const GROUP: GroupId = GroupId::new(3);

    /// Returns a map in which the group has the epoch `epoch`. The primary of the group became the
    /// primary in the epoch `since`.
    fn map(epoch: u64, since: u64) -> ClusterMap {
        let mut group = Group::of_one(GROUP, TargetKind::Metadata, TargetId::new(1));
        (group.epoch, group.primary_since) = (Epoch::new(epoch), Epoch::new(since));
        let mut map = ClusterMap::empty(ClusterId::new([1; 16]));
        map.groups.push(group);
        map
    }

    fn check(senders: &mut SenderEpochs, map: &ClusterMap, epoch: u64) -> Result<(), ErrorCode> {
        let header = Header {
            message: TruncateChunk::ID,
            sender_group: GROUP,
            sender_epoch: Epoch::new(epoch),
            ..Header::default()
        };
        senders.check(&header, map).map_err(|error| error.code())
    }

    #[test]
    fn request_of_a_deposed_primary_is_refused() {
        let mut senders = SenderEpochs::default();
        assert_eq!(check(&mut senders, &map(1, 1), 1), Ok(()));
        assert_eq!(check(&mut senders, &map(2, 2), 1), Err(ErrorCode::Deposed));
        assert_eq!(check(&mut senders, &map(2, 2), 2), Ok(()));
    }

    #[test]
    fn primary_with_an_outdated_map_must_get_a_newer_map() {
        let mut senders = SenderEpochs::default();
        // A backup member was dropped in epoch 3, and the primary stayed the same.
        assert_eq!(check(&mut senders, &map(3, 2), 2), Err(ErrorCode::StaleMap));
        assert_eq!(check(&mut senders, &map(3, 2), 1), Err(ErrorCode::Deposed));
    }

    #[test]
    fn epoch_of_a_new_primary_is_remembered_before_the_map_arrives() {
        let mut senders = SenderEpochs::default();
        assert_eq!(check(&mut senders, &map(1, 1), 2), Ok(()));
        assert_eq!(check(&mut senders, &map(1, 1), 1), Err(ErrorCode::StaleMap));
        assert_eq!(check(&mut senders, &map(2, 2), 1), Err(ErrorCode::Deposed));
        assert_eq!(check(&mut senders, &map(1, 1), 2), Ok(()));
    }

    #[test]
    fn receiver_without_the_group_in_its_map_needs_a_newer_map() {
        let empty = ClusterMap::empty(ClusterId::new([1; 16]));
        assert_eq!(check(&mut SenderEpochs::default(), &empty, 1), Err(ErrorCode::StaleMap));
    }

    #[test]
    fn request_reserved_for_targets_is_refused_without_sender() {
        let check = |message| {
            let header = Header { message, ..Header::default() };
            SenderEpochs::default().check(&header, &map(1, 1)).map_err(|error| error.code())
        };
        assert_eq!(check(Prepare::ID), Err(ErrorCode::Protocol));
        assert_eq!(check(GetAttributes::ID), Ok(()));
        assert_eq!(check(TruncateChunk::ID), Ok(()), "clients send this request too");
    }
}
