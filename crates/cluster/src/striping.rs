//! Maps bytes of a file to chunk files and offsets in them, and back.
//!
//! A component with `width` groups is split into chunks of `chunk_bytes` each. Chunk 0 starts at
//! the [`base`] of the component: the largest multiple of `chunk_bytes` that is at or below the
//! component's start. Chunk `k` is stored in the chunk file with index `k % width`, at offset
//! `(k / width) * chunk_bytes`. Chunk files are therefore dense, with one exception: if a component
//! follows the inline bytes, its first chunk file starts with a hole. Inline bytes have no chunk
//! file. Pure arithmetic, without targets, networks or caches.
//!
//! A caller must call `StripePattern::check` for a pattern from another process before it calls
//! these functions.

use skep_types::pattern::StripePattern;
use skep_types::{Component, Error, ErrorCode, GroupId, MAX_FILE_BYTES, Result};
use std::ops::Range;

/// A piece of a file range: it lies within one chunk, or within the inline bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Index of the component in the pattern.
    pub component: u16,
    /// Index of the group in the component. Component and group index together identify the chunk
    /// file.
    pub index: u16,
    /// The group that stores the chunk file. `None` means that the bytes are inline.
    pub group: Option<GroupId>,
    /// Offset of the piece in the chunk file. For inline bytes, this is the offset of the piece in
    /// the file.
    pub offset_in_chunk_file: u64,
    /// Offset of the piece in the caller's range.
    pub offset_in_range: u64,
    /// Length of the piece in bytes: at least 1, at most the chunk size of the component. For
    /// inline bytes, at most the number of inline bytes of the file.
    pub length: u64,
}

/// Splits a file range into pieces, each within one chunk or within the inline bytes.
///
/// `range` is half-open, in bytes from the start of the file. The pieces are in file order, cover
/// `range` exactly and never overlap. An empty range gives no pieces.
///
/// # Errors
/// - `FileTooLarge` if `range` ends beyond `MAX_FILE_BYTES`.
/// - `InvalidArgument` if the range overlaps a component that has no groups yet.
pub fn pieces(pattern: &StripePattern, range: Range<u64>) -> Result<Pieces<'_>> {
    if range.end > MAX_FILE_BYTES {
        return Err(Error::new(
            ErrorCode::FileTooLarge,
            format!("cannot map byte {}: it lies beyond the maximum size of a file", range.end),
        ));
    }
    if range.start >= range.end {
        return Ok(Pieces { pattern, component: 0, at: range.end, range });
    }
    let component = component_at(pattern, range.start);
    let reached = &pattern.components[component..=component_at(pattern, range.end - 1)];
    let is_without = |it: &Component| it.groups.is_empty() && !it.is_inline();
    if let Some(index) = reached.iter().position(is_without) {
        return Err(Error::new(
            ErrorCode::InvalidArgument,
            format!(
                "cannot map the file: component {} of its stripe pattern has no groups yet",
                component + index
            ),
        ));
    }
    Ok(Pieces { pattern, component, at: range.start, range })
}

/// Returns the index of the component that contains the byte at `offset` of the file.
///
/// # Panics
/// Panics if no component starts at byte 0. `StripePattern::check` refuses such patterns.
pub fn component_at(pattern: &StripePattern, offset: u64) -> usize {
    let after = pattern.components.partition_point(|component| component.start <= offset);
    assert!(after > 0, "the first component starts at byte 0");
    after - 1
}

/// Iterator over the [`Piece`]s of a range. Created by [`pieces`].
#[derive(Debug, Clone)]
pub struct Pieces<'a> {
    pattern: &'a StripePattern,
    component: usize,
    at: u64,
    range: Range<u64>,
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        if self.at >= self.range.end {
            return None;
        }
        if self.at >= component_end(self.pattern, self.component) {
            self.component += 1;
        }
        let component = &self.pattern.components[self.component];
        let end = component_end(self.pattern, self.component).min(self.range.end);
        let mut piece = Piece {
            component: self.component as u16,
            index: 0,
            group: None,
            offset_in_chunk_file: self.at,
            offset_in_range: self.at - self.range.start,
            length: end - self.at,
        };
        if !component.is_inline() {
            let width = component.groups.len() as u64;
            let within = self.at - base(component);
            let (chunk, offset) = (within / component.chunk_bytes, within % component.chunk_bytes);
            let index = chunk % width;
            piece.index = index as u16;
            piece.group = Some(component.groups[index as usize]);
            piece.offset_in_chunk_file = chunk / width * component.chunk_bytes + offset;
            piece.length = piece.length.min(component.chunk_bytes - offset);
        }
        self.at += piece.length;
        Some(piece)
    }
}

