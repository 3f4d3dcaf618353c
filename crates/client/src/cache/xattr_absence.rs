//! The inodes that do not have the extended attributes that the kernel requests by itself: before
//! writes, before it runs a program, and to check permissions. Almost no inode has such an
//! attribute. Without this table, the mount would send a request to metadata for each of these
//! requests of the kernel.

use crate::cache::recent::Recent;
use crate::limits::MAX_REMEMBERED_XATTR_ABSENCE;
use skep_types::{ACCESS_ACL, Attributes, DEFAULT_ACL, InodeId};
use std::time::Duration;

/// Returns whether `name` is an extended attribute that the kernel requests by itself.
pub(crate) fn is_asked_by_kernel(name: &[u8]) -> bool {
    [CAPABILITY, ACCESS_ACL, DEFAULT_ACL].contains(&name)
}

/// The newest information about the extended attributes of one inode.
#[derive(Debug, Clone, Copy)]
enum Absence {
    /// The mount sent a request at this time. The reply showed that the inode has no extended
    /// attribute that the kernel requests by itself.
    Since(Duration),
    /// The inode may have an extended attribute that the kernel requests by itself. Either a
    /// program has set such an attribute through this mount, or a reply of metadata contained one.
    /// The table ignores replies to requests that the mount sent at this time or before, since they
    /// may be out of date.
    NotBefore(Duration),
}

/// The inodes without the extended attributes that the kernel requests by itself.
#[derive(Debug)]
pub(crate) struct XattrAbsence {
    /// Time for which an entry of the table is valid. The kernel may cache attributes for the same
    /// time.
    valid: Duration,
    all: Recent<Absence>,
    /// The inodes without [`CAPABILITY`] according to a reply of metadata. The value is the time at
    /// which the mount sent the request. The table `no_capability` serves programs that write and
    /// read a file in turn. The kernel requests this attribute before each write. But metadata
    /// sends no attributes of the file meanwhile, so the entry of the file in `all` expires.
    no_capability: Recent<Duration>,
}

/// The attribute that the kernel requests before a write, and before it runs a program.
const CAPABILITY: &[u8] = b"security.capability";

impl XattrAbsence {
    /// Creates an empty table, whose entries are valid for the time `valid`. Zero means that every
    /// request goes to metadata.
    pub(crate) fn new(valid: Duration) -> Self {
        let most = MAX_REMEMBERED_XATTR_ABSENCE;
        Self { valid, all: Recent::new(most), no_capability: Recent::new(most) }
    }

    /// Records whether an inode has extended attributes that the kernel requests by itself.
    /// `attributes` are from the reply to a request that the mount sent at the time `sent`.
    ///
    /// The time for which the entry is valid begins at `sent`. If the time began with the reply,
    /// the mount could use a late reply longer than the kernel may use attributes.
    pub(crate) fn note(&self, attributes: &Attributes, sent: Duration) {
        let has_none = !attributes.has_capability && !attributes.has_acl;
        self.all.update(attributes.inode, |noted| match noted {
            Some(Absence::NotBefore(at)) if sent <= *at => Absence::NotBefore(*at),
            Some(Absence::Since(at)) if has_none => Absence::Since(sent.max(*at)),
            _ if has_none => Absence::Since(sent),
            _ => Absence::NotBefore(sent),
        });
    }

    /// Records that metadata has replied that the inode does not have this extended attribute. The
    /// mount sent the request at the time `sent`.
    pub(crate) fn note_missing(&self, inode: InodeId, name: &[u8], sent: Duration) {
        if name == CAPABILITY {
            self.no_capability.note(inode, sent);
        }
    }

    /// Returns whether the inode lacks this extended attribute, according to replies that are not
    /// older than the time for which the kernel may cache attributes.
    pub(crate) fn is_absent(&self, inode: InodeId, name: &[u8], now: Duration) -> bool {
        if !is_asked_by_kernel(name) {
            return false;
        }
        let is_recent = |at: Duration| now < at.saturating_add(self.valid);
        let after = match self.all.get(inode) {
            Some(Absence::Since(at)) if is_recent(at) => return true,
            Some(Absence::NotBefore(at)) => Some(at),
            _ => None,
        };
        // A reply is not valid if the mount sent its request before `after`: a program may have set
        // the capability after metadata had executed this request.
        let is_valid = |sent: Duration| after.is_none_or(|at| sent > at) && is_recent(sent);
        name == CAPABILITY && self.no_capability.get(inode).is_some_and(is_valid)
    }

