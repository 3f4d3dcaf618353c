//! The engine of a process that runs an external program.

use super::mdtest::Part;
use super::mpi::{self, Dialect};
use super::{Assignment, Report, Tool, Work, child, fio, ior, iozone, mdtest};
use crate::io::pattern::reads_data_of;
use crate::io::plan::Plan as IoPlan;
use crate::launcher::{Control, Engine, Measure, Seat, Step};
use crate::metadata::plan::Plan as MetadataPlan;
use rustix::fs::Advice;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Name of the phase that removes the directory of the repetition.
pub(crate) const CLEAN_UP: &str = "clean up";

/// The engine of one process that runs an external program. With MPI, only one process exists,
/// which starts the MPI job.
pub(crate) struct ToolEngine {
    assignment: Assignment,
    seat: Seat,
    /// Files and directories that the program has created or may have created, and that are not
    /// removed yet.
    made: Vec<PathBuf>,
    /// Results for later phases, because one execution of mdtest can report several phases.
    reports: BTreeMap<String, (Report, String)>,
}

type InWords<T> = Result<T, String>;

fn at(path: &Path, what: &str) -> impl Fn(std::io::Error) -> String {
    move |error| format!("cannot {what} {}: {error}", path.display())
}

/// Whether `program` is a path, or the name of a program in the search path.
fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    program.contains('/') || std::env::split_paths(&path).any(|place| place.join(program).is_file())
}

/// A unique path for a temporary file. The drop of this value removes the file.
struct Temporary(PathBuf);

impl Temporary {
    fn new() -> Self {
        let name = format!("skep-bench-{:016x}", skep_env::random_u64());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // Ignores an error, because the program may not have created the file.
        let _ = fs::remove_file(&self.0);
    }
}

/// The results of one execution of a program in a phase.
struct Done {
    report: Report,
    command: String,
    /// Time at which the program ended, in seconds since boot.
    end_s: f64,
}

impl ToolEngine {
    pub(crate) fn new(assignment: Assignment, seat: Seat) -> Self {
        Self { assignment, seat, made: Vec::new(), reports: BTreeMap::new() }
    }

    fn tool(&self) -> Tool {
        self.assignment.runner.tool
    }

    fn find_programs(&self) -> InWords<()> {
        let tool = self.tool();
        let host = &self.seat.host;
        if !is_there(tool.name()) {
            let (name, source) = (tool.name(), tool.source());
            return Err(format!("{name} is not installed on host {host}: {source}"));
        }
        let starter = self.assignment.runner.mpirun.first();
        let starter = starter.filter(|starter| tool.is_mpi() && !is_there(starter));
        starter.map_or(Ok(()), |starter| {
            Err(format!(
                "{starter} is not installed on host {host}: install the package mpich or \
                 openmpi-bin, or name another command with --mpirun"
            ))
        })
    }

    /// Returns the files that the program of this process uses.
    fn files(&self, plan: &IoPlan) -> Vec<PathBuf> {
        let host = &self.seat.host;
        match (plan.file_per_process, self.tool().is_mpi()) {
            (true, true) => {
                (0..self.assignment.processes).map(|rank| plan.file_of(rank, host)).collect()
            }
            (true, false) => vec![plan.file_of(self.seat.rank, host)],
            (false, _) => vec![plan.file_of(0, host)],
        }
    }

    /// Returns an error if a file of the run exists, as the built-in engine does. For fio with a
    /// shared file, also creates this file, because fio would create the file with a wrong size.
    fn prepare_write(&mut self, plan: &IoPlan) -> InWords<()> {
        let is_maker = plan.file_per_process || self.seat.rank == 0;
        if plan.use_existing || !is_maker {
            return Ok(());
        }
        let files = self.files(plan);
        if let Some(file) = files.iter().find(|file| fs::symlink_metadata(file).is_ok()) {
            return Err(format!(
                "file {} exists already: name another path (-o), or use -E, which overwrites the \
                 file and keeps the file at the end of the run",
                file.display()
            ));
        }
        self.made.clone_from(&files);
        if self.tool() == Tool::Fio && !plan.file_per_process {
            // Each process of fio would create the shared file with the size of its own data, which
            // is too small.
            let file = OpenOptions::new().write(true).create_new(true).open(&files[0]);
            let total = plan.total_bytes(self.seat.of).unwrap_or(0);
            file.and_then(|file| file.set_len(total)).map_err(at(&files[0], "create"))?;
        }
        Ok(())
    }

