//! What can be typed behind `skep study`.

use super::values;
use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub(crate) enum StudyVerb {
    /// List the plans that are ready to run
    Plans,
    /// Print a ready plan, to look at or to change
    Plan {
        /// Its name
        #[arg(value_parser = values::plans())]
        name: String,
    },
    /// Run a study, or go on with one: in a lab of its own, in a lab that is up, or on any mounted
    /// file system. Ctrl-C ends it after the run that is going on; nothing measured is lost
    Run(StudyRunArgs),
    /// Say what the results of a study mean: a page, figures, tables
    Report {
        /// Take runs that don't count, since the CPU was the limit, as if they did; the report says
        /// so
        #[arg(long = "with-invalid")]
        includes_invalid: bool,
        /// The study's directory; the report is written to its directory `report`
        directory: PathBuf,
    },
}

#[derive(Debug, Args)]
pub(crate) struct StudyRunArgs {
    /// A ready plan by its name, or a file, as in ./mine.toml
    #[arg(value_name = "PLAN|FILE", value_parser = values::plans())]
    pub(crate) plan: String,
    /// A lab that is up; without it and --mount, the lab that the plan is made for is made, and
    /// removed at the end
    #[arg(long, value_name = "NAME", conflicts_with = "mount")]
    pub(crate) lab: Option<String>,
    /// A directory on the file system that is studied, mounted here and on all hosts
    #[arg(long, value_name = "DIR")]
    pub(crate) mount: Option<PathBuf>,
    /// Client hosts on which it is mounted; `localhost` is this one [default: localhost]
    #[arg(long, value_delimiter = ',', value_name = "NAMES", conflicts_with = "lab")]
    pub(crate) hosts: Vec<String>,
    /// File with a client host on each line
    #[arg(long, value_name = "FILE", conflicts_with_all = ["hosts", "lab"])]
    pub(crate) host_file: Option<PathBuf>,
    /// Servers, whose caches are dropped too
    #[arg(long, value_delimiter = ',', value_name = "NAMES", conflicts_with = "lab")]
    pub(crate) server_hosts: Vec<String>,
    /// What is put before a command to run it on a host, {host} being its name; `skep` has to be
    /// found there, and nothing asked
    #[arg(long, default_value = "ssh -o BatchMode=yes {host}", value_name = "COMMAND")]
    pub(crate) enter: String,
    /// What the lab is called that is made for the study: studies at the same time need others
    #[arg(long, default_value = "study", value_name = "NAME", conflicts_with_all = ["lab", "mount"])]
    pub(crate) lab_name: String,
    /// Make the lab even if this machine is too slow for its rates; runs of which that is the limit
    /// don't count
    #[arg(long = "force", conflicts_with_all = ["lab", "mount"])]
    pub(crate) is_forced: bool,
    /// Where results go [default: ./skep-study-PLAN]
    #[arg(long, value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
    /// Go on with the study that is there
    #[arg(long = "resume")]
    pub(crate) is_resumed: bool,
    /// Check the plan and show what would be run, in which order, but run nothing
    #[arg(long = "dry-run")]
    pub(crate) is_dry_run: bool,
}
