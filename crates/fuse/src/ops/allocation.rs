//! Room, holes and copies: `fallocate`, `lseek` and `copy_file_range`.
//!
//! The kernel writes back what it has of the ranges before it asks for an allocation or a copy, and
//! drops its pages of what was changed afterwards.

use super::{files, privileges};
use crate::context::Context;
use crate::file_system::FileSystem;
use crate::limits;
use crate::reply::{Answer, Failure};
use crate::request::{Allocate, Copy};
use crate::waits::Caller;
use skep_client::{HandleId, Sought};
use skep_types::{Error, InodeId, Result};
use std::ops::Range;

type Outcome = std::result::Result<Answer, Failure>;

pub(crate) async fn allocate<F: FileSystem>(
    context: &Context<F>,
    allocate: Allocate,
    caller: Caller,
) -> Outcome {
    let Allocate { inode, handle, range, what, keeps_size, uid } = allocate;
    privileges::take_away_from(context, inode, uid, caller).await?;
    context.file_system.allocate(handle, range, what, keeps_size).await?;
    files::sync_if_asked(&context.file_system, handle).await?;
    Ok(Answer::Empty)
}

pub(crate) async fn copy<F: FileSystem>(
    context: &Context<F>,
    copy: Copy,
    caller: Caller,
) -> Outcome {
    let Copy { from, inode, to, length, uid, is_long } = copy;
    privileges::take_away_from(context, inode, uid, caller).await?;
    let copied = context.file_system.copy(from, to, length).await?;
    files::sync_if_asked(&context.file_system, to.0).await?;
    Ok(match is_long {
        true => Answer::Number(copied),
        // It is never as much as the kernel asks for at most.
        false => Answer::Size(u32::try_from(copied).map_err(|_| libc::EIO)?),
    })
}

/// `lseek`. Storage doesn't know what programs have changed in mapped memory, and the kernel
/// doesn't write that back before it asks. So it is made to, where there seems to be a hole, and
/// storage is asked again. Where that can't be, the file counts as data there.
pub(crate) async fn seek<F: FileSystem>(
    context: &Context<F>,
    inode: InodeId,
    handle: HandleId,
    (offset, what): (u64, Sought),
    caller: Caller,
) -> Outcome {
    let place = Place { context, inode, handle, caller };
    let found = match what {
        Sought::Data => place.next_data(offset).await?,
        Sought::Hole => place.next_hole(offset).await?,
    };
    Ok(Answer::Number(found.ok_or(libc::ENXIO)?))
}

struct Place<'a, F> {
    context: &'a Context<F>,
    inode: InodeId,
    handle: HandleId,
    caller: Caller,
}

impl<F: FileSystem> Place<'_, F> {
    async fn stored(&self, offset: u64, what: Sought) -> Result<Option<u64>> {
        self.context.file_system.seek(self.handle, offset, what).await
    }

    async fn next_data(&self, offset: u64) -> Result<Option<u64>> {
        let data = self.stored(offset, Sought::Data).await?;
        if data == Some(offset) {
            return Ok(data);
        }
        let Some(end) = self.end_of_hole(offset, data).await? else { return Ok(data) };
        match self.write_back(offset..end).await? {
            true => self.stored(offset, Sought::Data).await,
            false => Ok(Some(offset)),
        }
    }

    async fn next_hole(&self, mut offset: u64) -> Result<Option<u64>> {
        loop {
            let Some(hole) = self.stored(offset, Sought::Hole).await? else { return Ok(None) };
            let data = self.stored(hole, Sought::Data).await?;
            let Some(end) = self.end_of_hole(hole, data).await? else { return Ok(Some(hole)) };
            if !self.write_back(hole..end).await? {
                // The next one may be told as well; the end of the file is one.
                if data.is_none() {
                    return Ok(Some(end));
                }
                offset = end;
                continue;
            }
            if self.stored(hole, Sought::Hole).await? == Some(hole) {
                return Ok(Some(hole));
            }
            offset = hole;
        }
    }

    /// Where a hole ends: at the next data or with the file; `None`: it begins with its end.
    async fn end_of_hole(&self, hole: u64, data: Option<u64>) -> Result<Option<u64>> {
        if data.is_some() {
            return Ok(data);
        }
        let size = self.context.file_system.attributes(self.inode).await?.size;
        Ok(Some(size).filter(|size| *size > hole))
    }

    /// Makes the kernel write back and drop its pages of a range; false if it can't be waited for.
    async fn write_back(&self, range: Range<u64>) -> Result<bool> {
        let waits = &self.context.waits;
        // What is written back comes by the same queue: this request must not take the last place.
        let Some(_waiting) = waits.begin(self.caller) else { return Ok(false) };
        let pages = range.start / limits::PAGE_BYTES * limits::PAGE_BYTES..range.end;
        waits.drop_pages(self.inode, pages).await.map_err(Error::from)?;
        Ok(true)
    }
}
