//! Stripe patterns as text, for `entry set` and `entry create`. A pattern is set through the mount,
//! which works for all users and needs no token of the cluster.

use crate::host_users::{Database, names_of};
use crate::{through_mount, values};
use clap::Args;
use rustix::io::Errno;
use skep_cluster::patterns::check_request;
use skep_fuse::PATTERN_XATTR;
use skep_types::pattern::MAX_STRIPE_WIDTH;
use skep_types::{ClusterMap, Error, ErrorCode, GroupId, Result};
use std::os::unix::fs::MetadataExt;
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
    /// Number of consecutive bytes on one target before the bytes on the next target: a power of
    /// two from 64KiB to 1GiB
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

/// Returns the pattern that the options describe, in the format of the extended attribute.
///
/// # Errors
/// `InvalidArgument` if no option describes a pattern.
pub(super) fn text(asked: &PatternArgs) -> Result<String> {
    if let Some(text) = &asked.pattern {
        return Ok(text.clone());
    }
    if let Some(count) = asked.num_targets.as_deref().and_then(|text| text.parse::<u64>().ok())
        && !(1..=MAX_STRIPE_WIDTH as u64).contains(&count)
    {
        let what = format!(
            "invalid --num-targets {count}: expected a number from 1 to {MAX_STRIPE_WIDTH}, or \
             `all`"
        );
        return Err(Error::new(ErrorCode::InvalidArgument, what));
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
            "cannot set the stripe pattern: no option describes a pattern; use at least one of \
             --num-targets, --chunk-size, --chooser, --targets, --groups, --pattern",
        ));
    }
    Ok(words.join(","))
}

