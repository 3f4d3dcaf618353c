//! Options that the subcommands of `skep tune` share. These options select the rules that a command
//! checks or applies on a host.

use crate::failure::PARTIAL;
use clap::Args;
use skep_tune::changes::Outcome;
use skep_tune::check::{Scope, device_of, disks, interfaces, mount_point_of, with_members};
use skep_tune::{Role, Tree};
use skep_types::{Error, ErrorCode, Result};
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// The roles, targets, devices and network interfaces of a host that are checked or changed.
#[derive(Debug, Clone, Args)]
pub(crate) struct ScopeArgs {
    /// Roles of this host: management, metadata, storage, client
    #[arg(long, value_delimiter = ',', required = true, value_name = "ROLES")]
    role: Vec<String>,
    /// Directory of a target; its block device and the options of its mount are checked
    #[arg(long = "target", value_name = "DIR")]
    targets: Vec<String>,
    /// Block device of a target, such as sdb
    #[arg(long = "device", value_delimiter = ',', value_name = "NAMES")]
    devices: Vec<String>,
    /// Network interface for the traffic of the file system, such as eth0
    #[arg(long = "interface", value_delimiter = ',', value_name = "NAMES")]
    interfaces: Vec<String>,
    #[command(flatten)]
    root: RootArgs,
}

/// The option that names the root directory of the host.
#[derive(Debug, Clone, Args)]
pub(crate) struct RootArgs {
    /// Root directory of the host, such as an image that is mounted here
    #[arg(long, default_value = "/", value_name = "DIR")]
    root: PathBuf,
}

impl RootArgs {
    /// Returns the file tree of the host, which begins at the root directory.
    pub(super) fn tree(&self) -> Result<Tree> {
        match self.root.is_dir() {
            true => Ok(Tree::new(&self.root)),
            false => Err(Error::new(
                ErrorCode::NotFound,
                format!("cannot use --root {}: the path is not a directory", self.root.display()),
            )),
        }
    }
}

impl ScopeArgs {
    /// Returns the file tree of the host, and the roles, targets, devices and network interfaces to
    /// which the rules apply. If `all` is set and the user has named no device, all devices are
    /// selected. If `all` is set and the user has named no network interface, all network
    /// interfaces are selected.
    pub(super) fn resolve(&self, all: bool) -> Result<(Tree, Scope)> {
        let tree = self.root.tree()?;
        let roles = self.role.iter().map(|word| Role::named(word)).collect::<Result<_>>()?;
        let mut scope = Scope { roles, ..Scope::default() };
        let known = disks(&tree);
        for device in &self.devices {
            let device = device.trim_start_matches("/dev/");
            if !tree.real(&format!("/sys/block/{device}")).exists() {
                return Err(Error::new(
                    ErrorCode::NotFound,
                    format!(
                        "cannot find block device {device}: the disks of this host are {}",
                        known.join(", ")
                    ),
                ));
            }
            scope.devices.extend(with_members(&tree, device));
        }
        for target in &self.targets {
            let missing = || {
                let what = format!(
                    "cannot find the block device of {target}: this file system is not on a local \
                     disk; name the device with --device"
                );
                Error::new(ErrorCode::NotFound, what)
            };
            let device = device_of(&tree, target).ok_or_else(missing)?;
            scope.devices.extend(with_members(&tree, &device));
            scope.mounts.extend(mount_point_of(&tree, target));
        }
        scope.interfaces.clone_from(&self.interfaces);
        if all && scope.devices.is_empty() {
            scope.devices = known;
        }
        if all && scope.interfaces.is_empty() {
            scope.interfaces = interfaces(&tree);
        }
        scope.devices.sort();
        scope.devices.dedup();
        scope.mounts.sort();
        scope.mounts.dedup();
        Ok((tree, scope))
    }
}

/// Formats the result of `apply` or `undo`.
pub(super) fn as_text(outcome: &Outcome, done: &str) -> String {
    let mut text = String::new();
    for it in &outcome.changed {
        let _ = writeln!(text, "{done} {} ({})", it.file, it.rule);
    }
    for path in &outcome.boot_files {
        let _ = writeln!(text, "{done} {path}");
    }
    for it in &outcome.failures {
        let _ = writeln!(text, "failed: {}", it.error);
    }
    for it in &outcome.forgotten {
        let _ = writeln!(text, "not restored, and removed from the record: {}", it.error);
    }
    if text.is_empty() {
        text.push_str("nothing to change\n");
    }
    text
}

/// Returns the exit code for an outcome: [`PARTIAL`] if a file could not be changed.
pub(super) fn exit_code(outcome: &Outcome) -> ExitCode {
    if outcome.failures.is_empty() { ExitCode::SUCCESS } else { PARTIAL.into() }
}
