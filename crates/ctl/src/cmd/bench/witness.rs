//! Observes a run of a benchmark: shows the progress, writes each result to the file of results,
//! and prints the report. In a lab, also measures the CPU use.
//!
//! # A full disk
//! A result is lost only if no output accepts the result. If the user requested a file of results,
//! this file contains all results. A report that cannot be written to standard output is written to
//! standard error.

use super::args::{HostArgs, ResultArgs};
use super::results::{ResultFile, Size};
use super::validity::{Report, Watch};
use crate::output::{in_chosen_form, is_for_people, is_screen, replace_line, say, say_aside, span};
use serde::Serialize;
use serde_json::{Value, json};
use skep_bench::Progress;
use skep_types::{Error, ErrorCode, Result};
use std::time::Duration;

/// Observes a run of a benchmark.
pub(super) struct Witness {
    show: Box<dyn FnMut(Progress)>,
    watch: Watch,
    results: Option<ResultFile>,
}

impl Witness {
    /// Creates an observer. If the run is in a lab, the observer measures the CPU use.
    pub(super) fn new(place: &HostArgs) -> Self {
        Self { show: Box::new(show_progress()), watch: Watch::new(place), results: None }
    }

    /// Creates the file of results, if the user requested such a file.
    ///
    /// # Errors
    /// The error of creating the file. After such an error the caller must not start the benchmark.
    pub(super) fn keep(
        mut self,
        args: &ResultArgs,
        (of, plan): (&str, &impl Serialize),
        size: Size,
    ) -> Result<Self> {
        if let Some(path) = &args.result_file {
            let made = ResultFile::create(path, of, plan, size);
            self.results = Some(made.map_err(|error| error.within("--result-file"))?);
        }
        Ok(self)
    }

    /// Processes a progress event of the run: shows the event, and writes the results in the event
    /// to the file of results.
    pub(super) fn see(&mut self, progress: Progress) {
        self.watch.look(&progress);
        if let (Progress::Measured(result), Some(file)) = (&progress, &mut self.results) {
            file.keep(result);
        }
        (self.show)(progress);
    }

    /// Prints the result with the CPU use, and returns the result.
    ///
    /// # Errors
    /// The error of the run, of printing the report, or of writing the file of results.
    pub(super) fn report<T: Serialize>(
        mut self,
        result: Result<T>,
        failure: fn(&T) -> Option<&str>,
        as_text: impl FnOnce(&T) -> String,
    ) -> Result<T> {
        end_progress();
        let report = std::mem::take(&mut self.watch).finish(result?);
        let Report { outcome, cpu, is_valid } = &report;
        let failure = failure(outcome);
        let end = json!({"kind": "end", "failure": failure, "cpu": cpu, "is_valid": is_valid});
        self.print(&report, &end, |report| report.as_text_with_cpu(as_text))?;
        match failure {
            Some(why) => Err(Error::new(ErrorCode::Io, why)),
            None => Ok(report.outcome),
        }
    }

    /// Prints a report, and writes the last line of the file of results.
    ///
    /// # Errors
    /// The error of printing the report or of writing the file.
    pub(super) fn print<T: Serialize>(
        mut self,
        report: &T,
        end: &Value,
        as_text: impl FnOnce(&T) -> String,
    ) -> Result<()> {
        let text = in_chosen_form(report, as_text)?;
        let kept = self.results.as_mut().map(|file| file.finish(end));
        let Err(error) = say(&text) else { return kept.unwrap_or(Ok(())) };
        let place = match (&self.results, kept) {
            (Some(file), Some(Ok(()))) => file.place(),
            _ => {
                say_aside(&text);
                "the report is on standard error instead; use --result-file FILE to write each \
                 result to a file as soon as it is measured"
                    .to_owned()
            }
        };
        let what = format!("cannot write to standard output: {}; {place}", error.context());
        Err(Error::new(error.code(), what))
    }
}

/// Returns a function that shows progress on standard error: one line that changes on a terminal,
/// otherwise one line per phase. The function prints nothing if the output format is JSON and
/// standard error is not a terminal.
fn show_progress() -> impl FnMut(Progress) {
    let is_terminal = is_screen(&std::io::stderr());
    let is_silent = !is_terminal && !is_for_people();
    let mut phase = String::new();
    let mut plan = PlannedPhases::default();
    move |progress| {
        if is_silent {
            return;
        }
        match progress {
            Progress::Phase { phase: name, repetition } => {
                phase = format!("{name} {repetition}{}", plan.begin(skep_env::now()));
                match is_terminal {
                    true => replace_line(&phase),
                    false => say_aside(&phase),
                }
            }
            Progress::Moved { done, total } if is_terminal && total > 0 => {
                let percent = done as f64 * 100.0 / total as f64;
                replace_line(&format!("{phase}: {percent:.0}%"));
            }
            Progress::Planned { phases } => plan.phases = phases,
            Progress::Moved { .. } | Progress::Measured(_) => {}
            Progress::Note(what) if is_terminal => say_aside(&format!("\r\x1b[K{what}")),
            Progress::Note(what) => say_aside(&what),
        }
    }
}

/// Counts the phases that have begun, and estimates the time left.
#[derive(Default)]
struct PlannedPhases {
    /// Planned number of phases. Zero means that this number is not known.
    phases: u64,
    begun: u64,
    first: Duration,
}

impl PlannedPhases {
    /// Counts a phase that begins. Returns the number of the phase and the time left, as ` (3 of
    /// 12, 1.5min left)`. The remaining time follows from the average duration of the earlier
    /// phases.
    fn begin(&mut self, now: Duration) -> String {
        if self.begun == 0 {
            self.first = now;
        }
        self.begun += 1;
        if self.phases < self.begun {
            return String::new();
        }
        let (begun, phases) = (self.begun, self.phases);
        let done = u32::try_from(begun - 1).unwrap_or(u32::MAX);
        if done == 0 {
            return format!(" ({begun} of {phases})");
        }
        let each = now.saturating_sub(self.first) / done;
        let left = each.as_millis().saturating_mul(u128::from(phases - begun + 1));
        let left = span(u64::try_from(left).unwrap_or(u64::MAX));
        format!(" ({begun} of {phases}, {left} left)")
    }
}

/// Erases the progress line.
pub(super) fn end_progress() {
    if is_screen(&std::io::stderr()) {
        replace_line("");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_shows_phase_number_and_remaining_time() {
        let mut plan = PlannedPhases { phases: 4, ..PlannedPhases::default() };
        let mut at = |second| plan.begin(Duration::from_secs(second));
        assert_eq!(at(100), " (1 of 4)");
        assert_eq!(at(130), " (2 of 4, 1.5min left)");
        assert_eq!(at(150), " (3 of 4, 50.0s left)");
        at(160);
        // If more phases run than planned, the planned number is wrong, so the text is empty.
        assert_eq!(at(170), "");
        assert_eq!(PlannedPhases::default().begin(Duration::ZERO), "");
    }
}
