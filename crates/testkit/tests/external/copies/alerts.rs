//! A fault arrives in a real Alertmanager as one alert, and the end of the fault resolves the
//! alert. A receiver behind Alertmanager gets one notification of the start and one notification of
//! the end.

use super::{PATIENCE, Running, ask};
use crate::prometheus::Prometheus;
use crate::text;
use serde_json::Value;
use skep_testkit::http_request::HttpRequest;
use skep_testkit::process::Suspended;
use skep_testkit::program::run;
use skep_testkit::view::Typed;
use skep_testkit::{Cluster, Scratch, Shape, files, wait_for};
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};

/// The alert about the service that the test suspends.
const RULE: &str = "service-unreachable";
/// An alert that follows from the same fault. The Alertmanager rules in this repository suppress
/// this alert.
const CONSEQUENCE: &str = "target-offline";

/// A notification receiver of Alertmanager: an HTTP server of the test.
struct Notified {
    address: String,
    requests: Receiver<Value>,
    /// All alerts in the requests, in their order: the rule or the name of the alert, and whether
    /// the alert has ended.
    alerts: Vec<(String, bool)>,
}

impl Notified {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address").to_string();
        let (sender, requests) = channel();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let Some(request) = HttpRequest::read(&stream, PATIENCE) else { continue };
                let body = serde_json::from_slice(&request.body).expect("JSON");
                let reply = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
                // Alertmanager repeats a request without a reply, so count only requests with a
                // reply.
                let is_replied = stream.write_all(reply).is_ok();
                if is_replied && sender.send(body).is_err() {
                    return;
                }
            }
        });
        Self { address, requests, alerts: Vec::new() }
    }

    /// Returns all alerts so far.
    fn alerts(&mut self) -> &[(String, bool)] {
        for request in self.requests.try_iter() {
            for alert in request["alerts"].list() {
                let labels = &alert["labels"];
                let rule = labels["rule"].as_str().unwrap_or_else(|| labels["alertname"].text());
                self.alerts.push((rule.to_owned(), alert["status"] == "resolved"));
            }
        }
        &self.alerts
    }

    /// Waits for a notification that the alert of the test has begun, or (if `is_ended`) that this
    /// alert has ended.
    fn wait_for(&mut self, is_ended: bool) {
        let what = format!("a notification about {RULE}, ended: {is_ended}");
        wait_for(&what, PATIENCE, || {
            self.alerts().contains(&(RULE.to_owned(), is_ended)).then_some(())
        });
    }
}

fn rules_of_repository() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let top = here.ancestors().nth(2).expect("two directories below the top");
    top.join("dashboards/prometheus/inhibit-rules.yml")
}

/// A running Alertmanager, with the rules of the repository.
struct Alertmanager {
    _program: Running,
    address: String,
}

impl Alertmanager {
    /// `receiver` is the address that gets the notifications.
    fn start(directory: &Path, receiver: &str) -> Self {
        let settings = directory.join("alertmanager.yml");
        // With `group_wait`, Alertmanager sends its first notification after two seconds. The alert
        // and the alerts that follow from the same fault arrive earlier.
        let text_of_settings = format!(
            "route:\n  receiver: test\n  group_by: ['...']\n  group_wait: 2s\n  \
             group_interval: 1s\n  repeat_interval: 1h\n\
             receivers:\n  - name: test\n    webhook_configs:\n      \
             - url: http://{receiver}/\n        send_resolved: true\n\n{}",
            files::read_to_string(rules_of_repository())
        );
        files::write(&settings, text_of_settings);
        run("amtool", ["check-config", text(&settings)]);
        let mut command = Command::new("prometheus-alertmanager");
        command.arg(format!("--config.file={}", text(&settings)));
        command.arg(format!("--storage.path={}", text(&directory.join("alertmanager"))));
        command.args(["--web.listen-address=127.0.0.1:0", "--cluster.listen-address="]);
        let (program, address) =
            Running::listening(&mut command, "msg=\"Listening on\"", " address=");
        Self { _program: program, address }
    }

    /// Returns the alerts with the rule `rule` that have not ended.
    fn alerts(&self, rule: &str) -> Vec<Value> {
        let reply = ask(&self.address, "GET", "/api/v2/alerts");
        let (status, all) = reply.expect("Alertmanager replies");
        assert_eq!(status, 200, "{all}");
        all.list().iter().filter(|it| it["labels"]["rule"] == rule).cloned().collect()
    }
}

