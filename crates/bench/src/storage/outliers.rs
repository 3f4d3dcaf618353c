//! Finds targets that are slower than the other targets, each with the confidence of this verdict.
//!
//! The module compares the median of a target with the median of all other targets, and also
//! reports the difference in units of the median absolute deviation. A few slow targets hardly
//! affect the medians or this deviation. The Mann-Whitney test assumes that all samples come from
//! one distribution. Under this assumption, the test computes how likely the target's samples are
//! at least as far below the other samples as the measured samples. This module multiplies the
//! probability by the number of targets, because each target could look slow by chance (Bonferroni
//! correction). The test does not assume a particular distribution of the rates.

use super::Outcome;
use crate::statistics::{median, median_deviation};
use serde::{Deserialize, Serialize};

/// The verdict on a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The target is as fast as the other targets, or the difference is too small to matter.
    Fine,
    /// The target is slower than the other targets, and the confidence in this verdict is
    /// sufficient.
    Slow,
    /// The target seems slower than the other targets, but the confidence is too low. More
    /// repetitions can decide.
    Unclear,
}

/// The verdict on a target in one phase.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// Id of the target.
    pub target: u32,
    /// The phase: `write` or `read`.
    pub phase: String,
    /// Number of measurements of the target.
    pub samples: usize,
    /// Median of the target's measurements, in MiB/s.
    pub median_mib_per_s: f64,
    /// How far the target's median is below m, as a fraction of m. Here m is the median of the
    /// other targets' medians. Negative if the target's median is higher than m.
    pub slower_by: f64,
    /// The difference between m and the target's median, in units of the median absolute deviation
    /// of all targets' medians. `None` if this deviation is zero.
    pub deviations: Option<f64>,
    /// Confidence that the target is slower than the other targets, by any amount. From 0 to 1.
    pub confidence: f64,
    /// The verdict that follows from `slower_by` and `confidence`.
    pub verdict: Verdict,
}

/// The thresholds for a slow target. A target counts as slow only if it reaches both thresholds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rules {
    /// The target must be slower than the other targets by at least this fraction, from 0 to 1.
    pub slower_by: f64,
    /// The confidence that the target is slower than the other targets must be at least this value,
    /// from 0 to 1.
    pub confidence: f64,
}

impl Default for Rules {
    fn default() -> Self {
        Self { slower_by: 0.1, confidence: 0.95 }
    }
}

/// Returns the verdicts on all targets in all phases that were measured.
pub fn judge(outcome: &Outcome, rules: Rules) -> Vec<Judged> {
    let mut judged = Vec::new();
    for phase in ["write", "read"] {
        let all: Vec<(u32, Vec<f64>)> = outcome
            .targets
            .iter()
            .map(|target| (target.id, outcome.bandwidths(target.id, phase)))
            .filter(|(_, samples)| !samples.is_empty())
            .collect();
        for index in 0..all.len() {
            judged.extend(judge_one(&all, index, phase, rules));
        }
    }
    judged
}

fn judge_one(all: &[(u32, Vec<f64>)], index: usize, phase: &str, rules: Rules) -> Option<Judged> {
    let samples: Vec<Vec<f64>> = all.iter().map(|(_, samples)| samples.clone()).collect();
    let found = compare(&samples, index, rules)?;
    Some(Judged {
        target: all[index].0,
        phase: phase.to_owned(),
        samples: found.samples,
        median_mib_per_s: found.median,
        slower_by: found.slower_by,
        deviations: found.deviations,
        confidence: found.confidence,
        verdict: found.verdict,
    })
}

/// The comparison of a measured object with the other objects.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    /// Number of measurements of the object.
    pub samples: usize,
    /// Median of the object's measurements.
    pub median: f64,
    /// How far the object's median is below m, as a fraction of m. Here m is the median of the
    /// other objects' medians. Negative if the object's median is higher than m.
    pub slower_by: f64,
    /// The difference between m and the object's median, in units of the median absolute deviation
    /// of all objects' medians. `None` if this deviation is zero.
    pub deviations: Option<f64>,
    /// Confidence that the object is slower than the other objects, by any amount. From 0 to 1.
    pub confidence: f64,
    /// The verdict that follows from `slower_by` and `confidence`.
    pub verdict: Verdict,
}

