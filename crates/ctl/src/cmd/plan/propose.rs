//! `skep plan propose`: lists the systems of the catalogue that meet the user's needs, the cheapest
//! first.

use super::args::{DataArgs, mtu, redundancy, write};
use crate::help::{Example, examples};
use crate::output::{print, render, table};
use serde::Serialize;
use skep_plan::cost::{Cost, MetadataServers};
use skep_plan::model::LimitKind;
use skep_plan::propose::{Candidate, Needs, propose};
use skep_plan::system::Operation;
use skep_plan::{Calibration, page};
use skep_types::Result;
use std::fmt::Write;
use std::path::PathBuf;

const EXAMPLES: &[Example] = &[
    (
        "propose systems on AWS with 10 TB and 5 GB/s of writes, for 24 clients",
        "skep plan propose --capacity 10 --write 5 --clients 24 --place aws",
    ),
    (
        "propose systems within a budget, as a page with figures",
        "skep plan propose --capacity 50 --read 8 --clients 64 --budget 30 --html plan.html",
    ),
];

/// Propose systems that meet the given needs, the cheapest first. A proposed system meets each need
/// even at the lower end of the predicted 90 % interval
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct ProposeArgs {
    /// Capacity after redundancy, in TB
    #[arg(long, default_value = "0", value_name = "TB", value_parser = terabytes)]
    capacity: f64,
    /// Rate of sequential writes, in GB/s
    #[arg(long, value_name = "GB/s")]
    write: Option<f64>,
    /// Rate of sequential reads, in GB/s
    #[arg(long, value_name = "GB/s")]
    read: Option<f64>,
    /// Random writes of 4 KiB per second
    #[arg(long, value_name = "NUMBER")]
    random_write: Option<f64>,
    /// Random reads of 4 KiB per second
    #[arg(long, value_name = "NUMBER")]
    random_read: Option<f64>,
    /// Files created per second
    #[arg(long, value_name = "NUMBER")]
    creates: Option<f64>,
    /// Requests for file attributes (stat) per second
    #[arg(long, value_name = "NUMBER")]
    stats: Option<f64>,
    /// Number of client hosts
    #[arg(long, default_value_t = 16, value_name = "NUMBER")]
    clients: u32,
    /// Processes on each client
    #[arg(long, default_value_t = 8, value_name = "NUMBER")]
    processes: u32,
    /// Rate of a client's network
    #[arg(long, default_value_t = 10.0, value_name = "Gbit/s")]
    client_network: f64,
    /// Size of the largest packet in the network
    #[arg(long, default_value_t = 1500, value_name = "BYTES")]
    mtu: u32,
    /// Redundancy of the disks below a target: none, raid1 or raid6 (8+2)
    #[arg(long, default_value = "none", value_name = "KIND")]
    redundancy: String,
    /// Maximum price, in $ per hour
    #[arg(long, value_name = "USD")]
    budget: Option<f64>,
    /// Providers or regions of the catalogue [default: all]
    #[arg(long = "place", value_delimiter = ',', value_name = "NAMES")]
    places: Vec<String>,
    /// Type of a server for management and metadata beside the storage servers [default: the
    /// storage servers also run these services]
    #[arg(long, value_name = "NAME")]
    metadata_server: Option<String>,
    /// Maximum number of systems to show
    #[arg(long, default_value_t = 10, value_name = "NUMBER")]
    top: usize,
    /// Write a page with figures
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the table as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    #[command(flatten)]
    data: DataArgs,
}

/// Parses a capacity in TB: a number, or a number with a unit.
fn terabytes(text: &str) -> Result<f64, String> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let scale = match &text[number.len()..] {
        "" | "T" | "TB" | "t" => 1.0,
        "G" | "GB" | "g" => 1e-3,
        "P" | "PB" | "p" => 1e3,
        "GiB" => f64::from(1 << 30) / 1e12,
        "TiB" => f64::from(1 << 20) * f64::from(1 << 20) / 1e12,
        "PiB" => f64::from(1 << 25) * f64::from(1 << 25) / 1e12,
        _ => f64::NAN,
    };
    let capacity = number.trim().parse::<f64>().map_or(f64::NAN, |number| number * scale);
    match capacity >= 0.0 && capacity.is_finite() {
        true => Ok(capacity),
        false => {
            Err("expected a number of TB, or a number with GB, TB, PB, GiB, TiB or PiB".into())
        }
    }
}

/// A proposed system, as JSON.
#[derive(Debug, Serialize)]
struct Proposal {
    server: String,
    servers: u32,
    disk: String,
    disks_per_server: u32,
    provider: String,
    place: String,
    price_as_of: String,
    price_source: String,
    cost: Cost,
    binds: LimitKind,
    efficiency_percent: f64,
    rates: Vec<RateReport>,
    write_by_clients: Vec<ClientsReport>,
    extrapolates: Vec<String>,
}

