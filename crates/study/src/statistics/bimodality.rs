//! A test that decides whether a sample has two modes, which are two groups of values with a gap
//! between them.
//!
//! The test fits one normal distribution, and a mixture of two normal distributions, and compares
//! the two fits by the Bayesian information criterion. The test also requires a minimum of Ashman's
//! D, which is the distance between the two means in units of the standard deviations. This second
//! condition is needed because a skewed sample with one mode also fits two overlapping
//! distributions better than one distribution.

use super::{mean, sorted, variance};
use serde::Serialize;

/// Minimum number of values in a sample for the test.
const MIN_VALUES: usize = 8;
/// Minimum difference between the information criteria of one distribution and of a mixture of two.
/// Only a sample whose difference exceeds this minimum counts as having two modes. Kass and Raftery
/// call this "very strong" evidence.
const MIN_EVIDENCE: f64 = 10.0;
/// Minimum of Ashman's D. Below 2, two distributions have no gap between them (Ashman, Bird and
/// Zepf). Below 4, the test would take the two halves of a uniform distribution for two modes
/// (measured by the tests below).
const MIN_SEPARATION: f64 = 4.0;
/// Minimum fraction of the values that must be in each mode. A group with fewer values consists of
/// outliers.
const MIN_SHARE: f64 = 0.1;
/// Minimum number of values that must be in each mode. A group with fewer values consists of
/// outliers.
const MIN_IN_MODE: f64 = 1.5;
/// Minimum distance between the means of two modes, as a fraction of the lower mean. A smaller
/// difference may exist, but has no practical meaning.
const MIN_DISTANCE: f64 = 0.05;
/// Minimum standard deviation of a mode, as a fraction of the standard deviation of the sample.
/// Without this minimum, an infinitely narrow mode at a single value would give the best fit.
const MIN_WIDTH: f64 = 0.05;
const MAX_STEPS: usize = 500;

/// One of the two groups of values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Mode {
    /// Mean of the mode.
    pub mean: f64,
    /// Standard deviation of the mode.
    pub sd: f64,
    /// Fraction of all values that are in the mode, from 0 to 1.
    pub share: f64,
}

/// The result of a test for two modes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Bimodality {
    /// Whether the sample has two modes.
    pub is_bimodal: bool,
    /// The advantage of two distributions over one distribution, in the Bayesian information
    /// criterion.
    pub evidence: f64,
    /// Ashman's D: the distance between the two means in units of the standard deviations.
    pub separation: f64,
    /// The two distributions, with the lower mean first.
    pub modes: [Mode; 2],
}

/// Tests whether a sample has two modes. Returns `None` if the sample has fewer than 8 values, or
/// if all values are equal.
pub fn bimodality(values: &[f64]) -> Option<Bimodality> {
    let values = sorted(values);
    let sd = variance(&values).sqrt();
    if values.len() < MIN_VALUES || sd <= 0.0 {
        return None;
    }
    let count = values.len() as f64;
    // The variance is the maximum-likelihood estimate (divided by n), because the fit of the
    // mixture uses the same estimate.
    let one = Mode { mean: mean(&values), sd: sd * ((count - 1.0) / count).sqrt(), share: 1.0 };
    let modes = fit(&values, split(&values), MIN_WIDTH * sd);
    let likelihood =
        |modes: &[Mode]| -> f64 { values.iter().map(|it| density(modes, *it).ln()).sum() };
    // A mixture of two distributions has five parameters, and a single distribution has two.
    let evidence = 2.0 * (likelihood(&modes) - likelihood(&[one])) - 3.0 * count.ln();
    let spread = modes[0].sd.powi(2) + modes[1].sd.powi(2);
    let separation = (modes[1].mean - modes[0].mean) * (2.0 / spread).sqrt();
    let is_bimodal = evidence > MIN_EVIDENCE
        && separation > MIN_SEPARATION
        && modes[1].mean - modes[0].mean > MIN_DISTANCE * modes[0].mean.abs()
        && modes.iter().all(|it| it.share >= MIN_SHARE && it.share * count >= MIN_IN_MODE);
    Some(Bimodality { is_bimodal, evidence, separation, modes })
}

/// Splits a sample into two groups so that the sum of squares within the groups is smallest. In one
/// dimension, these two groups are the optimal two clusters.
fn split(sorted: &[f64]) -> [Mode; 2] {
    let within = |part: &[f64]| variance(part) * (part.len() - 1) as f64;
    let cost = |at: &usize| within(&sorted[..*at]) + within(&sorted[*at..]);
    let best = (1..sorted.len()).min_by(|one, two| cost(one).total_cmp(&cost(two))).unwrap_or(1);
    let mode = |part: &[f64]| Mode {
        mean: mean(part),
        sd: variance(part).sqrt(),
        share: part.len() as f64 / sorted.len() as f64,
    };
    [mode(&sorted[..best]), mode(&sorted[best..])]
}

/// Fits a mixture of two normal distributions by expectation maximisation, starting from `modes`.
fn fit(values: &[f64], mut modes: [Mode; 2], least_sd: f64) -> [Mode; 2] {
    for mode in &mut modes {
        mode.sd = mode.sd.max(least_sd);
    }
    for _ in 0..MAX_STEPS {
        let lower: Vec<f64> = values
            .iter()
            .map(|value| density(&modes[..1], *value) / density(&modes, *value))
            .collect();
        let upper: Vec<f64> = lower.iter().map(|share| 1.0 - share).collect();
        let next = [weighted(values, &lower, least_sd), weighted(values, &upper, least_sd)];
        let moved = |index: usize| (next[index].mean - modes[index].mean).abs();
        let is_still = moved(0) + moved(1) < 1e-6 * least_sd;
        modes = next;
        if is_still {
            break;
        }
    }
    if modes[0].mean > modes[1].mean { [modes[1], modes[0]] } else { modes }
}

