//! The cached map: the last cluster map that a service received. With the cached map, the service
//! can start while management is down.
//!
//! The map is in the file `kept-map` of the service's own directory, as a record with a checksum
//! ([`crate::sealed`]). `docs/format/cached-map.md` states when a process writes the file, and when
//! a process may trust it. `skep-service` reads and writes this file.

use crate::sealed;
use skep_types::codec::record;
use skep_types::{ClusterMap, Result};

const MAGIC: [u8; 8] = *b"SKEPKMAP";
const VERSION: u16 = 7;

record! {
    /// A cluster map and the identity of the node that stored it.
    pub struct CachedMap {
        /// Random number drawn when the node was initialised.
        pub node_uuid: u128,
        /// The cluster map. Reachability and capacities in it may be out of date, because the
        /// service does not store the map again at each of their changes.
        pub map: ClusterMap,
    }
}

impl CachedMap {
    /// Encodes the cached map as the content of its file.
    pub fn to_file(&self) -> Vec<u8> {
        sealed::seal(MAGIC, VERSION, self)
    }

    /// Decodes a cached map from the content of its file.
    ///
    /// # Errors
    /// - `Corrupt` if the bytes are not a valid cached map.
    /// - `Unsupported` if the cached map has a different version.
    pub fn from_file(bytes: &[u8]) -> Result<Self> {
        sealed::open(MAGIC, VERSION, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::{ClusterId, MapVersion};

    #[test]
    fn cached_map_bytes_of_version_7_never_change() {
        let mut map = ClusterMap::empty(ClusterId::new([0x11; 16]));
        map.version = MapVersion::new(0x22);
        let cached = CachedMap { node_uuid: 0x33, map };
        let bytes = cached.to_file();
        assert_eq!(&bytes[..16], b"SKEPKMAP\x07\0\0\0\xab\0\0\0");
        assert_eq!(bytes[16..32], 0x33_u128.to_le_bytes());
        assert_eq!(bytes[32..48], [0x11; 16]);
        assert_eq!(bytes[48..56], 0x22_u64.to_le_bytes());
        assert_eq!(CachedMap::from_file(&bytes).unwrap(), cached);
    }
}
