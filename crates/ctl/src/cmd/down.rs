//! `skep down`: stops a cluster that `skep up` started.

use crate::help::{Example, examples};
use crate::local::layout::Layout;
use crate::output::print;
use serde::Serialize;
use skep_types::{Error, ErrorCode, Result};
use std::path::PathBuf;
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

/// Time limit for a cluster to stop. The limit exceeds the time after which the supervisor kills
/// services that have not exited.
const PATIENCE: Duration = Duration::from_secs(120);
/// Interval between checks whether the supervisor has exited.
const PAUSE: Duration = Duration::from_millis(20);

/// The stopped cluster, as JSON.
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
    super::block_on(async move {
        let deadline = skep_env::now() + PATIENCE;
        while layout.supervisor()?.is_some() {
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
