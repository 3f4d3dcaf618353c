//! The mark of the page cache. From this mark, a metadata target learns at its start whether its
//! host may have lost changes that the target has acknowledged. `skep_store::page_cache_mark` reads
//! and writes the file.

use crate::chunk::HostMark;
use crate::sealed;
use skep_types::Result;
use skep_types::codec::record;

const MAGIC: [u8; 8] = *b"SKEPPAGE";
const VERSION: u16 = 1;

record! {
    /// Identifies the page cache that contains the changes that a metadata target has acknowledged.
    /// The mark is stored with a checksum in the file `page-cache-mark` of the target's directory.
    #[derive(Copy)]
    pub struct PageCacheMark {
        /// Identifies the page cache.
        pub host: HostMark,
        /// Whether the device has all acknowledged changes. Only a clean shutdown sets this field.
        pub clean: bool,
    }
}

impl PageCacheMark {
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
}
