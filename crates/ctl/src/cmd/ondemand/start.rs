//! `skep ondemand start`: makes a file system of the local disks of a job's hosts, and mounts it on
//! each host.

use super::args::{OndemandArgs, failure};
use super::{job_input, staging};
use crate::cmd::copy::store::StoreArgs;
use crate::help::{Example, examples};
use crate::output::print;
use crate::slurm_job::allow_tasks;
use skep_deploy::ondemand::{Command, Reach};
use skep_types::Result;

const EXAMPLES: &[Example] = &[
    (
        "start a file system over ssh on the hosts that a file lists",
        "skep ondemand start --hosts nodes --mount /scratch",
    ),
    (
        "copy input into the file system, and name the results that `stop` must copy out first",
        "skep ondemand start --hosts nodes --stage-in /scratch/in --stage-out output:/scratch/out",
    ),
    (
        "stage data in from an object store, and results out",
        "skep ondemand start --hosts nodes --stage-in s3://data/in --stage-out out:s3://data/out",
    ),
    (
        "start a file system in the prolog of a Slurm job",
        "skep ondemand start --job --directory /local",
    ),
];

/// Make a file system of the local disks of all hosts, without redundancy, and mount it on each
/// host. If a host fails, the command removes the file system from all hosts. Refuses the name of a
/// running file system
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct StartArgs {
    /// Id of the user that owns the top directory [default: every user may write to it; with
    /// --job the user of the job]
    #[arg(long, value_name = "UID")]
    owner: Option<u32>,
    /// Data to copy into the file system before the command ends, by all hosts. SRC is a path
    /// or s3://bucket/key. DST is below the mount point [default: the name of SRC]. Can be repeated
    #[arg(long, value_name = "SRC[:DST]", conflicts_with = "job")]
    stage_in: Vec<String>,
    /// Data that `skep ondemand stop` copies out before the removal. SRC is below the mount point
    /// [default: the whole file system]. DST is a path or s3://bucket/key. Can be repeated
    #[arg(long, value_name = "[SRC:]DST", conflicts_with = "job")]
    stage_out: Vec<String>,
    #[command(flatten)]
    ondemand: OndemandArgs,
    #[command(flatten)]
    store: StoreArgs,
}

pub(crate) fn run(args: &StartArgs) -> Result<()> {
    const WHAT: &str = "start the file system";
    let (mut system, run, reach) = args.ondemand.start(args.owner)?;
    let inputs = args.stage_in.iter().map(|it| staging::stage_in(&system.mount, it));
    let inputs = inputs.collect::<Result<Vec<_>>>()?;
    system.sources = staging::paths(&inputs);
    let outputs = args.stage_out.iter().map(|it| staging::stage_out(&system.mount, it));
    system.stage_out = outputs.collect::<Result<Vec<_>>>()?;
    system.check()?;
    let stores = staging::stores(&args.store, &inputs, &system.stage_out)?;
    if matches!(reach, Reach::Ssh) {
        // During a start, the hosts wait for each other. For this reason, check first whether all
        // hosts can take part.
        let checked = system.run(Command::Check, Some(&run), &reach)?;
        if let Some(error) = failure(WHAT, &checked) {
            return Err(error);
        }
    }
    if matches!(reach, Reach::Here(_)) {
        allow_tasks()?;
    }
    let outcome = system.run(Command::Start, Some(&run), &reach)?;
    if let Some(error) = failure(WHAT, &outcome) {
        // All starts of a job have the same `run`. So after a refused start, `Stop` with this `run`
        // would remove the file system that an earlier start has created. The script has already
        // removed the parts that this start created on this node. The epilog of the job removes all
        // other parts.
        if matches!(reach, Reach::Here(_)) {
            return Err(error);
        }
        // The hosts that failed have removed their parts themselves. `Stop` removes the parts on
        // the other hosts. `Stop` with this `run` removes no parts of other runs.
        let removed = system.run(Command::Stop, Some(&run), &reach)?;
        return Err(match failure("remove the parts of", &removed) {
            Some(second) => error.within(second.context()),
            None => error,
        });
    }
    match &reach {
        Reach::Here(here) => job_input::prepare(&mut system, here)?,
        Reach::Ssh => staging::run_in(&system, &inputs, stores.as_ref())?,
    }
    print(&outcome, |outcome| {
        format!(
            "Mounted {} on {} of {} hosts ({:.1} s){}",
            outcome.name,
            outcome.mount,
            outcome.hosts.len(),
            outcome.seconds,
            staging::kept_data(&outcome.hosts)
        )
    })
}