    /// Forgets the absence of extended attributes of an inode, because a program sets the attribute
    /// `name`. Replies to requests that the mount has sent up to now may be out of date.
    pub(crate) fn forget(&self, inode: InodeId, name: &[u8], now: Duration) {
        if is_asked_by_kernel(name) {
            self.all.note(inode, Absence::NotBefore(now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::{FileKind, Timestamp};

    const VALID: Duration = Duration::from_secs(1);

    #[test]
    fn missing_xattr_is_cached_until_its_creation_or_the_timeout() {
        let (absence, inode) = (XattrAbsence::new(VALID), InodeId::new(4));
        let (at, later) = (Duration::from_secs(9), Duration::from_secs(9) + VALID);
        let attributes = Attributes::new(inode, FileKind::Regular, 0o644, Timestamp::default());
        assert!(
            !absence.is_absent(inode, ACCESS_ACL, at),
            "metadata has sent nothing about the inode yet"
        );
        absence.note(&attributes, at);
        assert!(absence.is_absent(inode, ACCESS_ACL, at));
        assert!(!absence.is_absent(inode, b"user.other", at));
        assert!(!absence.is_absent(inode, ACCESS_ACL, later));
        absence.forget(inode, ACCESS_ACL, at);
        absence.note(&attributes, at);
        assert!(!absence.is_absent(inode, ACCESS_ACL, at), "the attributes may be older");
        absence.note(&attributes, later);
        assert!(absence.is_absent(inode, ACCESS_ACL, later), "the reply to a later request");
    }

    /// Regression test: the time for which an entry is valid began at the reply, and not at the
    /// request. So after a reply that took a second, the table showed the absence of an access
    /// control list until two seconds after the request.
    #[test]
    fn missing_xattr_is_cached_from_the_time_of_the_request() {
        let (absence, inode) = (XattrAbsence::new(VALID), InodeId::new(4));
        let (sent, arrived) = (Duration::from_secs(9), Duration::from_secs(9) + VALID);
        let attributes = Attributes::new(inode, FileKind::Regular, 0o644, Timestamp::default());
        absence.note(&attributes, sent);
        assert!(!absence.is_absent(inode, ACCESS_ACL, arrived));
        // The reply to an earlier request arrives after the reply to a later request.
        absence.note(&attributes, arrived);
        absence.note(&attributes, sent);
        assert!(absence.is_absent(inode, ACCESS_ACL, arrived));
    }

    #[test]
    fn missing_capability_is_cached_for_the_attribute_timeout() {
        let (absence, inode) = (XattrAbsence::new(VALID), InodeId::new(4));
        let at = Duration::from_secs(9);
        absence.note_missing(inode, ACCESS_ACL, at);
        absence.note_missing(inode, CAPABILITY, at);
        assert!(absence.is_absent(inode, CAPABILITY, at + VALID / 2));
        assert!(
            !absence.is_absent(inode, ACCESS_ACL, at),
            "the table keeps replies about the capability only"
        );
        assert!(!absence.is_absent(inode, CAPABILITY, at + VALID));
        // A program sets the capability before the reply to an earlier request arrives.
        absence.forget(inode, CAPABILITY, at);
        absence.note_missing(inode, CAPABILITY, at);
        assert!(!absence.is_absent(inode, CAPABILITY, at));
        assert!(!absence.is_absent(inode, CAPABILITY, at + VALID));
    }

    #[test]
    fn setting_a_capability_ends_its_cached_absence() {
        let (absence, inode) = (XattrAbsence::new(Duration::from_secs(60)), InodeId::new(4));
        let second = Duration::from_secs;
        absence.note_missing(inode, CAPABILITY, second(9));
        absence.forget(inode, CAPABILITY, second(10));
        assert!(!absence.is_absent(inode, CAPABILITY, second(12)));
        absence.note_missing(inode, CAPABILITY, second(13));
        assert!(
            absence.is_absent(inode, CAPABILITY, second(14)),
            "the reply to a later request is valid"
        );
    }

    #[test]
    fn nothing_is_cached_with_a_timeout_of_zero() {
        let (absence, inode) = (XattrAbsence::new(Duration::ZERO), InodeId::new(4));
        let at = Duration::from_secs(9);
        let attributes = Attributes::new(inode, FileKind::Regular, 0o644, Timestamp::default());
        absence.note(&attributes, at);
        absence.note_missing(inode, CAPABILITY, at);
        assert!(!absence.is_absent(inode, ACCESS_ACL, at));
        assert!(!absence.is_absent(inode, CAPABILITY, at));
    }
}
