//! Examples of every message. Each service has one module with its examples. The test vectors are
//! generated from the examples. The examples also show how the messages are meant to be used.

mod consensus;
mod file_locks;
mod inline;
mod log_shipping;
mod management;
mod metadata;
mod namespace;
mod node;
mod session;
mod sharing;
mod storage;

use super::Example;
use skep_types::codec::Bytes;
use skep_types::{Attributes, FileKind, InodeId, ShardId, Timestamp};

/// Returns all examples.
pub(super) fn all() -> Vec<Example> {
    let mut all = session::examples();
    all.extend(node::examples());
    all.extend(management::examples());
    all.extend(metadata::examples());
    all.extend(namespace::examples());
    all.extend(file_locks::examples());
    all.extend(sharing::examples());
    all.extend(inline::examples());
    all.extend(log_shipping::examples());
    all.extend(consensus::examples());
    all.extend(storage::examples());
    all
}

/// Returns the id of a file. The file is in shard 0x2a.
fn a_file() -> InodeId {
    InodeId::from_parts(ShardId::new(0x2a), 0x1f)
}

/// Returns the id of a directory that is in a different shard than the file.
fn a_directory() -> InodeId {
    InodeId::from_parts(ShardId::new(0xfffe), InodeId::MAX_NUMBER)
}

/// Returns a name that is not ASCII.
fn a_name() -> Bytes {
    Bytes::from("caf\u{e9}.txt".as_bytes())
}

fn time(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanoseconds: 999_999_999 }
}

/// Returns attributes in which each field has a different value.
fn attributes(inode: InodeId, kind: FileKind) -> Attributes {
    Attributes {
        inode,
        kind,
        permissions: 0o4755,
        links: 3,
        uid: 1000,
        gid: 1001,
        project: 77,
        device: 0,
        size: 5_000_000_000,
        accessed: time(-1),
        modified: time(1_700_000_001),
        changed: time(1_700_000_002),
        created: time(1_700_000_000),
        change_counter: 12,
        truncate_generation: 2,
        is_sparse: true,
        has_capability: true,
        has_acl: false,
        hands_down_project: false,
    }
}
