//! `skep cluster token`: prints what other nodes need to join. Reads it from management's
//! directory, so only those who may read that get it.

use crate::access::ClusterArgs;
use crate::output::say;
use skep_types::Result;

pub(crate) fn run(args: &ClusterArgs) -> Result<()> {
    say(&args.access(None)?.token.to_text())
}
