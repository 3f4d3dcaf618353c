//! The conclusions of a report, in sentences. Each conclusion contains the numbers on which it is
//! based.
//!
//! The doc comment of each function states the rule for its conclusion. The module leaves out each
//! sentence that the results do not support.

mod limits;
mod warm_up;

use super::{Comparison, ExperimentReport, Factor, Group, label, mib};
use crate::journal::Contents;
use crate::record::CalibratedRecord;
use crate::statistics::{Welch, mean, welch};
use serde::Serialize;
use skep_types::size;
use std::collections::BTreeMap;

/// A mean counts as good as the best mean if it is lower by at most this fraction.
const AS_GOOD: f64 = 0.05;
/// Significance level. A difference counts only if its p-value is below this level, and the
/// difference is at least [`LEAST`].
const SIGNIFICANT: f64 = 0.05;
/// Smallest difference that counts, as a fraction. With many runs and little variance, even a tiny
/// difference would be significant.
const LEAST: f64 = 0.01;
/// A value of a factor counts as a dip if a smaller value and a larger value have a higher
/// bandwidth. Each of the two differences must be more than this fraction.
const DIP: f64 = 0.15;

/// A conclusion: one or more sentences about one subject.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Conclusion {
    /// The subject: `limit`, `modes`, `calibration`, `warm-up`, or the name of a factor.
    pub about: &'static str,
    /// Name of the experiment from which the conclusion follows.
    pub experiment: String,
    /// The sentences of the conclusion.
    pub text: String,
    /// The numbers on which the sentences are based.
    pub figures: Vec<Figure>,
}

/// A number on which a conclusion is based.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    /// The meaning of the number.
    pub what: String,
    /// Value of the number.
    pub value: f64,
    /// Unit of the number: `MiB/s`, `%`, or empty.
    pub unit: &'static str,
}

fn bandwidth(what: impl Into<String>, bytes_per_second: f64) -> Figure {
    Figure { what: what.into(), value: mib(bytes_per_second), unit: "MiB/s" }
}

fn percent(what: impl Into<String>, share: f64) -> Figure {
    Figure { what: what.into(), value: share * 100.0, unit: "%" }
}

fn number(what: impl Into<String>, value: f64) -> Figure {
    Figure { what: what.into(), value, unit: "" }
}

/// Returns all conclusions that the results support.
pub(super) fn draw(
    contents: &Contents,
    experiments: &[ExperimentReport],
    calibrated: Option<&CalibratedRecord>,
) -> Vec<Conclusion> {
    let mut all = Vec::new();
    all.extend(calibrated.map(first_step));
    all.extend(warm_up::draw(contents));
    all.extend(limits::draw(experiments));
    for experiment in experiments {
        if !experiment.quantity.is_bandwidth() {
            // All other conclusions are about bandwidth, which this experiment does not measure.
            all.extend(experiment.comparisons.iter().filter_map(|it| two_ways(experiment, it)));
            continue;
        }
        all.extend(chooser(experiment));
        all.extend(count(experiment));
        for factor in [Factor::DataSize, Factor::Processes, Factor::Transfer] {
            all.extend(levels_off(experiment, factor));
        }
        all.extend(experiment.comparisons.iter().filter_map(|it| two_ways(experiment, it)));
        all.extend(applications(experiment));
        all.extend(experiment.groups.iter().filter_map(|group| modes(experiment, group)));
        all.extend(allocations(experiment));
    }
    all
}

fn first_step(found: &CalibratedRecord) -> Conclusion {
    let (number, unit) = size::whole(found.data_bytes);
    let enough = |is_enough| match is_enough {
        true => "more does not increase bandwidth",
        false => "the largest tested value, so a larger value may increase bandwidth",
    };
    Conclusion {
        about: "calibration",
        experiment: "first step".to_owned(),
        text: format!(
            "The study used {number}{unit} of data ({}) and {} client hosts ({}).",
            enough(found.is_data_enough),
            found.hosts,
            enough(found.are_hosts_enough)
        ),
        figures: vec![],
    }
}

/// Returns lists of groups. The groups in a list differ only in `factor`, and are in ascending
/// order of its values. Each list has a label with the values of the other factors.
fn lines(experiment: &ExperimentReport, factor: Factor) -> Vec<(String, Vec<&Group>)> {
    if !experiment.varied.contains(&factor) {
        return vec![];
    }
    let others: Vec<Factor> =
        experiment.varied.iter().filter(|it| **it != factor).copied().collect();
    let mut lines: BTreeMap<String, Vec<&Group>> = BTreeMap::new();
    for group in &experiment.groups {
        let common =
            if others.is_empty() { String::new() } else { label(&group.settings, &others) };
        lines.entry(common).or_default().push(group);
    }
    for line in lines.values_mut() {
        line.sort_by_key(|group| factor.number(&group.settings));
    }
    lines.into_iter().filter(|(_, line)| line.len() > 1).collect()
}

