//! `skep lab down`: removes labs.

use crate::help::{Example, examples};
use crate::output::print;
use skep_lab::{DEFAULT_NAME, Removed};
use skep_types::Result;

const EXAMPLES: &[Example] = &[
    ("remove lab `lab` and its data", "skep lab down"),
    ("show which processes, mounts and data would be removed", "skep lab down --all --dry-run"),
];

/// Remove a lab with all its data, even if its start or an earlier removal was interrupted
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct DownArgs {
    /// Name of the lab [default: lab]
    #[arg(long, conflicts_with = "is_all")]
    name: Option<String>,
    /// Remove all labs of this host
    #[arg(long = "all")]
    is_all: bool,
    /// Show what would be removed; remove nothing
    #[arg(long = "dry-run")]
    is_dry_run: bool,
}

pub(crate) fn run(args: DownArgs) -> Result<()> {
    let DownArgs { name, is_all, is_dry_run } = args;
    let names: Vec<String> = match (name, is_all) {
        (_, true) => skep_lab::names().into_iter().collect(),
        (name, false) => vec![name.unwrap_or_else(|| DEFAULT_NAME.into())],
    };
    let remove = if is_dry_run { skep_lab::would_remove } else { skep_lab::down };
    let removed: Vec<Removed> = names.iter().map(|name| remove(name)).collect::<Result<_>>()?;
    print(&removed, |all| {
        let lines: Vec<_> = all.iter().map(|removed| line(removed, is_dry_run)).collect();
        if lines.is_empty() { "This host has no lab.".into() } else { lines.join("\n") }
    })
}

fn line(removed: &Removed, is_dry_run: bool) -> String {
    let Removed { name, processes, mounts, namespaces, directories, .. } = removed;
    if !removed.was_there {
        return format!("This host has no lab '{name}'.");
    }
    let verb = if is_dry_run { "Would be removed" } else { "Removed" };
    let places: Vec<_> = directories.iter().map(|path| path.display().to_string()).collect();
    format!(
        "{verb}: lab '{name}' with {processes} processes, {} mounts, {} namespaces, and {}",
        mounts.len(),
        namespaces.len(),
        if places.is_empty() { "no directory".into() } else { places.join(", ") }
    )
}
