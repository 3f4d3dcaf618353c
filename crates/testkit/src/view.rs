//! Typed views of the output of `skep --output json`.
//!
//! This module converts that output to the types that tests expect. If a value has a different
//! type, the conversion panics with a message that shows the value. [`crate::schema`] checks the
//! output against its schemas.

use crate::Cluster;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

/// Health rules whose findings depend on the free disk space and the memory of the test host, and
/// not on the cluster. Other programs on this host can cause such a finding at any time, so tests
/// that expect certain findings ignore these rules.
pub const RULES_OF_THE_HOST: [&str; 2] = ["target-low", "memory-pressure"];

/// Reads a JSON value as the type that the test expects.
///
/// # Panics
/// Each method panics if the value has a different type. The message shows the value.
pub trait Typed {
    /// Returns the elements of an array.
    fn list(&self) -> &[Value];
    /// Returns a string.
    fn text(&self) -> &str;
    /// Returns a non-negative integer.
    fn number(&self) -> u64;
    /// Returns a number as a float.
    fn float(&self) -> f64;
}

#[track_caller]
fn typed<'a, T>(value: &'a Value, kind: &str, read: impl FnOnce(&'a Value) -> Option<T>) -> T {
    match read(value) {
        Some(typed) => typed,
        None => panic!("expected {kind}, found {value}"),
    }
}

impl Typed for Value {
    #[track_caller]
    fn list(&self) -> &[Value] {
        typed(self, "an array", |value| value.as_array().map(Vec::as_slice))
    }

    #[track_caller]
    fn text(&self) -> &str {
        typed(self, "a string", Self::as_str)
    }

    #[track_caller]
    fn number(&self) -> u64 {
        typed(self, "a number", Self::as_u64)
    }

    #[track_caller]
    fn float(&self) -> f64 {
        typed(self, "a number", Self::as_f64)
    }
}

/// The output of `skep entry info` for a file or directory.
#[derive(Debug, Clone)]
pub struct EntryInfo(pub Value);

impl EntryInfo {
    /// Returns the origin of the stripe pattern: `cluster`, `directory` or `asked`.
    pub fn origin(&self) -> &str {
        self.0["pattern"]["origin"].text()
    }

    /// Returns the components of the stripe pattern, in file order.
    pub fn components(&self) -> Vec<Component> {
        self.0["pattern"]["components"].list().iter().cloned().map(Component).collect()
    }

    /// Returns the first component whose bytes are on storage targets.
    ///
    /// # Panics
    /// Panics if the pattern has only a component with inline bytes.
    pub fn first_component(&self) -> Component {
        let mut components = self.components().into_iter();
        let on_targets = components.find(|it| it.redundancy() != "inline");
        on_targets.unwrap_or_else(|| panic!("no component is on storage targets: {:#}", self.0))
    }

    /// Returns for each server the number of the first component's targets on that server.
    pub fn allocation(&self) -> Vec<u64> {
        self.first_component().numbers("targets_per_server")
    }
}

/// One component of a stripe pattern.
#[derive(Debug, Clone)]
pub struct Component(pub Value);

impl Component {
    /// Returns the placement policy.
    pub fn chooser(&self) -> &str {
        self.0["chooser"].text()
    }

    /// Returns the kind of storage: `stripe`, or `inline` for file data in metadata.
    pub fn redundancy(&self) -> &str {
        self.0["redundancy"].text()
    }

    /// Returns the number of targets that the pattern requests.
    pub fn targets_wanted(&self) -> u64 {
        self.0["targets_wanted"].number()
    }

    /// Returns the component's chunk length in bytes.
    pub fn chunk_bytes(&self) -> u64 {
        self.0["chunk_bytes"].number()
    }

    /// Returns the file offset at which the component begins.
    pub fn start_byte(&self) -> u64 {
        self.0["start_byte"].number()
    }

    /// Returns the ids of the component's targets, in stripe order.
    pub fn targets(&self) -> Vec<u64> {
        self.0["targets"].list().iter().map(|target| target["target"].number()).collect()
    }

    /// Returns the names of the storage services that own the component's targets.
    pub fn services(&self) -> BTreeSet<String> {
        let targets = self.0["targets"].list().iter();
        targets.map(|target| target["node_name"].text().to_owned()).collect()
    }

    /// Returns for each server the number of the component's targets on that server.
    pub fn targets_per_server(&self) -> Vec<u64> {
        self.numbers("targets_per_server")
    }

    /// Returns for each failure domain the number of the component's targets in that domain.
    pub fn targets_per_domain(&self) -> Vec<u64> {
        self.numbers("targets_per_domain")
    }

    fn numbers(&self, field: &str) -> Vec<u64> {
        self.0[field].list().iter().map(Typed::number).collect()
    }
}

impl Cluster {
    /// Runs `skep` with `arguments` and `--output json`, and returns the printed list.
    ///
    /// # Panics
    /// Panics if the program fails or its output is not a JSON list.
    #[track_caller]
    pub fn skep_list(&self, arguments: &[&str]) -> Vec<Value> {
        self.skep_json(arguments).list().to_vec()
    }

    /// Returns the nodes of one kind: `management`, `metadata`, `storage` or `client`.
    ///
    /// # Panics
    /// Panics if `skep node list` fails.
    #[track_caller]
    pub fn nodes(&self, kind: &str) -> Vec<Value> {
        let mut nodes = self.skep_list(&["node", "list"]);
        nodes.retain(|node| node["kind"] == kind);
        nodes
    }

    /// Returns the ids of the targets of one kind, `metadata` or `storage`, in the order of `skep
    /// target list`.
    ///
    /// # Panics
    /// Panics if `skep target list` fails.
    #[track_caller]
    pub fn target_ids(&self, kind: &str) -> Vec<u64> {
        let targets = self.skep_list(&["target", "list"]).into_iter();
        targets.filter(|it| it["kind"] == kind).map(|it| it["id"].number()).collect()
    }

    /// Runs `skep entry info` for a path, and returns its output.
    ///
    /// # Panics
    /// Panics if `skep entry info` fails.
    #[track_caller]
    pub fn entry_info(&self, path: &Path) -> EntryInfo {
        EntryInfo(self.skep_json(&["entry", "info", &path.display().to_string()]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    #[should_panic(expected = "expected a number, found \"four\"")]
    fn error_shows_a_value_of_an_unexpected_type() {
        json!({"targets": "four"})["targets"].number();
    }

    #[test]
    fn allocation_lists_the_target_count_of_each_server() {
        let component = json!({"redundancy": "stripe", "targets_per_server": [1, 3]});
        let info = EntryInfo(json!({"pattern": {"components": [component]}}));
        assert_eq!(info.allocation(), [1, 3]);
    }
}
