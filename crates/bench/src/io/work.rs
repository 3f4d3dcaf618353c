//! The work of one process in a run of `skep bench io`. The process opens its file, transfers its
//! data, and removes its file.

use super::pattern::{Transfers, reads_data_of};
use super::plan::{Phase, Plan};
use super::samples::Sampler;
use super::stamp::Stamp;
use crate::launcher::{Control, Engine, Measure, STOPPED, Seat, Step};
use rustix::fs::{Advice, OFlags};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Alignment of buffers in memory that direct I/O requires, in bytes.
const ALIGNMENT: usize = 4096;

/// The engine of one process in a run of `skep bench io`.
pub(crate) struct IoEngine {
    plan: Plan,
    seat: Seat,
    buffer: Aligned,
    /// Whether this run created the file that this process writes.
    has_made: bool,
}

/// A buffer whose address is aligned for direct I/O.
struct Aligned {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    fn new(len: usize) -> Self {
        let memory = vec![0; len + ALIGNMENT];
        let start = memory.as_ptr().align_offset(ALIGNMENT);
        Self { memory, start, len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

fn at(path: &Path, what: &str) -> impl Fn(io::Error) -> String {
    move |error| format!("cannot {what} {}: {error}", path.display())
}

impl IoEngine {
    pub(crate) fn new(plan: Plan, seat: Seat) -> Self {
        let len = usize::try_from(plan.transfer_bytes).expect("a plan's transfers are bounded");
        let mut buffer = Aligned::new(len);
        // The buffer contains no word that is zero, because a file system may store zeros as a
        // hole. Different processes write different content.
        Stamp::new(plan.signature.unwrap_or(1), seat.rank).fill(buffer.bytes(), 0);
        Self { plan, seat, buffer, has_made: false }
    }

    /// Returns the rank whose data this process transfers in a phase.
    fn data_of(&self, phase: Phase) -> u32 {
        match phase {
            Phase::Write | Phase::Remove => self.seat.rank,
            // With `-C`, the process reads data that another host has written. The check reads the
            // data of another host, because a host may still cache the data that its own processes
            // have written.
            Phase::Check | Phase::Read => reads_data_of(&self.plan, self.seat.rank, self.seat.of),
        }
    }

    fn file_of(&self, rank: u32) -> PathBuf {
        self.plan.file_of(rank, &self.seat.host)
    }

    /// Whether this process creates and removes the file that this process uses. For a file that
    /// all processes share, only rank 0 creates and removes the file.
    fn is_maker(&self) -> bool {
        self.plan.file_per_process || self.seat.rank == 0
    }

    fn makes_files(&self) -> bool {
        self.plan.write && !self.plan.use_existing
    }

    fn prepare_write(&mut self) -> Result<(), String> {
        let path = self.file_of(self.seat.rank);
        if !self.makes_files() || !self.is_maker() {
            return Ok(());
        }
        let refuse = || {
            format!(
                "file {} exists already: name another path (-o), or use -E, which overwrites the \
                 file and keeps the file at the end of the run",
                path.display()
            )
        };
        if !self.plan.file_per_process {
            let made = OpenOptions::new().write(true).create_new(true).open(&path);
            match made {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(refuse()),
                made => drop(made.map_err(at(&path, "create"))?),
            }
            self.has_made = true;
        } else if fs::symlink_metadata(&path).is_ok() {
            return Err(refuse());
        }
        Ok(())
    }

    /// Checks that the file is long enough, and drops the file from this host's page cache.
    fn prepare_read(&self, phase: Phase) -> Result<(), String> {
        let path = self.file_of(self.data_of(phase));
        let file = File::open(&path).map_err(at(&path, "open"))?;
        let len = file.metadata().map_err(at(&path, "read the length of"))?.len();
        let sharers = if self.plan.file_per_process { 1 } else { self.seat.of };
        let needed = self.plan.total_bytes(sharers).unwrap_or(u64::MAX);
        if len < needed {
            let name = path.display();
            return Err(format!(
                "cannot read {name}: the file has {len} bytes, and the plan reads {needed} bytes"
            ));
        }
        if phase == Phase::Check || !self.plan.keep_caches {
            // A file system that has no page cache ignores or refuses this advice.
            let _ = rustix::fs::fadvise(&file, 0, None, Advice::DontNeed);
        }
        Ok(())
    }

    fn open(&mut self, phase: Phase) -> Result<File, String> {
        let path = self.file_of(self.data_of(phase));
        let is_writing = phase == Phase::Write;
        let makes = is_writing && self.makes_files() && self.plan.file_per_process;
        let mut options = OpenOptions::new();
        options.read(!is_writing).write(is_writing).create_new(makes);
        if self.plan.direct {
            options.custom_flags(OFlags::DIRECT.bits().cast_signed());
        }
        let file = options.open(&path).map_err(at(&path, "open"))?;
        self.has_made |= makes;
        Ok(file)
    }

    fn transfer(
        &mut self,
        phase: Phase,
        file: &File,
        measure: &mut Measure,
        control: &Control,
    ) -> Result<(), String> {
        let data_of = self.data_of(phase);
        let stamp = Stamp::new(self.plan.signature.unwrap_or(1), data_of);
        let is_stamped = phase == Phase::Write && self.plan.is_stamped();
        let is_compared = phase == Phase::Check || (phase == Phase::Read && self.plan.verify_read);
        let path = self.file_of(data_of);
        let interval = self.plan.sample_interval_ms.map(Duration::from_millis);
        let mut sampler = interval.map(Sampler::new);
        for offset in Transfers::of(&self.plan, data_of, self.seat.of).offsets() {
            if control.is_aborted() {
                return Err(STOPPED.into());
            }
            let buffer = self.buffer.bytes();
            if is_stamped {
                stamp.fill(buffer, offset);
            }
            let place = |what: &'static str| {
                let name = path.display();
                move |error: io::Error| format!("cannot {what} {name} at byte {offset}: {error}")
            };
            let before = skep_env::now();
            if phase == Phase::Write {
                file.write_all_at(buffer, offset).map_err(place("write"))?;
            } else {
                file.read_exact_at(buffer, offset).map_err(place("read"))?;
            }
            measure.durations.add(skep_env::now() - before);
            let wrong = is_compared.then(|| stamp.compare(buffer, offset)).flatten();
            if let Some(wrong) = wrong {
                measure.errors += 1;
                let first = || format!("{}: {wrong}", path.display());
                measure.first_error.get_or_insert_with(first);
            }
            measure.operations += 1;
            measure.bytes += self.plan.transfer_bytes;
            control.move_on(self.plan.transfer_bytes);
            if let Some(sampler) = &mut sampler {
                sampler.add(skep_env::now(), measure.bytes);
            }
        }
        if let Some(sampler) = sampler {
            measure.samples = sampler.finish(skep_env::now(), measure.bytes);
        }
        Ok(())
    }

    fn move_data(
        &mut self,
        phase: Phase,
        measure: &mut Measure,
        control: &Control,
    ) -> Result<(), String> {
        let before = skep_env::now();
        let file = self.open(phase)?;
        let opened = skep_env::now();
        measure.open_s = (opened - before).as_secs_f64();
        self.transfer(phase, &file, measure, control)?;
        let moved = skep_env::now();
        let path = self.file_of(self.data_of(phase));
        if phase == Phase::Write && self.plan.fsync {
            file.sync_all().map_err(at(&path, "fsync"))?;
        }
        skep_env::close(file).map_err(at(&path, "close"))?;
        measure.close_s = (skep_env::now() - moved).as_secs_f64();
        Ok(())
    }

    fn remove(&mut self) -> Result<(), String> {
        if !self.is_maker() || !self.has_made {
            return Ok(());
        }
        let path = self.file_of(self.seat.rank);
        fs::remove_file(&path).map_err(at(&path, "remove"))?;
        self.has_made = false;
        Ok(())
    }
}

impl Engine for IoEngine {
    fn prepare(&mut self, step: &Step) -> Result<(), String> {
        match Phase::named(&step.phase) {
            Some(Phase::Write) => self.prepare_write(),
            Some(phase @ (Phase::Check | Phase::Read)) => self.prepare_read(phase),
            Some(Phase::Remove) => Ok(()),
            None => Err(step.unknown()),
        }
    }

