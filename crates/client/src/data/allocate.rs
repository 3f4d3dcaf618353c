//! Allocates space, punches holes, and finds data and holes: `fallocate` and `lseek`. A range of a
//! file is one contiguous range in each of its chunk files. So the client sends one request for
//! each chunk file, all in parallel.

use crate::client::{Client, Worker};
use crate::data::inline::{self, InlineWrite};
use crate::data::locked::{await_orphaned_changes, drive_change};
use crate::data::write::{await_appends, begin_write, clear_if_alone};
use crate::files::handles::HandleId;
use crate::files::open_file::OpenFile;
use crate::inode_state::guards::WriteGuard;
use crate::session::request::ModifyOptions;
use skep_cluster::striping::{ChunkFileRange, chunk_ranges, pieces, position_in_file};
use skep_env::Buf;
use skep_rpc::CallOptions;
use skep_types::{ChunkFileKey, Error, ErrorCode, HostIncarnation, MAX_FILE_BYTES, Result};
use skep_wire::storage::{ClearChunk, ReserveChunk, SeekChunk};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

/// How `fallocate` changes a range of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocation {
    /// Allocates space for the range; its bytes do not change.
    Reserve,
    /// Replaces the range by zeros, and allocates space for it.
    Zero,
    /// Punches a hole into the range. Programs then read zeros there. Targets release space in
    /// whole blocks of their file systems.
    Punch,
}

/// The object of a search by `lseek`: data or a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeekTarget {
    /// Data (`SEEK_DATA`): a byte that a program has written.
    Data,
    /// A hole (`SEEK_HOLE`), or the end of the file.
    Hole,
}

/// How a request changes a range of a chunk file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChunkFileChange {
    Reserve,
    Clear,
}

/// Allocates space in files, and finds data and holes.
pub trait Allocates {
    /// Allocates space for a range of a file, writes zeros to the range or punches a hole,
    /// depending on `what`. `range` is in bytes and does not include its end. The file grows to the
    /// end of the range unless `keeps_size` is set or `what` is `Punch`. After an error a part of
    /// the range may be changed, but the size is unchanged.
    ///
    /// # Errors
    /// - The errors of `Writes::write`.
    /// - `Unsupported` if storage cannot preallocate space.
    fn allocate(
        &self,
        handle: HandleId,
        range: Range<u64>,
        what: Allocation,
        keeps_size: bool,
    ) -> impl Future<Output = Result<()>>;

    /// Returns the first offset at or after `offset` that lies in data or in a hole, depending on
    /// `what`. The end of the file counts as a hole. `None` means that no data follows, or that the
    /// file ends at or before `offset`. Targets report holes in units of the blocks of their file
    /// systems.
    ///
    /// # Errors
    /// Returns `Stale` if the handle is not open or its file was removed.
    fn seek(
        &self,
        handle: HandleId,
        offset: u64,
        what: SeekTarget,
    ) -> impl Future<Output = Result<Option<u64>>>;
}

impl Allocates for Client {
    async fn allocate(
        &self,
        handle: HandleId,
        range: Range<u64>,
        what: Allocation,
        keeps_size: bool,
    ) -> Result<()> {
        let file = self.mount().handles.get_live(handle)?;
        file.check_writable(Some(range.end))?;
        if range.is_empty() {
            return Ok(());
        }
        self.confirm_locks(&file).await?;
        // This call returns an error, before the client changes any bytes, if the file has no
        // groups for a part of the range.
        pieces(file.pattern(), range.clone())?;
        let grows = !keeps_size && what != Allocation::Punch;
        if grows {
            await_appends(&file.inode, range.end).await;
        }
        await_orphaned_changes(&file.inode).await;
        let writing = begin_write(&file.inode).await;
        let (worker, inode) = (Rc::clone(&self.0), Arc::clone(&file.inode));
        let work = async move {
            let client = Client(worker);
            loop {
                let before = file.inode.end();
                let generation = before.truncate_generation;
                let pattern = file.pattern();
                match allocate_once(&client, &file, &writing, (&range, generation), what).await {
                    Err(error) if error.code() == ErrorCode::EndMoved => {
                        client.follow_end(&file.inode, before, error).await?;
                        continue;
                    }
                    Err(error) if error.code() == ErrorCode::Corrupt => {
                        client.explain_lost(&file.inode, before, error).await?;
                        continue;
                    }
                    Err(error) => {
                        client.follow_move(&file, pattern, error).await?;
                        continue;
                    }
                    Ok(()) => {}
                }
                let is_longer = grows && range.end > before.size;
                let may_move_the_end = is_longer || (grows && file.inode.is_shared());
                if !may_move_the_end {
                    return Ok::<bool, Error>(false);
                }
                let range = range.clone();
                if client.complete_write(&file.inode, &writing, range, generation).await? {
                    return Ok(is_longer);
                }
            }
        };
        if drive_change(self, Arc::clone(&inode), work).await? {
            // After a write, the lengths of the chunk files show the size of the file. After an
            // allocation they do not, so this client must report the new size to metadata.
            self.report_written(&inode, ModifyOptions::default()).await?;
        }
        Ok(())
    }

