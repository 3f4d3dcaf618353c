//! The calibration, which is the first step of a study. The calibration finds the amount of data
//! and the number of client hosts beyond which bandwidth does not grow.
//!
//! The calibration first tries amounts of data in ascending order, with the largest number of
//! client hosts in the plan. Then the calibration tries numbers of client hosts, with the found
//! amount of data. Each search ends when two further steps gain nothing.

use super::{Bench, Control, Event, RunName, one};
use crate::journal::Journal;
use crate::plan::{Condition, Level, Plan};
use crate::record::{CalibratedRecord, Record, RunRecord, Settings};
use crate::report::describe;
use crate::statistics::mean;
use skep_types::Result;
use std::collections::VecDeque;

/// Number of steps without a gain after which a search ends.
const FLAT_STEPS: usize = 2;

/// Returns the result of the calibration. `None` if the study stops before the calibration ends.
pub(super) fn calibrate(
    plan: &Plan,
    journal: &mut Journal,
    records: &[Record],
    bench: &mut dyn Bench,
    control: &mut Control<'_>,
) -> Result<Option<CalibratedRecord>> {
    let found = records.iter().find_map(|record| match record {
        Record::Calibrated(found) => Some(*found),
        _ => None,
    });
    if found.is_some() {
        return Ok(found);
    }
    let before = records.iter().filter_map(|record| match record {
        Record::Trial(run) => Some(run.clone()),
        _ => None,
    });
    let mut trials = Trials { plan, journal, before: before.collect(), number: 0 };
    let condition = widest(plan);
    let available = bench.hosts() / condition.applications.max(1);
    let hosts: Vec<u32> =
        plan.calibration.hosts.iter().copied().filter(|it| *it <= available).collect();
    let most = hosts.last().copied().unwrap_or(1);
    let most = if let Level::Fixed(hosts) = condition.hosts { hosts } else { most };
    let (data_bytes, is_data_enough) = match condition.data_bytes {
        Level::Fixed(bytes) => (bytes, true),
        Level::Calibrated => {
            let sizes = &plan.calibration.data_bytes;
            let settings = |bytes| with(&condition, bytes, most);
            match trials.search("first-step-data-size", sizes, settings, bench, control)? {
                Some(found) => found,
                None => return Ok(None),
            }
        }
    };
    let (hosts, are_hosts_enough) = match condition.hosts {
        Level::Fixed(hosts) => (hosts, true),
        Level::Calibrated => {
            let settings = |hosts| with(&condition, data_bytes, hosts);
            match trials.search("first-step-hosts", &hosts, settings, bench, control)? {
                Some(found) => found,
                None => return Ok(None),
            }
        }
    };
    let found = CalibratedRecord { data_bytes, is_data_enough, hosts, are_hosts_enough };
    journal.append(&Record::Calibrated(found))?;
    (control.tell)(Event::Calibrated(found));
    Ok(Some(found))
}

/// Of the conditions that need the calibration, returns the condition with the most targets. With
/// fewer targets, bandwidth would stop growing at smaller values.
fn widest(plan: &Plan) -> Condition {
    let asks = |condition: &Condition| {
        condition.data_bytes == Level::Calibrated || condition.hosts == Level::Calibrated
    };
    let asking = plan.conditions().map(|(_, condition)| condition).filter(asks);
    let all: Vec<Condition> = asking.collect();
    let mut widest = all[0].clone();
    for condition in all {
        if condition.count > widest.count {
            widest = condition;
        }
    }
    widest
}

fn with(condition: &Condition, data_bytes: u64, hosts: u32) -> Settings {
    let condition = Condition {
        data_bytes: Level::Fixed(data_bytes),
        hosts: Level::Fixed(hosts),
        ..condition.clone()
    };
    Settings::new(&condition, None).expect("each setting of the calibration has one fixed value")
}

struct Trials<'a> {
    plan: &'a Plan,
    journal: &'a mut Journal,
    /// Results of the calibration from before the study was interrupted, in the order in which the
    /// journal lists them.
    before: VecDeque<RunRecord>,
    number: u32,
}

impl Trials<'_> {
    /// Returns the smallest value that is as good as the best value, and whether larger values gain
    /// nothing. `None` if the study stops before the search ends.
    fn search<T: Copy>(
        &mut self,
        experiment: &str,
        values: &[T],
        settings: impl Fn(T) -> Settings,
        bench: &mut dyn Bench,
        control: &mut Control<'_>,
    ) -> Result<Option<(T, bool)>> {
        let tolerance = self.plan.calibration.tolerance;
        let mut means: Vec<f64> = Vec::new();
        for value in values {
            let mut results = Vec::new();
            for repetition in 1..=self.plan.calibration.repetitions {
                if control.is_stopped() {
                    return Ok(None);
                }
                let settings = settings(*value);
                results.push(self.trial(experiment, repetition, settings, bench, control)?);
            }
            means.push(mean(&results));
            let best_before = means[..means.len().saturating_sub(FLAT_STEPS)].iter();
            let best_before = best_before.copied().fold(0.0, f64::max);
            let last = means[means.len().saturating_sub(FLAT_STEPS)..].iter();
            if last.copied().fold(0.0, f64::max) < best_before * (1.0 + tolerance) {
                break;
            }
        }
        let best = means.iter().copied().fold(0.0, f64::max);
        let enough = means.iter().position(|it| *it >= best * (1.0 - tolerance)).unwrap_or(0);
        Ok(Some((values[enough], enough + 1 < means.len())))
    }

    fn trial(
        &mut self,
        experiment: &str,
        repetition: u32,
        settings: Settings,
        bench: &mut dyn Bench,
        control: &mut Control<'_>,
    ) -> Result<f64> {
        let number = self.number;
        self.number += 1;
        if let Some(known) = self.before.pop_front() {
            return Ok(known.value());
        }
        (control.tell)(Event::Trial(format!("{experiment}: {}", describe(&settings))));
        let name = RunName {
            label: format!("trial-{number:06}"),
            number,
            block: 0,
            experiment: experiment.to_owned(),
            repetition,
        };
        let (record, _) = one(&name, settings, self.journal, bench, control)?;
        let measured = record.value();
        self.journal.append(&Record::Trial(record))?;
        Ok(measured)
    }
}
