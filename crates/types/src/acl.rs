//! POSIX access control lists (`acl(5)`) in Linux's extended attribute layout
//! (`include/uapi/linux/posix_acl_xattr.h`), and the effect of `chmod` and inheritance on them.
//!
//! The module contains pure functions. The inode attributes that store the lists are outside this
//! module.

use crate::codec::{Codec, Reader, Writer};
use crate::{Error, ErrorCode, Result};

/// Name of the extended attribute with the access control list of an inode.
pub const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
/// Name of the extended attribute with the default list of a directory, which new entries inherit.
pub const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";
/// Maximum length of an encoded list in bytes: one page, the kernel's limit for FUSE file systems.
pub const MAX_ACL_BYTES: usize = 4096;

const VERSION: u32 = 2;
/// Id in entries that need no user or group id (`ACL_UNDEFINED_ID`).
const NOBODY: u32 = u32::MAX;

/// The subject of an entry. The variants are in the order in which a list must have its entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AclTag {
    /// The owner of the file.
    Owner,
    /// The user with this id.
    User(u32),
    /// The group of the file.
    OwningGroup,
    /// The group with this id.
    Group(u32),
    /// Upper bound of the permissions of all `User`, `Group` and `OwningGroup` entries.
    Mask,
    /// All other users.
    Other,
}

/// One entry of a list: the permissions of a subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AclEntry {
    /// The subject of the entry.
    pub tag: AclTag,
    /// Sum of the permission bits: read 4, write 2, execute 1.
    pub permissions: u32,
}

/// A valid access control list. Its entries are in the order of the variants of [`AclTag`]. The
/// mask is mandatory if there are `User` or `Group` entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acl {
    entries: Vec<AclEntry>,
}

fn invalid(what: &str) -> Error {
    Error::new(ErrorCode::InvalidArgument, format!("invalid access control list: {what}"))
}

impl Acl {
    /// Builds a list from its entries.
    ///
    /// # Errors
    /// Returns `InvalidArgument` if the list is invalid.
    pub fn new(entries: Vec<AclEntry>) -> Result<Self> {
        /// Returns the position of a subject in the order of entries.
        fn place(tag: AclTag) -> u32 {
            match tag {
                AclTag::Owner => 0,
                AclTag::User(_) => 1,
                AclTag::OwningGroup => 2,
                AclTag::Group(_) => 3,
                AclTag::Mask => 4,
                AclTag::Other => 5,
            }
        }
        let is_in_order = entries.windows(2).all(|pair| {
            let (first, second) = (place(pair[0].tag), place(pair[1].tag));
            first < second || (first == second && matches!(first, 1 | 3))
        });
        if !is_in_order {
            return Err(invalid("the entries of the list are out of order or appear twice"));
        }
        let has = |wanted: u32| entries.iter().any(|it| place(it.tag) == wanted);
        if !(has(0) && has(2) && has(5)) {
            return Err(invalid("the list has no entry for the owner, the group or others"));
        }
        if (has(1) || has(3)) && !has(4) {
            return Err(invalid("the list has users or groups, but no mask"));
        }
        if entries.iter().any(|it| it.permissions > 7) {
            return Err(invalid("an entry has invalid permission bits"));
        }
        if entries.iter().any(|it| matches!(it.tag, AclTag::User(NOBODY) | AclTag::Group(NOBODY))) {
            return Err(invalid("an entry of a user or group has no id"));
        }
        Ok(Self { entries })
    }

