//! Finds a warm-up: the first run of a block, which follows a run of another condition or a pause,
//! is slower than the other runs of the block.

use super::{Conclusion, Figure, number, percent};
use crate::journal::Contents;
use crate::record::{Record, RunRecord, Settings};
use crate::statistics::Summary;
use skep_bench::statistics::{FirstValue, is_as_low_as_a_warm_up};
use std::collections::BTreeMap;

/// Smallest number of blocks from which a warm-up can be concluded.
const LEAST_BLOCKS: usize = 4;

/// Returns the conclusion about a warm-up. `None` means that the runs show no warm-up. A warm-up
/// requires at least [`LEAST_BLOCKS`] blocks, and in more than half of the blocks, the first run
/// must be the slowest run. In the median of the blocks, the first run must be slower than the
/// other runs of the block by at least 5 %.
pub(super) fn draw(contents: &Contents) -> Option<Conclusion> {
    let mut blocks: BTreeMap<(u32, &Settings), BTreeMap<u32, &RunRecord>> = BTreeMap::new();
    for record in &contents.records {
        let Record::Run(run) = record else { continue };
        // A repetition of an invalid run is not in its place in the block, so only the first record
        // of each run counts.
        blocks.entry((run.block, &run.settings)).or_default().entry(run.run).or_insert(run);
    }
    let firsts: Vec<FirstValue> = blocks.values().filter_map(first_run).collect();
    let slowest = firsts.iter().filter(|it| it.is_lowest).count();
    if firsts.len() < LEAST_BLOCKS || slowest * 2 <= firsts.len() {
        return None;
    }
    let shares: Vec<f64> = firsts.iter().map(|it| it.below).collect();
    let below = Summary::of(&shares)?.median;
    if !is_as_low_as_a_warm_up(below) {
        return None;
    }
    let text = format!(
        "The first run of a block is slower, as in a warm-up: in {slowest} of {} blocks it is the \
         slowest run, and in the median of the blocks it is {:.0} % below the other runs. The \
         first runs lower the means; with larger blocks, fewer of the runs are first runs.",
        firsts.len(),
        below * 100.0
    );
    let figures: Vec<Figure> = vec![
        number("blocks with three runs or more", firsts.len() as f64),
        number("blocks whose first run is the slowest", slowest as f64),
        percent("first run below the others, median of the blocks", below),
    ];
    Some(Conclusion { about: "warm-up", experiment: "all experiments".to_owned(), text, figures })
}

/// Compares the first run of a block with the other runs. `None` means that the first run is
/// invalid, or that fewer than two other runs of the block are valid.
fn first_run(runs: &BTreeMap<u32, &RunRecord>) -> Option<FirstValue> {
    let (_, first) = runs.first_key_value()?;
    let valid = runs.values().filter(|run| run.is_valid);
    let values: Vec<f64> = valid.map(|run| run.value()).collect();
    first.is_valid.then(|| FirstValue::of(&values)).flatten()
}
