//! Settings of `skep storage`. The doc comments are the manual.

use serde::{Deserialize, Serialize};
use skep_service::{NodeSettings, Settings, node};
use std::path::PathBuf;

/// The port on which storage listens unless told otherwise.
pub const DEFAULT_PORT: u16 = 7420;

/// Settings of `skep storage`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StorageSettings {
    /// Directories of the targets, one for each file system that stores data: a disk or an array
    /// each, with ext4, XFS, btrfs or ZFS. Made by `--init`, which also makes those that are added
    /// later. There is no default.
    pub targets: Vec<PathBuf>,
    /// What every service has.
    pub node: NodeSettings,
}

impl Default for StorageSettings {
    fn default() -> Self {
        Self { targets: Vec::new(), node: NodeSettings::with_port(DEFAULT_PORT) }
    }
}

impl Settings for StorageSettings {
    const NAME: &'static str = "storage";
    const SOURCES: &'static [&'static str] = &[include_str!("settings.rs"), node::SOURCE];

    fn problems(&self) -> Vec<String> {
        let mut problems = self.node.problems();
        problems.extend(node::target_problems(&self.targets, &self.node));
        problems
    }

    fn node(&self) -> &NodeSettings {
        &self.node
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_service::{config, manual};

    #[test]
    fn the_sample_file_sets_every_default_and_explains_it() {
        let sample = manual::sample::<StorageSettings>();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &sample).unwrap();
        let set = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let overrides = [set("node.directory", "/d"), set("targets", "/a,/b")];
        let loaded = config::load::<StorageSettings>(Some(file.path()), &overrides).unwrap();
        let mut expected = StorageSettings::default();
        expected.node.directory = "/d".into();
        expected.targets = vec!["/a".into(), "/b".into()];
        assert_eq!(loaded.settings, expected);
        assert!(sample.contains("# Directories of the targets"), "{sample}");
    }
}
