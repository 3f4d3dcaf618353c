//! Settings of `skep storage`. `skep_service::manual` generates the manual from the doc comments.

use serde::{Deserialize, Serialize};
use skep_service::{ByteSize, Manual, NodeSettings, Settings, node};
use std::path::PathBuf;

/// The default port of storage.
pub const DEFAULT_PORT: u16 = 7420;

/// Settings of `skep storage`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StorageSettings {
    /// Directories of the targets, one for each file system that stores data. Each file system is
    /// on a disk or an array, with ext4, XFS, btrfs or ZFS. `--init` creates the directories,
    /// including directories that are added later. There is no default.
    pub targets: Vec<PathBuf>,
    /// Settings that every service has.
    pub node: NodeSettings,
    /// Emulation of slower devices.
    pub emulation: EmulationSettings,
}

/// Emulation of slower devices by the targets of a service, for experiments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmulationSettings {
    /// Number of bytes that each target moves per second, for reads and writes together. Replies
    /// wait as if a device of this speed served one request after the other. For laboratories
    /// (`skep lab`), not for production. Zero means no emulation.
    pub rate: ByteSize,
    /// Variation of the rate in percent. Each target has a new rate each second, from a normal
    /// distribution with this standard deviation. At most 50.
    pub variability: u32,
    /// Seed of the variation. The same seed gives the same rates.
    pub seed: u64,
}

/// Largest variability, in percent.
const MAX_VARIABILITY: u32 = 50;

impl Default for StorageSettings {
    fn default() -> Self {
        Self {
            targets: Vec::new(),
            node: NodeSettings::with_port(DEFAULT_PORT),
            emulation: EmulationSettings { rate: ByteSize(0), variability: 0, seed: 0 },
        }
    }
}

impl Manual for StorageSettings {
    const NAME: &'static str = "storage";
    const SOURCES: &'static [&'static str] = &[include_str!("settings.rs"), node::SOURCE];

    fn problems(&self) -> Vec<String> {
        let mut problems = self.node.problems();
        problems.extend(node::target_problems(&self.targets, &self.node));
        let EmulationSettings { rate, variability, .. } = &self.emulation;
        if *variability > MAX_VARIABILITY {
            problems.push(format!(
                "`emulation.variability`: expected at most {MAX_VARIABILITY} percent"
            ));
        }
        if *variability > 0 && rate.0 == 0 {
            problems.push(
                "`emulation.variability` has no effect without `emulation.rate`: set both".into(),
            );
        }
        problems
    }
}

impl Settings for StorageSettings {
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

    #[test]
    fn emulated_rate_variability_is_bounded_and_needs_a_rate() {
        let problems = |rate, variability| {
            let mut settings = StorageSettings::default();
            settings.node.directory = "/d".into();
            settings.targets = vec!["/a".into()];
            settings.emulation = EmulationSettings { rate: ByteSize(rate), variability, seed: 1 };
            settings.problems().join("\n")
        };
        assert_eq!(problems(0, 0), "");
        assert_eq!(problems(30_000_000, 50), "");
        assert!(problems(30_000_000, 51).contains("at most 50 percent"));
        assert!(problems(0, 5).contains("without `emulation.rate`"));
    }
}
