//! Summaries of repeated measurements.

use serde::{Deserialize, Serialize};

/// The statistics of repeated measurements, as IOR and mdtest print them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The largest value.
    pub max: f64,
    /// The smallest value.
    pub min: f64,
    /// The arithmetic mean.
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

/// Returns the median. If the number of values is even, this is the mean of the two middle values.
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

/// Returns the median absolute deviation. It is scaled so that it equals the standard deviation if
/// the values are normally distributed. Outliers hardly affect it.
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
    fn an_outlier_does_not_move_the_median() {
        assert_eq!(median(&[3.0, 1.0, 1000.0]), Some(3.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 1000.0]), Some(3.0));
        assert_eq!(median(&[]), None);
        assert_eq!(median_deviation(&[1.0, 2.0, 3.0, 4.0, 1000.0]), Some(1.4826));
    }
}
