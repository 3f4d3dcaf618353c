//! Validation: computes the errors of predictions for measured tables. The tables include tables
//! that were not used for the calibration.

use crate::calibration::{Calibration, Prediction};
use crate::table::{Point, Table};
use serde::Serialize;

/// A measured table and its predictions.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Name of the table.
    pub table: String,
    /// Name of the study from which the table comes.
    pub study: String,
    /// Median of the errors in the table, in percent.
    pub median_error_percent: f64,
    /// Largest error in the table, in percent.
    pub largest_error_percent: f64,
    /// Share of the measured rates that are inside the predicted interval, in percent.
    pub within_interval_percent: f64,
    /// The measured points and their predictions.
    pub rows: Vec<Row>,
}

/// A measured point and its prediction.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Number of servers.
    pub servers: u32,
    /// Name of the operation.
    pub operation: &'static str,
    /// Unit of the rates.
    pub unit: &'static str,
    /// The measured rate.
    pub measured: f64,
    /// The predicted rate, with its interval.
    pub prediction: Prediction,
    /// Deviation of the prediction from the measured rate, in percent of the measured rate.
    pub error_percent: f64,
}

/// Errors of many predictions, in percent.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Errors {
    /// Number of predictions that this summary covers.
    pub points: usize,
    /// Median of the absolute errors.
    pub median_percent: f64,
    /// Largest absolute error.
    pub largest_percent: f64,
}

/// A test of the model with tables that were not used for the calibration.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CrossValidation {
    /// The comparison of each table with its predictions. The calibration for the predictions of a
    /// table did not use any table of its group.
    pub tables: Vec<Comparison>,
    /// Errors of all rows in all tables.
    pub errors: Errors,
}

/// The tables that a test leaves out of a calibration together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// Each calibration of the model uses all tables except one.
    Table,
    /// Each calibration of the model uses all tables except the tables of one study, so that no
    /// measurement comes from the hardware of this study.
    Study,
}

/// Compares the measured rates of a table with predictions.
pub fn compare(calibration: &Calibration, table: &Table) -> Comparison {
    let row = |point: &Point| {
        let prediction = calibration.predict(&point.system, &point.workload);
        let operation = point.workload.operation;
        Row {
            servers: point.system.servers,
            operation: operation.word(),
            unit: operation.unit(),
            measured: point.measured,
            error_percent: 100.0 * (prediction.rate / point.measured - 1.0),
            prediction,
        }
    };
    let rows: Vec<Row> = table.points.iter().map(row).collect();
    let errors = errors(rows.iter());
    let is_within = |it: &&Row| (it.prediction.low..=it.prediction.high).contains(&it.measured);
    let within = rows.iter().filter(is_within).count();
    Comparison {
        table: table.name.clone(),
        study: table.study.clone(),
        median_error_percent: errors.median_percent,
        largest_error_percent: errors.largest_percent,
        within_interval_percent: 100.0 * within as f64 / rows.len().max(1) as f64,
        rows,
    }
}

/// Returns a summary of the errors of rows.
pub fn errors<'a>(rows: impl Iterator<Item = &'a Row>) -> Errors {
    let mut errors: Vec<f64> = rows.map(|it| it.error_percent.abs()).collect();
    errors.sort_by(f64::total_cmp);
    let middle = |values: &[f64]| match values.len() {
        0 => 0.0,
        len => (values[(len - 1) / 2] + values[len / 2]) / 2.0,
    };
    Errors {
        points: errors.len(),
        median_percent: middle(&errors),
        largest_percent: errors.last().copied().unwrap_or(0.0),
    }
}

/// Leaves out each group of tables in turn, calibrates the model with the other tables, and
/// compares its predictions with the tables of the group.
pub fn cross_validate(tables: &[Table], group: Group) -> CrossValidation {
    let key = |table: &Table| match group {
        Group::Table => table.name.clone(),
        Group::Study => table.study.clone(),
    };
    let of_table = |left_out: &Table| {
        let is_seen = |it: &&Table| key(it) != key(left_out);
        let seen: Vec<Table> = tables.iter().filter(is_seen).cloned().collect();
        compare(&Calibration::fit(&seen), left_out)
    };
    let tables: Vec<Comparison> = tables.iter().map(of_table).collect();
    let errors = errors(tables.iter().flat_map(|it| &it.rows));
    CrossValidation { tables, errors }
}
