//! `skep storage`: runs a storage service.

use super::service::{Task, made, prepare, token};
use crate::cli::ServiceArgs;
use skep_storage::StorageSettings;
use skep_types::Result;

/// The setting behind `--target`.
const TARGETS: &str = "targets";

pub(super) fn run(args: &ServiceArgs) -> Result<()> {
    match prepare::<StorageSettings>(args, TARGETS)? {
        Task::Done => Ok(()),
        Task::Initialise(settings) => {
            let token = token(args)?;
            let cluster = token.cluster;
            skep_storage::initialise(&settings, token)?;
            made("storage", &settings.node.directory, cluster)
        }
        Task::Serve(settings) => skep_storage::run(&settings),
    }
}
