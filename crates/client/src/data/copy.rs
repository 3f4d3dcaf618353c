//! Copying a range of one file to another file, or within one file. If a piece of the source and
//! its copy belong to the same group, the storage target copies the bytes. The client reads and
//! writes each piece whose copy belongs to another group.

use crate::client::{Client, Worker};
use crate::data::allocate::clear_behind;
use crate::data::complete::UnfinishedWrite;
use crate::data::holes::{Missing, MissingBytes};
use crate::data::locked::{await_orphaned_changes, drive_change};
use crate::data::read::{PieceRead, read_piece};
use crate::data::write::{await_appends, begin_write};
use crate::data::write_piece::{Acknowledged, PieceWrite, write_piece};
use crate::files::handles::HandleId;
use crate::files::open_file::OpenFile;
use crate::inode_state::guards::WriteGuard;
use crate::limits::{MAX_COPIED_BYTES, MAX_PIECE_BYTES};
use crate::session::request::ModifyOptions;
use skep_cluster::striping::{Piece, pieces};
use skep_env::Buf;
use skep_rpc::CallOptions;
use skep_types::{Error, ErrorCode, Result, StripePattern};
use skep_wire::storage::CopyChunk;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

/// Copies bytes between files.
pub trait Copies {
    /// Copies up to `length` bytes from one open file to another, or to another offset of the same
    /// file. Offsets are in bytes. Returns the number of bytes copied, which is at most
    /// `MAX_COPIED_BYTES`, and less than `length` if the source ends earlier. Holes may become
    /// zeros or stay holes. After an error, the size of the destination is unchanged, and any part
    /// of the range within this size may have been copied.
    ///
    /// # Errors
    /// - `InvalidArgument` if the ranges overlap in one file.
    /// - The errors of `Reads::read` and `Writes::write`.
    fn copy(
        &self,
        from: (HandleId, u64),
        to: (HandleId, u64),
        length: u64,
    ) -> impl Future<Output = Result<u64>>;
}

impl Copies for Client {
    async fn copy(
        &self,
        (from, from_offset): (HandleId, u64),
        (to, to_offset): (HandleId, u64),
        length: u64,
    ) -> Result<u64> {
        let handles = &self.mount().handles;
        let (source, file) = (handles.get_live(from)?, handles.get_live(to)?);
        self.confirm_locks(&source).await?;
        self.confirm_locks(&file).await?;
        let wanted = from_offset.saturating_add(length);
        let size = self.end_for_read(&source, wanted).await?.size;
        let length = wanted.min(size).saturating_sub(from_offset);
        let is_one = source.inode.id == file.inode.id;
        if is_one && from_offset.abs_diff(to_offset) < length {
            let text = format!("cannot copy within file {}: the two ranges overlap", file.inode.id);
            return Err(Error::new(ErrorCode::InvalidArgument, text));
        }
        let length = length.min(MAX_COPIED_BYTES);
        let end = file.check_writable(to_offset.checked_add(length))?;
        if length == 0 {
            return Ok(0);
        }
        await_appends(&file.inode, end).await;
        await_orphaned_changes(&file.inode).await;
        let writing = begin_write(&file.inode).await;
        self.place_first_bytes(&file, to_offset..end).await;
        let (client, inode) = (self.clone(), Arc::clone(&file.inode));
        let inline = file.pattern().inline_bytes();
        let work = async move {
            let copy = Copy { source, file, writing };
            copy.run(&client, from_offset..from_offset + length, to_offset).await
        };
        let CopyResult { length, has_holes } = drive_change(self, Arc::clone(&inode), work).await?;
        if end <= inline || has_holes {
            // The length of a chunk file shows the end of the last write. But inline bytes in
            // metadata, and a hole at the end of the copy, do not show this end. So the client must
            // report the new size.
            self.report_written(&inode, ModifyOptions::default()).await?;
        }
        Ok(length)
    }
}

/// A range of a copy that lies in one chunk file of the source and in one chunk file of the
/// destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    from: Piece,
    /// The destination piece, which has the same length as `from`.
    to: Piece,
}

/// Splits a copy into ranges of at most `max_bytes` each, in file order.
///
/// # Errors
/// Returns the errors of [`pieces`].
fn runs(
    (from, source): (&StripePattern, Range<u64>),
    (to, offset): (&StripePattern, u64),
    max_bytes: u64,
) -> Result<Vec<Run>> {
    let length = source.end - source.start;
    let mut sources = pieces(from, source)?;
    let mut places = pieces(to, offset..offset + length)?;
    let (mut source, mut place) = (sources.next(), places.next());
    let mut runs = Vec::new();
    while let (Some(from), Some(to)) = (source, place) {
        let length = from.length.min(to.length).min(max_bytes);
        runs.push(Run { from: Piece { length, ..from }, to: Piece { length, ..to } });
        source = behind(from, length).or_else(|| sources.next());
        place = behind(to, length).or_else(|| places.next());
    }
    Ok(runs)
}

