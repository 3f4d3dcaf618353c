//! The work of one process in a run of `skep bench metadata`. The process creates, stats, reads and
//! removes its items.

use super::items::{items, tree};
use super::plan::{Act, Object, Plan, phase_named};
use crate::launcher::{Control, Engine, Measure, STOPPED, Seat, Step};
use crate::limits::{CLEAN_PAUSE, CLEAN_TRIES};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The engine of one process in a run of `skep bench metadata`.
pub(crate) struct MetadataEngine {
    plan: Plan,
    seat: Seat,
    buffer: Vec<u8>,
    /// The directory of the test. `None` if this process has not created the directory. With
    /// separate trees, the top of this process's tree.
    made: Option<PathBuf>,
    /// The directory that the test used in the most recent phase. `None` if the directories of
    /// other processes may belong to another run.
    current: Option<PathBuf>,
}

impl MetadataEngine {
    pub(crate) fn new(plan: Plan, seat: Seat) -> Self {
        let len = plan.write_bytes.max(plan.read_bytes);
        let buffer = vec![0x5a; usize::try_from(len).expect("a plan's files are bounded")];
        Self { plan, seat, buffer, made: None, current: None }
    }

    /// Returns the rank whose items this process uses for an operation. As in mdtest, each
    /// operation uses another multiple of the stride.
    fn owner(&self, act: Act) -> u32 {
        let shifts = match act {
            Act::Create => 0,
            Act::Stat => 1,
            Act::Read => 2,
            Act::Remove => 3,
        };
        let place = u64::from(self.seat.rank) + shifts * u64::from(self.plan.stride);
        (place % u64::from(self.seat.of)) as u32
    }

