//! The attributes of an open file in the newest reply of metadata. `stat` returns these attributes
//! without a request to metadata, as long as they are at most as old as attributes in the kernel's
//! cache may be.
//!
//! After each write of this mount, the kernel requests the attributes of the file at the next
//! `stat`. Databases call `stat` again after they have set and released locks, and each reply to
//! such a request contains the attributes.
//!
//! # When the attributes are valid
//! All of the following must hold:
//! - Since the client requested the attributes, no request for a change of this mount has begun or
//!   ended. The request for a change may concern any file, because the mount does not have the ids
//!   of all inodes that it has changed.
//! - Metadata has received all writes of this mount to the file.
//! - The mount has the file open, and it is not shared. So no other client writes to the file
//!   without a notification to this mount.
//! - The mount has seen no newer version of the file.
//! - The client has sent the request less than the attribute timeout ago. Within this time, other
//!   mounts may change attributes without a notification, such as the permissions.

use super::InodeState;
use crate::session::change_requests::Moment;
use skep_types::Attributes;
use std::time::Duration;

/// The newest attributes, and a moment before metadata computed the reply that contained them.
/// `None` means that no reply has contained attributes of the file since the mount opened it.
#[derive(Debug, Default)]
pub(super) struct KnownAttributes(Option<(Attributes, Moment)>);

impl InodeState {
    /// Records attributes in a reply of metadata. `sent` is the moment when the client sent the
    /// request. If the request was itself a request for a change, `sent` is the result of
    /// [`Moment::after_own_change`].
    pub(crate) fn know(&self, attributes: &Attributes, sent: Moment) {
        self.with(|parts| parts.known.0 = Some((attributes.clone(), sent)));
    }

    /// Returns the known attributes and their age, if they are valid and less than `max_age` old.
    /// Always returns `None` for a file with holes, since the mount must request the allocated
    /// space of such a file.
    pub(crate) fn known_attributes(
        &self,
        now: Moment,
        max_age: Duration,
    ) -> Option<(Attributes, Duration)> {
        self.with(|parts| {
            let (attributes, sent) = parts.known.0.as_ref()?;
            let age = now.time.saturating_sub(sent.time);
            let is_newest = sent.changes == now.changes
                && age < max_age
                && attributes.change_counter == parts.size.version();
            let is_alone = parts.handles.is_open() && !parts.handles.is_shared();
            let is_reported = parts.size.unreported().is_none() && !parts.size.must_measure();
            if !is_newest || !is_alone || !is_reported || attributes.is_sparse {
                return None;
            }
            let mut attributes = attributes.clone();
            parts.size.merge_into(&mut attributes);
            Some((attributes, age))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::change_requests::ChangeRequests;
    use skep_types::{FileKind, InodeId, Timestamp};
    use std::sync::Arc;

    const FILE: InodeId = InodeId::new(9);
    const NOW: Duration = Duration::from_secs(60);
    const SECOND: Duration = Duration::from_secs(1);

    fn attributes(change_counter: u64) -> Attributes {
        let new = Attributes::new(FILE, FileKind::Regular, 0o644, Timestamp::default());
        Attributes { change_counter, size: 10, ..new }
    }

    /// Returns the state of an open file whose attributes metadata has just sent.
    fn known(requests: &ChangeRequests) -> Arc<InodeState> {
        let state = InodeState::new(FILE);
        state.opened();
        state.observe(&attributes(5), NOW);
        state.know(&attributes(5), requests.moment(NOW));
        state
    }

    #[test]
    fn known_attributes_expire_and_a_change_invalidates_them() {
        let requests = ChangeRequests::default();
        let state = known(&requests);
        let found = |now| state.known_attributes(requests.moment(now), SECOND);
        assert_eq!(found(NOW + SECOND / 2), Some((attributes(5), SECOND / 2)));
        assert_eq!(found(NOW + SECOND), None);
        let change = requests.begin();
        assert_eq!(found(NOW), None, "a change is in progress");
        drop(change);
        assert_eq!(found(NOW), None);
    }

    #[test]
    fn attributes_are_unused_if_requests_for_changes_overlap() {
        let requests = ChangeRequests::default();
        let state = known(&requests);
        let found = || state.known_attributes(requests.moment(NOW), SECOND);
        let sent = requests.moment(NOW);
        drop(requests.begin());
        state.know(&attributes(5), sent.after_own_change());
        assert_eq!(found(), Some((attributes(5), Duration::ZERO)));
        let earlier = requests.begin();
        let sent = requests.moment(NOW);
        let own = requests.begin();
        drop((earlier, own));
        state.know(&attributes(5), sent.after_own_change());
        assert_eq!(found(), None);
    }

    #[test]
    fn written_shared_or_sparse_files_have_no_known_attributes() {
        let requests = ChangeRequests::default();
        let found =
            |state: &InodeState| state.known_attributes(requests.moment(NOW), SECOND).is_some();
        let written = known(&requests);
        assert!(found(&written));
        written.try_write().unwrap().note_write_unless_shared(&(0..4), 0);
        assert!(!found(&written), "metadata has no report of the write");
        let shared = known(&requests);
        shared.set_shared();
        assert!(!found(&shared));
        let newer = known(&requests);
        newer.observe(&attributes(6), NOW);
        assert!(!found(&newer));
        let sparse = known(&requests);
        let holes = Attributes { is_sparse: true, ..attributes(5) };
        sparse.know(&holes, requests.moment(NOW));
        assert!(!found(&sparse));
    }
}
