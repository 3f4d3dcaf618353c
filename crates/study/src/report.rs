//! The report of a study: groups, tests, figures and conclusions. A report uses only the study's
//! journal.
//!
//! The same journal always gives the same report, byte by byte. This module measures nothing, and
//! does not access the measured system.

mod comparison;
mod conclusions;
mod factor;
mod figures;
mod html;
mod points;
mod scaling;
mod table;

#[cfg(test)]
mod tests;

pub use comparison::{compare, compared_files};
pub use conclusions::{Conclusion, Figure};
pub use factor::Factor;
pub use table::{Cell, Row, Shown};

use crate::journal::Contents;
use crate::order;
use crate::plan::{Access, Cache, Condition, Level, Operation, Quantity};
use crate::record::{CalibratedRecord, MinMax, Record, RunRecord, Settings};
use crate::statistics::{Bimodality, Normality, Summary, Welch, bimodality, lilliefors, welch};
use serde::Serialize;
use skep_types::Result;
use std::collections::{BTreeMap, BTreeSet};

/// The complete report, as JSON for programs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Name of the plan.
    pub name: String,
    /// Title of the plan.
    pub title: String,
    /// Where the study ran: the name of the lab, or the path of the mount.
    pub place: String,
    /// Start of the study, in UTC.
    pub started_at: String,
    /// Version of the `skep` program that ran the study.
    pub skep_version: String,
    /// Number of client hosts.
    pub hosts: usize,
    /// Number of storage targets of each server. `None` if the file system does not report its
    /// targets.
    pub targets_per_server: Option<BTreeMap<String, u32>>,
    /// Number of runs in the plan.
    pub runs_planned: usize,
    /// Number of runs that have a record in the journal.
    pub runs_done: usize,
    /// Number of runs that have records in the journal, but no valid record. The storage system was
    /// not the bottleneck in these runs.
    pub runs_invalid: usize,
    /// All records of invalid runs, including runs that the study has repeated.
    pub invalid: Vec<InvalidRun>,
    /// Whether figures and statistics include invalid runs.
    pub includes_invalid: bool,
    /// Number of runs before which some caches were not dropped. In these runs, data may have been
    /// read from a cache.
    pub runs_with_caches: usize,
    /// The result of the calibration. `None` if the study had no calibration.
    pub calibrated: Option<CalibratedRecord>,
    /// The table of results: a row for each number of servers, clients and processes. Empty for
    /// journals that do not have the rates of the hardware, which older versions did not record.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub table: Vec<Row>,
    /// The conclusions, in sentences.
    pub conclusions: Vec<Conclusion>,
    /// All experiments that have results. The runs of the calibration come first, as experiments of
    /// their own.
    pub experiments: Vec<ExperimentReport>,
}

/// The results of an experiment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ExperimentReport {
    /// Name of the experiment.
    pub name: String,
    /// The question that the experiment answers.
    pub title: String,
    /// The quantity that the runs measure.
    #[serde(skip_serializing_if = "Quantity::is_bandwidth")]
    pub quantity: Quantity,
    /// The factors that have several values in the results.
    pub varied: Vec<Factor>,
    /// The factor whose values are on the axis of the figures.
    pub axis: Factor,
    /// The results of each condition, in ascending order of the factor values.
    pub groups: Vec<Group>,
    /// Comparisons of two conditions that differ in one factor. If the factor is a number, only
    /// neighbouring values are compared.
    pub comparisons: Vec<Comparison>,
    /// Comparisons of two allocations under the same condition.
    pub of_allocations: Vec<AllocationComparison>,
    /// File names of the figures.
    pub figures: Vec<String>,
}

/// The results under one condition.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Group {
    /// The values of the factors that vary, such as `count 4, chooser balanced`.
    pub label: String,
    /// The condition of the runs.
    pub settings: Settings,
    /// Result of each run in bytes or operations per second, in the order in which the journal
    /// lists the runs.
    pub values: Vec<f64>,
    /// Summary of `values`.
    pub summary: Summary,
    /// Whether the results may be normally distributed, by the Kolmogorov-Smirnov test in the form
    /// of Lilliefors. `None` if there are too few results.
    pub normality: Option<Normality>,
    /// Whether the results have two modes. `None` if there are too few results.
    pub bimodality: Option<Bimodality>,
    /// The results of each allocation. Empty if the file system does not report targets.
    pub allocations: Vec<OfAllocation>,
    /// Mean result of a single application, over all applications of all runs.
    pub mean_of_each_application: f64,
}

/// The results under one condition with one allocation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OfAllocation {
    /// The allocation: the smallest and the largest number of an application's targets on one
    /// server.
    pub min_max: MinMax,
    /// Summary of `values`.
    pub summary: Summary,
    /// Result of each run with this allocation, in bytes or operations per second.
    #[serde(skip)]
    pub values: Vec<f64>,
}

