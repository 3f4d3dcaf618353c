//! The directories whose last listing fitted into one reply with attributes, and the age of that
//! listing.
//!
//! The kernel keeps a listing until the mount makes the kernel read the listing again. But the
//! kernel may use the names and attributes of the entries in the listing only for the attribute
//! timeout. After that time, a program that lists the directory and then uses each entry (`rm -r`,
//! `ls -l`, `tar`) would cause one request for each entry. If the listing fits into one reply, the
//! kernel can read it again with one request, which renews all entries. A check whether the listing
//! is still valid would also take one request.

use crate::cache::recent::Recent;
use crate::limits::MAX_REMEMBERED_SPECIAL;
use skep_types::InodeId;
use std::time::Duration;

/// The ages of listings that fitted into one reply.
#[derive(Debug)]
pub(crate) struct Listings {
    /// The time at which the mount sent the request for the listing. `None` means that the listing
    /// did not fit into one reply, or had no attributes.
    sent: Recent<Option<Duration>>,
}

impl Listings {
    pub(crate) fn new() -> Self {
        Self { sent: Recent::new(MAX_REMEMBERED_SPECIAL) }
    }

    /// Records that the kernel reads the listing of a directory from its beginning. `sent` is the
    /// time of the request if the reply has all entries with their attributes.
    pub(crate) fn note(&self, directory: InodeId, sent: Option<Duration>) {
        self.sent.note(directory, sent);
    }

    /// Returns whether one request is enough to list the directory again, and the entries of the
    /// last listing have expired in the kernel.
    pub(crate) fn has_expired(&self, directory: InodeId, max_age: Duration, now: Duration) -> bool {
        let sent = self.sent.get(directory).flatten();
        sent.is_some_and(|sent| now.saturating_sub(sent) >= max_age)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_listing_in_one_reply_expires() {
        let (listings, at) = (Listings::new(), Duration::from_secs(60));
        let second = Duration::from_secs(1);
        let directory = InodeId::new(7);
        let expires = |now| listings.has_expired(directory, second, now);
        assert!(!expires(at + second), "the mount has not listed the directory");
        listings.note(directory, Some(at));
        assert!(!expires(at + second / 2));
        assert!(expires(at + second));
        listings.note(directory, None);
        assert!(!expires(at + second), "the directory has grown");
    }
}
