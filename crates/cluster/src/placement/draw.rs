//! The draws of the balanced policy: low-discrepancy sequences in a file's seed, samples in
//! proportion to weights, and the servers from which the policy draws.
//!
//! Does not own the shares of servers and failure domains ([`super::balanced`],
//! [`super::domains`]).

use super::{mix, scale};
use skep_types::GroupId;

/// Different sequences for the different draws, so that they are independent: the powers of the
/// inverse root of x^5 = x + 1 (Roberts' generalisation of the golden ratio), times 2^64.
pub(super) const STEP_SERVER: u64 = 0xDB4F_0B91_75AE_2165;
pub(super) const STEP_GROUP: u64 = 0xBBE0_5633_03A4_615F;
pub(super) const STEP_FIRST_SERVER: u64 = 0xA0F2_EC75_A1FE_1575;
const STEP_FIRST_GROUP: u64 = 0x89E1_8285_7D9E_D689;

/// Consecutive seeds that share their strata; the next block has others, so that over time each
/// combination of groups occurs.
const BLOCK_BITS: u32 = 6;

/// The groups of one server in one tier.
#[derive(Debug, Clone, Default)]
pub(super) struct Server {
    pub(super) groups: Vec<GroupId>,
    /// Running sum of the groups' weights.
    pub(super) sums: Vec<u64>,
}

/// A sequence of points in [0, 1), as fractions of 2^64.
#[derive(Clone, Copy)]
pub(super) struct Draw {
    pub(super) seed: u64,
    pub(super) step: u64,
    pub(super) salt: u64,
}

impl Draw {
    /// Returns the point of a stratum. Within a block of seeds the points of one stratum are
    /// equidistant. Blocks, strata and salts have unrelated origins.
    pub(super) fn point(&self, stratum: u64) -> u64 {
        let block = self.seed >> BLOCK_BITS;
        let origin = mix(block ^ mix(self.salt.wrapping_mul(0x1_0001) ^ self.step ^ stratum << 32));
        origin.wrapping_add(self.seed.wrapping_mul(self.step))
    }
}

/// Draws `picks.len()` different indices, in proportion to their weights (the differences of
/// `sums`).
///
/// Stratified: the weights lie on a ring of equal strata, and each stratum gives one pick. So
/// neighbours are drawn together less often than by pure chance, and every run of seeds is even. If
/// two strata hit the same item, the second one takes the next free item.
pub(super) fn sample(sums: &[u64], draw: Draw, picks: &mut [u32]) {
    let items = sums.len();
    let strata = picks.len() as u64;
    let total = sums.last().copied().unwrap_or(0);
    let turn = mix(draw.seed >> BLOCK_BITS ^ draw.salt.wrapping_mul(draw.step));
    let first = scale(Draw { step: STEP_FIRST_GROUP, ..draw }.point(0), strata);
    for index in 0..strata {
        let stratum = (first + index) % strata;
        // A stratum is 2^64 / strata wide. The sum wraps around the ring on purpose.
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
