//! The keys of the key-value store of a metadata target, and the conversion of a key back to its
//! parts.
//!
//! All records of a virtual shard are in one key range, so a copy of this range moves the whole
//! shard. The module `records` owns the values, and the module `cursors` owns the cursors of names.

use skep_types::{ChunkFileKey, Error, ErrorCode, GroupId, InodeId, Result, SessionId, ShardId};
use skep_wire::file_locks::LockKind;
use skep_wire::metadata::TransactionId;

/// First byte of all keys that belong to the target as a whole.
const OF_TARGET: u8 = 0;
/// First byte of all keys that belong to a virtual shard.
const OF_SHARD: u8 = 1;

/// A key. Numbers are encoded big-endian, because a scan returns keys in the order of their bytes,
/// which is then the order of the numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Key<'a> {
    /// LSN of the last log record that is applied to the store. Value: `Lsn`.
    Applied,
    /// Upper bound (exclusive) of the inode numbers and transaction numbers that the target may
    /// have used. Value: `u64`.
    NumbersReserved,
    /// A client session. Value: `SessionRecord`.
    Session(SessionId),
    /// A slot of a session. Value: `SlotRecord`.
    Slot(SessionId, u32),
    /// Counts of the opens of an inode by one session. Value: `OpenCounts`.
    SessionOpen(SessionId, InodeId),
    /// A chunk file that the target must still remove at a storage group. Value: empty.
    Removal(GroupId, ChunkFileKey),
    /// A file whose size the target must recover from its chunk files, because a writer died.
    /// Value: a `u64` that identifies the last death of a writer, because each death gets a new
    /// number.
    SizeRecovery(InodeId),
    /// A truncation that storage has not yet durably applied to all chunk files. Value:
    /// `TruncationRecord`.
    Truncation(InodeId),
    /// A transaction that another group coordinates and that this target has prepared. Value:
    /// `PreparedRecord`.
    Prepared(TransactionId),
    /// A committed transaction that this group coordinates. The field is the id of the transaction.
    /// Value: `DecisionRecord`, with the participants that have not confirmed the commit.
    Decision(u64),
    /// A transaction of another group that has ended on this target, so that a repeated request
    /// must not prepare it. Value: the `Timestamp` of its end.
    Finished(TransactionId),
    /// A transaction that this group coordinates and has staged: the changes of this group are in
    /// the store, and the target still undoes them if the participant has lost its prepared
    /// transaction. The field is the id of the transaction. Value: `StagedRecord`.
    Staged(u64),
    /// A session that has ended, so that a repeated request must not open it. Value: the
    /// `Timestamp` of its end.
    SessionEnd(SessionId),
    /// The locks of an owner on a file. Value: `FileLocksRecord`.
    FileLocks(LockOwner),
    /// An inode. Value: `InodeRecord`.
    Inode(InodeId),
    /// An entry: its directory and its cursor (hash of the name, with ordinal). Value:
    /// `DentryRecord`.
    Dentry(InodeId, u64),
    /// An extended attribute. Value: the bytes of the attribute.
    Xattr(InodeId, &'a [u8]),
    /// Counts of the opens of an inode, summed over all sessions. Value: `OpenCounts`.
    Opens(InodeId),
    /// A start of the target, by its start number. Value: the LSN of the first log record after
    /// that start, an `Lsn`.
    Start(u64),
    /// A part of the inline bytes of a file, by its index. Value: `InlineRecord`. A missing record
    /// means that all bytes of the part are zeros. The key of part 0 has no index, because earlier
    /// versions of the program stored all inline bytes of a file under this key.
    Inline(InodeId, u16),
    /// The fence of the target. Value: the version of the newest cluster map that removed a client
    /// with a session at this target.
    Fence,
    /// The progress of an incomplete copy of another member's store. Only an incomplete store has
    /// this key, and no log record contains it. Value: `StoreCopyRecord`.
    StoreCopy,
}

/// The owner of locks on a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockOwner {
    /// The locked file.
    pub inode: InodeId,
    /// Kind of the locks. Each kind of lock has its own key.
    pub kind: LockKind,
    /// The session of the client that set the locks.
    pub session: SessionId,
    /// Id of the owner, unique within the session.
    pub owner: u64,
}

