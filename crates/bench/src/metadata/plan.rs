//! The plan of a run, which has the same options as mdtest, and the check of a plan.

use crate::launcher::Host;
use crate::limits::{DEFAULT_PATIENCE_S, MAX_DIRECTORIES, MAX_REPETITIONS, MAX_TRANSFER_BYTES};
use serde::{Deserialize, Serialize};
use skep_types::{Error, ErrorCode, Result};
use std::path::PathBuf;

/// The options of a test. The doc of each field begins with the letter of the corresponding option
/// of mdtest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Plan {
    /// `-d`: the absolute path of an existing directory. In the path, `{host}` stands for the name
    /// of the host on which a process runs.
    pub directory: String,
    /// `-n`: number of items of each process in all directories together.
    pub items: Option<u64>,
    /// `-I`: number of items of each process in each directory.
    pub items_per_directory: Option<u64>,
    /// `-z`: depth of the tree.
    pub depth: u32,
    /// `-b`: number of subdirectories in each directory of the tree.
    pub branching: u64,
    /// `-L`: only the leaves of the tree have items.
    pub leaves_only: bool,
    /// `-u`: each process uses its own tree.
    pub unique_trees: bool,
    /// The tree of each process is directly in `directory`, and not in a common directory of the
    /// run. So a file system that chooses a metadata server for each directory in its root spreads
    /// the trees. mdtest has no such option.
    pub separate_trees: bool,
    /// `-F`: items are files only.
    pub files_only: bool,
    /// `-D`: items are directories only.
    pub directories_only: bool,
    /// `-C`: the run creates items.
    pub create: bool,
    /// `-T`: the run stats items.
    pub stat: bool,
    /// `-E`: the run reads files.
    pub read: bool,
    /// `-r`: the run removes items.
    pub remove: bool,
    /// `-i`: number of repetitions.
    pub repetitions: u32,
    /// `-w`: number of bytes that a process writes to each new file.
    pub write_bytes: u64,
    /// `-e`: number of bytes that a process reads from each file.
    pub read_bytes: u64,
    /// `-y`: processes sync each file after writing.
    pub sync: bool,
    /// `-N`: difference between ranks. A process stats the items of the process whose rank is
    /// larger by `stride`. Each process reads the items of the process whose rank is larger by
    /// twice the stride, and removes the items of the process whose rank is larger by three times
    /// the stride.
    pub stride: u32,
    /// A number in the name of the run's directory. The id makes the names of each run unique,
    /// because hosts may still cache names that an earlier run has removed. `None` means that the
    /// run uses the items of another run.
    pub run: Option<u32>,
    /// Whether the hosts keep their caches between phases.
    pub keep_caches: bool,
    /// Shell command that each host with processes runs before each phase, for example to remount
    /// the file system. In the command, `{host}` stands for the host's name.
    pub before_phase: Option<String>,
    /// Hosts that run no processes, but whose caches the benchmark also drops.
    pub server_hosts: Vec<Host>,
    /// Seconds without progress of any process after which the run fails.
    pub patience_s: u32,
    /// Number of metadata servers of the file system. With this number, the output also shows the
    /// results divided by the number of servers. `None` means that the number is not known.
    pub metadata_servers: Option<u32>,
    /// Name of the preset from which the command line took options that the user did not give.
    /// `None` if the user named no preset.
    pub preset: Option<String>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            directory: String::new(),
            items: None,
            items_per_directory: None,
            depth: 0,
            branching: 1,
            leaves_only: false,
            unique_trees: false,
            separate_trees: false,
            files_only: false,
            directories_only: false,
            create: true,
            stat: true,
            read: true,
            remove: true,
            repetitions: 1,
            write_bytes: 0,
            read_bytes: 0,
            sync: false,
            stride: 0,
            run: None,
            keep_caches: false,
            before_phase: None,
            server_hosts: Vec::new(),
            patience_s: DEFAULT_PATIENCE_S,
            metadata_servers: None,
            preset: None,
        }
    }
}

/// All operations that are measured, in the order of mdtest's table. Each entry has the name of the
/// operation in results, and its name in mdtest's table.
pub const OPERATIONS: [(&str, &str); 9] = [
    ("directory_creation", "Directory creation"),
    ("directory_stat", "Directory stat"),
    ("directory_removal", "Directory removal"),
    ("file_creation", "File creation"),
    ("file_stat", "File stat"),
    ("file_read", "File read"),
    ("file_removal", "File removal"),
    ("tree_creation", "Tree creation"),
    ("tree_removal", "Tree removal"),
];

