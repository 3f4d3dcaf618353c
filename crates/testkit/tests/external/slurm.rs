//! Jobs of a real Slurm on four nodes. A line in its script gives a job a file system on demand.
//! Nothing of the file system may be left after the end of the job, after `scancel`, and after the
//! death of a node. All nodes together copy the input of a job, and its results. Lines of a script
//! ask for input that the prolog copies with the rights of the user.

use skep_testkit::page::{PageHost, PageNetwork};
use skep_testkit::ssh_site::SharedDirectory;
use skep_testkit::{files, wait_for};
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

const NODES: usize = 4;
/// Time limit for a change of a job's state. A job may have to wait for the scheduler, for the
/// prolog on all nodes, and for the end of cancelled steps.
const PATIENCE: Duration = Duration::from_secs(120);

struct Slurm {
    // Fields are dropped in this order, because the hosts must end before their switch.
    nodes: Vec<PageHost>,
    control: PageHost,
    _network: PageNetwork,
}

fn settings() -> String {
    let mut text = "ClusterName=test\nSlurmctldHost=control(10.0.0.99)\nSlurmUser=root\n\
        AuthType=auth/munge\nCryptoType=crypto/munge\nStateSaveLocation=/srv/state\n\
        SlurmdSpoolDir=/srv/spool\nSlurmctldPidFile=/srv/slurmctld.pid\n\
        SlurmdPidFile=/srv/slurmd.pid\nProctrackType=proctrack/pgid\nTaskPlugin=task/none\n\
        MpiDefault=none\nReturnToService=2\nSlurmdTimeout=20\nKillWait=2\n\
        SelectType=select/cons_tres\nPrologFlags=Alloc\nProlog=/srv/prolog.sh\n\
        Epilog=/srv/epilog.sh\nTaskProlog=/srv/task-prolog.sh\n"
        .to_owned();
    for node in 1..=NODES {
        let _ =
            writeln!(text, "NodeName=n{node} NodeAddr=10.0.0.{node} Feature=skep State=UNKNOWN");
    }
    text + &format!("PartitionName=all Nodes=n[1-{NODES}] Default=YES State=UP\n")
}

impl Slurm {
    fn new() -> Self {
        let network = PageNetwork::new();
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/slurm");
        let [prolog, epilog, task_prolog] = ["prolog.sh", "epilog.sh", "task-prolog.sh"]
            .map(|name| files::read_to_string(directory.join(name)));
        let names: String = (1..=NODES).map(|it| format!("10.0.0.{it} n{it}\n")).collect();
        let names = format!("127.0.0.1 localhost\n10.0.0.99 control\n{names}");
        let settings = settings();
        let host = |name: &str, address: usize, daemon: &str| {
            let mut host = network.host(name, &format!("10.0.0.{address}/24"));
            host.run(&format!(
                "strip /usr/bin/skep; rm -rf /run/skep\n\
                 mkdir -p /srv/local /srv/state /srv/spool /etc/slurm /etc/skep /run/munge\n\
                 mount --bind /srv/local /var/lib\n\
                 cat >/etc/hosts <<'END OF FILE'\n{names}END OF FILE\n\
                 cat >/etc/slurm/slurm.conf <<'END OF FILE'\n{settings}END OF FILE\n\
                 echo 'CgroupPlugin=cgroup/v1' >/etc/slurm/cgroup.conf\n\
                 cat >/srv/prolog.sh <<'END OF FILE'\n{prolog}END OF FILE\n\
                 cat >/srv/epilog.sh <<'END OF FILE'\n{epilog}END OF FILE\n\
                 cat >/srv/task-prolog.sh <<'END OF FILE'\n{task_prolog}END OF FILE\n\
                 chmod 755 /srv/*.sh\n\
                 (umask 077; printf %032d 7 >/etc/skep/ondemand.secret)\n\
                 mkdir -p /var/lib/munge /var/log/munge; chmod 755 /run/munge\n\
                 chown -R munge /run/munge /var/lib/munge /var/log/munge /etc/munge\n\
                 su munge -s /bin/sh -c 'munged --force'"
            ))
            .expect_success();
            start(&mut host, daemon);
            host
        };
        let control = host("control", 99, "slurmctld -D");
        let nodes = (1..=NODES)
            .map(|node| host(&format!("n{node}"), node, &format!("slurmd -D -N n{node}")))
            .collect();
        Self { nodes, control, _network: network }
    }

    /// Submits a job on all nodes. Returns the job's number.
    fn submit(&self, script: &str, constraint: &str) -> String {
        let line = format!(
            "cat >/srv/job.sh <<'END OF FILE'\n#!/bin/sh\n#SBATCH {constraint}\n{script}\n\
             END OF FILE\n\
             sbatch --parsable -N{NODES} --chdir=/srv --output=/srv/output /srv/job.sh"
        );
        self.control.run(&line).expect_success().trim().to_owned()
    }

    fn await_state(&self, job: &str, state: &str) {
        wait_for(&format!("job {job} is {state}"), PATIENCE, || {
            let shown = self.control.run(&format!("scontrol show job {job}")).stdout;
            // Slurm already shows a job as running while the prolog runs.
            let is_there = shown.contains(&format!("JobState={state}"));
            let is_ready = state != "RUNNING" || !shown.contains("Reason=Prolog");
            (is_there && is_ready).then_some(())
        });
    }

