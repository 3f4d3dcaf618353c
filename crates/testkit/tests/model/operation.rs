//! A call of a program: the random choice of the call, and its execution on a tree.

use crate::view::{SLOTS, View};
use rustix::fs::{
    AtFlags, FallocateFlags, FileType, FlockOperation, OFlags, RenameFlags, XattrFlags,
};
use skep_testkit::Random;
use std::fmt;
use std::path::PathBuf;

/// The user under whose id the test makes a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

pub(crate) const ROOT: User = User { uid: 0, gid: 0 };
/// Two users of the same group, and a user of a different group.
const OTHERS: &[User] =
    &[User { uid: 1001, gid: 1000 }, User { uid: 1002, gid: 1000 }, User { uid: 1003, gid: 1003 }];

/// A path with its starting point.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// The path starts at the tree's root.
    Root(PathBuf),
    /// The path starts at the open file in this slot. The file need not be a directory, so that the
    /// test also makes invalid calls.
    Open(usize, PathBuf),
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root(path) => write!(f, "{}", path.display()),
            Self::Open(slot, path) => write!(f, "#{slot}/{}", path.display()),
        }
    }
}

/// A value for a timestamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Time {
    At(i64, i64),
    Now,
    Omit,
}

/// A call. A number below [`SLOTS`] is the slot of an open file.
#[derive(Debug, Clone)]
pub(crate) enum Operation {
    Create(Place, u32),
    MakeDirectory(Place, u32),
    MakeNode(Place, FileType, u32),
    Symlink(PathBuf, Place),
    Link(Place, PathBuf, AtFlags),
    Rename(Place, PathBuf, RenameFlags),
    Unlink(Place),
    RemoveDirectory(Place),
    /// Opens, writes and closes a file.
    Write(Place, OFlags, u64, usize, u8),
    Truncate(Place, u64),
    Permissions(Place, u32),
    Owner(Place, Option<u32>, Option<u32>, AtFlags),
    Times(Place, Time, Time, AtFlags),
    SetAttribute(Place, &'static str, Vec<u8>, XattrFlags),
    GetAttribute(Place, &'static str),
    RemoveAttribute(Place, &'static str),
    Read(Place),
    ReadLink(Place),
    List(Place),
    Look(Place, AtFlags),
    Open(usize, Place, OFlags, u32),
    Close(usize),
    NameOpen(usize, PathBuf),
    ReadOpen(usize, u64, usize),
    WriteOpen(usize, u64, usize, u8),
    TruncateOpen(usize, u64),
    AllocateOpen(usize, FallocateFlags, u64, u64),
    /// Copies bytes within a single open file.
    CopyOpen(usize, u64, u64, usize),
    LookOpen(usize),
    PermissionsOpen(usize, u32),
    SyncOpen(usize),
    LockOpen(usize, Lock),
}

/// The operation of a `flock` call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lock {
    Shared,
    Exclusive,
    Unlock,
}

impl Lock {
    pub(crate) fn call(self) -> FlockOperation {
        match self {
            Self::Shared => FlockOperation::NonBlockingLockShared,
            Self::Exclusive => FlockOperation::NonBlockingLockExclusive,
            Self::Unlock => FlockOperation::Unlock,
        }
    }
}

impl Operation {
    /// Returns the slot of the open file that the call uses. A call with such a slot must run on
    /// the mount that has the file open.
    pub(crate) fn slot(&self) -> Option<usize> {
        match self {
            Self::Close(slot)
            | Self::NameOpen(slot, _)
            | Self::ReadOpen(slot, ..)
            | Self::WriteOpen(slot, ..)
            | Self::TruncateOpen(slot, _)
            | Self::AllocateOpen(slot, ..)
            | Self::CopyOpen(slot, ..)
            | Self::LookOpen(slot)
            | Self::PermissionsOpen(slot, _)
            | Self::SyncOpen(slot)
            | Self::LockOpen(slot, _) => Some(*slot),
            Self::Create(place, _)
            | Self::MakeDirectory(place, _)
            | Self::MakeNode(place, ..)
            | Self::Symlink(_, place)
            | Self::Link(place, ..)
            | Self::Rename(place, ..)
            | Self::Unlink(place)
            | Self::RemoveDirectory(place)
            | Self::Write(place, ..)
            | Self::Truncate(place, _)
            | Self::Permissions(place, _)
            | Self::Owner(place, ..)
            | Self::Times(place, ..)
            | Self::SetAttribute(place, ..)
            | Self::GetAttribute(place, _)
            | Self::RemoveAttribute(place, _)
            | Self::Read(place)
            | Self::ReadLink(place)
            | Self::List(place)
            | Self::Look(place, _)
            | Self::Open(_, place, ..) => match place {
                Place::Root(_) => None,
                Place::Open(slot, _) => Some(*slot),
            },
        }
    }

    /// Makes the call on a tree. Returns its result or its error number.
    pub(crate) fn run(&self, view: &mut View) -> Result<String, i32> {
        let result = match self {
            Self::Create(place, mode) => view.create(place, *mode),
            Self::MakeDirectory(place, mode) => view.make_directory(place, *mode),
            Self::MakeNode(place, kind, mode) => view.make_node(place, *kind, *mode),
            Self::Symlink(target, place) => view.make_symlink(target, place),
            Self::Link(place, to, flags) => view.link(place, to, *flags),
            Self::Rename(place, to, flags) => view.rename(place, to, *flags),
            Self::Unlink(place) => view.unlink(place, AtFlags::empty()),
            Self::RemoveDirectory(place) => view.unlink(place, AtFlags::REMOVEDIR),
            Self::Write(place, flags, offset, len, byte) => {
                view.write(place, *flags, *offset, &vec![*byte; *len])
            }
            Self::Truncate(place, len) => view.truncate(place, *len),
            Self::Permissions(place, mode) => view.set_permissions(place, *mode),
            Self::Owner(place, uid, gid, flags) => view.set_owner(place, (*uid, *gid), *flags),
            Self::Times(place, accessed, modified, flags) => {
                view.set_times(place, (*accessed, *modified), *flags)
            }
            Self::SetAttribute(place, name, value, flags) => {
                view.set_attribute(place, name, value, *flags)
            }
            Self::GetAttribute(place, name) => view.get_attribute(place, name),
            Self::RemoveAttribute(place, name) => view.remove_attribute(place, name),
            Self::Read(place) => view.read(place),
            Self::ReadLink(place) => view.read_link(place),
            Self::List(place) => view.list(place),
            Self::Look(place, flags) => view.look(place, *flags),
            Self::Open(slot, place, flags, mode) => view.open(*slot, place, *flags, *mode),
            Self::Close(slot) => view.close(*slot),
            Self::NameOpen(slot, path) => view.name_open(*slot, path),
            Self::ReadOpen(slot, offset, len) => view.read_open(*slot, *offset, *len),
            Self::WriteOpen(slot, offset, len, byte) => {
                view.write_open(*slot, *offset, &vec![*byte; *len])
            }
            Self::TruncateOpen(slot, len) => view.truncate_open(*slot, *len),
            Self::AllocateOpen(slot, how, offset, len) => {
                view.allocate_open(*slot, *how, *offset, *len)
            }
            Self::CopyOpen(slot, from, to, len) => view.copy_open(*slot, (*from, *to), *len),
            Self::LookOpen(slot) => view.look_open(*slot),
            Self::PermissionsOpen(slot, mode) => view.set_permissions_open(*slot, *mode),
            Self::SyncOpen(slot) => view.sync_open(*slot),
            Self::LockOpen(slot, lock) => view.lock_open(*slot, *lock),
        };
        result.map_err(|error| error.raw_os_error().unwrap_or(0))
    }
}

const ANY: AtFlags = AtFlags::empty();
const NAMES: &[&str] = &["a", "b", "c", "d"];
// The inline bytes of a file end at byte 16,384, unless the first write is larger than this range.
const OFFSETS: &[u64] =
    &[0, 1, 4095, 4096, 16_383, 16_384, 500_000, 524_287, 524_288, 1_048_576, 1_500_000];
const LENGTHS: &[usize] = &[0, 1, 100, 4096, 5000, 16_384, 70_000, 600_000];
const ALLOCATIONS: &[FallocateFlags] = &[
    FallocateFlags::empty(),
    FallocateFlags::KEEP_SIZE,
    FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE),
    FallocateFlags::ZERO_RANGE,
    FallocateFlags::ZERO_RANGE.union(FallocateFlags::KEEP_SIZE),
];
const SIZES: &[u64] = &[0, 1, 4095, 4096, 16_384, 300_000, 524_288, 600_001, 2_000_000];
const FILE_MODES: &[u32] = &[0o600, 0o644, 0o666, 0o777, 0o444, 0o4755, 0o2755, 0o6777, 0o2644, 0];
const DIRECTORY_MODES: &[u32] = &[0o755, 0o777, 0o777, 0o1777, 0o2777, 0o700, 0o3775];
const OWNERS: &[Option<u32>] = &[None, Some(0), Some(1000), Some(1001), Some(1002), Some(1003)];
const TIMES: &[Time] = &[
    Time::At(0, 0),
    Time::At(-1_000_000_000, 5),
    Time::At(1_000_000_000, 123_456_789),
    Time::At(4_300_000_000, 999_999_999),
    Time::Now,
    Time::Omit,
];
const ATTRIBUTES: &[&str] = &["user.one", "user.two", "trusted.one", "security.one", "wrong.one"];
const ACCESS_LIST: &str = "system.posix_acl_access";
const DEFAULT_LIST: &str = "system.posix_acl_default";

/// Returns a random path of one to three components. The test has few names, so that different
/// calls often use the same path.
fn path(random: &mut Random) -> PathBuf {
    (0..1 + random.below(3)).map(|_| random.one_of(NAMES)).collect()
}

fn place(random: &mut Random) -> Place {
    match random.below(12) {
        0 => {
            let path = (0..1 + random.below(2)).map(|_| random.one_of(NAMES)).collect();
            Place::Open(random.below(SLOTS), path)
        }
        _ => Place::Root(path(random)),
    }
}

/// Returns a random target for a symbolic link.
fn target(random: &mut Random) -> PathBuf {
    let above = if random.below(3) == 0 { ".." } else { "" };
    PathBuf::from(above).join(path(random))
}

fn follows_or_not(random: &mut Random) -> AtFlags {
    random.one_of(&[ANY, AtFlags::SYMLINK_NOFOLLOW])
}

/// Returns a random access control list in the kernel's layout. Some of the lists are invalid.
fn list(random: &mut Random) -> Vec<u8> {
    const UNDEFINED: u32 = u32::MAX;
    let mut permissions = || random.below(8) as u16;
    let mut entries = vec![(1_u16, permissions(), UNDEFINED), (4, permissions(), UNDEFINED)];
    let named = [(2, permissions(), 1001), (2, permissions(), 1003), (8, permissions(), 1003)];
    let (mask, others) = ((16, permissions(), UNDEFINED), (32, permissions(), UNDEFINED));
    match random.below(8) {
        0 => {}
        1 => entries.push(mask),
        2..=6 => {
            entries.insert(1, named[0]);
            if random.below(2) == 0 {
                entries.insert(2, named[1]);
            }
            if random.below(2) == 0 {
                entries.push(named[2]);
            }
            entries.push(mask);
        }
        _ => entries.push(named[2]), // Invalid: a mask is missing.
    }
    entries.push(others);
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

fn set_attribute(it: Place, random: &mut Random) -> Operation {
    match random.below(5) {
        0 => Operation::SetAttribute(it, ACCESS_LIST, list(random), XattrFlags::empty()),
        1 => Operation::SetAttribute(it, DEFAULT_LIST, list(random), XattrFlags::empty()),
        _ => {
            let flags = [XattrFlags::empty(), XattrFlags::CREATE, XattrFlags::REPLACE];
            let flags = random.one_of(&flags);
            let len = random.one_of(&[0, 1, 50, 200]);
            let value = vec![random.number() as u8; len];
            Operation::SetAttribute(it, random.one_of(ATTRIBUTES), value, flags)
        }
    }
}

fn attribute(random: &mut Random) -> &'static str {
    random.one_of(&[
        "user.one",
        "user.two",
        "trusted.one",
        "security.one",
        ACCESS_LIST,
        DEFAULT_LIST,
    ])
}

fn open(random: &mut Random) -> Operation {
    let slot = random.below(SLOTS);
    let flags = match random.below(8) {
        0 => OFlags::RDONLY,
        1 => OFlags::RDONLY | OFlags::DIRECTORY,
        2 => OFlags::RDWR | OFlags::TRUNC,
        3 => OFlags::RDWR | OFlags::CREATE | OFlags::APPEND,
        4 => OFlags::RDWR | OFlags::TMPFILE,
        5 => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
        _ => OFlags::RDWR | OFlags::CREATE,
    };
    let path = match random.below(8) {
        // Use the root directory itself, because a program can create unnamed files in this
        // directory.
        0 => Place::Root(PathBuf::new()),
        _ => place(random),
    };
    Operation::Open(slot, path, flags, random.one_of(FILE_MODES))
}

fn on_open(random: &mut Random) -> Operation {
    let slot = random.below(SLOTS);
    match random.below(18) {
        0 => Operation::Close(slot),
        1 => Operation::NameOpen(slot, path(random)),
        2..=4 => Operation::ReadOpen(slot, random.one_of(OFFSETS), random.one_of(LENGTHS)),
        5..=7 => {
            let (offset, len) = (random.one_of(OFFSETS), random.one_of(LENGTHS));
            Operation::WriteOpen(slot, offset, len, random.number() as u8)
        }
        8 => Operation::TruncateOpen(slot, random.one_of(SIZES)),
        9 => Operation::LookOpen(slot),
        10 => Operation::PermissionsOpen(slot, random.one_of(FILE_MODES)),
        11 => Operation::SyncOpen(slot),
        12 | 13 => {
            let (how, offset) = (random.one_of(ALLOCATIONS), random.one_of(OFFSETS));
            Operation::AllocateOpen(slot, how, offset, random.one_of(LENGTHS) as u64)
        }
        14 | 15 => {
            let (from, to) = (random.one_of(OFFSETS), random.one_of(OFFSETS));
            Operation::CopyOpen(slot, from, to, random.one_of(LENGTHS))
        }
        _ => {
            let locks = [Lock::Shared, Lock::Exclusive, Lock::Unlock];
            Operation::LockOpen(slot, random.one_of(&locks))
        }
    }
}

/// Returns a random operation.
pub(crate) fn operation(random: &mut Random) -> Operation {
    let it = place(random);
    match random.below(40) {
        0..=2 => Operation::Create(it, random.one_of(FILE_MODES)),
        3..=6 => Operation::MakeDirectory(it, random.one_of(DIRECTORY_MODES)),
        7 => {
            let kinds = [FileType::Fifo, FileType::Socket, FileType::CharacterDevice];
            Operation::MakeNode(it, random.one_of(&kinds), random.one_of(FILE_MODES))
        }
        8 => Operation::Symlink(target(random), it),
        9 | 10 => Operation::Link(it, path(random), random.one_of(&[ANY, AtFlags::SYMLINK_FOLLOW])),
        11..=13 => Operation::Rename(it, path(random), RenameFlags::empty()),
        14 => Operation::Rename(it, path(random), RenameFlags::NOREPLACE),
        15 => Operation::Rename(it, path(random), RenameFlags::EXCHANGE),
        16 => Operation::Unlink(it),
        17 => Operation::RemoveDirectory(it),
        18..=20 => {
            let more = [OFlags::empty(), OFlags::empty(), OFlags::APPEND, OFlags::TRUNC];
            let (offset, len) = (random.one_of(OFFSETS), random.one_of(LENGTHS));
            Operation::Write(it, random.one_of(&more), offset, len, random.number() as u8)
        }
        21 => Operation::Truncate(it, random.one_of(SIZES)),
        22 => {
            let modes = if random.below(2) == 0 { FILE_MODES } else { DIRECTORY_MODES };
            Operation::Permissions(it, random.one_of(modes))
        }
        23 => {
            let (mut uid, gid) = (random.one_of(OWNERS), random.one_of(OWNERS));
            if gid.is_none() {
                // Set the user, because a chown that changes neither user nor group does not reach
                // FUSE.
                uid = uid.or(Some(0));
            }
            Operation::Owner(it, uid, gid, follows_or_not(random))
        }
        24 => {
            let (accessed, modified) = (random.one_of(TIMES), random.one_of(TIMES));
            Operation::Times(it, accessed, modified, follows_or_not(random))
        }
        25 | 26 => set_attribute(it, random),
        27 => Operation::GetAttribute(it, attribute(random)),
        28 => Operation::RemoveAttribute(it, attribute(random)),
        29 => Operation::Read(it),
        30 => Operation::ReadLink(it),
        31 => Operation::List(it),
        32 => Operation::Look(it, follows_or_not(random)),
        33 | 34 => open(random),
        _ => on_open(random),
    }
}

/// Returns a random user. In most cases the user is root, so that most calls have the necessary
/// permissions.
pub(crate) fn user(random: &mut Random) -> User {
    if random.below(4) == 0 { random.one_of(OTHERS) } else { ROOT }
}
