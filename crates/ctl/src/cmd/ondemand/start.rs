//! `skep ondemand start`: makes and mounts a file system of the hosts of a job.

use super::args::{OndemandArgs, failure};
use super::staging;
use crate::help::{Example, examples};
use crate::output::print;
use skep_deploy::ondemand::{Command, Reach};
use skep_types::Result;

const EXAMPLES: &[Example] = &[
    ("of the hosts in a file, by ssh", "skep ondemand start --hosts nodes --mount /scratch"),
    (
        "with input, and with results that `stop` must copy before it removes them",
        "skep ondemand start --hosts nodes --stage-in /scratch/in --stage-out output:/scratch/out",
    ),
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
    /// Data to copy into the file system before the command ends, by all hosts. DST is below the
    /// mount point [default: the name of SRC]. Can be repeated
    #[arg(long, value_name = "SRC[:DST]", conflicts_with = "job")]
    stage_in: Vec<String>,
    /// Data that `skep ondemand stop` copies out before the removal. SRC is below the mount point
    /// [default: the whole file system]. Can be repeated
    #[arg(long, value_name = "[SRC:]DST", conflicts_with = "job")]
    stage_out: Vec<String>,
    #[command(flatten)]
    ondemand: OndemandArgs,
}

pub(crate) fn run(args: &StartArgs) -> Result<()> {
    const WHAT: &str = "start the file system";
    let (mut system, run, reach) = args.ondemand.start(args.owner)?;
    let inputs = args.stage_in.iter().map(|it| staging::stage_in(&system.mount, it));
    let inputs = inputs.collect::<Result<Vec<_>>>()?;
    system.sources = inputs.iter().map(|it| it.source.clone()).collect();
    let outputs = args.stage_out.iter().map(|it| staging::stage_out(&system.mount, it));
    system.stage_out = outputs.collect::<Result<Vec<_>>>()?;
    system.check()?;
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
        // file system. The script has already removed what this start created on this node. The
        // epilog removes everything else.
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
    staging::run_in(&system, &inputs)?;
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