mod kind {
    pub(super) const APPLIED: u8 = 1;
    pub(super) const NUMBERS_RESERVED: u8 = 2;
    pub(super) const SESSION: u8 = 3;
    pub(super) const SLOT: u8 = 4;
    pub(super) const SESSION_OPEN: u8 = 5;
    pub(super) const REMOVAL: u8 = 6;
    pub(super) const SIZE_RECOVERY: u8 = 7;
    pub(super) const PREPARED: u8 = 8;
    pub(super) const DECISION: u8 = 9;
    pub(super) const FINISHED: u8 = 10;
    pub(super) const SESSION_END: u8 = 11;
    pub(super) const FILE_LOCKS: u8 = 12;
    pub(super) const FENCE: u8 = 13;
    pub(super) const START: u8 = 14;
    pub(super) const TRUNCATION: u8 = 15;
    pub(super) const STORE_COPY: u8 = 16;
    pub(super) const STAGED: u8 = 17;

    pub(super) const INODE: u8 = 1;
    pub(super) const DENTRY: u8 = 2;
    pub(super) const XATTR: u8 = 3;
    pub(super) const OPENS: u8 = 4;
    pub(super) const INLINE: u8 = 5;
}

fn of_shard(inode: InodeId, kind: u8) -> Vec<u8> {
    let mut key = Vec::with_capacity(24);
    key.push(OF_SHARD);
    key.extend(inode.shard().raw().to_be_bytes());
    key.push(kind);
    key.extend(inode.raw().to_be_bytes());
    key
}

fn of_target(kind: u8, parts: &[&[u8]]) -> Vec<u8> {
    let mut key = Vec::with_capacity(24);
    key.extend([OF_TARGET, kind]);
    parts.iter().for_each(|part| key.extend_from_slice(part));
    key
}

fn transaction(id: &TransactionId) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&id.coordinator.raw().to_be_bytes());
    bytes[4..].copy_from_slice(&id.number.to_be_bytes());
    bytes
}

