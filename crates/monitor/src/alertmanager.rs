//! Sends the alerts to Alertmanager, in its own form (`POST /api/v2/alerts`).
//!
//! An Alertmanager forgets an alert that the monitor does not send again, and all alerts if it
//! loses its data. So the monitor sends all current alerts repeatedly, as Prometheus does: after
//! each change, and each minute while alerts exist. Each alert has the time `endsAt` at which it
//! ends unless the monitor sends it again. After an alert has ended, the monitor continues to send
//! it for a quarter of an hour, with the time of its end.
//!
//! The module has no queue, because each request contains the alerts of its moment. So a receiver
//! that is slow, or fails for a day, costs no memory. The next successful request contains all
//! current alerts.

use crate::alerts::Alert;
use crate::back_off::BackOff;
use crate::consequences::service_of_object;
use crate::http_client::{Failure, HttpRequest, Url, post};
use crate::limits::{
    ALERT_PAUSE, ALERTMANAGER_ENDS, ALERTMANAGER_HOLDS, ALERTMANAGER_REPEATS, MAX_SENT_ALERTS,
};
use crate::live::MonitorState;
use crate::names::printable;
use crate::page_links::PageLinks;
use crate::settings::AlertSettings;
use crate::{now_ms, of_cluster};
use serde_json::{Map, Value, json};
use skep_types::{ClusterMap, Error, ErrorCode, Result, Timestamp, utc};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

/// Interval at which the monitor looks for changes of the alerts. The interval equals the shortest
/// interval of collection rounds.
const EVERY: Duration = Duration::from_secs(1);
/// Name of all alerts. The alert rules for Prometheus use the same name and the same labels, so
/// the same routes and inhibit rules of Alertmanager apply.
const ALERT_NAME: &str = "SkepAlert";

/// The requests to one Alertmanager.
#[derive(Debug)]
pub(crate) struct Alertmanager {
    url: Url,
}

/// The last request that the Alertmanager has accepted.
#[derive(Debug, Default)]
struct Accepted {
    /// The number of changes of the alerts ([`crate::alerts::AlertBook::changes`]) at the time of
    /// the request, and the time of the request. `None` means that the Alertmanager has accepted no
    /// request yet.
    last: Option<(u64, Duration)>,
}

impl Accepted {
    /// Whether the Alertmanager must get the alerts at the time `now`.
    fn is_due(&self, changes: u64, now: Duration) -> bool {
        self.last.is_none_or(|(known, at)| {
            known != changes || now.saturating_sub(at) >= ALERTMANAGER_REPEATS
        })
    }
}

/// Returns the Alertmanagers in the settings.
///
/// # Errors
/// `Configuration` if an address is invalid.
pub(crate) fn of_settings(settings: &AlertSettings) -> Result<Vec<Alertmanager>> {
    let of = |url: Url| {
        let path = format!("{}/api/v2/alerts", url.path.trim_end_matches('/'));
        Alertmanager { url: Url { path, ..url } }
    };
    let wrong = |problem| Error::new(ErrorCode::Configuration, problem);
    settings.alertmanagers.iter().map(|text| Url::parse(text).map(of).map_err(wrong)).collect()
}

impl Alertmanager {
    /// Sends the alerts until this future is dropped. `name` is the name of the cluster for the
    /// log, or `None` if the monitor watches only one cluster.
    pub(crate) async fn run(
        self,
        links: PageLinks,
        name: Option<String>,
        state: Rc<RefCell<MonitorState>>,
    ) {
        let mut accepted = Accepted::default();
        let mut back_off = BackOff::default();
        let mut is_failing = false;
        // Retry: the monitor sends the current alerts again after growing pauses, without limit.
        // No alerts wait in a queue.
        loop {
            skep_env::sleep(EVERY).await;
            let now = skep_env::now();
            let changes = state.borrow().alerts.changes();
            if !accepted.is_due(changes, now) || !back_off.is_due(now) {
                continue;
            }
            let alerts = alerts(&state.borrow(), &links, now_ms());
            let outcome = match alerts.is_empty() {
                true => Ok(()),
                false => self.send(alerts).await,
            };
            match outcome {
                Ok(()) => {
                    accepted.last = Some((changes, now));
                    back_off.succeeded();
                    if std::mem::take(&mut is_failing) {
                        tracing::info!("{}", self.line(name.as_deref(), ""));
                    }
                }
                Err(Failure::Later(why) | Failure::Refused(why)) => {
                    back_off.failed(skep_env::now(), ALERT_PAUSE);
                    if !std::mem::replace(&mut is_failing, true) {
                        tracing::warn!("{}", self.line(name.as_deref(), &why));
                    }
                }
            }
        }
    }

