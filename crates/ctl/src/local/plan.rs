//! The plan of `skep up`: the cluster to run on this host, and the command lines of its processes.
//!
//! The module [`super::supervisor`] runs the processes, and [`super::layout`] has the paths of
//! their files.

use super::children::LOG_LIMIT;
use super::layout::Layout;
use super::shape::Shape;
use std::path::{Path, PathBuf};

/// The cluster that `skep up` is asked to run.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) layout: Layout,
    pub(crate) shape: Shape,
    /// The mount point. `None` means that the cluster is not mounted.
    pub(crate) mount_point: Option<PathBuf>,
    pub(crate) transport: String,
    /// Pairs of a scope and a setting as `key=value`. The scope is a kind of service, one service,
    /// or `all`.
    pub(crate) set: Vec<(String, String)>,
    /// Whether the cluster has a monitor.
    pub(crate) has_monitor: bool,
    /// Whether the supervisor runs in the foreground of a terminal, where Ctrl-C stops the
    /// supervisor.
    pub(crate) in_foreground: bool,
}

impl Plan {
    /// Returns the command line of a service.
    pub(super) fn arguments(&self, kind: &str, name: &str) -> Vec<String> {
        let directory = self.layout.service(name);
        let mut arguments = vec![
            kind.to_owned(),
            "--directory".into(),
            directory.display().to_string(),
            "--listen".into(),
            "127.0.0.1:0".into(),
            "--set".into(),
            format!("node.log_limit={LOG_LIMIT}"),
        ];
        if name != "management" {
            // The name of the node is the name of its directory. A name that management assigns
            // would depend on the order in which the nodes register.
            arguments.extend(["--set".into(), format!("node.name={name}")]);
        }
        for target in self.targets(kind, name) {
            arguments.extend(["--target".into(), target.display().to_string()]);
        }
        let is_meant = |of: &str| [kind, name, "all"].contains(&of);
        for (_, setting) in self.set.iter().filter(|(of, _)| is_meant(of)) {
            arguments.extend(["--set".into(), setting.clone()]);
        }
        arguments
    }

    /// Returns the directories of a service's targets.
    pub(super) fn targets(&self, kind: &str, name: &str) -> Vec<PathBuf> {
        let count = match kind {
            "management" => 0,
            "metadata" => self.shape.metadata_copies,
            _ => self.shape.targets_per_service,
        };
        let directory = self.layout.service(name);
        (1..=count).map(|number| directory.join(format!("t{number}"))).collect()
    }

    /// Returns the command line of the mount.
    pub(super) fn mount_arguments(&self, mount_point: &Path) -> Vec<String> {
        [
            "mount",
            "--foreground",
            "--cluster",
            &self.layout.data.display().to_string(),
            "--transport",
            &self.transport,
            "--log-limit",
            &LOG_LIMIT.to_string(),
            &mount_point.display().to_string(),
        ]
        .map(String::from)
        .to_vec()
    }

    /// Returns the command line of the monitor.
    pub(super) fn monitor_arguments(&self) -> Vec<String> {
        let data = self.layout.data.display().to_string();
        let directory = self.layout.service("monitor").display().to_string();
        let mut arguments =
            ["monitor", "--cluster", &data, "--directory", &directory].map(String::from).to_vec();
        let set = || self.set.iter().filter(|(of, _)| of == "monitor");
        // `--listen` would take precedence over a setting `listen` of the user. So leave out
        // `--listen` if the user has set `listen`.
        if !set().any(|(_, setting)| setting.starts_with("listen=")) {
            arguments.extend(["--listen".into(), "127.0.0.1:0".into()]);
        }
        arguments.extend(["--set".into(), format!("log_limit={LOG_LIMIT}")]);
        for (_, setting) in set() {
            arguments.extend(["--set".into(), setting.clone()]);
        }
        arguments
    }
}