fn best<'a>(line: &[&'a Group]) -> &'a Group {
    let mut best = line[0];
    for group in line {
        if group.summary.mean > best.summary.mean {
            best = group;
        }
    }
    best
}

/// Returns the first group in the list whose mean is as good as the best mean.
fn first_as_good<'a>(line: &[&'a Group]) -> &'a Group {
    let enough = best(line).summary.mean * (1.0 - AS_GOOD);
    line.iter().find(|group| group.summary.mean >= enough).copied().unwrap_or(best(line))
}

fn means(line: &[&Group], factor: Factor) -> Vec<Figure> {
    line.iter()
        .map(|group| {
            let what = format!("{} {}", factor.word(), factor.text(&group.settings));
            bandwidth(format!("mean with {what}"), group.summary.mean)
        })
        .collect()
}

fn among(common: &str) -> String {
    if common.is_empty() { String::new() } else { format!(" ({common})") }
}

/// Whether the means of two groups differ significantly, and by at least [`LEAST`].
pub(super) fn is_difference(welch: &Welch) -> bool {
    let gain = welch.gain.abs().max((1.0 / (1.0 + welch.gain) - 1.0).abs());
    welch.p < SIGNIFICANT && gain >= LEAST
}

/// Describes a gain or a loss in words, such as `3 % more than shared` or `as much as shared`.
pub(super) fn against(share: f64, other: &str) -> String {
    match share {
        share if share >= LEAST => format!("{:.0} % more than {other}", share * 100.0),
        share if share <= -LEAST => format!("{:.0} % less than {other}", -share * 100.0),
        _ => format!("as much as {other}"),
    }
}

/// Names the best placement policy, which has the highest mean over all values of the other
/// factors. For some combination of the other factors, its gain over another policy must be more
/// than 5 % and significant. The conclusion states the largest of these gains.
fn chooser(experiment: &ExperimentReport) -> Option<Conclusion> {
    if !experiment.varied.contains(&Factor::Chooser) {
        return None;
    }
    let mut by_chooser: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for group in &experiment.groups {
        let means = by_chooser.entry(Factor::Chooser.text(&group.settings)).or_default();
        means.push(group.summary.mean);
    }
    let over_all = by_chooser.iter().map(|(chooser, means)| (mean(means), chooser));
    let mut over_all: Vec<(f64, &String)> = over_all.collect();
    over_all.sort_by(|one, two| two.0.total_cmp(&one.0));
    let (top, chooser) = *over_all.first()?;
    let mut figures: Vec<Figure> = over_all
        .iter()
        .map(|(mean, chooser)| bandwidth(format!("mean of {chooser} over all conditions"), *mean))
        .collect();
    let gains = experiment.comparisons.iter().filter(|it| it.factor == Factor::Chooser);
    let gains = gains.filter_map(|it| match (&it.first == chooser, &it.second == chooser) {
        (true, _) => Some((it.welch.gain, &it.second, it)),
        (_, true) => Some((1.0 / (1.0 + it.welch.gain) - 1.0, &it.first, it)),
        _ => None,
    });
    let largest = gains.max_by(|one, two| one.0.total_cmp(&two.0));
    let clearly = largest.filter(|(gain, _, it)| *gain > AS_GOOD && is_difference(&it.welch));
    let text = match clearly {
        Some((gain, other, it)) => {
            figures.push(percent(format!("{chooser} over {other}{}", among(&it.among)), gain));
            figures.push(number("p-value (Welch)", it.welch.p));
            format!(
                "Use the chooser {chooser}: with {}, it gives {}; over all conditions, it gives \
                 {}.",
                it.among,
                against(gain, other),
                against(top / over_all.last().map_or(top, |it| it.0) - 1.0, "the worst")
            )
        }
        None => "No chooser is clearly better than another here.".to_owned(),
    };
    Some(conclusion("chooser", experiment, text, figures))
}

