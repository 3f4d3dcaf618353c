//! Calibration finds the parameters that fit measured rates best, and the uncertainty of these
//! parameters.
//!
//! Each parameter has an assumed value with an uncertainty ([`crate::PARAMETERS`]). Measurements
//! change the value and its uncertainty. The method is a maximum a posteriori estimate, by the
//! algorithm of Levenberg and Marquardt on the logarithms of the parameters. Each table has the
//! same weight, independently of its number of rows. A parameter on which no measurement depends
//! keeps its assumed value and uncertainty. This uncertainty makes the intervals of predictions
//! wider.

use crate::model::{self, Outcome};
use crate::parameter::{COUNT, Parameters};
use crate::system::{Operation, System, Workload};
use crate::table::{Point, Table};
use serde::Serialize;

/// Relative error of a measured rate that the fit assumes.
const MEASUREMENT_DEVIATION: f64 = 0.05;
/// Each table has the weight of this number of rows, independently of its real number of rows.
const ROWS_PER_TABLE: f64 = 5.0;
/// A normally distributed variable is within this many standard deviations of its mean with a
/// probability of 90 %.
const DEVIATIONS_OF_90_PERCENT: f64 = 1.645;
/// Additional relative deviation for each doubling of a quantity beyond its largest measured value.
const DEVIATION_PER_DOUBLING: f64 = 0.05;
/// Additional relative deviation if no measured point has the operation of the predicted workload,
/// or none has the kind of disk of the predicted system.
const DEVIATION_OF_NEW_KIND: f64 = 0.25;
/// Step for the numerical computation of derivatives, in the logarithm of a parameter.
const STEP: f64 = 1e-4;
/// Maximum number of steps of a fit. A fit needs about ten steps.
const MAX_STEPS: u32 = 100;

type Vector = [f64; COUNT];
type Matrix = [Vector; COUNT];

/// Parameters that were fitted to measurements, and their uncertainty.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibration {
    /// The fitted parameters.
    pub parameters: Parameters,
    /// Number of measured points to which the parameters were fitted.
    pub points: usize,
    /// Relative standard deviation of the measured rates from the fitted rates.
    pub residual: f64,
    /// Covariance of the logarithms of the parameters.
    covariance: Matrix,
    range: Range,
}

/// The range in which the quantities were measured. A prediction outside of this range is an
/// extrapolation.
#[derive(Debug, Clone, Default, PartialEq)]
struct Range {
    operations: Vec<Operation>,
    servers: u32,
    clients: u32,
    link_gbit_s: f64,
    disk_kinds: Vec<crate::catalogue::DiskKind>,
}

/// A predicted rate.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Prediction {
    /// Number of client hosts.
    pub clients: u32,
    /// The predicted rate, in MB/s or operations per second.
    pub rate: f64,
    /// Lower end of the interval in which the true rate is with a probability of 90 %.
    pub low: f64,
    /// Upper end of the interval in which the true rate is with a probability of 90 %.
    pub high: f64,
    /// The predicted rate in percent of the rate that the hardware allows.
    pub efficiency_percent: f64,
    /// The limits of the system. The smallest limit determines the rate.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Descriptions of the quantities that are outside of the range of the measurements.
    pub extrapolates: Vec<String>,
}

impl Calibration {
    /// Returns a calibration that uses no measurements. All parameters have their assumed values.
    pub fn assumed() -> Self {
        Self::fit(&[])
    }

    /// Returns the calibration in which the parameters are fitted to `tables`.
    pub fn fit(tables: &[Table]) -> Self {
        let points: Vec<(&Point, f64)> = tables
            .iter()
            .flat_map(|table| {
                let rows = table.points.len() as f64;
                let weight = (ROWS_PER_TABLE / rows).sqrt() / MEASUREMENT_DEVIATION;
                table.points.iter().map(move |point| (point, weight))
            })
            .collect();
        let mut logs = Parameters::prior().logs();
        let mut residuals = residuals(&logs, &points);
        let mut cost = squares(&residuals);
        let mut damping = 0.01;
        for _ in 0..MAX_STEPS {
            let (mut normal, gradient) = normal_equations(&logs, &points, &residuals);
            for (index, row) in normal.iter_mut().enumerate() {
                row[index] *= 1.0 + damping;
            }
            let Some(inverse) = inverse(&normal) else { break };
            let mut next = logs;
            for (value, row) in next.iter_mut().zip(&inverse) {
                *value -= row.iter().zip(&gradient).map(|(a, b)| a * b).sum::<f64>();
            }
            let next_residuals = self::residuals(&next, &points);
            let next_cost = squares(&next_residuals);
            if next_cost.is_nan() || next_cost >= cost {
                damping *= 4.0;
                if damping > 1e9 {
                    break;
                }
                continue;
            }
            let gain = cost - next_cost;
            (logs, residuals, cost) = (next, next_residuals, next_cost);
            damping /= 3.0;
            if gain < 1e-9 {
                break;
            }
        }
        let (normal, _) = normal_equations(&logs, &points, &residuals);
        let parameters = Parameters::from_logs(&logs);
        Self {
            parameters,
            points: points.len(),
            residual: residual(&parameters, &points),
            covariance: inverse(&normal).unwrap_or_default(),
            range: Range::of(&points),
        }
    }

