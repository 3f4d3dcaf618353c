//! The ends of listings: the directories whose last page the mount has just received. A page is one
//! reply of metadata.
//!
//! FUSE has no mark for the end of a listing. After the last entry, the kernel requests more
//! entries, and an empty reply ends the listing. Metadata marks the page with the last entry, so
//! the mount sends the empty reply without a request to metadata.
//!
//! # Entries that programs create meanwhile
//! A listing may omit entries that were created after its first request (`docs/semantics.md`).
//! So a page may end a listing only if the listing began before metadata sent the page:
//! - Each request for a page, and each open of the directory, makes the table forget the end of the
//!   previous page. If the reply to an earlier request arrives later, the table records no end from
//!   this reply.
//! - The end is valid only for the time for which the kernel may cache names. This time begins with
//!   the request for the page.
//! - An end serves one request of the kernel. The next request gets newer entries from metadata.

use crate::cache::recent::Recent;
use crate::limits::MAX_REMEMBERED_SPECIAL;
use skep_types::InodeId;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A request for a page of a listing, or an open of the directory.
#[derive(Debug, Clone, Copy)]
struct Page {
    number: u64,
    /// If the page has the last entry of the directory: the cursor of this entry, and the time at
    /// which the mount sent the request.
    end: Option<(u64, Duration)>,
}

/// For each directory, the last entry of the newest page, if a listing ends with this entry.
#[derive(Debug)]
pub(crate) struct ListingEnds {
    /// The newest request for a page, or the newest open, of each directory.
    pages: Recent<Page>,
    /// Number of requests for pages and opens of directories so far.
    requests: AtomicU64,
}

impl ListingEnds {
    pub(crate) fn new() -> Self {
        Self { pages: Recent::new(MAX_REMEMBERED_SPECIAL), requests: AtomicU64::new(0) }
    }

    /// Begins a request for a page, or an open of the directory. Returns its number.
    pub(crate) fn begin(&self, directory: InodeId) -> u64 {
        let number = self.requests.fetch_add(1, Ordering::SeqCst);
        self.pages.note(directory, Page { number, end: None });
        number
    }

    /// Records that the page of a request has the last entry of the directory. `cursor` is the
    /// cursor of this entry, or zero if the directory is empty. `sent` is the time of the request.
    pub(crate) fn note(&self, directory: InodeId, number: u64, cursor: u64, sent: Duration) {
        let end = Some((cursor, sent));
        let is_newest = |page: &Page| (page.number == number).then_some(Page { number, end });
        self.pages.update_if(directory, is_newest);
    }

    /// Returns whether the newest page of the directory has the last entry at `cursor`, and the
    /// mount requested this page less than `max_age` before `now`. Removes the end from the table.
    pub(crate) fn take(
        &self,
        directory: InodeId,
        cursor: u64,
        max_age: Duration,
        now: Duration,
    ) -> bool {
        let mut is_end = false;
        self.pages.update_if(directory, |page| {
            let (last, sent) = page.end?;
            is_end = last == cursor && now.saturating_sub(sent) < max_age;
            Some(Page { end: None, ..*page })
        });
        is_end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIRECTORY: InodeId = InodeId::new(7);
    const SECOND: Duration = Duration::from_secs(1);
    const NOW: Duration = Duration::from_secs(60);

    /// Returns the ends of listings after a listing that has the cursor 500 for its last entry.
    fn listed() -> ListingEnds {
        let ends = ListingEnds::new();
        let number = ends.begin(DIRECTORY);
        ends.note(DIRECTORY, number, 500, NOW);
        ends
    }

    #[test]
    fn end_of_a_listing_serves_one_request_at_its_cursor() {
        let ends = listed();
        assert!(ends.take(DIRECTORY, 500, SECOND, NOW));
        assert!(!ends.take(DIRECTORY, 500, SECOND, NOW), "the next request goes to metadata");
        assert!(!listed().take(DIRECTORY, 400, SECOND, NOW), "the kernel has a part of the page");
        assert!(!listed().take(InodeId::new(8), 500, SECOND, NOW));
        assert!(!listed().take(DIRECTORY, 500, SECOND, NOW + SECOND));
        assert!(!listed().take(DIRECTORY, 500, Duration::ZERO, NOW));
    }

    #[test]
    fn end_of_a_listing_is_forgotten_at_the_next_request() {
        let ends = listed();
        ends.begin(DIRECTORY);
        assert!(!ends.take(DIRECTORY, 500, SECOND, NOW));
        let (early, late) = (ends.begin(DIRECTORY), ends.begin(DIRECTORY));
        ends.note(DIRECTORY, early, 500, NOW);
        assert!(!ends.take(DIRECTORY, 500, SECOND, NOW), "a later listing has begun");
        ends.note(DIRECTORY, late, 500, NOW);
        assert!(ends.take(DIRECTORY, 500, SECOND, NOW));
    }
}