    fn perform(
        &mut self,
        step: &Step,
        measure: &mut Measure,
        control: &Arc<Control>,
    ) -> Result<(), String> {
        match Phase::named(&step.phase) {
            Some(Phase::Remove) => self.remove(),
            Some(phase) => self.move_data(phase, measure, control),
            None => Err(step.unknown()),
        }
    }

    fn clean(&mut self, dead: &[u32]) {
        let _ = self.remove();
        if !self.makes_files() {
            return;
        }
        // A process that died may not have created its file, so a missing file is not an error. A
        // run creates files only where none existed, so this function removes no file of other
        // programs.
        for rank in dead {
            if self.plan.file_per_process || *rank == 0 {
                let _ = fs::remove_file(self.file_of(*rank));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(phase: Phase) -> Step {
        Step { phase: phase.name().into(), repetition: 1, total: 0 }
    }

    /// Returns an engine for each process of a plan. The test runs all engines in its own thread.
    fn engines(plan: &Plan, of: u32) -> Vec<IoEngine> {
        plan.check(of).unwrap();
        let seat = |rank| Seat { rank, of, host: "here".into() };
        (0..of).map(|rank| IoEngine::new(plan.clone(), seat(rank))).collect()
    }

    fn perform(engines: &mut [IoEngine], phase: Phase) -> Result<Vec<Measure>, String> {
        engines.iter_mut().try_for_each(|engine| engine.prepare(&step(phase)))?;
        let one = |engine: &mut IoEngine| {
            let mut measure = Measure::default();
            engine.perform(&step(phase), &mut measure, &Arc::default()).map(|()| measure)
        };
        engines.iter_mut().map(one).collect()
    }

    fn small_plan(directory: &Path) -> Plan {
        Plan {
            path: directory.join("file").display().to_string(),
            transfer_bytes: 4096,
            block_bytes: 3 * 4096,
            segments: 2,
            random: true,
            reorder: true,
            verify_write: true,
            verify_read: true,
            fsync: true,
            signature: Some(5),
            keep_caches: true,
            ..Plan::default()
        }
    }

    #[test]
    fn shared_and_separate_files_are_read_back_and_compared() {
        for file_per_process in [false, true] {
            let place = tempfile::tempdir().unwrap();
            let plan = Plan { file_per_process, ..small_plan(place.path()) };
            let mut engines = engines(&plan, 3);
            let bytes = plan.bytes_per_process().unwrap();
            for phase in [Phase::Write, Phase::Check, Phase::Read] {
                for measure in perform(&mut engines, phase).unwrap() {
                    assert_eq!((measure.bytes, measure.operations, measure.errors), (bytes, 6, 0));
                }
            }
            let files = fs::read_dir(place.path()).unwrap().count();
            assert_eq!(files, if file_per_process { 3 } else { 1 });
            // The check must report one wrong byte and its offset.
            let path = plan.file_of(if file_per_process { 1 } else { 0 }, "here");
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            file.write_all_at(b"!", 4097).unwrap();
            let measures = perform(&mut engines, Phase::Read).unwrap();
            assert_eq!(measures.iter().map(|measure| measure.errors).sum::<u64>(), 1);
            let said = measures.into_iter().find_map(|measure| measure.first_error).unwrap();
            assert!(said.contains("byte 4096"), "{said}");
            perform(&mut engines, Phase::Remove).unwrap();
            assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn samples_have_the_bytes_of_each_transfer_in_order() {
        let place = tempfile::tempdir().unwrap();
        let plan = small_plan(place.path());
        let mut unsampled = engines(&plan, 1);
        assert!(perform(&mut unsampled, Phase::Write).unwrap()[0].samples.is_empty());
        perform(&mut unsampled, Phase::Remove).unwrap();
        let plan = Plan { sample_interval_ms: Some(1), ..plan };
        let measure = perform(&mut engines(&plan, 1), Phase::Write).unwrap().remove(0);
        let (first, last) = (measure.samples[0], measure.samples[measure.samples.len() - 1]);
        assert_eq!((first.1, last.1), (4096, measure.bytes));
        assert!(measure.samples.is_sorted(), "{:?}", measure.samples);
        assert!(measure.samples.len() as u64 <= plan.samples_per_process());
    }

    #[test]
    fn existing_files_are_refused_and_left_unchanged() {
        for file_per_process in [false, true] {
            let place = tempfile::tempdir().unwrap();
            let plan = Plan { file_per_process, ..small_plan(place.path()) };
            let mut engines = engines(&plan, 2);
            let foreign = plan.file_of(1, "here");
            fs::write(&foreign, "precious").unwrap();
            let refused = perform(&mut engines, Phase::Write).unwrap_err();
            assert!(refused.contains("exists"), "{refused}");
            engines.iter_mut().for_each(|engine| engine.clean(&[]));
            assert_eq!(fs::read_to_string(&foreign).unwrap(), "precious");
            assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
        }
    }

    #[test]
    fn use_existing_option_overwrites_but_never_removes_files() {
        let place = tempfile::tempdir().unwrap();
        let plan = Plan { use_existing: true, ..small_plan(place.path()) };
        fs::write(&plan.path, "").unwrap();
        let mut engines = engines(&plan, 2);
        perform(&mut engines, Phase::Write).unwrap();
        perform(&mut engines, Phase::Read).unwrap();
        engines.iter_mut().for_each(|engine| engine.clean(&[0]));
        let len = fs::metadata(&plan.path).unwrap().len();
        assert_eq!(Some(len), plan.total_bytes(2));
    }

    #[test]
    fn file_shorter_than_planned_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let plan = Plan { write: false, verify_write: false, ..small_plan(place.path()) };
        fs::write(&plan.path, "short").unwrap();
        let refused = perform(&mut engines(&plan, 1), Phase::Read).unwrap_err();
        assert!(refused.contains("has 5 bytes, and the plan reads 24576"), "{refused}");
    }
}