/// A chunk file of a pattern and its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkFileSize {
    /// Index of the component in the pattern.
    pub component: u16,
    /// Index of the group in the component.
    pub index: u16,
    /// The group that stores the chunk file.
    pub group: GroupId,
    /// Size of the chunk file in bytes.
    pub size: u64,
}

/// Returns how large each chunk file is if the file has `size` bytes and no holes, in the order of
/// the pattern. A truncation to `size` truncates the chunk files to these sizes. Components without
/// groups, such as the inline component, have no chunk files.
pub fn chunk_sizes(
    pattern: &StripePattern,
    size: u64,
) -> impl Iterator<Item = ChunkFileSize> + Clone + '_ {
    pattern.components.iter().enumerate().flat_map(move |(number, component)| {
        let bytes = bytes_in_component(pattern, number, size);
        component.groups.iter().enumerate().map(move |(index, group)| ChunkFileSize {
            component: number as u16,
            index: index as u16,
            group: *group,
            size: chunk_file_size(component, index as u64, bytes),
        })
    })
}

/// A range of one chunk file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkFileRange {
    /// Index of the component in the pattern.
    pub component: u16,
    /// Index of the group in the component.
    pub index: u16,
    /// The group that stores the chunk file.
    pub group: GroupId,
    /// The range in bytes from the start of the chunk file.
    pub range: Range<u64>,
}

/// Returns the ranges of the chunk files that store a file range. Chunk files are dense, so each
/// chunk file has one contiguous range. Empty ranges are omitted.
pub fn chunk_ranges(
    pattern: &StripePattern,
    range: Range<u64>,
) -> impl Iterator<Item = ChunkFileRange> + '_ {
    let (before, with) = (chunk_sizes(pattern, range.start), chunk_sizes(pattern, range.end));
    before.zip(with).filter_map(|(start, end)| {
        let ChunkFileSize { component, index, group, .. } = start;
        let first = start.size.max(hole(&pattern.components[usize::from(component)], index));
        let range = first..end.size;
        (!range.is_empty()).then_some(ChunkFileRange { component, index, group, range })
    })
}

/// Returns the file offset of the byte at `offset` of a chunk file. `None` means that the chunk
/// file does not store a byte of the file at `offset`: the component ends before this byte, the
/// byte is in the hole at the beginning of the chunk file, or the pattern has no such chunk file.
pub fn position_in_file(
    pattern: &StripePattern,
    component: u16,
    index: u16,
    offset: u64,
) -> Option<u64> {
    let end = size_from_chunk(pattern, component, index, offset.checked_add(1)?);
    let inside = chunk_sizes(pattern, end)
        .any(|it| (it.component, it.index) == (component, index) && it.size > offset);
    inside.then(|| end - 1)
}

/// Returns the minimum file size at which a chunk file has `chunk_file_bytes` bytes. The size of
/// the file is the maximum of these sizes over all its chunk files (see [`size_from_chunks`]).
/// Returns zero for a chunk file that is not in the pattern, because an invalid report from a
/// target must not cause a panic.
pub fn size_from_chunk(
    pattern: &StripePattern,
    component: u16,
    index: u16,
    chunk_file_bytes: u64,
) -> u64 {
    let Some(part) = pattern.components.get(usize::from(component)) else { return 0 };
    let width = part.groups.len() as u64;
    if chunk_file_bytes <= hole(part, index) || u64::from(index) >= width {
        return 0;
    }
    let last = chunk_file_bytes - 1;
    let chunk = u128::from(last / part.chunk_bytes) * u128::from(width) + u128::from(index);
    let within = chunk * u128::from(part.chunk_bytes) + u128::from(last % part.chunk_bytes) + 1;
    let end = component_end(pattern, usize::from(component));
    u64::try_from(u128::from(base(part)) + within).map_or(end, |size| size.min(end))
}

