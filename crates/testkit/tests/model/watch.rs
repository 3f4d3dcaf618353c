//! Watches for a call that never returns, so that the test fails instead of waiting forever.

use skep_testkit::process;
use std::fmt::Debug;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Time limit for a step. The limit includes the time for the restart of a service.
const PATIENCE: Duration = Duration::from_secs(120);

/// Watches the steps of a run. If a step takes too long, the watch prints the step and kills the
/// mounts, so that the step ends with an error.
#[derive(Debug)]
pub(crate) struct Watch {
    begins: Sender<()>,
    /// The current step. The watching thread prints the step if the step takes too long. Empty
    /// between two runs.
    step: Arc<Mutex<String>>,
    has_bitten: Arc<AtomicBool>,
}

impl Watch {
    /// Starts to watch the cluster whose data directory is `data`.
    pub(crate) fn new(data: &Path) -> Self {
        let (begins, begun) = channel();
        let step = Arc::<Mutex<String>>::default();
        let has_bitten = Arc::<AtomicBool>::default();
        let (shown, bites, data) = (Arc::clone(&step), Arc::clone(&has_bitten), data.to_owned());
        std::thread::spawn(move || {
            loop {
                match begun.recv_timeout(PATIENCE) {
                    Ok(()) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {
                        let step = shown.lock().unwrap_or_else(PoisonError::into_inner);
                        if step.is_empty() {
                            continue;
                        }
                        println!("no progress for {PATIENCE:?} in the step {step}");
                        bites.store(true, Ordering::Relaxed);
                        let mut mounts = process::below(&data);
                        mounts.retain(|process| process.role() == "mount");
                        mounts.iter().for_each(process::Process::kill);
                    }
                }
            }
        });
        Self { begins, step, has_bitten }
    }

    /// Informs the watching thread that a step begins.
    pub(crate) fn begins(&self, step: &dyn Debug) {
        *self.step.lock().unwrap_or_else(PoisonError::into_inner) = format!("{step:?}");
        self.begins.send(()).expect("the watching thread runs");
    }

    /// Informs the watching thread that the last step has ended.
    pub(crate) fn ends(&self) {
        self.step.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Whether any step took too long.
    pub(crate) fn has_bitten(&self) -> bool {
        self.has_bitten.load(Ordering::Relaxed)
    }
}