    /// Returns the rank whose data this process reads in a phase.
    fn reads(&self, plan: &IoPlan) -> u32 {
        reads_data_of(plan, self.seat.rank, self.seat.of)
    }

    /// Checks that the files of this process exist and are long enough for the read phase. Without
    /// this check, the benchmark program would create missing files.
    fn prepare_read(&self, plan: &IoPlan) -> InWords<()> {
        let files = match self.tool().is_mpi() {
            true => self.files(plan),
            false => vec![plan.file_of(self.reads(plan), &self.seat.host)],
        };
        let sharers = if plan.file_per_process { 1 } else { self.assignment.processes };
        let needed = plan.total_bytes(sharers).unwrap_or(u64::MAX);
        for path in files {
            let file = File::open(&path).map_err(at(&path, "open"))?;
            let len = file.metadata().map_err(at(&path, "read the length of"))?.len();
            if len < needed {
                let name = path.display();
                return Err(format!(
                    "cannot read {name}: the file has {len} bytes, and the plan reads {needed} \
                     bytes"
                ));
            }
            if !plan.keep_caches {
                // A file system that has no page cache ignores or refuses this advice.
                let _ = rustix::fs::fadvise(&file, 0, None, Advice::DontNeed);
            }
        }
        Ok(())
    }

    fn prepare_names(&mut self, plan: &MetadataPlan, step: &Step) -> InWords<()> {
        let directory = plan.test_directory(step.repetition, &self.seat.host);
        if step.phase == "tree_creation" {
            let refuse = |error: std::io::Error| match error.kind() {
                std::io::ErrorKind::AlreadyExists => format!(
                    "directory {} exists already: name another directory (-d), or remove this \
                     directory",
                    directory.display()
                ),
                _ => at(&directory, "create")(error),
            };
            fs::create_dir(&directory).map_err(refuse)?;
            self.made.push(directory);
        }
        Ok(())
    }

    /// Runs a program as an MPI job. The job runs in the directory `directory` on each host.
    fn run_by_mpi(
        &self,
        program: &[String],
        directory: &str,
        control: &Control,
    ) -> InWords<(child::Printed, String)> {
        let starter = self.assignment.runner.mpirun.clone();
        let version = child::run(&[starter, vec!["--version".into()]].concat(), control)?;
        let dialect = Dialect::of(&version.text);
        let hosts = mpi::host_file(&self.assignment, dialect)?;
        if hosts.is_some() && directory.contains("{host}") {
            return Err(
                "all hosts of an MPI job must use the same path: remove {host} from the path"
                    .into(),
            );
        }
        let file = hosts.as_ref().map(|_| Temporary::new());
        if let (Some(file), Some(text)) = (&file, &hosts) {
            fs::write(&file.0, text).map_err(at(&file.0, "write"))?;
        }
        let way = (dialect, file.as_ref().map(|file| file.0.as_path()));
        let command = mpi::command(&self.assignment, program, directory, way);
        Ok((child::run(&command, control)?, command.join(" ")))
    }

    fn run_ior(&self, plan: &IoPlan, is_write: bool, control: &Control) -> InWords<Done> {
        let summary = Temporary::new();
        let program = ior::command(plan, is_write, &summary.0.display().to_string());
        let directory = plan.path.rsplit_once('/').map_or("", |(place, _)| place);
        let directory = if directory.is_empty() { "/" } else { directory };
        let (printed, command) = self.run_by_mpi(&program, directory, control)?;
        let text = fs::read_to_string(&summary.0).map_err(at(&summary.0, "read"))?;
        let total = plan.total_bytes(self.assignment.processes).unwrap_or(0);
        let mut report = ior::parse(&text, is_write, total)?;
        report.operations = total / plan.transfer_bytes.max(1);
        Ok(Done { report, command, end_s: printed.end_s })
    }

    fn move_data(&self, plan: &IoPlan, is_write: bool, control: &Control) -> InWords<Done> {
        let data_of = if is_write { self.seat.rank } else { self.reads(plan) };
        let file = plan.file_of(data_of, &self.seat.host).display().to_string();
        let command = match self.tool() {
            Tool::Ior | Tool::Mdtest => return self.run_ior(plan, is_write, control),
            Tool::Fio => fio::command(plan, is_write, &file, data_of),
            Tool::Iozone => iozone::command(plan, is_write, &file),
        };
        let printed = child::run(&command, control)?;
        let report = match self.tool() {
            Tool::Fio => fio::parse(&printed.text, is_write)?,
            _ => iozone::parse(&printed.text, plan, is_write)?,
        };
        Ok(Done { report, command: command.join(" "), end_s: printed.end_s })
    }

