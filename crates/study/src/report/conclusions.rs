//! What results mean, in words, each sentence with the numbers that it rests on.
//!
//! Every rule is stated beside it; where results don't carry a sentence, there is none.

use super::{Comparison, ExperimentReport, Factor, Group, label, mib};
use crate::record::{CalibratedRecord, MinMax};
use crate::statistics::mean;
use serde::Serialize;
use skep_types::size;
use std::collections::BTreeMap;

/// A mean that is less than this share below the best one is as good.
const AS_GOOD: f64 = 0.05;
/// Results of targets that share a server differ by less than this share if the server, or its
/// link, is the limit.
const FLAT: f64 = 0.15;
/// A difference whose probability by chance is below this is one.
const SIGNIFICANT: f64 = 0.05;

/// A sentence, or several, on one subject.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Conclusion {
    /// What it is about: `limit`, `modes`, or a factor of plans.
    pub about: &'static str,
    /// The experiment that it comes from.
    pub experiment: String,
    /// The sentences.
    pub text: String,
    /// The numbers behind them.
    pub figures: Vec<Figure>,
}

/// A number behind a conclusion.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    /// What it is.
    pub what: String,
    /// How much.
    pub value: f64,
    /// Of what: `MiB/s`, `%`, or nothing.
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

/// All that can be said.
pub(super) fn draw(
    experiments: &[ExperimentReport],
    calibrated: Option<&CalibratedRecord>,
) -> Vec<Conclusion> {
    let mut all = Vec::new();
    all.extend(calibrated.map(first_step));
    for experiment in experiments {
        all.extend(limit_of_servers(experiment));
        all.extend(chooser(experiment));
        all.extend(count(experiment));
        all.extend(hosts(experiment));
        for factor in [Factor::DataSize, Factor::Processes, Factor::Transfer] {
            all.extend(levels_off(experiment, factor));
        }
        all.extend(experiment.comparisons.iter().filter_map(|it| two_ways(experiment, it)));
        all.extend(applications(experiment));
        all.extend(experiment.groups.iter().filter_map(|group| modes(experiment, group)));
    }
    all
}

