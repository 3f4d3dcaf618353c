//! Sends a notification of each alert that begins or ends, or whose severity changes, to the
//! program and to the webhook in the settings.
//!
//! Each receiver has its own bounded queue and its own task. So a slow receiver delays neither the
//! other receiver nor the collection rounds nor the web page.
//!
//! - A notification that a webhook cannot accept is sent again after growing pauses, until it has
//!   waited for a quarter of an hour.
//! - A program is started only once for each notification, even if it fails. The monitor cannot
//!   detect which part of its work a failed program has done, so after a second start, the program
//!   could do this part twice.
//! - The log has one line when a receiver begins to fail, and one line when it accepts
//!   notifications again.
//!
//! [`crate::alertmanager`] sends alerts to Alertmanager.

use crate::alerts::Alert;
use crate::back_off::BackOff;
use crate::child_program::run_limited;
use crate::http_client::{Failure, HttpRequest, Url, post};
use crate::limits::{ALERT_PAUSE, MAX_NOTIFICATION_AGE, MAX_PENDING, SEND_PATIENCE};
use crate::settings::AlertSettings;
use rustix::fs::{MemfdFlags, memfd_create};
use skep_env::local::Notify;
use skep_types::{Error, ErrorCode, Result};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{Seek, Write};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

/// The queues of notifications, one for each receiver in the settings.
#[derive(Debug)]
pub(crate) struct Notifications {
    queues: Vec<Rc<Queue>>,
}

/// A program that gets the notifications.
#[derive(Debug)]
enum Receiver {
    /// An HTTP server, which gets each notification by POST.
    Webhook(Url),
    /// A program of this host, with its arguments. The program gets a notification on its standard
    /// input.
    Program(String, Vec<String>),
}

/// The notifications that wait for one receiver.
#[derive(Debug)]
pub(crate) struct Queue {
    receiver: Receiver,
    /// Each notification with the time at which it was added, the oldest first. A notification that
    /// is being sent is not in the list.
    pending: RefCell<VecDeque<(Duration, Rc<str>)>>,
    added: Notify,
    /// Number of notifications that were dropped since the last success.
    dropped: Cell<usize>,
    /// Whether the last attempt failed.
    is_failing: Cell<bool>,
}

impl Notifications {
    /// Creates the queues of the receivers in the settings.
    ///
    /// # Errors
    /// `Configuration` if the address of the webhook is invalid.
    pub(crate) fn of_settings(settings: &AlertSettings) -> Result<Self> {
        let mut receivers = Vec::new();
        if !settings.webhook.is_empty() {
            let url = Url::parse(&settings.webhook)
                .map_err(|problem| Error::new(ErrorCode::Configuration, problem))?;
            receivers.push(Receiver::Webhook(url));
        }
        if let Some((program, arguments)) = settings.command.split_first() {
            receivers.push(Receiver::Program(program.clone(), arguments.to_vec()));
        }
        Ok(Self { queues: receivers.into_iter().map(Queue::new).map(Rc::new).collect() })
    }

    /// Logs that an alert of a cluster begins, changes or ends, and adds a notification of the
    /// alert to each queue. `cluster` is the id of the cluster. `name` is the name of the cluster
    /// for the log, or `None` if the monitor watches only one cluster. `page` is the address of the
    /// page's view about the object of the alert.
    pub(crate) fn add(
        &self,
        cluster: &str,
        name: Option<&str>,
        alert: &Alert,
        page: Option<String>,
    ) {
        let state = match (alert.ended_ms, alert.former_severity) {
            (Some(_), _) => "ended",
            (None, Some(_)) => "changed",
            (None, None) => "began",
        };
        let line = log_line(alert, name);
        match alert.ended_ms {
            None if alert.severity == "critical" => tracing::error!("{line}"),
            None => tracing::warn!("{line}"),
            Some(_) => tracing::info!("{line}"),
        }
        let mut value = serde_json::json!({ "state": state, "cluster": cluster, "alert": alert });
        if let Some(page) = page {
            value["page"] = page.into();
        }
        let text: Rc<str> = value.to_string().into();
        self.queues.iter().for_each(|queue| queue.add(&text));
    }

    /// Returns the queues. The caller runs each of them as a task.
    pub(crate) fn queues(&self) -> impl Iterator<Item = Rc<Queue>> + '_ {
        self.queues.iter().map(Rc::clone)
    }
}