    async fn seek(&self, handle: HandleId, offset: u64, what: SeekTarget) -> Result<Option<u64>> {
        let file = self.mount().handles.get_live(handle)?;
        self.confirm_locks(&file).await?;
        let size = self.end_for_read(&file, MAX_FILE_BYTES).await?.size;
        if offset >= size {
            return Ok(None);
        }
        let found = self.first_in_range(&file, offset..size, what).await?;
        // Bytes may be missing because they are a hole, or because the file was removed. So ask
        // metadata whether the file still exists.
        self.attributes_after_truncation(&file.inode).await?;
        file.check_live()?;
        Ok(Some(found).filter(|found| what == SeekTarget::Hole || *found < size))
    }
}

impl Client {
    /// Returns the first offset in `range` that lies in data or in a hole, depending on `what`.
    /// Returns the end of the range if there is no such offset.
    async fn first_in_range(
        &self,
        file: &Arc<OpenFile>,
        range: Range<u64>,
        what: SeekTarget,
    ) -> Result<u64> {
        let pattern = file.pattern();
        let inline = pattern.inline_bytes();
        let mut start = range.start;
        if start < inline {
            let data_end = match inline::data_end(&self.0, file, inline, start).await {
                Ok(data_end) => data_end,
                Err(error) => {
                    self.follow_move(file, pattern, error).await?;
                    return Box::pin(self.first_in_range(file, range, what)).await;
                }
            };
            match what {
                SeekTarget::Data if start < data_end => return Ok(start),
                SeekTarget::Hole if data_end < inline => {
                    return Ok(data_end.max(start).min(range.end));
                }
                SeekTarget::Data | SeekTarget::Hole => start = inline.min(range.end),
            }
        }
        let tasks: Vec<_> = chunk_ranges(pattern, start..range.end)
            .map(|part| {
                let (worker, file) = (Rc::clone(&self.0), Arc::clone(file));
                skep_env::spawn(async move { seek_chunk(worker, &file, part, what).await })
            })
            .collect();
        let mut found = range.end;
        for task in tasks {
            found = found.min(task.await?.unwrap_or(range.end));
        }
        Ok(found)
    }
}

/// Makes one attempt to allocate a range of a file. After an error, no space beyond the end of the
/// file stays allocated.
async fn allocate_once(
    client: &Client,
    file: &Arc<OpenFile>,
    writing: &WriteGuard,
    (range, generation): (&Range<u64>, u64),
    what: Allocation,
) -> Result<()> {
    let worker = &client.0;
    if what != Allocation::Reserve {
        change(worker, file, writing, (range, generation), ChunkFileChange::Clear).await?;
        writing.note_holes();
    }
    if what == Allocation::Punch {
        return Ok(());
    }
    writing.note_reach(range.end);
    let reserved =
        change(worker, file, writing, (range, generation), ChunkFileChange::Reserve).await;
    if reserved.is_err() {
        // If the request fails, for example because a target is full, the client must release the
        // space that the request has allocated so far.
        clear_behind(client, file, writing, range).await;
    }
    reserved
}

/// Changes a range of a file, in each chunk file that contains a part of the range. `generation` is
/// the truncate generation of the file when the operation began. Waits for all requests, even after
/// one has failed, and returns the first error.
async fn change(
    worker: &Rc<Worker>,
    file: &Arc<OpenFile>,
    writing: &WriteGuard,
    (range, generation): (&Range<u64>, u64),
    what: ChunkFileChange,
) -> Result<()> {
    let pattern = file.pattern();
    let parts: Vec<_> = chunk_ranges(pattern, range.clone()).collect();
    let tasks: Vec<_> = parts
        .iter()
        .map(|part| {
            let (worker, file, part) = (Rc::clone(worker), Arc::clone(file), part.clone());
            skep_env::spawn(
                async move { change_chunk(worker, &file, (part, generation), what).await },
            )
        })
        .collect();
    let mut result = match what {
        ChunkFileChange::Reserve => Ok(()),
        ChunkFileChange::Clear => {
            let end = range.end.min(pattern.inline_bytes());
            clear_inline(worker, file, (&(range.start..end), generation)).await
        }
    };
    for (part, task) in parts.iter().zip(tasks) {
        match task.await {
            Ok(incarnation) => writing.piece_changed(key_of(file, part), part.group, incarnation),
            Err(error) => result = result.and(Err(error)),
        }
    }
    result.map_err(|error| {
        error.within(format_args!("cannot allocate or clear a range of file {}", file.inode.id))
    })
}

