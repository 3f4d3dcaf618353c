//! `skep plan catalogue`: lists the types of servers and disks in the catalogue, with their limits
//! and prices.

use super::args::DataArgs;
use crate::help::{Example, examples};
use crate::output::{print, render, say, table};
use skep_plan::Catalogue;
use skep_plan::catalogue::built_in_file;
use skep_types::Result;

const EXAMPLES: &[Example] = &[
    ("list all types of servers and disks, with the date of their prices", "skep plan catalogue"),
    (
        "print a catalogue, to change it for your own hardware",
        "skep plan catalogue --print-file own.toml",
    ),
];

/// List the types of servers and disks that plans can use
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct CatalogueArgs {
    /// Print a built-in file instead: aws.toml, aws-2024.toml, azure.toml or own.toml
    #[arg(long, value_name = "NAME")]
    print_file: Option<String>,
    #[command(flatten)]
    data: DataArgs,
}

pub(crate) fn run(args: &CatalogueArgs) -> Result<()> {
    match &args.print_file {
        Some(name) => say(built_in_file(name)?.trim_end()),
        None => print(&args.data.catalogue()?, as_text),
    }
}

fn as_text(catalogue: &Catalogue) -> String {
    let dash = || "-".to_owned();
    let mut servers = table(&[
        "Server",
        ">Cores",
        ">Gbit/s",
        "Disks",
        ">Limit MB/s",
        ">Limit IOPS",
        ">$/hr",
        "Place",
        "As of",
    ]);
    for it in &catalogue.servers {
        let disks = match &it.disk {
            Some(disk) => format!("{} x {disk}", it.disks),
            None if it.max_data_disks > 0 => format!("up to {} attached", it.max_data_disks),
            None => dash(),
        };
        let limit = |value: Option<f64>| value.map_or_else(dash, |it| format!("{it:.0}"));
        servers.add_row([
            it.name.clone(),
            it.cores.to_string(),
            it.network_gbit_s.to_string(),
            disks,
            limit(it.disk_limit_mb_s),
            limit(it.disk_limit_iops),
            it.usd_per_hour.map_or_else(dash, |usd| format!("{usd:.3}")),
            it.origin.place.clone(),
            it.origin.as_of.clone(),
        ]);
    }
    let mut disks = table(&[
        "Disk",
        "Kind",
        ">GB",
        ">Read MB/s",
        ">Write MB/s",
        ">Read IOPS",
        ">Write IOPS",
        ">$/hr",
    ]);
    for it in &catalogue.disks {
        disks.add_row([
            it.name.clone(),
            format!("{:?}", it.kind).to_lowercase(),
            format!("{:.0}", it.capacity_gb),
            format!("{:.0}", it.read_mb_s),
            format!("{:.0}", it.write_mb_s),
            format!("{:.0}", it.read_iops),
            format!("{:.0}", it.write_iops),
            it.usd_per_hour.map_or_else(dash, |usd| format!("{usd:.4}")),
        ]);
    }
    format!("{}\n{}", render(&servers), render(&disks))
}
