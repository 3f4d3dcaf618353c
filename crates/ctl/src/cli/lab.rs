//! What can be typed behind `skep lab`.

use super::values;
use clap::{Args, Subcommand};
use skep_lab::{DEFAULT_NAME, Delay, Percent, Rate};
use skep_service::Interval;
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub(crate) enum LabVerb {
    /// Make an emulated cluster on this host: hosts with limited links, targets with limited rates,
    /// a mount on each client host
    Up(Box<LabUpArgs>),
    /// Run a command on client hosts of a lab, at the same time on all of them
    Run(LabRunArgs),
    /// Show hosts, links, targets, processes and mounts of a lab
    Status(LabArgs),
    /// Remove a lab with all its data, or what is left of one
    Down {
        /// The lab [default: lab]
        #[arg(long, conflicts_with = "is_all")]
        name: Option<String>,
        /// All labs of this host
        #[arg(long = "all")]
        is_all: bool,
        /// Show what would be removed, but remove nothing
        #[arg(long = "dry-run")]
        is_dry_run: bool,
    },
    /// List the ready shapes
    Shapes,
}

/// Which lab.
#[derive(Debug, Args)]
pub(crate) struct LabArgs {
    /// The lab
    #[arg(long, default_value = DEFAULT_NAME)]
    pub(crate) name: String,
}

#[derive(Debug, Default, Args)]
pub(crate) struct LabUpArgs {
    /// A ready shape (`skep lab shapes`), or a file that describes the lab; options go first
    #[arg(value_name = "SHAPE|FILE", default_value = "small", value_parser = values::shapes())]
    pub(crate) shape: String,
    /// Name of the lab: letters a to z and digits
    #[arg(long, default_value = DEFAULT_NAME)]
    pub(crate) name: String,
    /// Servers, each with one storage service
    #[arg(long, value_name = "COUNT")]
    pub(crate) servers: Option<u16>,
    /// Storage targets of each server
    #[arg(long, value_name = "COUNT")]
    pub(crate) targets: Option<u16>,
    /// Client hosts, each with a mount
    #[arg(long, value_name = "COUNT")]
    pub(crate) clients: Option<u16>,
    /// Metadata targets, all on a host of their own
    #[arg(long, value_name = "COUNT")]
    pub(crate) metadata_targets: Option<u16>,
    /// Rate of each server's link, in each direction: 400Mbit, 50MB/s
    #[arg(long, value_name = "RATE")]
    pub(crate) link: Option<Rate>,
    /// Rate of each client's link, in each direction
    #[arg(long, value_name = "RATE")]
    pub(crate) client_link: Option<Rate>,
    /// Rate of each target, reads and writes together
    #[arg(long, value_name = "RATE")]
    pub(crate) target_rate: Option<Rate>,
    /// How much that varies from second to second: the standard deviation, as in 10%
    #[arg(long, value_name = "SHARE")]
    pub(crate) target_variability: Option<Percent>,
    /// Where the variations begin: the same number gives the same ones again
    #[arg(long, value_name = "NUMBER")]
    pub(crate) seed: Option<u64>,
    /// How long a packet takes from a host to another: 1ms, 250us
    #[arg(long, value_name = "TIME")]
    pub(crate) delay: Option<Delay>,
    /// How the cluster chooses targets for new files
    #[arg(long, value_parser = values::choosers())]
    pub(crate) chooser: Option<String>,
    /// Keep the targets in memory, so that this host's disk limits nothing
    #[arg(long = "in-memory", conflicts_with = "is_on_disk")]
    pub(crate) is_in_memory: bool,
    /// Keep the targets on disk, also if the shape has them in memory
    #[arg(long = "on-disk")]
    pub(crate) is_on_disk: bool,
    /// Where the targets' data lie: a new directory, or an empty one [default: below
    /// /var/tmp/skep-lab]
    #[arg(long, value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
    /// Go on also if this host seems too slow for the rates
    #[arg(long = "force")]
    pub(crate) is_forced: bool,
    /// Check everything and show what would be made, but make nothing
    #[arg(long = "dry-run")]
    pub(crate) is_dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LabRunArgs {
    /// The lab
    #[arg(long, default_value = DEFAULT_NAME)]
    pub(crate) name: String,
    /// A host; may be repeated [default: all client hosts]
    #[arg(long, value_name = "HOST", conflicts_with = "is_on_all")]
    pub(crate) host: Vec<String>,
    /// On all client hosts, which is the default
    #[arg(long = "all-clients")]
    pub(crate) is_on_all: bool,
    /// End the command after this time: 30s, 5min
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<Interval>,
    /// The command; it begins in the host's mount
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}