    /// Waits until no file, mount or process of an on-demand file system is left on the nodes.
    fn await_removal(&self, nodes: &[usize]) {
        let look = "ls -d /var/lib/skep-ondemand /mnt/ondemand 2>/dev/null || true\n\
            ls /run/skep-refused-jobs 2>/dev/null || true\n\
            grep fuse.skep /proc/mounts || true; own=$(readlink /proc/self/ns/net)\n\
            for process in /proc/[0-9]*; do\n\
            if [ \"$(readlink $process/ns/net)\" = \"$own\" ]; then cat $process/comm; fi\n\
            done 2>/dev/null | grep '^skep' || true";
        for node in nodes {
            wait_for("nothing is left", PATIENCE, || {
                let left = self.nodes[node - 1].run(look);
                (left.stdout.is_empty() && left.status.success()).then_some(())
            });
        }
    }
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
    wait_for("the nodes are drained", PATIENCE, || {
        let shown = slurm.control.run("sinfo --noheader --states=drained -o %D").stdout;
        (shown.trim() == NODES.to_string()).then_some(())
    });
    slurm.nodes[2]
        .run("cat /mnt/ondemand/.skep-hold; rm /mnt/ondemand/.skep-hold")
        .expect_success();
    for node in &slurm.nodes {
        // Run the command under the host's own name, as slurmd does. The command refuses to stop
        // the parts on other hosts.
        let stop = format!("hostname {}; SLURM_JOB_ID={job} skep ondemand stop --job", node.name());
        node.run(&format!("unshare --uts sh -ec '{stop}'")).expect_success();
    }
    slurm.await_removal(all);
    let resume = format!("scontrol update nodename=n[1-{NODES}] state=resume");
    slurm.control.run(&resume).expect_success();
    wait_for("all nodes are idle", PATIENCE, || {
        let shown = slurm.control.run("sinfo --noheader --states=idle -o %D").stdout;
        (shown.trim() == NODES.to_string()).then_some(())
    });
}

/// Checks jobs of an ordinary user whose scripts ask for input in their lines. A job whose input
/// cannot be copied is held with the reason, and its nodes are not drained.
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
    let submit = |lines: &str, commands: &str| {
        let line = format!(
            "cat >{top}/job.sh <<'END OF FILE'\n#!/bin/sh\n#SBATCH --constraint=skep\n{lines}\n\
             {commands}\nEND OF FILE\nchmod 644 {top}/job.sh\n\
             sbatch --parsable --uid=daemon --gid=daemon -N{NODES} --chdir=/srv \
             --output={top}/out/%j {top}/job.sh"
        );
        slurm.control.run(&line).expect_success().trim().to_owned()
    };
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
        wait_for(&format!("the job of {line} is held"), PATIENCE, || {
            let shown = slurm.control.run(&format!("scontrol show job {job}")).stdout;
            let is_held = shown.contains("JobState=SPECIAL_EXIT");
            (is_held && shown.contains("AdminComment=skep: ")).then_some(())
        });
        let output = read(&job);
        assert!(output.contains(words) && output.starts_with("skep: "), "{line}: {output}");
        assert!(!output.contains("started"), "{line}: {output}");
        slurm.await_removal(all);
        slurm.control.run(&format!("scancel {job}")).expect_success();
    }

    // Slurm can hold the job too late, after it started the script. On this node, `scontrol`
    // ignores the request, so that the job is never held.
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
    wait_for("no node is drained", PATIENCE, || {
        let shown = slurm.control.run("sinfo --noheader --states=idle -o %D").stdout;
        (shown.trim() == NODES.to_string()).then_some(())
    });
}

/// Starts a daemon of Slurm. For the daemon, the hostname is the name of the host.
fn start(host: &mut PageHost, daemon: &str) {
    let name = host.name().to_owned();
    host.start(&format!("unshare --uts sh -c 'hostname {name}; exec {daemon}'"));
}

pub(crate) fn jobs_get_a_file_system_on_demand(_: &()) {
    let mut slurm = Slurm::new();
    let all: Vec<usize> = (1..=NODES).collect();
    wait_for("all nodes are idle", PATIENCE, || {
        let shown = slurm.control.run("sinfo --noheader --states=idle -o %D").stdout;
        (shown.trim() == NODES.to_string()).then_some(())
    });
    let constraint = "--constraint=skep";
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

    let job = slurm.submit("srun sleep 600", constraint);
    slurm.await_state(&job, "RUNNING");
    slurm.nodes[1].run("mountpoint /mnt/ondemand").expect_success();
    slurm.control.run(&format!("scancel {job}")).expect_success();
    slurm.await_state(&job, "CANCELLED");
    slurm.await_removal(&all);

    // Kill all processes of Slurm and Skep on a node. The directory of the file system stays on the
    // node, as after a crash.
    let job = slurm.submit("srun sleep 600", constraint);
    slurm.await_state(&job, "RUNNING");
    slurm.nodes[2]
        .run(
            "own=$(readlink /proc/self/ns/net)\n\
             for found in $(grep -ls -e '^skep' -e '^slurm' /proc/[0-9]*/comm); do\n\
             process=${found%/comm}; [ \"$(readlink $process/ns/net)\" = \"$own\" ] || continue\n\
             kill -9 ${process#/proc/} || true\ndone\n\
             echo another >$(ls -d /var/lib/skep-ondemand/job-*)/boot; umount -l /mnt/ondemand",
        )
        .expect_success();
    slurm.control.run(&format!("scancel {job}")).expect_success();
    slurm.await_state(&job, "CANCELLED");
    slurm.await_removal(&[1, 2, 4]);
    start(&mut slurm.nodes[2], "slurmd -D -N n3");
    let job = slurm.submit("mountpoint /mnt/ondemand", constraint);
    slurm.await_state(&job, "COMPLETED");
    slurm.await_removal(&all);
}
