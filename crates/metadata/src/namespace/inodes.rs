//! Inodes: their initial attributes and patterns, and how requests change them.

use crate::engine::Engine;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_cluster::patterns;
use skep_format::metadata::{InodeRecord, Key};
use skep_types::{
    Attributes, Error, ErrorCode, FileKind, InodeId, MAX_FILE_BYTES, PatternRequest, Result,
    StripePattern,
};
use skep_wire::metadata::{NewInode, WrittenExtent};

/// Set-group-ID bit of the mode.
pub(crate) const SET_GROUP_ID: u32 = 0o2000;
/// The mode bits that a metadata target stores.
pub(crate) const PERMISSION_BITS: u32 = 0o7777;

/// Checks the extent that a client reports as written. Fails with `FileTooLarge` if the extent ends
/// beyond [`MAX_FILE_BYTES`].
pub(crate) fn check_written(written: &WrittenExtent) -> Result<()> {
    let end = written.end.max(written.reach);
    if end > MAX_FILE_BYTES {
        let what = format!(
            "cannot record a write up to byte {end}: this is beyond the maximum size of a file"
        );
        return Err(Error::new(ErrorCode::FileTooLarge, what));
    }
    Ok(())
}

/// Checks that the pattern generation in a client's report is that of the file's present stripe
/// pattern.
///
/// The pattern can only have changed because a power loss has reverted the open of this client.
/// Readers use the new pattern, and do not find the bytes that the client has written with the old
/// pattern. So the file must not get a size that covers these bytes.
///
/// # Errors
/// `Stale` if the pattern has another generation.
pub(crate) fn check_generation(record: &InodeRecord, reported: u32) -> Result<()> {
    let pattern = record.pattern.as_ref();
    if pattern.is_none_or(|pattern| pattern.generation == reported) {
        return Ok(());
    }
    let what = format!(
        "cannot record the writes to file {}: its stripe pattern has changed since the client \
         opened the file; open the file again, and repeat the writes",
        record.attributes.inode
    );
    Err(Error::new(ErrorCode::Stale, what))
}