    /// Decodes a list from the value of an extended attribute.
    ///
    /// # Errors
    /// - `InvalidArgument` if the value is malformed or the list is invalid.
    /// - `TooLarge` if the value exceeds [`MAX_ACL_BYTES`].
    pub fn from_xattr(bytes: &[u8]) -> Result<Self> {
        if bytes.len() > MAX_ACL_BYTES {
            let text = format!(
                "cannot decode an access control list of {} bytes: the limit is {MAX_ACL_BYTES} \
                 bytes",
                bytes.len()
            );
            return Err(Error::new(ErrorCode::TooLarge, text));
        }
        let mut reader = Reader::new(bytes);
        let malformed = |_| invalid("the attribute value is too short");
        if u32::decode(&mut reader).map_err(malformed)? != VERSION {
            return Err(invalid("the version of the attribute value is not 2"));
        }
        let mut entries = Vec::new();
        while reader.left() > 0 {
            let tag = u16::decode(&mut reader).map_err(malformed)?;
            let permissions = u32::from(u16::decode(&mut reader).map_err(malformed)?);
            let id = u32::decode(&mut reader).map_err(malformed)?;
            let tag = match tag {
                0x01 => AclTag::Owner,
                0x02 => AclTag::User(id),
                0x04 => AclTag::OwningGroup,
                0x08 => AclTag::Group(id),
                0x10 => AclTag::Mask,
                0x20 => AclTag::Other,
                _ => return Err(invalid("an entry has an unknown kind")),
            };
            entries.push(AclEntry { tag, permissions });
        }
        Self::new(entries)
    }

    /// Encodes the list as the value of an extended attribute.
    pub fn to_xattr(&self) -> Vec<u8> {
        let mut w = Writer::new();
        VERSION.encode(&mut w);
        for entry in &self.entries {
            let (tag, id): (u16, u32) = match entry.tag {
                AclTag::Owner => (0x01, NOBODY),
                AclTag::User(id) => (0x02, id),
                AclTag::OwningGroup => (0x04, NOBODY),
                AclTag::Group(id) => (0x08, id),
                AclTag::Mask => (0x10, NOBODY),
                AclTag::Other => (0x20, NOBODY),
            };
            tag.encode(&mut w);
            (entry.permissions as u16).encode(&mut w);
            id.encode(&mut w);
        }
        w.finish()
    }

    /// Returns the entries in order.
    pub fn entries(&self) -> &[AclEntry] {
        &self.entries
    }

    /// Returns the subject to which the group bits of a mode belong: the mask if the list has a
    /// mask, else the file's group.
    fn group_class(&self) -> AclTag {
        match self.entries.iter().any(|it| it.tag == AclTag::Mask) {
            true => AclTag::Mask,
            false => AclTag::OwningGroup,
        }
    }

    /// Returns the nine permission bits of the mode that corresponds to the list.
    pub fn mode(&self) -> u32 {
        let of = |tag| self.entries.iter().find(|it| it.tag == tag).map_or(0, |it| it.permissions);
        of(AclTag::Owner) << 6 | of(self.group_class()) << 3 | of(AclTag::Other)
    }

    /// Whether the nine permission bits of a mode can represent the whole list.
    pub fn is_just_a_mode(&self) -> bool {
        self.entries.len() == 3
    }

    /// Applies a `chmod` to the list. `mode` contains the nine new permission bits.
    pub fn set_mode(&mut self, mode: u32) {
        let group = self.group_class();
        for entry in &mut self.entries {
            entry.permissions = match entry.tag {
                AclTag::Owner => mode >> 6 & 7,
                AclTag::Other => mode & 7,
                tag if tag == group => mode >> 3 & 7,
                _ => entry.permissions,
            };
        }
    }

    /// Returns the access control list that a new file inherits if `self` is the default list of
    /// its directory. The new list grants no more than `mode`.
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

    fn entry(tag: AclTag, permissions: u32) -> AclEntry {
        AclEntry { tag, permissions }
    }

    fn full() -> Acl {
        Acl::new(vec![
            entry(AclTag::Owner, 7),
            entry(AclTag::User(5), 6),
            entry(AclTag::User(4), 4),
            entry(AclTag::OwningGroup, 5),
            entry(AclTag::Group(9), 1),
            entry(AclTag::Mask, 6),
            entry(AclTag::Other, 4),
        ])
        .unwrap()
    }

