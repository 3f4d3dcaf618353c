//! Benchmarks of a target's device, without the network. The target's own thread writes and reads
//! files.
//!
//! The files are in a separate directory next to the chunk files. The target removes the files when
//! a client stops the run, when no client has asked for the progress of the run for
//! [`ABANDONED_AFTER`], and when the target ends. If the process was killed, the next start removes
//! the files. If a removal fails, the next benchmark repeats the removal.
//!
//! Every block goes through the event loop, so the target serves requests of clients between
//! blocks. The benchmark and the clients share the device.

use crate::emulation::Device;
use crate::limits::{
    ABANDONED_AFTER, MAX_BENCHMARK_BLOCK_BYTES, MAX_BENCHMARK_STREAMS, MIN_BENCHMARK_BLOCK_BYTES,
};
use skep_env::{Buf, File};
use skep_types::{Error, ErrorCode, Result, TargetId};
use skep_wire::benchmark::{BenchmarkProgress, StartBenchmark};
use std::cell::{Cell, RefCell};
use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

/// Name of the directory for benchmark files, in a target's directory.
const DIRECTORY: &str = "benchmark";
/// Interval at which the target checks whether a client still asks for the progress of the current
/// run.
const LOOK: Duration = Duration::from_secs(1);
/// Interval at which [`Benchmark::stop`] checks whether the streams, or another removal, have
/// ended.
const REMOVAL_LOOK: Duration = Duration::from_millis(10);

/// The benchmarks of one target. At most one run is in progress.
#[derive(Debug)]
pub(crate) struct Benchmark {
    target: TargetId,
    directory: PathBuf,
    device: Option<Rc<Device>>,
    current: RefCell<Option<Rc<Run>>>,
}

/// A benchmark run, from its first phase until it is stopped.
#[derive(Debug)]
struct Run {
    id: u64,
    is_stopped: Cell<bool>,
    /// Whether the run has ended, but the removal of its files has failed.
    has_leftovers: Cell<bool>,
    /// Whether a call is removing the files of the run.
    is_removing: Cell<bool>,
    /// Time of a client's last request for the progress of the run.
    asked: Cell<Duration>,
    phase: RefCell<Rc<Phase>>,
}

/// Guard that a call holds while it removes the files of a run. [`Run::is_removing`] is set until
/// the guard is dropped.
struct Removal<'a>(&'a Run);

impl<'a> Removal<'a> {
    fn of(run: &'a Run) -> Self {
        run.is_removing.set(true);
        Self(run)
    }
}

impl Drop for Removal<'_> {
    fn drop(&mut self) {
        self.0.is_removing.set(false);
    }
}

/// The write phase of a run, or one of its read phases.
#[derive(Debug)]
struct Phase {
    plan: StartBenchmark,
    begun: Duration,
    is_direct: Cell<bool>,
    moved: Cell<u64>,
    /// Number of files whose I/O has not ended. In messages, these files are called streams.
    left: Cell<u16>,
    streams: RefCell<Vec<(u64, u64)>>,
    failure: RefCell<Option<String>>,
}

impl Phase {
    fn new(plan: StartBenchmark) -> Rc<Self> {
        Rc::new(Self {
            plan,
            begun: skep_env::now(),
            is_direct: Cell::new(true),
            moved: Cell::new(0),
            left: Cell::new(plan.streams),
            streams: RefCell::default(),
            failure: RefCell::default(),
        })
    }

    fn elapsed_ns(&self) -> u64 {
        (skep_env::now() - self.begun).as_nanos() as u64
    }

    fn is_over(&self) -> bool {
        self.left.get() == 0
    }
}

fn check(plan: &StartBenchmark, free_bytes: u64) -> Result<()> {
    let refuse = |problem: String| Err(Error::new(ErrorCode::InvalidArgument, problem));
    let StartBenchmark { run, streams, stream_bytes, block_bytes, is_read } = *plan;
    if run == 0 || !(1..=MAX_BENCHMARK_STREAMS).contains(&streams) {
        return refuse(format!(
            "invalid number of threads {streams}: expected 1 to {MAX_BENCHMARK_STREAMS}"
        ));
    }
    let blocks = MIN_BENCHMARK_BLOCK_BYTES..=MAX_BENCHMARK_BLOCK_BYTES;
    if !blocks.contains(&block_bytes) || !block_bytes.is_multiple_of(MIN_BENCHMARK_BLOCK_BYTES) {
        return refuse(format!(
            "invalid block size of a benchmark: expected a multiple of {MIN_BENCHMARK_BLOCK_BYTES} \
             bytes, at most {MAX_BENCHMARK_BLOCK_BYTES}"
        ));
    }
    if stream_bytes == 0 || !stream_bytes.is_multiple_of(u64::from(block_bytes)) {
        return refuse(
            "invalid size of a benchmark file: expected a multiple of the block size".into(),
        );
    }
    let needed = stream_bytes.checked_mul(u64::from(streams));
    if !is_read && needed.is_none_or(|needed| needed > free_bytes) {
        let needed = needed.unwrap_or(u64::MAX);
        let context =
            format!("cannot write {needed} bytes on this target: {free_bytes} bytes are free");
        return Err(Error::new(ErrorCode::NoSpace, context));
    }
    Ok(())
}

