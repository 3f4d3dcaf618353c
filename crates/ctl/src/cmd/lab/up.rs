//! `skep lab up`: starts an emulated cluster.

use super::status::as_text;
use crate::help::{Example, examples};
use crate::output::{is_for_people, print};
use crate::values;
use skep_lab::{DEFAULT_NAME, Delay, Description, Percent, Rate, Status};
use skep_types::{Error, ErrorCode, Result};
use std::io::Write;
use std::path::{Path, PathBuf};

const EXAMPLES: &[Example] = &[
    ("start a small lab with two servers and two clients", "skep lab up"),
    ("start a lab with a predefined shape", "skep lab up scenario1"),
    (
        "show a shape with other rates, without starting it",
        "skep lab up scenario2 --target-rate 30MB/s --target-variability 20% --dry-run",
    ),
    ("start a lab with three metadata hosts", "skep lab up --metadata-servers 3"),
    (
        "start a second lab that only options describe",
        "skep lab up --servers 2 --targets 4 --clients 8 --link 400Mbit --name two",
    ),
];

/// Start an emulated cluster on this host: hosts with limited links, targets with limited rates,
/// and a mount on each client host
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct UpArgs {
    /// Predefined shape (`skep lab shapes`), or a file that describes the lab; options take
    /// precedence
    #[arg(value_name = "SHAPE|FILE", default_value = "small", value_parser = values::shapes())]
    shape: String,
    /// Name of the lab: letters a to z, and digits
    #[arg(long, default_value = DEFAULT_NAME)]
    name: String,
    /// Number of servers, each with one storage service
    #[arg(long, value_name = "COUNT")]
    servers: Option<u16>,
    /// Storage targets per server
    #[arg(long, value_name = "COUNT")]
    targets: Option<u16>,
    /// Number of client hosts, each with a mount
    #[arg(long, value_name = "COUNT")]
    clients: Option<u16>,
    #[command(flatten)]
    metadata: MetadataArgs,
    /// Rate of each server's link, in each direction: 400Mbit, 50MB/s
    #[arg(long, value_name = "RATE")]
    link: Option<Rate>,
    /// Rate of each client's link, in each direction
    #[arg(long, value_name = "RATE")]
    client_link: Option<Rate>,
    /// Rate of each target, reads and writes together
    #[arg(long, value_name = "RATE")]
    target_rate: Option<Rate>,
    /// Standard deviation of the target rate from second to second, as in 10%
    #[arg(long, value_name = "SHARE")]
    target_variability: Option<Percent>,
    /// Random seed of the rate variation
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// One-way delay of a packet between two hosts: 1ms, 250us
    #[arg(long, value_name = "TIME")]
    delay: Option<Delay>,
    /// Policy that chooses the targets of new files
    #[arg(long, value_parser = values::choosers())]
    chooser: Option<String>,
    /// Keep targets in memory, so that this host's disk is not the limit
    #[arg(long = "in-memory", conflicts_with = "is_on_disk")]
    is_in_memory: bool,
    /// Keep targets on disk even if the shape keeps them in memory
    #[arg(long = "on-disk")]
    is_on_disk: bool,
    /// Directory for the data of the targets, new or empty [default: in /var/tmp/skep-lab]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Continue even if this host seems too slow for the rates
    #[arg(long = "force")]
    is_forced: bool,
    /// Check everything and show the lab; start nothing
    #[arg(long = "dry-run")]
    is_dry_run: bool,
}

/// The options for metadata.
#[derive(Debug, clap::Args)]
struct MetadataArgs {
    /// Number of metadata hosts, each with one metadata service; the first host also runs
    /// management
    #[arg(long, value_name = "COUNT")]
    metadata_servers: Option<u16>,
    /// Metadata targets per metadata host
    #[arg(long, value_name = "COUNT")]
    metadata_targets: Option<u16>,
    /// Rate of each metadata host's link, in each direction
    #[arg(long, value_name = "RATE")]
    metadata_link: Option<Rate>,
}

pub(crate) fn run(args: &UpArgs) -> Result<()> {
    let description = description(args)?;
    let mut report = |step: &str| {
        if is_for_people() {
            // If standard error is closed, the lab starts without this output.
            let _ = writeln!(std::io::stderr(), "{step}");
        }
    };
    if args.is_dry_run {
        let plan = skep_lab::plan(&args.name, &description, args.is_forced, &mut report)?;
        return print(&skep_lab::status(&plan)?, |it| {
            format!("{}\nNothing was started.", as_text(it))
        });
    }
    // The processes of the lab must run the program of this process, so the lab gets the path of
    // this program.
    let program = std::env::current_exe()?;
    let state = skep_lab::up(&args.name, &description, &program, args.is_forced, &mut report)?;
    print(&skep_lab::status(&state)?, |it| format!("{}\n{}", as_text(it), hints(it)))
}

/// Returns the description of the requested lab: a predefined shape or a file, with the changes
/// that the options make.
fn description(args: &UpArgs) -> Result<Description> {
    let mut description = match skep_lab::shape(&args.shape) {
        Some(shape) => shape.description,
        None if Path::new(&args.shape).exists() => Description::read(Path::new(&args.shape))?,
        None => {
            let names: Vec<_> = skep_lab::shapes().iter().map(|shape| shape.name).collect();
            let what = format!(
                "cannot find a shape or file '{}': the shapes are {}",
                args.shape,
                names.join(", ")
            );
            return Err(Error::new(ErrorCode::Configuration, what));
        }
    };
    let counts = [
        (&mut description.servers, args.servers),
        (&mut description.targets, args.targets),
        (&mut description.clients, args.clients),
        (&mut description.metadata_servers, args.metadata.metadata_servers),
        (&mut description.metadata_targets, args.metadata.metadata_targets),
    ];
    for (count, asked) in counts {
        *count = asked.unwrap_or(*count);
    }
    description.metadata_link = args.metadata.metadata_link.or(description.metadata_link);
    description.link = args.link.or(description.link);
    description.client_link = args.client_link.or(description.client_link);
    description.target_rate = args.target_rate.or(description.target_rate);
    description.target_variability = args.target_variability.or(description.target_variability);
    description.seed = args.seed.unwrap_or(description.seed);
    description.delay = args.delay.or(description.delay);
    description.chooser = args.chooser.clone().or(description.chooser);
    description.in_memory = (description.in_memory || args.is_in_memory) && !args.is_on_disk;
    if let Some(directory) = &args.directory {
        let absolute = std::path::absolute(directory).map_err(|error| {
            Error::from(error).within(format_args!(
                "cannot determine the absolute path of {}",
                directory.display()
            ))
        })?;
        description.directory = Some(absolute);
    }
    Ok(description)
}

/// Returns a text with commands for the use of the started lab.
fn hints(status: &Status) -> String {
    let option = match status.name.as_str() {
        skep_lab::DEFAULT_NAME => String::new(),
        name => format!(" --name {name}"),
    };
    format!(
        "Try:\n  skep lab run{option} -- \
         sh -c 'dd if=/dev/zero of=$SKEP_LAB_HOST bs=1M count=64'\n  \
         skep lab status{option}\nRemove: skep lab down{option}"
    )
}
