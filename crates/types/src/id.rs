//! Typed ids: private fields, no arithmetic, `Display` with a letter prefix.

use crate::codec::{Codec, Reader, Writer};
use crate::error::Result;
use std::fmt;

macro_rules! id {
    ($(#[doc = $doc:literal])* $name:ident($raw:ty), $prefix:literal) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name($raw);

        impl $name {
            /// Wraps a raw number from the wire, the disk or a command line.
            pub const fn new(raw: $raw) -> Self {
                Self(raw)
            }

            /// Returns the raw number.
            pub const fn raw(self) -> $raw {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl Codec for $name {
            const LAYOUT: &'static str = stringify!($raw);
            fn encode(&self, w: &mut Writer) {
                self.0.encode(w);
            }
            fn decode(r: &mut Reader<'_>) -> Result<Self> {
                Ok(Self(<$raw>::decode(r)?))
            }
        }
    };
}

id!(/// A running server or a client. Management assigns node ids and never reuses them.
    NodeId(u32), "n");
id!(/// A directory tree on one node that stores data. Management assigns target ids and never
    /// reuses them. Zero means no target.
    TargetId(u32), "t");
id!(/// An ordered list of targets that store the same data. Zero means no group.
    GroupId(u32), "g");
id!(/// One of the 65,536 virtual shards of the namespace.
    ShardId(u16), "s");
id!(/// A client session at metadata targets: its open files, slots and lease.
    SessionId(u64), "c");
id!(/// Version of the cluster map. Each change of the map raises the version.
    MapVersion(u64), "v");
id!(/// Version of a group's membership. Receivers refuse messages of an older epoch.
    Epoch(u64), "e");
id!(/// Log sequence number in the log of one target, from 1. Zero precedes the first record.
    Lsn(u64), "lsn");
id!(/// Random number that changes whenever acknowledged but unsynced writes may have been lost. A
    /// storage target draws a new number, for example, at its first start after a power loss of its
    /// host.
    HostIncarnation(u64), "i");

/// The id of an inode: a virtual shard (upper 16 bits) and a number within that shard (lower 48
/// bits). Ids are never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeId(u64);

impl InodeId {
    /// The root directory: inode number 1 in shard 0.
    pub const ROOT: Self = Self(1);
    /// Highest inode number within a shard.
    pub const MAX_NUMBER: u64 = (1 << 48) - 1;

    /// Combines a shard and an inode number within that shard.
    ///
    /// # Panics
    /// Panics if `number` is zero or exceeds [`Self::MAX_NUMBER`].
    pub const fn from_parts(shard: ShardId, number: u64) -> Self {
        assert!(
            number > 0 && number <= Self::MAX_NUMBER,
            "invalid inode number: expected at most 48 bits"
        );
        Self((shard.raw() as u64) << 48 | number)
    }

    /// Wraps 64 bits from the kernel, the wire or the disk.
    pub const fn new(raw: u64) -> Self {
        Self(raw)
    }

    /// Returns the position before all inodes of a shard: number zero, which no inode has.
    pub const fn first_of(shard: ShardId) -> Self {
        Self((shard.raw() as u64) << 48)
    }

    /// Returns all 64 bits.
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// Returns the virtual shard to which the inode belongs.
    pub const fn shard(self) -> ShardId {
        ShardId::new((self.0 >> 48) as u16)
    }

    /// Returns the inode number within the shard.
    pub const fn number(self) -> u64 {
        self.0 & Self::MAX_NUMBER
    }
}

impl fmt::Display for InodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}-{:X}", self.shard().raw(), self.number())
    }
}

impl std::str::FromStr for InodeId {
    type Err = String;

    fn from_str(s: &str) -> std::result::Result<Self, String> {
        let wrong = || format!("invalid entry id '{s}': expected SHARD-NUMBER in hex, as in 2A-1F");
        let (shard, number) = s.split_once('-').ok_or_else(wrong)?;
        let shard = u16::from_str_radix(shard, 16).map_err(|_| wrong())?;
        let number = u64::from_str_radix(number, 16).map_err(|_| wrong())?;
        if number == 0 || number > Self::MAX_NUMBER {
            return Err(wrong());
        }
        Ok(Self::from_parts(ShardId::new(shard), number))
    }
}

impl Codec for InodeId {
    const LAYOUT: &'static str = "u64";
    fn encode(&self, w: &mut Writer) {
        self.0.encode(w);
    }
    fn decode(r: &mut Reader<'_>) -> Result<Self> {
        Ok(Self(u64::decode(r)?))
    }
}

/// Identity of a file system: 16 random bytes, drawn when management is initialised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterId([u8; 16]);

impl ClusterId {
    /// Wraps the 16 bytes.
    pub const fn new(raw: [u8; 16]) -> Self {
        Self(raw)
    }

    /// Returns the 16 bytes.
    pub const fn raw(self) -> [u8; 16] {
        self.0
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Codec for ClusterId {
    const LAYOUT: &'static str = "u8[16]";
    fn encode(&self, w: &mut Writer) {
        w.raw(&self.0);
    }
    fn decode(r: &mut Reader<'_>) -> Result<Self> {
        Ok(Self(r.array()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inode_id_contains_its_shard_and_number() {
        let id = InodeId::from_parts(ShardId::new(0xABCD), 77);
        assert_eq!((id.shard().raw(), id.number()), (0xABCD, 77));
        assert_eq!(id.to_string(), "ABCD-4D");
        assert_eq!(id.to_string().parse(), Ok(id));
    }

    #[test]
    fn malformed_entry_ids_are_refused() {
        for text in ["", "1", "1-", "-1", "1-0", "10000-1", "1-1000000000000", "x-1"] {
            assert!(text.parse::<InodeId>().is_err(), "{text}");
        }
    }
}