impl Key<'_> {
    /// Encodes the key.
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Applied => of_target(kind::APPLIED, &[]),
            Self::NumbersReserved => of_target(kind::NUMBERS_RESERVED, &[]),
            Self::Session(session) => of_target(kind::SESSION, &[&session.raw().to_be_bytes()]),
            Self::Slot(session, slot) => {
                of_target(kind::SLOT, &[&session.raw().to_be_bytes(), &slot.to_be_bytes()])
            }
            Self::SessionOpen(session, inode) => of_target(
                kind::SESSION_OPEN,
                &[&session.raw().to_be_bytes(), &inode.raw().to_be_bytes()],
            ),
            Self::Removal(group, key) => of_target(
                kind::REMOVAL,
                &[
                    &group.raw().to_be_bytes(),
                    &key.inode.raw().to_be_bytes(),
                    &key.generation.to_be_bytes(),
                    &key.component.to_be_bytes(),
                    &key.index.to_be_bytes(),
                ],
            ),
            Self::SizeRecovery(inode) => {
                of_target(kind::SIZE_RECOVERY, &[&inode.raw().to_be_bytes()])
            }
            Self::Truncation(inode) => of_target(kind::TRUNCATION, &[&inode.raw().to_be_bytes()]),
            Self::Prepared(id) => of_target(kind::PREPARED, &[&transaction(id)]),
            Self::Decision(number) => of_target(kind::DECISION, &[&number.to_be_bytes()]),
            Self::Finished(id) => of_target(kind::FINISHED, &[&transaction(id)]),
            Self::Staged(number) => of_target(kind::STAGED, &[&number.to_be_bytes()]),
            Self::SessionEnd(session) => {
                of_target(kind::SESSION_END, &[&session.raw().to_be_bytes()])
            }
            Self::FileLocks(of) => of_target(
                kind::FILE_LOCKS,
                &[
                    &of.session.raw().to_be_bytes(),
                    &of.inode.raw().to_be_bytes(),
                    &[of.kind as u8],
                    &of.owner.to_be_bytes(),
                ],
            ),
            Self::Fence => of_target(kind::FENCE, &[]),
            Self::StoreCopy => of_target(kind::STORE_COPY, &[]),
            Self::Start(number) => of_target(kind::START, &[&number.to_be_bytes()]),
            Self::Inode(inode) => of_shard(*inode, kind::INODE),
            Self::Dentry(directory, cursor) => {
                let mut key = of_shard(*directory, kind::DENTRY);
                key.extend(cursor.to_be_bytes());
                key
            }
            Self::Xattr(inode, name) => {
                let mut key = of_shard(*inode, kind::XATTR);
                key.extend_from_slice(name);
                key
            }
            Self::Opens(inode) => of_shard(*inode, kind::OPENS),
            Self::Inline(inode, part) => {
                let mut key = of_shard(*inode, kind::INLINE);
                if *part > 0 {
                    key.extend(part.to_be_bytes());
                }
                key
            }
        }
    }

    /// Returns the prefix of the keys of all sessions.
    pub fn sessions() -> Vec<u8> {
        of_target(kind::SESSION, &[])
    }

    /// Returns the prefix of the keys of all sessions that have ended.
    pub fn session_ends() -> Vec<u8> {
        of_target(kind::SESSION_END, &[])
    }

    /// Returns the prefix of the keys of a session's slots.
    pub fn slots_of(session: SessionId) -> Vec<u8> {
        of_target(kind::SLOT, &[&session.raw().to_be_bytes()])
    }

    /// Returns the prefix of the keys of a session's opens.
    pub fn opens_of(session: SessionId) -> Vec<u8> {
        of_target(kind::SESSION_OPEN, &[&session.raw().to_be_bytes()])
    }

    /// Returns the prefix of the keys of all sessions' opens.
    pub fn session_opens() -> Vec<u8> {
        of_target(kind::SESSION_OPEN, &[])
    }

    /// Returns the prefix of the keys of all locks.
    pub fn all_file_locks() -> Vec<u8> {
        of_target(kind::FILE_LOCKS, &[])
    }

    /// Returns the prefix of the keys of a session's locks.
    pub fn file_locks_of(session: SessionId) -> Vec<u8> {
        of_target(kind::FILE_LOCKS, &[&session.raw().to_be_bytes()])
    }

    /// Returns the prefix of the keys of all chunk files to remove.
    pub fn removals() -> Vec<u8> {
        of_target(kind::REMOVAL, &[])
    }

    /// Returns the prefix of the keys of the chunk files to remove at one group.
    pub fn removals_of(group: GroupId) -> Vec<u8> {
        of_target(kind::REMOVAL, &[&group.raw().to_be_bytes()])
    }

    /// Returns the prefix of the keys that belong to the inodes of a shard.
    pub fn inodes_of(shard: ShardId) -> Vec<u8> {
        let mut key = of_shard(InodeId::first_of(shard), kind::INODE);
        key.truncate(4);
        key
    }

    /// Returns the prefix of the keys of all files whose size the target must recover.
    pub fn size_recoveries() -> Vec<u8> {
        of_target(kind::SIZE_RECOVERY, &[])
    }

    /// Returns the prefix of the keys of all truncations.
    pub fn truncations() -> Vec<u8> {
        of_target(kind::TRUNCATION, &[])
    }

    /// Returns the prefix of the keys of all prepared transactions.
    pub fn prepared() -> Vec<u8> {
        of_target(kind::PREPARED, &[])
    }

    /// Returns the prefix of the keys that belong to the starts of the target.
    pub fn starts() -> Vec<u8> {
        of_target(kind::START, &[])
    }

    /// Returns the prefix of the keys of all commit decisions.
    pub fn decisions() -> Vec<u8> {
        of_target(kind::DECISION, &[])
    }

    /// Returns the prefix of the keys of all staged transactions.
    pub fn staged() -> Vec<u8> {
        of_target(kind::STAGED, &[])
    }

    /// Returns the prefix of the keys that belong to ended transactions of other groups.
    pub fn finished() -> Vec<u8> {
        of_target(kind::FINISHED, &[])
    }

    /// Returns the prefix of the keys of a directory's entries.
    pub fn dentries_of(directory: InodeId) -> Vec<u8> {
        of_shard(directory, kind::DENTRY)
    }

    /// Returns the prefix of the keys of an inode's extended attributes.
    pub fn xattrs_of(inode: InodeId) -> Vec<u8> {
        of_shard(inode, kind::XATTR)
    }

    /// Returns the prefix of the keys that belong to the parts of a file's inline bytes.
    pub fn inline_parts_of(inode: InodeId) -> Vec<u8> {
        of_shard(inode, kind::INLINE)
    }

    /// Returns the prefix of the keys of all shards. No shorter range contains the inodes of all
    /// shards, because the other records of a shard lie between the inodes of this shard and the
    /// inodes of the next shard.
    pub fn shards() -> Vec<u8> {
        vec![OF_SHARD]
    }
}

/// Returns the parsed part of a key that a scan has found. `parsed` is the result of one of the
/// parsing functions of this module.
///
/// # Errors
/// Returns `Corrupt`, which names the key, if `parsed` is `None`. No target writes a key that
/// cannot be parsed. A caller that skipped such a key would hide the loss of the key's record.
pub fn expect_parsed<T>(key: &[u8], parsed: Option<T>) -> Result<T> {
    parsed.ok_or_else(|| {
        let what =
            format!("cannot parse metadata key {}: it has the wrong form", key.escape_ascii());
        Error::new(ErrorCode::Corrupt, what)
    })
}

