//! `skep config get`: shows one setting of the cluster, or all settings.

use super::list;
use crate::access::ClusterArgs;
use crate::help::{Example, examples};
use crate::values;
use skep_types::Result;

const EXAMPLES: &[Example] = &[("show one setting", "skep config get lease")];

/// Show one setting, or all settings
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct GetArgs {
    #[command(flatten)]
    query: ClusterArgs,
    /// Name of the setting
    #[arg(value_parser = values::settings())]
    name: Option<String>,
}

pub(crate) fn run(args: GetArgs) -> Result<()> {
    list::show(args.query, args.name.as_deref())
}
