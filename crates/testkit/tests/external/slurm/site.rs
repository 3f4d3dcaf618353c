//! A real Slurm on four nodes, each with its own network and root directory. The functions wait for
//! states of jobs and nodes. If a job or node does not reach a state in time, the function panics
//! with the states that it found.

use skep_testkit::page::{PageHost, PageNetwork};
use skep_testkit::program::Finished;
use skep_testkit::{eventually, files};
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

pub(super) const NODES: usize = 4;
/// Time limit for a change of a job's state. A job may have to wait for the scheduler, for the
/// prolog on all nodes, and for the end of cancelled steps.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);
/// Records the time at which slurmd starts the prolog of a job, and runs the prolog.
const TIMED_PROLOG: &str = "#!/bin/sh\ndate +%s.%N >/srv/began\nexec /srv/prolog.sh\n";

pub(super) struct Slurm {
    // The hosts must be dropped before their switch, and Rust drops fields in the order of their
    // declaration.
    pub(super) nodes: Vec<PageHost>,
    pub(super) control: PageHost,
    _network: PageNetwork,
}

fn settings() -> String {
    let mut text = "ClusterName=test\nSlurmctldHost=control(10.0.0.99)\nSlurmUser=root\n\
        AuthType=auth/munge\nCryptoType=crypto/munge\nStateSaveLocation=/srv/state\n\
        SlurmdSpoolDir=/srv/spool\nSlurmctldPidFile=/srv/slurmctld.pid\n\
        SlurmdPidFile=/srv/slurmd.pid\nProctrackType=proctrack/pgid\nTaskPlugin=task/none\n\
        MpiDefault=none\nReturnToService=2\nSlurmdTimeout=20\nKillWait=2\n\
        SelectType=select/cons_tres\nPrologFlags=Alloc\nProlog=/srv/timed-prolog.sh\n\
        Epilog=/srv/epilog.sh\nTaskProlog=/srv/task-prolog.sh\n"
        .to_owned();
    for node in 1..=NODES {
        let _ =
            writeln!(text, "NodeName=n{node} NodeAddr=10.0.0.{node} Feature=skep State=UNKNOWN");
    }
    text + &format!("PartitionName=all Nodes=n[1-{NODES}] Default=YES State=UP\n")
}

impl Slurm {
    /// Starts Slurm, and waits until all nodes are idle.
    pub(super) fn new() -> Self {
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
                 cat >/srv/timed-prolog.sh <<'END OF FILE'\n{TIMED_PROLOG}END OF FILE\n\
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
        let slurm = Self { nodes, control, _network: network };
        slurm.await_idle();
        slurm
    }

    /// Submits a job of root on all nodes. Returns the job id.
    pub(super) fn submit(&self, script: &str, constraint: &str) -> String {
        let line = format!(
            "cat >/srv/job.sh <<'END OF FILE'\n#!/bin/sh\n#SBATCH {constraint}\n{script}\n\
             END OF FILE\n\
             sbatch --parsable -N{NODES} --chdir=/srv --output=/srv/output /srv/job.sh"
        );
        self.control.run(&line).expect_success().trim().to_owned()
    }

    /// Submits a job of the user `daemon` on all nodes. In the job script, `lines` follow the line
    /// that requests the file system. The output of the job is `TOP/out/JOB`, where `TOP` is `top`.
    /// Returns the job id.
    pub(super) fn submit_lines(&self, top: &str, lines: &str, commands: &str) -> String {
        let line = format!(
            "cat >{top}/job.sh <<'END OF FILE'\n#!/bin/sh\n#SBATCH --constraint=skep\n{lines}\n\
             {commands}\nEND OF FILE\nchmod 644 {top}/job.sh\n\
             sbatch --parsable --uid=daemon --gid=daemon -N{NODES} --chdir=/srv \
             --output={top}/out/%j {top}/job.sh"
        );
        self.control.run(&line).expect_success().trim().to_owned()
    }

    /// Waits until `look` succeeds.
    ///
    /// # Panics
    /// Panics with the last result of `look` and with the state of the cluster, if `look` does not
    /// succeed within `patience`.
    pub(super) fn await_that(
        &self,
        what: &str,
        patience: Duration,
        look: impl Fn() -> Result<(), String>,
    ) {
        let mut last = String::new();
        let is_there = eventually(patience, || look().map_err(|found| last = found).ok());
        if is_there.is_none() {
            let facts = "sinfo -N -o '%N %T %E'; squeue -o '%i %T %r %N'";
            let facts = self.control.run(facts);
            let (queue, problem) = (facts.stdout, facts.stderr);
            panic!("{what}: not within {patience:?}, but:\n{last}\n{queue}{problem}");
        }
    }