/// The operation that a phase does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    Create,
    Stat,
    Read,
    Remove,
}

/// The kind of object on which a phase does its operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Object {
    Tree,
    Directory,
    File,
}

/// All phases, in the order in which a run executes the phases. Each phase has its name, its kind
/// of object, and its operation.
#[rustfmt::skip]
const PHASES: [(&str, Object, Act); 9] = [
    ("tree_creation", Object::Tree, Act::Create),
    ("directory_creation", Object::Directory, Act::Create),
    ("directory_stat", Object::Directory, Act::Stat),
    ("directory_removal", Object::Directory, Act::Remove),
    ("file_creation", Object::File, Act::Create),
    ("file_stat", Object::File, Act::Stat),
    ("file_read", Object::File, Act::Read),
    ("file_removal", Object::File, Act::Remove),
    ("tree_removal", Object::Tree, Act::Remove),
];

/// Returns the kind of object and the operation of the phase with the name `name`.
pub(crate) fn phase_named(name: &str) -> Option<(Object, Act)> {
    let found = PHASES.iter().find(|(phase, ..)| *phase == name);
    found.map(|(_, object, act)| (*object, *act))
}

impl Plan {
    /// Checks whether `processes` processes can run the plan.
    ///
    /// # Errors
    /// `InvalidArgument`, with a text that lists every mistake in the plan.
    pub fn check(&self, processes: u32) -> Result<()> {
        let mut problems = Vec::new();
        let mut must = |holds: bool, what: &str| {
            if !holds {
                problems.push(what.to_owned());
            }
        };
        must(self.directory.starts_with('/'), "the directory (-d) must be absolute");
        must(
            self.items.is_some() != self.items_per_directory.is_some(),
            "name the number of items either for each process (-n) or for each directory (-I)",
        );
        must(self.branching > 0, "invalid number of subdirectories (-b): expected at least 1");
        must(
            self.unique_trees || !self.separate_trees,
            "--separate-trees needs one tree per process (-u)",
        );
        must(
            !(self.files_only && self.directories_only),
            "-F (only files) and -D (only directories) cannot be used together",
        );
        must(
            self.create || self.stat || self.read || self.remove,
            "the plan does nothing: enable one of -C, -T, -E, -r",
        );
        must(
            (1..=MAX_REPETITIONS).contains(&self.repetitions),
            &format!("invalid number of repetitions (-i): expected 1 to {MAX_REPETITIONS}"),
        );
        must(
            self.repetitions == 1 || self.create == self.remove,
            "a plan that only creates or only removes cannot be repeated (-i)",
        );
        let most = self.write_bytes.max(self.read_bytes);
        must(
            most <= MAX_TRANSFER_BYTES,
            "invalid number of bytes (-w, -e): expected at most 1 GiB for each file",
        );
        must(
            !self.create || self.read_bytes <= self.write_bytes,
            "the number of bytes to read (-e) must not exceed the number of bytes to write (-w)",
        );
        must(
            self.metadata_servers != Some(0),
            "the number of metadata servers (--metadata-servers) must not be 0",
        );
        must(
            self.patience_s > 0,
            "invalid limit of 0 s for the time without progress: expected at least 1 s",
        );
        let fits = self.tree_size().is_some_and(|size| size <= MAX_DIRECTORIES);
        must(fits, &format!("the tree (-z, -b) has more than {MAX_DIRECTORIES} directories"));
        if fits {
            must(
                self.items_of_process() > 0,
                "the tree (-z, -b) has more directories than the run has items (-n)",
            );
            let all = u128::from(self.items_of_process()) * u128::from(processes);
            must(i64::try_from(all).is_ok(), "the number of items (-n, -I) is too large");
        }
        if problems.is_empty() {
            return Ok(());
        }
        Err(Error::new(ErrorCode::InvalidArgument, problems.join("; ")))
    }

    /// Returns the number of directories in one tree, or `None` on overflow.
    pub(crate) fn tree_size(&self) -> Option<u64> {
        (0..=self.depth).try_fold(0_u64, |sum, level| {
            sum.checked_add(self.branching.checked_pow(level)?).filter(|it| *it <= 1 << 40)
        })
    }

    /// Returns the indexes of the directories in the tree that have items.
    pub(crate) fn directories_with_items(&self) -> std::ops::Range<u64> {
        let all = self.tree_size().unwrap_or(0);
        let leaves = self.branching.saturating_pow(self.depth);
        if self.leaves_only { all.saturating_sub(leaves)..all } else { 0..all }
    }

