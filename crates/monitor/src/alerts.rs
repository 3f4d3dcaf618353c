//! Alerts: findings that have lasted for a while.
//!
//! The module is pure, because the caller passes the time. The module decides when an alert begins
//! and ends, and which alerts another alert lists as its consequences. [`crate::notify`] sends the
//! notifications.
//!
//! The times come from the host's clock, which users see. If the clock is set back, the module sets
//! all times back by the same amount. So alerts neither begin late nor last until the clock has
//! reached its former time.
//!
//! If the severity of an alert changes, receivers get a notification of the change. The alert keeps
//! its severity until the new severity has lasted for a while.
//!
//! A finding that follows from another finding raises no separate alert while the alert of its
//! cause exists. The alert of the cause lists this finding. If the finding still exists after the
//! end of its cause, the finding becomes an alert.

use crate::findings::{Finding, FindingKey};
use crate::limits::{
    ALERT_AFTER, ALERT_ENDS_AFTER, KEPT_ALERTS, MAX_CONSEQUENCES, RESTORED_ALERT_LASTS,
};
use serde::Serialize;
use skep_cluster::problems::{Severity, severity_word};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// An alert.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Alert {
    pub(crate) rule: &'static str,
    pub(crate) severity: &'static str,
    /// The severity before its change, in the notification of this change. `None` in all other
    /// places.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) former_severity: Option<&'static str>,
    pub(crate) object: String,
    pub(crate) what: String,
    pub(crate) remedy: String,
    /// Time at which the finding began, in milliseconds since 1970.
    pub(crate) since_ms: u64,
    /// Time at which the finding ended. `None` means that the finding still exists.
    pub(crate) ended_ms: Option<u64>,
    /// Problems that follow from this alert, in the order in which the monitor found them. At most
    /// [`MAX_CONSEQUENCES`].
    pub(crate) consequences: Vec<Consequence>,
}

/// A problem that follows from an alert. The monitor sends no notification of this problem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Consequence {
    pub(crate) rule: &'static str,
    pub(crate) severity: &'static str,
    pub(crate) object: String,
    pub(crate) what: String,
    /// Time at which the finding began, in milliseconds since 1970.
    pub(crate) since_ms: u64,
    /// Time at which the finding ended. `None` means that the finding still exists, or that the
    /// finding still existed when the alert ended.
    pub(crate) ended_ms: Option<u64>,
}

impl Alert {
    /// Updates the consequences at the time `now_ms`. `present` contains the consequences that
    /// exist at this time. Returns whether a consequence has begun or ended.
    fn set_consequences(&mut self, present: Vec<Consequence>, now_ms: u64) -> bool {
        let mut is_changed = false;
        for former in self.consequences.iter_mut().filter(|it| it.ended_ms.is_none()) {
            if !present.iter().any(|it| it.is_about(former)) {
                former.ended_ms = Some(now_ms);
                is_changed = true;
            }
        }
        for new in present {
            if let Some(former) = self.consequences.iter_mut().find(|it| it.is_about(&new)) {
                is_changed |= former.ended_ms.is_some();
                *former = new;
            } else if self.consequences.len() < MAX_CONSEQUENCES {
                self.consequences.push(new);
                is_changed = true;
            }
        }
        is_changed
    }

    /// Subtracts `back_ms` from all times, because the clock was set back by this amount.
    fn move_back(&mut self, back_ms: u64) {
        let earlier = |time: &mut u64| *time = time.saturating_sub(back_ms);
        earlier(&mut self.since_ms);
        self.ended_ms.iter_mut().for_each(earlier);
        for part in &mut self.consequences {
            earlier(&mut part.since_ms);
            part.ended_ms.iter_mut().for_each(earlier);
        }
    }
}

impl Consequence {
    /// Returns the finding of this consequence, without its remedy. The next update adds the
    /// remedy.
    fn into_alert(self, now_ms: u64) -> Alert {
        Alert {
            rule: self.rule,
            severity: self.severity,
            former_severity: None,
            object: self.object,
            what: self.what,
            remedy: String::new(),
            since_ms: self.since_ms.min(now_ms),
            ended_ms: None,
            consequences: Vec::new(),
        }
    }

    /// Whether the two consequences are the same problem.
    fn is_about(&self, other: &Self) -> bool {
        (self.rule, &self.object) == (other.rule, &other.object)
    }
}

