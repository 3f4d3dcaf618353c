//! Welch's t-test, which tests whether two groups have the same mean.

use super::{mean, variance};
use serde::Serialize;
use statrs::distribution::{ContinuousCDF, StudentsT};

/// The result of Welch's t-test.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Welch {
    /// The t statistic. Positive if the first group has the larger mean.
    pub t: f64,
    /// Degrees of freedom, by the Welch-Satterthwaite equation.
    pub freedom: f64,
    /// The two-sided p-value: the probability that two samples with equal means differ by at least
    /// the observed difference, in either direction.
    pub p: f64,
    /// The mean of the first group divided by the mean of the second group, minus 1.
    pub gain: f64,
}

/// Runs Welch's two-sided t-test. The groups may have different variances and sizes.
///
/// Returns `None` if a group has fewer than two values, or if the variance of both groups is zero.
pub fn welch(first: &[f64], second: &[f64]) -> Option<Welch> {
    if first.len() < 2 || second.len() < 2 {
        return None;
    }
    let part = |values: &[f64]| variance(values) / values.len() as f64;
    let (one, two) = (part(first), part(second));
    let squares = |part: f64, values: &[f64]| part.powi(2) / (values.len() - 1) as f64;
    let freedom = (one + two).powi(2) / (squares(one, first) + squares(two, second));
    let t = (mean(first) - mean(second)) / (one + two).sqrt();
    let distribution = StudentsT::new(0.0, 1.0, freedom).ok().filter(|_| t.is_finite())?;
    let p = 2.0 * distribution.cdf(-t.abs());
    Some(Welch { t, freedom, p, gain: mean(first) / mean(second) - 1.0 })
}

#[cfg(test)]
mod tests {
    use super::super::samples::normal;
    use super::*;
    use crate::order::Random;

    #[test]
    fn welch_test_reproduces_published_examples() {
        // The three examples in Wikipedia's article "Welch's t-test", with their published results.
        let check = |first: &[f64], second: &[f64], t: f64, freedom: f64, p: f64| {
            let it = welch(first, second).expect("the samples suffice for a result");
            assert!((it.t - t).abs() < 0.01, "{it:?}");
            assert!((it.freedom - freedom).abs() < 0.1, "{it:?}");
            assert!((it.p - p).abs() < 0.0015, "{it:?}");
        };
        check(
            &[
                27.5, 21.0, 19.0, 23.6, 17.0, 17.9, 16.9, 20.1, 21.9, 22.6, 23.1, 19.6, 19.0, 21.7,
                21.4,
            ],
            &[
                27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0, 24.8, 20.2, 21.9, 22.1, 22.9, 20.5,
                24.4,
            ],
            -2.46,
            25.0,
            0.021,
        );
        check(
            &[17.2, 20.9, 22.6, 18.1, 21.7, 21.4, 23.5, 24.2, 14.7, 21.8],
            &[
                21.5, 22.8, 21.0, 23.0, 21.6, 23.6, 22.5, 20.7, 23.4, 21.8, 20.7, 21.7, 21.5, 22.5,
                23.6, 21.5, 22.5, 23.5, 21.5, 21.8,
            ],
            -1.57,
            9.9,
            0.149,
        );
    }

    #[test]
    fn welch_test_seldom_reports_a_difference_of_equal_means() {
        let mut random = Random::new(11);
        let mut low = 0;
        for _ in 0..400 {
            let first = normal(&mut random, 12, 100.0, 3.0);
            let second = normal(&mut random, 30, 100.0, 9.0);
            low += usize::from(
                welch(&first, &second).expect("the samples suffice for a result").p < 0.05,
            );
        }
        assert!((8..=34).contains(&low), "5 % of 400: {low}");
        let far = welch(&normal(&mut random, 10, 150.0, 3.0), &normal(&mut random, 10, 100.0, 3.0));
        let far = far.expect("the samples suffice for a result");
        assert!(far.p < 1e-6 && (far.gain - 0.5).abs() < 0.05, "{far:?}");
        assert_eq!(welch(&[1.0], &[1.0, 2.0]), None);
        assert_eq!(welch(&[1.0, 1.0], &[2.0, 2.0]), None);
    }
}
