//! The alerts that have ended, in a file of the history, so that a restart of the monitor does not
//! lose them.
//!
//! Each line of the file is an alert as JSON. If the file becomes too long, the log replaces the
//! file by a shorter file with the newest alerts. If the file cannot be written, the alerts are in
//! memory only.
//!
//! Another file has the current alerts, so that these alerts do not begin again after a restart.
//! The monitor then also reports the end of an alert that ended during the restart.

use crate::alerts::{Alert, Consequence};
use crate::limits::{KEPT_ALERTS, MAX_ALERT_LOG_BYTES, MAX_CONSEQUENCES, MAX_SENT_ALERTS};
use serde_json::{Value, json};
use skep_cluster::problems::{Severity, severity_word};
use std::collections::{BTreeSet, VecDeque};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Name of the file in the directory of the history.
const FILE: &str = "alerts.ndjson";
/// Name of the file with the current alerts.
const CURRENT_FILE: &str = "alerts-current.json";

/// The alerts that have ended.
#[derive(Debug, Default)]
pub(crate) struct AlertLog {
    /// `None` means that the alerts are in memory only.
    path: Option<PathBuf>,
    /// The newest alerts, the newest first. At most [`KEPT_ALERTS`].
    newest: VecDeque<Value>,
    /// Length of the file in bytes.
    bytes: u64,
    /// Whether the last write failed.
    is_failing: bool,
}

impl AlertLog {
    /// Reads the alerts in the directory of a history. Skips lines that are damaged.
    pub(crate) fn open(directory: &Path) -> Self {
        let path = directory.join(FILE);
        let text = fs::read(&path).unwrap_or_default();
        let lines = text.split(|byte| *byte == b'\n').rev();
        let alerts = lines.filter_map(|line| serde_json::from_slice(line).ok());
        let newest = alerts.filter(Value::is_object).take(KEPT_ALERTS).collect();
        let bytes = text.len() as u64;
        let mut log = Self { path: Some(path), newest, bytes, is_failing: false };
        // After a crash, the last line may be incomplete, and the next alert must not continue this
        // line.
        if text.last().is_some_and(|byte| *byte != b'\n') {
            log.note(|log| log.rewrite());
        }
        log
    }

    /// Returns the newest alerts that have ended, the newest first.
    pub(crate) fn newest(&self) -> &VecDeque<Value> {
        &self.newest
    }

    /// Returns the alerts that were current when an earlier process of the monitor ended. Skips
    /// alerts and consequences that are damaged.
    pub(crate) fn current(&self) -> Vec<Alert> {
        let file = self.path.as_ref().map(|path| path.with_file_name(CURRENT_FILE));
        let text = file.and_then(|file| fs::read(file).ok()).unwrap_or_default();
        let alerts: Vec<Value> = serde_json::from_slice(&text).unwrap_or_default();
        let mut rules = Rules::default();
        let alerts = alerts.iter().filter_map(|value| alert_of(value, &mut rules));
        alerts.take(MAX_SENT_ALERTS).collect()
    }

    /// Writes the current alerts to a file, at most [`MAX_SENT_ALERTS`].
    pub(crate) fn keep_current(&mut self, alerts: &[&Alert]) {
        let text = json!(&alerts[..alerts.len().min(MAX_SENT_ALERTS)]).to_string();
        self.note(|log| {
            let Some(path) = &log.path else { return Ok(()) };
            replace(&path.with_file_name(CURRENT_FILE), &text)
        });
    }

    /// Adds an alert that has ended.
    pub(crate) fn add(&mut self, alert: &Alert) {
        let value = json!(alert);
        let line = format!("{value}\n");
        self.newest.push_front(value);
        self.newest.truncate(KEPT_ALERTS);
        let is_full = self.bytes + line.len() as u64 > MAX_ALERT_LOG_BYTES;
        self.note(|log| if is_full { log.rewrite() } else { log.append(&line) });
    }

    fn append(&mut self, line: &str) -> io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let mut file = OpenOptions::new().create(true).append(true).open(path)?;
        if let Err(error) = file.write_all(line.as_bytes()) {
            // The next line must not continue an incomplete line.
            let _ = file.set_len(self.bytes);
            return Err(error);
        }
        self.bytes += line.len() as u64;
        Ok(())
    }

    /// Replaces the file by a file with the newest alerts, at most half of the maximum length.
    fn rewrite(&mut self) -> io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let mut lines: Vec<String> = Vec::new();
        let mut bytes = 0;
        for alert in &self.newest {
            let line = format!("{alert}\n");
            bytes += line.len() as u64;
            if bytes > MAX_ALERT_LOG_BYTES / 2 {
                break;
            }
            lines.push(line);
        }
        let text: String = lines.into_iter().rev().collect();
        replace(path, &text)?;
        self.bytes = text.len() as u64;
        Ok(())
    }

    /// Writes to the file, and logs the first of several failures.
    fn note(&mut self, write: impl FnOnce(&mut Self) -> io::Result<()>) {
        let result = write(self);
        let had_failed = std::mem::replace(&mut self.is_failing, result.is_err());
        if let (Err(error), false, Some(path)) = (result, had_failed, &self.path) {
            tracing::warn!(
                "cannot write the alerts to {}: {error}; a restart of the monitor would lose these \
                 alerts; free up space on the disk of the monitor's directory",
                path.display()
            );
        }
    }
}

/// Replaces a file by a file with the content `text`.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let temporary = path.with_extension("new");
    fs::write(&temporary, text)?;
    fs::rename(&temporary, path)
}