#[derive(Debug, Serialize)]
struct RateReport {
    operation: &'static str,
    unit: &'static str,
    needed: Option<f64>,
    rate: f64,
    low: f64,
    high: f64,
    binds: LimitKind,
}

#[derive(Debug, Serialize)]
struct ClientsReport {
    clients: u32,
    mb_s: f64,
    low_mb_s: f64,
    high_mb_s: f64,
}

pub(crate) fn run(args: &ProposeArgs) -> Result<()> {
    let catalogue = args.data.catalogue()?;
    let calibration = Calibration::fit(&args.data.all_tables(&catalogue)?);
    let needs = needs(args)?;
    let mut candidates = propose(&calibration, &catalogue, &needs)?;
    candidates.truncate(args.top.max(1));
    if let Some(path) = &args.html {
        write(path, &page::of_candidates(&candidates)?)?;
    }
    if let Some(path) = &args.csv {
        write(path, &page::csv(&candidates))?;
    }
    let proposals: Vec<Proposal> = candidates.iter().map(proposal).collect();
    print(&proposals, |proposals| as_text(proposals, &candidates))
}

fn needs(args: &ProposeArgs) -> Result<Needs> {
    let giga = |rate: Option<f64>| rate.map(|it| it * 1000.0);
    let rates = [
        (Operation::Write, giga(args.write)),
        (Operation::Read, giga(args.read)),
        (Operation::RandomWrite, args.random_write),
        (Operation::RandomRead, args.random_read),
        (Operation::Create, args.creates),
        (Operation::Stat, args.stats),
    ];
    Ok(Needs {
        capacity_tb: args.capacity,
        rates: rates.into_iter().filter_map(|(it, rate)| Some((it, rate?))).collect(),
        clients: args.clients,
        processes: args.processes,
        client_gbit_s: args.client_network,
        mtu: mtu(args.mtu)?,
        redundancy: redundancy(&args.redundancy)?,
        budget_usd_per_hour: args.budget,
        places: args.places.clone(),
        metadata: args.metadata_server.clone().map(|server| MetadataServers { server, count: 1 }),
    })
}

fn proposal(it: &Candidate) -> Proposal {
    let of_rate = |it: &skep_plan::propose::Rate| RateReport {
        operation: it.operation,
        unit: it.unit,
        needed: it.needed,
        rate: it.prediction.rate,
        low: it.prediction.low,
        high: it.prediction.high,
        binds: it.prediction.outcome.binds,
    };
    let of_clients = |it: &skep_plan::calibration::Prediction| ClientsReport {
        clients: it.clients,
        mb_s: it.rate,
        low_mb_s: it.low,
        high_mb_s: it.high,
    };
    Proposal {
        server: it.system.server.clone(),
        servers: it.system.servers,
        disk: it.system.disks.of.name.clone(),
        disks_per_server: it.system.disks.count,
        provider: it.origin.provider.clone(),
        place: it.origin.place.clone(),
        price_as_of: it.origin.as_of.clone(),
        price_source: it.source.clone(),
        cost: it.cost.clone(),
        binds: it.binds,
        efficiency_percent: it.rates[0].prediction.efficiency_percent,
        rates: it.rates.iter().map(of_rate).collect(),
        write_by_clients: it.by_clients.iter().map(of_clients).collect(),
        extrapolates: it.rates[0].prediction.extrapolates.clone(),
    }
}

fn as_text(proposals: &[Proposal], candidates: &[Candidate]) -> String {
    let mut shown = table(&[
        "System",
        "Disks",
        ">Servers",
        ">Read GB/s",
        ">Write GB/s",
        ">At least",
        ">TB",
        ">$/hr",
        ">$/TB/hr",
        ">$/(GB/s)/hr",
        ">% of limit",
        "Binds",
        "Price of",
    ]);
    for candidate in candidates {
        shown.add_row(page::cells(candidate));
    }
    let mut text = render(&shown);
    let Some(first) = proposals.first() else { return text };
    let _ = write!(text, "\nFirst system, rate of writes by number of clients:");
    for it in &first.write_by_clients {
        let _ = write!(text, " {}: {:.1} GB/s", it.clients, it.mb_s / 1000.0);
        text.push(
            if it.clients == first.write_by_clients[first.write_by_clients.len() - 1].clients {
                '\n'
            } else {
                ','
            },
        );
    }
    for beyond in &first.extrapolates {
        let _ = writeln!(text, "Outside of the measured range: {beyond}");
    }
    let _ = writeln!(text, "Prices: {}", first.price_source);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_without_a_unit_is_in_terabytes() {
        for (text, capacity) in [("10", 10.0), ("100TB", 100.0), ("2PB", 2000.0), ("500GB", 0.5)] {
            assert_eq!(terabytes(text), Ok(capacity), "{text}");
        }
        assert!(terabytes("1TiB").is_ok_and(|it| (it - 1.0995).abs() < 1e-4));
        for wrong in ["", "TB", "-1", "10XB", "1e999"] {
            assert!(terabytes(wrong).unwrap_err().contains("number of TB"), "{wrong}");
        }
    }
}