/// Returns the rest of a piece after its first `length` bytes, or `None` if nothing is left.
fn behind(piece: Piece, length: u64) -> Option<Piece> {
    (piece.length > length).then(|| Piece {
        offset_in_chunk_file: piece.offset_in_chunk_file + length,
        offset_in_range: piece.offset_in_range + length,
        length: piece.length - length,
        ..piece
    })
}

/// The truncate generations of the source and of the destination when a copy began.
#[derive(Debug, Clone, Copy)]
struct Generations {
    source: u64,
    file: u64,
}

/// The result of a copy.
#[derive(Debug, Clone, Copy)]
struct CopyResult {
    /// Number of copied bytes.
    length: u64,
    /// Whether storage may have copied holes.
    has_holes: bool,
}

/// The result of one attempt to copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attempt {
    /// The attempt has copied all bytes of its range.
    Complete {
        /// Whether storage may have copied holes.
        has_holes: bool,
    },
    /// Another client truncated the destination meanwhile, so the caller must copy again.
    FileTruncated,
    /// Another client truncated the source meanwhile, so the copy has zeros in place of the removed
    /// bytes.
    SourceTruncated,
}

/// A copy in progress.
struct Copy {
    source: Arc<OpenFile>,
    file: Arc<OpenFile>,
    writing: WriteGuard,
}

impl Copy {
    /// Copies a range of the source to `offset` of the destination file. Copies less if another
    /// client truncates the source meanwhile.
    async fn run(
        &self,
        client: &Client,
        mut source: Range<u64>,
        offset: u64,
    ) -> Result<CopyResult> {
        loop {
            let length = source.end - source.start;
            let (from, to) = (self.source.pattern(), self.file.pattern());
            let runs = runs((from, source.clone()), (to, offset), MAX_PIECE_BYTES)?;
            let attempt = match self.try_once(client, &runs, offset..offset + length).await {
                Ok(attempt) => attempt,
                Err(error) => {
                    // Metadata may have refused the copy because the inline bytes of the source or
                    // of the destination were moved to storage.
                    match client.follow_move(&self.source, from, error).await {
                        Ok(()) => {}
                        Err(error) => client.follow_move(&self.file, to, error).await?,
                    }
                    continue;
                }
            };
            match attempt {
                Attempt::Complete { .. } if self.file.is_move_reverted(to) => {}
                Attempt::Complete { has_holes } => return Ok(CopyResult { length, has_holes }),
                Attempt::FileTruncated => {}
                Attempt::SourceTruncated => {
                    source.end = self.source.inode.size().clamp(source.start, source.end);
                    let copied = source.end - source.start;
                    if copied < length {
                        self.writing.note_reach(offset + length);
                        // Storage may have allocated space beyond the end of the file for the bytes
                        // that were not copied. Release this space.
                        let behind = offset + copied..offset + length;
                        clear_behind(client, &self.file, &self.writing, &behind).await;
                    }
                    if copied == 0 {
                        return Ok(CopyResult { length: 0, has_holes: false });
                    }
                }
            }
        }
    }

    /// Copies all `runs` to `range` of the destination file.
    async fn try_once(&self, client: &Client, runs: &[Run], range: Range<u64>) -> Result<Attempt> {
        let state = &self.file.inode;
        let before = state.end();
        let generation = before.truncate_generation;
        let source_end = self.source.inode.end();
        let generations = Generations { source: source_end.truncate_generation, file: generation };
        let unfinished = UnfinishedWrite::new(&self.writing, range.end);
        let mut result = self.run_all(&client.0, runs, generations).await;
        unfinished.end();
        if let Ok(MissingBytes { has_any: true, absent }) = &result {
            let source = &self.source;
            let explained = client.explain_missing(source, source_end, absent).await;
            match explained.and_then(|missing| source.check_live().map(|()| missing)) {
                Ok(Missing::Hole) => {}
                Ok(Missing::Changed) => return Ok(Attempt::SourceTruncated),
                Err(error) => result = Err(error),
            }
        }
        match result {
            Ok(MissingBytes { has_any: has_holes, .. }) => {
                if has_holes {
                    self.writing.note_holes();
                }
                let is_complete =
                    client.complete_write(state, &self.writing, range, generation).await?;
                Ok(match is_complete {
                    true => Attempt::Complete { has_holes },
                    false => Attempt::FileTruncated,
                })
            }
            Err(error) if error.code() == ErrorCode::EndMoved => {
                client.follow_end(state, before, error).await.map(|()| Attempt::FileTruncated)
            }
            Err(error) => {
                self.writing.note_reach(range.end);
                // Clear the bytes of the failed copy. Otherwise programs would read them after the
                // file has grown.
                clear_behind(client, &self.file, &self.writing, &range).await;
                Err(error)
            }
        }
    }

