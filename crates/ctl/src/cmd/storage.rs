//! `skep storage`: runs a storage service.

use super::service::{Service, run_hosted};
use crate::cli::ServiceArgs;
use skep_types::Result;

pub(super) fn run(args: &ServiceArgs) -> Result<()> {
    run_hosted(args, &Service { initialise: skep_storage::initialise, serve: skep_storage::run })
}