/// Names the smallest number of targets that is as good as the best number. Uses the combination of
/// the other factors that gives the highest bandwidth.
fn count(experiment: &ExperimentReport) -> Option<Conclusion> {
    let lines = lines(experiment, Factor::Count);
    let (common, line) =
        lines.iter().max_by(|one, two| mean_of(&one.1).total_cmp(&mean_of(&two.1)))?;
    let (enough, top) = (first_as_good(line), best(line));
    let mut figures = means(line, Factor::Count);
    let lowest = line.iter().map(|it| it.summary.mean).fold(f64::INFINITY, f64::min);
    figures.push(percent("best number of targets over the worst", top.summary.mean / lowest - 1.0));
    let as_good: Vec<String> = line
        .iter()
        .filter(|it| it.summary.mean >= top.summary.mean * (1.0 - AS_GOOD))
        .map(|it| Factor::Count.text(&it.settings))
        .collect();
    let text = match as_good.len() == line.len() {
        true => format!(
            "The number of targets makes no difference{}: all are within 5 % of the best.",
            among(common)
        ),
        false => format!(
            "Files of {} targets are the narrowest that get full bandwidth{}; within 5 % of the \
             best: {}. Full bandwidth is {:.0} % more than the bandwidth with the worst number of \
             targets.",
            Factor::Count.text(&enough.settings),
            among(common),
            as_good.join(", "),
            (top.summary.mean / lowest - 1.0) * 100.0
        ),
    };
    Some(conclusion("count", experiment, text, figures))
}

fn mean_of(line: &[&Group]) -> f64 {
    mean(&line.iter().map(|group| group.summary.mean).collect::<Vec<_>>())
}

/// Names the smallest value of a factor that is as good as the best value. Uses the combination of
/// the other factors that gives the highest bandwidth.
fn levels_off(experiment: &ExperimentReport, factor: Factor) -> Option<Conclusion> {
    let lines = lines(experiment, factor);
    let (common, line) =
        lines.iter().max_by(|one, two| mean_of(&one.1).total_cmp(&mean_of(&two.1)))?;
    let (enough, last) = (first_as_good(line), line[line.len() - 1]);
    let mut figures = means(line, factor);
    let dips = dips(line, factor, &mut figures);
    let text = match enough.settings == last.settings {
        true => format!(
            "Bandwidth still grows with {} at {}, the most that was tried{}{dips}.",
            factor.word(),
            factor.text(&last.settings),
            among(common)
        ),
        false => format!(
            "From {} {} on, bandwidth grows by less than 5 %{}{dips}.",
            factor.word(),
            factor.text(&enough.settings),
            among(common)
        ),
    };
    Some(conclusion(factor.word(), experiment, text, figures))
}

/// Names the dips of a factor: the values whose bandwidth is more than 15 % below the bandwidth of
/// a smaller value and below the bandwidth of a larger value.
fn dips(line: &[&Group], factor: Factor, figures: &mut Vec<Figure>) -> String {
    let highest = |part: &[&Group]| part.iter().map(|it| it.summary.mean).fold(0.0, f64::max);
    let mut text = String::new();
    for (index, group) in line.iter().enumerate() {
        let around = highest(&line[..index]).min(highest(&line[index + 1..]));
        let below = 1.0 - group.summary.mean / around;
        if around == 0.0 || below <= DIP {
            continue;
        }
        let value = factor.text(&group.settings);
        figures.push(percent(format!("{value} below a smaller and a larger value"), below));
        let percent = below * 100.0;
        text += &format!(
            "; but with {value}, bandwidth is at least {percent:.0} % below the bandwidth with a \
             smaller value and with a larger value"
        );
    }
    text
}

/// Compares the two values of a factor that is neither a number nor the placement policy: shared or
/// separate targets, N-1 or N-N, writing or reading. States the difference of the means, and the
/// result of Welch's test.
fn two_ways(experiment: &ExperimentReport, it: &Comparison) -> Option<Conclusion> {
    if it.factor == Factor::Chooser || it.factor.is_number() {
        return None;
    }
    let figures = vec![
        percent(format!("{} over {}{}", it.first, it.second, among(&it.among)), it.welch.gain),
        number("t (Welch)", it.welch.t),
        number("degrees of freedom", it.welch.freedom),
        number("p-value", it.welch.p),
    ];
    let (more, less, gain) = match it.welch.gain >= 0.0 {
        true => (&it.first, &it.second, it.welch.gain),
        false => (&it.second, &it.first, 1.0 / (1.0 + it.welch.gain) - 1.0),
    };
    let common = if it.among == "all runs" { String::new() } else { among(&it.among) };
    let text = match is_difference(&it.welch) {
        true => format!(
            "Compared by {}, the rate with {more} is {:.1} % higher than with {less}{common} ({}).",
            it.factor.axis(),
            gain * 100.0,
            chance(it.welch.p)
        ),
        false if gain < LEAST => format!(
            "Compared by {}, {} and {} reach the same rate{common}: they differ by less than 1 % \
             ({}).",
            it.factor.axis(),
            it.first,
            it.second,
            chance(it.welch.p)
        ),
        false => format!(
            "Compared by {}, {} and {} do not differ significantly{common}: {:.1} % ({}).",
            it.factor.axis(),
            it.first,
            it.second,
            gain * 100.0,
            chance(it.welch.p)
        ),
    };
    Some(conclusion(it.factor.word(), experiment, text, figures))
}