/// The names of rules in a file. In the other parts of the program, the names of rules are
/// constants. So each name that was read from a file stays in memory until the process ends.
#[derive(Debug, Default)]
struct Rules(BTreeSet<&'static str>);

impl Rules {
    fn name(&mut self, text: &str) -> &'static str {
        if let Some(known) = self.0.get(text).copied() {
            return known;
        }
        let name: &'static str = text.to_owned().leak();
        self.0.insert(name);
        name
    }
}

/// Returns a current alert from its form in the file. `None` means that this form is damaged.
fn alert_of(value: &Value, rules: &mut Rules) -> Option<Alert> {
    let Consequence { rule, severity, object, what, since_ms, .. } = consequence_of(value, rules)?;
    let consequences = value["consequences"].as_array().into_iter().flatten();
    Some(Alert {
        rule,
        severity,
        former_severity: None,
        object,
        what,
        remedy: value["remedy"].as_str()?.to_owned(),
        since_ms,
        ended_ms: None,
        consequences: consequences
            .filter_map(|value| consequence_of(value, rules))
            .take(MAX_CONSEQUENCES)
            .collect(),
    })
}

/// Returns a consequence of an alert from its form in the file. `None` means that this form is
/// damaged. An alert has the fields of a consequence too.
fn consequence_of(value: &Value, rules: &mut Rules) -> Option<Consequence> {
    let text = |name: &str| value[name].as_str();
    let severity = match text("severity")? {
        "critical" => Severity::Critical,
        _ => Severity::Warning,
    };
    Some(Consequence {
        rule: rules.name(text("rule")?),
        severity: severity_word(severity),
        object: text("object")?.to_owned(),
        what: text("what")?.to_owned(),
        since_ms: value["since_ms"].as_u64()?,
        ended_ms: value["ended_ms"].as_u64(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alert(number: u64, text_bytes: usize) -> Alert {
        Alert {
            rule: "target-slow",
            severity: "warning",
            former_severity: None,
            object: format!("t{number}"),
            what: "x".repeat(text_bytes),
            remedy: "wait".into(),
            since_ms: number,
            ended_ms: Some(number + 5),
            consequences: Vec::new(),
        }
    }

    fn objects(log: &AlertLog) -> Vec<&str> {
        log.newest().iter().map(|it| it["object"].as_str().unwrap()).collect()
    }

    #[test]
    fn ended_alerts_survive_a_restart_of_the_monitor() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = AlertLog::open(directory.path());
        (1..=3).for_each(|number| log.add(&alert(number, 5)));
        let mut log = AlertLog::open(directory.path());
        assert_eq!(objects(&log), ["t3", "t2", "t1"]);
        assert_eq!(log.newest()[0], json!(alert(3, 5)));
        log.add(&alert(4, 5));
        assert_eq!(objects(&AlertLog::open(directory.path())), ["t4", "t3", "t2", "t1"]);
    }

    #[test]
    fn current_alerts_survive_a_restart_of_the_monitor() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = AlertLog::open(directory.path());
        assert_eq!(log.current(), []);
        let mut alerts = [1, 2].map(|number| Alert { ended_ms: None, ..alert(number, 5) });
        alerts[1].consequences = [None, Some(9)]
            .map(|ended_ms| Consequence {
                rule: "target-offline",
                severity: "critical",
                object: "t8".into(),
                what: "t8 is offline".into(),
                since_ms: 7,
                ended_ms,
            })
            .into();
        log.keep_current(&alerts.each_ref());
        assert_eq!(AlertLog::open(directory.path()).current(), alerts);
        log.keep_current(&[]);
        assert_eq!(AlertLog::open(directory.path()).current(), []);
        let damaged = json!([{ "rule": "target-slow" }, 7, alerts[0]]).to_string();
        fs::write(directory.path().join(CURRENT_FILE), &damaged).unwrap();
        assert_eq!(log.current(), &alerts[..1]);
        fs::write(directory.path().join(CURRENT_FILE), &damaged[1..]).unwrap();
        assert_eq!(log.current(), []);
        assert_eq!(AlertLog::default().current(), []);
    }

    #[test]
    fn incomplete_last_line_damages_no_other_alert() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = AlertLog::open(directory.path());
        (1..=3).for_each(|number| log.add(&alert(number, 5)));
        let path = directory.path().join(FILE);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() - 10]).unwrap();
        let mut log = AlertLog::open(directory.path());
        assert_eq!(objects(&log), ["t2", "t1"]);
        log.add(&alert(4, 5));
        assert_eq!(objects(&AlertLog::open(directory.path())), ["t4", "t2", "t1"]);
    }

    #[test]
    fn file_of_ended_alerts_has_a_limited_length() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = AlertLog::open(directory.path());
        let text_bytes = 64 << 10;
        let count = 3 * MAX_ALERT_LOG_BYTES / text_bytes as u64;
        for number in 0..count {
            log.add(&alert(number, text_bytes));
            let len = fs::metadata(directory.path().join(FILE)).unwrap().len();
            assert!(len <= MAX_ALERT_LOG_BYTES, "{len}");
        }
        let newest = format!("t{}", count - 1);
        assert_eq!(objects(&AlertLog::open(directory.path()))[0], newest);
        let many = KEPT_ALERTS as u64 + 10;
        (0..many).for_each(|number| log.add(&alert(number, 5)));
        assert_eq!(log.newest().len(), KEPT_ALERTS);
    }

    #[test]
    fn alerts_stay_in_memory_if_the_file_cannot_be_written() {
        let mut log = AlertLog::open(Path::new("/proc/no/such/directory"));
        (1..=2).for_each(|number| log.add(&alert(number, 5)));
        assert_eq!(objects(&log), ["t2", "t1"]);
        assert!(log.is_failing);
    }
}
