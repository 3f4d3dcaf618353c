//! POSIX access control lists as `acl(5)` has them, in the layout that Linux gives them as extended
//! attributes (`include/uapi/linux/posix_acl_xattr.h`), and what `chmod` and inheritance make of
//! them.
//!
//! Pure. Which attribute a list is, and which inode has it, is the caller's.

use crate::codec::{Codec, Reader, Writer};
use crate::{Error, ErrorCode, Result};

/// The attribute with the list that says who may do what.
pub const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
/// The attribute with the list that a directory hands down.
pub const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";
/// Longest list in bytes: what the kernel takes of a FUSE file system, one page.
pub const MAX_ACL_BYTES: usize = 4096;

const VERSION: u32 = 2;
/// The id in entries that name nobody.
const NOBODY: u32 = u32::MAX;

/// Whom an entry is about, in the order in which entries stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// The file's owner.
    Owner,
    /// A user.
    User(u32),
    /// The file's group.
    OwningGroup,
    /// A group.
    Group(u32),
    /// What users, groups and the file's group may at most do.
    Mask,
    /// Everybody else.
    Other,
}

/// Who may do what: three bits as in a mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AclEntry {
    /// Whom it is about.
    pub who: Who,
    /// Read 4, write 2, execute 1.
    pub permissions: u32,
}

/// A valid list: the owner, users, the file's group, groups, a mask (which must be there if users
/// or groups are), others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acl {
    entries: Vec<AclEntry>,
}

fn invalid(what: &str) -> Error {
    Error::new(ErrorCode::InvalidArgument, format!("access control list: {what}"))
}

impl Acl {
    /// A list of entries.
    ///
    /// # Errors
    /// `InvalidArgument` if it isn't valid.
    pub fn new(entries: Vec<AclEntry>) -> Result<Self> {
        /// Where an entry may stand.
        fn place(who: Who) -> u32 {
            match who {
                Who::Owner => 0,
                Who::User(_) => 1,
                Who::OwningGroup => 2,
                Who::Group(_) => 3,
                Who::Mask => 4,
                Who::Other => 5,
            }
        }
        let is_in_order = entries.windows(2).all(|pair| {
            let (first, second) = (place(pair[0].who), place(pair[1].who));
            first < second || (first == second && matches!(first, 1 | 3))
        });
        if !is_in_order {
            return Err(invalid("entries are out of order, or there twice"));
        }
        let has = |wanted: u32| entries.iter().any(|it| place(it.who) == wanted);
        if !(has(0) && has(2) && has(5)) {
            return Err(invalid("no entry for the owner, the group or others"));
        }
        if (has(1) || has(3)) && !has(4) {
            return Err(invalid("users or groups, and no mask"));
        }
        if entries.iter().any(|it| it.permissions > 7) {
            return Err(invalid("permissions that there aren't"));
        }
        if entries.iter().any(|it| matches!(it.who, Who::User(NOBODY) | Who::Group(NOBODY))) {
            return Err(invalid("a user or group without an id"));
        }
        Ok(Self { entries })
    }

    /// The list in an extended attribute.
    ///
    /// # Errors
    /// `InvalidArgument` if it is malformed, `TooLarge` if it is too long.
    pub fn from_xattr(bytes: &[u8]) -> Result<Self> {
        if bytes.len() > MAX_ACL_BYTES {
            return Err(Error::new(ErrorCode::TooLarge, "access control list"));
        }
        let mut reader = Reader::new(bytes);
        let malformed = |_| invalid("it ends too early");
        if u32::decode(&mut reader).map_err(malformed)? != VERSION {
            return Err(invalid("its version is not 2"));
        }
        let mut entries = Vec::new();
        while reader.left() > 0 {
            let tag = u16::decode(&mut reader).map_err(malformed)?;
            let permissions = u32::from(u16::decode(&mut reader).map_err(malformed)?);
            let id = u32::decode(&mut reader).map_err(malformed)?;
            let who = match tag {
                0x01 => Who::Owner,
                0x02 => Who::User(id),
                0x04 => Who::OwningGroup,
                0x08 => Who::Group(id),
                0x10 => Who::Mask,
                0x20 => Who::Other,
                _ => return Err(invalid("an entry of no kind")),
            };
            entries.push(AclEntry { who, permissions });
        }
        Self::new(entries)
    }