    /// Returns the log line about a new problem, or about the end of the previous problem if
    /// `problem` is empty.
    fn line(&self, name: Option<&str>, problem: &str) -> String {
        let (alerts, address) = (format!("alerts{}", of_cluster(name)), &self.url.address);
        match problem {
            "" => format!("Alertmanager at {address} accepts {alerts} again"),
            why => format!(
                "cannot send {alerts} to Alertmanager at {address}: {why}; the monitor sends these \
                 alerts again until Alertmanager accepts them"
            ),
        }
    }

    async fn send(&self, alerts: Vec<Value>) -> Result<(), Failure> {
        let body = Value::Array(alerts).to_string();
        post(&HttpRequest::of_json(&self.url, &body)).await
    }
}

/// Returns the alerts for a request at the time `now_ms`: the current alerts, and the alerts that
/// have ended a short time ago. The severity is a label, so Alertmanager treats an alert with a new
/// severity as another alert. The alert with the former severity has ended.
fn alerts(state: &MonitorState, links: &PageLinks, now_ms: u64) -> Vec<Value> {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let current = state.alerts.announced().into_iter();
    let current = current.map(|alert| (alert, now_ms.saturating_add(ms(ALERTMANAGER_HOLDS))));
    let from_ms = now_ms.saturating_sub(ms(ALERTMANAGER_ENDS));
    let ended = state.alerts.ended_since(from_ms).chain(state.alerts.superseded_since(from_ms));
    let ended = ended.map(|alert| (alert, alert.ended_ms.unwrap_or(now_ms)));
    let (cluster, map) = (state.cluster(), state.collected.map.as_ref());
    // Alertmanager identifies an alert by its labels. So if an alert has begun again, its earlier
    // end must not follow in the same request.
    let mut seen = BTreeSet::new();
    let is_new = |(alert, _): &(&Alert, u64)| {
        seen.insert((alert.rule, alert.severity, alert.object.clone()))
    };
    let new = current.chain(ended).filter(is_new).take(MAX_SENT_ALERTS);
    new.map(|(alert, ends_ms)| {
        let mut value = json!({
            "labels": labels(alert, &cluster, map),
            "annotations": {
                "summary": alert.what,
                "description": alert.remedy,
            },
            "startsAt": time(alert.since_ms),
            "endsAt": time(ends_ms),
        });
        // Alertmanager shows this address as the source of the alert.
        if let Some(page) = links.of_alert(alert, map) {
            value["generatorURL"] = page.into();
        }
        value
    })
    .collect()
}

/// Returns the labels of an alert. Omits empty labels, because Alertmanager treats an empty label
/// as a missing label.
fn labels(alert: &Alert, cluster: &str, map: Option<&ClusterMap>) -> Value {
    let service = map.and_then(|map| service_of_object(&alert.object, map));
    let name = service.map_or_else(String::new, |node| printable(&node.name));
    let all = [
        ("alertname", ALERT_NAME),
        ("rule", alert.rule),
        ("severity", alert.severity),
        ("object", alert.object.as_str()),
        ("fault", alert.object.as_str()),
        ("skep_cluster", cluster),
        ("skep_name", name.as_str()),
    ];
    let known = all.into_iter().filter(|(_, value)| !value.is_empty());
    let labels: Map<String, Value> =
        known.map(|(name, value)| (name.to_owned(), value.into())).collect();
    Value::Object(labels)
}