/// Returns the line of the log about an alert that begins, changes or ends. `cluster` is the name
/// of its cluster, if the monitor watches several.
fn log_line(alert: &Alert, cluster: Option<&str>) -> String {
    let of = cluster.map_or_else(String::new, |name| format!(" of cluster {name}"));
    let Alert { rule, severity, what, remedy, .. } = alert;
    match (alert.ended_ms, alert.former_severity) {
        (Some(_), _) => format!("alert {rule}{of} ended: {what}"),
        (None, Some(former)) => {
            format!("alert {rule}{of} is {severity} now, and was {former}: {what}; {remedy}")
        }
        (None, None) => format!("alert {rule}{of}: {what}; {remedy}"),
    }
}

impl Queue {
    fn new(receiver: Receiver) -> Self {
        Self {
            receiver,
            pending: RefCell::default(),
            added: Notify::default(),
            dropped: Cell::new(0),
            is_failing: Cell::new(false),
        }
    }

    fn add(&self, text: &Rc<str>) {
        let mut pending = self.pending.borrow_mut();
        if pending.len() >= MAX_PENDING {
            pending.pop_front();
            self.dropped.set(self.dropped.get() + 1);
        }
        pending.push_back((skep_env::now(), Rc::clone(text)));
        drop(pending);
        self.added.notify();
    }

    /// Sends notifications until the future is dropped.
    pub(crate) async fn run(self: Rc<Self>) {
        let mut back_off = BackOff::default();
        loop {
            let added = self.added.wait();
            let next = self.pending.borrow_mut().pop_front();
            let Some((since, text)) = next else {
                added.await;
                continue;
            };
            self.deliver((since, &*text), &mut back_off).await;
        }
    }

    /// Sends one notification, or drops it after its last attempt. `since` is the time at which it
    /// was added. `back_off` counts the failures since the last success, also of earlier
    /// notifications.
    async fn deliver(&self, (since, text): (Duration, &str), back_off: &mut BackOff) {
        // Retry: if a webhook is busy or cannot be reached, the monitor sends the notification
        // again until its age is `MAX_NOTIFICATION_AGE`.
        loop {
            let pause = back_off.remaining(skep_env::now());
            if !pause.is_zero() {
                skep_env::sleep(pause).await;
            }
            match self.attempt(text).await {
                Ok(()) => {
                    back_off.succeeded();
                    self.note_success();
                    return;
                }
                Err(Failure::Refused(why)) => {
                    self.note_failure(&why);
                    break;
                }
                Err(Failure::Later(why)) => {
                    let now = skep_env::now();
                    back_off.failed(now, ALERT_PAUSE);
                    self.note_failure(&why);
                    if is_expired(since, now) {
                        break;
                    }
                }
            }
        }
        self.dropped.set(self.dropped.get() + 1);
    }

    async fn attempt(&self, text: &str) -> Result<(), Failure> {
        match &self.receiver {
            Receiver::Webhook(url) => post(&HttpRequest::of_json(url, text)).await,
            Receiver::Program(program, arguments) => {
                let running = run_program(program, arguments, text, SEND_PATIENCE);
                running.await.map_err(Failure::Refused)
            }
        }
    }

    /// Returns the name of the receiver for log lines. Omits the path of a webhook, because the
    /// path may be a secret.
    fn name(&self) -> String {
        match &self.receiver {
            Receiver::Webhook(url) => format!("the webhook at {}", url.address),
            Receiver::Program(program, _) => format!("the program {program}"),
        }
    }

    fn note_failure(&self, why: &str) {
        if !self.is_failing.replace(true) {
            tracing::warn!(
                "cannot notify {}: {why}; the monitor logs no further failures until a \
                 notification is accepted again",
                self.name()
            );
        }
    }

    fn note_success(&self) {
        let dropped = self.dropped.take();
        let had_failed = self.is_failing.replace(false);
        match dropped {
            0 if !had_failed => {}
            0 => tracing::info!("{} accepts notifications again", self.name()),
            _ => tracing::warn!(
                "{} accepts notifications again; {dropped} notifications of alerts were dropped",
                self.name()
            ),
        }
    }
}

/// Whether a notification that was added at `since` is too old at `now` to be sent again.
fn is_expired(since: Duration, now: Duration) -> bool {
    now.saturating_sub(since) >= MAX_NOTIFICATION_AGE
}

