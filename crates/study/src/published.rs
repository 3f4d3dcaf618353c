//! Compares published measurements with the results of a study, point by point.
//!
//! An emulated cluster is slower than the published systems, so rates cannot be compared. This
//! module compares shapes. It divides each published rate by the highest published rate of its
//! series, and divides each rate of the study by the highest rate of the study. The published
//! points are data (`published/series.toml`); docs/operations/studies.md describes the format.

mod series;

pub use series::{Point, Runs, Series, parse};

use crate::journal::Contents;
use crate::plan::Quantity;
use crate::record::Settings;
use crate::report::{Report, analyse};
use crate::statistics::mean;
use serde::Serialize;
use skep_types::{Error, ErrorCode, Result};
use std::collections::BTreeSet;

/// The built-in series, as a TOML document.
pub const BUILT_IN: &str = include_str!("../published/series.toml");

/// The results of a study, together with the published series of its plan.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Name of the plan.
    pub plan: String,
    /// Where the study ran: the name of the lab, or the path of the mount.
    pub place: String,
    /// The series with results, in the order of the document with the series.
    pub series: Vec<ComparedSeries>,
    /// Names of the series of this plan that have results for fewer than two points.
    pub without_results: Vec<String>,
}

/// A published series, together with the results of a study.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ComparedSeries {
    /// Name of the series.
    pub name: String,
    /// The publication that contains the series.
    pub source: String,
    /// The condition of the runs that belong to the series, in words. Empty if all runs belong to
    /// the series.
    pub condition: String,
    /// Unit of the published rates.
    pub published_unit: String,
    /// Unit of the measured rates.
    pub measured_unit: &'static str,
    /// The points for which the study has results.
    pub points: Vec<ComparedPoint>,
    /// Number of points for which the study has no results.
    pub points_without_results: usize,
    /// Mean of the absolute differences of the points.
    pub mean_difference: f64,
    /// Largest absolute difference of a point.
    pub largest_difference: f64,
}

/// A published point, together with the result of a study.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ComparedPoint {
    /// The published condition, in words.
    pub label: String,
    /// The condition of the runs in the study, in words.
    pub condition: String,
    /// The published rate, in the unit of the publication.
    pub published: f64,
    /// The published rate as a share of the highest published rate in this comparison.
    pub published_share: f64,
    /// Mean of the runs in the study, in the unit of reports.
    pub measured: f64,
    /// The measured rate as a share of the highest measured rate in this comparison.
    pub measured_share: f64,
    /// Number of runs in the study.
    pub runs: usize,
    /// `measured_share` minus `published_share`.
    pub difference: f64,
    /// The published rate as a share of the published limit. `None` if the publication has no limit
    /// for this point.
    pub published_of_limit: Option<f64>,
    /// The measured rate as a share of the limit of the studied system. `None` if the publication
    /// or the study has no limit for this point.
    pub measured_of_limit: Option<f64>,
}

/// The results of all runs that belong to a point.
#[derive(Debug, Default)]
struct Selected {
    /// The quantities that the runs measure.
    quantities: BTreeSet<Quantity>,
    /// The result of each run, in bytes or operations per second.
    values: Vec<f64>,
    /// The limit of each condition of the runs, in the unit of `values`. `None` if the study has no
    /// limit for the condition.
    limits: Vec<Option<f64>>,
}

impl Selected {
    /// Returns the mean of the results as a share of their limit. `None` if a condition has no
    /// limit, or if two conditions have different limits.
    fn of_limit(&self) -> Option<f64> {
        let limit = (*self.limits.first()?)?;
        let is_common = self.limits.iter().all(|it| *it == Some(limit));
        (is_common && limit > 0.0).then(|| mean(&self.values) / limit)
    }
}

/// Compares the results of a study with the published series of its plan. `includes_invalid` means
/// that the comparison includes invalid runs.
///
/// # Errors
/// - `NotFound` if no series belongs to the plan of the study.
/// - `Configuration` if the points of a series name runs that measure different quantities.
pub fn compare(
    contents: &Contents,
    includes_invalid: bool,
    series: &[Series],
) -> Result<Comparison> {
    let plan = &contents.plan.name;
    let of_plan: Vec<&Series> = series.iter().filter(|it| it.plan == *plan).collect();
    if of_plan.is_empty() {
        let plans: BTreeSet<&str> = series.iter().map(|it| it.plan.as_str()).collect();
        let plans: Vec<&str> = plans.into_iter().collect();
        return Err(Error::new(
            ErrorCode::NotFound,
            format!(
                "cannot find a published series for plan '{plan}'; the plans with series are {}; \
                 describe your own series in a file",
                plans.join(", ")
            ),
        ));
    }
    let report = analyse(contents, includes_invalid);
    let mut comparison = Comparison {
        plan: plan.clone(),
        place: contents.study.place.clone(),
        series: Vec::new(),
        without_results: Vec::new(),
    };
    for it in of_plan {
        match compare_series(contents, &report, it)? {
            Some(compared) => comparison.series.push(compared),
            None => comparison.without_results.push(it.name.clone()),
        }
    }
    Ok(comparison)
}

