//! The report of a study: groups, tests, figures and conclusions, from its journal alone.
//!
//! The same journal gives the same report, byte by byte. Nothing here measures, or asks the system.

mod conclusions;
mod factor;
mod figures;
mod html;
mod points;

#[cfg(test)]
mod tests;

pub use conclusions::{Conclusion, Figure};
pub use factor::Factor;

use crate::journal::Contents;
use crate::order;
use crate::plan::{Access, Condition, Level, Operation};
use crate::record::{CalibratedRecord, MinMax, Record, RunRecord, Settings};
use crate::statistics::{Bimodality, Normality, Summary, Welch, bimodality, lilliefors, welch};
use serde::Serialize;
use skep_types::Result;
use std::collections::{BTreeMap, BTreeSet};

/// The whole report, for programs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The plan's name.
    pub name: String,
    /// The plan's title.
    pub title: String,
    /// The lab's name, or the mount.
    pub place: String,
    /// Start, in UTC.
    pub started_at: String,
    /// The version of Skep that ran it.
    pub skep_version: String,
    /// Client hosts.
    pub hosts: usize,
    /// Storage targets of each server, where the file system reports them.
    pub targets_per_server: Option<BTreeMap<String, u32>>,
    /// Runs of the plan.
    pub runs_planned: usize,
    /// Runs in the journal.
    pub runs_done: usize,
    /// Runs that don't count, because the storage system was not their limit.
    pub runs_invalid: usize,
    /// Each record of a run that didn't count, also if the run was repeated.
    pub invalid: Vec<InvalidRun>,
    /// Whether figures and numbers include the results of these runs.
    pub includes_invalid: bool,
    /// Runs before which some caches could not be dropped: their reads may have been cached.
    pub runs_with_caches: usize,
    /// The result of calibration.
    pub calibrated: Option<CalibratedRecord>,
    /// The conclusions, in words.
    pub conclusions: Vec<Conclusion>,
    /// Each experiment that has results; those of calibration first.
    pub experiments: Vec<ExperimentReport>,
}

/// The results of an experiment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ExperimentReport {
    /// Its name.
    pub name: String,
    /// Its question.
    pub title: String,
    /// The factors with more than one value in its results.
    pub varied: Vec<Factor>,
    /// The factor on the axis of its figures.
    pub axis: Factor,
    /// The results of each condition, in the order of their values.
    pub groups: Vec<Group>,
    /// Pairs of conditions that differ in one factor; for numbers, neighbouring values only.
    pub comparisons: Vec<Comparison>,
    /// Pairs of allocations of one condition.
    pub of_allocations: Vec<AllocationComparison>,
    /// File names of its figures.
    pub figures: Vec<String>,
}

/// The results of one condition.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Group {
    /// The varied factors in words: `count 4, chooser balanced`.
    pub label: String,
    /// The condition.
    pub settings: Settings,
    /// Bytes per second of each run that counts, in the order of the journal.
    pub values: Vec<f64>,
    /// Summary of these.
    pub summary: Summary,
    /// Whether they may be normal: the test of Kolmogorov and Smirnov in the form of Lilliefors.
    pub normality: Option<Normality>,
    /// Whether they have two modes.
    pub bimodality: Option<Bimodality>,
    /// The results by allocation, where the file system reports it.
    pub allocations: Vec<OfAllocation>,
    /// Mean over all applications of each one's own bandwidth.
    pub mean_of_each_application: f64,
}

/// The results of one condition with one allocation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OfAllocation {
    /// Smallest and largest number of targets on one server.
    pub min_max: MinMax,
    /// The runs with it.
    pub summary: Summary,
    /// Summary of their results.
    #[serde(skip)]
    pub values: Vec<f64>,
}

/// Two conditions that differ in one factor.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// The factor.
    pub factor: Factor,
    /// Its value in the first group.
    pub first: String,
    /// Its value in the second.
    pub second: String,
    /// The other varied factors, which both groups have in common.
    pub among: String,
    /// Runs of each.
    pub runs: [usize; 2],
    /// Welch's t test.
    pub welch: Welch,
}

/// Two allocations of the same condition.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AllocationComparison {
    /// The allocation that divides targets more evenly.
    pub first: MinMax,
    /// The other allocation.
    pub second: MinMax,
    /// The condition, by its varied factors.
    pub among: String,
    /// Runs of each.
    pub runs: [usize; 2],
    /// Welch's t test.
    pub welch: Welch,
}

/// A run that doesn't count.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InvalidRun {
    /// Its index in the list of runs.
    pub run: u32,
    /// The experiment.
    pub experiment: String,
    /// Start, in UTC.
    pub started_at: String,
    /// The reason.
    pub because: String,
}