#[derive(Debug)]
struct Active {
    alert: Alert,
    last_seen_ms: u64,
    /// The severity of the finding. An announced alert gets this severity after a while.
    severity: &'static str,
    /// Time since which this severity differs from the severity of the alert. `None` means that the
    /// two severities are equal.
    differs_since_ms: Option<u64>,
    /// Whether an earlier process of the monitor had the alert, and this process has not found the
    /// problem yet.
    is_restored: bool,
    /// The active finding from which this finding follows.
    cause: Option<FindingKey>,
    /// Time at which the finding began to follow from no other finding, in milliseconds since 1970.
    independent_since_ms: u64,
    /// Whether [`AlertBook::update`] has returned the finding as an alert that begins.
    is_announced: bool,
}

impl Active {
    /// Subtracts `back_ms` from all times, because the clock was set back by this amount.
    fn move_back(&mut self, back_ms: u64) {
        self.alert.move_back(back_ms);
        for time in [&mut self.last_seen_ms, &mut self.independent_since_ms] {
            *time = time.saturating_sub(back_ms);
        }
        self.differs_since_ms = self.differs_since_ms.map(|time| time.saturating_sub(back_ms));
    }

    /// Returns a current alert of an earlier process of the monitor.
    fn restored(alert: Alert, now_ms: u64, is_announced: bool) -> Self {
        Self {
            severity: alert.severity,
            alert,
            last_seen_ms: now_ms,
            differs_since_ms: None,
            is_restored: true,
            cause: None,
            independent_since_ms: now_ms,
            is_announced,
        }
    }

    /// Returns the time for which the finding may be missing before it counts as ended.
    fn patience(&self) -> Duration {
        match (self.is_announced, self.is_restored) {
            (true, true) => RESTORED_ALERT_LASTS,
            (true, false) | (false, true) => ALERT_ENDS_AFTER,
            // A finding that ends before it has become an alert is removed immediately.
            (false, false) => Duration::ZERO,
        }
    }

    /// If the severities of the finding and of its announced alert have differed for a while, the
    /// alert gets the severity of the finding. The function then returns the former severity of the
    /// alert.
    fn take_severity(&mut self, now_ms: u64) -> Option<&'static str> {
        if !self.is_announced || self.severity == self.alert.severity {
            self.differs_since_ms = None;
            return None;
        }
        let since_ms = *self.differs_since_ms.get_or_insert(now_ms);
        // A rise of the severity is as urgent as a new alert. A fall waits as long as the end of an
        // alert.
        let has_risen = self.severity == severity_word(Severity::Critical);
        let patience = if has_risen { ALERT_AFTER } else { ALERT_ENDS_AFTER };
        if now_ms.saturating_sub(since_ms) < ms(patience) {
            return None;
        }
        self.differs_since_ms = None;
        Some(std::mem::replace(&mut self.alert.severity, self.severity))
    }

    /// Returns this current finding in the form in which the alert of its cause lists it.
    fn as_consequence(&self) -> Consequence {
        Consequence {
            rule: self.alert.rule,
            severity: self.alert.severity,
            object: self.alert.object.clone(),
            what: self.alert.what.clone(),
            since_ms: self.alert.since_ms,
            ended_ms: None,
        }
    }
}