/// Writes zeros to a range of the inline bytes. Does nothing if the range is empty. Metadata does
/// not allocate space in advance, and zeros take no space in metadata.
async fn clear_inline(
    worker: &Rc<Worker>,
    file: &Arc<OpenFile>,
    (range, truncate_generation): (&Range<u64>, u64),
) -> Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    let zeros = Buf::new((range.end - range.start) as usize);
    zeros.zero(0..zeros.len());
    let how = InlineWrite { truncate_generation, ..InlineWrite::default() };
    inline::write(worker, file, (range.start, &zeros), how).await.map(|_| ())
}

/// Changes a range of a chunk file. Storage may change less than requested, so this function
/// repeats the request for the rest. Returns the incarnation of the storage host that executed the
/// first request.
async fn change_chunk(
    worker: Rc<Worker>,
    file: &OpenFile,
    (part, truncate_generation): (ChunkFileRange, u64),
    what: ChunkFileChange,
) -> Result<HostIncarnation> {
    let _place = worker.pieces.acquire().await;
    let (key, group) = (key_of(file, &part), part.group);
    let mut offset = part.range.start;
    let mut first = None;
    loop {
        let options = CallOptions { trace: worker.next_trace(), ..CallOptions::default() };
        let length = part.range.end - offset;
        let advanced = match what {
            ChunkFileChange::Reserve => {
                let must_exist = file.inode.was_synced(&key);
                let request = ReserveChunk { key, offset, length, truncate_generation, must_exist };
                worker.change_storage(file, group, &request, options).await
            }
            ChunkFileChange::Clear => {
                let request = ClearChunk { key, offset, length, truncate_generation };
                worker.change_storage(file, group, &request, options).await
            }
        };
        let advanced = advanced.map_err(|error| match what {
            ChunkFileChange::Reserve => {
                error.within(format_args!("cannot reserve space in chunk file {key}"))
            }
            ChunkFileChange::Clear => {
                error.within(format_args!("cannot clear a range of chunk file {key}"))
            }
        })?;
        // A later reply with another incarnation means that the host may have lost the earlier
        // steps. So the next sync must compare the host's incarnation with the one in the first
        // reply.
        let incarnation = *first.get_or_insert(advanced.incarnation);
        if advanced.end >= part.range.end {
            return Ok(incarnation);
        }
        offset = advanced.end.max(offset);
    }
}

/// Clears the bytes and the space that a failed operation left beyond the end of the file, within
/// `range`.
pub(crate) async fn clear_behind(
    client: &Client,
    file: &Arc<OpenFile>,
    writing: &WriteGuard,
    range: &Range<u64>,
) {
    let (worker, file, range) = (Rc::clone(&client.0), Arc::clone(file), range.clone());
    let inode = Arc::clone(&file.inode);
    clear_if_alone(client, &inode, writing, move |writing| async move {
        let end = file.inode.end();
        let behind = range.start.max(end.size)..range.end;
        if behind.is_empty() {
            return Ok(());
        }
        let what = (&behind, end.truncate_generation);
        change(&worker, &file, &writing, what, ChunkFileChange::Clear).await
    })
    .await;
}

async fn seek_chunk(
    worker: Rc<Worker>,
    file: &OpenFile,
    part: ChunkFileRange,
    what: SeekTarget,
) -> Result<Option<u64>> {
    let _place = worker.pieces.acquire().await;
    let key = key_of(file, &part);
    let wants_data = what == SeekTarget::Data;
    let request = SeekChunk { key, offset: part.range.start, wants_data };
    let options = CallOptions { trace: worker.next_trace(), ..CallOptions::default() };
    let reply = worker.call_storage(part.group, &request, options).await;
    let (found, _) = reply.map_err(|error| {
        error.within(format_args!("cannot search chunk file {key} for data or holes"))
    })?;
    let position = |at| position_in_file(file.pattern(), part.component, part.index, at);
    Ok(found.at.and_then(position))
}

fn key_of(file: &OpenFile, part: &ChunkFileRange) -> ChunkFileKey {
    ChunkFileKey {
        inode: file.inode.id,
        generation: file.pattern().generation,
        component: part.component,
        index: part.index,
    }
}