/// Returns the last eight bytes of a key as a number: a session, an inode or a cursor. Returns
/// `None` if the key is shorter than eight bytes.
pub fn last_u64(key: &[u8]) -> Option<u64> {
    let tail = key.len().checked_sub(8)?;
    Some(u64::from_be_bytes(key[tail..].try_into().ok()?))
}

/// Returns the owner of locks if `key` is a key of locks on a file.
pub fn lock_owner_of(key: &[u8]) -> Option<LockOwner> {
    let rest: &[u8; 25] = key.strip_prefix(Key::all_file_locks().as_slice())?.try_into().ok()?;
    let kind = LockKind::ALL.into_iter().find(|kind| *kind as u8 == rest[16])?;
    Some(LockOwner {
        inode: InodeId::new(last_u64(&rest[..16])?),
        kind,
        session: SessionId::new(last_u64(&rest[..8])?),
        owner: last_u64(rest)?,
    })
}

/// Returns the index of the slot if `key` is the key of a session's slot.
pub fn slot_of(key: &[u8]) -> Option<u32> {
    let rest: &[u8; 12] = key.strip_prefix(&[OF_TARGET, kind::SLOT])?.try_into().ok()?;
    Some(u32::from_be_bytes([rest[8], rest[9], rest[10], rest[11]]))
}

/// Returns the session and the inode if `key` counts the opens of one inode by a session.
pub fn session_open_of(key: &[u8]) -> Option<(SessionId, InodeId)> {
    let rest: &[u8; 16] = key.strip_prefix(&[OF_TARGET, kind::SESSION_OPEN])?.try_into().ok()?;
    Some((SessionId::new(last_u64(&rest[..8])?), InodeId::new(last_u64(rest)?)))
}

/// Returns group and chunk file if `key` is the key of a chunk file to remove.
pub fn removal(key: &[u8]) -> Option<(GroupId, ChunkFileKey)> {
    let rest: &[u8; 20] = key.strip_prefix(Key::removals().as_slice())?.try_into().ok()?;
    let u32_at =
        |at: usize| u32::from_be_bytes([rest[at], rest[at + 1], rest[at + 2], rest[at + 3]]);
    let u16_at = |at: usize| u16::from_be_bytes([rest[at], rest[at + 1]]);
    let inode = u64::from(u32_at(4)) << 32 | u64::from(u32_at(8));
    Some((
        GroupId::new(u32_at(0)),
        ChunkFileKey {
            inode: InodeId::new(inode),
            generation: u32_at(12),
            component: u16_at(16),
            index: u16_at(18),
        },
    ))
}

/// Whether `key` describes a background job of the target: a removal, a size recovery or a
/// truncation.
pub fn is_work_item(key: &[u8]) -> bool {
    key.len() > 2
        && key[0] == OF_TARGET
        && matches!(key[1], kind::REMOVAL | kind::SIZE_RECOVERY | kind::TRUNCATION)
}

/// Returns the inode if `key` is the key of a truncation.
pub fn truncation_of(key: &[u8]) -> Option<InodeId> {
    key.strip_prefix(&[OF_TARGET, kind::TRUNCATION]).and_then(last_u64).map(InodeId::new)
}

/// Returns the id of the transaction if `key` is the key of a prepared or finished transaction. The
/// caller must not pass another kind of key.
pub fn transaction_of(key: &[u8]) -> Option<TransactionId> {
    let rest: &[u8; 12] = key.get(2..)?.try_into().ok()?;
    let mut coordinator = [0; 4];
    coordinator.copy_from_slice(&rest[..4]);
    Some(TransactionId {
        coordinator: GroupId::new(u32::from_be_bytes(coordinator)),
        number: last_u64(rest)?,
    })
}

/// Returns the inode if `key` is the key of an inode.
pub fn inode_of(key: &[u8]) -> Option<InodeId> {
    (key.len() == 12 && key[0] == OF_SHARD && key[3] == kind::INODE)
        .then(|| last_u64(key).map(InodeId::new))
        .flatten()
}

/// Returns the inode and the index of the part if `key` is the key of a part of inline bytes.
pub fn inline_of(key: &[u8]) -> Option<(InodeId, u16)> {
    let (place, part) = key.split_at_checked(12)?;
    let part = match part {
        [] => 0,
        [high, low] => Some(u16::from_be_bytes([*high, *low])).filter(|part| *part > 0)?,
        _ => return None,
    };
    (place[0] == OF_SHARD && place[3] == kind::INLINE)
        .then(|| last_u64(place).map(|inode| (InodeId::new(inode), part)))
        .flatten()
}

