//! Searches the catalogue for the systems that meet given needs, and ranks them by price.
//!
//! For each server type and choice of disks, the search finds the smallest number of servers that
//! meets every need. A system meets a need for a rate if the lower end of the predicted interval
//! meets the need. If no system meets the needs, the search returns changes of the needs that would
//! help.

use crate::calibration::{Calibration, Prediction};
use crate::catalogue::{Catalogue, ServerType};
use crate::cost::{Cost, MetadataServers};
use crate::invalid;
use crate::model::LimitKind;
use crate::system::{Operation, Redundancy, Spread, System, Workload};
use serde::Serialize;
use skep_types::Result;

/// Maximum number of servers that the search tries.
const MAX_SERVERS: u32 = 128;
/// The numbers of attached disks per server that the search tries.
const ATTACHED: [u32; 6] = [2, 4, 8, 10, 16, 24];

/// The needs that a system has to meet.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Needs {
    /// Minimum capacity after redundancy. 0 means any capacity.
    pub capacity_tb: f64,
    /// The operations that are needed, each with its minimum rate in the unit of the operation.
    pub rates: Vec<(Operation, f64)>,
    /// Number of client hosts.
    pub clients: u32,
    /// Processes on each client host.
    pub processes: u32,
    /// Rate of a client's network.
    pub client_gbit_s: f64,
    /// Size of the largest IP packet in the network, in bytes.
    pub mtu: u32,
    /// Redundancy of the disks that form one target.
    pub redundancy: Redundancy,
    /// Maximum price. `None` means that the search accepts any price, even an unknown price.
    pub budget_usd_per_hour: Option<f64>,
    /// Providers or regions from which systems are chosen. Empty means all.
    pub places: Vec<String>,
    /// Servers that run management and metadata separately from the storage servers. `None` means
    /// that the storage servers also run the metadata services.
    pub metadata: Option<MetadataServers>,
}

/// A system that meets the needs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Candidate {
    /// The proposed system.
    pub system: System,
    /// Provider, region and date of the server's price.
    pub origin: crate::catalogue::Origin,
    /// Source of the server's data and price.
    pub source: String,
    /// Cost of the system, with the rates that all clients together attain.
    pub cost: Cost,
    /// The part of the system that limits the rate of sequential writes.
    pub binds: LimitKind,
    /// Predicted rates of all operations with all clients.
    pub rates: Vec<Rate>,
    /// Predicted rates of sequential writes for increasing numbers of clients.
    pub by_clients: Vec<Prediction>,
}

/// The needed and the predicted rate of an operation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rate {
    /// Name of the operation.
    pub operation: &'static str,
    /// Unit of the rate.
    pub unit: &'static str,
    /// The rate that the needs name. `None` means that the needs do not name this operation.
    pub needed: Option<f64>,
    /// The predicted rate.
    pub prediction: Prediction,
}

/// Returns the systems that meet the needs, the cheapest first. Systems with an unknown price are
/// last.
///
/// # Errors
/// `InvalidArgument` if the needs are invalid, or if no system meets them. In the second case, the
/// error lists changes that would help.
pub fn propose(
    calibration: &Calibration,
    catalogue: &Catalogue,
    needs: &Needs,
) -> Result<Vec<Candidate>> {
    check(needs)?;
    let options = options(catalogue, needs)?;
    let mut candidates = Vec::new();
    for (kind, system) in &options {
        if let Some(servers) = smallest(calibration, needs, system) {
            let system = System { servers, ..system.clone() };
            candidates.push(candidate(calibration, catalogue, needs, kind, system)?);
        }
    }
    let cheapest = candidates.iter().filter_map(|it| it.cost.usd_per_hour).fold(None, least);
    if let Some(budget) = needs.budget_usd_per_hour {
        candidates.retain(|it| it.cost.usd_per_hour.is_some_and(|usd| usd <= budget));
    }
    if candidates.is_empty() {
        return Err(refusal(calibration, needs, &options, cheapest));
    }
    let price = |it: &Candidate| it.cost.usd_per_hour.unwrap_or(f64::INFINITY);
    candidates.sort_by(|one, other| {
        let by_servers = one.system.servers.cmp(&other.system.servers);
        price(one).total_cmp(&price(other)).then(by_servers)
    });
    Ok(candidates)
}

