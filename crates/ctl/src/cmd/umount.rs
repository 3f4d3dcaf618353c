//! `skep umount`: unmounts a cluster from a directory, as root or with the setuid helper of FUSE.
//! Then waits for the end of the process that served the mount.

pub(crate) mod helper;

use crate::help::{Example, examples};
use crate::mount_process::{MountProcess, OtherPlace, still_mounted};
use crate::mount_result;
use crate::mounts::{mount_of_skep, unmount};
use crate::output::{is_for_people, warn};
use skep_client::UNCONFIRMED;
use skep_types::{Error, ErrorCode, Result};
use std::path::{Path, PathBuf};
use std::time::Duration;

const EXAMPLES: &[Example] = &[
    ("unmount", "skep umount /mnt/skep"),
    ("unmount even while programs use it", "skep umount --lazy /mnt/skep"),
];

/// Unmount a cluster, and wait for the end of the process of the mount
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct UmountArgs {
    /// The mount point of the cluster
    directory: PathBuf,
    /// Detach the mount even while programs use it, and do not wait: the process of the mount ends
    /// after the last program has closed its files
    #[arg(long)]
    lazy: bool,
}

/// Time limit for the process of a mount to end. If no server replies, the process ends after about
/// ten seconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time after which the command prints why it still waits.
const SILENCE: Duration = Duration::from_secs(2);
/// Maximum number of bytes that the command reads from the end of the log. The last lines of the
/// log contain the result of the unmount.
const MAX_LOG_BYTES: u64 = 4 << 20;
/// Interval between checks whether the process has ended.
const PAUSE: Duration = Duration::from_millis(20);

pub(super) fn run(args: &UmountArgs) -> Result<()> {
    let mount = mount_of_skep(&args.directory)?;
    // Find the process before the unmount, because the process may end immediately after the
    // unmount.
    let process = MountProcess::of(&mount.point).filter(|_| !args.lazy);
    let log = process.as_ref().and_then(MountProcess::rest_of_log);
    unmount(&mount.point, args.lazy)?;
    let Some(process) = process else { return Ok(()) };
    if let Some(other) = still_mounted(&mount) {
        if is_for_people() {
            warn(&continuation(&mount.point, process, &other));
        }
        return Ok(());
    }
    let point = mount.point.clone();
    super::block_on(await_end(process, point))?;
    let mut result = log.map(|log| log.read(MAX_LOG_BYTES)).unwrap_or_default();
    result.extend(mount_result::take(process.id));
    check_last_changes(&result, &mount.point)
}

/// Checks that metadata has confirmed the last writes and changes of a mount that has ended. `log`
/// is the log of the mount since the unmount, with the result that the mount has stored. If `log`
/// is empty, for example because this process may not read the log, the check succeeds.
///
/// # Errors
/// Returns `Io` with the line of the log if metadata has not confirmed all writes and changes.
fn check_last_changes(log: &[u8], point: &Path) -> Result<()> {
    let text = String::from_utf8_lossy(log);
    let Some((_, missing)) = text.lines().find_map(|line| line.split_once(UNCONFIRMED)) else {
        return Ok(());
    };
    let what = format!("{} is unmounted, but {UNCONFIRMED}{missing}", point.display());
    Err(Error::new(ErrorCode::Io, what))
}

/// Returns the message about a process that continues, because its file system is still mounted on
/// another mount point.
fn continuation(point: &Path, process: MountProcess, other: &OtherPlace) -> String {
    let holder = match other.process {
        Some(id) => format!("in the mount table of process {id}"),
        None => "on this host".to_owned(),
    };
    format!(
        "{} is unmounted; the process of this mount (process {}) continues, because the file \
         system is still mounted on {} {holder}",
        point.display(),
        process.id,
        other.point.display()
    )
}

/// Waits until the process of a mount has ended.
///
/// # Errors
/// Returns `TimedOut` if the process still runs after [`PATIENCE`].
async fn await_end(process: MountProcess, point: PathBuf) -> Result<()> {
    let start = skep_env::now();
    let mut is_announced = false;
    while !process.has_ended() {
        let waited = skep_env::now().saturating_sub(start);
        if waited > PATIENCE {
            let what = format!(
                "cannot end the mount on {}: the directory is unmounted, but the process of the \
                 mount (process {}) still runs after {} s; the log of the mount has the reason, \
                 and `kill -9 {1}` ends the process unless a container still uses the mount",
                point.display(),
                process.id,
                PATIENCE.as_secs()
            );
            return Err(Error::new(ErrorCode::TimedOut, what));
        }
        if waited > SILENCE && !is_announced && is_for_people() {
            is_announced = true;
            warn(&format!(
                "{} is unmounted; waiting for the end of the process of this mount (process {}), \
                 which reports to the servers",
                point.display(),
                process.id
            ));
        }
        skep_env::sleep(PAUSE).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_that_metadata_has_not_confirmed_are_an_error() {
        let check = |log: &str| check_last_changes(log.as_bytes(), Path::new("/mnt/a"));
        check("").unwrap();
        check("2026-01-02T03:04:05Z  INFO /mnt/a is unmounted\n").unwrap();
        let line = format!("2026-01-02T03:04:05Z ERROR {UNCONFIRMED}7 changes\n");
        let error = check(&format!("another line\n{line}the last line\n")).unwrap_err();
        let expected = format!("/mnt/a is unmounted, but {UNCONFIRMED}7 changes");
        assert_eq!(error.context(), expected);
    }
}
