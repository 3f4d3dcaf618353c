//! A running `skep health check --watch`, and the changes that the command has printed. A change is
//! the beginning or the end of a problem.

use crate::cluster::{self, Cluster};
use crate::schema;
use crate::wait::{PATIENCE, wait_for};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

/// A running `skep health check --watch`. Dropping this value kills the command.
#[derive(Debug)]
pub struct HealthWatch {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl HealthWatch {
    /// Starts the command for a cluster, with further options.
    pub fn start(cluster: &Cluster, options: &[&str]) -> Self {
        let mut command = Command::new(cluster::program());
        command.args(["health", "check", "--watch", "--output", "ndjson"]).args(options);
        command.arg("--cluster").arg(cluster.data()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("skep can be started");
        let printed = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let seen = Arc::clone(&lines);
        std::thread::spawn(move || {
            for line in printed.map_while(Result::ok) {
                seen.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
        });
        Self { child, lines }
    }

    /// Returns the changes that the command has printed, in their order.
    pub fn changes(&self) -> Vec<Value> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let changes = lines.iter().map(|line| {
            let change = serde_json::from_str(line).expect("JSON");
            schema::check("health-watch", &change);
            change
        });
        changes.collect()
    }

    /// Waits until the command has printed that a problem whose text contains `words` begins or
    /// ends. `change` is `begins` or `ends`.
    pub fn wait_for(&self, change: &str, words: &str) {
        wait_for(&format!("{words}: {change}"), PATIENCE, || {
            let is_wanted = |it: &Value| {
                it["change"] == change && it["what"].as_str().is_some_and(|it| it.contains(words))
            };
            self.changes().iter().any(is_wanted).then_some(())
        });
    }
}

impl Drop for HealthWatch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