    /// Returns the result of a phase. Runs the execution of mdtest that contains this phase, unless
    /// this execution has already run.
    fn work_on_names(
        &mut self,
        plan: &MetadataPlan,
        step: &Step,
        control: &Control,
    ) -> InWords<Done> {
        let missing = || step.unknown();
        let part = Part::of(&step.phase).ok_or_else(missing)?;
        if !self.reports.contains_key(&step.phase) {
            let test = plan.test_directory(step.repetition, "{host}");
            let name = test.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let directory = test.parent().unwrap_or(Path::new("/")).display().to_string();
            let program = mdtest::command(plan, part, &name);
            let (printed, command) = self.run_by_mpi(&program, &directory, control)?;
            let mut counts = plan.phases(self.assignment.processes);
            counts.retain(|(phase, _)| Part::of(phase) == Some(part));
            for (phase, report) in mdtest::parse(&printed.text, &counts)? {
                self.reports.insert(phase.to_owned(), (report, command.clone()));
            }
        }
        let (report, command) = self.reports.remove(&step.phase).ok_or_else(missing)?;
        Ok(Done { report, command, end_s: skep_env::now().as_secs_f64() })
    }

    fn remove(&mut self) -> InWords<()> {
        for path in std::mem::take(&mut self.made) {
            let removed = match path.is_dir() {
                true => fs::remove_dir_all(&path),
                false => fs::remove_file(&path),
            };
            removed.map_err(at(&path, "remove"))?;
        }
        Ok(())
    }

    /// Removes the empty directories that mdtest does not remove.
    fn remove_empty(&self, plan: &MetadataPlan, step: &Step) -> InWords<()> {
        let directory = plan.test_directory(step.repetition, &self.seat.host);
        // Only some versions of mdtest leave this directory, so ignore an error of the removal.
        let _ = fs::remove_dir(directory.join("test-dir.0-0"));
        fs::remove_dir(&directory).map_err(at(&directory, "remove"))
    }
}

impl Engine for ToolEngine {
    fn prepare(&mut self, step: &Step) -> InWords<()> {
        self.find_programs()?;
        match (self.assignment.work.clone(), step.phase.as_str()) {
            (Work::Io(plan), "write") => self.prepare_write(&plan),
            (Work::Io(plan), "read") => self.prepare_read(&plan),
            (Work::Io(_), _) => Ok(()),
            (Work::Metadata(plan), _) => self.prepare_names(&plan, step),
        }
    }

    fn perform(
        &mut self,
        step: &Step,
        measure: &mut Measure,
        control: &Arc<Control>,
    ) -> InWords<()> {
        let done = match (self.assignment.work.clone(), step.phase.as_str()) {
            (Work::Metadata(plan), CLEAN_UP) if !plan.create => {
                return self.remove_empty(&plan, step);
            }
            (_, "remove" | CLEAN_UP) => return self.remove(),
            (Work::Io(plan), phase) => self.move_data(&plan, phase == "write", control)?,
            (Work::Metadata(plan), _) => self.work_on_names(&plan, step, control)?,
        };
        let Report { bytes, operations, seconds, open_s, close_s, said } = done.report;
        measure.end_s = done.end_s;
        measure.begin_s = done.end_s - seconds;
        (measure.open_s, measure.close_s) = (open_s, close_s);
        (measure.bytes, measure.operations) = (bytes, operations);
        measure.command = Some(done.command);
        measure.reported = Some(said);
        Ok(())
    }

    fn clean(&mut self, dead: &[u32]) {
        for path in std::mem::take(&mut self.made) {
            // If this removal fails, the files stay, and the error of the run names their
            // directory. So ignore the error of the removal.
            self.made = vec![path];
            let _ = self.remove();
        }
        let Work::Io(plan) = &self.assignment.work else { return };
        // A process that died may not have created its files, so a missing file is not an error. A
        // run creates files only where none existed, so this function removes no file of other
        // programs.
        for rank in dead.iter().filter(|rank| plan.file_per_process || **rank == 0) {
            if plan.write && !plan.use_existing && !self.tool().is_mpi() {
                let _ = fs::remove_file(plan.file_of(*rank, &self.seat.host));
            }
        }
    }
}