/// Formats a p-value for people.
fn chance(p: f64) -> String {
    if p < 0.0001 { "p < 0.0001".to_owned() } else { format!("p = {p:.4}") }
}

/// Compares the aggregate bandwidth of several applications with the bandwidth of one application.
fn applications(experiment: &ExperimentReport) -> Option<Conclusion> {
    let lines = lines(experiment, Factor::Applications);
    let mut figures = Vec::new();
    let mut sentences = Vec::new();
    for (common, line) in &lines {
        let (one, last) = (line[0], line[line.len() - 1]);
        if one.settings.applications != 1 {
            continue;
        }
        let found = welch(&last.values, &one.values);
        for group in line {
            let what = format!("{} applications{}", group.settings.applications, among(common));
            figures.push(bandwidth(format!("together, {what}"), group.summary.mean));
            figures.push(bandwidth(format!("each, {what}"), group.mean_of_each_application));
        }
        // With too few runs, there is no test result. The sentence then claims no difference.
        let growth = found.filter(is_difference).map_or(0.0, |it| it.gain);
        figures.extend(
            found.map(|it| number(format!("p-value of the difference{}", among(common)), it.p)),
        );
        sentences.push(format!(
            "{} applications together get {}{}.",
            last.settings.applications,
            against(growth, "one alone"),
            among(common)
        ));
    }
    let text = sentences.join(" ");
    (!text.is_empty()).then(|| conclusion("applications", experiment, text, figures))
}

/// If the results of a group have two modes, describes both modes, and the allocations that explain
/// the modes.
fn modes(experiment: &ExperimentReport, group: &Group) -> Option<Conclusion> {
    let found = group.bimodality.filter(|it| it.is_bimodal)?;
    let [low, high] = found.modes;
    let mut figures = vec![
        bandwidth("lower mode", low.mean),
        bandwidth("upper mode", high.mean),
        percent("share of runs in the lower mode", low.share),
        number("evidence (BIC of one minus BIC of two)", found.evidence),
        number("separation (Ashman's D)", found.separation),
    ];
    let mut text = format!(
        "Results of {} have two modes, {:.0} and {:.0} MiB/s ({:.0} % and {:.0} % of runs): their \
         mean describes neither mode.",
        group.label,
        mib(low.mean),
        mib(high.mean),
        low.share * 100.0,
        high.share * 100.0
    );
    if group.allocations.len() > 1 {
        let parts: Vec<String> = group
            .allocations
            .iter()
            .map(|it| format!("{} gives {:.0} MiB/s", it.min_max, mib(it.summary.mean)))
            .collect();
        text.push_str(&format!(" The allocation determines the mode: {}.", parts.join(", ")));
        figures.extend(group.allocations.iter().map(|it| {
            bandwidth(
                format!("mean of {} ({} runs)", it.min_max, it.summary.count),
                it.summary.mean,
            )
        }));
    }
    Some(conclusion("modes", experiment, text, figures))
}

/// For conditions whose results do not have two modes: states the effect of the allocation of a
/// file.
fn allocations(experiment: &ExperimentReport) -> Option<Conclusion> {
    let mut figures = Vec::new();
    let (mut alike, mut different) = (Vec::new(), Vec::new());
    for it in &experiment.of_allocations {
        let group = experiment.groups.iter().find(|group| group.label == it.among);
        if group.and_then(|it| it.bimodality).is_some_and(|it| it.is_bimodal) {
            continue;
        }
        let (first, second) = (it.first, it.second);
        let pair = format!("{first} over {second} ({})", it.among);
        figures.push(percent(pair.clone(), it.welch.gain));
        figures.push(number(format!("p-value (Welch), {pair}"), it.welch.p));
        let chance = format!("{}, {} and {} runs", chance(it.welch.p), it.runs[0], it.runs[1]);
        match is_difference(&it.welch) {
            true => different.push(format!(
                "{first} gives {} ({}; {chance})",
                against(it.welch.gain, &second.to_string()),
                it.among
            )),
            false => alike.push(format!("{first} and {second} ({chance})")),
        }
    }
    let mut text = Vec::new();
    if !different.is_empty() {
        text.push(format!("The allocation makes a difference: {}.", different.join("; ")));
    }
    if !alike.is_empty() {
        let alike = alike.join(", ");
        text.push(format!("Allocations that do not differ significantly: {alike}."));
    }
    let text = text.join(" ");
    (!text.is_empty()).then(|| conclusion("allocation", experiment, text, figures))
}

fn conclusion(
    about: &'static str,
    experiment: &ExperimentReport,
    text: String,
    figures: Vec<Figure>,
) -> Conclusion {
    Conclusion { about, experiment: experiment.name.clone(), text, figures }
}
