//! The term of this process's target as the primary of its group. A term begins with the epoch in
//! which the target becomes the primary, and ends when another member becomes the primary.
//!
//! This module is responsible for the decision whether the target may send requests as primary, but
//! not for the check at receivers ([`skep_wire::senders`]).

use skep_types::{ClusterMap, Epoch, Error, ErrorCode, MapVersion, Result, TargetId};
use skep_wire::senders::Sender;
use std::cell::Cell;

/// A version of the cluster map, and the term of the target in this version: its sender and its
/// first epoch.
type CachedTerm = (MapVersion, Option<(Sender, Epoch)>);

/// The term of one target.
#[derive(Debug)]
pub(crate) struct OwnTerm {
    target: TargetId,
    /// First epoch of the term to which the sender is bound. `None` means that the sender is bound
    /// to no term, and may continue in a later term of its target.
    held: Cell<Option<Epoch>>,
    /// The target's term in one version of the cluster map: the sender, and the first epoch of the
    /// term. `None` as a term means that the target is not a primary in this version.
    cached: Cell<Option<CachedTerm>>,
}

impl OwnTerm {
    pub(crate) fn new(target: TargetId) -> Self {
        Self { target, held: Cell::new(None), cached: Cell::new(None) }
    }

    /// Binds the sender to the term that began in epoch `since`.
    pub(crate) fn hold(&self, since: Epoch) {
        self.held.set(Some(since));
    }

    /// Returns the sender that the target's requests name under a cluster map.
    ///
    /// # Errors
    /// `Deposed` if the target is not a primary, or if its term has ended.
    pub(crate) fn sender(&self, map: &ClusterMap) -> Result<Sender> {
        let term = match self.cached.get().filter(|(version, _)| *version == map.version) {
            Some((_, term)) => term,
            None => {
                let led = map.group_led_by(self.target);
                let term = led.map(|group| {
                    (Sender { group: group.id, epoch: group.epoch }, group.primary_since)
                });
                self.cached.set(Some((map.version, term)));
                term
            }
        };
        let is_same = |(_, since): &(Sender, Epoch)| self.held.get().is_none_or(|it| it == *since);
        term.filter(is_same).map(|(sender, _)| sender).ok_or_else(|| {
            let context = format!(
                "cannot send the request: target {} is not the primary of its group",
                self.target
            );
            Error::new(ErrorCode::Deposed, context)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::{ClusterId, Group, GroupId, TargetKind};

    const OWN: TargetId = TargetId::new(1);

    /// Returns a map of version `epoch` in which `primary` is the primary since `since`.
    fn map(epoch: u64, primary: TargetId, since: u64) -> ClusterMap {
        let mut group = Group::of_one(GroupId::new(7), TargetKind::Metadata, OWN);
        (group.epoch, group.primary_since) = (Epoch::new(epoch), Epoch::new(since));
        group.primary = primary;
        let mut map = ClusterMap::empty(ClusterId::new([1; 16]));
        map.version = MapVersion::new(epoch);
        map.groups.push(group);
        map
    }

    #[test]
    fn primary_sends_under_the_newest_epoch_of_its_term() {
        let term = OwnTerm::new(OWN);
        term.hold(Epoch::new(1));
        let sender = |epoch| Sender { group: GroupId::new(7), epoch: Epoch::new(epoch) };
        assert_eq!(term.sender(&map(1, OWN, 1)).unwrap(), sender(1));
        assert_eq!(term.sender(&map(2, OWN, 1)).unwrap(), sender(2));
    }

    #[test]
    fn deposed_primary_sends_nothing_until_its_next_term() {
        let term = OwnTerm::new(OWN);
        term.hold(Epoch::new(1));
        let other = TargetId::new(2);
        let refused = |map| term.sender(&map).unwrap_err().code() == ErrorCode::Deposed;
        assert!(refused(map(2, other, 2)));
        // The process refuses the map of epoch 3. The process has not received the map of epoch 2,
        // so it cannot exclude that another member served in that epoch.
        assert!(refused(map(3, OWN, 3)));
        let next = OwnTerm::new(OWN);
        next.hold(Epoch::new(3));
        assert!(next.sender(&map(3, OWN, 3)).is_ok());
    }

    #[test]
    fn target_without_a_group_sends_nothing() {
        let empty = ClusterMap::empty(ClusterId::new([1; 16]));
        assert_eq!(OwnTerm::new(OWN).sender(&empty).unwrap_err().code(), ErrorCode::Deposed);
    }
}
