//! The order of the runs. This module divides the list of runs into blocks, and shuffles the
//! blocks.
//!
//! The order depends only on the seed in the plan and on the generator in this module. For this
//! reason, a resumed study continues in its original order, even with a later version of the
//! program.

use crate::plan::{Condition, Plan};
use skep_types::random::SplitMix64;
use std::time::Duration;

/// One run of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Index of the run in the list of all runs, counted from 0. A number always identifies the
    /// same run of a plan.
    pub number: u32,
    /// Index of the block to which the run belongs.
    pub block: u32,
    /// Name of the experiment to which the run belongs.
    pub experiment: String,
    /// The repetition of the condition, counted from 1.
    pub repetition: u32,
    /// The condition of the run.
    pub condition: Condition,
}

/// Returns the runs of a plan, in the order in which the plan lists experiments, conditions and
/// repetitions.
pub fn list(plan: &Plan) -> Vec<Run> {
    let mut runs = Vec::new();
    for (experiment, condition) in plan.conditions() {
        for repetition in 1..=experiment.repetitions {
            let number = runs.len() as u32;
            runs.push(Run {
                number,
                block: number / plan.block,
                experiment: experiment.name.clone(),
                repetition,
                condition: condition.clone(),
            });
        }
    }
    runs
}

/// Returns the blocks of a plan in the order in which they run. Each block has a random number from
/// 0 to 1, from which [`wait`] computes the wait before this block.
pub fn blocks(plan: &Plan) -> Vec<(f64, Vec<Run>)> {
    let runs = list(plan);
    let mut blocks: Vec<Vec<Run>> = runs.chunks(plan.block as usize).map(<[Run]>::to_vec).collect();
    let mut random = Random::new(plan.seed);
    // The Fisher-Yates shuffle gives every order the same probability.
    for end in (1..blocks.len()).rev() {
        blocks.swap(end, random.below(end as u64 + 1) as usize);
    }
    blocks.into_iter().map(|block| (random.share(), block)).collect()
}

/// Returns a wait between the shortest (for `share` = 0) and the longest (for `share` = 1).
pub fn wait((least, most): (Duration, Duration), share: f64) -> Duration {
    least + most.saturating_sub(least).mul_f64(share.clamp(0.0, 1.0))
}

/// Random numbers from a seed. Different versions of the program must produce the same numbers.
#[derive(Debug, Clone)]
pub(crate) struct Random(SplitMix64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    /// Returns a random number that is less than `end`, which must not be zero. The numbers are
    /// uniform except for the modulo bias of 64 bits, which is negligible.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0.below(end)
    }

    /// Returns a random number from 0 (inclusive) to 1 (exclusive).
    pub(crate) fn share(&mut self) -> f64 {
        (self.0.number() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn plan(seed: u64, repetitions: u32) -> Plan {
        let text = format!(
            "name = 'x'\ntitle = 'x'\nseed = {seed}\nrepetitions = {repetitions}\n\
             [factors]\ndata-size = '64MiB'\nhosts = [1, 2]\ncount = [1, 2, 3]\n\
             [[experiment]]\nname = 'a'\ntitle = 'a'\n"
        );
        Plan::parse(&text).expect("a plan")
    }

    #[test]
    fn each_run_is_in_exactly_one_block_of_at_most_ten() {
        let blocks = blocks(&plan(1, 7));
        assert_eq!(blocks.len(), 5);
        let numbers: BTreeSet<u32> =
            blocks.iter().flat_map(|(_, runs)| runs).map(|run| run.number).collect();
        assert_eq!(numbers, (0..42).collect());
        for (share, runs) in &blocks {
            assert!(runs.len() == 10 || runs[0].number == 40, "{runs:?}");
            assert!(runs.windows(2).all(|pair| pair[1].number == pair[0].number + 1));
            assert!((0.0..1.0).contains(share));
        }
    }

    #[test]
    fn the_seed_determines_the_order_of_blocks() {
        let order = |seed| -> Vec<u32> {
            blocks(&plan(seed, 40)).iter().map(|(_, runs)| runs[0].block).collect()
        };
        assert_eq!(order(7), order(7));
        assert_ne!(order(7), order(8));
        assert_ne!(order(7), (0..24).collect::<Vec<_>>(), "blocks are shuffled");
    }

    #[test]
    fn each_block_comes_first_equally_often() {
        let mut first = [0_u32; 6];
        for seed in 0..3000 {
            let blocks = blocks(&plan(seed, 10));
            first[blocks[0].1[0].block as usize] += 1;
        }
        assert!(first.iter().all(|times| (400..600).contains(times)), "{first:?}");
    }

    #[test]
    fn random_waits_lie_within_their_bounds() {
        let bounds = (Duration::from_secs(60), Duration::from_secs(1800));
        assert_eq!(wait(bounds, 0.0), bounds.0);
        assert_eq!(wait(bounds, 1.0), bounds.1);
        assert_eq!(wait(bounds, 0.5), Duration::from_secs(930));
    }
}
