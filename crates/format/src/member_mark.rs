//! The mark of a member of a metadata group. At its start, a member learns from this mark whether
//! its host has lost records, and whether its store is incomplete.
//!
//! A member confirms log records to the primary before they are on the device. If the member's host
//! loses power, the member may lack records that it has confirmed. The module
//! `skep_store::page_cache` reads and writes the file.

use crate::chunk::HostMark;
use crate::sealed;
use skep_types::codec::record;
use skep_types::{GroupId, Result, byte_enum};

const MAGIC: [u8; 8] = *b"SKEPMEMB";
const VERSION: u16 = 2;

byte_enum! {
    /// State of the store and the log of a member.
    pub enum MemberContents {
        /// Store and log are complete. The store has the changes of all records up to some number,
        /// and the log has all later records.
        Whole = 0,
        /// A copy of the primary's store has begun and is not complete. The directory has no log.
        Incomplete = 1,
        /// Store and log are out of date. The member must remove them, because a copy of the
        /// primary's store will replace them.
        Discarded = 2,
    }
}

record! {
    /// Names the page cache that has the log records which a member has confirmed. The mark is
    /// stored with a checksum in the file `member-mark` of the target's directory.
    #[derive(Copy)]
    pub struct MemberMark {
        /// The page cache that has the confirmed records.
        pub host: HostMark,
        /// Whether the device has all records of the member. Set only by a clean shutdown.
        pub clean: bool,
        /// The group to which the target belonged most recently. The records of the target's log
        /// belong to this group.
        pub group: GroupId,
        /// State of the store and the log.
        pub contents: MemberContents,
    }
}

impl MemberMark {
    /// Encodes the mark as the content of its file.
    pub fn to_file(&self) -> Vec<u8> {
        sealed::seal(MAGIC, VERSION, self)
    }

    /// Decodes a mark from the content of its file.
    ///
    /// # Errors
    /// - `Corrupt` if the bytes are not a valid mark.
    /// - `Unsupported` if the mark has a different version.
    pub fn from_file(bytes: &[u8]) -> Result<Self> {
        sealed::open(MAGIC, VERSION, bytes)
    }

    /// Whether a member whose directory has this mark may lack records that it has confirmed.
    /// `host` identifies the current page cache. A member without a mark has confirmed nothing.
    pub fn lacks_records(previous: Option<Self>, host: HostMark) -> bool {
        previous.is_some_and(|mark| !mark.clean && mark.host != host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: HostMark = HostMark { boot_id: 1, device: 2, mount: 3, directory: 4 };

    fn mark(clean: bool, host: HostMark) -> MemberMark {
        MemberMark { host, clean, group: GroupId::new(7), contents: MemberContents::Incomplete }
    }

    #[test]
    fn member_lacks_records_only_after_loss_of_the_page_cache() {
        let lacks = |clean, host| MemberMark::lacks_records(Some(mark(clean, host)), HOST);
        assert!(!MemberMark::lacks_records(None, HOST), "nothing was confirmed");
        assert!(!lacks(false, HOST), "the process was killed");
        let others = [
            HostMark { boot_id: 9, ..HOST },
            HostMark { device: 9, ..HOST },
            HostMark { mount: 9, ..HOST },
            HostMark { directory: 9, ..HOST },
        ];
        for other in others {
            assert!(lacks(false, other), "{other:?}");
            assert!(!lacks(true, other), "a clean shutdown has synced all, {other:?}");
        }
    }

    #[test]
    fn member_mark_survives_a_round_trip() {
        let mark = mark(true, HOST);
        assert_eq!(MemberMark::from_file(&mark.to_file()).unwrap(), mark);
    }
}