/// All current alerts, and the alerts that ended recently.
#[derive(Debug, Default)]
pub(crate) struct AlertBook {
    active: BTreeMap<FindingKey, Active>,
    ended: VecDeque<Alert>,
    /// The alerts whose severity has changed, with their former severity. Their `ended_ms` is the
    /// time of the change.
    superseded: VecDeque<Alert>,
    /// Number of alerts that have begun or ended, or whose severity has changed.
    changes: u64,
    /// Number of updates in which consequences of alerts have begun or ended.
    consequence_changes: u64,
    /// Time at which the alerts were last updated.
    updated_ms: u64,
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl AlertBook {
    /// Adds the alerts that existed when an earlier process of the monitor ended. These alerts do
    /// not begin again. If the finding of such an alert does not exist any more, the alert ends as
    /// usual.
    pub(crate) fn restore(&mut self, alerts: Vec<Alert>, now_ms: u64) {
        let mut following = Vec::new();
        for mut alert in alerts {
            alert.since_ms = alert.since_ms.min(now_ms);
            let key = (alert.rule, alert.object.clone());
            let present = alert.consequences.iter().filter(|it| it.ended_ms.is_none());
            following.extend(present.map(|it| (it.clone(), key.clone())));
            self.active.insert(key, Active::restored(alert, now_ms, true));
        }
        // A consequence may be an alert too, if the consequence began before its cause.
        for (part, cause) in following {
            let key = (part.rule, part.object.clone());
            let of_part = || Active::restored(part.into_alert(now_ms), now_ms, false);
            self.active.entry(key).or_insert_with(of_part).cause = Some(cause);
        }
    }

    /// Counts the findings of all alerts as present at the time `now_ms`. The monitor calls this
    /// function in a round without a cluster map, because the findings of such a round are
    /// incomplete.
    pub(crate) fn hold(&mut self, now_ms: u64) {
        self.active.values_mut().for_each(|active| active.last_seen_ms = now_ms);
    }

    /// Updates the alerts with the findings that exist at the time `now_ms`. Returns the alerts
    /// that begin or end at this time, or whose severity changes.
    pub(crate) fn update(&mut self, now_ms: u64, findings: Vec<Finding>) -> Vec<Alert> {
        self.follow_clock(now_ms);
        findings.into_iter().for_each(|finding| self.note(now_ms, finding));
        let mut changes = self.end_old(now_ms);
        changes.extend(self.change_severities(now_ms));
        changes.extend(self.begin_new(now_ms));
        self.changes += changes.len() as u64;
        changes
    }

    /// If the clock was set back since the last update, sets all times back by the same amount.
    fn follow_clock(&mut self, now_ms: u64) {
        let back_ms = self.updated_ms.saturating_sub(now_ms);
        self.updated_ms = now_ms;
        if back_ms > 0 {
            self.active.values_mut().for_each(|it| it.move_back(back_ms));
            let past = self.ended.iter_mut().chain(&mut self.superseded);
            past.for_each(|it| it.move_back(back_ms));
        }
    }

    /// Records that `finding` exists at the time `now_ms`.
    fn note(&mut self, now_ms: u64, finding: Finding) {
        let active = self.active.entry(finding.key()).or_insert_with(|| Active {
            alert: Alert {
                rule: finding.rule,
                severity: "",
                former_severity: None,
                object: finding.object.clone(),
                what: String::new(),
                remedy: String::new(),
                since_ms: now_ms,
                ended_ms: None,
                consequences: Vec::new(),
            },
            last_seen_ms: now_ms,
            severity: "",
            differs_since_ms: None,
            is_restored: false,
            cause: None,
            independent_since_ms: now_ms,
            is_announced: false,
        });
        (active.last_seen_ms, active.is_restored) = (now_ms, false);
        active.severity = severity_word(finding.severity);
        if !active.is_announced {
            active.alert.severity = active.severity;
        }
        active.alert.what = finding.what;
        active.alert.remedy = finding.remedy;
        // The alert of the cause stays active for a moment after the finding of the cause has
        // ended. So if the new finding has no cause, keep the recorded cause.
        active.cause = finding.cause.or(active.cause.take());
    }

    /// Removes the findings that have ended. A finding that has become an alert is removed only
    /// [`ALERT_ENDS_AFTER`] after its end. Returns the alerts that end.
    fn end_old(&mut self, now_ms: u64) -> Vec<Alert> {
        let is_over =
            |active: &Active| now_ms.saturating_sub(active.last_seen_ms) > ms(active.patience());
        let over: Vec<_> =
            self.active.iter().filter(|(_, it)| is_over(it)).map(|(key, _)| key.clone()).collect();
        let mut changes = Vec::new();
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

    /// Returns the alerts whose severity changes, with their former severity.
    fn change_severities(&mut self, now_ms: u64) -> Vec<Alert> {
        let mut changed = Vec::new();
        for active in self.active.values_mut() {
            let Some(former) = active.take_severity(now_ms) else { continue };
            let alert = active.alert.clone();
            self.superseded.push_front(Alert {
                severity: former,
                ended_ms: Some(now_ms),
                ..alert.clone()
            });
            changed.push(Alert { former_severity: Some(former), ..alert });
        }
        self.superseded.truncate(KEPT_ALERTS);
        changed
    }

    /// Returns the alerts that begin. Updates the consequences of all alerts.
    fn begin_new(&mut self, now_ms: u64) -> Vec<Alert> {
        let existing: BTreeSet<FindingKey> = self.active.keys().cloned().collect();
        let mut following = BTreeMap::<FindingKey, Vec<Consequence>>::new();
        let mut begun = Vec::new();
        for (key, active) in &mut self.active {
            active.cause = active.cause.take().filter(|cause| existing.contains(cause));
            let lasts = |since_ms: u64| now_ms.saturating_sub(since_ms) >= ms(ALERT_AFTER);
            if let Some(cause) = active.cause.clone() {
                active.independent_since_ms = now_ms;
                if lasts(active.alert.since_ms) {
                    following.entry(cause).or_default().push(active.as_consequence());
                }
            } else if lasts(active.independent_since_ms) && !active.is_announced {
                active.is_announced = true;
                begun.push(key.clone());
            }
        }
        let mut is_changed = false;
        for (key, active) in &mut self.active {
            let present = following.remove(key).unwrap_or_default();
            is_changed |= active.alert.set_consequences(present, now_ms);
        }
        self.consequence_changes += u64::from(is_changed);
        let begun = begun.iter().filter_map(|key| self.active.get(key));
        begun.map(|active| active.alert.clone()).collect()
    }

    /// Returns the current alerts, sorted by severity (critical first) and then by age (oldest
    /// first). Omits the alerts that another alert lists as its consequences.
    pub(crate) fn holding(&self) -> Vec<&Alert> {
        let is_announced =
            |key: &FindingKey| self.active.get(key).is_some_and(|it| it.is_announced);
        let is_listed = |active: &Active| active.cause.as_ref().is_some_and(is_announced);
        let announced = self.active.values().filter(|it| it.is_announced && !is_listed(it));
        let mut all: Vec<&Alert> = announced.map(|active| &active.alert).collect();
        all.sort_by_key(|alert| (alert.severity != "critical", alert.since_ms));
        all
    }

    /// Returns the time at which a finding began, in milliseconds since 1970. `None` means that the
    /// finding does not exist at this moment.
    pub(crate) fn since_ms(&self, key: &FindingKey) -> Option<u64> {
        self.active.get(key).map(|active| active.alert.since_ms)
    }

    /// Returns a number that rises when an alert begins or ends, or when its severity changes.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns a number that rises like [`Self::changes`], and when a consequence of an alert
    /// begins or ends.
    pub(crate) fn revision(&self) -> u64 {
        self.changes + self.consequence_changes
    }

    /// Returns all current alerts, critical first, including the alerts that another alert lists as
    /// its consequences.
    pub(crate) fn announced(&self) -> Vec<&Alert> {
        let announced = self.active.values().filter(|it| it.is_announced);
        let mut all: Vec<&Alert> = announced.map(|active| &active.alert).collect();
        all.sort_by_key(|alert| (alert.severity != "critical", alert.since_ms));
        all
    }

    /// Returns the alerts that ended at or after `from_ms`, the newest first.
    pub(crate) fn ended_since(&self, from_ms: u64) -> impl Iterator<Item = &Alert> {
        since(&self.ended, from_ms)
    }

    /// Returns the alerts whose severity changed at or after `from_ms`, the newest first. These
    /// alerts have their former severity, and the time of the change as their end.
    pub(crate) fn superseded_since(&self, from_ms: u64) -> impl Iterator<Item = &Alert> {
        since(&self.superseded, from_ms)
    }
}

/// Returns the alerts that ended at or after `from_ms`.
fn since(alerts: &VecDeque<Alert>, from_ms: u64) -> impl Iterator<Item = &Alert> {
    let is_late = move |alert: &&Alert| alert.ended_ms.is_some_and(|ended| ended >= from_ms);
    alerts.iter().filter(is_late)
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
            cause: None,
        }
    }

