//! Computes the offsets at which each process reads or writes, in order. This module does no I/O.

use super::plan::Plan;
use crate::random::{Permutation, mix};

/// The transfers of one process. Each transfer is given by its offset in the file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Transfers {
    transfer: u64,
    block: u64,
    /// Distance in bytes from one block of this process to its next block.
    stride: u64,
    /// Offset of the first block of this process.
    start: u64,
    count: u64,
    order: Option<Permutation>,
}

/// Returns the rank whose data a process reads. With the option `-C`, this rank is the next rank.
/// The next rank runs on the next host, because the launcher assigns ranks to the hosts in turn.
pub(crate) fn reads_data_of(plan: &Plan, rank: u32, processes: u32) -> u32 {
    if plan.reorder { (rank + 1) % processes } else { rank }
}

impl Transfers {
    /// Returns the transfers that cover the data of the rank `data_of`.
    pub(crate) fn of(plan: &Plan, data_of: u32, processes: u32) -> Self {
        let (rank, processes) = (u64::from(data_of), u64::from(processes));
        let count = plan.block_bytes / plan.transfer_bytes * plan.segments;
        let (stride, start) = match plan.file_per_process {
            true => (plan.block_bytes, 0),
            false => (plan.block_bytes * processes, plan.block_bytes * rank),
        };
        let order = plan.random.then(|| Permutation::new(count, plan.seed ^ mix(rank)));
        Self { transfer: plan.transfer_bytes, block: plan.block_bytes, stride, start, count, order }
    }

    /// Returns the offsets of all transfers, in the order in which the process does them.
    pub(crate) fn offsets(self) -> impl Iterator<Item = u64> {
        let per_block = self.block / self.transfer;
        (0..self.count).map(move |index| {
            let place = self.order.map_or(index, |order| order.at(index));
            let (segment, transfer) = (place / per_block, place % per_block);
            segment * self.stride + self.start + transfer * self.transfer
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn offsets(plan: &Plan, rank: u32, processes: u32) -> Vec<u64> {
        Transfers::of(plan, rank, processes).offsets().collect()
    }

    proptest! {
        /// All processes together write each byte exactly once, and no byte beyond the end of the
        /// file. The guarantee holds for any order of transfers, for one shared file (N-1) and for
        /// one file per process (N-N).
        #[test]
        fn processes_together_write_each_byte_of_a_file_once(
            per_block in 1_u64..5,
            segments in 1_u64..5,
            processes in 1_u32..6,
            random: bool,
            file_per_process: bool,
            seed: u64,
        ) {
            let plan = Plan {
                transfer_bytes: 16,
                block_bytes: 16 * per_block,
                segments,
                random,
                file_per_process,
                seed,
                ..Plan::default()
            };
            let of_rank = |rank| offsets(&plan, rank, processes);
            let all: Vec<Vec<u64>> = (0..processes).map(of_rank).collect();
            let files = if file_per_process { all } else { vec![all.concat()] };
            let bytes = plan.total_bytes(processes).unwrap() / files.len() as u64;
            for mut offsets in files {
                offsets.sort_unstable();
                prop_assert_eq!(offsets, (0..bytes).step_by(16).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn segments_have_the_same_offsets_as_in_ior() {
        let mut plan = Plan { transfer_bytes: 8, block_bytes: 16, segments: 2, ..Plan::default() };
        // Segment 0 has the blocks of ranks 0, 1 and 2. Segment 1 follows.
        assert_eq!(offsets(&plan, 1, 3), [16, 24, 64, 72]);
        plan.file_per_process = true;
        assert_eq!(offsets(&plan, 1, 3), [0, 8, 16, 24]);
    }

    #[test]
    fn random_offsets_depend_only_on_seed_and_rank() {
        let plan = Plan {
            transfer_bytes: 8,
            block_bytes: 8 * 64,
            random: true,
            file_per_process: true,
            ..Plan::default()
        };
        assert_eq!(offsets(&plan, 0, 2), offsets(&plan, 0, 2));
        assert_ne!(offsets(&plan, 0, 2), offsets(&plan, 1, 2));
        assert_ne!(offsets(&plan, 0, 2), (0..512).step_by(8).collect::<Vec<_>>());
    }

    #[test]
    fn reorder_option_makes_each_rank_read_data_of_the_next_rank() {
        let mut plan = Plan::default();
        assert_eq!(reads_data_of(&plan, 3, 4), 3);
        plan.reorder = true;
        let of: Vec<u32> = (0..4).map(|rank| reads_data_of(&plan, rank, 4)).collect();
        assert_eq!(of, [1, 2, 3, 0]);
        assert_eq!(reads_data_of(&plan, 0, 1), 0);
    }
}