/// Starts Prometheus with the rules of the repository. Prometheus sends the alerts of a monitor to
/// Alertmanager.
fn start_prometheus(directory: &Path, monitor: &str, alertmanager: &str) -> Prometheus {
    let alerting = format!(
        "\nalerting:\n  alertmanagers:\n    - static_configs:\n        \
         - targets: [\"{alertmanager}\"]\n"
    );
    let prometheus = Prometheus::start_with(directory, monitor, &[], &alerting);
    wait_for("Prometheus has metrics of the services", PATIENCE, || {
        (prometheus.results("up{job=\"skep\"} == 1") >= 5).then_some(())
    });
    prometheus
}

/// The alerts of the monitor reach Alertmanager by way of Prometheus.
pub(crate) fn alertmanager_gets_alerts_and_their_end_from_prometheus(_: &()) {
    let cluster = Cluster::start(Shape { monitor: true, ..Shape::default() });
    let monitor = files::read_to_string(cluster.data().join("monitor/address"));
    let scratch = Scratch::new();
    let mut notified = Notified::start();
    let alertmanager = Alertmanager::start(scratch.path(), &notified.address);
    let prometheus = start_prometheus(scratch.path(), monitor.trim(), &alertmanager.address);
    check(&cluster, &alertmanager, &mut notified, || {
        wait_for("Alertmanager suppresses the consequence", PATIENCE, || {
            let alerts = alertmanager.alerts(CONSEQUENCE);
            let is_left_out = |alert: &Value| !alert["status"]["inhibitedBy"].list().is_empty();
            (!alerts.is_empty() && alerts.iter().all(is_left_out)).then_some(())
        });
    });
    drop((prometheus, alertmanager));
    cluster.stop();
}

/// The monitor itself sends its alerts to Alertmanager.
pub(crate) fn alertmanager_gets_alerts_and_their_end_from_the_monitor(_: &()) {
    let scratch = Scratch::new();
    let mut notified = Notified::start();
    let alertmanager = Alertmanager::start(scratch.path(), &notified.address);
    let setting = format!("monitor:alerts.alertmanagers=http://{}", alertmanager.address);
    let more = vec!["--set".into(), setting];
    let cluster = Cluster::start(Shape { monitor: true, more, ..Shape::default() });
    let monitor = files::read_to_string(cluster.data().join("monitor/address"));
    let servers = ["management", "metadata", "storage"].into_iter();
    let servers: usize = servers.map(|kind| cluster.nodes(kind).len()).sum();
    wait_for("the monitor has seen all servers", PATIENCE, || {
        let (_, live) = ask(monitor.trim(), "GET", "/api/live")?;
        (live["services"].as_array()?.len() == servers).then_some(())
    });
    check(&cluster, &alertmanager, &mut notified, || {
        assert_eq!(alertmanager.alerts(CONSEQUENCE), Vec::<Value>::new(), "one fault, one alert");
    });
    drop(alertmanager);
    cluster.stop();
}

/// Suspends a service until its alert has reached Alertmanager and the receiver. After that,
/// resumes the service, and waits until the alert has ended at Alertmanager and at the receiver.
/// Calls `during` while the alert is active.
fn check(
    cluster: &Cluster,
    alertmanager: &Alertmanager,
    notified: &mut Notified,
    during: impl FnOnce(),
) {
    assert_eq!(alertmanager.alerts(RULE), Vec::<Value>::new(), "a healthy cluster");
    let suspended = Suspended::of(vec![cluster.processes("storage").remove(0)]);
    let alert = wait_for("the alert is in Alertmanager", PATIENCE, || {
        alertmanager.alerts(RULE).into_iter().find(|it| it["status"]["state"] == "active")
    });
    assert_eq!(alert["labels"]["alertname"], "SkepAlert");
    assert_eq!(alert["labels"]["severity"], "critical");
    assert!(alert["labels"]["skep_name"].text().starts_with("storage-"), "{alert}");
    assert!(!alert["annotations"]["summary"].text().is_empty(), "{alert}");
    during();
    notified.wait_for(false);
    drop(suspended);
    wait_for("the alert has ended in Alertmanager", PATIENCE, || {
        alertmanager.alerts(RULE).is_empty().then_some(())
    });
    notified.wait_for(true);
    let all = notified.alerts();
    let first = all.iter().find(|(rule, _)| rule == RULE);
    assert!(
        first.is_some_and(|(_, is_ended)| !is_ended),
        "the first notification is about the start: {all:?}"
    );
    assert!(all.iter().all(|(rule, _)| rule != CONSEQUENCE), "one fault causes one alert: {all:?}");
}