/// Checks the text of a pattern without the cluster map, so the existence of groups and targets is
/// not checked.
///
/// # Errors
/// `InvalidArgument`. The error names the invalid word of the text.
pub(super) fn check(text: &str) -> Result<()> {
    let nowhere = skep_types::ClusterMap::empty(skep_types::ClusterId::new([0; 16]));
    match skep_cluster::pattern_text::parse(text, &nowhere) {
        Err(error) if error.code() != ErrorCode::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Sets the pattern of the file or directory at `path`.
///
/// # Errors
/// The error that the mount returned, with an explanation and a fix.
pub(crate) fn set(path: &Path, text: &str) -> Result<()> {
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(path, PATTERN_XATTR, text.as_bytes(), flags)
        .map_err(|errno| explained(errno, path, text))
}

/// Returns a note for people if the file got fewer targets than the user has requested with the
/// options in `asked`. `pattern` is the pattern that the file got.
pub(super) fn fewer_targets(asked: &PatternArgs, pattern: &str) -> Option<String> {
    let asked = asked.num_targets.as_deref()?.parse::<usize>().ok()?;
    let words = pattern.split(['/', ',']);
    let groups = words.filter_map(|word| word.strip_prefix("groups=")).next_back()?;
    let given = groups.split(':').count();
    (given < asked).then(|| {
        format!(
            "the file is on {given} targets instead of {asked}: no more storage targets accept new \
             files; `skep health df` shows all targets"
        )
    })
}

/// Returns the pattern of the file or directory at `path`. `None` means a directory without its own
/// pattern, to which the cluster's settings apply.
pub(super) fn get(path: &Path) -> Result<Option<String>> {
    let mut bytes = vec![0; MAX_TEXT_BYTES];
    match rustix::fs::getxattr(path, PATTERN_XATTR, &mut bytes) {
        Ok(len) => Ok(Some(String::from_utf8_lossy(&bytes[..len]).into_owned())),
        Err(Errno::NODATA) => Ok(None),
        Err(errno) => Err(explained(errno, path, "")),
    }
}

/// Replaces each group of one target in the text of a pattern by this target, because users list
/// targets in patterns. A group of several targets, or a group that is not in the map, stays in the
/// text.
pub(super) fn in_targets(pattern: &str, map: &ClusterMap) -> String {
    let target = |id: &str| {
        let id = id.strip_prefix('g').unwrap_or(id).parse().ok()?;
        let group = map.group(GroupId::new(id)).filter(|group| group.members.len() == 1)?;
        Some(group.primary.raw().to_string())
    };
    let word = |word: &str| {
        let targets: Option<Vec<_>> =
            word.strip_prefix("groups=").and_then(|ids| ids.split(':').map(target).collect());
        targets.map_or_else(|| word.to_owned(), |ids| format!("targets={}", ids.join(":")))
    };
    let component = |text: &str| text.split(',').map(word).collect::<Vec<_>>().join(",");
    pattern.split('/').map(component).collect::<Vec<_>>().join("/")
}

/// Returns a path and its pattern as a line for people. A `pattern` of `None` means a directory to
/// which the cluster's settings apply. A line that is made without a map names groups instead of
/// targets.
pub(super) fn line(path: &Path, pattern: Option<&str>, map: Option<&ClusterMap>) -> String {
    let pattern = match (pattern, map) {
        (None, _) => "as in the cluster's settings".to_owned(),
        (Some(pattern), Some(map)) => in_targets(pattern, map),
        (Some(pattern), None) => pattern.to_owned(),
    };
    format!("{}: {pattern}", path.display())
}

/// Returns the reason why the mount has refused a change of the pattern of `path` with `EPERM`.
fn not_owner(path: &Path) -> String {
    let found = std::fs::metadata(path).ok();
    if found.as_ref().is_some_and(|it| !it.is_file() && !it.is_dir()) {
        return "only files and directories have a stripe pattern, and this path is neither; name a \
                file or a directory"
            .to_owned();
    }
    let user = rustix::process::geteuid().as_raw();
    if found.as_ref().is_some_and(|it| it.is_file() && (user == 0 || it.uid() == user)) {
        return "only a directory can inherit its pattern; a file keeps the pattern that it has"
            .to_owned();
    }
    let owner = found.map(|found| found.uid());
    let owner =
        owner.map_or_else(String::new, |uid| format!(" (the owner here is {})", user_name(uid)));
    format!("only root and the owner of a file or directory can set its pattern{owner}")
}

/// Returns the reason why the mount has refused a user's pattern. The mount uses the same errno for
/// a user who may not write the file and for a setting that forbids the pattern.
fn not_allowed(path: &Path, text: &str) -> String {
    let uid = rustix::process::geteuid().as_raw();
    if std::fs::symlink_metadata(path).is_ok_and(|found| found.uid() != uid) {
        return not_owner(path);
    }
    let map = through_mount::cluster_map(path).ok().flatten();
    match map.and_then(|map| limit_of(&map, text, uid)) {
        Some(limit) => limit,
        None => format!(
            "pattern '{text}' exceeds the limits that the administrator has set for users \
             (settings user-...); choose a pattern within these limits, or ask an administrator"
        ),
    }
}

/// Returns the cluster setting that forbids the pattern to a user. `None` means that the settings
/// in the map allow the pattern, or that `text` is not a valid pattern.
fn limit_of(map: &ClusterMap, text: &str, uid: u32) -> Option<String> {
    let request = skep_cluster::pattern_text::parse(text, map).ok()?;
    let refused = check_request(map, &request, uid).err()?;
    let way_out = match request.components.iter().any(|it| it.is_listed()) {
        true => "; use --num-targets instead",
        false => "",
    };
    Some(format!("{}{way_out}", refused.context()))
}

fn user_name(uid: u32) -> String {
    let id = uid.to_string();
    let mut names = names_of(Database::Users, std::iter::once(id.as_str()));
    names.remove(&id).unwrap_or_else(|| format!("user {uid}"))
}

/// Returns the directory of a path. An error message names this directory as the argument of a
/// command that shows all targets.
fn directory_of(path: &Path) -> &Path {
    let parent = path.parent().filter(|it| !it.as_os_str().is_empty());
    if path.is_dir() { path } else { parent.unwrap_or(Path::new(".")) }
}

/// Converts an errno of the mount to an error with a text. The text contains the meaning of the
/// errno for this command, and a hint on how to fix the problem.
pub(super) fn explained(errno: Errno, path: &Path, text: &str) -> Error {
    let (code, what) = match errno {
        Errno::PERM => (ErrorCode::NotPermitted, not_owner(path)),
        Errno::ACCESS => (ErrorCode::PermissionDenied, not_allowed(path, text)),
        Errno::NXIO => (
            ErrorCode::NotFound,
            format!(
                "pattern '{text}' names an unknown target or group; `skep health df {}` shows the \
                 ids of all targets",
                directory_of(path).display()
            ),
        ),
        Errno::BUSY => (
            ErrorCode::InUse,
            "the pattern is fixed, since the file is open or has stored data; create a new file \
             with `skep entry create`, and copy the data"
                .to_owned(),
        ),
        Errno::INVAL => (
            ErrorCode::InvalidArgument,
            format!("invalid pattern '{text}' for this file or directory"),
        ),
        Errno::EXIST => (ErrorCode::Exists, "the file exists already".to_owned()),
        Errno::NOENT => (ErrorCode::NotFound, "no such file or directory".to_owned()),
        Errno::NOSPC => (
            ErrorCode::NoSpace,
            format!(
                "no storage target has free space, or the pattern lists a target that is lost or \
                 closed; `skep health df {}` shows the targets",
                directory_of(path).display()
            ),
        ),
        other => (ErrorCode::Io, other.to_string()),
    };
    Error::new(code, what).within(path.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::{ClusterId, Group, TargetId, TargetKind};

    #[test]
    fn error_for_a_wrong_number_of_targets_names_the_option() {
        for count in ["0", "257", "300"] {
            let asked = PatternArgs { num_targets: Some(count.into()), ..PatternArgs::default() };
            let refused = text(&asked).unwrap_err().context().to_owned();
            assert!(refused.contains("--num-targets") && refused.contains("1 to 256"), "{refused}");
        }
        for count in ["1", "256", "all"] {
            let asked = PatternArgs { num_targets: Some(count.into()), ..PatternArgs::default() };
            assert_eq!(text(&asked).unwrap(), format!("count={count}"));
        }
    }

    #[test]
    fn pattern_error_names_the_file_kind_or_the_owner() {
        let refused = not_owner(Path::new("/dev/null"));
        assert!(
            refused.starts_with("only files and directories have a stripe pattern"),
            "{refused}"
        );
        let own = tempfile::NamedTempFile::new().unwrap();
        let refused = not_owner(own.path());
        assert!(refused.starts_with("only a directory can inherit its pattern"), "{refused}");
        let refused = not_owner(Path::new("/"));
        assert!(refused.ends_with("can set its pattern (the owner here is root)"), "{refused}");
    }

    #[test]
    fn output_warns_if_a_file_gets_fewer_targets_than_requested() {
        let note = |count: &str, pattern| {
            let asked = PatternArgs { num_targets: Some(count.into()), ..PatternArgs::default() };
            fewer_targets(&asked, pattern)
        };
        assert!(
            note("3", "chunk-size=1MiB,groups=4:5").unwrap().contains("2 targets instead of 3")
        );
        assert_eq!(note("2", "chunk-size=1MiB,groups=4:5"), None);
        assert_eq!(note("all", "groups=4:5"), None);
    }

    #[test]
    fn pattern_text_names_targets_in_place_of_their_groups() {
        let mut map = ClusterMap::empty(ClusterId::default());
        let of_one = |group, target| {
            Group::of_one(GroupId::new(group), TargetKind::Storage, TargetId::new(target))
        };
        map.groups = vec![of_one(5, 6), of_one(6, 7)];
        assert_eq!(in_targets("groups=6:5,chunk-size=1MiB", &map), "targets=7:6,chunk-size=1MiB");
        assert_eq!(in_targets("inline/from=4KiB,groups=6", &map), "inline/from=4KiB,targets=7");
        let shown = |pattern| line(Path::new("/mnt/a"), pattern, Some(&map));
        assert_eq!(shown(Some("groups=6:5")), "/mnt/a: targets=7:6");
        assert_eq!(shown(None), "/mnt/a: as in the cluster's settings");
        for same in ["groups=9", "count=4", ""] {
            assert_eq!(in_targets(same, &map), same);
        }
    }

    #[test]
    fn error_for_a_refused_pattern_names_only_its_reason() {
        let mut map = ClusterMap::empty(ClusterId::default());
        map.groups.push(Group::of_one(GroupId::new(3), TargetKind::Storage, TargetId::new(3)));
        let listed = limit_of(&map, "groups=3", 1000).unwrap();
        assert!(listed.contains("only root may list targets"), "{listed}");
        assert!(listed.contains("--num-targets"), "{listed}");
        assert_eq!(limit_of(&map, "groups=3", 0), None);
        assert_eq!(limit_of(&map, "count=4", 1000), None);
        map.policy.user_max_width = 2;
        let wide = limit_of(&map, "count=4", 1000).unwrap();
        assert!(wide.contains("more than 2 targets") && !wide.contains("instead"), "{wide}");
        let foreign = not_owner(Path::new("/"));
        assert!(foreign.contains("can set its pattern (the owner here is root)"), "{foreign}");
    }
}