impl Benchmark {
    /// Creates the benchmarks of `target` in `directory`.
    pub(crate) fn new(target: TargetId, directory: &Path, device: Option<Rc<Device>>) -> Rc<Self> {
        let directory = directory.join(DIRECTORY);
        Rc::new(Self { target, directory, device, current: RefCell::default() })
    }

    /// Removes the files that an earlier process left in a target's directory. This call may block
    /// for a long time, so the caller must not be an event loop.
    ///
    /// # Errors
    /// Errors of the file system.
    pub(crate) fn remove_leftovers(directory: &Path) -> Result<()> {
        remove_all(&directory.join(DIRECTORY))
    }

    /// Tries again to remove the files of the last run, if an earlier removal has failed. Files
    /// that stay would block all further benchmarks of the target.
    ///
    /// # Errors
    /// The error that still prevents the removal, with the name of the file.
    pub(crate) async fn retry_removal(&self) -> Result<()> {
        let current = self.current.borrow().clone().filter(|run| run.has_leftovers.get());
        let Some(run) = current else { return Ok(()) };
        self.stop(run.id).await.map_err(|error| {
            error.within(format!(
                "cannot start a benchmark: the files of benchmark {} cannot be removed from this \
                 target; solve the problem that follows, and repeat the command",
                run.id
            ))
        })
    }

    /// Starts a phase of a run. Does nothing if the same phase is already running, since the client
    /// may repeat a request.
    pub(crate) fn start(self: &Rc<Self>, plan: StartBenchmark, free_bytes: u64) -> Result<()> {
        check(&plan, free_bytes)?;
        let current = self.current.borrow().clone();
        if let Some(run) = &current {
            let phase = Rc::clone(&run.phase.borrow());
            if run.id == plan.run && phase.plan == plan && !phase.is_over() {
                return Ok(());
            }
            if run.id != plan.run || !phase.is_over() {
                let problem = "cannot start a benchmark: another benchmark runs on this target; \
                               wait for the end of that benchmark (the target ends a benchmark \
                               whose client has stopped)";
                return Err(Error::new(ErrorCode::InUse, problem));
            }
        }
        if plan.is_read && current.is_none() {
            let problem = "cannot read the files of the benchmark: the benchmark has written no \
                           files on this target; write files first";
            return Err(Error::new(ErrorCode::InvalidArgument, problem));
        }
        std::fs::create_dir_all(&self.directory)
            .map_err(|error| Error::from(error).within(self.directory.display()))?;
        let phase = Phase::new(plan);
        let run = match current {
            Some(run) => {
                run.phase.replace(Rc::clone(&phase));
                run
            }
            None => self.new_run(plan.run, &phase),
        };
        run.asked.set(skep_env::now());
        for number in 0..plan.streams {
            let (this, run, phase) = (Rc::clone(self), Rc::clone(&run), Rc::clone(&phase));
            skep_env::spawn(async move { this.stream(&run, &phase, number).await }).detach();
        }
        Ok(())
    }

    fn new_run(self: &Rc<Self>, id: u64, phase: &Rc<Phase>) -> Rc<Run> {
        let run = Rc::new(Run {
            id,
            is_stopped: Cell::new(false),
            has_leftovers: Cell::new(false),
            is_removing: Cell::new(false),
            asked: Cell::new(skep_env::now()),
            phase: RefCell::new(Rc::clone(phase)),
        });
        self.current.replace(Some(Rc::clone(&run)));
        let (this, watched) = (Rc::clone(self), Rc::clone(&run));
        skep_env::spawn(async move { this.watch(&watched).await }).detach();
        run
    }

    /// Stops the run if no client has asked for its progress for [`ABANDONED_AFTER`].
    async fn watch(self: &Rc<Self>, run: &Rc<Run>) {
        while !run.is_stopped.get() {
            skep_env::sleep(LOOK).await;
            if skep_env::now() - run.asked.get() < ABANDONED_AFTER {
                continue;
            }
            tracing::info!(
                "target {}: benchmark {} stops, since no client asks for its progress",
                self.target,
                run.id
            );
            if let Err(error) = self.stop(run.id).await {
                tracing::warn!(
                    "target {}: cannot remove the files of benchmark {}: {error}; they use space \
                     until the next benchmark or the next start of the target removes them",
                    self.target,
                    run.id
                );
            }
        }
    }

    fn file(&self, number: u16) -> PathBuf {
        self.directory.join(number.to_string())
    }

    async fn stream(&self, run: &Run, phase: &Phase, number: u16) {
        let begin = phase.elapsed_ns();
        let result = self.move_data(run, phase, number).await;
        match result {
            Ok(()) => phase.streams.borrow_mut().push((begin, phase.elapsed_ns())),
            Err(error) => {
                let problem = format!("{}: {error}", self.file(number).display());
                phase.failure.borrow_mut().get_or_insert(problem);
            }
        }
        phase.left.set(phase.left.get() - 1);
    }