    #[test]
    fn group_bits_of_the_mode_equal_the_acl_mask() {
        let mut acl = full();
        assert_eq!(acl.mode(), 0o764);
        acl.set_mode(0o4641);
        assert_eq!(acl.mode(), 0o641);
        assert_eq!(acl.entries()[3], entry(AclTag::OwningGroup, 5), "only the mask changes");
        assert!(!acl.is_just_a_mode());
        assert_eq!(full().inherited(0o666).mode(), 0o664);
        let small =
            [entry(AclTag::Owner, 7), entry(AclTag::OwningGroup, 5), entry(AclTag::Other, 1)];
        let mut small = Acl::new(small.to_vec()).unwrap();
        assert!(small.is_just_a_mode());
        small.set_mode(0o640);
        assert_eq!(small.mode(), 0o640);
    }

    #[test]
    fn acl_binary_layout_equals_the_kernel_layout() {
        let bytes = full().to_xattr();
        assert_eq!(bytes.len(), 4 + 7 * 8);
        assert_eq!(bytes[..12], [2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255]);
        assert_eq!(bytes[12..20], [2, 0, 6, 0, 5, 0, 0, 0]);
        assert_eq!(Acl::from_xattr(&bytes), Ok(full()));
    }

    #[test]
    fn invalid_acls_are_refused() {
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
        twice.insert(6, entry(AclTag::Mask, 1));
        assert!(Acl::new(twice).is_err());
        let mut nobody = full().entries;
        nobody[1].tag = AclTag::User(NOBODY);
        assert!(Acl::new(nobody).is_err());
        let long = [&good[..], &vec![0; MAX_ACL_BYTES]].concat();
        assert_eq!(Acl::from_xattr(&long).unwrap_err().code(), ErrorCode::TooLarge);
    }

    fn any_acl() -> impl Strategy<Value = Acl> {
        let named = proptest::collection::vec((0..NOBODY, 0..8_u32), 0..20);
        (named.clone(), named, 0..8_u32, 0..8_u32, 0..8_u32, 0..8_u32).prop_map(
            |(users, groups, owner, group, mask, other)| {
                let has_mask = mask % 2 == 0 || !users.is_empty() || !groups.is_empty();
                let mut entries = vec![entry(AclTag::Owner, owner)];
                entries.extend(users.into_iter().map(|(id, it)| entry(AclTag::User(id), it)));
                entries.push(entry(AclTag::OwningGroup, group));
                entries.extend(groups.into_iter().map(|(id, it)| entry(AclTag::Group(id), it)));
                entries.extend(has_mask.then_some(entry(AclTag::Mask, mask)));
                entries.push(entry(AclTag::Other, other));
                Acl::new(entries).unwrap()
            },
        )
    }

    proptest! {
        #[test]
        fn encoded_acl_decodes_to_the_same_acl(acl in any_acl()) {
            prop_assert_eq!(Acl::from_xattr(&acl.to_xattr()), Ok(acl));
        }

        #[test]
        fn decoded_bytes_encode_to_an_equal_acl(bytes: Vec<u8>) {
            if let Ok(acl) = Acl::from_xattr(&[&[2, 0, 0, 0], &bytes[..]].concat()) {
                prop_assert_eq!(Acl::from_xattr(&acl.to_xattr()), Ok(acl));
            }
        }

        #[test]
        fn acl_has_the_mode_that_chmod_has_set(acl in any_acl(), mode in 0..0o1000_u32) {
            let (mut changed, inherited) = (acl.clone(), acl.inherited(mode));
            changed.set_mode(mode);
            prop_assert_eq!(changed.mode(), mode);
            prop_assert_eq!(inherited.mode(), mode & acl.mode());
            // The inherited list must not grant more to any subject than the default list.
            for (new, old) in inherited.entries().iter().zip(acl.entries()) {
                prop_assert_eq!(new.tag, old.tag);
                prop_assert_eq!(new.permissions & !old.permissions, 0);
            }
        }
    }
}
