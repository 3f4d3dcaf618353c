//! Jobs of an ordinary user whose scripts name input and results in `#SKEP` lines. The prolog
//! copies the input, all nodes compute, and the epilog copies the results out: after the end of the
//! job, and after `scancel`. If a node dies, a part of the data is lost. The copy of the results
//! then fails with this reason, and the other nodes keep the data until an administrator discards
//! it.

use super::site::{PATIENCE, Slurm};
use skep_testkit::ssh_site::SharedDirectory;
use std::time::Duration;

/// Time limit for the end of a job after the death of a node. Slurm ends the job when the node has
/// been silent for `SlurmdTimeout`. After the end of the job, the copy of the first node fails, and
/// the other nodes wait for a new attempt.
const LONG: Duration = Duration::from_secs(600);

/// Commands of a job. Each node encodes a part of the files in the input.
const COMPUTE: &str = "set -e; mkdir /mnt/ondemand/output\n\
    srun sh -ec 'cd /mnt/ondemand/input; turn=0\n\
    for name in *; do\n\
    if [ $((turn % SLURM_NTASKS)) = \"$SLURM_PROCID\" ]; then\n\
    base64 $name >../output/$name\n\
    fi\n\
    turn=$((turn + 1))\n\
    done'";

/// Creates the input of the jobs, and the checksums of the results that a job must compute from
/// this input.
fn make_input(slurm: &Slurm, top: &str) {
    let script = format!(
        "mkdir {top}/input {top}/out; chown daemon {top}/out; cd {top}/input\n\
         for number in $(seq 40); do head -c 30000 /dev/urandom >file-$number; done\n\
         head -c 4M /dev/urandom >large\n\
         for name in *; do base64 $name | sha256sum | sed \"s/-$/$name/\"; done >../sums"
    );
    slurm.control.run(&script).expect_success();
}

/// Returns the lines of a script for the copies before and after the job.
fn lines(top: &str) -> String {
    format!("#SKEP stage-in {top}/input\n#SKEP stage-out output:{top}/out/run-%j")
}

/// Submits a job that computes its results, and then runs until the test ends the job. Waits until
/// all results exist.
fn submit_and_compute(slurm: &Slurm, top: &str, lines: &str, rest: &str) -> String {
    let commands = format!("{COMPUTE}\ntouch {top}/out/computed-$SLURM_JOB_ID\n{rest}");
    let job = slurm.submit_lines(top, lines, &commands);
    slurm.await_that(&format!("job {job} has computed"), PATIENCE, || {
        let look =
            format!("cat {top}/out/{job}; scontrol show job {job}; ls {top}/out/computed-{job}");
        let found = slurm.control.run(&look);
        if found.status.success() { Ok(()) } else { Err(found.stdout + &found.stderr) }
    });
    job
}

/// Checks that the results of a job are complete, have the expected checksums, and belong to the
/// user of the job.
fn expect_saved(slurm: &Slurm, top: &str, job: &str) {
    let look =
        format!("cd {top}/out/run-{job}; sha256sum * | diff {top}/sums -; stat -c %U * | sort -u");
    let found = slurm.control.run(&look);
    let output = slurm.control.run(&format!("cat {top}/out/{job}")).stdout;
    assert!(
        found.status.success() && found.stdout == "daemon\n",
        "the results of job {job} differ from {top}/sums:\n{}{}\nits output: {output}",
        found.stdout,
        found.stderr
    );
}

/// Checks a job that ends by itself, and a job that a user cancels. For both jobs, the epilog must
/// copy the results before it removes the file system.
pub(super) fn expect_results_of_ended_jobs(slurm: &Slurm, all: &[usize]) {
    let shared = SharedDirectory::new("results");
    let top = shared.path();
    make_input(slurm, top);
    let job = slurm.submit_lines(top, &lines(top), COMPUTE);
    slurm.await_state(&job, "COMPLETED");
    expect_saved(slurm, top, &job);
    slurm.await_removal(all);
    slurm.await_idle();

    let job = submit_and_compute(slurm, top, &lines(top), "srun sleep 600");
    let shown = slurm.ondemand(2, &job, "status").expect_success();
    for words in ["Copies of the job: the job has not ended", &format!("{top}/out/run-{job}")] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    slurm.control.run(&format!("scancel {job}")).expect_success();
    slurm.await_state(&job, "CANCELLED");
    expect_saved(slurm, top, &job);
    slurm.await_removal(all);
    slurm.await_idle();
}

/// Checks a job that has lost a node. The user gets the reason, no node removes the remaining data,
/// and nothing is left after an administrator has discarded the data.
pub(super) fn expect_lost_node(slurm: &mut Slurm) {
    let shared = SharedDirectory::new("lost-node");
    let top = shared.path();
    make_input(slurm, top);
    // Without `--no-requeue`, Slurm would start the job a second time.
    let lines = format!("#SBATCH --no-requeue\n{}", lines(top));
    // The job runs no step on the node that the test kills, so only the death of this node ends the
    // job.
    let job = submit_and_compute(slurm, top, &lines, "sleep 600");
    slurm.kill_node(3);
    slurm.await_state_within(LONG, &job, "NODE_FAIL");
    let output = slurm.control.run(&format!("cat {top}/out/{job}")).expect_success();
    let reasons = ["cannot stage out /mnt/ondemand/output", "10.0.0.3:7602", "nothing was removed"];
    for reason in reasons {
        assert!(output.contains(reason), "{reason} is not in the output of the job: {output}");
    }
    for node in [1, 2, 4] {
        let shown = slurm.ondemand(node, &job, "status").expect_success();
        assert!(shown.contains("Copies of the job: cannot stage out"), "n{node}: {shown}");
    }
    slurm.await_nodes("drained", 3);
    for node in [1, 2, 4] {
        slurm.ondemand(node, &job, "stop --discard").expect_success();
    }
    slurm.await_removal(&[1, 2, 4]);
    slurm.resume("n[1-2,4]");
    slurm.revive_node(3);
}
