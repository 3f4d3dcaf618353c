//! Summaries of repeated measurements.

use serde::{Deserialize, Serialize};

/// The statistics of repeated measurements, as IOR and mdtest print them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The largest measured value.
    pub max: f64,
    /// The smallest measured value.
    pub min: f64,
    /// The arithmetic mean of the measured values.
    pub mean: f64,
    /// The standard deviation of the population (not of a sample), as IOR and mdtest print it.
    pub std_dev: f64,
}

impl Summary {
    /// Returns the summary of a list of values, or `None` if the list is empty.
    pub fn of(values: &[f64]) -> Option<Self> {
        if values.is_empty() {
            return None;
        }
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
        Some(Self {
            max: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            min: values.iter().copied().fold(f64::INFINITY, f64::min),
            mean,
            std_dev: variance.sqrt(),
        })
    }
}

/// A first measurement that is below the mean of the following measurements by at least this share
/// is as low as in a warm-up.
const WARM_UP: f64 = 0.05;

/// The first of repeated measurements of a rate, compared with the following measurements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FirstValue {
    /// Difference between the mean of the following values and the first value, as a share of the
    /// mean. A negative share means that the first value is above the mean.
    pub below: f64,
    /// Whether the first value is lower than each following value.
    pub is_lowest: bool,
    /// Whether the first value is below the lowest following value by more than the range of the
    /// following values.
    is_apart: bool,
}

impl FirstValue {
    /// Compares the first of `values` with the following values. `None` means that `values` has
    /// fewer than three values, or that the mean of the following values is not positive.
    pub fn of(values: &[f64]) -> Option<Self> {
        let (first, others) = values.split_first()?;
        let of_others = Summary::of(others).filter(|_| others.len() > 1)?;
        (of_others.mean > 0.0).then(|| Self {
            below: 1.0 - first / of_others.mean,
            is_lowest: *first < of_others.min,
            is_apart: of_others.min - first > of_others.max - of_others.min,
        })
    }
}

/// Whether a first measurement that is below the following measurements by the share `below` is as
/// low as in a warm-up. This function does not check two further conditions. For one series, the
/// first value must also be apart from the other values ([`warm_up`]). For many series, the caller
/// checks that in most series the first value is the lowest.
pub fn is_as_low_as_a_warm_up(below: f64) -> bool {
    below >= WARM_UP
}

/// Compares the first of repeated measurements with the mean of the following measurements. Returns
/// how far the first value is below this mean, as a share of the mean. `None` means that the
/// measurements show no warm-up. A warm-up requires at least three values and a share of at least
/// 5 %. Also, the first value must be farther from the lowest other value than the other values are
/// from each other.
pub fn warm_up(values: &[f64]) -> Option<f64> {
    let first = FirstValue::of(values)?;
    (is_as_low_as_a_warm_up(first.below) && first.is_apart).then_some(first.below)
}

/// Returns the median. For an even number of values, the median is the mean of the two middle
/// values.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        len if len % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

/// Returns the median absolute deviation. The deviation is scaled so that it equals the standard
/// deviation of normally distributed values. Outliers hardly affect this deviation.
pub fn median_deviation(values: &[f64]) -> Option<f64> {
    const OF_NORMAL: f64 = 1.4826;
    let middle = median(values)?;
    let distances: Vec<f64> = values.iter().map(|value| (value - middle).abs()).collect();
    median(&distances).map(|distance| distance * OF_NORMAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_has_minimum_maximum_mean_and_deviation() {
        let summary = Summary::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).unwrap();
        assert_eq!(summary, Summary { max: 9.0, min: 2.0, mean: 5.0, std_dev: 2.0 });
        assert_eq!(Summary::of(&[]), None);
    }

    #[test]
    fn much_slower_first_repetition_counts_as_a_warm_up() {
        assert_eq!(warm_up(&[75.0, 100.0, 98.0, 102.0]), Some(0.25));
        // In this order, the next four lists have too few values, a small difference, a high
        // variation of all values, and a fast first value.
        assert_eq!(warm_up(&[75.0, 100.0]), None);
        assert_eq!(warm_up(&[97.0, 100.0, 101.0]), None);
        assert_eq!(warm_up(&[75.0, 80.0, 100.0]), None);
        assert_eq!(warm_up(&[120.0, 100.0, 98.0]), None);
        assert_eq!(warm_up(&[0.0, 0.0, 0.0]), None);
        assert_eq!(warm_up(&[]), None);
    }

    #[test]
    fn first_value_is_not_lowest_if_another_value_equals_it() {
        let first = |values: &[f64]| FirstValue::of(values).map(|it| (it.below, it.is_lowest));
        assert_eq!(first(&[75.0, 80.0, 120.0]), Some((0.25, true)));
        assert_eq!(first(&[75.0, 75.0, 125.0]), Some((0.25, false)));
        assert_eq!(first(&[125.0, 100.0, 100.0]), Some((-0.25, false)));
        assert_eq!(first(&[75.0, 100.0]), None);
        assert_eq!(first(&[1.0, 0.0, 0.0]), None);
    }

    #[test]
    fn an_outlier_does_not_move_the_median() {
        assert_eq!(median(&[3.0, 1.0, 1000.0]), Some(3.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 1000.0]), Some(3.0));
        assert_eq!(median(&[]), None);
        assert_eq!(median_deviation(&[1.0, 2.0, 3.0, 4.0, 1000.0]), Some(1.4826));
    }
}
