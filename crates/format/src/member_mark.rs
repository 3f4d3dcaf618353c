//! The mark of a metadata group's member. By it, the member notices that its host has lost records.
//!
//! A member confirms records before they are on the device. If its host loses power, the member may
//! have fewer records than its group counts on. Does not own the file (`skep_store::page_cache`).

use crate::chunk::HostMark;
use crate::sealed;
use skep_types::Result;
use skep_types::codec::record;

const MAGIC: [u8; 8] = *b"SKEPMEMB";
const VERSION: u16 = 1;

record! {
    /// The page cache in which a member has records that it has confirmed: a sealed record in the
    /// file `member-mark` of the target's directory.
    #[derive(Copy)]
    pub struct MemberMark {
        /// The page cache.
        pub host: HostMark,
        /// Whether the device has all records. Set only by a clean shutdown.
        pub clean: bool,
    }
}

impl MemberMark {
    /// Encodes the content of the file.
    pub fn to_file(&self) -> Vec<u8> {
        sealed::seal(MAGIC, VERSION, self)
    }

    /// Decodes the content of the file.
    ///
    /// # Errors
    /// - `Corrupt` if the bytes are not a valid mark.
    /// - `Unsupported` if the mark has a different version.
    pub fn from_file(bytes: &[u8]) -> Result<Self> {
        sealed::open(MAGIC, VERSION, bytes)
    }

    /// Whether a member whose directory has this mark may lack records that it has confirmed.
    /// `host` is the present page cache. A member without a mark has confirmed nothing.
    pub fn lacks_records(previous: Option<Self>, host: HostMark) -> bool {
        previous.is_some_and(|mark| !mark.clean && mark.host != host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: HostMark = HostMark { boot_id: 1, device: 2, mount: 3, directory: 4 };

    #[test]
    fn only_another_page_cache_loses_records() {
        let lacks = |clean, host| MemberMark::lacks_records(Some(MemberMark { host, clean }), HOST);
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
    fn mark_survives_a_round_trip() {
        let mark = MemberMark { host: HOST, clean: true };
        assert_eq!(MemberMark::from_file(&mark.to_file()).unwrap(), mark);
    }
}
