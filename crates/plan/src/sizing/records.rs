//! Sizes of the records of a file in the store of a metadata target.
//!
//! Encodes the records of a file with the cluster's default pattern, so that the sizes follow from
//! the formats in `skep-format`.

use skep_format::metadata::{DentryRecord, INLINE_PART_BYTES, InlineRecord, InodeRecord, Key};
use skep_types::codec::{Bytes, Codec};
use skep_types::{
    Attributes, Chooser, ChunkFileSet, Component, FileKind, GroupId, InodeId, PatternOrigin,
    Redundancy, StripePattern, Timestamp,
};

/// Bytes that the tables of the store add to each record.
const OVERHEAD_OF_RECORD: u64 = 12;

/// A file with the default pattern and one name.
pub(super) struct StoredFile {
    /// Length of the name, in bytes.
    pub(super) name_bytes: u64,
    /// Whether the pattern has an inline component.
    pub(super) has_inline_component: bool,
    /// Number of bytes of the file in the inline component.
    pub(super) inline_bytes: u64,
    /// Number of targets of the component that is striped over many targets.
    pub(super) stripe_width: u64,
    /// Number of chunk files with data.
    pub(super) chunk_files: u64,
}

impl StoredFile {
    /// Returns the bytes of the file's inode, name and inline bytes in the store.
    pub(super) fn bytes(&self) -> u64 {
        let inode = InodeId::ROOT;
        let parts = self.inline_bytes.div_ceil(INLINE_PART_BYTES);
        let name = DentryRecord { name: Bytes(Vec::new()), inode, kind: FileKind::Regular };
        let part = InlineRecord { checksum: 0, bytes: Bytes(Vec::new()) };
        // The key of part 0 is shorter than the keys of the other parts. The result uses the longer
        // key for all parts.
        let records = record_bytes(&Key::Inode(inode), &self.inode_record())
            + record_bytes(&Key::Dentry(inode, u64::MAX), &name)
            + self.name_bytes
            + parts * record_bytes(&Key::Inline(inode, u16::MAX), &part)
            + self.inline_bytes;
        // Old versions of records, which the store has not removed yet, take a tenth more space.
        (records + OVERHEAD_OF_RECORD * (2 + parts)) * 11 / 10
    }

    fn inode_record(&self) -> InodeRecord {
        let kind = FileKind::Regular;
        let mut components = vec![stripe(1), stripe(self.stripe_width)];
        if self.has_inline_component {
            components.insert(0, Component::inline());
        }
        let mut synced_chunk_files = ChunkFileSet::default();
        for number in 0..self.chunk_files as usize {
            synced_chunk_files.insert(number);
        }
        InodeRecord {
            attributes: Attributes::new(InodeId::ROOT, kind, 0o644, Timestamp::default()),
            parent: InodeId::ROOT,
            pattern: Some(StripePattern {
                generation: 1,
                origin: PatternOrigin::Cluster,
                components,
            }),
            link_target: Bytes(Vec::new()),
            has_xattrs: false,
            high_water: 0,
            may_be_named: false,
            synced_chunk_files,
        }
    }
}

/// Returns a component that stores its bytes on `width` groups.
fn stripe(width: u64) -> Component {
    Component {
        start: 0,
        chunk_bytes: 0,
        wanted: 0,
        redundancy: Redundancy::Stripe,
        chooser: Chooser::Cluster,
        groups: vec![GroupId::default(); width as usize],
    }
}

/// Returns the bytes of the key and the value of a record.
fn record_bytes(key: &Key<'_>, value: &impl Codec) -> u64 {
    (key.to_bytes().len() + value.to_bytes().len()) as u64
}
