//! Sends each alert to the program and to the webhook in the settings.
//!
//! The module owns a bounded queue of notifications, and one task that sends them. So a slow
//! receiver delays neither the collection rounds nor the web page. If a notification fails, the
//! error is logged, and the notification is not sent again.

use crate::alerts::Alert;
use crate::http_client::{HttpRequest, Url, send};
use crate::limits::{MAX_PENDING, SEND_PATIENCE};
use crate::settings::AlertSettings;
use skep_env::local::Notify;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::Write;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

/// Interval at which the monitor checks whether the notified program has ended.
const PAUSE: Duration = Duration::from_millis(50);

/// The queue of notifications.
#[derive(Debug, Default)]
pub(crate) struct Notifications {
    pending: RefCell<VecDeque<String>>,
    added: Notify,
}

impl Notifications {
    /// Adds a notification that an alert of a cluster begins or ends.
    pub(crate) fn add(&self, cluster: &str, alert: &Alert) {
        let state = if alert.ended_ms.is_some() { "ended" } else { "began" };
        match alert.ended_ms {
            None if alert.severity == "critical" => {
                tracing::error!("alert {}: {}; {}", alert.rule, alert.what, alert.remedy);
            }
            None => tracing::warn!("alert {}: {}; {}", alert.rule, alert.what, alert.remedy),
            Some(_) => tracing::info!("alert {} ended: {}", alert.rule, alert.what),
        }
        let text = serde_json::json!({ "state": state, "cluster": cluster, "alert": alert });
        let mut pending = self.pending.borrow_mut();
        if pending.len() >= MAX_PENDING {
            pending.pop_front();
            tracing::warn!(
                "a notification of an alert was dropped: too many notifications wait to be sent"
            );
        }
        pending.push_back(text.to_string());
        drop(pending);
        self.added.notify();
    }

    /// Sends notifications until the future is dropped.
    pub(crate) async fn run(self: Rc<Self>, settings: AlertSettings) {
        loop {
            let added = self.added.wait();
            let next = self.pending.borrow_mut().pop_front();
            let Some(text) = next else {
                added.await;
                continue;
            };
            deliver(&settings, &text).await;
        }
    }
}

async fn deliver(settings: &AlertSettings, text: &str) {
    if let Ok(url) = Url::parse(&settings.webhook) {
        let request = HttpRequest {
            method: "POST",
            url: &url,
            authorization: "",
            content_type: "application/json",
            headers: &[],
            body: text.as_bytes(),
        };
        match send(&request).await {
            Ok((200..=299, _)) => {}
            Ok((code, _)) => {
                tracing::warn!("cannot notify {}: the server replied {code}", settings.webhook);
            }
            Err(problem) => tracing::warn!("cannot notify {}: {problem}", settings.webhook),
        }
    }
    if let Some((program, arguments)) = settings.command.split_first()
        && let Err(problem) = run_program(program, arguments, text).await
    {
        tracing::warn!("cannot notify by the program {program}: {problem}");
    }
}

async fn run_program(program: &str, arguments: &[String], text: &str) -> Result<(), String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = skep_env::spawn_child(&mut command).map_err(|error| error.to_string())?;
    if let Some(mut input) = child.stdin.take() {
        // A notification fits into the buffer of a pipe, so the write does not wait for the
        // program. An error is ignored, because the program need not read its input.
        let _ = input.write_all(text.as_bytes());
    }
    let deadline = skep_env::now() + SEND_PATIENCE;
    loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(format!("the program ended with {status}")),
            None if skep_env::now() > deadline => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!(
                    "the program ran longer than {SEND_PATIENCE:?} and was killed"
                ));
            }
            None => skep_env::sleep(PAUSE).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::MonitorSettings;

    #[test]
    fn alert_program_gets_the_alert_and_its_failure_is_reported() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("alert");
        let script = format!("cat > {}", file.display());
        let result = skep_env::block_on(async move {
            let shell = |script: &str| ["-c".to_owned(), script.to_owned()];
            run_program("sh", &shell(&script), "{\"a\":1}").await.unwrap();
            let failed = run_program("sh", &shell("exit 3"), "x").await;
            let missing = run_program("/no/such/program", &[], "x").await;
            (failed, missing)
        });
        let (failed, missing) = result.unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "{\"a\":1}");
        assert!(failed.unwrap_err().contains("exit status: 3"));
        assert!(missing.is_err());
    }

    #[test]
    fn number_of_waiting_notifications_is_bounded() {
        let notifications = Notifications::default();
        let alert = Alert {
            rule: "target-slow",
            severity: "warning",
            object: "t7".into(),
            what: "<script>".into(),
            remedy: "wait".into(),
            since_ms: 5,
            ended_ms: None,
            consequences: Vec::new(),
        };
        for _ in 0..2 * MAX_PENDING {
            notifications.add("c", &alert);
        }
        let pending = notifications.pending.borrow();
        assert_eq!(pending.len(), MAX_PENDING);
        let value: serde_json::Value = serde_json::from_str(&pending[0]).unwrap();
        assert_eq!((&value["state"], &value["alert"]["object"]), (&"began".into(), &"t7".into()));
        let settings = MonitorSettings::default().alerts;
        assert!(settings.command.is_empty() && settings.webhook.is_empty());
    }
}