    /// The list as an extended attribute.
    pub fn to_xattr(&self) -> Vec<u8> {
        let mut w = Writer::new();
        VERSION.encode(&mut w);
        for entry in &self.entries {
            let (tag, id): (u16, u32) = match entry.who {
                Who::Owner => (0x01, NOBODY),
                Who::User(id) => (0x02, id),
                Who::OwningGroup => (0x04, NOBODY),
                Who::Group(id) => (0x08, id),
                Who::Mask => (0x10, NOBODY),
                Who::Other => (0x20, NOBODY),
            };
            tag.encode(&mut w);
            (entry.permissions as u16).encode(&mut w);
            id.encode(&mut w);
        }
        w.finish()
    }

    /// Its entries.
    pub fn entries(&self) -> &[AclEntry] {
        &self.entries
    }

    /// The entry that the group bits of a mode stand for: the mask if there is one.
    fn group_class(&self) -> Who {
        match self.entries.iter().any(|it| it.who == Who::Mask) {
            true => Who::Mask,
            false => Who::OwningGroup,
        }
    }

    /// The nine permission bits of a mode that go with it.
    pub fn mode(&self) -> u32 {
        let of = |who| self.entries.iter().find(|it| it.who == who).map_or(0, |it| it.permissions);
        of(Who::Owner) << 6 | of(self.group_class()) << 3 | of(Who::Other)
    }

    /// Whether it says no more than its mode.
    pub fn is_just_a_mode(&self) -> bool {
        self.entries.len() == 3
    }

    /// Puts the nine permission bits of a mode in, as `chmod` does.
    pub fn set_mode(&mut self, mode: u32) {
        let group = self.group_class();
        for entry in &mut self.entries {
            entry.permissions = match entry.who {
                Who::Owner => mode >> 6 & 7,
                Who::Other => mode & 7,
                who if who == group => mode >> 3 & 7,
                _ => entry.permissions,
            };
        }
    }

