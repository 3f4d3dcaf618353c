//! Typed views of the output of `skep --output json`.
//!
//! Owns how tests read that output: a value of another type than expected fails with the value. The
//! schemas of the output are checked elsewhere ([`crate::schema`]).

use crate::Cluster;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

/// Reads a JSON value as the type that the test expects.
///
/// # Panics
/// Each method panics with the value if it has another type.
pub trait Typed {
    /// The elements of an array.
    fn list(&self) -> &[Value];
    /// A string.
    fn text(&self) -> &str;
    /// A whole number that is not negative.
    fn number(&self) -> u64;
    /// Any number.
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
    /// The origin of the stripe pattern: `cluster`, `directory` or `asked`.
    pub fn origin(&self) -> &str {
        self.0["pattern"]["origin"].text()
    }

    /// The components of the stripe pattern, in the order of the file.
    pub fn components(&self) -> Vec<Component> {
        self.0["pattern"]["components"].list().iter().cloned().map(Component).collect()
    }

    /// The component at the beginning of the file.
    pub fn first_component(&self) -> Component {
        Component(self.0["pattern"]["components"][0].clone())
    }

    /// The number of targets on each server, for the first component.
    pub fn allocation(&self) -> Vec<u64> {
        self.first_component().numbers("targets_per_server")
    }
}

/// One component of a stripe pattern.
#[derive(Debug, Clone)]
pub struct Component(pub Value);

impl Component {
    /// The placement policy.
    pub fn chooser(&self) -> &str {
        self.0["chooser"].text()
    }

    /// The kind of storage: `stripe`, or `inline` for bytes in metadata.
    pub fn redundancy(&self) -> &str {
        self.0["redundancy"].text()
    }

    /// How many targets the pattern asks for.
    pub fn targets_wanted(&self) -> u64 {
        self.0["targets_wanted"].number()
    }

    /// The length of a chunk.
    pub fn chunk_bytes(&self) -> u64 {
        self.0["chunk_bytes"].number()
    }

    /// The first byte of the file that belongs to this component.
    pub fn start_byte(&self) -> u64 {
        self.0["start_byte"].number()
    }

    /// The ids of its targets, in the order of the stripe.
    pub fn targets(&self) -> Vec<u64> {
        self.0["targets"].list().iter().map(|target| target["target"].number()).collect()
    }

    /// The names of the storage services that have its targets.
    pub fn services(&self) -> BTreeSet<String> {
        let targets = self.0["targets"].list().iter();
        targets.map(|target| target["node_name"].text().to_owned()).collect()
    }

    /// The number of targets on each server.
    pub fn targets_per_server(&self) -> Vec<u64> {
        self.numbers("targets_per_server")
    }

    /// The number of targets in each failure domain.
    pub fn targets_per_domain(&self) -> Vec<u64> {
        self.numbers("targets_per_domain")
    }

    fn numbers(&self, field: &str) -> Vec<u64> {
        self.0[field].list().iter().map(Typed::number).collect()
    }
}

impl Cluster {
    /// Runs `skep` with these arguments and reads the list that it prints.
    ///
    /// # Panics
    /// If it fails or prints something else.
    #[track_caller]
    pub fn skep_list(&self, arguments: &[&str]) -> Vec<Value> {
        self.skep_json(arguments).list().to_vec()
    }

    /// The nodes of one kind: `management`, `metadata`, `storage` or `client`.
    ///
    /// # Panics
    /// If `skep node list` fails.
    #[track_caller]
    pub fn nodes(&self, kind: &str) -> Vec<Value> {
        let mut nodes = self.skep_list(&["node", "list"]);
        nodes.retain(|node| node["kind"] == kind);
        nodes
    }

    /// The ids of the targets of one kind, `metadata` or `storage`, in the order of the list.
    ///
    /// # Panics
    /// If `skep target list` fails.
    #[track_caller]
    pub fn target_ids(&self, kind: &str) -> Vec<u64> {
        let targets = self.skep_list(&["target", "list"]).into_iter();
        targets.filter(|it| it["kind"] == kind).map(|it| it["id"].number()).collect()
    }

    /// Runs `skep entry info` for a path.
    ///
    /// # Panics
    /// If it fails.
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
    fn value_of_another_type_is_shown() {
        json!({"targets": "four"})["targets"].number();
    }

    #[test]
    fn allocation_has_one_number_for_each_server() {
        let component = json!({"targets_per_server": [1, 3]});
        let info = EntryInfo(json!({"pattern": {"components": [component]}}));
        assert_eq!(info.allocation(), [1, 3]);
    }
}