fn least(sum: Option<f64>, price: f64) -> Option<f64> {
    Some(sum.map_or(price, |it| it.min(price)))
}

fn check(needs: &Needs) -> Result<()> {
    let numbers = needs.rates.iter().map(|(_, rate)| *rate);
    let numbers = numbers.chain([needs.capacity_tb]).chain(needs.budget_usd_per_hour);
    if numbers.into_iter().any(|it| !it.is_finite() || it < 0.0) {
        return Err(invalid("invalid needs: capacity, rates and budget must not be negative"));
    }
    if needs.clients == 0 || needs.processes == 0 || needs.client_gbit_s <= 0.0 {
        return Err(invalid(
            "invalid needs: expected at least 1 client, 1 process, and a network rate above 0",
        ));
    }
    if needs.capacity_tb == 0.0 && needs.rates.is_empty() {
        return Err(invalid(
            "cannot propose a system: no option names a need; use --capacity or a rate, such as \
             --write",
        ));
    }
    Ok(())
}

/// Returns one system for each server type and choice of disks. Each system has one server.
fn options<'a>(catalogue: &'a Catalogue, needs: &Needs) -> Result<Vec<(&'a ServerType, System)>> {
    let is_wanted = |it: &&ServerType| {
        let names = [&it.origin.provider, &it.origin.place];
        needs.places.is_empty() || needs.places.iter().any(|place| names.contains(&place))
    };
    let servers: Vec<&ServerType> = catalogue.servers.iter().filter(is_wanted).collect();
    if servers.is_empty() {
        let mut places: Vec<_> = catalogue
            .servers
            .iter()
            .flat_map(|it| [it.origin.provider.clone(), it.origin.place.clone()])
            .collect();
        places.sort();
        places.dedup();
        return Err(invalid(format!(
            "cannot find place '{}': the catalogue has {}",
            needs.places.join(","),
            places.join(", ")
        )));
    }
    let mut options = Vec::new();
    for kind in servers {
        if kind.disk.is_some() {
            options.push((kind, System::of(catalogue, &kind.name, 1, None)?));
        }
        let attachable = catalogue.disks.iter().filter(|disk| {
            disk.kind == crate::catalogue::DiskKind::Network && disk.origin == kind.origin
        });
        for disk in attachable {
            for count in ATTACHED.into_iter().filter(|count| *count <= kind.max_data_disks) {
                options
                    .push((kind, System::of(catalogue, &kind.name, 1, Some((&disk.name, count)))?));
            }
        }
    }
    for (_, system) in &mut options {
        system.mtu = needs.mtu;
        // The capacity and the rates of an array in the catalogue already include its redundancy.
        if system.disks.of.kind != crate::catalogue::DiskKind::Array {
            system.disks.redundancy = needs.redundancy;
        }
    }
    let fits = |it: &System| match it.disks.redundancy {
        Redundancy::None => true,
        Redundancy::Raid1 => it.disks.count >= 2,
        Redundancy::Raid6 => it.disks.count >= 4,
    };
    options.retain(|(_, system)| fits(system));
    Ok(options)
}

/// Returns a workload in which all processes of `clients` clients do the same operation.
fn workload(needs: &Needs, operation: Operation, clients: u32) -> Workload {
    Workload {
        operation,
        clients,
        processes: needs.processes,
        client_gbit_s: needs.client_gbit_s,
        transfer_bytes: if operation.is_sequential() { 1 << 20 } else { 4096 },
        spread: Spread::Files { targets: None },
    }
}

/// Returns the smallest number of servers that makes the system meet the needs. `None` means that
/// even [`MAX_SERVERS`] servers do not meet the needs.
fn smallest(calibration: &Calibration, needs: &Needs, of_one: &System) -> Option<u32> {
    let meets = |servers: u32| {
        let system = System { servers, ..of_one.clone() };
        let is_met = |(operation, rate): &(Operation, f64)| {
            let workload = workload(needs, *operation, needs.clients);
            calibration.predict(&system, &workload).low >= *rate
        };
        system.capacity_tb() >= needs.capacity_tb && needs.rates.iter().all(is_met)
    };
    (1..=MAX_SERVERS).find(|servers| meets(*servers))
}

