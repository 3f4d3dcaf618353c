//! Jobs of a real Slurm on four nodes. A line in the job script requests an on-demand file system.
//! Nothing of this file system may be left after the end of the job, after `scancel`, or after the
//! death of a node. All nodes together copy the input and the results of a job. Further lines in
//! the script name the input and the results. The prolog copies the input with the rights of the
//! user, and the epilog copies the results.

mod results;
mod site;

use site::{NODES, PATIENCE, Slurm};
use skep_testkit::ssh_site::SharedDirectory;

/// Maximum time from the start of a job to the mount on the last of its nodes, in seconds.
const MOST_SECONDS: f64 = 5.0;

/// Checks that the file system is mounted on all nodes soon after the start of the job.
fn expect_prompt_mount(slurm: &Slurm, all: &[usize]) {
    // `skep ondemand start` creates this file when programs can use the mount on the node.
    let complete = "/var/lib/skep-ondemand/job-$SLURM_JOB_ID.*/complete";
    let script = format!("srun sh -c \"stat -c 'mounted %.Y' {complete}; cat /srv/began\"");
    let job = slurm.submit(&script, "--constraint=skep");
    slurm.await_state(&job, "COMPLETED");
    let output = slurm.nodes[0].run("cat /srv/output").expect_success();
    let (mounted, began): (Vec<&str>, Vec<&str>) =
        output.lines().partition(|line| line.starts_with("mounted "));
    let first = began.into_iter().map(seconds).fold(f64::INFINITY, f64::min);
    let delays: Vec<f64> = mounted.into_iter().map(|it| seconds(it) - first).collect();
    println!("the nodes mounted {delays:.2?} s after the start of the first prolog");
    assert_eq!(delays.len(), NODES, "{output}");
    assert!(delays.iter().all(|it| (0.0..=MOST_SECONDS).contains(it)), "{delays:?}: {output}");
    slurm.await_removal(all);
}

/// Returns the time in a line of the job's output, in seconds.
fn seconds(line: &str) -> f64 {
    let text = line.trim_start_matches("mounted ");
    text.parse().unwrap_or_else(|_| panic!("no time is in the line '{line}'"))
}

/// Checks a job whose nodes copy its input and its results together. The file system must stay
/// until the results are saved, even after the end of the job.
fn expect_staging(slurm: &Slurm, all: &[usize]) {
    let shared = SharedDirectory::new("slurm");
    let top = shared.path();
    slurm
        .control
        .run(&format!(
            "mkdir {top}/input; cd {top}/input\n\
             for number in $(seq 40); do head -c 30000 /dev/urandom >file-$number; done\n\
             truncate -s 200M large; printf end >>large"
        ))
        .expect_success();
    let script = format!(
        "skep copy --job --verify {top}/input /mnt/ondemand/input || exit 1\n\
         echo results >/mnt/ondemand/.skep-hold\n\
         skep copy --job --verify /mnt/ondemand/input {top}/output"
    );
    let job = slurm.submit(&script, "--constraint=skep");
    slurm.await_state(&job, "COMPLETED");
    let output = slurm.nodes[0].run("cat /srv/output").expect_success();
    assert_eq!(output.matches("4 of 4 hosts have copied").count(), 2, "{output}");
    slurm.control.run(&format!("diff -r {top}/input {top}/output")).expect_success();
    slurm.await_nodes("drained", NODES);
    slurm.nodes[2]
        .run("cat /mnt/ondemand/.skep-hold; rm /mnt/ondemand/.skep-hold")
        .expect_success();
    for node in all {
        slurm.ondemand(*node, &job, "stop").expect_success();
    }
    slurm.await_removal(all);
    slurm.resume(&format!("n[1-{NODES}]"));
    slurm.await_idle();
}