/// Runs a program with the line `text` on its standard input. After `patience`, kills the program
/// and the processes that it has started.
async fn run_program(
    program: &str,
    arguments: &[String],
    text: &str,
    patience: Duration,
) -> Result<(), String> {
    let input = input_file(text).map_err(|error| format!("no memory for its input: {error}"))?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(input).stdout(Stdio::null());
    match run_limited(&mut command, patience).await? {
        status if status.success() => Ok(()),
        status => Err(format!("the program ended with {status}")),
    }
}

/// Returns a file in memory with the line `text`, for the standard input of a program. The line
/// ends with a line break, because `while read line` of a shell ignores a line without a line
/// break. With the line break, a program can also append the line to a file. A pipe may have less
/// space than a long notification, so a program that does not read its input would block the thread
/// of the monitor.
fn input_file(text: &str) -> std::io::Result<File> {
    let mut file = File::from(memfd_create("skep-notification", MemfdFlags::CLOEXEC)?);
    file.write_all(format!("{text}\n").as_bytes())?;
    file.rewind()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http_client::tests::answer;
    use crate::settings::MonitorSettings;
    use serde_json::Value;
    use skep_env::TcpListener;

    /// Interval at which a test checks whether a process has ended.
    const PAUSE: Duration = Duration::from_millis(50);

    fn alert() -> Alert {
        Alert {
            rule: "target-slow",
            severity: "warning",
            former_severity: None,
            object: "t7".into(),
            what: "<script>".into(),
            remedy: "wait".into(),
            since_ms: 5,
            ended_ms: None,
            consequences: Vec::new(),
        }
    }

    #[test]
    fn log_names_the_cluster_if_there_are_several() {
        let (begun, ended) = (alert(), Alert { ended_ms: Some(9), ..alert() });
        assert_eq!(log_line(&begun, None), "alert target-slow: <script>; wait");
        let of_second = "alert target-slow of cluster archive: <script>; wait";
        assert_eq!(log_line(&begun, Some("archive")), of_second);
        assert_eq!(log_line(&ended, None), "alert target-slow ended: <script>");
        let of_second = "alert target-slow of cluster archive ended: <script>";
        assert_eq!(log_line(&ended, Some("archive")), of_second);
        let changed = Alert { former_severity: Some("critical"), ..alert() };
        let line = "alert target-slow is warning now, and was critical: <script>; wait";
        assert_eq!(log_line(&changed, None), line);
    }

    #[test]
    fn notification_of_a_new_severity_names_the_old_severity() {
        let mut settings = MonitorSettings::default().alerts;
        settings.command = vec!["mail".into()];
        let notifications = Notifications::of_settings(&settings).unwrap();
        let changed = Alert { former_severity: Some("critical"), ..alert() };
        notifications.add("c", None, &changed, None);
        notifications.add("c", None, &alert(), None);
        let queue = notifications.queues().next().unwrap();
        let sent = queue.pending.borrow();
        let sent = sent.iter().map(|(_, text)| serde_json::from_str::<Value>(text).unwrap());
        let sent: Vec<Value> = sent.collect();
        assert_eq!((&sent[0]["state"], &sent[1]["state"]), (&"changed".into(), &"began".into()));
        assert_eq!(sent[0]["alert"]["former_severity"], "critical");
        assert_eq!(sent[1]["alert"].get("former_severity"), None);
    }

    fn shell(script: &str) -> [String; 2] {
        ["-c".to_owned(), script.to_owned()]
    }

    #[test]
    fn alert_program_gets_the_alert_and_its_failure_is_reported() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("alert");
        let script = format!("cat > {}", file.display());
        let result = skep_env::block_on(async move {
            run_program("sh", &shell(&script), "{\"a\":1}", SEND_PATIENCE).await.unwrap();
            let failed = run_program("sh", &shell("exit 3"), "x", SEND_PATIENCE).await;
            let missing = run_program("/no/such/program", &[], "x", SEND_PATIENCE).await;
            (failed, missing)
        });
        let (failed, missing) = result.unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "{\"a\":1}\n");
        assert!(failed.unwrap_err().contains("exit status: 3"));
        assert!(missing.is_err());
    }

    #[test]
    fn long_notification_blocks_no_thread_and_arrives_complete() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("length");
        let script = format!("wc -c > {}", file.display());
        // A pipe has space for 64 KiB.
        let text = "x".repeat(1 << 20);
        skep_env::block_on(async move {
            run_program("true", &[], &text, SEND_PATIENCE).await.unwrap();
            run_program("sh", &shell(&script), &text, SEND_PATIENCE).await.unwrap();
        })
        .unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap().trim(), "1048577");
    }

    /// Whether a process runs. A process that its parent has not awaited has the state `Z`.
    fn runs(pid: u32) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    }

    #[test]
    fn program_that_hangs_is_killed_with_its_children() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pid");
        let script =
            format!("sleep 1000 & echo $! > {0}.new; mv {0}.new {0}; wait", file.display());
        let of_child = file.clone();
        let is_over = skep_env::block_on(async move {
            // On a busy host, the program may be killed before it has started its child. The next
            // attempt then gives the program more time.
            for attempt in 0..10 {
                let patience = Duration::from_millis(200 << attempt);
                let result = run_program("sh", &shell(&script), "x", patience).await;
                assert!(result.unwrap_err().contains("was killed"));
                if of_child.exists() {
                    break;
                }
            }
            let pid: u32 = std::fs::read_to_string(&of_child).unwrap().trim().parse().unwrap();
            let ends = async {
                while runs(pid) {
                    skep_env::sleep(PAUSE).await;
                }
            };
            skep_env::timeout(Duration::from_secs(60), ends).await.is_some()
        });
        assert!(is_over.unwrap(), "the child of the program has been killed");
    }

    #[test]
    fn number_of_waiting_notifications_is_bounded() {
        let mut settings = MonitorSettings::default().alerts;
        assert_eq!(Notifications::of_settings(&settings).unwrap().queues().count(), 0);
        settings.webhook = "http://127.0.0.1:1/a".into();
        settings.command = vec!["mail".into(), "ada".into()];
        let notifications = Notifications::of_settings(&settings).unwrap();
        for _ in 0..2 * MAX_PENDING {
            notifications.add("c", None, &alert(), Some("http://m/#/target/7".into()));
        }
        assert_eq!(notifications.queues().count(), 2);
        for queue in notifications.queues() {
            let pending = queue.pending.borrow();
            assert_eq!((pending.len(), queue.dropped.get()), (MAX_PENDING, MAX_PENDING));
            let value: serde_json::Value = serde_json::from_str(&pending[0].1).unwrap();
            assert_eq!(
                (&value["state"], &value["alert"]["object"]),
                (&"began".into(), &"t7".into())
            );
            assert_eq!(value["page"], "http://m/#/target/7");
        }
        settings.webhook = "gopher://a".into();
        let error = Notifications::of_settings(&settings).unwrap_err();
        assert_eq!(error.code(), ErrorCode::Configuration);
    }

    #[test]
    fn notification_survives_a_restart_of_the_host_of_its_webhook() {
        let at = |seconds: u64| Duration::from_secs(1_000 + seconds);
        let mut back_off = BackOff::default();
        let mut now = at(0);
        let mut attempts = 0;
        while !is_expired(at(0), now) {
            back_off.failed(now, ALERT_PAUSE);
            now += back_off.remaining(now);
            attempts += 1;
        }
        assert!((15..30).contains(&attempts), "{attempts}");
        assert!(now >= at(900) && now < at(1_000), "{now:?}");
    }

    #[test]
    fn webhook_is_retried_unless_it_refuses_the_notification() {
        let sent = skep_env::block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_address().unwrap().to_string();
            let server = skep_env::spawn(async move {
                let mut got = Vec::new();
                for status in ["503 Busy", "204 No Content", "400 Bad Request", "200 OK"] {
                    got.push(String::from_utf8(answer(&listener, status).await).unwrap());
                }
                got
            });
            let queue =
                Queue::new(Receiver::Webhook(Url::parse(&format!("http://{address}/")).unwrap()));
            let mut back_off = BackOff::default();
            queue.deliver((skep_env::now(), "first"), &mut back_off).await;
            assert!(!queue.is_failing.get() && queue.dropped.get() == 0);
            queue.deliver((skep_env::now(), "second"), &mut back_off).await;
            assert!(queue.is_failing.get() && queue.dropped.get() == 1);
            queue.deliver((skep_env::now(), "third"), &mut back_off).await;
            assert!(!queue.is_failing.get() && queue.dropped.get() == 0);
            server.await
        });
        assert_eq!(sent.unwrap(), ["first", "first", "second", "third"]);
    }
}