/// Compares the samples of the object at `index` with the samples of all other objects. Larger
/// values are better. Returns `None` if the object has no samples.
pub fn compare(all: &[Vec<f64>], index: usize, rules: Rules) -> Option<Compared> {
    let samples = &all[index];
    let medians: Vec<f64> = all.iter().filter_map(|samples| median(samples)).collect();
    let others = all.iter().enumerate().filter(|(other, _)| *other != index);
    let others: Vec<&Vec<f64>> = others.map(|(_, samples)| samples).collect();
    let medians_of_others: Vec<f64> = others.iter().filter_map(|it| median(it)).collect();
    let own = median(samples)?;
    let middle = median(&medians_of_others).unwrap_or(own);
    let spread = median_deviation(&medians).filter(|spread| *spread > 0.0);
    let pooled: Vec<f64> = others.into_iter().flatten().copied().collect();
    let chance = chance_of_being_so_low(samples, &pooled) * all.len() as f64;
    let slower_by = if middle > 0.0 { 1.0 - own / middle } else { 0.0 };
    let confidence = (1.0 - chance).clamp(0.0, 1.0);
    let verdict = match (slower_by >= rules.slower_by, confidence >= rules.confidence) {
        (false, _) => Verdict::Fine,
        (true, true) => Verdict::Slow,
        (true, false) => Verdict::Unclear,
    };
    Some(Compared {
        samples: samples.len(),
        median: own,
        slower_by,
        deviations: spread.map(|spread| (middle - own) / spread),
        confidence,
        verdict,
    })
}

/// The test considers all orders of the values if the product of the lengths of both lists is at
/// most this number. For longer lists, the test uses the normal distribution as an approximation.
const COUNTED_PAIRS: usize = 2_000;

/// Returns the p-value of the one-sided Mann-Whitney test. The p-value assumes that both lists come
/// from one distribution. It is the probability that the first list is at least as far below the
/// second list as observed. A tie counts as "not below".
fn chance_of_being_so_low(first: &[f64], second: &[f64]) -> f64 {
    let (n, m) = (first.len(), second.len());
    if n == 0 || m == 0 {
        return 1.0;
    }
    // Number of pairs in which the value from the first list is not below the value from the second
    // list. This number is zero if all values of the first list are below all values of the second
    // list.
    let pairs = first.iter().map(|own| second.iter().filter(|other| own >= other).count());
    let above: usize = pairs.sum();
    if n * m <= COUNTED_PAIRS {
        return share_of_orders(n, m, above);
    }
    let mean = (n * m) as f64 / 2.0;
    let deviation = ((n * m * (n + m + 1)) as f64 / 12.0).sqrt();
    normal_below((above as f64 + 0.5 - mean) / deviation)
}

/// Considers all orders of `n` values of a first list and `m` values of a second list. Returns the
/// fraction of these orders in which at most `above` pairs have the larger value in the first list.
fn share_of_orders(n: usize, m: usize, above: usize) -> f64 {
    // Of the values taken so far, `i` are from the first list. `shares[i][u]` is the fraction of
    // all orders of these values in which `u` pairs have the larger value in the first list.
    // Fractions are stored, because counts of orders would overflow any integer type.
    let mut shares = vec![vec![0.0; n * m + 1]; n + 1];
    shares[0][0] = 1.0;
    for taken in 1..=n + m {
        for own in (0..=n.min(taken)).rev() {
            let other = taken - own;
            if other > m {
                continue;
            }
            let total = taken as f64;
            let mut next = vec![0.0; n * m + 1];
            for (pairs, place) in next.iter_mut().enumerate() {
                // The largest value taken so far is either from the second list, or it is from the
                // first list and larger than all values of the second list.
                let of_second = if other > 0 { shares[own][pairs] * other as f64 } else { 0.0 };
                let of_first = match own > 0 && pairs >= other {
                    true => shares[own - 1][pairs - other] * own as f64,
                    false => 0.0,
                };
                *place = (of_second + of_first) / total;
            }
            shares[own] = next;
        }
    }
    shares[n][..=above.min(n * m)].iter().sum::<f64>().min(1.0)
}

