//! `skep ondemand start`: makes and mounts a file system of the hosts of a job.

use super::args::{OndemandArgs, failure};
use crate::help::{Example, examples};
use crate::output::print;
use skep_deploy::ondemand::{Command, Reach};
use skep_types::Result;

const EXAMPLES: &[Example] = &[
    ("of the hosts in a file, by ssh", "skep ondemand start --hosts nodes --mount /scratch"),
    ("in the prolog of a Slurm job", "skep ondemand start --job --directory /local"),
];

/// Make a file system of the local disks of all hosts, without redundancy, and mount it on each
/// host. If a host fails, the command removes the file system from all hosts. Refuses the name of a
/// running file system
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct StartArgs {
    /// Number of the user that owns the top directory [default: every user may write to it; with
    /// --job the user of the job]
    #[arg(long, value_name = "UID")]
    owner: Option<u32>,
    #[command(flatten)]
    ondemand: OndemandArgs,
}

pub(crate) fn run(args: &StartArgs) -> Result<()> {
    const WHAT: &str = "start the file system";
    let (system, run, reach) = args.ondemand.start(args.owner)?;
    if matches!(reach, Reach::Ssh) {
        // During a start, the hosts wait for each other. So check before the start that all hosts
        // can take part.
        let checked = system.run(Command::Check, Some(&run), &reach)?;
        if let Some(error) = failure(WHAT, &checked) {
            return Err(error);
        }
    }
    let outcome = system.run(Command::Start, Some(&run), &reach)?;
    if let Some(error) = failure(WHAT, &outcome) {
        // All starts in a job have the same run, so a refused start must not remove the running
        // file system. The script on this node has removed its own part, and the epilog removes the
        // rest.
        if matches!(reach, Reach::Here(_)) {
            return Err(error);
        }
        // The hosts that failed have removed their parts themselves. Other runs are not touched.
        let removed = system.run(Command::Stop, Some(&run), &reach)?;
        return Err(match failure("remove the parts of", &removed) {
            Some(second) => error.within(second.context()),
            None => error,
        });
    }
    print(&outcome, |outcome| {
        format!(
            "Mounted {} on {} of {} hosts ({:.1} s)",
            outcome.name,
            outcome.mount,
            outcome.hosts.len(),
            outcome.seconds
        )
    })
}