impl<E: Engine> Context<'_, E> {
    /// Returns the inode of a directory. Fails with `NotFound` if the inode does not exist, and
    /// with `NotDirectory` if it is not a directory.
    pub(crate) fn directory(&self, inode: InodeId) -> Result<InodeRecord, Stop> {
        let record = self.find_inode(inode)?.ok_or(ErrorCode::NotFound)?;
        match record.attributes.kind {
            FileKind::Directory => Ok(record),
            _ => Err(ErrorCode::NotDirectory.into()),
        }
    }

    /// Updates and stores the inode of a directory after a change of its entries. `entries` is the
    /// difference in the number of entries, `links` the difference in the number of subdirectories.
    pub(crate) fn change_directory(&mut self, record: &mut InodeRecord, entries: i64, links: i32) {
        let attributes = &mut record.attributes;
        // The sums saturate, because a wrong count in the store must not stop the target.
        attributes.size = attributes.size.saturating_add_signed(entries);
        attributes.links = attributes.links.saturating_add_signed(links);
        self.touch_modified(attributes);
        self.put_inode(record);
    }

    /// Sets the modification time and the change time to now. Replaces even a later modification
    /// time, which a program may have set. A client's kernel drops the cached pages of a file only
    /// when the modification time has changed. The change time, which only metadata sets, never
    /// goes back, and two changes never have the same change time.
    pub(crate) fn touch_modified(&self, attributes: &mut Attributes) {
        self.touch_changed(attributes);
        attributes.modified = attributes.changed;
    }

    /// Sets the change time of an inode to now, and increments its change counter. The new change
    /// time is at least one nanosecond later than the last change time, even if the clock of the
    /// host was set back or has not advanced.
    pub(crate) fn touch_changed(&self, attributes: &mut Attributes) {
        attributes.changed = self.wall().max(attributes.changed.plus_nanosecond());
        attributes.change_counter += 1;
    }

    /// Returns the attributes of a new inode. `directory` has the attributes of the parent
    /// directory, from which the inode inherits group and project. `None` means that the inode
    /// inherits neither.
    pub(crate) fn new_attributes(
        &self,
        inode: InodeId,
        kind: FileKind,
        new: &NewInode,
        directory: Option<&Attributes>,
    ) -> Attributes {
        let now = self.wall();
        let mut permissions = new.permissions & PERMISSION_BITS;
        let mut gid = new.gid;
        if let Some(directory) = directory.filter(|it| it.permissions & SET_GROUP_ID != 0) {
            gid = directory.gid;
            if kind == FileKind::Directory {
                permissions |= SET_GROUP_ID;
            }
        }
        let handing_down = directory.filter(|it| it.hands_down_project);
        Attributes {
            inode,
            kind,
            permissions,
            links: if kind == FileKind::Directory { 2 } else { 1 },
            uid: new.uid,
            gid,
            project: handing_down.map_or(0, |it| it.project),
            device: 0,
            size: 0,
            accessed: now,
            modified: now,
            changed: now,
            created: now,
            change_counter: self.shared.starts.first_version() + 1,
            truncate_generation: 0,
            is_sparse: false,
            has_capability: false,
            has_acl: false,
            hands_down_project: handing_down.is_some() && kind == FileKind::Directory,
        }
    }

    /// Returns the stripe pattern of a new file in a directory, with the storage groups that were
    /// chosen for this file.
    ///
    /// # Errors
    /// - `NoSpace` if no storage target can be chosen.
    /// - An error of [`patterns::check_request`] if the user may not set the requested values.
    pub(crate) fn new_pattern(
        &mut self,
        directory: &InodeRecord,
        request: Option<&PatternRequest>,
        uid: u32,
        file: InodeId,
    ) -> Result<StripePattern> {
        let first_reply = self.op.first_reply.as_ref().filter(|it| it.created);
        if let Some(pattern) = first_reply.and_then(|it| it.pattern.clone()) {
            // The change is a replay. Keep the pattern in the first reply, because storage already
            // has chunk files of this pattern.
            pattern.check()?;
            return Ok(pattern);
        }
        let shared = &mut *self.shared;
        if let Some(request) = request {
            patterns::check_request(&shared.map, request, uid)?;
        }
        let default = directory.pattern.as_ref().map(PatternRequest::from_record).transpose()?;
        let merged = patterns::merge(request, default.as_ref());
        let pattern = patterns::resolve(&merged, &shared.map.policy);
        let placement = &mut shared.placement;
        patterns::place(pattern, &placement.candidates, file.raw(), &mut placement.cursor)
            .map_err(|error| error.within(format_args!("directory {}", directory.attributes.inode)))
    }

    /// Returns an upper bound of the file offsets at which the inode has inline bytes, or bytes in
    /// chunk files. [`MAX_FILE_BYTES`] means that the bound is not known.
    pub(crate) fn reach(&self, record: &InodeRecord) -> Result<u64> {
        let inode = record.attributes.inode;
        let unknown = self.opens(inode)?.writers > 0 || self.has_size_recovery(inode)?;
        Ok(if unknown { MAX_FILE_BYTES } else { record.high_water })
    }

    /// Returns whether the size of an inode must be recovered: a client that had the file open for
    /// writing has died, and the recovery has not finished.
    pub(crate) fn has_size_recovery(&self, inode: InodeId) -> Result<bool> {
        self.is_stored(&Key::SizeRecovery(inode))
    }

    /// Updates the inode with an extent that a client has reported as written.
    pub(crate) fn merge_written(&mut self, record: &mut InodeRecord, written: &WrittenExtent) {
        record.high_water = record.high_water.max(written.end).max(written.reach);
        let attributes = &mut record.attributes;
        if written.truncate_generation == attributes.truncate_generation {
            attributes.size = attributes.size.max(written.end);
        }
        attributes.is_sparse |= written.may_leave_holes;
        self.touch_modified(attributes);
        // A client's kernel removes the file's capabilities (`security.capability`) before a write
        // through the page cache, but not before direct I/O. So remove them here.
        self.drop_capability(record);
    }
}