/// Returns a series together with the results of a study. `None` means that the study has results
/// for fewer than two points, because a single point has no shape.
fn compare_series(
    contents: &Contents,
    report: &Report,
    series: &Series,
) -> Result<Option<ComparedSeries>> {
    let mut found: Vec<(&Point, f64, Selected)> = Vec::new();
    let mut quantities: BTreeSet<Quantity> = BTreeSet::new();
    for point in &series.points {
        let selected = results(contents, report, &[&series.at, &point.at]);
        if !selected.values.is_empty() {
            quantities.extend(&selected.quantities);
            found.push((point, mean(&selected.values), selected));
        }
    }
    let quantity = match quantities.into_iter().collect::<Vec<_>>()[..] {
        [only] => only,
        [] => return Ok(None),
        _ => {
            let what = format!(
                "series \"{}\": the points of this series select runs that measure different \
                 quantities; select one with `experiment` or `operation`",
                series.name
            );
            return Err(Error::new(ErrorCode::Configuration, what));
        }
    };
    if found.len() < 2 {
        return Ok(None);
    }
    let top_published = found.iter().map(|(point, ..)| point.rate).fold(0.0, f64::max);
    let top_measured = found.iter().map(|(_, mean, _)| *mean).fold(0.0, f64::max);
    let share = |rate: f64, top: f64| if top > 0.0 { rate / top } else { 0.0 };
    let compared = |(point, mean, selected): &(&Point, f64, Selected)| {
        let published_share = share(point.rate, top_published);
        let measured_share = share(*mean, top_measured);
        ComparedPoint {
            label: point.label.clone(),
            condition: point.at.in_words(),
            published: point.rate,
            published_share,
            measured: quantity.shown(*mean),
            measured_share,
            runs: selected.values.len(),
            difference: measured_share - published_share,
            published_of_limit: point.limit.map(|limit| point.rate / limit),
            measured_of_limit: point.limit.and_then(|_| selected.of_limit()),
        }
    };
    let points: Vec<ComparedPoint> = found.iter().map(compared).collect();
    let differences: Vec<f64> = points.iter().map(|it| it.difference.abs()).collect();
    Ok(Some(ComparedSeries {
        name: series.name.clone(),
        source: series.source.clone(),
        condition: series.at.in_words(),
        published_unit: series.unit.clone(),
        measured_unit: quantity.unit(),
        points_without_results: series.points.len() - points.len(),
        points,
        mean_difference: mean(&differences),
        largest_difference: differences.iter().copied().fold(0.0, f64::max),
    }))
}

/// Returns the results of all runs that match all of `selectors`.
fn results(contents: &Contents, report: &Report, selectors: &[&Runs]) -> Selected {
    let mut selected = Selected::default();
    for experiment in &report.experiments {
        let is_named =
            |it: &&Runs| it.experiment.as_ref().is_none_or(|name| *name == experiment.name);
        if !selectors.iter().all(is_named) {
            continue;
        }
        for group in &experiment.groups {
            let has_values = |it: &&Runs| {
                it.factors.iter().all(|(factor, text)| factor.text(&group.settings) == *text)
            };
            if !selectors.iter().all(has_values) {
                continue;
            }
            let before = selected.values.len();
            let allocation = selectors.iter().find_map(|it| it.allocation.as_ref());
            match allocation {
                None => selected.values.extend_from_slice(&group.values),
                Some(text) => {
                    let of = group.allocations.iter().filter(|it| it.min_max.to_string() == *text);
                    selected.values.extend(of.flat_map(|it| it.values.iter().copied()));
                }
            }
            if selected.values.len() > before {
                selected.quantities.insert(group.settings.operation.quantity());
                selected.limits.push(limit(contents, report, &group.settings));
            }
        }
    }
    selected
}

/// Returns the limit of a condition, in bytes or operations per second. All rows of the report's
/// table with equally many servers and clients have the same limit. `None` if the table has no such
/// row, or no limit for the operation.
fn limit(contents: &Contents, report: &Report, settings: &Settings) -> Option<f64> {
    let all_servers = contents.study.targets_per_server.as_ref().map(|it| it.len() as u32);
    let servers = settings.servers.or(all_servers);
    let clients = settings.hosts * settings.applications;
    let row = report.table.iter().find(|row| row.servers == servers && row.clients == clients)?;
    row.limit(settings.operation, settings.cache)
}

/// Returns the built-in series.
///
/// # Panics
/// This function never panics, because a test parses the built-in series.
pub fn built_in() -> Vec<Series> {
    parse(BUILT_IN).expect("the built-in series are valid")
}

#[cfg(test)]
mod tests;
