//! `skep storage`: runs a storage service.

use super::service::{Service, ServiceArgs, run_hosted};
use crate::help::{Example, examples};
use skep_storage::StorageSettings;
use skep_types::Result;
use std::path::PathBuf;

const EXAMPLES: &[Example] = &[
    ("print a configuration file to start with", "skep storage --print-sample"),
    (
        "initialise the directories of a new storage service",
        "skep storage --init --config /etc/skep/storage-a.toml --token-file token",
    ),
    ("run the service", "skep storage --config /etc/skep/storage-a.toml"),
    (
        "run the service on the processors and in the memory of a NUMA node",
        "skep storage --config /etc/skep/storage-a.toml --numa-node 1",
    ),
    (
        "as root, give all files of the service to the user that runs the service",
        "skep storage --give-to skep --config /etc/skep/storage-a.toml",
    ),
];

/// Run a storage service
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct StorageArgs {
    #[command(flatten)]
    service: ServiceArgs,
}

pub(crate) fn run(args: &StorageArgs) -> Result<()> {
    let args = &args.service;
    let (initialise, serve) = (skep_storage::initialise, skep_storage::run);
    run_hosted(args, &Service { initialise, serve, targets })
}

fn targets(settings: &StorageSettings) -> &[PathBuf] {
    &settings.targets
}