/// Makes the report of a journal. With `include_invalid` it also covers the runs that don't count.
pub fn analyse(contents: &Contents, includes_invalid: bool) -> Report {
    let mut runs: Vec<(String, String, Vec<&RunRecord>)> = Vec::new();
    let mut calibrated = None;
    let mut trials: Vec<&RunRecord> = Vec::new();
    // A run that didn't count may have been repeated: then its last record stands for it.
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
    // In the order of the journal, which is the order of time.
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
    // Blocks come in random order; the report lists experiments in the order of the plan.
    let place = |name: &str| contents.plan.experiments.iter().position(|it| it.name == name);
    runs.sort_by_key(|(name, ..)| place(name).map_or(0, |place| place + 1));
    let experiments: Vec<ExperimentReport> =
        runs.iter().filter_map(|(name, title, runs)| experiment(name, title, runs)).collect();
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
        runs_with_caches: last.values().filter(|run| !run.caches_dropped).count(),
        calibrated,
        conclusions: conclusions::draw(&experiments, calibrated.as_ref()),
        experiments,
    }
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

/// The files of a report with their names: a page that needs no network, its figures, all points as
/// CSV, and the whole report as JSON.
///
/// # Errors
/// `Io` if a figure cannot be drawn.
pub fn files(contents: &Contents, report: &Report) -> Result<Vec<(String, Vec<u8>)>> {
    let mut figures = Vec::new();
    for experiment in &report.experiments {
        figures.extend(figures::draw(experiment)?);
    }
    let page = html::page(contents, report, &figures);
    let json = serde_json::to_vec_pretty(report)
        .map_err(|error| skep_types::Error::new(skep_types::ErrorCode::Io, error.to_string()))?;
    let mut files = vec![
        ("index.html".to_owned(), page.into_bytes()),
        ("points.csv".to_owned(), points::csv(contents).into_bytes()),
        ("report.json".to_owned(), json),
    ];
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

fn experiment(name: &str, title: &str, runs: &[&RunRecord]) -> Option<ExperimentReport> {
    let mut by_settings: BTreeMap<&Settings, Vec<&RunRecord>> = BTreeMap::new();
    for run in runs {
        by_settings.entry(&run.settings).or_default().push(run);
    }
    let varied: Vec<Factor> = Factor::ALL
        .into_iter()
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
    let comparisons = compare(&groups, &varied);
    let of_allocations = groups.iter().flat_map(compare_allocations).collect();
    let mut report = ExperimentReport {
        name: name.to_owned(),
        title: title.to_owned(),
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
    let values: Vec<f64> = runs.iter().map(|run| run.bytes_per_second).collect();
    let mut by_allocation: BTreeMap<MinMax, Vec<f64>> = BTreeMap::new();
    for run in runs {
        if let Some(allocation) = run.allocation() {
            by_allocation.entry(allocation).or_default().push(run.bytes_per_second);
        }
    }
    let allocations = by_allocation.into_iter().filter_map(|(min_max, values)| {
        Some(OfAllocation { min_max, summary: Summary::of(&values)?, values })
    });
    let each: Vec<f64> =
        runs.iter().flat_map(|run| run.applications.iter().map(|it| it.bytes_per_second)).collect();
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

/// The values of some factors in words.
fn label(settings: &Settings, factors: &[Factor]) -> String {
    let words: Vec<String> = factors
        .iter()
        .map(|factor| format!("{} {}", factor.word(), factor.text(settings)))
        .collect();
    if words.is_empty() { "all runs".to_owned() } else { words.join(", ") }
}

/// Welch's test for each pair of groups that differ in one factor; for a numeric factor,
/// neighbouring values only.
fn compare(groups: &[Group], varied: &[Factor]) -> Vec<Comparison> {
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

/// Welch's test for each pair of allocations of a condition.
fn compare_allocations(group: &Group) -> Vec<AllocationComparison> {
    let mut comparisons = Vec::new();
    for (index, first) in group.allocations.iter().enumerate().rev() {
        for second in group.allocations[..index].iter().rev() {
            let Some(welch) = welch(&first.values, &second.values) else { continue };
            comparisons.push(AllocationComparison {
                // They are in the order of the smallest number.
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

/// A condition in a few words; a value that calibration has to find is called that.
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

/// A condition in a few words.
pub(crate) fn describe(settings: &Settings) -> String {
    words(Factor::DataSize.text(settings), hosts(settings.hosts), settings)
}

fn hosts(number: u32) -> String {
    if number == 1 { "1 host".to_owned() } else { format!("{number} hosts") }
}

fn words(data: String, hosts: String, settings: &Settings) -> String {
    let mut words = vec![data, format!("{hosts} x {} processes", settings.processes)];
    words.extend(settings.count.map(|count| format!("count {count}")));
    words.extend(settings.chooser.clone());
    if settings.applications > 1 {
        words.push(format!("{} applications", settings.applications));
        words.push(format!("targets {}", settings.targets.word()));
    }
    if settings.access == Access::FilePerProcess {
        words.push(settings.access.word().to_owned());
    }
    if settings.operation == Operation::Read {
        words.push(settings.operation.word().to_owned());
    }
    words.join(", ")
}

/// Bytes per second, for people.
pub(crate) fn mib(bytes_per_second: f64) -> f64 {
    bytes_per_second / f64::from(1 << 20)
}