/// Returns the size of a file from the sizes of its chunk files: the file offset just behind the
/// last byte that any chunk file stores. Each item of `chunk_files` is `(component, index, bytes)`.
pub fn size_from_chunks(
    pattern: &StripePattern,
    chunk_files: impl IntoIterator<Item = (u16, u16, u64)>,
) -> u64 {
    let sizes = chunk_files
        .into_iter()
        .map(|(component, index, bytes)| size_from_chunk(pattern, component, index, bytes));
    sizes.max().unwrap_or(0)
}

/// Returns the number of chunk files that store at least one byte of a file of `size` bytes without
/// holes.
pub fn groups_touched(pattern: &StripePattern, size: u64) -> usize {
    let on_groups = |(_, component): &(usize, &Component)| !component.is_inline();
    let in_component = |(number, component): (usize, &Component)| {
        let chunks = bytes_in_component(pattern, number, size).div_ceil(component.chunk_bytes);
        component.groups.len().min(usize::try_from(chunks).unwrap_or(usize::MAX))
    };
    pattern.components.iter().enumerate().filter(on_groups).map(in_component).sum()
}

/// Returns the end (exclusive) of a component: the start of the next component, or the maximum file
/// size.
pub fn component_end(pattern: &StripePattern, component: usize) -> u64 {
    pattern.components.get(component + 1).map_or(MAX_FILE_BYTES, |next| next.start)
}

/// Returns the pattern that a file has after its inline bytes were moved to storage: the component
/// behind the inline component begins at byte 0. All other bytes stay in their chunk files, at the
/// same offsets. `None` means that the file has no inline bytes, or that the next component cannot
/// store them: it has no groups yet, or its chunk 0 does not begin at byte 0 of the file.
pub fn without_inline(pattern: &StripePattern) -> Option<StripePattern> {
    if pattern.inline_bytes() == 0 {
        return None;
    }
    let mut moved = pattern.clone();
    let next = moved.components.get_mut(1)?;
    if base(next) > 0 || next.groups.is_empty() {
        return None;
    }
    next.start = 0;
    Some(moved)
}

/// Returns the file offset at which chunk 0 of a component starts. This is the largest multiple of
/// the chunk size at or below the start of the component. The base differs from the start only for
/// a component that follows the inline bytes. So chunks stay aligned in the file.
fn base(component: &Component) -> u64 {
    component.start - component.start.checked_rem(component.chunk_bytes).unwrap_or(0)
}

/// Returns the number of bytes at the beginning of a chunk file that do not belong to the
/// component.
fn hole(component: &Component, index: u16) -> u64 {
    if index == 0 { component.start - base(component) } else { 0 }
}

/// Returns the number of bytes from the [`base`] of a component to its end, in a file of `size`
/// bytes. Zero if the file ends before the component starts.
fn bytes_in_component(pattern: &StripePattern, number: usize, size: u64) -> u64 {
    let component = &pattern.components[number];
    let end = component_end(pattern, number).min(size);
    if end > component.start { end - base(component) } else { 0 }
}