    pub(super) fn await_state(&self, job: &str, state: &str) {
        self.await_state_within(PATIENCE, job, state);
    }

    /// Waits until a job has a state. A job that has ended has its final state only after the
    /// epilogs of all nodes.
    pub(super) fn await_state_within(&self, patience: Duration, job: &str, state: &str) {
        self.await_that(&format!("job {job} is {state}"), patience, || {
            let shown = self.control.run(&format!("scontrol show job {job}")).stdout;
            // Slurm already shows a job as running while the prolog runs.
            let is_there = shown.contains(&format!("JobState={state}"));
            let is_ready = state != "RUNNING" || !shown.contains("Reason=Prolog");
            if is_there && is_ready { Ok(()) } else { Err(shown) }
        });
    }

    /// Waits until `sinfo` shows exactly `count` nodes in the state `state`.
    pub(super) fn await_nodes(&self, state: &str, count: usize) {
        self.await_that(&format!("{count} nodes are {state}"), PATIENCE, || {
            let look = format!("sinfo --noheader --states={state} -o %D");
            let shown = self.control.run(&look).stdout;
            if shown.trim() == count.to_string() { Ok(()) } else { Err(shown) }
        });
    }

    /// Waits until all nodes are idle, so no node is drained.
    pub(super) fn await_idle(&self) {
        self.await_nodes("idle", NODES);
    }

    /// Waits until no file, mount or process of an on-demand file system is left on the nodes.
    pub(super) fn await_removal(&self, nodes: &[usize]) {
        let look = "ls -d /var/lib/skep-ondemand /mnt/ondemand 2>/dev/null || true\n\
            ls /run/skep-refused-jobs 2>/dev/null || true\n\
            grep fuse.skep /proc/mounts || true; own=$(readlink /proc/self/ns/net)\n\
            for process in /proc/[0-9]*; do\n\
            if [ \"$(readlink $process/ns/net)\" = \"$own\" ]; then cat $process/comm; fi\n\
            done 2>/dev/null | grep '^skep' || true";
        for node in nodes {
            self.await_that(&format!("nothing is left on n{node}"), PATIENCE, || {
                let left = self.nodes[node - 1].run(look);
                let is_clean = left.stdout.is_empty() && left.status.success();
                if is_clean { Ok(()) } else { Err(left.stdout + &left.stderr) }
            });
        }
    }

    /// Runs `skep ondemand` on a node under the node's own name, as slurmd does. The command
    /// refuses to stop the parts of the file system on other hosts.
    pub(super) fn ondemand(&self, node: usize, job: &str, arguments: &str) -> Finished {
        let line = format!("hostname n{node}; SLURM_JOB_ID={job} skep ondemand {arguments} --job");
        self.nodes[node - 1].run(&format!("unshare --uts sh -ec '{line}'"))
    }

    /// Puts drained nodes back into service.
    pub(super) fn resume(&self, nodes: &str) {
        let resume = format!("scontrol update nodename={nodes} state=resume");
        self.control.run(&resume).expect_success();
    }

    /// Kills all processes of Slurm and Skep on a node. The directory of the file system stays on
    /// the node, as after a crash.
    pub(super) fn kill_node(&self, node: usize) {
        self.nodes[node - 1]
            .run(
                "own=$(readlink /proc/self/ns/net)\n\
                 for found in $(grep -ls -e '^skep' -e '^slurm' /proc/[0-9]*/comm); do\n\
                 process=${found%/comm}\n\
                 [ \"$(readlink $process/ns/net)\" = \"$own\" ] || continue\n\
                 kill -9 ${process#/proc/} || true\ndone\n\
                 echo another >$(ls -d /var/lib/skep-ondemand/job-*)/boot; umount -l /mnt/ondemand",
            )
            .expect_success();
    }

    /// Starts slurmd on a node whose slurmd has been killed. After that, runs a job on all nodes,
    /// because this job removes the files that the killed processes have left on the node.
    pub(super) fn revive_node(&mut self, node: usize) {
        start(&mut self.nodes[node - 1], &format!("slurmd -D -N n{node}"));
        let job = self.submit("mountpoint /mnt/ondemand", "--constraint=skep");
        self.await_state(&job, "COMPLETED");
        self.await_removal(&(1..=NODES).collect::<Vec<_>>());
        self.await_idle();
    }
}

/// Starts a daemon of Slurm. For the daemon, the hostname is the name of the host.
fn start(host: &mut PageHost, daemon: &str) {
    let name = host.name().to_owned();
    host.start(&format!("unshare --uts sh -c 'hostname {name}; exec {daemon}'"));
}
