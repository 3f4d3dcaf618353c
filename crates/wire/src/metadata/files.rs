//! Messages that create, open and close regular files, and report writes to these files.

use super::{NewInode, TruncatedChunk};
use crate::inline::InlineContents;
use skep_types::codec::{Bytes, Codec, record};
use skep_types::{
    Attributes, ChunkFileSet, FileKind, GroupId, InodeId, MapVersion, PatternRequest,
    StripePattern, byte_enum,
};

byte_enum! {
    /// The mode in which a client opens, or has opened, a file.
    pub enum OpenMode {
        /// Do not open the file.
        No = 0,
        /// Open for reading.
        Read = 1,
        /// Open for writing, or for reading and writing.
        Write = 2,
    }
}

record! {
    /// Creates an inode with a name, and opens it unless `open` is `No`.
    pub struct Create {
        /// The directory of the new entry.
        pub directory: InodeId,
        /// Name of the new entry.
        pub name: Bytes,
        /// Kind of the inode. Directories and symbolic links have their own requests.
        pub kind: FileKind,
        /// Permissions and owner of the inode.
        pub new: NewInode,
        /// Device number, which only device files have.
        pub device: u64,
        /// Whether the request fails if the name exists. If this field is not set, the target opens
        /// the existing regular file.
        pub exclusive: bool,
        /// How to open the file.
        pub open: OpenMode,
        /// The pattern that the client requests. `None` has the same effect as a pattern request
        /// whose fields are all unset.
        pub pattern: Option<PatternRequest>,
    }
}

record! {
    /// Creates a regular file without a name and opens it (`O_TMPFILE`). The target deletes the
    /// file at its last close, unless the client has created a name for the file by
    /// [`Link`](super::Link).
    pub struct CreateUnnamed {
        /// The directory from which the file inherits its pattern, project and other properties.
        pub directory: InodeId,
        /// Permissions and owner of the file.
        pub new: NewInode,
        /// How to open the file. `No` is invalid.
        pub open: OpenMode,
        /// The pattern that the client requests, as in [`Create`].
        pub pattern: Option<PatternRequest>,
    }
}

record! {
    /// Opens a regular file.
    pub struct Open {
        /// The inode.
        pub inode: InodeId,
        /// How to open the file. `No` is invalid.
        pub open: OpenMode,
        /// Whether the target first truncates the file to size 0 (`O_TRUNC`).
        pub truncate: bool,
        /// Whether the target returns `Stale`, without a change, if the inode has no name any more.
        pub must_have_name: bool,
        /// Largest size, in bytes, of a file whose bytes the client requests in the reply. Zero
        /// requests no bytes.
        pub inline_limit: u32,
    }
}

record! {
    /// Reply to [`Open`], [`Create`] and [`CreateUnnamed`].
    pub struct OpenReply {
        /// Whether the request created the inode.
        pub created: bool,
        /// Attributes of the inode.
        pub attributes: Attributes,
        /// The stripe pattern of a regular file. `None` for other kinds.
        pub pattern: Option<StripePattern>,
        /// Whether the file is shared: several clients have it open, at least one of them for
        /// writing.
        pub is_shared: bool,
        /// The truncated chunk files, if the request truncated the file. The next `fsync` of the
        /// client syncs them.
        pub truncated: Vec<TruncatedChunk>,
        /// The file's chunk files that clients have reported as synced.
        pub synced: ChunkFileSet,
        /// All bytes of the file, if the request has asked for them. The bytes belong to the
        /// version of the file in `attributes`. The field is `None` in each of these cases: the
        /// file is shared, some of its bytes are not inline, the file is larger than the limit, or
        /// the request is a retry.
        pub inline: Option<InlineContents>,
        /// Attributes of the directory, if the request created a name. `None` if the target replies
        /// to a retry of the request.
        pub directory: Option<Attributes>,
    }
}

