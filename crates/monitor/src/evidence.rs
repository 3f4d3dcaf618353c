//! The evidence for causes of slowness in the last minutes. The evidence is in memory only.
//!
//! The findings use only the newest seconds, so that a finding begins and ends within seconds of
//! its cause. Older evidence is added up in pieces of ten seconds, so that the monitor can explain
//! past minutes. The rules are in `skep_stats::why`.

use crate::limits::{EVIDENCE_PIECE_MS, EVIDENCE_PIECES, FINDING_WINDOW_MS};
use skep_stats::balance::{WorkByTarget, add_work};
use skep_stats::why::Evidence;
use std::collections::VecDeque;

/// The evidence of a time span.
#[derive(Debug)]
struct Piece {
    ended_ms: u64,
    evidence: Evidence,
}

/// The evidence of the last minutes.
#[derive(Debug, Default)]
pub(crate) struct EvidenceBook {
    /// One piece for each round in the window of findings.
    newest: VecDeque<Piece>,
    /// Pieces of ten seconds. The pieces also contain the newest rounds.
    pieces: VecDeque<Piece>,
}

impl EvidenceBook {
    /// Adds the evidence of a round that ended at `now_ms`.
    pub(crate) fn add(&mut self, now_ms: u64, evidence: Evidence) {
        let slot = |ms: u64| ms / EVIDENCE_PIECE_MS;
        // If the clock has been set back, the times of older evidence are in the future. The
        // monitor would use such evidence as the newest evidence until the clock has reached these
        // times.
        self.pieces.retain(|piece| piece.ended_ms <= now_ms);
        self.newest.retain(|piece| piece.ended_ms <= now_ms);
        match self.pieces.back_mut() {
            Some(last) if slot(last.ended_ms) == slot(now_ms) => last.evidence.add(&evidence),
            _ => self.pieces.push_back(Piece { ended_ms: now_ms, evidence: evidence.clone() }),
        }
        while self.pieces.len() > EVIDENCE_PIECES {
            self.pieces.pop_front();
        }
        self.newest.push_back(Piece { ended_ms: now_ms, evidence });
        self.newest.retain(|piece| piece.ended_ms + FINDING_WINDOW_MS > now_ms);
    }

    /// Returns the evidence for the current findings.
    pub(crate) fn newest(&self) -> Evidence {
        sum(self.newest.iter())
    }

    /// Returns the evidence of the last `span_ms` milliseconds, rounded up to whole pieces.
    pub(crate) fn of_span(&self, now_ms: u64, span_ms: u64) -> Evidence {
        sum(self.pieces_of(now_ms, span_ms))
    }

    /// Returns the work of all targets in the last `span_ms` milliseconds, rounded up to whole
    /// pieces. This function takes far less time than [`Self::of_span`].
    pub(crate) fn work(&self, now_ms: u64, span_ms: u64) -> WorkByTarget {
        let mut work = WorkByTarget::new();
        self.pieces_of(now_ms, span_ms).for_each(|piece| add_work(&mut work, &piece.evidence));
        work
    }

    fn pieces_of(&self, now_ms: u64, span_ms: u64) -> impl Iterator<Item = &Piece> {
        let from = now_ms.saturating_sub(span_ms) / EVIDENCE_PIECE_MS;
        self.pieces.iter().filter(move |piece| piece.ended_ms / EVIDENCE_PIECE_MS >= from)
    }
}

fn sum<'a>(pieces: impl Iterator<Item = &'a Piece>) -> Evidence {
    let mut sum = Evidence::default();
    pieces.for_each(|piece| sum.add(&piece.evidence));
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second() -> Evidence {
        Evidence { span_ns: 1_000_000_000, ..Evidence::default() }
    }

    #[test]
    fn evidence_of_slowness_covers_a_limited_time() {
        let mut book = EvidenceBook::default();
        let end = 2 * EVIDENCE_PIECES as u64 * EVIDENCE_PIECE_MS;
        for now_ms in (1_000..=end).step_by(1_000) {
            book.add(now_ms, second());
        }
        assert_eq!(book.newest().span_ns, FINDING_WINDOW_MS * 1_000_000);
        assert_eq!(book.pieces.len(), EVIDENCE_PIECES);
        let minute = book.of_span(end, 60_000).span_ns / 1_000_000_000;
        assert!((60..=70).contains(&minute), "{minute}");
        // Simulate that the monitor was suspended for ten minutes. The monitor then has no evidence
        // about this time.
        book.add(end + 600_000, second());
        assert_eq!(book.newest().span_ns, 1_000_000_000);
        // The clock is set back by ten minutes.
        book.add(end, second());
        assert_eq!(book.newest().span_ns, 1_000_000_000);
        assert!(book.pieces.iter().all(|piece| piece.ended_ms <= end));
    }
}
