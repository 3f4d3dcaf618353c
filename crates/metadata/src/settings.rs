//! Settings of `skep metadata`. The manual is generated from the comments of the fields.

use crate::target::SyncPolicy;
use serde::{Deserialize, Serialize};
use skep_service::{ByteSize, Manual, NodeSettings, Settings, node};
use std::path::PathBuf;

/// Default port of a metadata service.
pub const DEFAULT_PORT: u16 = 7410;

/// When a target syncs its log to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sync {
    /// The target syncs at most 10 ms after a change, and immediately if a program requests it.
    Interval,
    /// The target syncs before each reply.
    Always,
}

/// Settings of `skep metadata`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetadataSettings {
    /// Directories of the targets, each on a fast disk. One thread serves each target, so give a
    /// service at most as many targets as it has free cores. `--init` creates the directories, also
    /// directories that are added to this list later. There is no default.
    pub targets: Vec<PathBuf>,
    /// Settings that every service has.
    pub node: NodeSettings,
    /// Settings of metadata services only.
    pub metadata: TargetSettings,
}

/// How a metadata service runs its targets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetSettings {
    /// When changes are synced to the device. `interval`: at most 10 ms later, and immediately for
    /// `fsync` and `O_SYNC`; a power loss may then cost the last 10 ms, never consistency.
    /// `always`: before each reply; set it if a power loss must not cost any acknowledged change,
    /// and expect fewer changes per second from each client.
    pub sync: Sync,
    /// Memory in which each target caches the store. A larger cache helps when programs use many
    /// files at the same time.
    pub cache: ByteSize,
}

impl Default for MetadataSettings {
    fn default() -> Self {
        Self {
            targets: Vec::new(),
            node: NodeSettings::with_port(DEFAULT_PORT),
            metadata: TargetSettings { sync: Sync::Interval, cache: ByteSize(256 << 20) },
        }
    }
}

impl Manual for MetadataSettings {
    const NAME: &'static str = "metadata";
    const SOURCES: &'static [&'static str] = &[include_str!("settings.rs"), node::SOURCE];

    fn problems(&self) -> Vec<String> {
        let mut problems = self.node.problems();
        problems.extend(node::target_problems(&self.targets, &self.node));
        if self.metadata.cache.0 < 1 << 20 {
            problems.push("`metadata.cache`: expected at least 1 MiB".into());
        }
        problems
    }
}

impl Settings for MetadataSettings {
    fn node(&self) -> &NodeSettings {
        &self.node
    }
}

impl From<Sync> for SyncPolicy {
    fn from(sync: Sync) -> Self {
        match sync {
            Sync::Interval => Self::Interval,
            Sync::Always => Self::Always,
        }
    }
}