/// Returns the size of chunk file `index` of a component without holes that has `bytes` bytes from
/// its base on.
fn chunk_file_size(component: &Component, index: u64, bytes: u64) -> u64 {
    let width = component.groups.len() as u64;
    let (full, rest) = (bytes / component.chunk_bytes, bytes % component.chunk_bytes);
    let whole = full / width + u64::from(index < full % width);
    let tail = if index == full % width { rest } else { 0 };
    whole * component.chunk_bytes + tail
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use skep_types::pattern::{INLINE_UNIT, MIN_CHUNK_BYTES};
    use skep_types::{Chooser, PatternOrigin, Redundancy};
    use std::collections::BTreeMap;

    fn component(start: u64, chunk_bytes: u64, groups: Range<u32>) -> Component {
        let groups: Vec<GroupId> = groups.map(GroupId::new).collect();
        let wanted = groups.len() as u16;
        Component {
            start,
            chunk_bytes,
            wanted,
            redundancy: Redundancy::Stripe,
            chooser: Chooser::Balanced,
            groups,
        }
    }

    fn pattern(components: Vec<Component>) -> StripePattern {
        StripePattern { generation: 1, origin: PatternOrigin::Cluster, components }
    }

    prop_compose! {
        fn any_pattern()(
            parts in prop::collection::vec((0_u32..3, 1_u64..9, 1_u32..6), 1..4),
            inline_units in prop_oneof![Just(0), 1_u64..=16],
        ) -> StripePattern {
            let largest = MIN_CHUNK_BYTES << 2;
            let mut start = 0;
            let mut components = Vec::new();
            for (shift, chunks, width) in parts {
                components.push(component(start, MIN_CHUNK_BYTES << shift, 1..1 + width));
                start += chunks * largest;
            }
            if inline_units > 0 {
                components[0].start = inline_units * INLINE_UNIT;
                components.insert(0, Component::inline());
            }
            pattern(components)
        }
    }

    /// Returns the pattern with an inline component of `units` * `INLINE_UNIT` bytes.
    fn with_inline(plain: &StripePattern, units: u64) -> StripePattern {
        let mut inline = plain.clone();
        inline.components[0].start = units * INLINE_UNIT;
        inline.components.insert(0, Component::inline());
        inline
    }

    /// Returns the number of bytes of a range that are not inline.
    fn on_storage(pattern: &StripePattern, range: Range<u64>) -> u64 {
        range.end.max(pattern.inline_bytes()) - range.start.max(pattern.inline_bytes())
    }

    #[test]
    fn range_is_split_at_each_chunk_boundary() {
        let chunk = 64 << 10;
        let pattern = pattern(vec![component(0, chunk, 7..9)]);
        let all: Vec<Piece> = pieces(&pattern, chunk - 10..2 * chunk + 5).unwrap().collect();
        let piece = |index, group, offset_in_chunk_file, offset_in_range, length| Piece {
            component: 0,
            index,
            group: Some(GroupId::new(group)),
            offset_in_chunk_file,
            offset_in_range,
            length,
        };
        assert_eq!(
            all,
            [
                piece(0, 7, chunk - 10, 0, 10),
                piece(1, 8, 0, 10, chunk),
                piece(0, 7, chunk, 10 + chunk, 5)
            ]
        );
    }

    #[test]
    fn invalid_ranges_are_refused() {
        let one = pattern(vec![component(0, 1 << 16, 0..2)]);
        let code = |result: Result<Pieces<'_>>| result.map(|_| ()).unwrap_err().code();
        assert_eq!(code(pieces(&one, 0..MAX_FILE_BYTES + 1)), ErrorCode::FileTooLarge);
        assert_eq!(pieces(&one, MAX_FILE_BYTES - 1..MAX_FILE_BYTES).unwrap().count(), 1);
        assert_eq!(pieces(&one, 5..5).unwrap().count(), 0);
        let two = pattern(vec![component(0, 1 << 16, 0..2), component(1 << 16, 1 << 16, 0..0)]);
        assert_eq!(pieces(&two, 0..1 << 16).unwrap().count(), 1);
        assert_eq!(code(pieces(&two, 0..(1 << 16) + 1)), ErrorCode::InvalidArgument);
    }

    #[test]
    fn file_size_is_bounded_for_impossible_chunk_file_sizes() {
        let pattern = pattern(vec![component(0, 1 << 16, 0..3)]);
        assert_eq!(size_from_chunk(&pattern, 0, 2, u64::MAX), MAX_FILE_BYTES);
        assert_eq!(size_from_chunk(&pattern, 0, 3, 5), 0);
        assert_eq!(size_from_chunk(&pattern, 1, 0, 5), 0);
        let two =
            self::pattern(vec![component(0, 1 << 16, 0..2), component(1 << 17, 1 << 16, 0..2)]);
        assert_eq!(size_from_chunk(&two, 0, 1, 1 << 30), 1 << 17);
        assert_eq!(position_in_file(&two, 0, 1, (1 << 16) - 1), Some((1 << 17) - 1));
        assert_eq!(position_in_file(&two, 0, 1, 1 << 16), None, "the next component has this byte");
        assert_eq!(position_in_file(&two, 1, 1, 0), Some(3 << 16));
    }

    proptest! {
        #[test]
        fn pieces_cover_the_range_in_order_and_lie_in_one_chunk_each(
            pattern in any_pattern(), start in 0_u64..8 << 20, length in 0_u64..4 << 20,
        ) {
            pattern.check().unwrap();
            let mut at = 0;
            for piece in pieces(&pattern, start..start + length).unwrap() {
                prop_assert_eq!(piece.offset_in_range, at);
                prop_assert!(piece.length > 0);
                let component = &pattern.components[usize::from(piece.component)];
                let Some(group) = piece.group else {
                    prop_assert!(component.is_inline());
                    prop_assert_eq!(piece.offset_in_chunk_file, start + at);
                    at += piece.length;
                    prop_assert!(start + at <= pattern.inline_bytes());
                    continue;
                };
                prop_assert_eq!(component.groups[usize::from(piece.index)], group);
                let chunk = |offset| offset / component.chunk_bytes;
                prop_assert_eq!(
                    chunk(piece.offset_in_chunk_file),
                    chunk(piece.offset_in_chunk_file + piece.length - 1)
                );
                // The reverse mapping: if a chunk file ends at the end of this piece, the file has
                // bytes up to the end of this piece.
                let back = size_from_chunk(
                    &pattern, piece.component, piece.index,
                    piece.offset_in_chunk_file + piece.length,
                );
                prop_assert_eq!(back, start + at + piece.length);
                at += piece.length;
            }
            prop_assert_eq!(at, length);
        }

        #[test]
        fn chunk_files_of_a_whole_file_have_no_gaps(
            pattern in any_pattern(), size in 0_u64..8 << 20,
        ) {
            let mut files = BTreeMap::new();
            for piece in pieces(&pattern, 0..size).unwrap().filter(|it| it.group.is_some()) {
                let component = &pattern.components[usize::from(piece.component)];
                let first = hole(component, piece.index);
                let end = files.entry((piece.component, piece.index)).or_insert(first);
                prop_assert_eq!(*end, piece.offset_in_chunk_file);
                *end += piece.length;
            }
            prop_assert_eq!(groups_touched(&pattern, size), files.len());
            let mut sum = 0;
            for chunk in chunk_sizes(&pattern, size) {
                let written = files.get(&(chunk.component, chunk.index)).copied().unwrap_or(0);
                prop_assert_eq!(chunk.size, written);
                let component = &pattern.components[usize::from(chunk.component)];
                sum += chunk.size.saturating_sub(hole(component, chunk.index));
            }
            prop_assert_eq!(sum, on_storage(&pattern, 0..size));
        }

        #[test]
        fn a_range_of_a_file_is_one_range_in_each_chunk_file(
            pattern in any_pattern(), start in 0_u64..8 << 20, length in 0_u64..4 << 20,
        ) {
            let mut expected = BTreeMap::<_, Range<u64>>::new();
            let whole = pieces(&pattern, start..start + length).unwrap();
            for piece in whole.filter(|it| it.group.is_some()) {
                let at = piece.offset_in_chunk_file;
                let place = (piece.component, piece.index);
                let range = expected.entry(place).or_insert(at..at);
                prop_assert_eq!(range.end, at);
                range.end = at + piece.length;
                let back = |at| position_in_file(&pattern, piece.component, piece.index, at);
                prop_assert_eq!(back(at), Some(start + piece.offset_in_range));
                let last = start + piece.offset_in_range + piece.length - 1;
                prop_assert_eq!(back(range.end - 1), Some(last));
            }
            for found in chunk_ranges(&pattern, start..start + length) {
                let place = (found.component, found.index);
                prop_assert_eq!(expected.remove(&place), Some(found.range));
            }
            prop_assert!(expected.is_empty());
        }

        #[test]
        fn file_size_is_computed_from_chunk_file_sizes(
            pattern in any_pattern(), size in 0_u64..8 << 20,
        ) {
            let sizes = chunk_sizes(&pattern, size).map(|c| (c.component, c.index, c.size));
            let expected = if size > pattern.inline_bytes() { size } else { 0 };
            prop_assert_eq!(size_from_chunks(&pattern, sizes), expected);
        }

        #[test]
        fn inline_bytes_do_not_change_the_placement_of_later_bytes(
            plain in any_pattern(), units in 1_u64..16, start in 0_u64..8 << 20,
            length in 1_u64..4 << 20,
        ) {
            prop_assume!(plain.inline_bytes() == 0);
            let inline = with_inline(&plain, units);
            inline.check().unwrap();
            let first = inline.inline_bytes();
            let range = start.max(first)..(start + length).max(first);
            let place = |piece: Piece, component| {
                (component, piece.index, piece.group, piece.offset_in_chunk_file, piece.length)
            };
            let with = pieces(&inline, range.clone()).unwrap();
            let with: Vec<_> = with.map(|it| place(it, it.component - 1)).collect();
            let without = pieces(&plain, range).unwrap();
            let without: Vec<_> = without.map(|it| place(it, it.component)).collect();
            prop_assert_eq!(with, without);
        }

        #[test]
        fn moved_inline_bytes_map_as_if_they_never_were_inline(
            plain in any_pattern(), units in 1_u64..=16, start in 0_u64..8 << 20,
            length in 1_u64..4 << 20,
        ) {
            prop_assume!(plain.inline_bytes() == 0);
            let inline = with_inline(&plain, units);
            let moved = without_inline(&inline);
            let is_aligned = inline.inline_bytes().is_multiple_of(plain.components[0].chunk_bytes);
            prop_assert_eq!(moved.is_none(), is_aligned);
            let Some(moved) = moved else { return Ok(()) };
            moved.check().unwrap();
            prop_assert!(moved.has_moved_inline() && moved.inline_bytes() == 0);
            prop_assert_eq!(without_inline(&moved), None);
            let as_plain = |piece: Piece| Piece { component: piece.component - 1, ..piece };
            let range = start..start + length;
            let found: Vec<_> = pieces(&moved, range.clone()).unwrap().map(as_plain).collect();
            let expected: Vec<_> = pieces(&plain, range).unwrap().collect();
            prop_assert_eq!(found, expected);
            // Both patterns give the same sizes of chunk files, and the same file size from these
            // sizes.
            let size = start + length;
            let sizes = |pattern: &StripePattern| -> Vec<_> {
                chunk_sizes(pattern, size).map(|it| it.size).collect()
            };
            prop_assert_eq!(sizes(&moved), sizes(&plain));
            let chunk_files = chunk_sizes(&moved, size).map(|it| (it.component, it.index, it.size));
            prop_assert_eq!(size_from_chunks(&moved, chunk_files), size);
        }
    }

    #[test]
    fn chunk_file_with_only_moved_inline_bytes_gives_size_zero() {
        let mut pattern = pattern(vec![component(0, 64 << 10, 1..3)]);
        pattern.components[0].start = 16 << 10;
        pattern.components.insert(0, Component::inline());
        assert_eq!(size_from_chunk(&pattern, 1, 0, 16 << 10), 0);
        assert_eq!(size_from_chunk(&pattern, 1, 0, (16 << 10) + 1), (16 << 10) + 1);
    }

    #[test]
    fn inline_bytes_cannot_move_to_a_component_without_groups() {
        let mut pattern = pattern(vec![component(0, 64 << 10, 1..1)]);
        pattern.components[0].start = 4 << 10;
        pattern.components.insert(0, Component::inline());
        assert_eq!(without_inline(&pattern), None);
    }
}