    /// Returns the relative standard deviations of the parameters, in the order of
    /// [`crate::PARAMETERS`].
    pub fn deviations(&self) -> [f64; COUNT] {
        std::array::from_fn(|index| self.covariance[index][index].max(0.0).sqrt())
    }

    /// Predicts the rate of a workload on a system.
    pub fn predict(&self, system: &System, workload: &Workload) -> Prediction {
        let outcome = model::rate(&self.parameters, system, workload);
        let (extrapolates, extra) = self.range.beyond(system, workload);
        let logs = self.parameters.logs();
        let slopes: Vector = std::array::from_fn(|index| {
            let mut moved = logs;
            moved[index] += STEP;
            let moved = model::rate(&Parameters::from_logs(&moved), system, workload);
            (moved.rate.ln() - outcome.rate.ln()) / STEP
        });
        let of_parameters: f64 = (0..COUNT)
            .flat_map(|i| (0..COUNT).map(move |j| (i, j)))
            .map(|(i, j)| slopes[i] * self.covariance[i][j] * slopes[j])
            .sum();
        let variance = of_parameters.max(0.0) + self.residual.powi(2) + extra;
        let factor = (DEVIATIONS_OF_90_PERCENT * variance.sqrt()).exp();
        Prediction {
            clients: workload.clients,
            rate: outcome.rate,
            low: outcome.rate / factor,
            high: outcome.rate * factor,
            efficiency_percent: 100.0 * outcome.rate / outcome.hardware_limit,
            outcome,
            extrapolates,
        }
    }
}

impl Range {
    fn of(points: &[(&Point, f64)]) -> Self {
        let mut range = Self::default();
        for (point, _) in points {
            let Point { system, workload, .. } = point;
            if !range.operations.contains(&workload.operation) {
                range.operations.push(workload.operation);
            }
            if !range.disk_kinds.contains(&system.disks.of.kind) {
                range.disk_kinds.push(system.disks.of.kind);
            }
            range.servers = range.servers.max(system.servers);
            range.clients = range.clients.max(workload.clients);
            range.link_gbit_s = range.link_gbit_s.max(system.network_gbit_s);
        }
        range
    }

    /// Returns descriptions of the quantities that are outside of the range of the measurements.
    /// The function also returns the variance that the extrapolation adds to the prediction.
    fn beyond(&self, system: &System, workload: &Workload) -> (Vec<String>, f64) {
        let mut found = Vec::new();
        let mut variance = 0.0;
        if !self.operations.contains(&workload.operation) {
            found.push(format!(
                "the calibration has no measurement of the operation {}",
                workload.operation.word()
            ));
            variance += DEVIATION_OF_NEW_KIND.powi(2);
        }
        if !self.disk_kinds.contains(&system.disks.of.kind) {
            let kind = format!("{:?}", system.disks.of.kind).to_lowercase();
            found.push(format!("the calibration has no measurement with disks of the kind {kind}"));
            variance += DEVIATION_OF_NEW_KIND.powi(2);
        }
        for (what, value, measured) in [
            ("servers", f64::from(system.servers), f64::from(self.servers)),
            ("clients", f64::from(workload.clients), f64::from(self.clients)),
            ("Gbit/s of a server", system.network_gbit_s, self.link_gbit_s),
        ] {
            if value > measured * 1.001 {
                found.push(format!(
                    "the system has {value} {what}, and at most {measured} were measured"
                ));
                let doublings = (value / measured.max(1.0)).log2().max(0.0);
                variance += (DEVIATION_PER_DOUBLING * doublings).powi(2);
            }
        }
        (found, variance)
    }
}

/// Returns the weighted errors of the predictions for all points. After these values follow the
/// weighted deviations of the parameters from their assumed values.
fn residuals(logs: &Vector, points: &[(&Point, f64)]) -> Vec<f64> {
    let parameters = Parameters::from_logs(logs);
    let of_point = |(point, weight): &(&Point, f64)| {
        let predicted = model::rate(&parameters, &point.system, &point.workload).rate;
        (predicted / point.measured).ln() * weight
    };
    let of_parameter =
        |(log, it): (&f64, &crate::Parameter)| (log - it.prior.ln()) / it.prior_deviation;
    let of_parameters = logs.iter().zip(&crate::PARAMETERS).map(of_parameter);
    points.iter().map(of_point).chain(of_parameters).collect()
}

fn squares(values: &[f64]) -> f64 {
    values.iter().map(|it| it * it).sum()
}