    /// Returns the number of items of one process in each directory that has items.
    pub(crate) fn items_in_directory(&self) -> u64 {
        let range = self.directories_with_items();
        let directories = (range.end - range.start).max(1);
        self.items_per_directory.unwrap_or_else(|| self.items.unwrap_or(0) / directories)
    }

    /// Returns the number of items of one process in all directories of the tree.
    pub fn items_of_process(&self) -> u64 {
        let range = self.directories_with_items();
        self.items_in_directory().saturating_mul(range.end - range.start)
    }

    /// Returns the phases of a repetition in order. Each phase has the number of operations that
    /// all processes perform in the phase.
    pub(crate) fn phases(&self, processes: u32) -> Vec<(&'static str, u64)> {
        let is_wanted = |object, act| match (object, act) {
            (Object::File, _) if self.directories_only => false,
            (Object::Directory, _) if self.files_only => false,
            (_, Act::Create) => self.create,
            (_, Act::Stat) => self.stat,
            (_, Act::Read) => self.read,
            (_, Act::Remove) => self.remove,
        };
        let trees = if self.unique_trees { u64::from(processes) } else { 1 };
        let count = |object| match object {
            Object::Tree => self.tree_size().unwrap_or(0) * trees,
            _ => self.items_of_process() * u64::from(processes),
        };
        let wanted = PHASES.iter().filter(|(_, object, act)| is_wanted(*object, *act));
        wanted.map(|(name, object, _)| (*name, count(*object))).collect()
    }

    /// Returns the path on `host` of the directory that a repetition uses. The first repetition has
    /// the number 1.
    pub(crate) fn test_directory(&self, repetition: u32, host: &str) -> PathBuf {
        let directory = PathBuf::from(self.directory.replace("{host}", host));
        let number = repetition - 1;
        directory.join(match self.run {
            Some(run) => format!("test-dir.{run}.{number}"),
            None => format!("test-dir.{number}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan { directory: "/mnt/x".into(), items: Some(100), ..Plan::default() }
    }

    fn problem(change: impl FnOnce(&mut Plan)) -> String {
        let mut plan = plan();
        change(&mut plan);
        plan.check(4).err().map(|error| error.context().to_owned()).unwrap_or_default()
    }

    #[test]
    fn contradictory_metadata_plans_are_refused() {
        assert_eq!(problem(|_| ()), "");
        assert!(problem(|plan| plan.items = None).contains("-n"));
        assert!(problem(|plan| plan.items_per_directory = Some(1)).contains("either"));
        assert!(problem(|plan| (plan.depth, plan.branching) = (40, 2)).contains("has more than"));
        assert!(
            problem(|plan| (plan.depth, plan.branching) = (9, 2)).contains("has more directories")
        );
        let nothing = |plan: &mut Plan| (plan.files_only, plan.directories_only) = (true, true);
        assert!(problem(nothing).contains("cannot be used together"));
        assert!(problem(|plan| plan.read_bytes = 1).contains("-e"));
        assert!(problem(|plan| plan.separate_trees = true).contains("-u"));
        assert!(problem(|plan| plan.metadata_servers = Some(0)).contains("--metadata-servers"));
        assert!(problem(|plan| (plan.remove, plan.repetitions) = (false, 2)).contains("-i"));
    }

    #[test]
    fn items_are_counted_as_mdtest_counts_them() {
        let tree = |depth, branching, leaves_only| Plan {
            items: None,
            items_per_directory: Some(10),
            depth,
            branching,
            leaves_only,
            ..plan()
        };
        // `mdtest -I 10 -z 5 -b 5` creates 3906 directories.
        assert_eq!(tree(5, 5, false).items_of_process(), 39_060);
        assert_eq!(tree(2, 4, true).items_of_process(), 160);
        assert_eq!(tree(3, 1, false).items_of_process(), 40);
        // `mdtest -n 100 -z 2 -b 2` creates 7 directories with 14 items in each.
        assert_eq!(Plan { depth: 2, branching: 2, ..plan() }.items_of_process(), 98);
    }

    #[test]
    fn plan_has_phases_only_for_enabled_operations() {
        let names = |plan: &Plan| plan.phases(2).iter().map(|(name, _)| *name).collect::<Vec<_>>();
        assert_eq!(names(&plan()).len(), 9);
        let some = Plan { files_only: true, stat: false, read: false, remove: false, ..plan() };
        assert_eq!(names(&some), ["tree_creation", "file_creation"]);
        assert_eq!(some.phases(2), [("tree_creation", 1), ("file_creation", 200)]);
        assert!(OPERATIONS.iter().all(|(name, _)| phase_named(name).is_some()));
    }
}
