//! Statistics of samples: summaries, box plots and tests.
//!
//! All functions are pure. The distributions come from `statrs`. Random numbers have a fixed seed,
//! so that the same journal always gives the same report.

mod bimodality;
mod normality;
mod welch;

pub use bimodality::{Bimodality, Mode, bimodality};
pub use normality::{Normality, lilliefors};
pub use welch::{Welch, welch};

use serde::Serialize;

/// The summary of a sample.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// Number of values. The number is never zero.
    pub count: usize,
    /// Arithmetic mean of the values.
    pub mean: f64,
    /// Standard deviation of the sample (divided by n - 1). Zero if the sample has only one value.
    pub sd: f64,
    /// The smallest value of the sample.
    pub min: f64,
    /// First quartile, with linear interpolation (R's type 7).
    pub q1: f64,
    /// The median of the sample.
    pub median: f64,
    /// Third quartile, computed like the first quartile.
    pub q3: f64,
    /// The largest value of the sample.
    pub max: f64,
    /// Lower whisker: the smallest value that is not more than 1.5 times the interquartile range
    /// below the first quartile.
    pub whisker_low: f64,
    /// Upper whisker: the largest value that is not more than 1.5 times the interquartile range
    /// above the third quartile.
    pub whisker_high: f64,
    /// Values outside of the whiskers, in ascending order.
    pub outliers: Vec<f64>,
}

impl Summary {
    /// Returns the summary of a sample. The values can be in any order. `None` if the sample is
    /// empty.
    pub fn of(values: &[f64]) -> Option<Self> {
        let sorted = sorted(values);
        let (first, last) = (*sorted.first()?, *sorted.last()?);
        let (q1, q3) = (quantile(&sorted, 0.25), quantile(&sorted, 0.75));
        let reach = 1.5 * (q3 - q1);
        let is_inside = |value: &&f64| (q1 - reach..=q3 + reach).contains(*value);
        Some(Self {
            count: sorted.len(),
            mean: mean(&sorted),
            sd: variance(&sorted).sqrt(),
            min: first,
            q1,
            median: quantile(&sorted, 0.5),
            q3,
            max: last,
            whisker_low: sorted.iter().find(is_inside).copied().unwrap_or(first),
            whisker_high: sorted.iter().rev().find(is_inside).copied().unwrap_or(last),
            outliers: sorted.iter().filter(|value| !is_inside(value)).copied().collect(),
        })
    }

    /// Returns the coefficient of variation, which is the standard deviation divided by the mean.
    pub fn variation(&self) -> f64 {
        if self.mean == 0.0 { 0.0 } else { self.sd / self.mean }
    }
}

pub(crate) fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Returns the variance of a sample (divided by n - 1). Returns zero for fewer than two values.
pub(crate) fn variance(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let mean = mean(values);
    values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (values.len() - 1) as f64
}

/// Returns a quantile of a sorted sample, with linear interpolation between the two neighbouring
/// values.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = (sorted.len() - 1) as f64 * share;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    below + (above - below) * place.fract()
}

#[cfg(test)]
pub(crate) mod samples {
    //! Random samples from known distributions, for tests.

    use crate::order::Random;

    /// Returns normally distributed values (Box-Muller transform).
    pub(crate) fn normal(random: &mut Random, count: usize, mean: f64, sd: f64) -> Vec<f64> {
        (0..count)
            .map(|_| {
                let (radius, angle) = (1.0 - random.share(), random.share());
                let turn = (std::f64::consts::TAU * angle).cos();
                mean + sd * (-2.0 * radius.ln()).sqrt() * turn
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn summaries_equal_the_summaries_of_the_program_r() {
        // Expected: quantile(x), sd(x), boxplot.stats(x) of R for x = c(2, 4, 4, 5, 7, 9, 30).
        let summary = Summary::of(&[9.0, 4.0, 2.0, 30.0, 4.0, 5.0, 7.0]).expect("values");
        assert_eq!((summary.q1, summary.median, summary.q3), (4.0, 5.0, 8.0));
        assert_eq!((summary.whisker_low, summary.whisker_high), (2.0, 9.0));
        assert_eq!(summary.outliers, [30.0]);
        assert!((summary.sd - 9.656).abs() < 0.001, "{}", summary.sd);
        assert_eq!(Summary::of(&[]), None);
        let one = Summary::of(&[3.0]).expect("a value");
        assert_eq!((one.mean, one.sd, one.q1, one.max), (3.0, 0.0, 3.0, 3.0));
    }

    proptest! {
        #[test]
        fn quartiles_and_whiskers_of_a_box_are_in_order(
            values in prop::collection::vec(0.0..1e9_f64, 1..50),
        ) {
            let it = Summary::of(&values).expect("values");
            let order = [it.min, it.whisker_low, it.median, it.whisker_high, it.max];
            prop_assert!(order.is_sorted(), "{it:?}");
            prop_assert!(it.q1 <= it.median && it.median <= it.q3);
            prop_assert!(it.min <= it.mean * (1.0 + 1e-9) && it.mean <= it.max * (1.0 + 1e-9));
            let inside = values.iter()
                .filter(|value| (it.whisker_low..=it.whisker_high).contains(*value)).count();
            prop_assert_eq!(inside + it.outliers.len(), values.len());
        }
    }
}