/// Returns the root mean square of the relative errors. Each table has the same weight.
fn residual(parameters: &Parameters, points: &[(&Point, f64)]) -> f64 {
    let (mut sum, mut weights) = (0.0, 0.0);
    for (point, weight) in points {
        let predicted = model::rate(parameters, &point.system, &point.workload).rate;
        sum += (predicted / point.measured).ln().powi(2) * weight.powi(2);
        weights += weight.powi(2);
    }
    if weights == 0.0 { MEASUREMENT_DEVIATION } else { (sum / weights).sqrt() }
}

/// Returns the matrix and the gradient of the normal equations of the fit.
fn normal_equations(logs: &Vector, points: &[(&Point, f64)], at: &[f64]) -> (Matrix, Vector) {
    let slopes: [Vec<f64>; COUNT] = std::array::from_fn(|index| {
        let mut moved = *logs;
        moved[index] += STEP;
        let moved = residuals(&moved, points);
        moved.iter().zip(at).map(|(moved, here)| (moved - here) / STEP).collect()
    });
    let dot = |one: &[f64], other: &[f64]| one.iter().zip(other).map(|(a, b)| a * b).sum::<f64>();
    let normal = std::array::from_fn(|i| std::array::from_fn(|j| dot(&slopes[i], &slopes[j])));
    (normal, std::array::from_fn(|i| dot(&slopes[i], at)))
}

/// Inverts a matrix by the Gauss-Jordan method. `None` means that the matrix is singular.
fn inverse(matrix: &Matrix) -> Option<Matrix> {
    let mut left = *matrix;
    let mut right: Matrix =
        std::array::from_fn(|i| std::array::from_fn(|j| f64::from(u8::from(i == j))));
    for column in 0..COUNT {
        let pivot = (column..COUNT)
            .max_by(|a, b| left[*a][column].abs().total_cmp(&left[*b][column].abs()))?;
        if left[pivot][column].abs() < 1e-12 {
            return None;
        }
        left.swap(column, pivot);
        right.swap(column, pivot);
        let scale = left[column][column];
        for index in 0..COUNT {
            left[column][index] /= scale;
            right[column][index] /= scale;
        }
        for row in (0..COUNT).filter(|row| *row != column) {
            let factor = left[row][column];
            for index in 0..COUNT {
                left[row][index] -= factor * left[column][index];
                right[row][index] -= factor * right[column][index];
            }
        }
    }
    Some(right)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Catalogue, table};

    fn tables() -> Vec<Table> {
        table::built_in(&Catalogue::built_in())
    }

    #[test]
    fn parameters_stay_at_defaults_without_measurements() {
        let assumed = Calibration::assumed();
        for (value, it) in assumed.parameters.values().iter().zip(crate::PARAMETERS) {
            assert!((value / it.prior - 1.0).abs() < 1e-6, "{}", it.name);
        }
        for (deviation, it) in assumed.deviations().iter().zip(crate::PARAMETERS) {
            assert!((deviation - it.prior_deviation).abs() < 1e-4, "{}", it.name);
        }
    }

    #[test]
    fn calibration_recovers_known_parameters() {
        let truth = Parameters {
            link: 0.92,
            disk: 0.92,
            request_us: 450.0,
            saturation: 2.6,
            variability: 0.04,
        };
        let mut tables = tables();
        for point in tables.iter_mut().flat_map(|it| &mut it.points) {
            point.measured = model::rate(&truth, &point.system, &point.workload).rate;
        }
        let fitted = Calibration::fit(&tables);
        let ratios = fitted.parameters.values().into_iter().zip(truth.values());
        let errors: Vec<f64> = ratios.map(|(found, truth)| (found / truth - 1.0).abs()).collect();
        assert!(errors[..4].iter().all(|it| *it < 0.1) && errors[4] < 0.5, "{errors:?}");
        assert!(fitted.residual < 0.02, "{}", fitted.residual);
    }

    #[test]
    fn prediction_intervals_are_wider_without_measurements() {
        let tables = tables();
        let (fitted, assumed) = (Calibration::fit(&tables), Calibration::assumed());
        let point = &tables[0].points[2];
        let width = |of: &Calibration, system: &System, workload: &Workload| {
            let it = of.predict(system, workload);
            assert!(it.low < it.rate && it.rate < it.high);
            it.high / it.low
        };
        let near = width(&fitted, &point.system, &point.workload);
        assert!(near < width(&assumed, &point.system, &point.workload));
        let far = System { servers: 200, ..point.system.clone() };
        let many = Workload { clients: 400, ..point.workload.clone() };
        assert!(near < width(&fitted, &far, &many));
        assert_eq!(fitted.predict(&far, &many).extrapolates.len(), 2);
        assert!(fitted.predict(&point.system, &point.workload).extrapolates.is_empty());
    }
}