    /// Copies all `runs`, and waits for all of them even after one has failed. Returns the bytes of
    /// the source that storage does not have, or the first error.
    async fn run_all(
        &self,
        worker: &Rc<Worker>,
        runs: &[Run],
        generations: Generations,
    ) -> Result<MissingBytes> {
        let tasks: Vec<_> = runs
            .iter()
            .map(|run| {
                let (worker, run) = (Rc::clone(worker), *run);
                let (source, file) = (Arc::clone(&self.source), Arc::clone(&self.file));
                skep_env::spawn(
                    async move { copy_run(worker, &source, &file, run, generations).await },
                )
            })
            .collect();
        let mut result = Ok(MissingBytes::default());
        for task in tasks {
            match task.await {
                Ok((acknowledged, missing)) => {
                    acknowledged.note(&self.writing);
                    if let Ok(all) = &mut result {
                        all.add(missing);
                    }
                }
                Err(error) => result = result.and(Err(error)),
            }
        }
        result.map_err(|error| {
            error.within(format_args!("cannot copy to file {}", self.file.inode.id))
        })
    }
}

/// Copies the range `run`. Returns a pair: the acknowledgement of the write to the destination, and
/// the bytes of the source range that storage does not have.
async fn copy_run(
    worker: Rc<Worker>,
    source: &OpenFile,
    file: &Arc<OpenFile>,
    run: Run,
    generations: Generations,
) -> Result<(Acknowledged, MissingBytes)> {
    let Run { from, to } = run;
    if let Some(group) = to.group.filter(|_| from.group == to.group) {
        let _place = worker.pieces.acquire().await;
        let key = file.key_of(&to);
        let request = CopyChunk {
            from: source.key_of(&from),
            from_offset: from.offset_in_chunk_file,
            to: key,
            stripe: file.stripe_of(&to),
            to_offset: to.offset_in_chunk_file,
            truncate_generation: generations.file,
            must_exist: file.inode.was_synced(&key),
            length: to.length as u32,
        };
        let options = CallOptions { trace: worker.next_trace(), ..CallOptions::default() };
        let copied = worker.change_storage(file, group, &request, options).await;
        let copied = copied
            .map_err(|error| error.within(format_args!("cannot copy bytes to chunk file {key}")))?;
        let absent = if copied.source_exists { Vec::new() } else { vec![source.key_of(&from)] };
        let missing = MissingBytes { has_any: copied.has_holes, absent };
        // A copy of a hole creates no chunk file.
        let acknowledged = match copied.has_holes {
            true => Acknowledged::Change(key, group, copied.incarnation),
            false => Acknowledged::Chunk(key, group, copied.incarnation),
        };
        return Ok((acknowledged, missing));
    }
    let data = Buf::new(from.length as usize);
    let read = PieceRead {
        key: source.key_of(&from),
        group: from.group,
        offset: from.offset_in_chunk_file,
        truncate_generation: generations.source,
        into: data.clone(),
    };
    let missing = read_piece(Rc::clone(&worker), read).await?;
    let write = PieceWrite::new(file, to, data, generations.file);
    Ok((write_piece(worker, write).await?, missing))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use skep_types::{Chooser, Component, GroupId, PatternOrigin, Redundancy};

    fn pattern(chunk_kib: u64, groups: Range<u32>) -> StripePattern {
        let groups: Vec<_> = groups.map(GroupId::new).collect();
        let component = Component {
            start: 0,
            chunk_bytes: chunk_kib << 10,
            wanted: groups.len() as u16,
            redundancy: Redundancy::Stripe,
            chooser: Chooser::Balanced,
            groups,
        };
        StripePattern { generation: 1, origin: PatternOrigin::Cluster, components: vec![component] }
    }

    #[test]
    fn copy_between_equal_patterns_keeps_each_byte_on_its_group() {
        let (from, to) = (pattern(64, 1..4), pattern(64, 1..4));
        let runs = runs((&from, 100..300_000), (&to, 100), 1 << 20).unwrap();
        assert_eq!(runs.len(), 5);
        assert!(runs.iter().all(|run| run.from == run.to));
    }

    proptest! {
        #[test]
        fn split_copy_covers_source_and_destination_in_order(
            chunk in 0_u64..3, width in 1_u32..5, other_chunk in 0_u64..3, other_width in 1_u32..5,
            start in 0_u64..1 << 20, offset in 0_u64..1 << 20, length in 0_u64..1 << 20,
        ) {
            let from = pattern(64 << chunk, 0..width);
            let to = pattern(64 << other_chunk, 0..other_width);
            let runs = runs((&from, start..start + length), (&to, offset), 50_000).unwrap();
            let mut at = 0;
            for run in runs {
                prop_assert_eq!((run.from.offset_in_range, run.to.offset_in_range), (at, at));
                prop_assert_eq!(run.from.length, run.to.length);
                prop_assert!((1..=50_000).contains(&run.from.length));
                for (piece, pattern, start) in [(run.from, &from, start), (run.to, &to, offset)] {
                    let whole = start + at..start + at + piece.length;
                    let expected: Vec<_> = pieces(pattern, whole).unwrap().collect();
                    prop_assert_eq!(expected, vec![Piece { offset_in_range: 0, ..piece }]);
                }
                at += run.from.length;
            }
            prop_assert_eq!(at, length);
        }
    }
}
