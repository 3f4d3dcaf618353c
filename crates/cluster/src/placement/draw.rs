//! The draws of the balanced policy. The draws for consecutive seeds form low-discrepancy
//! sequences. This module also takes weighted samples from servers and groups.
//!
//! Does not own the division of groups among servers and failure domains ([`super::balanced`],
//! [`super::domains`]).

use super::{mix, scale};
use skep_types::GroupId;

/// Steps of the sequences. Each kind of draw has its own step, so that the draws are independent.
/// The steps are the powers of the inverse of the root of x^5 = x + 1 (Roberts' generalisation of
/// the golden ratio), times 2^64.
pub(super) const STEP_SERVER: u64 = 0xDB4F_0B91_75AE_2165;
pub(super) const STEP_GROUP: u64 = 0xBBE0_5633_03A4_615F;
pub(super) const STEP_FIRST_SERVER: u64 = 0xA0F2_EC75_A1FE_1575;
const STEP_FIRST_GROUP: u64 = 0x89E1_8285_7D9E_D689;

/// Binary logarithm of the number of consecutive seeds in a block. All seeds of one block divide
/// the ring at the same points. Each block divides the ring at other points, so that each
/// combination of groups occurs at some time.
const BLOCK_BITS: u32 = 6;

/// The groups of one server in one tier.
#[derive(Debug, Clone, Default)]
pub(super) struct Server {
    pub(super) groups: Vec<GroupId>,
    /// Running sums of the weights of `groups`, in the same order.
    pub(super) sums: Vec<u64>,
}

/// A sequence of points in [0, 1), represented as fractions of 2^64.
#[derive(Clone, Copy)]
pub(super) struct Draw {
    pub(super) seed: u64,
    pub(super) step: u64,
    pub(super) salt: u64,
}

impl Draw {
    /// Returns the point of a stratum. Within a block of seeds, the points of one stratum are
    /// equidistant modulo 1. Different blocks, strata and salts have unrelated origins.
    pub(super) fn point(&self, stratum: u64) -> u64 {
        let block = self.seed >> BLOCK_BITS;
        let origin = mix(block ^ mix(self.salt.wrapping_mul(0x1_0001) ^ self.step ^ stratum << 32));
        origin.wrapping_add(self.seed.wrapping_mul(self.step))
    }
}

/// Fills `picks` with different indices. The probability of an index is proportional to its weight.
/// `sums` contains the running sums of the weights.
///
/// The sample is stratified. The weights form a ring, which is divided into equal strata, and one
/// index is drawn from each stratum. So neighbours are drawn together less often than in
/// independent draws, and every series of seeds uses the indices evenly. If two strata draw the
/// same index, the second one takes the next free index.
pub(super) fn sample(sums: &[u64], draw: Draw, picks: &mut [u32]) {
    let items = sums.len();
    let strata = picks.len() as u64;
    let total = sums.last().copied().unwrap_or(0);
    let turn = mix(draw.seed >> BLOCK_BITS ^ draw.salt.wrapping_mul(draw.step));
    let first = scale(Draw { step: STEP_FIRST_GROUP, ..draw }.point(0), strata);
    for index in 0..strata {
        let stratum = (first + index) % strata;
        // Each stratum is 2^64 / `strata` wide. The sum wraps around the ring intentionally.
        let within = draw.point(stratum) / strata;
        let start = (u128::from(stratum) << 64) / u128::from(strata);
        let at = scale(turn.wrapping_add(start as u64).wrapping_add(within), total);
        let mut item = sums.partition_point(|sum| *sum <= at);
        let (taken, free) = picks.split_at_mut(index as usize);
        while taken.contains(&(item as u32)) {
            item = (item + 1) % items;
        }
        free[0] = item as u32;
    }
}
