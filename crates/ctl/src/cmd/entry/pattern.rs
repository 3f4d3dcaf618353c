//! Stripe patterns as text, for `entry set` and `entry create`. Patterns are set through the mount,
//! which works for root and other users and needs no token of the cluster.

use crate::values;
use clap::Args;
use rustix::io::Errno;
use skep_fuse::PATTERN_XATTR;
use skep_types::{Error, ErrorCode, Result};
use std::path::Path;

/// The options that describe a stripe pattern.
#[derive(Debug, Default, Args)]
#[group(id = "asked-pattern", multiple = true)]
pub(super) struct PatternArgs {
    /// Number of targets, or `all`
    #[arg(
        long,
        visible_aliases = ["count", "stripe-width"],
        value_name = "COUNT",
        conflicts_with_all = ["targets", "groups"],
    )]
    num_targets: Option<String>,
    /// Bytes stored on one target before the next: a power of two from 64KiB to 1GiB
    #[arg(long, value_name = "SIZE")]
    chunk_size: Option<String>,
    /// Policy that chooses the targets
    #[arg(
        long,
        conflicts_with_all = ["targets", "groups"],
        value_parser = values::choosers(),
    )]
    chooser: Option<String>,
    /// Exactly these targets, in stripe order: ids separated by commas
    #[arg(long, value_delimiter = ',', value_name = "IDS", conflicts_with = "groups")]
    targets: Vec<String>,
    /// Exactly these groups, in stripe order: ids separated by commas
    #[arg(long, value_delimiter = ',', value_name = "IDS")]
    groups: Vec<String>,
    /// Whole pattern as one text, in the format of the attribute user.skep.pattern; required for
    /// several components, as in `count=1/from=16MiB,count=all`; `inline/from=4KiB` stores the
    /// first bytes in metadata
    #[arg(long, conflicts_with_all = ["num_targets", "chunk_size", "chooser", "targets", "groups"])]
    pattern: Option<String>,
}

/// Buffer size for the text of the longest pattern: 16 components of 256 groups.
pub(super) const MAX_TEXT_BYTES: usize = 64 << 10;

/// Returns the requested pattern in the format of the attribute.
///
/// # Errors
/// `InvalidArgument` if no option describes a pattern.
pub(super) fn text(asked: &PatternArgs) -> Result<String> {
    if let Some(text) = &asked.pattern {
        return Ok(text.clone());
    }
    let list = |ids: &[String]| (!ids.is_empty()).then(|| ids.join(":"));
    let words = [
        ("count", asked.num_targets.clone()),
        ("chunk-size", asked.chunk_size.clone()),
        ("chooser", asked.chooser.clone()),
        ("targets", list(&asked.targets)),
        ("groups", list(&asked.groups)),
    ];
    let words: Vec<String> = words
        .into_iter()
        .filter_map(|(key, value)| value.map(|value| format!("{key}={value}")))
        .collect();
    if words.is_empty() {
        return Err(Error::new(
            ErrorCode::InvalidArgument,
            "cannot set the stripe pattern: no option describes one; use at least one of \
             --num-targets, --chunk-size, --chooser, --targets, --groups, --pattern",
        ));
    }
    Ok(words.join(","))
}

/// Checks a pattern as far as this is possible without the cluster map.
///
/// # Errors
/// `InvalidArgument` naming the wrong word.
pub(super) fn check(text: &str) -> Result<()> {
    let nowhere = skep_types::ClusterMap::empty(skep_types::ClusterId::new([0; 16]));
    match skep_cluster::pattern_text::parse(text, &nowhere) {
        Err(error) if error.code() != ErrorCode::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Sets the pattern at a path.
pub(super) fn set(path: &Path, text: &str) -> Result<()> {
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(path, PATTERN_XATTR, text.as_bytes(), flags)
        .map_err(|errno| explained(errno, path, text))
}

/// Returns the pattern at a path. `None` means a directory without its own pattern, to which the
/// cluster's settings apply.
pub(super) fn get(path: &Path) -> Result<Option<String>> {
    let mut bytes = vec![0; MAX_TEXT_BYTES];
    match rustix::fs::getxattr(path, PATTERN_XATTR, &mut bytes) {
        Ok(len) => Ok(Some(String::from_utf8_lossy(&bytes[..len]).into_owned())),
        Err(Errno::NODATA) => Ok(None),
        Err(errno) => Err(explained(errno, path, "")),
    }
}

/// Converts an errno of the mount, which carries no text, to an error with its meaning for this
/// command and a hint how to fix it.
pub(super) fn explained(errno: Errno, path: &Path, text: &str) -> Error {
    let (code, what) = match errno {
        Errno::PERM => (
            ErrorCode::NotPermitted,
            "only the owner and root can do that, and only with directories and regular files"
                .to_owned(),
        ),
        Errno::ACCESS => (
            ErrorCode::PermissionDenied,
            format!(
                "pattern '{text}' exceeds the limits of this user, or the user may not write the \
                 file; `skep config list` shows the limits (user-...)"
            ),
        ),
        Errno::NXIO => (
            ErrorCode::NotFound,
            format!("pattern '{text}' names an unknown target or group; `skep target list` and \
                     `skep group list` show all"),
        ),
        Errno::BUSY => (
            ErrorCode::InUse,
            "the pattern is fixed, since the file is open or has held data; create a new file with \
             `skep entry create`, and copy the data"
                .to_owned(),
        ),
        Errno::INVAL => (ErrorCode::InvalidArgument, format!("invalid pattern '{text}' for this \
                                                              file or directory")),
        Errno::EXIST => (ErrorCode::Exists, "the file exists already".to_owned()),
        Errno::NOENT => (ErrorCode::NotFound, "no such file or directory".to_owned()),
        Errno::NOSPC => {
            (ErrorCode::NoSpace, "no free space, or no storage target; `skep health check` lists \
                                  problems".to_owned())
        }
        other => (ErrorCode::Io, other.to_string()),
    };
    Error::new(code, what).within(path.display())
}