/// The comparison of two conditions that differ in one factor.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// The factor in which the two conditions differ.
    pub factor: Factor,
    /// Value of the factor in the first condition.
    pub first: String,
    /// Value of the factor in the second condition.
    pub second: String,
    /// The values of the other factors that vary. These values are the same in both conditions.
    pub among: String,
    /// Number of runs under each condition.
    pub runs: [usize; 2],
    /// The result of Welch's t-test.
    pub welch: Welch,
}

/// The comparison of two allocations under the same condition.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AllocationComparison {
    /// The allocation with the more even distribution over the servers.
    pub first: MinMax,
    /// The allocation with the less even distribution.
    pub second: MinMax,
    /// The values of the factors that vary, which describe the condition.
    pub among: String,
    /// Number of runs with each allocation.
    pub runs: [usize; 2],
    /// The result of Welch's t-test.
    pub welch: Welch,
}

/// A record of an invalid run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InvalidRun {
    /// Index of the run in the list of runs.
    pub run: u32,
    /// Name of the experiment.
    pub experiment: String,
    /// Start of the run, in UTC.
    pub started_at: String,
    /// Why the run is invalid.
    pub because: String,
}

/// Creates the report of a journal. `includes_invalid` means that the statistics include invalid
/// runs.
pub fn analyse(contents: &Contents, includes_invalid: bool) -> Report {
    let mut runs: Vec<(String, String, Vec<&RunRecord>)> = Vec::new();
    let mut calibrated = None;
    let mut trials: Vec<&RunRecord> = Vec::new();
    // Use only the last record of a run, because the study may have repeated an invalid run.
    let mut is_valid: BTreeMap<u32, bool> = BTreeMap::new();
    let mut last: BTreeMap<u32, &RunRecord> = BTreeMap::new();
    for record in &contents.records {
        let run = match record {
            Record::Study(_) | Record::Environment(_) => continue,
            Record::Calibrated(found) => {
                calibrated = Some(*found);
                continue;
            }
            Record::Trial(run) => run,
            Record::Run(run) => {
                *is_valid.entry(run.run).or_default() |= run.is_valid;
                last.insert(run.run, run);
                continue;
            }
        };
        trials.push(run);
    }
    // The records in the journal are in the order of time.
    let made = contents.records.iter().filter_map(|record| match record {
        Record::Run(run) if last.get(&run.run).is_some_and(|it| std::ptr::eq(*it, run)) => {
            Some(run)
        }
        _ => None,
    });
    for run in trials.into_iter().chain(made) {
        if !run.is_valid && !includes_invalid {
            continue;
        }
        match runs.iter_mut().find(|(name, ..)| *name == run.experiment) {
            Some((.., list)) => list.push(run),
            None => {
                let title = title(contents, &run.experiment);
                runs.push((run.experiment.clone(), title, vec![run]));
            }
        }
    }
    // Blocks run in random order. The report lists the experiments in the order of the plan.
    let place = |name: &str| contents.plan.experiments.iter().position(|it| it.name == name);
    runs.sort_by_key(|(name, ..)| place(name).map_or(0, |place| place + 1));
    let is_paired = |name: &str| {
        let found = contents.plan.experiments.iter().find(|it| it.name == name);
        found.is_some_and(|it| !it.factors.clients.is_empty())
    };
    let experiments: Vec<ExperimentReport> = runs
        .iter()
        .filter_map(|(name, title, runs)| experiment(name, title, runs, is_paired(name)))
        .collect();
    Report {
        name: contents.plan.name.clone(),
        title: contents.plan.title.clone(),
        place: contents.study.place.clone(),
        started_at: contents.study.started_at.clone(),
        skep_version: contents.study.skep_version.clone(),
        hosts: contents.study.hosts.len(),
        targets_per_server: contents.study.targets_per_server.clone(),
        runs_planned: order::list(&contents.plan).len(),
        runs_done: is_valid.len(),
        runs_invalid: is_valid.values().filter(|is_valid| !**is_valid).count(),
        invalid: invalid(contents),
        includes_invalid,
        runs_with_caches: last.values().filter(|run| lacks_dropped_caches(run)).count(),
        calibrated,
        table: table::of_study(contents, &experiments),
        conclusions: conclusions::draw(contents, &experiments, calibrated.as_ref()),
        experiments,
    }
}

/// Whether the caches should have been dropped before a run, but were not dropped everywhere.
fn lacks_dropped_caches(run: &RunRecord) -> bool {
    !run.caches_dropped && run.settings.cache != Cache::Kept
}

