//! Allocation, holes and copies: `fallocate`, `lseek` and `copy_file_range`.
//!
//! Before the kernel requests an allocation or a copy, it writes back its dirty pages of the
//! ranges. After a success, the kernel drops its cached pages of the changed range. After a failure
//! the kernel does not drop these pages, although the operation may have changed a part of the
//! range. So after these requests the kernel must compare modification times before it reads from
//! its pages.

use super::{files, privileges};
use crate::context::Context;
use crate::file_system::FileSystem;
use crate::limits;
use crate::reply::{Outcome, ReplyBody};
use crate::request::data::{Allocate, Copy, Seek};
use crate::waits::Caller;
use skep_client::{Allocation, SeekTarget};
use skep_types::{Error, Result};
use std::ops::Range;

pub(super) async fn allocate<F: FileSystem>(
    context: &Context<F>,
    allocate: Allocate,
    caller: Caller,
) -> Outcome {
    let Allocate { inode, handle, range, kind, keeps_size, uid } = allocate;
    privileges::clear_unless_kept(context, inode, uid, caller).await?;
    if kind != Allocation::Reserve {
        context.file_system.note_direct_write(handle);
    }
    context.file_system.allocate(handle, range, kind, keeps_size).await?;
    files::sync_if_asked(&context.file_system, handle).await?;
    Ok(ReplyBody::Empty)
}

pub(super) async fn copy<F: FileSystem>(
    context: &Context<F>,
    copy: Copy,
    caller: Caller,
) -> Outcome {
    let Copy { from, inode, to, length, uid, is_long } = copy;
    privileges::clear_unless_kept(context, inode, uid, caller).await?;
    context.file_system.note_direct_write(to.0);
    let copied = context.file_system.copy(from, to, length).await?;
    files::sync_if_asked(&context.file_system, to.0).await?;
    Ok(if is_long {
        ReplyBody::Number(copied)
    } else {
        // In the short form of the request, the kernel copies less than 4 GiB.
        ReplyBody::Size(u32::try_from(copied).map_err(|_| libc::EIO)?)
    })
}

/// Serves `lseek` with `SEEK_DATA` or `SEEK_HOLE`.
///
/// # Hazard: dirty pages of mapped memory
/// Programs may have changed mapped memory, and the kernel does not write back the changed pages
/// before it requests a seek. So storage may have a hole where a program has written data. For this
/// reason, if storage reports a hole, the mount makes the kernel write back the range, and asks
/// storage again. If the mount cannot wait for the kernel, the range counts as data.
pub(super) async fn seek<F: FileSystem>(
    context: &Context<F>,
    seek: Seek,
    caller: Caller,
) -> Outcome {
    let Seek { offset, target, .. } = seek;
    let search = HoleSearch { context, seek, caller };
    let found = match target {
        SeekTarget::Data => search.next_data(offset).await?,
        SeekTarget::Hole => search.next_hole(offset).await?,
    };
    Ok(ReplyBody::Number(found.ok_or(libc::ENXIO)?))
}

/// An `lseek` in progress that looks for data or for a hole.
struct HoleSearch<'a, F> {
    context: &'a Context<F>,
    seek: Seek,
    caller: Caller,
}

impl<F: FileSystem> HoleSearch<'_, F> {
    /// Returns the start of the next data or hole from `offset` on, according to storage. Ignores
    /// the kernel's dirty pages.
    async fn stored(&self, offset: u64, target: SeekTarget) -> Result<Option<u64>> {
        self.context.file_system.seek(self.seek.handle, offset, target).await
    }

    async fn next_data(&self, offset: u64) -> Result<Option<u64>> {
        let data = self.stored(offset, SeekTarget::Data).await?;
        if data == Some(offset) {
            return Ok(data);
        }
        let Some(end) = self.end_of_hole(offset, data).await? else { return Ok(data) };
        if self.write_back(offset..end).await? {
            self.stored(offset, SeekTarget::Data).await
        } else {
            Ok(Some(offset))
        }
    }

    async fn next_hole(&self, mut offset: u64) -> Result<Option<u64>> {
        loop {
            let Some(hole) = self.stored(offset, SeekTarget::Hole).await? else { return Ok(None) };
            let data = self.stored(hole, SeekTarget::Data).await?;
            let Some(end) = self.end_of_hole(hole, data).await? else { return Ok(Some(hole)) };
            if !self.write_back(hole..end).await? {
                // The range counts as data. So the program gets a later hole, or the end of the
                // file.
                if data.is_none() {
                    return Ok(Some(end));
                }
                offset = end;
                continue;
            }
            if self.stored(hole, SeekTarget::Hole).await? == Some(hole) {
                return Ok(Some(hole));
            }
            offset = hole;
        }
    }

    /// Returns the end of a hole, which is the start of the next data or the end of the file.
    /// `None` means that the hole begins at the end of the file or beyond it.
    async fn end_of_hole(&self, hole: u64, data: Option<u64>) -> Result<Option<u64>> {
        if data.is_some() {
            return Ok(data);
        }
        let size = self.context.file_system.attributes(self.seek.inode).await?.size;
        Ok(Some(size).filter(|size| *size > hole))
    }

    /// Makes the kernel write back and drop its cached pages of a range. Returns false if this
    /// request cannot wait for the kernel, because too many requests wait already.
    async fn write_back(&self, range: Range<u64>) -> Result<bool> {
        let waits = &self.context.waits;
        // The write-back needs the same queue of requests, so this seek must not occupy the queue's
        // last slot.
        let Some(_waiting) = waits.begin(self.caller) else { return Ok(false) };
        let pages = range.start / limits::PAGE_BYTES * limits::PAGE_BYTES..range.end;
        waits.drop_pages(self.seek.inode, pages).await.map_err(Error::from)?;
        Ok(true)
    }
}
