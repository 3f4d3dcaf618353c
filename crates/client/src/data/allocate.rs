//! Allocation and holes: `fallocate` and `lseek` on chunk files. A range of a file is one range
//! in each of its chunk files, so each is asked once, all at the same time.

use crate::client::{Client, Worker};
use crate::data::inline;
use crate::data::size::newest_size;
use crate::data::write::begin_write;
use crate::driven::drive_for;
use crate::files::handles::HandleId;
use crate::files::open_file::OpenFile;
use crate::inode_state::guards::WriteGuard;
use crate::limits::WRITE_GRACE;
use crate::session::request::ModifyOptions;
use skep_cluster::striping::{ChunkFileRange, chunk_ranges, pieces, position_in_file};
use skep_env::Buf;
use skep_rpc::CallOptions;
use skep_types::{ChunkFileKey, HostIncarnation, MAX_FILE_BYTES, Result};
use skep_wire::storage::{ClearChunk, ReserveChunk, SeekChunk};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

/// How `fallocate` changes a range of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocation {
    /// Space is allocated for it; its bytes stay.
    Reserve,
    /// It becomes zeros and has space.
    Zero,
    /// It becomes a hole, as far as it can.
    Punch,
}

/// What `lseek` searches for in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sought {
    /// A byte that was written.
    Data,
    /// A byte that was not, or that lies beyond the end.
    Hole,
}

/// What a chunk file is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChunkFileChange {
    Reserve,
    Clear,
}

/// Allocating space in files, and finding their holes.
pub trait Allocates {
    /// Reserves room for a range of a file, makes it zeros or a hole. With `keeps_size` (and for a
    /// hole, always) the file doesn't become longer. After an error a part of it may be done, but
    /// the file's end hasn't moved.
    ///
    /// # Errors
    /// As `Writes::write`; `Unsupported` where storage can't reserve room.
    fn allocate(
        &self,
        handle: HandleId,
        range: Range<u64>,
        what: Allocation,
        keeps_size: bool,
    ) -> impl Future<Output = Result<()>>;

    /// The first byte from `offset` on that holds data or lies in a hole. The end of the file
    /// counts as a hole; none: there is no data, or the file ends before `offset`. What is a hole
    /// is known in blocks of the targets' file systems.
    ///
    /// # Errors
    /// `Stale` for a handle that isn't open or whose file is gone.
    fn seek(
        &self,
        handle: HandleId,
        offset: u64,
        what: Sought,
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
        // The groups that it reaches are there.
        pieces(&file.pattern, range.clone())?;
        let grows = !keeps_size && what != Allocation::Punch;
        let writing = begin_write(&file.inode).await;
        let (worker, inode) = (Rc::clone(&self.0), Arc::clone(&file.inode));
        let work = async move {
            if what != Allocation::Reserve {
                change(&worker, &file, &writing, &range, ChunkFileChange::Clear).await?;
                writing.made_holes();
            }
            if what != Allocation::Punch {
                writing.reached(range.end);
                let reserved =
                    change(&worker, &file, &writing, &range, ChunkFileChange::Reserve).await;
                if let Err(error) = reserved {
                    // Otherwise one that is too large would leave no space to others.
                    clear_behind(&worker, &file, &writing, &range).await;
                    return Err(error);
                }
            }
            let is_longer = grows && range.end > file.inode.size();
            if is_longer {
                writing.wrote(range);
            }
            Ok(is_longer)
        };
        if drive_for(WRITE_GRACE, work).await? {
            // Unlike a write, it leaves nothing in the chunk files that tells how far it went.
            self.report_written(&inode, ModifyOptions::default()).await?;
        }
        Ok(())
    }

    async fn seek(&self, handle: HandleId, offset: u64, what: Sought) -> Result<Option<u64>> {
        let file = self.mount().handles.get_live(handle)?;
        self.confirm_locks(&file).await?;
        let size = self.size_for_read(&file, MAX_FILE_BYTES).await?;
        if offset >= size {
            return Ok(None);
        }
        let found = self.sought(&file, offset..size, what).await?;
        // Or the file is gone, because this client was out of touch for longer than its lease.
        self.confirm_lease(file.inode.id).await?;
        file.check_live()?;
        Ok(Some(found).filter(|found| what == Sought::Hole || *found < size))
    }
}