    /// The list of a new file in a directory that hands this one down: no more than a mode allows.
    #[must_use]
    pub fn inherited(&self, mode: u32) -> Self {
        let mut new = self.clone();
        new.set_mode(self.mode() & mode);
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(who: Who, permissions: u32) -> AclEntry {
        AclEntry { who, permissions }
    }

    fn full() -> Acl {
        Acl::new(vec![
            entry(Who::Owner, 7),
            entry(Who::User(5), 6),
            entry(Who::User(4), 4),
            entry(Who::OwningGroup, 5),
            entry(Who::Group(9), 1),
            entry(Who::Mask, 6),
            entry(Who::Other, 4),
        ])
        .unwrap()
    }

    #[test]
    fn the_mode_has_the_mask_for_the_group() {
        let mut acl = full();
        assert_eq!(acl.mode(), 0o764);
        acl.set_mode(0o4641);
        assert_eq!(acl.mode(), 0o641);
        assert_eq!(acl.entries()[3], entry(Who::OwningGroup, 5), "only the mask changes");
        assert!(!acl.is_just_a_mode());
        assert_eq!(full().inherited(0o666).mode(), 0o664);
        let small = [entry(Who::Owner, 7), entry(Who::OwningGroup, 5), entry(Who::Other, 1)];
        let mut small = Acl::new(small.to_vec()).unwrap();
        assert!(small.is_just_a_mode());
        small.set_mode(0o640);
        assert_eq!(small.mode(), 0o640);
    }

    #[test]
    fn the_layout_is_the_kernels() {
        let bytes = full().to_xattr();
        assert_eq!(bytes.len(), 4 + 7 * 8);
        assert_eq!(bytes[..12], [2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255]);
        assert_eq!(bytes[12..20], [2, 0, 6, 0, 5, 0, 0, 0]);
        assert_eq!(Acl::from_xattr(&bytes), Ok(full()));
    }

    #[test]
    fn what_is_no_list_is_refused() {
        let refused = |bytes: &[u8]| {
            assert_eq!(Acl::from_xattr(bytes).unwrap_err().code(), ErrorCode::InvalidArgument);
        };
        refused(&[]);
        refused(&[2, 0, 0]);
        refused(&[2, 0, 0, 0]);
        let good = full().to_xattr();
        refused(&good[..good.len() - 1]);
        refused(&[&good[..], &[0]].concat());
        for (at, byte) in [(0, 1), (4, 3), (6, 8), (5, 1)] {
            let mut bad = good.clone();
            bad[at] = byte;
            refused(&bad);
        }
        let without = |index: usize| {
            let mut entries = full().entries;
            entries.remove(index);
            Acl::new(entries)
        };
        for index in [0, 3, 5, 6] {
            assert!(without(index).is_err(), "{index}");
        }
        let mut twice = full().entries;
        twice.insert(6, entry(Who::Mask, 1));
        assert!(Acl::new(twice).is_err());
        let mut nobody = full().entries;
        nobody[1].who = Who::User(NOBODY);
        assert!(Acl::new(nobody).is_err());
        let long = [&good[..], &vec![0; MAX_ACL_BYTES]].concat();
        assert_eq!(Acl::from_xattr(&long).unwrap_err().code(), ErrorCode::TooLarge);
    }

    fn any_acl() -> impl Strategy<Value = Acl> {
        let named = proptest::collection::vec((0..NOBODY, 0..8_u32), 0..20);
        (named.clone(), named, 0..8_u32, 0..8_u32, 0..8_u32, 0..8_u32).prop_map(
            |(users, groups, owner, group, mask, other)| {
                let has_mask = mask % 2 == 0 || !users.is_empty() || !groups.is_empty();
                let mut entries = vec![entry(Who::Owner, owner)];
                entries.extend(users.into_iter().map(|(id, it)| entry(Who::User(id), it)));
                entries.push(entry(Who::OwningGroup, group));
                entries.extend(groups.into_iter().map(|(id, it)| entry(Who::Group(id), it)));
                entries.extend(has_mask.then_some(entry(Who::Mask, mask)));
                entries.push(entry(Who::Other, other));
                Acl::new(entries).unwrap()
            },
        )
    }

    proptest! {
        #[test]
        fn lists_survive_their_layout(acl in any_acl()) {
            prop_assert_eq!(Acl::from_xattr(&acl.to_xattr()), Ok(acl));
        }

        #[test]
        fn what_is_read_is_written_back_the_same(bytes: Vec<u8>) {
            if let Ok(acl) = Acl::from_xattr(&[&[2, 0, 0, 0], &bytes[..]].concat()) {
                prop_assert_eq!(Acl::from_xattr(&acl.to_xattr()), Ok(acl));
            }
        }

        #[test]
        fn a_mode_that_was_set_is_there(acl in any_acl(), mode in 0..0o1000_u32) {
            let (mut changed, inherited) = (acl.clone(), acl.inherited(mode));
            changed.set_mode(mode);
            prop_assert_eq!(changed.mode(), mode);
            prop_assert_eq!(inherited.mode(), mode & acl.mode());
            // Nobody may do more than in the list that was handed down.
            for (new, old) in inherited.entries().iter().zip(acl.entries()) {
                prop_assert_eq!(new.who, old.who);
                prop_assert_eq!(new.permissions & !old.permissions, 0);
            }
        }
    }
}
