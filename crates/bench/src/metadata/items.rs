//! Computes the paths of the directories in a tree, and of the items in these directories. This
//! module does no I/O.

use super::plan::Plan;
use std::path::{Path, PathBuf};

/// Returns the directories of a tree below `top`. In the list, each directory precedes its
/// subdirectories. As in mdtest, the children of directory `k` have the numbers `k * b + 1` to
/// `k * b + b`, where `b` is the branching factor.
pub(crate) fn tree(plan: &Plan, top: &Path, owner: u32) -> Vec<PathBuf> {
    let name = |index: u64| match plan.unique_trees {
        true => format!("mdtest_tree.{owner}.{index}"),
        false => format!("mdtest_tree.{index}"),
    };
    let mut paths: Vec<PathBuf> = Vec::new();
    for index in 0..plan.tree_size().unwrap_or(0) {
        let path = match index {
            0 if plan.separate_trees => beside(top, &name(0)),
            0 => top.join(name(0)),
            _ => {
                let parent = usize::try_from((index - 1) / plan.branching).unwrap_or(0);
                paths[parent].join(name(index))
            }
        };
        paths.push(path);
    }
    paths
}

/// Returns a path in the directory that contains `top`. The name of the returned path is the name
/// of `top`, a dot, and `name`.
fn beside(top: &Path, name: &str) -> PathBuf {
    let mut path = top.as_os_str().to_owned();
    path.push(".");
    path.push(name);
    path.into()
}

/// Returns the paths of one process's items in a tree, directory by directory.
pub(crate) fn items<'a>(
    plan: &Plan,
    tree: &'a [PathBuf],
    kind: &'static str,
    owner: u32,
) -> impl Iterator<Item = PathBuf> + use<'a> {
    let range = plan.directories_with_items();
    let each = plan.items_in_directory();
    let directories = tree.iter().take(range.end as usize).skip(range.start as usize);
    directories.enumerate().flat_map(move |(place, directory)| {
        let first = place as u64 * each;
        let name = move |item: u64| directory.join(format!("{kind}.mdtest.{owner}.{item}"));
        (first..first + each).map(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(paths: impl IntoIterator<Item = PathBuf>) -> Vec<String> {
        paths.into_iter().map(|path| path.display().to_string()).collect()
    }

    #[test]
    fn names_in_the_tree_equal_the_names_of_mdtest() {
        let plan = Plan { depth: 2, branching: 2, items: Some(7), ..Plan::default() };
        let paths = tree(&plan, Path::new("/t"), 1);
        assert_eq!(paths.len(), 7);
        let root = "/t/mdtest_tree.0";
        assert_eq!(text(paths[..3].to_vec())[2], format!("{root}/mdtest_tree.2"));
        assert_eq!(text(paths[6..].to_vec())[0], format!("{root}/mdtest_tree.2/mdtest_tree.6"));
        let own = Plan { unique_trees: true, ..plan.clone() };
        assert_eq!(text(tree(&own, Path::new("/t"), 3))[0], "/t/mdtest_tree.3.0");
        let separate = Plan { separate_trees: true, ..own };
        let paths_of_3 = text(tree(&separate, Path::new("/d/t"), 3));
        assert_eq!(paths_of_3[0], "/d/t.mdtest_tree.3.0");
        assert_eq!(paths_of_3[1], "/d/t.mdtest_tree.3.0/mdtest_tree.3.1");
        let leaves = Plan { leaves_only: true, items: Some(8), ..plan };
        let found = text(items(&leaves, &paths, "file", 5));
        assert_eq!(found.len(), 8);
        assert_eq!(found[0], format!("{root}/mdtest_tree.1/mdtest_tree.3/file.mdtest.5.0"));
        assert_eq!(found[7], format!("{root}/mdtest_tree.2/mdtest_tree.6/file.mdtest.5.7"));
    }
}
