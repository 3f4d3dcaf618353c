//! Runs steps on two mounts and on the local file system, and compares the results.

use crate::kills::Kill;
use crate::operation::{Operation, User};
use crate::view::{SLOTS, View, acting_as, set_time};
use crate::watch::Watch;
use skep_testkit::files;
use skep_testkit::tree::{self, Tree};
use skep_testkit::{Cluster, PATIENCE, Random, Scratch, spread, wait_for};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Maximum number of differences between trees that the test prints.
const SHOWN: usize = 20;
/// A step of a test.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// A call on the mount with this number. A call that needs an open file must run on the mount
    /// that has the file open. If the mounts take turns and another mount has its turn, the test
    /// skips the call.
    Call(usize, User, Operation),
    /// Kills a service while the next step runs.
    Kill(Kill),
    /// Compares the trees. The mount with this number made the last calls, so the test reads the
    /// tree on this mount without waiting until its cache has expired.
    Compare(usize),
}

/// The number of steps of each kind.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    /// Total number of calls.
    pub(crate) calls: usize,
    /// Number of calls between two comparisons.
    pub(crate) between_comparisons: usize,
    /// Average number of calls between two kills.
    pub(crate) kill_every: usize,
    /// Whether a single mount makes all calls up to the next comparison. If false, each call uses a
    /// random mount.
    pub(crate) in_turns: bool,
}

impl Plan {
    /// Returns random steps.
    pub(crate) fn steps(&self, random: &mut Random) -> Vec<Step> {
        let mut steps = Vec::new();
        for number in 0..self.calls {
            let turn = number / self.between_comparisons;
            let mount = if self.in_turns { turn % 2 } else { random.below(2) };
            if random.below(self.kill_every) == 0 {
                steps.push(Step::Kill(Kill::random(random)));
            }
            let user = crate::operation::user(random);
            steps.push(Step::Call(mount, user, crate::operation::operation(random)));
            if (number + 1) % self.between_comparisons == 0 || number + 1 == self.calls {
                steps.push(Step::Compare(mount));
            }
        }
        steps
    }
}

/// A cluster with two mounts. The test can run several sequences of steps on this cluster.
pub(crate) struct Trial {
    cluster: Cluster,
    mounts: [PathBuf; 2],
    /// Maximum age of the names and attributes in a mount's cache.
    staleness: Duration,
    scratch: Scratch,
    watch: Watch,
    runs: u32,
    /// Whether each step of the last run had an effect. Kills and successful calls have an effect.
    effective: Vec<bool>,
}

impl Trial {
    pub(crate) fn new(cluster: Cluster, mounts: [PathBuf; 2], staleness: Duration) -> Self {
        let watch = Watch::new(cluster.data());
        Self {
            cluster,
            mounts,
            staleness,
            scratch: Scratch::new(),
            watch,
            runs: 0,
            effective: Vec::new(),
        }
    }

    pub(crate) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Runs steps on new trees. If a step fails, returns the index of the step and its failure.
    pub(crate) fn run(&mut self, steps: &[Step]) -> Result<(), (usize, String)> {
        self.runs += 1;
        self.effective.clear();
        let name = format!("run-{}", self.runs);
        let reference = self.scratch.directory(&name);
        let roots = [0, 1].map(|it| self.mounts[it].join(&name));
        files::create_dir(&roots[0]);
        make_trees([&reference, &roots[0]]);
        let mut run = Run {
            trial: self,
            reference: View::new(reference.join("tree")),
            views: roots.clone().map(|root| View::new(root.join("tree"))),
            places: [reference, roots[0].clone(), roots[1].clone()],
            opened_on: [0; SLOTS],
            last: None,
        };
        for (number, step) in steps.iter().enumerate() {
            let result = run.step(step);
            result.map_err(|what| (number, format!("step {number}, {step:?}: {what}")))?;
        }
        let [reference, root, _] = run.places.clone();
        drop(run);
        self.watch.ends();
        for place in [reference, root] {
            files::remove_dir_all(place);
        }
        Ok(())
    }

    /// Returns whether each step of the last run had an effect. Kills and successful calls have an
    /// effect.
    pub(crate) fn effective(&self) -> &[bool] {
        &self.effective
    }

    /// Whether a call did not return. After such a call, the [`Watch`] has killed the mounts, so a
    /// further run of the steps is useless.
    pub(crate) fn stood_still(&self) -> bool {
        self.watch.has_bitten()
    }
}

/// A run of steps.
struct Run<'a> {
    trial: &'a mut Trial,
    reference: View,
    views: [View; 2],
    /// The roots of the reference tree and of the trees on both mounts.
    places: [PathBuf; 3],
    /// For each slot, the mount on which the file of the slot is open.
    opened_on: [usize; SLOTS],
    /// The mount that made the last call, and the time of that call.
    last: Option<(usize, Instant)>,
}