fn candidate(
    calibration: &Calibration,
    catalogue: &Catalogue,
    needs: &Needs,
    kind: &ServerType,
    system: System,
) -> Result<Candidate> {
    let predict =
        |operation| calibration.predict(&system, &workload(needs, operation, needs.clients));
    let needed = |operation| needs.rates.iter().find(|(it, _)| *it == operation).map(|it| it.1);
    let rates: Vec<Rate> = Operation::ALL
        .into_iter()
        .map(|(operation, word)| Rate {
            operation: word,
            unit: operation.unit(),
            needed: needed(operation),
            prediction: predict(operation),
        })
        .collect();
    let by_clients = client_counts(needs.clients)
        .into_iter()
        .map(|clients| calibration.predict(&system, &workload(needs, Operation::Write, clients)));
    let by_clients: Vec<Prediction> = by_clients.collect();
    let (write, read) = (&rates[0].prediction, &rates[1].prediction);
    let cost = Cost::of(catalogue, &system, needs.metadata.as_ref(), (read.rate, write.rate))?;
    let binds = write.outcome.binds;
    let (origin, source) = (kind.origin.clone(), kind.source.clone());
    Ok(Candidate { system, origin, source, cost, binds, rates, by_clients })
}

/// Returns the powers of two below `clients`, followed by `clients`.
pub fn client_counts(clients: u32) -> Vec<u32> {
    let mut counts: Vec<u32> =
        (0..32).map(|it| 1_u32 << it).take_while(|it| *it < clients).collect();
    counts.push(clients);
    counts
}

/// Returns the error for needs that no system meets. The error contains the changes that would
/// help.
fn refusal(
    calibration: &Calibration,
    needs: &Needs,
    options: &[(&ServerType, System)],
    cheapest: Option<f64>,
) -> skep_types::Error {
    let mut changes = Vec::new();
    if options.is_empty() {
        changes.push(
            "no server has enough disks for this redundancy; choose --redundancy none, or another \
             place"
                .to_owned(),
        );
    }
    if let (Some(usd), Some(budget)) = (cheapest, needs.budget_usd_per_hour) {
        changes.push(format!(
            "the cheapest system that meets the other needs costs {usd:.2} $/hr, {:.2} $/hr more \
             than the budget",
            usd - budget
        ));
    } else {
        changes.extend(unmet_rates(calibration, needs, options));
        let capacity = options.iter().map(|(_, it)| it.capacity_tb()).fold(0.0, f64::max)
            * f64::from(MAX_SERVERS);
        if capacity < needs.capacity_tb {
            changes.push(format!(
                "{MAX_SERVERS} servers store at most {capacity:.0} TB with this redundancy"
            ));
        }
    }
    if changes.is_empty() {
        let unpriced = needs.budget_usd_per_hour.is_some();
        changes.push(match unpriced {
            true => "the systems that meet the other needs have no price in the catalogue; add \
                     prices with --catalogue"
                .to_owned(),
            false => {
                "no single type of server meets all needs together, although each need alone has a \
                 type that meets it; lower one need"
                    .to_owned()
            }
        });
    }
    invalid(format!("cannot find a system that meets the needs: {}", changes.join("; ")))
}