fn invalid(contents: &Contents) -> Vec<InvalidRun> {
    let runs = contents.records.iter().filter_map(|record| match record {
        Record::Trial(run) | Record::Run(run) if !run.is_valid => Some(run),
        _ => None,
    });
    let invalid = |run: &RunRecord| InvalidRun {
        run: run.run,
        experiment: run.experiment.clone(),
        started_at: run.started_at.clone(),
        because: run.invalid_because.clone().unwrap_or_default(),
    };
    runs.map(invalid).collect()
}

/// Returns the names and contents of the files of a report: an HTML page that needs no network, its
/// figures, all results as CSV, and the complete report as JSON.
///
/// # Errors
/// `Io` if a figure cannot be drawn.
pub fn files(contents: &Contents, report: &Report) -> Result<Vec<(String, Vec<u8>)>> {
    let mut figures = Vec::new();
    for experiment in &report.experiments {
        figures.extend(figures::draw(experiment)?);
    }
    figures.extend(scaling::draw(&report.table)?);
    let page = html::page(contents, report, &figures);
    let json = serde_json::to_vec_pretty(report)
        .map_err(|error| skep_types::Error::new(skep_types::ErrorCode::Io, error.to_string()))?;
    let mut files = vec![
        ("index.html".to_owned(), page.into_bytes()),
        ("points.csv".to_owned(), points::csv(contents).into_bytes()),
        ("report.json".to_owned(), json),
    ];
    if !report.table.is_empty() {
        files.push(("table.csv".to_owned(), table::csv(&report.table).into_bytes()));
    }
    files.extend(figures.into_iter().map(|it| (it.file, it.svg.into_bytes())));
    Ok(files)
}

fn title(contents: &Contents, name: &str) -> String {
    let experiment = contents.plan.experiments.iter().find(|it| it.name == name);
    match experiment {
        Some(experiment) => experiment.title.clone(),
        None => "First step: where does bandwidth level off?".to_owned(),
    }
}

/// Returns the report of an experiment. `is_paired` means that the plan lists pairs of hosts and
/// processes, which then form one factor.
fn experiment(
    name: &str,
    title: &str,
    runs: &[&RunRecord],
    is_paired: bool,
) -> Option<ExperimentReport> {
    let mut by_settings: BTreeMap<&Settings, Vec<&RunRecord>> = BTreeMap::new();
    for run in runs {
        by_settings.entry(&run.settings).or_default().push(run);
    }
    let varied: Vec<Factor> = Factor::ALL
        .into_iter()
        .filter(|factor| match factor {
            Factor::Hosts | Factor::Processes => !is_paired,
            Factor::Clients => is_paired,
            _ => true,
        })
        .filter(|factor| {
            by_settings.keys().map(|it| factor.text(it)).collect::<BTreeSet<_>>().len() > 1
        })
        .collect();
    let is_number = |factor: &&Factor| factor.is_number();
    let axis = varied.iter().find(is_number).or(varied.first()).copied().unwrap_or(Factor::Count);
    let groups: Vec<Group> = by_settings
        .into_iter()
        .filter_map(|(settings, runs)| group(settings, &runs, &varied))
        .collect();
    let comparisons = compare_groups(&groups, &varied);
    let of_allocations = groups.iter().flat_map(compare_allocations).collect();
    let mut report = ExperimentReport {
        name: name.to_owned(),
        title: title.to_owned(),
        quantity: runs.first()?.settings.operation.quantity(),
        varied,
        axis,
        groups,
        comparisons,
        of_allocations,
        figures: Vec::new(),
    };
    report.figures = figures::names(&report);
    (!report.groups.is_empty()).then_some(report)
}

fn group(settings: &Settings, runs: &[&RunRecord], varied: &[Factor]) -> Option<Group> {
    let values: Vec<f64> = runs.iter().map(|run| run.value()).collect();
    let mut by_allocation: BTreeMap<MinMax, Vec<f64>> = BTreeMap::new();
    for run in runs {
        if let Some(allocation) = run.allocation() {
            by_allocation.entry(allocation).or_default().push(run.value());
        }
    }
    let allocations = by_allocation.into_iter().filter_map(|(min_max, values)| {
        Some(OfAllocation { min_max, summary: Summary::of(&values)?, values })
    });
    let each: Vec<f64> =
        runs.iter().flat_map(|run| run.applications.iter().map(|it| it.value())).collect();
    Some(Group {
        label: label(settings, varied),
        settings: settings.clone(),
        summary: Summary::of(&values)?,
        normality: lilliefors(&values),
        bimodality: bimodality(&values),
        allocations: allocations.collect(),
        mean_of_each_application: Summary::of(&each)?.mean,
        values,
    })
}