fn first_step(found: &CalibratedRecord) -> Conclusion {
    let (number, unit) = size::whole(found.data_bytes);
    let enough = |is_enough| match is_enough {
        true => "more brings nothing",
        false => "the most that was tried: more may bring more",
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

/// Groups whose settings differ in one factor alone, in the order of that factor's numbers, with
/// the words for what they have in common.
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

/// The first one whose mean is as good as the best.
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

/// What limits: looks at allocations with the same number of targets on each server. If more of
/// them on each server bring less than 15 % more, what they share is the limit: the server's link
/// (or the server). If bandwidth grows at least half as fast as their number, they are themselves.
fn limit_of_servers(experiment: &ExperimentReport) -> Option<Conclusion> {
    let others = |it: &&Factor| !matches!(it, Factor::Count | Factor::Chooser);
    let others: Vec<Factor> = experiment.varied.iter().filter(others).copied().collect();
    // Of what else varies, the values with which bandwidth is highest: others may be limited by
    // something that isn't the servers.
    let top = best(&experiment.groups.iter().collect::<Vec<_>>());
    let common = label(&top.settings, &others);
    let mut by_allocation: BTreeMap<MinMax, Vec<f64>> = BTreeMap::new();
    for group in experiment.groups.iter().filter(|it| label(&it.settings, &others) == common) {
        for it in &group.allocations {
            by_allocation.entry(it.min_max).or_default().extend_from_slice(&it.values);
        }
    }
    let means: BTreeMap<MinMax, f64> =
        by_allocation.iter().map(|(min_max, values)| (*min_max, mean(values))).collect();
    let even: Vec<(MinMax, f64)> =
        means.iter().filter(|(it, _)| it.0 == it.1).map(|(it, mean)| (*it, *mean)).collect();
    let (&(least, of_least), &(most, of_most)) = (even.first()?, even.last()?);
    if least == most {
        return None;
    }
    let growth = of_most / of_least - 1.0;
    let wider = f64::from(most.1) / f64::from(least.1) - 1.0;
    let mut figures: Vec<Figure> =
        means.iter().map(|(it, mean)| bandwidth(format!("mean of {it}"), *mean)).collect();
    figures.push(percent(format!("{most} over {least}"), growth));
    let text = if growth < FLAT {
        let uneven = uneven_ones(&means, of_most, &mut figures);
        format!(
            "The network is the limit: each server's link, or the server itself, not its targets. \
             {most} targets on a server bring no more than {least}.{uneven}",
            most = most.1,
            least = least.1
        )
    } else if growth > 0.5 * wider {
        format!(
            "The targets are the limit: bandwidth grows with their number, by {:.0} % from {} to \
             {} on each server. Large files should use all of them.",
            growth * 100.0,
            least.1,
            most.1
        )
    } else {
        format!(
            "Few targets limit themselves, many are limited by what they share (the server's link, \
             or the clients): from {} to {} on each server bandwidth grows by {:.0} %.",
            least.1,
            most.1,
            growth * 100.0
        )
    };
    Some(conclusion("limit", experiment, text, figures))
}

/// How well bandwidth follows from the server that has the most targets: with its link as the
/// limit, a file of (a,b) gets (a + b) / b times what one link gives.
fn uneven_ones(means: &BTreeMap<MinMax, f64>, of_even: f64, figures: &mut Vec<Figure>) -> String {
    // A single target can't be divided.
    let uneven = || means.iter().filter(|(it, _)| it.0 != it.1 && it.0 + it.1 > 1);
    let expected = |it: &MinMax| of_even / 2.0 * f64::from(it.0 + it.1) / f64::from(it.1);
    let off = |(it, mean): (&MinMax, &f64)| (mean / expected(it) - 1.0).abs();
    let Some(worst) = uneven().map(off).max_by(f64::total_cmp) else { return String::new() };
    figures.push(percent("largest distance from what min/max says", worst));
    let (lowest, low) = uneven().min_by(|one, two| one.1.total_cmp(two.1)).expect("one is there");
    figures.push(percent(format!("even allocations over {lowest}"), of_even / low - 1.0));
    format!(
        " So the server with the most targets of a file decides: bandwidth follows the ratio \
         min/max to within {:.0} %, and files whose targets are evenly divided get {:.0} % more \
         than those of {lowest}.",
        worst * 100.0,
        (of_even / low - 1.0) * 100.0
    )
}

/// Which chooser: the one with the highest mean over all that else varies, if anywhere it gains
/// more than 5 % and not by chance. What it gains is said where it gains most.
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
        .map(|(mean, chooser)| bandwidth(format!("mean of {chooser} over all"), *mean))
        .collect();
    let gains = experiment.comparisons.iter().filter(|it| it.factor == Factor::Chooser);
    let gains = gains.filter_map(|it| match (&it.first == chooser, &it.second == chooser) {
        (true, _) => Some((it.welch.gain, &it.second, it)),
        (_, true) => Some((1.0 / (1.0 + it.welch.gain) - 1.0, &it.first, it)),
        _ => None,
    });
    let largest = gains.max_by(|one, two| one.0.total_cmp(&two.0));
    let clearly = largest.filter(|(gain, _, it)| *gain > AS_GOOD && it.welch.p < SIGNIFICANT);
    let text = match clearly {
        Some((gain, other, it)) => {
            figures.push(percent(format!("{chooser} over {other}{}", among(&it.among)), gain));
            figures.push(number("probability by chance (Welch)", it.welch.p));
            format!(
                "Use the chooser {chooser}: with {} it gives {:.0} % more than {other}, over \
                 everything {:.0} % more than the worst.",
                it.among,
                gain * 100.0,
                (top / over_all.last().map_or(top, |it| it.0) - 1.0) * 100.0
            )
        }
        None => "No chooser is clearly better than another here.".to_owned(),
    };
    Some(conclusion("chooser", experiment, text, figures))
}

/// How many targets: the smallest number that is as good as the best, with the chooser that is
/// best.
fn count(experiment: &ExperimentReport) -> Option<Conclusion> {
    let lines = lines(experiment, Factor::Count);
    let (common, line) =
        lines.iter().max_by(|one, two| mean_of(&one.1).total_cmp(&mean_of(&two.1)))?;
    let (enough, top) = (first_as_good(line), best(line));
    let mut figures = means(line, Factor::Count);
    let lowest = line.iter().map(|it| it.summary.mean).fold(f64::INFINITY, f64::min);
    figures.push(percent("best over worst count", top.summary.mean / lowest - 1.0));
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
             best: {}. It is {:.0} % more than with the worst count.",
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

/// How many client hosts, and whether they are the limit: they are if the largest number that was
/// tried is clearly better than the one before.
fn hosts(experiment: &ExperimentReport) -> Option<Conclusion> {
    let lines = lines(experiment, Factor::Hosts);
    let (common, line) =
        lines.iter().max_by(|one, two| mean_of(&one.1).total_cmp(&mean_of(&two.1)))?;
    let enough = first_as_good(line);
    let figures = means(line, Factor::Hosts);
    let text = match enough.settings == line[line.len() - 1].settings {
        true => format!(
            "The clients are the limit{}: {} client hosts, the most that were tried, still get \
             more than fewer do.",
            among(common),
            enough.settings.hosts
        ),
        false => format!(
            "{} client hosts are enough{}: more get less than 5 % more.",
            enough.settings.hosts,
            among(common)
        ),
    };
    Some(conclusion("hosts", experiment, text, figures))
}

/// From which value of a factor on bandwidth is as good as it gets.
fn levels_off(experiment: &ExperimentReport, factor: Factor) -> Option<Conclusion> {
    let lines = lines(experiment, factor);
    let (common, line) =
        lines.iter().max_by(|one, two| mean_of(&one.1).total_cmp(&mean_of(&two.1)))?;
    let (enough, last) = (first_as_good(line), line[line.len() - 1]);
    let text = match enough.settings == last.settings {
        true => format!(
            "Bandwidth still grows with {} at {}, the most that was tried{}.",
            factor.word(),
            factor.text(&last.settings),
            among(common)
        ),
        false => format!(
            "From {} {} on bandwidth grows by less than 5 %{}.",
            factor.word(),
            factor.text(&enough.settings),
            among(common)
        ),
    };
    Some(conclusion(factor.word(), experiment, text, means(line, factor)))
}

/// Shared or separate targets, N-1 or N-N, writing or reading: two means and Welch's test.
fn two_ways(experiment: &ExperimentReport, it: &Comparison) -> Option<Conclusion> {
    if it.factor == Factor::Chooser {
        return None;
    }
    let figures = vec![
        percent(format!("{} over {}{}", it.first, it.second, among(&it.among)), it.welch.gain),
        number("t (Welch)", it.welch.t),
        number("degrees of freedom", it.welch.freedom),
        number("probability by chance", it.welch.p),
    ];
    let (more, less, gain) = match it.welch.gain >= 0.0 {
        true => (&it.first, &it.second, it.welch.gain),
        false => (&it.second, &it.first, 1.0 / (1.0 + it.welch.gain) - 1.0),
    };
    let common = if it.among == "all runs" { String::new() } else { among(&it.among) };
    let text = match it.welch.p < SIGNIFICANT {
        true => format!(
            "Of {}, {more} gives {:.1} % more than {less}{common} ({}).",
            it.factor.axis(),
            gain * 100.0,
            chance(it.welch.p)
        ),
        false => format!(
            "Of {}, {} and {} don't differ significantly{common}: {:.1} % ({}).",
            it.factor.axis(),
            it.first,
            it.second,
            gain * 100.0,
            chance(it.welch.p)
        ),
    };
    Some(conclusion(it.factor.word(), experiment, text, figures))
}

/// A probability for people.
fn chance(p: f64) -> String {
    if p < 0.0001 { "p < 0.0001".to_owned() } else { format!("p = {p:.4}") }
}

/// What several applications get together, against one.
fn applications(experiment: &ExperimentReport) -> Option<Conclusion> {
    let lines = lines(experiment, Factor::Applications);
    let mut figures = Vec::new();
    let mut sentences = Vec::new();
    for (common, line) in &lines {
        let (one, last) = (line[0], line[line.len() - 1]);
        if one.settings.applications != 1 {
            continue;
        }
        let growth = last.summary.mean / one.summary.mean - 1.0;
        for group in line {
            let what = format!("{} applications{}", group.settings.applications, among(common));
            figures.push(bandwidth(format!("together, {what}"), group.summary.mean));
            figures.push(bandwidth(format!("each, {what}"), group.mean_of_each_application));
        }
        sentences.push(format!(
            "{} applications together get {:.0} % {} one alone{}.",
            last.settings.applications,
            growth.abs() * 100.0,
            if growth >= 0.0 { "more than" } else { "less than" },
            among(common)
        ));
    }
    let text = sentences.join(" ");
    (!text.is_empty()).then(|| conclusion("applications", experiment, text, figures))
}

/// Two modes, and whether the allocation explains them.
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
         mean is no result.",
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
        text.push_str(&format!(" Where the targets lie says which: {}.", parts.join(", ")));
        figures.extend(group.allocations.iter().map(|it| {
            bandwidth(
                format!("mean of {} ({} runs)", it.min_max, it.summary.count),
                it.summary.mean,
            )
        }));
    }
    Some(conclusion("modes", experiment, text, figures))
}

fn conclusion(
    about: &'static str,
    experiment: &ExperimentReport,
    text: String,
    figures: Vec<Figure>,
) -> Conclusion {
    Conclusion { about, experiment: experiment.name.clone(), text, figures }
}