    async fn move_data(&self, run: &Run, phase: &Phase, number: u16) -> io::Result<()> {
        let plan = phase.plan;
        let mut options = OpenOptions::new();
        options.read(plan.is_read).write(!plan.is_read);
        options.create(!plan.is_read).truncate(!plan.is_read);
        let (file, is_direct) = File::open_direct(&self.file(number), &options)?;
        phase.is_direct.set(phase.is_direct.get() && is_direct);
        let block = plan.block_bytes as usize;
        let buffer = Buf::new(block);
        // The data is not zeros, since some devices do not store zeros.
        buffer.write(0, &vec![0x5a ^ number as u8; block]);
        for offset in (0..plan.stream_bytes).step_by(block) {
            if run.is_stopped.get() || phase.failure.borrow().is_some() {
                return Err(io::Error::other("stopped"));
            }
            self.move_block(&file, &buffer, offset, plan.is_read).await?;
            phase.moved.set(phase.moved.get() + block as u64);
        }
        if plan.is_read { Ok(()) } else { file.sync_data().await }
    }

    async fn move_block(
        &self,
        file: &File,
        buffer: &Buf,
        at: u64,
        is_read: bool,
    ) -> io::Result<()> {
        if !is_read {
            file.write_at(buffer.clone(), at).await?;
        } else if file.read_at(buffer.clone(), at).await? < buffer.len() {
            return Err(io::Error::other(format!(
                "cannot read a block at byte {at}: the file ends within the block"
            )));
        }
        if let Some(device) = &self.device {
            device.pass(buffer.len()).await;
        }
        // Without this call, the loop would never yield to requests if the file system completes
        // each operation immediately.
        skep_env::yield_now().await;
        Ok(())
    }

    /// Returns the progress of a run, and records that a client has asked about the run.
    pub(crate) fn ask(&self, run: u64) -> Result<BenchmarkProgress> {
        let current = self.current.borrow();
        let Some(run) = current.as_ref().filter(|current| current.id == run) else {
            let problem = "cannot find the benchmark: no benchmark with this id runs on this \
                           target; if the service was restarted, restart the benchmark";
            return Err(Error::new(ErrorCode::NotFound, problem));
        };
        run.asked.set(skep_env::now());
        let phase = run.phase.borrow();
        Ok(BenchmarkProgress {
            is_over: phase.is_over(),
            is_direct: phase.is_direct.get(),
            bytes: phase.moved.get(),
            streams: phase.streams.borrow().clone(),
            failure: phase.failure.borrow().clone(),
        })
    }

    /// Stops a run and removes its files. Does nothing if `run` is not the current run.
    pub(crate) async fn stop(&self, run: u64) -> Result<()> {
        let current = self.current.borrow().clone().filter(|current| current.id == run);
        let Some(run) = current else { return Ok(()) };
        run.is_stopped.set(true);
        // One call at a time removes the files. All benchmarks of a target use the same file names,
        // so the slower of two concurrent calls would remove the files of the next benchmark.
        while run.is_removing.get() {
            skep_env::sleep(REMOVAL_LOOK).await;
        }
        if !self.is_current(&run) {
            return Ok(());
        }
        let _removal = Removal::of(&run);
        let result = self.remove_files(&run).await;
        run.has_leftovers.set(result.is_err());
        result
    }

    fn is_current(&self, run: &Rc<Run>) -> bool {
        self.current.borrow().as_ref().is_some_and(|current| Rc::ptr_eq(current, run))
    }

    /// Waits until the streams of a stopped run have ended, and removes the files. `run` must be
    /// the current run, and no other call may remove files at the same time.
    async fn remove_files(&self, run: &Rc<Run>) -> Result<()> {
        // Wait until all streams have ended. Each stream checks `is_stopped` before each block.
        while !run.phase.borrow().is_over() {
            skep_env::sleep(REMOVAL_LOOK).await;
        }
        for number in 0..MAX_BENCHMARK_STREAMS {
            let path = self.file(number);
            match skep_env::remove_file(&path).await {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(Error::from(error).within(path.display()));
                }
                _ => {}
            }
        }
        // The directory is empty now, unless its file system is damaged.
        remove_all(&self.directory)?;
        self.current.take();
        Ok(())
    }

    /// Stops the current run because the target ends, and removes its files. The removal does not
    /// block the event loop, since other targets may share the loop.
    pub(crate) async fn end(&self) {
        let Some(run) = self.current.borrow().as_ref().map(|run| run.id) else { return };
        if let Err(error) = self.stop(run).await {
            tracing::warn!(
                "target {}: cannot remove the files of benchmark {run}: {error}; the next start of \
                 the target removes them",
                self.target
            );
        }
    }
}

/// Removes a directory with all files in it.
fn remove_all(directory: &Path) -> Result<()> {
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::from(error).within(directory.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
