//! `skep deploy units`: prints the systemd units that belong to this program. The scripts of a
//! deployment run this command on the hosts.

use crate::output::{say, write_bytes};
use skep_deploy::units;
use skep_types::{Error, ErrorCode, Result};

/// Print the paths of the systemd units of this program, or the text of one
#[derive(Debug, clap::Args)]
pub(crate) struct UnitsArgs {
    /// Print the path of the monitor's unit too
    #[arg(long)]
    monitor: bool,
    /// Print the text of the file with this path instead
    #[arg(long, value_name = "PATH", conflicts_with = "monitor")]
    file: Option<String>,
}

pub(crate) fn run(args: &UnitsArgs) -> Result<()> {
    let Some(path) = &args.file else {
        let paths: Vec<_> = units::paths(args.monitor).collect();
        return say(&paths.join("\n"));
    };
    let text = units::text(path).ok_or_else(|| {
        let what = format!(
            "cannot print {path}: this program has no such unit; without --file, the command \
             lists the units"
        );
        Error::new(ErrorCode::NotFound, what)
    })?;
    write_bytes(text.as_bytes())
}
