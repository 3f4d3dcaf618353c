//! Finds the part that limits a system: its clients, the links of its servers, or its targets. One
//! conclusion covers clients, links and targets, so that results with few clients do not seem to
//! contradict results with many clients.

use super::{
    Conclusion, Figure, against, among, bandwidth, best, conclusion, first_as_good, lines, mean_of,
    means, percent,
};
use crate::plan::Cache;
use crate::record::MinMax;
use crate::report::{ExperimentReport, Factor, label};
use crate::statistics::mean;
use std::collections::BTreeMap;

/// If more targets on each server increase the bandwidth by at most this fraction, the limit is not
/// the targets, but the server or its link.
const FLAT: f64 = 0.15;

/// The part that limits a system that has enough clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Limit {
    Network,
    Targets,
    Both,
}

/// The limit of the servers, measured with enough clients.
struct Servers<'a> {
    experiment: &'a ExperimentReport,
    limit: Limit,
    /// Further sentences about this limit.
    text: String,
    figures: Vec<Figure>,
}

/// How many client hosts are needed to saturate the servers.
struct Clients<'a> {
    experiment: &'a ExperimentReport,
    /// The values of the other factors. All compared groups have the same values.
    common: String,
    /// The smallest number of client hosts that is as good as the best number.
    enough: u32,
    is_fewest: bool,
    is_most: bool,
    figures: Vec<Figure>,
}

/// Returns one conclusion about clients and servers together. If the experiments disagree about the
/// limit of the servers, returns one conclusion for each limit.
pub(super) fn draw(experiments: &[ExperimentReport]) -> Vec<Conclusion> {
    let mut found: Vec<Servers<'_>> = Vec::new();
    let experiments: Vec<&ExperimentReport> =
        experiments.iter().filter(|it| shows_limit(it)).collect();
    for servers in experiments.iter().filter_map(|it| servers(it)) {
        if found.iter().all(|it| it.limit != servers.limit) {
            found.push(servers);
        }
    }
    // Use the experiment that needs the most client hosts, because in the other experiments, the
    // clients may be the limit.
    let mut most: Option<Clients<'_>> = None;
    for clients in experiments.iter().filter_map(|it| clients(it)) {
        if most.as_ref().is_none_or(|it| it.enough < clients.enough) {
            most = Some(clients);
        }
    }
    if found.is_empty() {
        return most.into_iter().map(clients_alone).collect();
    }
    found.into_iter().map(|servers| both(servers, most.as_ref())).collect()
}

/// Whether an experiment can show the limit of the system: it measures bandwidth, and reads nothing
/// from caches.
fn shows_limit(experiment: &ExperimentReport) -> bool {
    let reads_caches = experiment.groups.iter().any(|it| it.settings.cache == Cache::Kept);
    experiment.quantity.is_bandwidth() && !reads_caches
}

fn both(servers: Servers<'_>, clients: Option<&Clients<'_>>) -> Conclusion {
    let Servers { experiment, limit, text, mut figures } = servers;
    let what = match limit {
        Limit::Network => "network is",
        Limit::Targets => "targets are",
        Limit::Both => {
            "targets (of files with few targets) and a shared part (of files with many) are"
        }
    };
    let text = match clients {
        None => format!("The {what} the limit{text}"),
        Some(clients) => {
            figures.extend(clients.figures.iter().cloned());
            let (enough, common) = (hosts(clients.enough), among(&clients.common));
            match (clients.is_fewest, clients.is_most) {
                (true, _) => format!(
                    "From {enough} on, the fewest that were tried{common}, the {what} the \
                     limit{text}"
                ),
                (_, true) => format!(
                    "With fewer than {enough}, the clients are the limit{common}; with {}, the \
                     most that were tried, the {what} the limit{text}",
                    clients.enough
                ),
                _ => format!(
                    "With fewer than {enough}, the clients are the limit{common}; from {} on, the \
                     {what} the limit{text}",
                    clients.enough
                ),
            }
        }
    };
    conclusion("limit", experiment, text, figures)
}

