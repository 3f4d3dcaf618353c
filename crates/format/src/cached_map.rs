//! The cached map: the last cluster map that a service got, so that it can start while management
//! is down.
//!
//! It is the file `kept-map` in a service's own directory, a sealed record ([`crate::sealed`]).
//! `docs/format/cached-map.md` states when it is written and when it may be trusted. `skep-service`
//! uses it.

use crate::sealed;
use skep_types::codec::record;
use skep_types::{ClusterMap, Result};

const MAGIC: [u8; 8] = *b"SKEPKMAP";
const VERSION: u16 = 1;

record! {
    /// A cluster map and the node that stored it.
    pub struct CachedMap {
        /// Random number from the initialisation of the node that stored it.
        pub node_uuid: u128,
        /// The map. Its reachabilities and capacities may be older than its version.
        pub map: ClusterMap,
    }
}

impl CachedMap {
    /// The bytes of the file.
    pub fn to_file(&self) -> Vec<u8> {
        sealed::seal(MAGIC, VERSION, self)
    }

    /// Reads the bytes of the file.
    ///
    /// # Errors
    /// `Corrupt` or `Unsupported` if they are not a cached map of this version.
    pub fn from_file(bytes: &[u8]) -> Result<Self> {
        sealed::open(MAGIC, VERSION, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::{ClusterId, MapVersion};

    #[test]
    fn bytes_of_version_1_are_stable() {
        let mut map = ClusterMap::empty(ClusterId::new([0x11; 16]));
        map.version = MapVersion::new(0x22);
        let cached = CachedMap { node_uuid: 0x33, map };
        let bytes = cached.to_file();
        assert_eq!(&bytes[..16], b"SKEPKMAP\x01\0\0\0\x7b\0\0\0");
        assert_eq!(bytes[16..32], 0x33_u128.to_le_bytes());
        assert_eq!(bytes[32..48], [0x11; 16]);
        assert_eq!(bytes[48..56], 0x22_u64.to_le_bytes());
        assert_eq!(CachedMap::from_file(&bytes).unwrap(), cached);
    }
}