/// Checks jobs of an ordinary user whose scripts name input in `#SKEP` lines. If the input cannot
/// be copied, Slurm holds the job, shows the reason, and does not drain the nodes.
fn expect_input_lines(slurm: &Slurm, all: &[usize]) {
    let shared = SharedDirectory::new("lines");
    let top = shared.path();
    slurm
        .control
        .run(&format!(
            "mkdir {top}/input {top}/secret; cd {top}\n\
             for number in $(seq 40); do echo $number >input/file-$number; done\n\
             echo root >secret/file; chmod 600 secret/file; chmod 700 secret\n\
             ln -s {top}/secret/file input/link; mkdir out; chown daemon out"
        ))
        .expect_success();
    let submit = |lines: &str, commands: &str| slurm.submit_lines(top, lines, commands);
    let read = |job: &str| slurm.control.run(&format!("cat {top}/out/{job}")).expect_success();
    let lines = format!("#SKEP stage-in {top}/input\n#SKEP stage-in {top}/input/file-7:x-%j/y");
    let job = submit(
        &lines,
        "ls /mnt/ondemand/input | wc -l; cat /mnt/ondemand/x-$SLURM_JOB_ID/y\n\
         stat -c %U /mnt/ondemand/input/file-1\n\
         srun sh -c 'cat /mnt/ondemand/input/file-40'",
    );
    slurm.await_state(&job, "COMPLETED");
    assert_eq!(read(&job), "41\n7\ndaemon\n40\n40\n40\n40\n");
    slurm.await_removal(all);

    let cases = [
        (format!("stage-in {top}/missing"), "missing: it does not exist"),
        (format!("stage-in {top}/secret"), "ermission denied"),
        ("stage-in /tmp/$(reboot)".to_owned(), "line 3 of the script"),
    ];
    for (line, words) in &cases {
        let job = submit(&format!("#SKEP {line}"), "echo started");
        slurm.await_that(&format!("the job of {line} is held"), PATIENCE, || {
            let shown = slurm.control.run(&format!("scontrol show job {job}")).stdout;
            let is_held = shown.contains("JobState=SPECIAL_EXIT");
            let has_reason = shown.contains("AdminComment=skep: ");
            if is_held && has_reason { Ok(()) } else { Err(shown) }
        });
        let shown = slurm.control.run(&format!("scontrol show job {job}")).expect_success();
        assert!(shown.contains(words), "{line}: {shown}");
        // If Slurm cancels the script before its first line, only Slurm writes to the output.
        let output = read(&job);
        let has_reason = output.contains(words) && output.starts_with("skep: ");
        assert!(has_reason || output.contains("DUE TO JOB REQUEUE"), "{line}: {output}");
        assert!(!output.contains("started"), "{line}: {output}");
        slurm.await_removal(all);
        slurm.control.run(&format!("scancel {job}")).expect_success();
    }

    // Slurm may hold a job too late, when the job's script has already started. To simulate this,
    // `scontrol` on this node ignores the hold request, so the job is never held.
    let late_hold = "cp /usr/bin/scontrol /srv/scontrol\n\
        cat >/srv/late-scontrol <<'END OF FILE'\n#!/bin/sh\n\
        [ \"$1\" != requeuehold ] || exec touch /srv/held\nexec /srv/scontrol \"$@\"\n\
        END OF FILE\n\
        chmod 755 /srv/late-scontrol; mount --bind /srv/late-scontrol /usr/bin/scontrol";
    slurm.nodes[0].run(late_hold).expect_success();
    let job = submit(&format!("#SKEP stage-in {top}/missing"), "echo started");
    slurm.await_state(&job, "FAILED");
    assert!(!read(&job).contains("started"), "{}", read(&job));
    slurm.nodes[0].run("ls /srv/held; umount /usr/bin/scontrol").expect_success();
    slurm.await_removal(all);
    slurm.await_idle();
}

pub(crate) fn slurm_jobs_get_an_on_demand_file_system(_: &()) {
    let mut slurm = Slurm::new();
    let all: Vec<usize> = (1..=NODES).collect();
    let constraint = "--constraint=skep";
    expect_prompt_mount(&slurm, &all);
    let job = slurm.submit(
        "srun sh -c 'cd /mnt/ondemand && mountpoint -q . && \
         echo $SLURMD_NODENAME >$SLURMD_NODENAME'\n\
         cat /mnt/ondemand/n*",
        constraint,
    );
    slurm.await_state(&job, "COMPLETED");
    // The first node runs the script of the job.
    let output = slurm.nodes[0].run("cat /srv/output").expect_success();
    assert_eq!(output, "n1\nn2\nn3\nn4\n");
    slurm.await_removal(&all);
    expect_staging(&slurm, &all);
    expect_input_lines(&slurm, &all);
    results::expect_results_of_ended_jobs(&slurm, &all);

    let job = slurm.submit("srun sleep 600", constraint);
    slurm.await_state(&job, "RUNNING");
    slurm.nodes[1].run("mountpoint /mnt/ondemand").expect_success();
    slurm.control.run(&format!("scancel {job}")).expect_success();
    slurm.await_state(&job, "CANCELLED");
    slurm.await_removal(&all);

    let job = slurm.submit("srun sleep 600", constraint);
    slurm.await_state(&job, "RUNNING");
    slurm.kill_node(3);
    slurm.control.run(&format!("scancel {job}")).expect_success();
    slurm.await_state(&job, "CANCELLED");
    slurm.await_removal(&[1, 2, 4]);
    slurm.revive_node(3);
    results::expect_lost_node(&mut slurm);
}