/// Converts a time in milliseconds since 1970 to the form of Alertmanager.
fn time(ms: u64) -> String {
    let seconds = i64::try_from(ms / 1000).unwrap_or(i64::MAX);
    utc(Timestamp { seconds, nanoseconds: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::findings::Finding;
    use crate::history::History;
    use crate::settings::MonitorSettings;
    use skep_cluster::problems::Severity;

    /// 2027-01-15T08:00:00Z.
    const NOW: u64 = 1_800_000_000_000;

    fn finding(rule: &'static str) -> Finding {
        Finding {
            rule,
            severity: Severity::Critical,
            object: "t7".into(),
            what: "target t7 is \"full\"".into(),
            remedy: "delete files".into(),
            cause: None,
        }
    }

    fn state() -> (tempfile::TempDir, MonitorState) {
        let directory = tempfile::tempdir().unwrap();
        let history = History::open(directory.path(), 1 << 30).unwrap();
        (directory, MonitorState::new(history, MonitorSettings::default().alerts))
    }

    /// Returns the alerts of a state, without links.
    fn of_state(state: &MonitorState, now_ms: u64) -> Vec<Value> {
        alerts(state, &PageLinks::default(), now_ms)
    }

    #[test]
    fn sent_alert_has_a_link_if_the_settings_name_the_page() {
        let (_directory, mut state) = state();
        for second in 0..10 {
            state.alerts.update(NOW + second * 1000, vec![finding("target-full")]);
        }
        let sent = alerts(&state, &PageLinks::new("http://m:7480/", None), NOW + 10_000);
        assert_eq!(sent[0]["generatorURL"], "http://m:7480/#/target/7");
    }

    #[test]
    fn sent_alert_expires_after_a_while_unless_it_is_repeated() {
        let (_directory, mut state) = state();
        assert!(of_state(&state, NOW).is_empty());
        for second in 0..10 {
            state.alerts.update(NOW + second * 1000, vec![finding("target-full")]);
        }
        let sent = of_state(&state, NOW + 10_000);
        let expected = json!([{
            "labels": {
                "alertname": "SkepAlert",
                "rule": "target-full",
                "severity": "critical",
                "object": "t7",
                "fault": "t7",
            },
            "annotations": { "summary": "target t7 is \"full\"", "description": "delete files" },
            "startsAt": "2027-01-15T08:00:00Z",
            "endsAt": "2027-01-15T08:04:10Z",
        }]);
        assert_eq!(Value::Array(sent), expected);
    }

    #[test]
    fn ended_alert_is_sent_for_a_while_unless_it_begins_again() {
        let (_directory, mut state) = state();
        for second in 0..10 {
            state.alerts.update(NOW + second * 1000, vec![finding("target-full")]);
        }
        state.alerts.update(NOW + 60_000, Vec::new());
        let ends = |state: &MonitorState, after_ms: u64| -> Vec<String> {
            let sent = of_state(state, NOW + after_ms);
            sent.iter().map(|it| it["endsAt"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(ends(&state, 61_000), ["2027-01-15T08:00:09Z"]);
        assert_eq!(ends(&state, 1_000_000), Vec::<String>::new());
        for second in 100..110 {
            state.alerts.update(NOW + second * 1000, vec![finding("target-full")]);
        }
        assert_eq!(ends(&state, 120_000), ["2027-01-15T08:06:00Z"]);
    }

    #[test]
    fn alert_with_its_former_severity_ends_at_alertmanager() {
        let (_directory, mut state) = state();
        for second in 0..30 {
            let severity = if second < 10 { Severity::Warning } else { Severity::Critical };
            let finding = Finding { severity, ..finding("target-full") };
            state.alerts.update(NOW + second * 1000, vec![finding]);
        }
        let sent = of_state(&state, NOW + 30_000);
        let found: Vec<_> =
            sent.iter().map(|it| (&it["labels"]["severity"], &it["endsAt"])).collect();
        let [critical, warning] = ["critical", "warning"].map(Value::from);
        let [later, change] = ["2027-01-15T08:04:30Z", "2027-01-15T08:00:15Z"].map(Value::from);
        assert_eq!(found, [(&critical, &later), (&warning, &change)]);
    }

    #[test]
    fn alerts_are_sent_after_each_change_and_each_minute() {
        let at = Duration::from_secs;
        let mut accepted = Accepted::default();
        assert!(accepted.is_due(0, at(5)));
        accepted.last = Some((3, at(5)));
        assert!(!accepted.is_due(3, at(64)));
        assert!(accepted.is_due(3, at(65)) && accepted.is_due(4, at(6)));
    }

    #[test]
    fn number_of_alerts_in_one_request_is_bounded() {
        let (_directory, mut state) = state();
        let all = || {
            let many = (0..MAX_SENT_ALERTS + 10)
                .map(|number| Finding { object: format!("t{number}"), ..finding("target-full") });
            many.collect::<Vec<_>>()
        };
        state.alerts.update(NOW, all());
        state.alerts.update(NOW + 10_000, all());
        assert_eq!(of_state(&state, NOW + 10_000).len(), MAX_SENT_ALERTS);
    }

    #[test]
    fn log_lines_about_alertmanagers_name_the_cluster() {
        let mut settings = MonitorSettings::default().alerts;
        settings.alertmanagers = vec!["http://a:9093".into()];
        let found = of_settings(&settings).unwrap();
        let line = found[0].line(Some("rack-2"), "");
        assert_eq!(line, "Alertmanager at a:9093 accepts alerts of cluster rack-2 again");
        let line = found[0].line(None, "no route");
        assert!(line.starts_with("cannot send alerts to Alertmanager at a:9093: no"), "{line}");
    }

    #[test]
    fn alertmanager_url_may_have_a_path_prefix() {
        let mut settings = MonitorSettings::default().alerts;
        settings.alertmanagers = vec!["http://a:9093".into(), "http://b:9093/prefix/".into()];
        let found = of_settings(&settings).unwrap();
        let paths: Vec<_> = found.iter().map(|it| it.url.path.as_str()).collect();
        assert_eq!(paths, ["/api/v2/alerts", "/prefix/api/v2/alerts"]);
    }
}
