//! The option `--give-to` of services and of the monitor: gives their files to the user of the host
//! that runs them.
//!
//! `skep_service::service_user` changes the owners. This file decides which files are concerned.

use crate::output::print;
use serde::Serialize;
use skep_monitor::{MonitorSettings, WatchedCluster};
use skep_service::service_user::ServiceUser;
use skep_service::{NodeSettings, host, logging};
use skep_types::Result;
use std::path::{Path, PathBuf};

/// The JSON output: the files of a service that were given to a user.
#[derive(Debug, Serialize)]
struct GiveReport {
    kind: &'static str,
    user: String,
    directories: Vec<String>,
    /// Number of files and directories whose owner has changed.
    changed: u64,
}

/// Gives the directories of a service to a user, and lets the user read the settings. `targets` are
/// the directories of the targets in the settings.
pub(super) fn give_service(
    kind: &'static str,
    user: &str,
    config: Option<&Path>,
    node: &NodeSettings,
    targets: &[PathBuf],
) -> Result<()> {
    let user = ServiceUser::find(user)?;
    if let Some(config) = config {
        user.share_settings(config)?;
    }
    let mut directories = vec![node.directory.clone()];
    directories.extend(targets.iter().cloned());
    // The service can write this list. A line that names no directory is not shown, because the
    // list could be a link to a secret file of the host.
    let added = host::added_target_directories(&node.directory)?;
    directories.extend(added.into_iter().filter(|path| path.is_dir()));
    let mut changed = 0;
    for directory in &directories {
        changed += user.take_directory(directory)?;
    }
    report(kind, user, &directories, changed)
}

/// Gives the directory, the tokens and the other secrets of a monitor to a user, and lets the user
/// read the settings.
pub(super) fn give_monitor(
    user: &str,
    config: Option<&Path>,
    settings: &MonitorSettings,
    clusters: &[WatchedCluster],
) -> Result<()> {
    logging::start(&settings.log, settings.log_limit)?;
    let user = ServiceUser::find(user)?;
    if let Some(config) = config {
        user.share_settings(config)?;
    }
    let secrets = [
        &settings.password_file,
        &settings.tls.certificate,
        &settings.tls.key,
        &settings.influx.token_file,
        &settings.remote_write.token_file,
    ];
    let tokens = clusters.iter().map(|cluster| &cluster.token_file);
    for secret in tokens.chain(secrets).filter(|file| !file.as_os_str().is_empty()) {
        user.share_secret(secret)?;
    }
    let changed = user.take_plain_directory(&settings.directory)?;
    report("monitor", user, std::slice::from_ref(&settings.directory), changed)
}

fn report(
    kind: &'static str,
    user: ServiceUser,
    directories: &[PathBuf],
    changed: u64,
) -> Result<()> {
    let directories = directories.iter().map(|it| it.display().to_string()).collect();
    print(&GiveReport { kind, user: user.name, directories, changed }, |it| {
        let GiveReport { kind, user, .. } = it;
        match it.changed {
            0 => {
                format!("The directories of the {kind} service belong to the user {user} already.")
            }
            1 => format!("Gave one file of the {kind} service to the user {user}."),
            count => format!(
                "Gave {count} files of the {kind} service to the user {user}, in {}.",
                it.directories.join(", ")
            ),
        }
    })
}