fn clients_alone(it: Clients<'_>) -> Conclusion {
    let (enough, common) = (hosts(it.enough), among(&it.common));
    let text = match it.is_most {
        true => format!(
            "The clients are the limit{common}: {enough}, the most that were tried, still get more \
             bandwidth than fewer hosts."
        ),
        false if it.enough == 1 => {
            format!("One client host is enough{common}: more hosts gain less than 5 %.")
        }
        false => format!("{enough} are enough{common}: more hosts gain less than 5 %."),
    };
    conclusion("hosts", it.experiment, text, it.figures)
}

fn hosts(number: u32) -> String {
    if number == 1 { "one client host".to_owned() } else { format!("{number} client hosts") }
}

/// Finds the smallest number of client hosts that is as good as the best number. With fewer client
/// hosts, the clients are the limit.
fn clients(experiment: &ExperimentReport) -> Option<Clients<'_>> {
    let lines = lines(experiment, Factor::Hosts);
    let (common, line) =
        lines.iter().max_by(|one, two| mean_of(&one.1).total_cmp(&mean_of(&two.1)))?;
    let enough = first_as_good(line).settings.hosts;
    Some(Clients {
        experiment,
        common: common.clone(),
        enough,
        is_fewest: enough == line[0].settings.hosts,
        is_most: enough == line[line.len() - 1].settings.hosts,
        figures: means(line, Factor::Hosts),
    })
}

/// Finds the part that limits the servers, from allocations with the same number of targets on each
/// server. If more targets on each server gain less than 15 %, the limit is the server or its link,
/// which these targets share. If the bandwidth grows more than half as fast as the number of
/// targets, the targets are the limit.
fn servers(experiment: &ExperimentReport) -> Option<Servers<'_>> {
    let others = |it: &&Factor| !matches!(it, Factor::Count | Factor::Chooser);
    let others: Vec<Factor> = experiment.varied.iter().filter(others).copied().collect();
    // Compare only groups that have the same values as the group with the highest bandwidth, in all
    // factors except `Count` and `Chooser`. With other values of these factors, another part of
    // the system may be the limit.
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
    let (limit, text) = if growth < FLAT {
        let uneven = uneven_ones(&means, of_most, &mut figures);
        let text = format!(
            ": each server's link, or the server itself, not its targets. {} targets on a server \
             bring no more than {}.{uneven}",
            most.1, least.1
        );
        (Limit::Network, text)
    } else {
        let how =
            format!("by {:.0} % from {} to {} on each server", growth * 100.0, least.1, most.1);
        match growth > 0.5 * wider {
            true => (
                Limit::Targets,
                format!(
                    ": bandwidth grows with their number, {how}. Large files should use all of \
                     them."
                ),
            ),
            false => (
                Limit::Both,
                format!(
                    ": the shared part is the server's link, or the clients; bandwidth grows {how}."
                ),
            ),
        }
    };
    Some(Servers { experiment, limit, text, figures })
}

/// Describes how well the number of targets on the server with the most targets predicts the
/// bandwidth of an uneven allocation. If the link of a server is the limit, a file with the
/// allocation (a,b) gets (a + b) / b times the bandwidth of one link.
fn uneven_ones(means: &BTreeMap<MinMax, f64>, of_even: f64, figures: &mut Vec<Figure>) -> String {
    // A file with a single target is never spread evenly over the servers, so such files are left
    // out.
    let uneven = || means.iter().filter(|(it, _)| it.0 != it.1 && it.0 + it.1 > 1);
    let expected = |it: &MinMax| of_even / 2.0 * f64::from(it.0 + it.1) / f64::from(it.1);
    let off = |(it, mean): (&MinMax, &f64)| (mean / expected(it) - 1.0).abs();
    let Some(worst) = uneven().map(off).max_by(f64::total_cmp) else { return String::new() };
    figures.push(percent("largest deviation from the ratio min/max", worst));
    let (lowest, low) =
        uneven().min_by(|one, two| one.1.total_cmp(two.1)).expect("an uneven allocation exists");
    figures.push(percent(format!("even allocations over {lowest}"), of_even / low - 1.0));
    format!(
        " So the server with the most targets of a file decides: bandwidth follows the ratio \
         min/max to within {:.0} %, and files whose targets are evenly divided get {}.",
        worst * 100.0,
        against(of_even / low - 1.0, &format!("those of {lowest}"))
    )
}
