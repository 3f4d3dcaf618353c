//! In the prolog, prepares the copies that lines of a Slurm job's script ask for
//! (`skep_deploy::job_lines`). The first node copies the input for all nodes. Each node records the
//! copies of results that `job_output` makes after the job.
//!
//! Slurm starts the script on the first node only after the prolog of this node has ended.
//!
//! # Invariants
//! - A process with the rights of the user makes each copy. Root opens no path from the script.
//! - An error of the user never fails a prolog, because Slurm would drain the node. The prolog
//!   holds the job and reports the reason, and the epilog removes the file system.
//! - A task of a job whose input is missing never begins, even if Slurm receives the hold late.
//! - Before a command of the job begins, each node has recorded the copies of results.
//!
//! The invariants concern several nodes and Slurm, so no function here can check them.
//!
//! Held by the external check `slurm_jobs_get_an_on_demand_file_system`, and by the tests
//! `stage_out_lines_copy_results_before_removal_of_the_data` (the recorded copies) and
//! `tasks_of_a_job_are_refused_until_the_same_job_is_allowed`.

use super::job_copy::JobCopy;
use super::job_output;
use super::job_results::Record;
use super::staging::{StageIn, stage_in, stage_out};
use crate::cmd::copy::hosts_as_text;
use crate::output::warn;
use crate::slurm_job::Job;
use skep_deploy::job_lines;
use skep_deploy::ondemand::{OnDemand, StageOut};
use skep_types::{Error, ErrorCode, Result};

/// Copies the input that the script of the job requests, and records the copies of results. If a
/// copy fails, holds the job. `here` is the name of this node.
///
/// # Errors
/// - `NotFound` if Slurm does not send the script.
/// - `Io` if the tasks of the job cannot be refused, or if this node cannot record the copies of
///   results.
pub(super) fn prepare(system: &mut OnDemand, here: &str) -> Result<()> {
    let job = Job::of_prolog()?;
    let script = job.script()?;
    let copies = copies(system, &script, job.id());
    let is_first = system.hosts.first().is_some_and(|it| it == here);
    let result = match copies {
        // The first node reports the error, and the job does not begin.
        Err(_) if !is_first => return Ok(()),
        Err(error) => Err((error, false)),
        Ok((inputs, outputs)) => {
            let has_outputs = !outputs.is_empty();
            job_output::note(system, &job, here, outputs)?;
            match is_first {
                true => copy_all(&job, here, &inputs, &Record::at(&system.mount))
                    .map_err(|error| (error, has_outputs)),
                false => return Ok(()),
            }
        }
    };
    let Err((error, has_outputs)) = result else { return Ok(()) };
    if has_outputs {
        job_output::note_never_begun(system)?;
    }
    warn(&format!("cannot begin job {}: {}", job.id(), error.context()));
    job.refuse()?;
    job.hold(error.context());
    Ok(())
}

/// Returns the copies that a script asks for, before and after the job.
fn copies(system: &OnDemand, script: &str, job: &str) -> Result<(Vec<StageIn>, Vec<StageOut>)> {
    let lines = job_lines::parse(script, job)?;
    let inputs = lines.stage_in.iter().map(|it| stage_in(&system.mount, it));
    let outputs = lines.stage_out.iter().map(|it| stage_out(&system.mount, it));
    Ok((inputs.collect::<Result<_>>()?, outputs.collect::<Result<_>>()?))
}

fn copy_all(job: &Job, here: &str, inputs: &[StageIn], record: &Record) -> Result<()> {
    for it in inputs {
        let copy = JobCopy {
            job,
            host: here,
            source: &it.source,
            destination: &it.destination,
            // Sync nothing, because the file system has no redundancy, so a power loss of a host
            // loses the data even after a sync.
            sync: false,
        };
        let outcome = copy.run(&mut |progress| {
            job_output::show_progress(record, "staging in", &it.source, progress);
            match job.has_ended() {
                true => Err(Error::new(ErrorCode::Interrupted, "the job has ended")),
                false => Ok(()),
            }
        });
        let outcome =
            outcome.map_err(|error| error.within(format!("cannot stage in {}", it.source)))?;
        warn(&format!("staged in {}: {}", it.source, hosts_as_text(&outcome)));
    }
    if !inputs.is_empty() {
        job_output::show_running(record)?;
    }
    Ok(())
}