/// Adds the bytes of a file to an encoded [`OpenReply`]. The last two fields of the reply, `inline`
/// and `directory`, must be `None`. Like the attributes of a directory, the bytes are not part of
/// the stored reply.
///
/// # Panics
/// Panics if the reply does not end with two empty fields.
pub fn add_inline(reply: &mut Vec<u8>, inline: &InlineContents) {
    assert!(reply.ends_with(&[0, 0]), "the reply ends with an empty `inline` and `directory`");
    reply.truncate(reply.len() - 2);
    reply.push(1);
    reply.extend(inline.to_bytes());
    reply.push(0);
}

record! {
    /// The extent of a client's writes to a file since the client's last report.
    #[derive(Copy)]
    pub struct WrittenExtent {
        /// Highest end offset of the writes since the last report. Zero means that no write
        /// extended the file.
        pub end: u64,
        /// Truncate generation of the file that the client knew when it wrote. The target ignores
        /// `end` if the file has been truncated since then.
        pub truncate_generation: u64,
        /// Whether a write began beyond the file size that the client knew. Such a write may have
        /// left a hole.
        pub may_leave_holes: bool,
        /// Offset up to which chunk files may extend beyond the end of the file, because of
        /// reserved space or a failed write. Zero means that no chunk file extends beyond the end
        /// of the file.
        pub reach: u64,
        /// Generation of the file's pattern, if this report ends the inline component of the file:
        /// the client has created the file, and has written the file's first bytes to storage.
        /// `None` means that the pattern stays unchanged.
        pub ends_inline: Option<u32>,
    }
}

record! {
    /// Closes one open of the session. The target deletes an unlinked file at its last close. If
    /// `written` sets `ends_inline` and the target cannot end the inline component, the target
    /// closes the file nevertheless.
    pub struct Close {
        /// The inode.
        pub inode: InodeId,
        /// How the file was opened.
        pub open: OpenMode,
        /// The writes since the client's last report. `None` means that there were no writes.
        pub written: Option<ClosingReport>,
    }
}

record! {
    /// The report of writes in a [`Close`].
    #[derive(Copy)]
    pub struct ClosingReport {
        /// The writes since the client's last report.
        pub extent: WrittenExtent,
        /// Generation of the stripe pattern that the client has used. The target returns `Stale`,
        /// and changes nothing, if the file has another pattern, as for a [`ReportWritten`]. `None`
        /// means that the target does not compare the pattern.
        pub pattern_generation: Option<u32>,
    }
}

record! {
    /// One open in a [`CloseMany`].
    #[derive(Copy)]
    pub struct ClosedFile {
        /// The inode.
        pub inode: InodeId,
        /// How the file was opened.
        pub open: OpenMode,
        /// Generation of the file's pattern, if the client has reported the end of the file's
        /// inline component (`WrittenExtent::ends_inline`), and no reply has confirmed that the end
        /// is durable.
        pub ends_inline: Option<u32>,
    }
}

record! {
    /// Closes several opens of the session, without a report of writes. The target ignores opens
    /// that the session does not have, and deletes an unlinked file at its last close.
    pub struct CloseMany {
        /// The opens. The addressed group must serve the inodes of all opens.
        pub files: Vec<ClosedFile>,
    }
}

record! {
    /// Chunk files whose bytes a client has synced.
    pub struct SyncedChunkFiles {
        /// Generation of the file's pattern.
        pub pattern_generation: u32,
        /// The chunk files.
        pub chunk_files: ChunkFileSet,
    }
}

record! {
    /// Reports a client's writes to a file that stays open (`fsync`, or `stat` by the writer). If
    /// `written` sets `ends_inline`, the target refuses the whole report with `Stale` in two cases:
    /// another client has the file open, or a client may have written inline bytes.
    pub struct ReportWritten {
        /// The inode.
        pub inode: InodeId,
        /// The writes since the client's last report. `None` means that there were no writes.
        pub written: Option<WrittenExtent>,
        /// Chunk files that are durable, together with their names, on the devices of their
        /// targets. If one of these chunk files is missing at a later access, its bytes are lost,
        /// and its range is not a hole. The set may be empty. The target returns `Stale`, and
        /// changes nothing, if the file has another pattern than the report. The pattern differs if
        /// a power loss has reverted the client's open, and another client has set the pattern
        /// after the power loss. `None` means that the client does not have the file open.
        pub synced: Option<SyncedChunkFiles>,
    }
}

