//! `skep metadata`: runs a metadata service.

use super::service::{Service, ServiceArgs, run_hosted};
use crate::help::{Example, examples};
use skep_metadata::MetadataSettings;
use skep_types::Result;
use std::path::PathBuf;

const EXAMPLES: &[Example] = &[
    ("print a configuration file to start with", "skep metadata --print-sample"),
    (
        "initialise the directories of a new metadata service",
        "skep metadata --init --config /etc/skep/metadata-a.toml --token-file token",
    ),
    ("run the service", "skep metadata --config /etc/skep/metadata-a.toml"),
    (
        "as root, give all files of the service to the user that runs the service",
        "skep metadata --give-to skep --config /etc/skep/metadata-a.toml",
    ),
];

/// Run a metadata service
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct MetadataArgs {
    #[command(flatten)]
    service: ServiceArgs,
}

pub(crate) fn run(args: &MetadataArgs) -> Result<()> {
    let args = &args.service;
    let (initialise, serve) = (skep_metadata::initialise, skep_metadata::run);
    run_hosted(args, &Service { initialise, serve, targets })
}

fn targets(settings: &MetadataSettings) -> &[PathBuf] {
    &settings.targets
}
