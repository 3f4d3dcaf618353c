//! The balance of work and of used space in the output of `skep health check`.
//!
//! `skep_stats::balance` computes the balance values.

use super::from_monitor::MonitorHealth;
use serde::Serialize;
use skep_stats::balance::{
    Balance, Highest, WorkByTarget, add_work, of_metadata_work, of_storage_space,
};
use skep_stats::why::Evidence;
use skep_types::{ClusterMap, TargetId};

/// The balances, as JSON.
#[derive(Debug, Serialize)]
pub(super) struct Balances {
    /// Length of the time span in which the work of the targets was compared.
    span_seconds: f64,
    metadata_work: Balance,
    storage_space: Balance,
}

impl Balances {
    /// Returns the balance of the metadata work in `evidence`, and of the used storage space in the
    /// map.
    pub(super) fn of(evidence: &Evidence, map: &ClusterMap) -> Self {
        let mut work = WorkByTarget::new();
        add_work(&mut work, evidence);
        Self {
            span_seconds: (evidence.span_ns as f64 / 1e8).round() / 10.0,
            metadata_work: of_metadata_work(&work, map),
            storage_space: of_storage_space(map),
        }
    }

    /// Replaces the balance of work by the balance of the last minute, if the monitor has sent this
    /// balance.
    pub(super) fn take_minute(&mut self, monitor: &MonitorHealth) {
        if let Some(minute) = &monitor.balance {
            self.span_seconds = minute.span_seconds;
            self.metadata_work = minute.metadata_work.clone();
        }
    }

    /// Returns the balances as lines of text.
    pub(super) fn as_text(&self) -> String {
        let Self { span_seconds, metadata_work: work, storage_space: space } = self;
        let busiest = |it: &Highest| {
            format!("{} gets {:.0} % of the requests", TargetId::new(it.target), it.percent)
        };
        let fullest = |it: &Highest| {
            format!("{} is the fullest, {:.0} % used", TargetId::new(it.target), it.percent)
        };
        format!(
            "Balance (100 % is even)\n==========\nWork of metadata targets in {span_seconds} s: \
             {}\nUsed space of storage targets: {}\n\n",
            in_words(work, busiest),
            in_words(space, fullest)
        )
    }
}

fn in_words(balance: &Balance, highest_text: impl Fn(&Highest) -> String) -> String {
    let highest = balance.highest.as_ref();
    let compared =
        highest.map(|it| format!(" ({} targets; {})", balance.targets, highest_text(it)));
    format!("{}{}", balance.in_words(), compared.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn balance_output_names_the_busiest_target_if_known() {
        let unknown = Balance {
            targets: 1,
            reason: Some("not enough data to judge".into()),
            ..Balance::default()
        };
        let known = Balance {
            targets: 2,
            percent: Some(66.7),
            reason: None,
            highest: Some(Highest { target: 3, percent: 75.0 }),
        };
        let balances = Balances { span_seconds: 2.0, metadata_work: known, storage_space: unknown };
        let text = "Balance (100 % is even)\n==========\n\
                    Work of metadata targets in 2 s: 67 % \
                    (2 targets; t3 gets 75 % of the requests)\n\
                    Used space of storage targets: not enough data to judge\n\n";
        assert_eq!(balances.as_text(), text);
    }
}
