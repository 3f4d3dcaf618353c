//! Settings of `skep management`. The doc comments are the manual.

use serde::{Deserialize, Serialize};
use skep_service::{Manual, NodeSettings, Settings, node};

/// The default port of management.
pub const DEFAULT_PORT: u16 = 7400;

/// Settings of `skep management`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManagementSettings {
    /// Settings that every service has.
    pub node: NodeSettings,
}

impl Default for ManagementSettings {
    fn default() -> Self {
        Self { node: NodeSettings::with_port(DEFAULT_PORT) }
    }
}

impl Manual for ManagementSettings {
    const NAME: &'static str = "management";
    const SOURCES: &'static [&'static str] = &[include_str!("settings.rs"), node::SOURCE];

    fn problems(&self) -> Vec<String> {
        self.node.problems()
    }
}

impl Settings for ManagementSettings {
    fn node(&self) -> &NodeSettings {
        &self.node
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_service::{config, manual};

    #[test]
    fn sample_file_sets_and_explains_every_default() {
        let sample = manual::sample::<ManagementSettings>();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &sample).unwrap();
        let overrides = [("node.directory".to_owned(), "/d".to_owned())];
        let loaded = config::load::<ManagementSettings>(Some(file.path()), &overrides).unwrap();
        let mut expected = ManagementSettings::default();
        expected.node.directory = "/d".into();
        assert_eq!(loaded.settings, expected);
        for line in sample.lines().filter(|line| line.contains(" = ")) {
            let before = sample.split(line).next().unwrap_or_default();
            assert!(before.trim_end().lines().next_back().unwrap().starts_with("# "), "{line}");
        }
    }
}
