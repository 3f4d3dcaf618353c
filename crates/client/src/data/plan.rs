//! Splits a range of a file into messages. Adjacent chunks of one chunk file are merged into one
//! piece, and long pieces are split to fit into a message.

use skep_cluster::striping::{Piece, pieces};
use skep_types::{GRANULE_BYTES, Result, StripePattern};
use std::ops::Range;

/// Returns the pieces of a file range, in file order. Each piece has at most `max_bytes` bytes, so
/// that it fits into one message. `max_bytes` is a multiple of the granule size. Pieces are split
/// only at granule boundaries of the chunk file, so that a split never cuts a granule between
/// two messages.
///
/// # Errors
/// Returns the errors of [`pieces`].
pub(crate) fn plan(
    pattern: &StripePattern,
    range: Range<u64>,
    max_bytes: u64,
) -> Result<Vec<Piece>> {
    let mut plan: Vec<Piece> = Vec::new();
    for piece in pieces(pattern, range)? {
        match plan.last_mut() {
            Some(last) if continues(last, &piece) => last.length += piece.length,
            _ => plan.push(piece),
        }
    }
    if plan.iter().all(|piece| piece.length <= max_bytes) {
        return Ok(plan);
    }
    Ok(plan.into_iter().flat_map(|piece| cut(piece, max_bytes)).collect())
}

/// Returns whether `next`, the next piece in the file, also directly follows `last` in the same
/// chunk file.
fn continues(last: &Piece, next: &Piece) -> bool {
    (last.component, last.index) == (next.component, next.index)
        && last.offset_in_chunk_file + last.length == next.offset_in_chunk_file
}

fn cut(mut rest: Piece, max_bytes: u64) -> impl Iterator<Item = Piece> {
    std::iter::from_fn(move || {
        if rest.length == 0 {
            return None;
        }
        let left = max_bytes - rest.offset_in_chunk_file % GRANULE_BYTES;
        let part = Piece { length: rest.length.min(left), ..rest };
        rest.offset_in_chunk_file += part.length;
        rest.offset_in_range += part.length;
        rest.length -= part.length;
        Some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::{Chooser, Component, GroupId, PatternOrigin, Redundancy};

    fn pattern(width: u32) -> StripePattern {
        let component = Component {
            start: 0,
            chunk_bytes: 64 << 10,
            wanted: width as u16,
            redundancy: Redundancy::Stripe,
            chooser: Chooser::Balanced,
            groups: (1..=width).map(GroupId::new).collect(),
        };
        StripePattern { generation: 1, origin: PatternOrigin::Cluster, components: vec![component] }
    }

    fn lengths(width: u32, range: Range<u64>, max_bytes: u64) -> Vec<(u16, u64)> {
        let plan = plan(&pattern(width), range, max_bytes).unwrap();
        plan.iter().map(|piece| (piece.index, piece.length)).collect()
    }

    #[test]
    fn adjacent_chunks_of_one_chunk_file_are_one_request() {
        assert_eq!(lengths(1, 100..300_000, 1 << 20), [(0, 299_900)]);
        assert_eq!(lengths(2, 0..196_608, 1 << 20), [(0, 65_536), (1, 65_536), (0, 65_536)]);
        assert_eq!(lengths(2, 5..5, 1 << 20), []);
    }

    #[test]
    fn long_pieces_are_split_at_granules_and_cover_the_range() {
        assert_eq!(lengths(1, 100..20_000, 8192), [(0, 8092), (0, 8192), (0, 3616)]);
        let mut at = 0;
        for piece in plan(&pattern(3), 12_345..777_777, 4096).unwrap() {
            assert_eq!(piece.offset_in_range, at);
            assert!(at == 0 || piece.offset_in_chunk_file % GRANULE_BYTES == 0);
            at += piece.length;
        }
        assert_eq!(at, 777_777 - 12_345);
    }
}
