//! The option `--give-to` of services and of the monitor: makes the user that runs the service the
//! owner of its files.
//!
//! `skep_service::service_user` changes the owners. This module chooses the files.

use crate::output::print;
use serde::Serialize;
use skep_monitor::{MonitorSettings, WatchedCluster};
use skep_service::service_user::ServiceUser;
use skep_service::{ByteSize, NodeSettings, logging};
use skep_types::Result;
use std::path::{Path, PathBuf};

/// Names of the monitor's files in its directory. A directory of root that also has other files
/// belongs to a monitor only if the first of these files exists.
const MONITOR_FILES: [&str; 2] = ["history", "lock"];

/// The JSON output: the files of a service that were given to a user.
#[derive(Debug, Serialize)]
struct GiveReport {
    kind: &'static str,
    user: String,
    directories: Vec<String>,
    /// Number of files and directories whose owner has changed.
    changed: u64,
}

/// Makes a user the owner of the directories of a service, and permits the user to read the
/// settings. `targets` are the directories of the targets in the settings.
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
    let (added, is_trusted) = user.added_targets(&node.directory)?;
    let added: Vec<_> = added.into_iter().filter(|path| !targets.contains(path)).collect();
    // Change the owners of all targets at the same time, because the targets are on different
    // disks. The first change of a large target takes minutes.
    let mut changed: u64 = std::thread::scope(|scope| {
        let user = &user;
        let named: Vec<_> =
            targets.iter().map(|it| scope.spawn(move || user.take_directory(it))).collect();
        let take_added = move |target: &Path| match is_trusted {
            true => user.take_directory(target),
            false => user.take_own_directory(target),
        };
        let added: Vec<_> = added.iter().map(|it| scope.spawn(move || take_added(it))).collect();
        let threads = named.into_iter().chain(added);
        threads.map(|it| unless_failed(it.join().expect("the thread does not panic"))).sum()
    });
    // Change the owner of this directory last. The command trusts the list of added targets in this
    // directory only as long as root owns the directory.
    changed += user.take_directory(&node.directory)?;
    let directories: Vec<_> =
        std::iter::once(&node.directory).chain(targets).chain(&added).cloned().collect();
    report(kind, user, &directories, changed)
}

/// Returns the number of changed files in the directory of a target. Logs an error and continues,
/// because a failed disk must not prevent the start of a service that serves other targets.
fn unless_failed(changed: Result<u64>) -> u64 {
    changed.unwrap_or_else(|error| {
        tracing::error!("cannot give a target to the user of the service: {error}");
        0
    })
}

/// Makes a user the owner of the directory, the tokens and the other secrets of a monitor, and
/// permits the user to read the settings.
pub(super) fn give_monitor(
    user: &str,
    config: Option<&Path>,
    settings: &MonitorSettings,
    clusters: &[WatchedCluster],
) -> Result<()> {
    // The log may be in a directory of `user`. Start the log without a size limit, so that root
    // never starts a new log file in this directory.
    logging::start(&settings.log, ByteSize(0))?;
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
    let changed = user.take_plain_directory(&settings.directory, &MONITOR_FILES)?;
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
