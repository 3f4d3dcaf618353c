//! `skep metadata`: runs a metadata service.

use super::service::{Task, made, prepare, token};
use crate::cli::ServiceArgs;
use skep_metadata::MetadataSettings;
use skep_types::Result;

/// The setting behind `--target`.
const TARGETS: &str = "metadata.targets";

pub(super) fn run(args: &ServiceArgs) -> Result<()> {
    match prepare::<MetadataSettings>(args, TARGETS)? {
        Task::Done => Ok(()),
        Task::Initialise(settings) => {
            let token = token(args)?;
            let cluster = token.cluster;
            skep_metadata::initialise(&settings, token)?;
            made("metadata", &settings.node.directory, cluster)
        }
        Task::Serve(settings) => skep_metadata::run(&settings),
    }
}
