//! `skep entry set`: the stripe pattern of what will be made in directories, or of files that were
//! never written.

use super::pattern;
use crate::access::entry_at;
use crate::cli::PatternArgs;
use crate::output::print;
use serde::Serialize;
use skep_fuse::PATTERN_XATTR;
use skep_types::Result;
use std::fmt::Write;
use std::path::PathBuf;

/// What a path has now.
#[derive(Debug, Serialize)]
struct Line {
    #[serde(serialize_with = "crate::output::path")]
    path: PathBuf,
    /// None: the cluster's settings.
    pattern: Option<String>,
}

pub(crate) fn run(asked: &PatternArgs, is_inherited: bool, paths: &[PathBuf]) -> Result<()> {
    let text = match is_inherited {
        true => None,
        false => Some(pattern::text(asked)?),
    };
    if let Some(text) = &text {
        pattern::check(text)?;
    }
    // All of them are looked at before the first is changed.
    for path in paths {
        entry_at(path)?;
    }
    let mut lines = Vec::new();
    for path in paths {
        match &text {
            Some(text) => pattern::set(path, text)?,
            None => rustix::fs::removexattr(path, PATTERN_XATTR)
                .map_err(|errno| pattern::explained(errno, path, ""))?,
        }
        lines.push(Line { path: path.clone(), pattern: pattern::get(path)? });
    }
    print(&lines, |lines| {
        let mut shown = String::new();
        for Line { path, pattern } in lines {
            let pattern = pattern.as_deref().unwrap_or("as the cluster's settings say");
            let _ = writeln!(shown, "{}: {pattern}", path.display());
        }
        shown
    })
}
