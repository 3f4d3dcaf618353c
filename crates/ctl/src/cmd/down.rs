//! `skep down`: stops a cluster that `skep up` started.

use crate::help::{Example, examples};
use crate::local::children::tail;
use crate::local::layout::Layout;
use crate::output::{is_for_people, print, say_aside};
use serde::Serialize;
use skep_types::{Error, ErrorCode, Result};
use std::path::{Path, PathBuf};
use std::time::Duration;

const EXAMPLES: &[Example] = &[("stop the cluster in ./skep-data", "skep down")];

/// Stop a cluster that `skep up` started
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct DownArgs {
    /// Data directory of the cluster
    #[arg(long, default_value = "./skep-data")]
    data_dir: PathBuf,
}

/// Time limit for a cluster to stop. The limit is longer than the time after which the supervisor
/// kills services that have not exited.
const PATIENCE: Duration = Duration::from_secs(120);
/// Interval between checks whether the supervisor has exited.
const PAUSE: Duration = Duration::from_millis(20);

/// Time after which the command begins to show why the cluster has not stopped yet.
const SILENCE: Duration = Duration::from_secs(2);

/// Prints the lines that the supervisor has added to its log after the first `read` bytes. Returns
/// the new length of the log.
fn show_progress(log: &Path, read: u64) -> u64 {
    let end = std::fs::metadata(log).map_or(read, |it| it.len());
    if end > read && is_for_people() {
        say_aside(&tail(log, read, usize::MAX));
    }
    end
}

/// The JSON output about the stopped cluster.
#[derive(Debug, Serialize)]
struct ShutdownReport {
    data_dir: String,
    was_up: bool,
}

pub(super) fn run(args: &DownArgs) -> Result<()> {
    let layout = Layout::open(&args.data_dir)?;
    let Some(process) = layout.supervisor()? else {
        let shown = layout.data.display().to_string();
        return print(&ShutdownReport { data_dir: shown, was_up: false }, |it| {
            format!("The cluster in {} is not up.", it.data_dir)
        });
    };
    skep_env::send_signal(process, libc::SIGTERM).map_err(|error| {
        Error::from(error).within(format_args!("cannot stop the supervisor (process {process})"))
    })?;
    let shown = layout.data.display().to_string();
    let log = layout.log("up");
    let mut read = std::fs::metadata(&log).map_or(0, |it| it.len());
    super::block_on(async move {
        let start = skep_env::now();
        let deadline = start + PATIENCE;
        while layout.supervisor()?.is_some() {
            if skep_env::now() > start + SILENCE {
                read = show_progress(&log, read);
            }
            if skep_env::now() > deadline {
                let what = format!(
                    "cannot stop the cluster in {}: the supervisor (process {process}) is still \
                     running after {} s; see logs/up.log in that directory",
                    layout.data.display(),
                    PATIENCE.as_secs()
                );
                return Err(Error::new(ErrorCode::TimedOut, what));
            }
            skep_env::sleep(PAUSE).await;
        }
        Ok(())
    })?;
    print(&ShutdownReport { data_dir: shown, was_up: true }, |it| {
        format!("The cluster in {} is down; its data is kept.", it.data_dir)
    })
}
