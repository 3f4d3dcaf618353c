//! Visits the paths in the arguments of a command. If the user requests a recursive walk, the
//! function also visits everything below these paths.

use skep_types::{Error, Result};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Calls `visit` for each path, and for everything below the path if `is_recursive` is set. Visits
/// a directory before its entries, and entries in the order of their names. Follows no symbolic
/// links, and does not leave the file system of a path. Skips entries that are removed during the
/// walk.
///
/// # Errors
/// - The errors of `visit`.
/// - The error of a directory that this user may not list.
pub(crate) fn walk(
    paths: &[PathBuf],
    is_recursive: bool,
    visit: &mut dyn FnMut(&Path) -> Result<()>,
) -> Result<()> {
    for path in paths {
        visit(path)?;
        if is_recursive {
            below(path, visit)?;
        }
    }
    Ok(())
}

fn below(top: &Path, visit: &mut dyn FnMut(&Path) -> Result<()>) -> Result<()> {
    let failed = |path: &Path, error: std::io::Error| {
        Error::from(error).within(format_args!("cannot read the attributes of {}", path.display()))
    };
    let found = std::fs::symlink_metadata(top).map_err(|error| failed(top, error))?;
    let device = found.dev();
    // One list for each directory on the path to the current entry. Each list contains the entries
    // of its directory that are not visited yet, in reverse order.
    let mut left = vec![if found.is_dir() { entries(top)? } else { Vec::new() }];
    while let Some(entries_left) = left.last_mut() {
        let Some(path) = entries_left.pop() else {
            left.pop();
            continue;
        };
        let found = match std::fs::symlink_metadata(&path) {
            Ok(found) if found.dev() == device => found,
            Ok(_) => continue,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(failed(&path, error)),
        };
        visit(&path)?;
        if found.is_dir() {
            left.push(entries(&path)?);
        }
    }
    Ok(())
}

/// Returns the paths of the entries of a directory, in descending order of their names.
fn entries(directory: &Path) -> Result<Vec<PathBuf>> {
    let failed = |error: std::io::Error| {
        Error::from(error).within(format_args!("cannot list {}", directory.display()))
    };
    let listed = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        listed => listed.map_err(failed)?,
    };
    let mut paths: Vec<PathBuf> =
        listed.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>().map_err(failed)?;
    paths.sort_by(|one, other| other.cmp(one));
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recursive_walk_visits_the_whole_tree_in_order() {
        let place = tempfile::tempdir().unwrap();
        let top = place.path();
        std::fs::create_dir_all(top.join("b/c")).unwrap();
        for file in ["a", "b/c/d", "b/z", "e"] {
            std::fs::write(top.join(file), "").unwrap();
        }
        std::os::unix::fs::symlink("/", top.join("b/root")).unwrap();
        let visited = |is_recursive| {
            let mut seen = Vec::new();
            walk(&[top.to_owned(), top.join("a")], is_recursive, &mut |path| {
                seen.push(path.strip_prefix(top).unwrap().display().to_string());
                Ok(())
            })
            .unwrap();
            seen
        };
        assert_eq!(visited(false), ["", "a"]);
        let all = ["", "a", "b", "b/c", "b/c/d", "b/root", "b/z", "e", "a"];
        assert_eq!(visited(true), all);
    }
}