    fn of_rule(rule: &'static str, cause: Option<&'static str>) -> Finding {
        let cause = cause.map(|rule| (rule, "t7".to_owned()));
        Finding { rule, cause, ..finding() }
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
    fn short_findings_raise_no_alert_and_short_gaps_end_no_alert() {
        assert_eq!(changes(|second| second % 10 < 4), [], "no finding lasts five seconds");
        assert_eq!(changes(|second| second % 10 != 9 && second < 60), [(5, true), (74, false)]);
    }

    #[test]
    fn ended_alerts_have_their_start_and_end_times() {
        let mut book = AlertBook::default();
        for second in 0..10 {
            book.update(second * 1000, vec![finding()]);
        }
        assert_eq!(book.holding().len(), 1);
        assert_eq!(book.since_ms(&finding().key()), Some(0));
        book.update(60_000, Vec::new());
        assert_eq!(book.holding().len(), 0);
        let ended: Vec<_> = book.ended_since(0).collect();
        assert_eq!((ended[0].since_ms, ended[0].ended_ms), (0, Some(9000)));
    }

    #[test]
    fn clock_that_is_set_back_neither_delays_nor_prolongs_alerts() {
        let mut book = AlertBook::default();
        let mut found = Vec::new();
        for second in 0..100 {
            let hours = u64::from(second >= 12) + u64::from(second >= 33);
            let now_ms = (1_000_000 + second - 3600 * hours) * 1000;
            let findings = if (10..32).contains(&second) { vec![finding()] } else { Vec::new() };
            for alert in book.update(now_ms, findings) {
                assert!(alert.since_ms < now_ms && alert.ended_ms.is_none_or(|it| it < now_ms));
                found.push((second, alert.ended_ms.is_none()));
            }
        }
        // Each change of the clock delays the next event by one second, because the second in which
        // the clock changes does not count.
        assert_eq!(found, [(16, true), (48, false)]);
    }

    #[test]
    fn restarted_monitor_repeats_no_alert_but_reports_alert_ends() {
        let [lasting, gone] = [of_rule("target-slow", None), of_rule("target-full", None)];
        let mut before = AlertBook::default();
        for second in 0..10 {
            before.update(second * 1000, vec![lasting.clone(), gone.clone()]);
        }
        let alerts: Vec<Alert> = before.announced().into_iter().cloned().collect();
        let mut book = AlertBook::default();
        book.restore(alerts, 60_000);
        assert_eq!(book.holding().len(), 2);
        // The monitor has no cluster map until second 100.
        let mut changes = Vec::new();
        for second in 61..300 {
            // This rule needs the load of a minute.
            let found = if second < 170 { Vec::new() } else { vec![lasting.clone()] };
            if second < 100 {
                book.hold(second * 1000);
            }
            changes.extend(book.update(second * 1000, found));
        }
        let [ended] = &changes[..] else { panic!("{changes:?}") };
        assert_eq!((ended.rule, ended.since_ms, ended.ended_ms), ("target-full", 0, Some(99_000)));
        assert_eq!(book.since_ms(&lasting.key()), Some(0), "the finding began before the restart");
    }

    #[test]
    fn restored_alert_has_its_consequences_with_their_start() {
        let [cause, following] = [of_rule("cause", None), of_rule("consequence", Some("cause"))];
        let both = || vec![cause.clone(), following.clone()];
        let mut before = AlertBook::default();
        let mut revisions = BTreeSet::new();
        for second in 0..30 {
            let found = if second < 10 { vec![cause.clone()] } else { both() };
            before.update(second * 1000, found);
            revisions.insert(before.revision());
        }
        assert_eq!(revisions.len(), 3, "an alert, and later its consequence, must be stored");
        let alerts: Vec<Alert> = before.announced().into_iter().cloned().collect();
        let mut book = AlertBook::default();
        book.restore(alerts.clone(), 60_000);
        assert_eq!(book.holding(), alerts.iter().collect::<Vec<_>>());
        for second in 61..100 {
            assert!(book.update(second * 1000, both()).is_empty(), "{second}");
            let holding = book.holding();
            let [part] = &holding[0].consequences[..] else { panic!("{holding:?}") };
            assert_eq!((part.since_ms, part.ended_ms), (10_000, None), "{second}");
        }
        // The consequence ends after its cause, so it becomes an alert with its remedy.
        let mut changes = Vec::new();
        for second in 100..140 {
            changes.extend(book.update(second * 1000, vec![of_rule("consequence", None)]));
        }
        let found: Vec<_> = changes.iter().map(|it| (it.rule, &*it.remedy)).collect();
        assert_eq!(found, [("cause", "wait"), ("consequence", "wait")]);
    }

    #[test]
    fn new_severity_of_an_alert_is_notified_only_if_it_lasts() {
        let severity = |second: u64| match second {
            20 | 30..60 => Severity::Critical,
            _ => Severity::Warning,
        };
        let mut book = AlertBook::default();
        let mut found = Vec::new();
        for second in 0..100 {
            let now_ms = second * 1000;
            let finding = Finding { severity: severity(second), ..finding() };
            for alert in book.update(now_ms, vec![finding]) {
                found.push((second, alert.severity, alert.former_severity));
            }
            let current = book.holding();
            assert!(current.iter().all(|alert| alert.former_severity.is_none()));
        }
        let expected = [
            (5, "warning", None),
            (35, "critical", Some("warning")),
            (75, "warning", Some("critical")),
        ];
        assert_eq!(found, expected);
        assert_eq!(book.changes(), 3);
        let former: Vec<_> = book.superseded_since(36_000).collect();
        assert_eq!(former.len(), 1);
        assert_eq!((former[0].severity, former[0].ended_ms), ("critical", Some(75_000)));
    }

    /// Returns the seconds at which alerts begin (`true`) or end (`false`), with their rules. The
    /// finding `cause` exists in the seconds `cause`. A finding that follows from this finding
    /// exists in the seconds `consequence`.
    fn changes_of_two(
        cause: std::ops::Range<u64>,
        consequence: std::ops::Range<u64>,
    ) -> (Vec<(u64, &'static str, bool)>, AlertBook) {
        let mut book = AlertBook::default();
        let mut found = Vec::new();
        for second in 0..100 {
            let mut findings = Vec::new();
            // The order of the findings must not matter.
            if consequence.contains(&second) {
                let of_cause = cause.contains(&second).then_some("cause");
                findings.push(of_rule("consequence", of_cause));
            }
            if cause.contains(&second) {
                findings.push(of_rule("cause", None));
            }
            for alert in book.update(second * 1000, findings) {
                found.push((second, alert.rule, alert.ended_ms.is_none()));
            }
        }
        (found, book)
    }

    #[test]
    fn alert_of_a_cause_lists_its_consequences() {
        let (found, book) = changes_of_two(10..40, 20..40);
        assert_eq!(found, [(15, "cause", true), (55, "cause", false)]);
        let ended: Vec<_> = book.ended_since(0).collect();
        assert_eq!(ended.len(), 1);
        let cause = ended[0];
        let [part] = &cause.consequences[..] else { panic!("{cause:?}") };
        assert_eq!((part.rule, part.since_ms), ("consequence", 20_000));
        assert_eq!(part.ended_ms, Some(40_000));
        // A consequence that is found before its cause raises no alert at first, because its cause
        // may have begun just now.
        let (found, _) = changes_of_two(12..40, 10..40);
        assert_eq!(found, [(17, "cause", true), (55, "cause", false)]);
    }

    #[test]
    fn consequence_that_outlives_its_cause_becomes_an_alert() {
        let (found, _) = changes_of_two(10..40, 20..90);
        let cause = [(15, "cause", true), (55, "cause", false)];
        assert_eq!(found, [&cause[..], &[(59, "consequence", true)]].concat());
    }

    #[test]
    fn alert_is_listed_under_a_cause_that_begins_later() {
        let mut book = AlertBook::default();
        let mut announced = Vec::new();
        for second in 0..30 {
            let cause = (second >= 10).then_some("cause");
            let mut findings = vec![of_rule("consequence", cause)];
            findings.extend(cause.map(|rule| of_rule(rule, None)));
            announced.extend(book.update(second * 1000, findings).iter().map(|it| it.rule));
        }
        assert_eq!(announced, ["consequence", "cause"]);
        let holding = book.holding();
        assert_eq!(holding.iter().map(|it| it.rule).collect::<Vec<_>>(), ["cause"]);
        let announced = book.announced();
        assert_eq!(
            announced.iter().map(|it| it.rule).collect::<Vec<_>>(),
            ["consequence", "cause"]
        );
        assert_eq!(holding[0].consequences[0].since_ms, 0);
        // The receiver of the first notification also learns that the alert has ended.
        let ended = book.update(60_000, Vec::new());
        assert_eq!(ended.len(), 2, "{ended:?}");
    }
}
