//! The basic data types of Skep: typed ids, sizes, stripe patterns, attributes, the cluster map,
//! error codes, and the binary codec that wire messages and disk records share.
//!
//! This crate is responsible for the data types and their binary layout. The crate is pure: it uses
//! no I/O, no clock and no threads. This crate is not responsible for messages (`skep-wire`), disk
//! records (`skep-format`) or decisions (`skep-cluster`).

mod acl;
pub mod attributes;
mod chunk_file_set;
pub mod codec;
pub mod cpu_list;
mod error;
mod eviction;
mod feature_level;
pub mod group_change;
mod group_record;
mod id;
pub mod map;
pub mod pattern;
mod pattern_request;
pub mod random;
pub mod registration;
pub mod size;
pub mod text;
mod time;

pub use acl::{ACCESS_ACL, Acl, AclEntry, AclTag, DEFAULT_ACL, MAX_ACL_BYTES};
pub use attributes::{Attributes, FileKind};
pub use chunk_file_set::ChunkFileSet;
pub use error::{Error, ErrorCode, Result, RetryClass, is_out_of_descriptors};
pub use eviction::{Eviction, EvictionCause};
pub use feature_level::{NEWEST_FEATURE_LEVEL, STAGING_FEATURE_LEVEL};
pub use group_record::GroupRecord;
pub use id::{
    ClusterId, Epoch, GroupId, HostIncarnation, InodeId, Lsn, MapVersion, NodeId, SessionId,
    ShardId, TargetId,
};
pub use map::{ClusterMap, Group, GroupMember, MemberState, Node, NodeKind, Target, TargetKind};
pub use pattern::{Chooser, ChunkFileKey, Component, PatternOrigin, Redundancy, StripePattern};
pub use pattern_request::{ComponentRequest, PatternRequest, Placement};
pub use time::{Timestamp, utc};

/// Number of virtual shards of every namespace (`docs/glossary.md`).
pub const SHARD_COUNT: u32 = 65_536;
/// Number of bytes covered by one checksum, on the wire and on disk.
pub const GRANULE_BYTES: u64 = 4096;
/// Maximum size of a file: 2^63 - 1 bytes, the limit of `off_t`.
pub const MAX_FILE_BYTES: u64 = i64::MAX as u64;
/// Maximum length of an entry name in bytes: `NAME_MAX` of Linux.
pub const MAX_NAME_BYTES: usize = 255;

const _: () = assert!(usize::BITS == 64, "Skep is built for 64-bit machines only");