/// Describes each needed rate that no number of servers attains.
fn unmet_rates(
    calibration: &Calibration,
    needs: &Needs,
    options: &[(&ServerType, System)],
) -> Vec<String> {
    let mut changes = Vec::new();
    for (operation, rate) in &needs.rates {
        let workload = workload(needs, *operation, needs.clients);
        let best = options
            .iter()
            .map(|(_, system)| {
                let system = System { servers: MAX_SERVERS, ..system.clone() };
                calibration.predict(&system, &workload)
            })
            .max_by(|one, other| one.low.total_cmp(&other.low));
        let Some(best) = best.filter(|it| it.low < *rate) else { continue };
        let way_out = match best.outcome.binds {
            LimitKind::ClientNetwork => "more clients, or clients with a faster network",
            LimitKind::ClientRequests => "more clients, or more processes on each",
            _ => "servers or disks that are faster",
        };
        changes.push(format!(
            "{} of {rate:.0} {} needs {way_out}: {} clients attain {:.0} {} ({:.0} at least), \
             limited by: {}",
            operation.word(),
            operation.unit(),
            needs.clients,
            best.rate,
            operation.unit(),
            best.low,
            best.outcome.binds.words()
        ));
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table;

    fn needs() -> Needs {
        Needs {
            capacity_tb: 10.0,
            rates: vec![(Operation::Write, 4000.0)],
            clients: 32,
            processes: 4,
            client_gbit_s: 10.0,
            mtu: 9001,
            redundancy: Redundancy::None,
            budget_usd_per_hour: None,
            places: vec!["aws".into()],
            metadata: None,
        }
    }

    fn run(needs: &Needs) -> Result<Vec<Candidate>> {
        let catalogue = Catalogue::built_in();
        let calibration = Calibration::fit(&table::built_in(&catalogue));
        propose(&calibration, &catalogue, needs)
    }

    fn refused(needs: &Needs) -> String {
        run(needs).expect_err("impossible needs are refused").context().to_owned()
    }

    #[test]
    fn candidates_meet_the_needs_and_the_cheapest_is_first() {
        let found = run(&needs()).unwrap();
        assert!(found.len() > 3);
        for it in &found {
            assert!(it.cost.capacity_tb >= 10.0 && it.rates[0].prediction.low >= 4000.0);
            assert_eq!(it.by_clients.last().map(|it| it.clients), Some(32));
            assert_eq!(it.origin.provider, "aws");
            if it.system.servers > 1 {
                let fewer = System { servers: it.system.servers - 1, ..it.system.clone() };
                let calibration = Calibration::fit(&table::built_in(&Catalogue::built_in()));
                let of_fewer =
                    calibration.predict(&fewer, &workload(&needs(), Operation::Write, 32));
                assert!(fewer.capacity_tb() < 10.0 || of_fewer.low < 4000.0);
            }
        }
        let prices: Vec<_> = found.iter().map(|it| it.cost.usd_per_hour.unwrap()).collect();
        assert!(prices.windows(2).all(|it| it[0] <= it[1]), "{prices:?}");
    }

    #[test]
    fn redundancy_raises_the_cost_of_a_system() {
        let plain = run(&needs()).unwrap().remove(0);
        let safe = run(&Needs { redundancy: Redundancy::Raid1, ..needs() }).unwrap().remove(0);
        assert!(safe.cost.usd_per_hour > plain.cost.usd_per_hour);
    }

    #[test]
    fn error_for_impossible_needs_names_changes_that_help() {
        let few = Needs { clients: 1, processes: 1, ..needs() };
        assert!(refused(&few).contains("more clients"), "{}", refused(&few));
        let poor = Needs { budget_usd_per_hour: Some(0.5), ..needs() };
        assert!(refused(&poor).contains("$/hr more than the budget"), "{}", refused(&poor));
        let huge = Needs { capacity_tb: 1e9, ..needs() };
        assert!(refused(&huge).contains("store at most"), "{}", refused(&huge));
        let unpriced =
            Needs { places: vec!["own".into()], budget_usd_per_hour: Some(99.0), ..needs() };
        assert!(refused(&unpriced).contains("no price"), "{}", refused(&unpriced));
    }

    #[test]
    fn contradicting_needs_are_refused() {
        let nowhere = Needs { places: vec!["moon".into()], ..needs() };
        assert!(refused(&nowhere).contains("'moon'") && refused(&nowhere).contains("eu-west-1"));
        let nothing = Needs { capacity_tb: 0.0, rates: Vec::new(), ..needs() };
        assert!(refused(&nothing).contains("--capacity"));
        assert!(refused(&Needs { clients: 0, ..needs() }).contains("at least 1 client"));
        assert!(refused(&Needs { capacity_tb: -1.0, ..needs() }).contains("negative"));
        assert!(refused(&Needs { capacity_tb: f64::NAN, ..needs() }).contains("negative"));
    }
}