impl Run<'_> {
    fn step(&mut self, step: &Step) -> Result<(), String> {
        self.trial.watch.begins(step);
        match step {
            Step::Call(mount, user, operation) => self.call(*mount, *user, operation),
            Step::Kill(kill) => {
                kill.start(&self.trial.cluster);
                self.trial.effective.push(true);
                Ok(())
            }
            Step::Compare(first) => {
                self.trial.effective.push(false);
                self.compare(*first)
            }
        }
    }

    fn call(&mut self, mount: usize, user: User, operation: &Operation) -> Result<(), String> {
        let of_file = operation.slot().map_or(mount, |slot| self.opened_on[slot]);
        if of_file != mount && !self.trial.staleness.is_zero() {
            // The mount that has the file open does not have its turn, so skip the call.
            self.trial.effective.push(false);
            return Ok(());
        }
        let mount = of_file;
        self.turn_of(mount);
        if let Operation::Open(slot, ..) = operation {
            // The call will open another file in this slot, perhaps on another mount.
            let view = &mut self.views[self.opened_on[*slot]];
            close_both(&mut self.reference, view, *slot)?;
            self.opened_on[*slot] = mount;
        }
        let expected = acting_as(user, || operation.run(&mut self.reference));
        let found = acting_as(user, || operation.run(&mut self.views[mount]));
        self.trial.effective.push(expected.is_ok());
        self.last = Some((mount, Instant::now()));
        check_result(mount, found, expected)
    }

    /// If the other mount made the last call, waits until the caches of `mount` have expired.
    fn turn_of(&mut self, mount: usize) {
        if let Some((_, since)) = self.last.filter(|(last, _)| *last != mount) {
            wait_for("the caches of the mount have expired", PATIENCE, || {
                (since.elapsed() >= self.trial.staleness).then_some(())
            });
        }
        self.last = Some((mount, Instant::now()));
    }

    fn compare(&self, first: usize) -> Result<(), String> {
        let expected = read(&self.places[0])?;
        let start = Instant::now();
        for mount in [first, 1 - first] {
            if mount != first {
                wait_for("the caches of the mount have expired", PATIENCE, || {
                    (start.elapsed() >= self.trial.staleness).then_some(())
                });
            }
            check_tree(mount, &self.places[1 + mount], &expected)?;
        }
        Ok(())
    }
}

/// Creates the directory `tree` in each of two directories, with some directories in it. On Skep,
/// these directories are on different metadata groups, so that many calls concern several groups.
/// Other users can write to the tree, and symbolic links in it may refer to the directory above.
pub(crate) fn make_trees(places: [&Path; 2]) {
    for above in places {
        let tree = above.join("tree");
        files::create_dir(&tree);
        let inner = spread::create_dirs(&tree, ["a", "b", "c"]);
        for place in inner.iter().map(PathBuf::as_path).chain([above, &tree]) {
            files::set_permissions(place, PermissionsExt::from_mode(0o777));
        }
    }
}

/// Closes the file in a slot of the reference tree, and the file in the same slot of a mount's
/// tree.
///
/// # Errors
/// Returns the error of the mount, unless the slot is empty.
pub(crate) fn close_both(reference: &mut View, view: &mut View, slot: usize) -> Result<(), String> {
    reference.close(slot).ok();
    match view.close(slot) {
        Err(error) if error.raw_os_error() != Some(rustix::io::Errno::BADF.raw_os_error()) => {
            Err(format!("closing #{slot}: {error}"))
        }
        _ => Ok(()),
    }
}

/// Checks that a call on a mount has the same result as on the reference tree.
///
/// # Errors
/// Returns both results if the results differ.
pub(crate) fn check_result(
    mount: usize,
    found: Result<String, i32>,
    expected: Result<String, i32>,
) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    let shown = |result: Result<String, i32>| {
        result.map_err(|errno| io::Error::from_raw_os_error(errno).to_string())
    };
    Err(format!("on mount {mount}: {:?}, not {:?}", shown(found), shown(expected)))
}

/// Checks that the tree at `place` on a mount equals the reference tree.
///
/// # Errors
/// Returns the differences, or the error of a call on the mount.
pub(crate) fn check_tree(mount: usize, place: &Path, expected: &Tree) -> Result<(), String> {
    let found = read(place)?;
    let differences = tree::differences(expected, &found, SHOWN);
    if differences.is_empty() {
        return Ok(());
    }
    let again = read(place)?;
    let remains = tree::differences(expected, &again, SHOWN).len();
    let shown = differences.join("\n");
    Err(format!(
        "the tree of mount {mount}:\n{shown}\n({remains} differences in a second comparison)"
    ))
}

/// Records a tree, with the modification times that a call has set explicitly.
///
/// # Errors
/// Returns the error of a call, with its path.
pub(crate) fn read(place: &Path) -> Result<Tree, String> {
    let mut tree = tree::read(place, true).map_err(|error| error.to_string())?;
    for node in tree.values_mut() {
        node.modified = node.modified.and_then(set_time);
    }
    Ok(tree)
}