    /// Creates or removes the directories of a tree. Each process changes its own tree. Only rank 0
    /// changes a shared tree.
    fn change_tree(&mut self, act: Act, top: &Path, tally: &mut Tally<'_>) -> Result<(), String> {
        if !self.plan.unique_trees && self.seat.rank != 0 {
            return Ok(());
        }
        let mut paths = tree(&self.plan, top, self.seat.rank);
        if act == Act::Remove {
            paths.reverse();
        }
        let separate = self.plan.separate_trees;
        for path in paths {
            let made = &mut self.made;
            // `count` fails after the operation if the phase was aborted. So the operation itself
            // records the directory, which `clean` must then remove.
            tally.count(&path, || {
                if act != Act::Create {
                    return fs::remove_dir(&path);
                }
                fs::create_dir(&path)?;
                if separate {
                    // The first directory that the process creates is the top of its tree.
                    made.get_or_insert_with(|| path.clone());
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    fn change_items(
        &mut self,
        object: Object,
        act: Act,
        top: &Path,
        tally: &mut Tally<'_>,
    ) -> Result<(), String> {
        let owner = self.owner(act);
        let tree = tree(&self.plan, top, owner);
        let kind = if object == Object::Directory { "dir" } else { "file" };
        let plan = self.plan.clone();
        for path in items(&plan, &tree, kind, owner) {
            tally.count(&path, || match (object, act) {
                (Object::Directory, Act::Create) => fs::create_dir(&path),
                (Object::Directory, Act::Remove) => fs::remove_dir(&path),
                (_, Act::Stat) => fs::metadata(&path).map(drop),
                (_, Act::Remove) => fs::remove_file(&path),
                (_, Act::Create) => self.create_file(&path),
                (_, Act::Read) => self.read_file(&path),
            })?;
        }
        Ok(())
    }

    fn create_file(&self, path: &Path) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
        let len = self.plan.write_bytes as usize;
        file.write_all(&self.buffer[..len])?;
        if self.plan.sync {
            file.sync_all()?;
        }
        skep_env::close(file)
    }

    fn read_file(&mut self, path: &Path) -> io::Result<()> {
        let mut file = File::open(path)?;
        let len = self.plan.read_bytes as usize;
        file.read_exact(&mut self.buffer[..len])
    }
}

/// Counts the operations of a phase and measures their durations. [`Tally::count`] fails if an
/// operation has failed or the phase was aborted.
struct Tally<'a> {
    measure: &'a mut Measure,
    control: &'a Control,
}

impl Tally<'_> {
    /// Performs an operation on `path`, and counts the operation.
    fn count(
        &mut self,
        path: &Path,
        operation: impl FnOnce() -> io::Result<()>,
    ) -> Result<(), String> {
        let before = skep_env::now();
        operation()
            .map_err(|error| format!("the operation on {} has failed: {error}", path.display()))?;
        self.measure.durations.add(skep_env::now() - before);
        self.measure.operations += 1;
        self.control.move_on(1);
        match self.control.is_aborted() {
            true => Err(STOPPED.into()),
            false => Ok(()),
        }
    }
}

impl Engine for MetadataEngine {
    fn prepare(&mut self, step: &Step) -> Result<(), String> {
        let top = self.plan.test_directory(step.repetition, &self.seat.host);
        let makes = phase_named(&step.phase) == Some((Object::Tree, Act::Create));
        // If the names contain no id of the run, an existing directory with this name may belong to
        // an earlier run. The directory belongs to this run only after this process has created it.
        self.current = (self.plan.run.is_some() || !makes).then(|| top.clone());
        if makes && self.seat.rank == 0 && !self.plan.separate_trees {
            fs::create_dir(&top).map_err(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => format!(
                    "directory {} exists already, perhaps from a run with -C without a following \
                     run with -r; name another directory (-d), or remove this directory",
                    top.display()
                ),
                _ => format!("cannot create directory {}: {error}", top.display()),
            })?;
            self.made = Some(top);
        }
        Ok(())
    }

    fn perform(
        &mut self,
        step: &Step,
        measure: &mut Measure,
        control: &Arc<Control>,
    ) -> Result<(), String> {
        let (object, act) = phase_named(&step.phase).ok_or_else(|| step.unknown())?;
        let top = self.plan.test_directory(step.repetition, &self.seat.host);
        let mut tally = Tally { measure, control };
        if object != Object::Tree {
            return self.change_items(object, act, &top, &mut tally);
        }
        self.change_tree(act, &top, &mut tally)?;
        // With one tree per process, the last process has to remove the directory that contains all
        // trees. A process cannot find out whether it is the last process, so each process tries to
        // remove this directory.
        if act == Act::Remove {
            match fs::remove_dir(&top) {
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                result => result.map_err(|error| {
                    format!("cannot remove directory {}: {error}", top.display())
                })?,
            }
            self.made = None;
        }
        Ok(())
    }

    fn clean(&mut self, dead: &[u32]) {
        let current = self.current.take().filter(|_| self.plan.create);
        let mut directories: Vec<PathBuf> = self.made.take().into_iter().collect();
        match current {
            Some(top) if self.plan.separate_trees => {
                let of_rank = |rank: &u32| tree(&self.plan, &top, *rank).into_iter().next();
                directories.extend(dead.iter().filter_map(of_rank));
            }
            Some(top) if directories.is_empty() && dead.contains(&0) => directories.push(top),
            _ => {}
        }
        directories.iter().for_each(|directory| remove_all(directory));
    }
}

/// Removes a directory with all its contents. The removal fails while other processes still create
/// items, so this function retries the removal.
fn remove_all(directory: &Path) {
    for _ in 0..CLEAN_TRIES {
        match fs::remove_dir_all(directory) {
            Ok(()) => break,
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            Err(_) => std::thread::park_timeout(CLEAN_PAUSE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn engines(plan: &Plan, of: u32) -> Vec<MetadataEngine> {
        plan.check(of).unwrap();
        let seat = |rank| Seat { rank, of, host: "here".into() };
        (0..of).map(|rank| MetadataEngine::new(plan.clone(), seat(rank))).collect()
    }

    /// Runs all phases with all engines, and returns the number of operations of each phase.
    fn run(
        plan: &Plan,
        engines: &mut [MetadataEngine],
    ) -> Result<Vec<(&'static str, u64)>, String> {
        let mut counts = Vec::new();
        for (phase, total) in plan.phases(engines.len() as u32) {
            let step = Step { phase: phase.into(), repetition: 1, total };
            engines.iter_mut().try_for_each(|engine| engine.prepare(&step))?;
            let mut measure = Measure::default();
            for engine in engines.iter_mut() {
                engine.perform(&step, &mut measure, &Arc::default())?;
            }
            assert_eq!(measure.operations, total, "{phase}");
            counts.push((phase, total));
        }
        Ok(counts)
    }

    #[test]
    fn items_are_created_read_and_removed() {
        for (unique_trees, separate_trees) in [(false, false), (true, false), (true, true)] {
            let place = tempfile::tempdir().unwrap();
            let plan = Plan {
                directory: place.path().display().to_string(),
                items_per_directory: Some(3),
                depth: 2,
                branching: 2,
                leaves_only: true,
                unique_trees,
                separate_trees,
                write_bytes: 100,
                read_bytes: 50,
                stride: 1,
                ..Plan::default()
            };
            let counts = run(&plan, &mut engines(&plan, 3)).unwrap();
            assert_eq!(counts[0], ("tree_creation", if unique_trees { 21 } else { 7 }));
            assert_eq!(counts[4], ("file_creation", 3 * 4 * 3));
            assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn a_run_can_stat_items_of_an_earlier_run() {
        let place = tempfile::tempdir().unwrap();
        let all = Plan {
            directory: place.path().display().to_string(),
            items: Some(5),
            files_only: true,
            stat: false,
            read: false,
            remove: false,
            ..Plan::default()
        };
        run(&all, &mut engines(&all, 2)).unwrap();
        let files = fs::read_dir(place.path().join("test-dir.0/mdtest_tree.0")).unwrap().count();
        assert_eq!(files, 10);
        // A second run finds the directory of the first run, and does not change this directory.
        let mut again = engines(&all, 2);
        assert!(run(&all, &mut again).unwrap_err().contains("exists"));
        again.iter_mut().for_each(|engine| engine.clean(&[]));
        let rest = Plan { create: false, stat: true, remove: true, ..all };
        let counts = run(&rest, &mut engines(&rest, 2)).unwrap();
        assert_eq!(counts, [("file_stat", 10), ("file_removal", 10), ("tree_removal", 1)]);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }

    #[test]
    fn files_of_a_failed_run_are_removed() {
        for separate_trees in [false, true] {
            let place = tempfile::tempdir().unwrap();
            let plan = Plan {
                directory: place.path().display().to_string(),
                items: Some(5),
                unique_trees: separate_trees,
                separate_trees,
                stat: false,
                read: false,
                remove: false,
                ..Plan::default()
            };
            let mut both = engines(&plan, 2);
            run(&plan, &mut both).unwrap();
            let made = if separate_trees { 2 } else { 1 };
            assert_eq!(fs::read_dir(place.path()).unwrap().count(), made);
            // The process of rank 0 is dead, so another process removes its files.
            both[1].clean(&[0]);
            assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn aborted_creation_leaves_only_trees_of_earlier_runs() {
        let place = tempfile::tempdir().unwrap();
        let plan = Plan {
            directory: place.path().display().to_string(),
            items: Some(5),
            unique_trees: true,
            separate_trees: true,
            ..Plan::default()
        };
        let engine = &mut engines(&plan, 2)[0];
        let step = Step { phase: "tree_creation".into(), repetition: 1, total: 2 };
        let control = Arc::<Control>::default();
        control.abort();
        engine.prepare(&step).unwrap();
        engine.perform(&step, &mut Measure::default(), &control).unwrap_err();
        assert!(place.path().join("test-dir.0.mdtest_tree.0.0").exists());
        // The process of rank 1 has ended before it created its tree.
        let earlier = place.path().join("test-dir.0.mdtest_tree.1.0");
        fs::create_dir(&earlier).unwrap();
        engine.clean(&[1]);
        let left = fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().path());
        assert_eq!(left.collect::<Vec<_>>(), [earlier]);
    }
}