/// Returns a label with the values of `factors`, such as `count 4, chooser balanced`.
fn label(settings: &Settings, factors: &[Factor]) -> String {
    let words: Vec<String> = factors
        .iter()
        .map(|factor| format!("{} {}", factor.word(), factor.text(settings)))
        .collect();
    if words.is_empty() { "all runs".to_owned() } else { words.join(", ") }
}

/// Runs Welch's test for each pair of groups that differ in one factor. If the factor is a number,
/// only neighbouring values are compared.
fn compare_groups(groups: &[Group], varied: &[Factor]) -> Vec<Comparison> {
    let mut comparisons = Vec::new();
    for (index, second) in groups.iter().enumerate() {
        for first in &groups[..index] {
            let is_different = |it: &&Factor| it.text(&first.settings) != it.text(&second.settings);
            let different: Vec<Factor> = varied.iter().filter(is_different).copied().collect();
            let [factor] = different[..] else { continue };
            let common: Vec<Factor> = varied.iter().filter(|it| **it != factor).copied().collect();
            let of_common = |it: &Group| label(&it.settings, &common);
            let is_between = |it: &Group| {
                let [one, other] = [first, second].map(|it| factor.number(&it.settings));
                let number = factor.number(&it.settings);
                let is_inside = number > one.min(other) && number < one.max(other);
                is_inside && of_common(it) == of_common(first)
            };
            if factor.is_number() && groups.iter().any(is_between) {
                continue;
            }
            let Some(welch) = welch(&first.values, &second.values) else { continue };
            comparisons.push(Comparison {
                factor,
                first: factor.text(&first.settings),
                second: factor.text(&second.settings),
                among: label(&first.settings, &common),
                runs: [first, second].map(|it| it.values.len()),
                welch,
            });
        }
    }
    comparisons
}

/// Runs Welch's test for each pair of allocations under one condition.
fn compare_allocations(group: &Group) -> Vec<AllocationComparison> {
    let mut comparisons = Vec::new();
    for (index, first) in group.allocations.iter().enumerate().rev() {
        for second in group.allocations[..index].iter().rev() {
            let Some(welch) = welch(&first.values, &second.values) else { continue };
            comparisons.push(AllocationComparison {
                // The list `allocations` is in ascending order of the smaller number in the
                // allocation. So of two allocations in the list, the later allocation is more even.
                first: first.min_max,
                second: second.min_max,
                among: group.label.clone(),
                runs: [first, second].map(|it| it.values.len()),
                welch,
            });
        }
    }
    comparisons
}

/// Describes a condition in a few words. A value that the calibration has not found yet is called
/// "calibrated".
pub fn describe_condition(condition: &Condition) -> String {
    let known =
        Condition { data_bytes: Level::Fixed(1), hosts: Level::Fixed(1), ..condition.clone() };
    let Some(settings) = Settings::new(&known, None) else { return String::new() };
    let data = match condition.data_bytes {
        Level::Fixed(data_bytes) => {
            Factor::DataSize.text(&Settings { data_bytes, ..settings.clone() })
        }
        Level::Calibrated => condition.data_bytes.to_string(),
    };
    let hosts = match condition.hosts {
        Level::Fixed(number) => hosts(number),
        Level::Calibrated => format!("{} hosts", condition.hosts),
    };
    words(data, hosts, &settings)
}

/// Describes the settings of a run in a few words.
pub(crate) fn describe(settings: &Settings) -> String {
    words(Factor::DataSize.text(settings), hosts(settings.hosts), settings)
}

fn hosts(number: u32) -> String {
    if number == 1 { "1 host".to_owned() } else { format!("{number} hosts") }
}

fn words(data: String, hosts: String, settings: &Settings) -> String {
    let amount = settings.files.map_or(data, |files| format!("{files} files per process"));
    let mut words = vec![amount, format!("{hosts} x {} processes", settings.processes)];
    words.extend(settings.servers.map(|servers| format!("{servers} servers")));
    words.extend(settings.count.map(|count| format!("count {count}")));
    words.extend(settings.chooser.clone());
    if settings.applications > 1 {
        words.push(format!("{} applications", settings.applications));
        words.push(format!("targets {}", settings.targets.word()));
    }
    if settings.access == Access::FilePerProcess {
        words.push(settings.access.word().to_owned());
    }
    if settings.operation != Operation::Write {
        words.push(settings.operation.word().to_owned());
    }
    if settings.cache != Cache::Dropped {
        words.push(format!("caches {}", settings.cache.word()));
    }
    words.join(", ")
}

/// Converts bytes per second to MiB/s.
pub(crate) fn mib(bytes_per_second: f64) -> f64 {
    bytes_per_second / f64::from(1 << 20)
}
