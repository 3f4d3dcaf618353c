//! Alerts: findings that have lasted for a while.
//!
//! The module is pure, because the caller passes the time. It decides when an alert begins and
//! ends. [`crate::notify`] sends the notifications.

use crate::findings::Finding;
use crate::limits::{ALERT_AFTER, ALERT_ENDS_AFTER, KEPT_ALERTS};
use serde::Serialize;
use skep_cluster::problems::Severity;
use std::collections::{BTreeMap, VecDeque};

/// An alert.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Alert {
    pub(crate) rule: &'static str,
    pub(crate) severity: &'static str,
    pub(crate) object: String,
    pub(crate) what: String,
    pub(crate) remedy: String,
    /// Time at which the finding began, in milliseconds since 1970.
    pub(crate) since_ms: u64,
    /// Time at which the finding ended. `None` means that the finding still exists.
    pub(crate) ended_ms: Option<u64>,
}

#[derive(Debug)]
struct Active {
    alert: Alert,
    last_seen_ms: u64,
    is_announced: bool,
}

/// All current alerts, and the alerts that ended recently.
#[derive(Debug, Default)]
pub(crate) struct AlertBook {
    active: BTreeMap<(&'static str, String), Active>,
    ended: VecDeque<Alert>,
}

fn ms(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the name of a severity.
pub(crate) fn severity_word(severity: Severity) -> &'static str {
    match severity {
        Severity::Warning => "warning",
        Severity::Critical => "critical",
    }
}

impl AlertBook {
    /// Updates the alerts by the findings of one moment. Returns the alerts that begin or end at
    /// this moment.
    pub(crate) fn update(&mut self, now_ms: u64, findings: Vec<Finding>) -> Vec<Alert> {
        let mut changes = Vec::new();
        for finding in findings {
            let key = (finding.rule, finding.object.clone());
            let active = self.active.entry(key).or_insert_with(|| Active {
                alert: Alert {
                    rule: finding.rule,
                    severity: "",
                    object: finding.object.clone(),
                    what: String::new(),
                    remedy: String::new(),
                    since_ms: now_ms,
                    ended_ms: None,
                },
                last_seen_ms: now_ms,
                is_announced: false,
            });
            active.last_seen_ms = now_ms;
            active.alert.severity = severity_word(finding.severity);
            active.alert.what = finding.what;
            active.alert.remedy = finding.remedy;
            let lasts = now_ms.saturating_sub(active.alert.since_ms) >= ms(ALERT_AFTER);
            if lasts && !active.is_announced {
                active.is_announced = true;
                changes.push(active.alert.clone());
            }
        }
        // A finding that ends before it has become an alert is removed at once.
        let is_over = |active: &Active| {
            let patience = if active.is_announced { ms(ALERT_ENDS_AFTER) } else { 0 };
            now_ms.saturating_sub(active.last_seen_ms) > patience
        };
        let over: Vec<_> =
            self.active.iter().filter(|(_, it)| is_over(it)).map(|(key, _)| key.clone()).collect();
        for key in over {
            let Some(active) = self.active.remove(&key) else { continue };
            if !active.is_announced {
                continue;
            }
            let ended = Alert { ended_ms: Some(active.last_seen_ms), ..active.alert };
            changes.push(ended.clone());
            self.ended.push_front(ended);
            self.ended.truncate(KEPT_ALERTS);
        }
        changes
    }

    /// Returns the current alerts, sorted by severity (critical first) and then by age (oldest
    /// first).
    pub(crate) fn holding(&self) -> Vec<&Alert> {
        let announced = self.active.values().filter(|active| active.is_announced);
        let mut all: Vec<&Alert> = announced.map(|active| &active.alert).collect();
        all.sort_by_key(|alert| (alert.severity != "critical", alert.since_ms));
        all
    }

    /// Returns the alerts that ended at or after `from_ms`, the newest first.
    pub(crate) fn ended_since(&self, from_ms: u64) -> impl Iterator<Item = &Alert> {
        let is_late = move |alert: &&Alert| alert.ended_ms.is_some_and(|ended| ended >= from_ms);
        self.ended.iter().filter(is_late)
    }

    /// Returns the alerts that ended recently, the newest first.
    pub(crate) fn ended(&self) -> &VecDeque<Alert> {
        &self.ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding() -> Finding {
        Finding {
            rule: "target-slow",
            severity: Severity::Warning,
            object: "t7".into(),
            what: "slow".into(),
            remedy: "wait".into(),
        }
    }

    /// Returns the seconds at which an alert begins (`true`) or ends (`false`). The finding exists
    /// in the seconds for which `holds` returns `true`.
    fn changes(holds: impl Fn(u64) -> bool) -> Vec<(u64, bool)> {
        let mut book = AlertBook::default();
        let mut found = Vec::new();
        for second in 0..100 {
            let findings = if holds(second) { vec![finding()] } else { Vec::new() };
            for alert in book.update(second * 1000, findings) {
                found.push((second, alert.ended_ms.is_none()));
            }
        }
        found
    }

    #[test]
    fn alert_begins_after_its_delay_and_ends_only_once() {
        assert_eq!(changes(|second| (10..40).contains(&second)), [(15, true), (55, false)]);
    }

    #[test]
    fn short_findings_and_short_gaps_raise_no_alert() {
        assert_eq!(changes(|second| second % 10 < 4), [], "no finding lasts five seconds");
        assert_eq!(changes(|second| second % 10 != 9 && second < 60), [(5, true), (74, false)]);
    }

    #[test]
    fn ended_alerts_have_their_begin_and_end_times() {
        let mut book = AlertBook::default();
        for second in 0..10 {
            book.update(second * 1000, vec![finding()]);
        }
        assert_eq!(book.holding().len(), 1);
        book.update(60_000, Vec::new());
        assert_eq!(book.holding().len(), 0);
        assert_eq!((book.ended()[0].since_ms, book.ended()[0].ended_ms), (0, Some(9000)));
    }
}