fn weighted(values: &[f64], weights: &[f64], least_sd: f64) -> Mode {
    let weight = weights.iter().sum::<f64>().max(f64::MIN_POSITIVE);
    let sum = |of: &dyn Fn(f64) -> f64| -> f64 {
        values.iter().zip(weights).map(|(value, weight)| weight * of(*value)).sum()
    };
    let mean = sum(&|value| value) / weight;
    let variance = sum(&|value| (value - mean).powi(2)) / weight;
    Mode { mean, sd: variance.sqrt().max(least_sd), share: weight / values.len() as f64 }
}

/// Returns the density of a mixture at `value`. The density is never 0, so that its logarithm is
/// finite.
fn density(modes: &[Mode], value: f64) -> f64 {
    let of = |mode: &Mode| {
        let distance = (value - mode.mean) / mode.sd;
        mode.share * (-0.5 * distance * distance).exp() / (mode.sd * std::f64::consts::TAU.sqrt())
    };
    modes.iter().map(of).sum::<f64>().max(f64::MIN_POSITIVE)
}

#[cfg(test)]
mod tests {
    use super::super::samples::normal;
    use super::*;
    use crate::order::Random;

    fn share_bimodal(tries: usize, mut sample: impl FnMut() -> Vec<f64>) -> f64 {
        let is_bimodal = |values: Vec<f64>| bimodality(&values).is_some_and(|it| it.is_bimodal);
        (0..tries).filter(|_| is_bimodal(sample())).count() as f64 / tries as f64
    }

    #[test]
    fn samples_of_one_mode_are_not_bimodal() {
        let mut random = Random::new(5);
        for size in [8, 10, 20, 50, 100] {
            let share = share_bimodal(300, || normal(&mut random, size, 1e9, 3e7));
            assert!(share < 0.03, "normal, {size}: {share}");
            let share = share_bimodal(300, || (0..size).map(|_| random.share()).collect());
            assert!(share < 0.06, "uniform, {size}: {share}");
        }
        let skewed = || (0..50).map(|_| 10.0 - (1.0 - random.share()).ln()).collect();
        let share = share_bimodal(300, skewed);
        assert!(share < 0.1, "skewed: {share}");
        let mut one_outlier =
            vec![100.0, 101.0, 99.0, 100.5, 99.5, 100.2, 99.8, 100.1, 99.9, 100.3];
        one_outlier.extend([100.4, 99.6, 100.0]);
        one_outlier.push(50.0);
        assert!(
            !bimodality(&one_outlier).expect("the sample suffices for a result").is_bimodal,
            "an outlier is no mode"
        );
        let of_ten = [94.5, 94.6, 94.5, 94.4, 94.5, 94.6, 94.5, 94.5, 94.6, 70.0];
        assert!(
            !bimodality(&of_ten).expect("the sample suffices for a result").is_bimodal,
            "one outlier among ten values is no mode"
        );
        let exact = [94.5, 94.5, 94.6, 94.5, 94.5, 95.1, 95.1, 95.2, 95.1, 95.1];
        assert!(
            !bimodality(&exact).expect("the sample suffices for a result").is_bimodal,
            "the modes differ too little"
        );
    }

    #[test]
    fn sample_with_two_modes_is_bimodal() {
        let mut random = Random::new(6);
        for size in [10, 20, 50, 100] {
            let share = share_bimodal(200, || {
                let mut values = normal(&mut random, size / 2, 48.0, 1.0);
                values.extend(normal(&mut random, size - size / 2, 96.0, 2.0));
                values
            });
            assert!(share > 0.99, "{size}: {share}");
        }
        // Each sample is like the results of files on three targets with two different allocations.
        // The means of the two allocations differ by a third, and the values vary as on a system
        // with other users.
        let share = share_bimodal(200, || {
            let mut values = normal(&mut random, 50, 48.0, 2.0);
            values.extend(normal(&mut random, 50, 72.0, 3.0));
            values
        });
        assert!(share > 0.98, "{share}");
        let mut values = normal(&mut random, 30, 48.0, 1.0);
        values.extend(normal(&mut random, 70, 96.0, 1.0));
        let [low, high] = bimodality(&values).expect("the sample suffices for a result").modes;
        assert!((low.mean - 48.0).abs() < 1.0 && (low.share - 0.3).abs() < 0.02, "{low:?}");
        assert!((high.mean - 96.0).abs() < 1.0 && (high.sd - 1.0).abs() < 0.4, "{high:?}");
    }

    #[test]
    fn too_few_distinct_values_give_no_bimodality_result() {
        assert_eq!(bimodality(&[1.0; 50]), None);
        assert_eq!(bimodality(&[1.0, 1.0, 2.0, 2.0]), None);
        let exact: Vec<f64> = (0..20).map(|it| f64::from(1 + it % 2)).collect();
        assert!(
            bimodality(&exact).expect("the sample suffices for a result").is_bimodal,
            "each of two values is a mode"
        );
    }
}