impl Client {
    /// Where the range first has what is sought; its end if nowhere.
    async fn sought(&self, file: &Arc<OpenFile>, range: Range<u64>, what: Sought) -> Result<u64> {
        let inline = file.pattern.inline_bytes();
        let mut start = range.start;
        if start < inline {
            let data_end = inline::data_end(&self.0, file, start).await?;
            match what {
                Sought::Data if start < data_end => return Ok(start),
                Sought::Hole if data_end < inline => return Ok(data_end.max(start).min(range.end)),
                Sought::Data | Sought::Hole => start = inline.min(range.end),
            }
        }
        let tasks: Vec<_> = chunk_ranges(&file.pattern, start..range.end)
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

/// Changes a range in all chunk files that hold it; gives the first error when all are done.
async fn change(
    worker: &Rc<Worker>,
    file: &Arc<OpenFile>,
    writing: &WriteGuard,
    range: &Range<u64>,
    what: ChunkFileChange,
) -> Result<()> {
    let parts: Vec<_> = chunk_ranges(&file.pattern, range.clone()).collect();
    let tasks: Vec<_> = parts
        .iter()
        .map(|part| {
            let (worker, file, part) = (Rc::clone(worker), Arc::clone(file), part.clone());
            skep_env::spawn(async move { change_chunk(worker, &file, part, what).await })
        })
        .collect();
    let mut result = match what {
        ChunkFileChange::Reserve => Ok(()),
        ChunkFileChange::Clear => clear_inline(worker, file, writing, range).await,
    };
    for (part, task) in parts.iter().zip(tasks) {
        match task.await {
            Ok(incarnation) => writing.piece_written(key_of(file, part), part.group, incarnation),
            Err(error) => result = result.and(Err(error)),
        }
    }
    result.map_err(|error| error.within(format_args!("file {}", file.inode.id)))
}

/// Puts zeros over what lies of a range in metadata. They take no space there; nor is room
/// reserved.
async fn clear_inline(
    worker: &Rc<Worker>,
    file: &Arc<OpenFile>,
    writing: &WriteGuard,
    range: &Range<u64>,
) -> Result<()> {
    let end = range.end.min(file.pattern.inline_bytes());
    if range.start >= end {
        return Ok(());
    }
    let zeros = Buf::new((end - range.start) as usize);
    zeros.zero(0..zeros.len());
    let written = inline::write(worker, file, (range.start, &zeros), false).await?;
    writing.inline_written(written.mark);
    Ok(())
}

/// Changes a range of a chunk file step by step; gives the incarnation of the host that has it.
async fn change_chunk(
    worker: Rc<Worker>,
    file: &OpenFile,
    part: ChunkFileRange,
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
                let request = ReserveChunk { key, offset, length };
                worker.change_storage(file, group, &request, options).await
            }
            ChunkFileChange::Clear => {
                let request = ClearChunk { key, offset, length };
                worker.change_storage(file, group, &request, options).await
            }
        };
        let advanced = advanced.map_err(|error| error.within(format_args!("chunk file {key}")))?;
        // The first answer counts: what was done then is lost if a later one is of another host.
        let incarnation = *first.get_or_insert(advanced.incarnation);
        if advanced.end >= part.range.end {
            return Ok(incarnation);
        }
        offset = advanced.end.max(offset);
    }
}

/// Clears what something that failed has left of a range behind the end of the file, room too. If
/// this fails as well, it stays: whoever keeps storage from answering has worse to tell.
pub(crate) async fn clear_behind(
    worker: &Rc<Worker>,
    file: &Arc<OpenFile>,
    writing: &WriteGuard,
    range: &Range<u64>,
) {
    let behind = range.start.max(newest_size(worker, file).await)..range.end;
    if behind.is_empty() {
        return;
    }
    if let Err(error) = change(worker, file, writing, &behind, ChunkFileChange::Clear).await {
        tracing::debug!("what a failed operation left behind the end stays: {error}");
    }
}

async fn seek_chunk(
    worker: Rc<Worker>,
    file: &OpenFile,
    part: ChunkFileRange,
    what: Sought,
) -> Result<Option<u64>> {
    let _place = worker.pieces.acquire().await;
    let key = key_of(file, &part);
    let wants_data = what == Sought::Data;
    let request = SeekChunk { key, offset: part.range.start, wants_data };
    let options = CallOptions { trace: worker.next_trace(), ..CallOptions::default() };
    let answer = worker.call_storage(part.group, &request, options).await;
    let (sought, _) = answer.map_err(|error| error.within(format_args!("chunk file {key}")))?;
    let place = |at| position_in_file(&file.pattern, part.component, part.index, at);
    Ok(sought.at.and_then(place))
}

fn key_of(file: &OpenFile, part: &ChunkFileRange) -> ChunkFileKey {
    ChunkFileKey {
        inode: file.inode.id,
        generation: file.pattern.generation,
        component: part.component,
        index: part.index,
    }
}
