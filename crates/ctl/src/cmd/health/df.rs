//! `skep health df`: the room on all targets.

use crate::cli::QueryArgs;
use crate::output::print;
use crate::view;
use skep_types::Result;

pub(crate) fn run(args: QueryArgs) -> Result<()> {
    let access = args.cluster.access(None)?;
    let map = super::super::block_on(async move { access.map().await })?;
    print(args.output, &view::targets(&map), |targets| view::df(targets))
}
