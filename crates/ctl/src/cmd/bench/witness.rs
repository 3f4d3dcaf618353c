//! What sees a run of a benchmark from its begin to its report: it shows progress, and watches the
//! processors of a lab.

use super::validity::Watch;
use crate::cli::bench::HostArgs;
use crate::output::{is_for_people, print};
use serde::Serialize;
use skep_bench::Progress;
use skep_types::Result;
use std::io::{IsTerminal, Write};

/// Sees a run.
pub(super) struct Witness {
    show: Box<dyn FnMut(Progress)>,
    watch: Watch,
}

impl Witness {
    pub(super) fn new(place: &HostArgs) -> Self {
        Self { show: Box::new(show_progress()), watch: Watch::new(place) }
    }

    /// What a run tells while it goes on.
    pub(super) fn see(&mut self, progress: Progress) {
        self.watch.look(&progress);
        (self.show)(progress);
    }

    /// Prints what was measured, with what was seen meanwhile, and gives it back.
    ///
    /// # Errors
    /// Those of the run.
    pub(super) fn report<T: Serialize>(
        self,
        result: Result<T>,
        as_text: impl FnOnce(&T) -> String,
    ) -> Result<T> {
        end_progress();
        let report = self.watch.finish(result?);
        print(&report, |report| report.in_words(as_text))?;
        Ok(report.outcome)
    }
}

/// Says on standard error what a run is doing: with a line that changes where a terminal shows it,
/// else with a line for each phase. Programs are told nothing.
pub(super) fn show_progress() -> impl FnMut(Progress) {
    let is_terminal = std::io::stderr().is_terminal();
    let is_silent = !is_terminal && !is_for_people();
    let mut phase = String::new();
    move |progress| {
        if is_silent {
            return;
        }
        let mut stderr = std::io::stderr().lock();
        // Nobody is left to be told that nobody can be told.
        let _ = match progress {
            Progress::Phase { phase: name, repetition } => {
                phase = format!("{name} {repetition}");
                let end = if is_terminal { "" } else { "\n" };
                write!(stderr, "{}{phase}{end}", if is_terminal { "\r\x1b[K" } else { "" })
            }
            Progress::Moved { done, total } if is_terminal && total > 0 => {
                let percent = done as f64 * 100.0 / total as f64;
                write!(stderr, "\r\x1b[K{phase}: {percent:.0}%")
            }
            Progress::Moved { .. } => Ok(()),
            Progress::Note(what) if is_terminal => writeln!(stderr, "\r\x1b[K{what}"),
            Progress::Note(what) => writeln!(stderr, "{what}"),
        };
    }
}

/// Takes the line of progress away.
pub(super) fn end_progress() {
    let mut stderr = std::io::stderr().lock();
    if stderr.is_terminal() {
        let _ = write!(stderr, "\r\x1b[K");
    }
}
