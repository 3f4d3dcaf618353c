//! `skep health df`: the space on all targets.

use crate::access::ClusterArgs;
use crate::output::print;
use crate::view;
use skep_types::Result;

pub(crate) fn run(args: ClusterArgs) -> Result<()> {
    let access = args.access(None)?;
    let map = super::super::block_on(async move { access.map().await })?;
    print(&view::targets(&map), |targets| view::df(targets))
}