record! {
    /// Waits for the end of a truncation in progress, and reads the attributes of the file. A
    /// client sends this request after a write that does not extend a shared file. If the truncate
    /// generation in the reply is newer than at the beginning of the write, the truncation may have
    /// removed the written bytes. The client then repeats the write of these bytes. A client also
    /// sends this request after storage returned fewer bytes than the file has.
    pub struct AwaitTruncation {
        /// The inode.
        pub inode: InodeId,
    }
}

record! {
    /// Reply to [`AwaitTruncation`].
    pub struct AwaitTruncationReply {
        /// Attributes of the inode.
        pub attributes: Attributes,
        /// Chunk files that clients have reported as synced. If storage lacks one of these chunk
        /// files, the bytes of the chunk file are lost.
        pub synced: ChunkFileSet,
    }
}

record! {
    /// Removes the bytes that a failed write left in chunk files beyond the end of a shared file.
    /// The target truncates the chunk files to the size that the file has when it executes the
    /// request. Like each truncation, this request raises the truncate generation, so other clients
    /// retry their writes in progress.
    pub struct TrimFile {
        /// The inode.
        pub inode: InodeId,
    }
}

record! {
    /// Lists the files and directories whose stripe patterns name a storage group, in pages.
    pub struct ListGroupFiles {
        /// The storage group.
        pub group: GroupId,
        /// Return only inodes with higher ids. Zero starts at the beginning.
        pub after: InodeId,
    }
}

record! {
    /// A file whose pattern names a storage group, or a directory whose default pattern names the
    /// group.
    pub struct GroupFile {
        /// The inode.
        pub inode: InodeId,
        /// Kind of the inode.
        pub kind: FileKind,
        /// Number of bytes of the file on the group, if the file has no holes. Zero for a
        /// directory.
        pub bytes: u64,
        /// Whether a client has the file open for writing. In this case the group may store more
        /// than `bytes`, because clients report the file size only after their writes.
        pub is_written: bool,
    }
}

record! {
    /// Reply to [`ListGroupFiles`].
    pub struct GroupFiles {
        /// The inodes, in ascending order. The list may be empty although more pages follow.
        pub files: Vec<GroupFile>,
        /// Number of chunk files that the metadata target still has to remove from the group,
        /// counted up to 10,000.
        pub removals: u32,
        /// Number of transactions that are prepared on the metadata target. These transactions may
        /// create files.
        pub prepared: u32,
        /// Version of the cluster map that the metadata target uses to place files.
        pub map: MapVersion,
        /// Value of `after` for the next page. `None` means that this is the last page.
        pub next: Option<InodeId>,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::Timestamp;
    use skep_types::codec::crc32c;

    #[test]
    fn inline_bytes_are_added_to_the_reply_to_an_open() {
        let kind = FileKind::Regular;
        let attributes = Attributes::new(InodeId::new(9), kind, 0o600, Timestamp::default());
        let opened = OpenReply {
            created: false,
            attributes,
            pattern: None,
            is_shared: false,
            truncated: Vec::new(),
            synced: ChunkFileSet::default(),
            inline: None,
            directory: None,
        };
        let bytes = Bytes::from(&b"abc"[..]);
        let inline = InlineContents { checksum: crc32c(&bytes), bytes };
        let mut reply = opened.to_bytes();
        add_inline(&mut reply, &inline);
        let expected = OpenReply { inline: Some(inline), ..opened };
        assert_eq!(OpenReply::from_bytes(&reply).unwrap(), expected);
    }
}
