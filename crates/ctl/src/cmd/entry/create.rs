//! `skep entry create`: creates a file with its own stripe pattern.

use super::pattern::{self, PatternArgs};
use crate::access::ClusterArgs;
use crate::help::{Example, examples};
use crate::output::{print, warn};
use crate::path_lookup::entry_at;
use crate::through_mount;
use rustix::fs::{CWD, FileType, Mode};
use serde::Serialize;
use skep_types::{Error, ErrorCode, Result};
use std::path::{Path, PathBuf};

const EXAMPLES: &[Example] = &[
    (
        "create an empty file that is striped over all targets",
        "skep entry create --num-targets all /mnt/skep/checkpoint",
    ),
    (
        "create a file on the two targets with these ids",
        "skep entry create --targets 3,7 /mnt/skep/file",
    ),
];

/// Create an empty file with its own stripe pattern
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct CreateArgs {
    #[command(flatten)]
    query: ClusterArgs,
    #[command(flatten)]
    asked: PatternArgs,
    /// Permission bits in octal; the umask is subtracted
    #[arg(long, default_value = "666", value_name = "MODE")]
    permissions: String,
    /// Path of the new file in a mount
    path: PathBuf,
}

/// The JSON output about the new file.
#[derive(Debug, Serialize)]
struct NewFile {
    #[serde(serialize_with = "crate::output::path")]
    path: PathBuf,
    pattern: String,
}

pub(crate) fn run(args: &CreateArgs) -> Result<()> {
    let CreateArgs { query, asked, permissions, path } = args;
    let text = pattern::text(asked)?;
    pattern::check(&text)?;
    let mode = u32::from_str_radix(permissions, 8).ok().filter(|mode| *mode <= 0o7777);
    let mode = mode.ok_or_else(|| {
        let what = format!(
            "invalid --permissions '{permissions}': expected an octal number up to \
                            7777"
        );
        Error::new(ErrorCode::InvalidArgument, what)
    })?;
    let directory = path.parent().filter(|it| !it.as_os_str().is_empty());
    let (_, place) = entry_at(directory.unwrap_or(Path::new(".")))?;
    query.check_mount(&place)?;
    let failed = |errno| pattern::explained(errno, path, &text);
    rustix::fs::mknodat(CWD, path, FileType::RegularFile, Mode::from_raw_mode(mode), 0)
        .map_err(failed)?;
    if let Err(error) = pattern::set(path, &text) {
        // Removes the file, because the file does not have the stripe pattern that the user
        // requested.
        let _ = std::fs::remove_file(path);
        return Err(error);
    }
    let made = NewFile { path: path.to_owned(), pattern: pattern::get(path)?.unwrap_or_default() };
    let map = through_mount::cluster_map(path).ok().flatten();
    print(&made, |made| pattern::line(&made.path, Some(&made.pattern), map.as_ref()))?;
    if let Some(note) = pattern::fewer_targets(asked, &made.pattern) {
        warn(&note);
    }
    Ok(())
}
