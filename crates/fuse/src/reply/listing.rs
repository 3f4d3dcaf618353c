//! The reply to a request that lists a directory.

use super::ReplyBody;
use super::attributes::{ENTRY_OUT_BYTES, Validity, entry};
use skep_client::{DirectoryEntries, EntryReply};
use skep_types::codec::{Codec, Writer, record};
use skep_types::{FileKind, InodeId};

/// Length of [`Dirent`] in bytes.
pub(crate) const DIRENT_BYTES: usize = 24;

record! {
    /// `fuse_dirent` without the name. The name follows the struct, padded with zeros to a multiple
    /// of eight bytes.
    pub struct Dirent {
        pub ino: u64,
        pub offset: u64,
        pub name_bytes: u32,
        pub kind: u32,
    }
}

/// The reply to a request that lists a directory. `ops` adds entries until one does not fit into
/// `max_bytes`.
pub(crate) struct Listing<'a> {
    w: Writer,
    max_bytes: usize,
    /// How long the kernel may cache the entries' attributes. `None` means that the reply has no
    /// attributes.
    validity: Option<Validity<'a>>,
}

/// The cursor of `.`. The cursors of all entries other than `.` and `..` are larger than both.
pub(crate) const DOT: u64 = 1;
/// The cursor of `..`.
pub(crate) const DOT_DOT: u64 = 2;

impl<'a> Listing<'a> {
    /// Creates an empty listing with space for `max_bytes` bytes.
    pub(crate) fn new(max_bytes: u32, validity: Option<Validity<'a>>) -> Self {
        Self { w: Writer::new(), max_bytes: max_bytes as usize, validity }
    }

    /// Whether the listing has no entries yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.w.is_empty()
    }

    /// Returns the body of the reply.
    pub(crate) fn finish(self) -> ReplyBody {
        ReplyBody::Bytes(self.w.finish())
    }

    /// Adds `.` or `..`, without attributes, since the kernel has the attributes of both. Returns
    /// false if the entry does not fit.
    pub(crate) fn push_dot(&mut self, cursor: u64, inode: InodeId) -> bool {
        let name: &[u8] = if cursor == DOT { b"." } else { b".." };
        let kind = FileKind::Directory;
        self.push(cursor, name, &EntryReply { inode, kind, attributes: None })
    }

    /// Adds entries in order until one does not fit.
    pub(crate) fn push_all(&mut self, entries: &DirectoryEntries) {
        for listed in &entries.entries {
            if !self.push(listed.cursor, &listed.name, &listed.entry) {
                return;
            }
        }
    }

    /// Adds an entry. Returns false if the entry does not fit.
    fn push(&mut self, cursor: u64, name: &[u8], reply: &EntryReply) -> bool {
        let prefix = if self.validity.is_some() { ENTRY_OUT_BYTES } else { 0 };
        let unpadded = prefix + DIRENT_BYTES + name.len();
        let padded = unpadded.next_multiple_of(8);
        if self.w.len() + padded > self.max_bytes {
            return false;
        }
        if let Some(validity) = &self.validity {
            // An entry without attributes has a node id of zero. The kernel then requests the
            // attributes when it needs them. (In LOOKUP, zero means that there is no such entry.)
            match &reply.attributes {
                Some(attributes) => entry(attributes, validity).encode(&mut self.w),
                None => self.w.raw(&[0; ENTRY_OUT_BYTES]),
            }
        }
        Dirent {
            ino: reply.inode.raw(),
            offset: cursor,
            name_bytes: name.len() as u32,
            kind: reply.kind.mode_bits() >> 12,
        }
        .encode(&mut self.w);
        self.w.raw(name);
        self.w.raw(&[0; 8][..padded - unpadded]);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listings_are_padded_and_end_at_max_bytes() {
        let mut listing = Listing::new(100, None);
        assert!(listing.push_dot(DOT, InodeId::ROOT));
        assert!(listing.push_dot(DOT_DOT, InodeId::ROOT));
        let entry = EntryReply { inode: InodeId::new(7), kind: FileKind::Fifo, attributes: None };
        assert!(!listing.push(300, b"longer than what is left", &entry));
        assert!(listing.push(300, b"a", &entry));
        let ReplyBody::Bytes(bytes) = listing.finish() else { panic!("bytes") };
        assert_eq!(bytes.len(), 96);
        assert_eq!(bytes[64..72], 7_u64.to_le_bytes());
        assert_eq!(bytes[72..80], 300_u64.to_le_bytes());
        assert_eq!(bytes[84], 1, "DT_FIFO");
        assert_eq!(bytes[88..], *b"a\0\0\0\0\0\0\0");
    }
}