/// Returns the directory if `key` is the key of an entry.
pub fn directory_of_dentry(key: &[u8]) -> Option<InodeId> {
    (key.len() == 20 && key[0] == OF_SHARD && key[3] == kind::DENTRY)
        .then(|| last_u64(&key[..12]).map(InodeId::new))
        .flatten()
}

/// Returns inode and name if `key` is the key of an extended attribute.
pub fn xattr_of(key: &[u8]) -> Option<(InodeId, &[u8])> {
    let (place, name) = key.split_at_checked(12)?;
    (place[0] == OF_SHARD && place[3] == kind::XATTR)
        .then(|| last_u64(place).map(|inode| (InodeId::new(inode), name)))
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::ShardId;

    #[test]
    fn malformed_key_is_reported_as_corrupt() {
        let key = Key::Inode(InodeId::new(9)).to_bytes();
        assert_eq!(expect_parsed(&key, inode_of(&key)).unwrap(), InodeId::new(9));
        let cut = &key[..key.len() - 1];
        let error = expect_parsed(cut, inode_of(cut)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::Corrupt);
        assert!(error.context().contains("wrong form"), "{error}");
    }

    #[test]
    fn keys_of_a_shard_are_adjacent_and_can_be_parsed() {
        let inode = InodeId::from_parts(ShardId::new(7), 9);
        for key in [
            Key::Inode(inode),
            Key::Dentry(inode, 256),
            Key::Xattr(inode, b"user.a"),
            Key::Opens(inode),
            Key::Inline(inode, 0),
            Key::Inline(inode, 3),
        ] {
            assert_eq!(key.to_bytes()[..3], [1, 0, 7]);
        }
        assert_eq!(inode_of(&Key::Inode(inode).to_bytes()), Some(inode));
        assert_eq!(inode_of(&Key::Opens(inode).to_bytes()), None);
        let dentry = Key::Dentry(inode, 512).to_bytes();
        assert_eq!(directory_of_dentry(&dentry), Some(inode));
        assert_eq!(last_u64(&dentry), Some(512));
        let xattr = Key::Xattr(inode, b"user.a").to_bytes();
        assert_eq!(xattr_of(&xattr), Some((inode, &b"user.a"[..])));
        assert_eq!(xattr_of(&dentry), None);
    }

    #[test]
    fn keys_of_inline_parts_sort_by_index_and_can_be_parsed() {
        let inode = InodeId::from_parts(ShardId::new(7), 9);
        let keys = [0, 1, 63, 256].map(|part| Key::Inline(inode, part).to_bytes());
        assert!(keys.is_sorted());
        for (key, part) in keys.iter().zip([0, 1, 63, 256]) {
            assert!(key.starts_with(&Key::inline_parts_of(inode)));
            assert_eq!(inline_of(key), Some((inode, part)));
        }
        for wrong in [&[0, 0][..], &[1], &[0, 1, 0]] {
            assert_eq!(inline_of(&[&keys[0][..], wrong].concat()), None, "{wrong:?}");
        }
        assert_eq!(inline_of(&Key::Opens(inode).to_bytes()), None);
    }

    #[test]
    fn removal_and_transaction_keys_can_be_parsed() {
        let key = ChunkFileKey {
            inode: InodeId::from_parts(ShardId::new(0x1234), 0x5678_9ABC),
            generation: 3,
            component: 4,
            index: 5,
        };
        let bytes = Key::Removal(GroupId::new(6), key).to_bytes();
        assert_eq!(removal(&bytes), Some((GroupId::new(6), key)));
        let id = TransactionId { coordinator: GroupId::new(2), number: 77 };
        assert_eq!(transaction_of(&Key::Prepared(id).to_bytes()), Some(id));
        assert_eq!(transaction_of(&Key::Finished(id).to_bytes()), Some(id));
    }

    #[test]
    fn open_and_lock_keys_can_be_parsed() {
        let (session, inode) = (SessionId::new(0x1_0000_0002), InodeId::new(0x7_0000_0009));
        let of = LockOwner { inode, kind: LockKind::Flock, session, owner: u64::MAX - 5 };
        let key = Key::FileLocks(of).to_bytes();
        assert_eq!(lock_owner_of(&key), Some(of));
        assert!(key.starts_with(&Key::file_locks_of(session)));
        let open = Key::SessionOpen(session, inode).to_bytes();
        assert_eq!((session_open_of(&open), lock_owner_of(&open)), (Some((session, inode)), None));
    }

    #[test]
    fn keys_of_start_numbers_sort_by_number() {
        let numbers = [1, 255, 256].map(|number| Key::Start(number).to_bytes());
        assert!(numbers.is_sorted() && numbers[2].starts_with(&Key::starts()));
    }
}