/// Returns the cumulative distribution function of the standard normal distribution at `value`
/// (Abramowitz and Stegun 26.2.17, exact to 7 digits).
fn normal_below(value: f64) -> f64 {
    const FACTORS: [f64; 5] =
        [0.319_381_530, -0.356_563_782, 1.781_477_937, -1.821_255_978, 1.330_274_429];
    let t = 1.0 / (1.0 + 0.231_641_9 * value.abs());
    let sum = FACTORS.iter().rev().fold(0.0, |sum, factor| (sum + factor) * t);
    let tail = (-value * value / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt() * sum;
    if value < 0.0 { tail } else { 1.0 - tail }
}

#[cfg(test)]
mod tests {
    use super::super::{Plan, Sample, TargetRecord};
    use super::*;

    fn outcome(rates: &[&[f64]]) -> Outcome {
        let mut outcome = Outcome {
            plan: Plan::default(),
            started_unix_s: 0,
            targets: Vec::new(),
            samples: Vec::new(),
            failure: None,
        };
        for (id, rates) in (1..).zip(rates) {
            let (node_name, path) = ("s".into(), "/t".into());
            outcome.targets.push(TargetRecord { id, node: 1, node_name, path });
            for (repetition, rate) in (1..).zip(*rates) {
                outcome.samples.push(Sample {
                    target: id,
                    phase: "write".into(),
                    repetition,
                    bytes: 1,
                    seconds: 1.0,
                    bandwidth_mib_per_s: *rate,
                    is_direct: true,
                    threads: Vec::new(),
                });
            }
        }
        outcome
    }

    fn verdicts(rates: &[&[f64]]) -> Vec<Verdict> {
        let judged = judge(&outcome(rates), Rules::default());
        judged.iter().map(|it| it.verdict).collect()
    }

    #[test]
    fn only_slow_targets_are_reported() {
        use Verdict::{Fine, Slow, Unclear};
        let fine: &[f64] = &[100.0, 98.0, 103.0, 101.0, 99.0];
        let other: &[f64] = &[97.0, 102.0, 100.5, 99.5, 104.0];
        let slow: &[f64] = &[71.0, 69.0, 70.0, 73.0, 68.0];
        assert_eq!(verdicts(&[fine, other, slow, fine]), [Fine, Fine, Slow, Fine]);
        assert_eq!(verdicts(&[fine, other, fine, other]), [Fine; 4]);
        // With one measurement of each target, the confidence is too low, however large the
        // difference is.
        assert_eq!(verdicts(&[&[100.0], &[99.0], &[10.0]]), [Fine, Fine, Unclear]);
        // If the difference is small, the target counts as fine, even with a high confidence.
        let little: &[f64] = &[95.0, 95.1, 95.2, 95.3, 95.4];
        assert_eq!(verdicts(&[fine, other, little]), [Fine; 3]);
        assert_eq!(verdicts(&[fine]), [Fine]);
        assert_eq!(verdicts(&[]), []);
    }

    #[test]
    fn slow_target_is_reported_with_slowdown_and_confidence() {
        let fine: &[f64] = &[100.0, 98.0, 103.0, 101.0, 99.0];
        let slow: &[f64] = &[50.0, 49.0, 51.0, 50.0, 52.0];
        let judged = judge(&outcome(&[fine, fine, fine, slow]), Rules::default());
        assert_eq!((judged[3].target, judged[3].slower_by), (4, 0.5));
        // Only one of 15504 orders of the samples is as extreme. The probability is four times as
        // high, because each of the four targets could be the slow target.
        assert!((judged[3].confidence - (1.0 - 4.0 / 15_504.0)).abs() < 1e-9);
        assert_eq!(judged[0].confidence, 0.0);
    }

    #[test]
    fn exact_rank_test_agrees_with_its_normal_approximation() {
        // Two lists of three values can be merged in 20 orders. The number of pairs with the larger
        // value in the first list is 0, 1, 2, 3, 4, 5, ... in 1, 1, 2, 3, 3, 3, ... of these
        // orders.
        for (above, orders) in [(0, 1.0), (1, 2.0), (2, 4.0), (3, 7.0), (4, 10.0), (9, 20.0)] {
            assert!((share_of_orders(3, 3, above) - orders / 20.0).abs() < 1e-12, "{above}");
        }
        let exact = share_of_orders(20, 40, 290);
        let mean = 400.0;
        let deviation = (20.0 * 40.0 * 61.0 / 12.0_f64).sqrt();
        assert!((normal_below((290.5 - mean) / deviation) - exact).abs() < 0.002, "{exact}");
        assert!((normal_below(-1.959_964) - 0.025).abs() < 1e-6);
    }
}
