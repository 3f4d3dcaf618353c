//! A test whether a sample may come from a normal distribution.

use super::{mean, sorted, variance};
use crate::limits::MIN_JUDGED;
use crate::order::Random;
use serde::Serialize;
use statrs::distribution::{ContinuousCDF, Normal};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Number of random samples that approximate the distribution of the distance. With this number,
/// the probability is accurate to one percentage point.
const DRAWS: usize = 4_000;
/// Maximum size of a random sample. For larger sizes, the distribution of the distance, multiplied
/// by the square root of the size, does not change any more.
const MAX_DRAWN: usize = 200;

/// The result of a test for a normal distribution.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Normality {
    /// The Kolmogorov-Smirnov statistic. The statistic is the largest distance between the
    /// distribution of the sample and the normal distribution that has the mean and standard
    /// deviation of the sample.
    pub distance: f64,
    /// The probability that a sample from a normal distribution has at least this distance.
    pub p: f64,
}

/// Runs the Kolmogorov-Smirnov test for normality in the form of Lilliefors. This form takes into
/// account that the mean and the standard deviation come from the sample itself. (The original test
/// assumes that mean and standard deviation are known in advance, so it would accept nearly every
/// sample as normal.)
///
/// Returns `None` if there are fewer than [`MIN_JUDGED`] values, or if all values are equal.
pub fn lilliefors(values: &[f64]) -> Option<Normality> {
    if values.len() < MIN_JUDGED {
        return None;
    }
    let distance = distance(values)?;
    let size = values.len().min(MAX_DRAWN);
    let scaled = distance * (values.len() as f64 / size as f64).sqrt();
    let p = probability(size, scaled);
    Some(Normality { distance, p })
}

fn distance(values: &[f64]) -> Option<f64> {
    let normal = Normal::new(mean(values), variance(values).sqrt()).ok()?;
    let count = values.len() as f64;
    let steps = sorted(values).into_iter().enumerate().map(|(index, value)| {
        let expected = normal.cdf(value);
        (expected - index as f64 / count).abs().max(((index + 1) as f64 / count - expected).abs())
    });
    Some(steps.fold(0.0, f64::max))
}

/// Returns the fraction of random normal samples of the size `size` whose distance is at least
/// `distance`.
fn probability(size: usize, distance: f64) -> f64 {
    // The sorted distances of random samples, by the size of the samples. A thread that holds this
    // lock takes no other lock.
    static DRAWN: Mutex<BTreeMap<usize, Vec<f64>>> = Mutex::new(BTreeMap::new());
    let mut drawn = DRAWN.lock().unwrap_or_else(PoisonError::into_inner);
    let distances = drawn.entry(size).or_insert_with(|| draw(size));
    let smaller = distances.partition_point(|drawn| *drawn < distance);
    (distances.len() - smaller) as f64 / distances.len() as f64
}

fn draw(size: usize) -> Vec<f64> {
    let standard = Normal::standard();
    let mut random = Random::new(size as u64);
    let mut distances = Vec::with_capacity(DRAWS);
    while distances.len() < DRAWS {
        let sample: Vec<f64> = (0..size)
            .map(|_| standard.inverse_cdf(random.share().clamp(1e-12, 1.0 - 1e-12)))
            .collect();
        distances.extend(self::distance(&sample));
    }
    sorted(&distances)
}

#[cfg(test)]
mod tests {
    use super::super::samples::normal;
    use super::*;

    #[test]
    fn normality_critical_values_equal_the_published_table() {
        // The critical values at 5 % and 1 % are from P. Molin, H. Abdi, "New Tables and numerical
        // approximation for the Kolmogorov-Smirnov/Lilliefors/Van Soest test of normality", 1998.
        for (size, five, one) in [(5, 0.3427, 0.3959), (10, 0.2616, 0.3037), (20, 0.1920, 0.2226)] {
            let (at_five, at_one) = (probability(size, five), probability(size, one));
            assert!((at_five - 0.05).abs() < 0.012, "{size}: {at_five}");
            assert!((at_one - 0.01).abs() < 0.006, "{size}: {at_one}");
        }
    }

    #[test]
    fn critical_value_of_a_large_sample_is_as_published() {
        // For a large n, the critical value at 5 % is 0.895 / (sqrt(n) - 0.01 + 0.85 / sqrt(n)).
        let root = 1000_f64.sqrt();
        let critical = 0.895 / (root - 0.01 + 0.85 / root);
        let p = probability(MAX_DRAWN, critical * (1000.0 / MAX_DRAWN as f64).sqrt());
        assert!((p - 0.05).abs() < 0.015, "{p}");
    }

    #[test]
    fn only_normal_samples_pass_the_normality_test() {
        let mut random = Random::new(3);
        let rejected = (0..200)
            .filter(|_| {
                lilliefors(&normal(&mut random, 50, 1e9, 2e7))
                    .expect("the sample suffices for a result")
                    .p
                    < 0.05
            })
            .count();
        assert!((2..=24).contains(&rejected), "5 % of 200: {rejected}");
        let two: Vec<f64> =
            (0..50).map(|it| 100.0 * f64::from(1 + it % 2) + 0.1 * f64::from(it)).collect();
        assert!(lilliefors(&two).expect("the sample suffices for a result").p < 0.001);
        let exponential: Vec<f64> = (0..100).map(|_| -(1.0 - random.share()).ln()).collect();
        assert!(lilliefors(&exponential).expect("the sample suffices for a result").p < 0.001);
        assert_eq!(lilliefors(&[1.0; 20]), None);
        assert_eq!(lilliefors(&[1.0, 2.0, 3.0]), None);
    }
}
