//! `skep ondemand` on hosts with separate networks and root directories. The tests use real
//! `sshd`s, and also run `skep ondemand` in the prolog and epilog of a batch job. A small program
//! replaces Slurm's `scontrol`.

use skep_testkit::page::PageHost;
use skep_testkit::program::{Finished, finish};
use skep_testkit::ssh_site::{LONG, SharedDirectory, SshSite, kill};
use skep_testkit::{files, schema, wait_for};
use std::path::Path;
use std::time::Instant;

/// Command: skep ondemand start, skep ondemand status, skep ondemand stop.
#[test]
fn on_demand_file_system_is_created_mounted_and_removed() {
    let site = SshSite::new(3);
    let all = ["10.0.0.1", "10.0.0.2", "10.0.0.3"];
    let before = site.contents();
    let begin = Instant::now();
    let started = site.ondemand("start --output json", &all).expect_success();
    println!("{started}\nstart took {:.1} s", begin.elapsed().as_secs_f64());
    schema::check("ondemand", &serde_json::from_str(&started).expect("JSON"));
    let [first, .., last] = &site.hosts[..] else { panic!("three hosts") };
    // Every user may write to the file system.
    let write = "su -s /bin/sh daemon -c 'head -c 5M /dev/urandom >/mnt/ondemand/file'; \
        sync /mnt/ondemand/file; sha256sum /mnt/ondemand/file";
    let sum = first.run(write).expect_success();
    assert_eq!(last.run("sha256sum /mnt/ondemand/file").expect_success(), sum);
    let status = site.ondemand("status", &all).expect_success();
    println!("{status}");
    assert_eq!(status.matches("storage, mount").count(), 3, "{status}");
    assert_eq!(status.matches("management, metadata").count(), 1, "{status}");

    let report = site.ondemand("status --price 0.5 --output json", &all).expect_success();
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    schema::check("ondemand-status", &report);
    let report = &report["report"];
    assert!(report["delivered"]["written_bytes"].as_u64() > Some(4 << 20), "{report}");
    assert!(report["delivered"]["metadata_requests"].as_u64() > Some(0), "{report}");
    assert_eq!(report["cost"]["hosts"], 3, "{report}");
    assert!(report["problem"].is_null(), "{report}");

    // `skep ondemand` refuses a second start with the same name, both for the same hosts and for
    // one of these hosts. The command also refuses a start with another name and the same mount
    // point. The refused starts change no host.
    let refused = site.ondemand("start", &all).expect_failure();
    for word in ["ondemand is running since 20", "on hosts 10.0.0.1, 10.0.0.2", "stop ondemand"] {
        assert!(refused.contains(word), "{word}: {refused}");
    }
    site.ondemand("start", &["10.0.0.3"]).expect_failure();
    let refused = site.ondemand("start --name other", &all).expect_failure();
    assert!(refused.contains("/mnt/ondemand is a mount point already"), "{refused}");
    assert_eq!(last.run("sha256sum /mnt/ondemand/file").expect_success(), sum);
    assert_eq!(site.ondemand("status", &all).expect_success(), status);
    site.ondemand("stop --name other", &all).expect_success();
    assert_eq!(site.ondemand("status", &all).expect_success(), status);

    // The removal succeeds even if a program uses the mount or a service is dead.
    last.run("cd /mnt/ondemand; setsid sleep 600 </dev/null >/dev/null 2>&1 &").expect_success();
    kill(first, "skep metadata ");
    let stopped = site.ondemand("stop --report", &all).expect_success();
    assert!(stopped.contains("\nDelivered in "), "{stopped}");
    assert!(stopped.contains("report: the metadata service did not reply"), "{stopped}");
    site.expect_unchanged(&before);
    let status = site.ondemand("status", &all).expect_failure();
    assert!(!status.contains("storage"), "{status}");
    site.ondemand("stop", &all).expect_success();
}

#[test]
fn failed_ondemand_start_leaves_nothing_on_any_host() {
    let site = SshSite::new(2);
    let before = site.contents();
    let check = |arguments: &str, hosts: &[&str], words: &[&str]| {
        let text = site.ondemand(arguments, hosts).expect_failure();
        for word in words {
            assert!(text.contains(word), "{arguments}: {word}: {text}");
        }
        site.expect_unchanged(&before);
    };
    let all = ["10.0.0.1", "10.0.0.2"];
    check("start", &["10.0.0.1", "10.0.0.77"], &["10.0.0.77", "cannot reach host"]);
    check("start", &[], &["invalid number of hosts 0", "/srv/nodes"]);
    check("start", &["a;b"], &["invalid host 'a;b'"]);
    check("start --directory /nowhere", &all, &["/nowhere does not exist", "10.0.0.1, 10.0.0.2:"]);
    check("start --mount /nowhere/at/all", &all, &["mount point /nowhere does not exist"]);
    check("start --name 'a b'", &all, &["invalid name 'a b'"]);

    // The second host fails after the first host has already mounted the file system.
    let second = &site.hosts[1];
    second
        .run(
            "mv /usr/bin/skep /usr/bin/skep-real\n\
             printf '#!/bin/sh\\n[ \"$1\" != mount ] || { echo no mount; exit 1; }\\n\
             exec skep-real \"$@\"\\n' >/usr/bin/skep; chmod 755 /usr/bin/skep",
        )
        .expect_success();
    check("start", &all, &["10.0.0.2: cannot mount the file system: no mount"]);
    second.run("mv /usr/bin/skep-real /usr/bin/skep").expect_success();
    let port = "python3 -c 'import socket; s = socket.socket(); s.bind((\"0.0.0.0\", 7602)); \
        s.listen(); open(\"/srv/listens\", \"w\"); s.accept()'";
    let mut listener = second.shell(port).spawn().expect("nsenter can be started");
    wait_for("the other program listens", LONG, || {
        second.run("test -e /srv/listens").status.success().then_some(())
    });
    let text = site.ondemand("start", &all).expect_failure();
    listener.kill().expect("our own child");
    listener.wait().expect("our own child");
    assert!(text.contains("10.0.0.2: another program listens on port 7602"), "{text}");
    site.expect_unchanged(&before);
}

/// `skep ondemand` runs as root, so the command refuses directories that another user or another
/// host could change.
#[test]
fn ondemand_refuses_directories_of_other_users_and_hosts() {
    let site = SshSite::new(2);
    let (first, both) = (&site.hosts[0], ["10.0.0.1", "10.0.0.2"]);
    let before = site.contents();
    let cases = [
        ("ln -s /srv /var/lib/skep-ondemand", "", "is a symbolic link"),
        ("mkdir -m 700 /var/lib/skep-ondemand; chown 1 /var/lib/skep-ondemand", "", "user 1,"),
        ("mkdir -m 755 /var/lib/skep-ondemand", "", "has the mode 755: expected 700"),
        ("mkdir -m 775 /var/lib/group", "--directory /var/lib/group", "chmod go-w /var/lib/group"),
        ("ln -s /srv /var/lib/link", "--directory /var/lib/link", "/var/lib/link is a symbolic"),
        ("ln -s /srv /var/lib/link", "--mount /var/lib/link/a", "/var/lib/link is a symbolic"),
        ("ln -s /srv /var/lib/link", "--mount /var/lib/link", "/var/lib/link is a symbolic"),
    ];
    for (make, options, word) in cases {
        first.run(make).expect_success();
        let text = site.ondemand(&format!("start {options}"), &both).expect_failure();
        assert!(text.contains(word), "{make}: {text}");
        if options.is_empty() {
            let text = site.ondemand("stop", &both[..1]).expect_failure();
            assert!(text.contains(word), "{make}: {text}");
        }
        first.run("rm -rf /var/lib/link /var/lib/group /var/lib/skep-ondemand").expect_success();
        site.expect_unchanged(&before);
    }

    // The two hosts have the same directory, because all hosts of the test share /dev.
    let shared = SharedDirectory::new("ondemand");
    let start = format!("start --directory {} --patience 10", shared.path());
    let text = site.ondemand(&start, &both).expect_failure();
    assert!(text.contains("is on a shared file system"), "{text}");
    site.expect_unchanged(&before);
    first.run(&format!("rmdir {}", shared.path())).expect_success();
}

#[test]
fn ondemand_stop_completes_after_deaths_of_processes_and_hosts() {
    let site = SshSite::new(3);
    let all = ["10.0.0.1", "10.0.0.2", "10.0.0.3"];
    let before = site.contents();
    // All processes on two hosts die, and the third host cannot be reached.
    site.ondemand("start", &all).expect_success();
    for host in &site.hosts[..2] {
        kill(host, "/var/lib/skep-ondemand/ondemand.");
    }
    let text = site.ondemand("start", &all).expect_failure();
    assert!(text.contains("its processes on this host were killed; stop ondemand first"), "{text}");
    site.hosts[2].run("ip link set eth0 down").expect_success();
    let stopped = site.ondemand("stop", &all);
    assert_eq!(stopped.status.code(), Some(6), "{stopped:?}");
    for word in ["Removed ondemand from 2 of 3 hosts", "10.0.0.3: cannot reach host"] {
        assert!(stopped.stdout.contains(word), "{word}: {stopped:?}");
    }
    let left = site.ondemand("status", &all[..2]).expect_failure();
    assert!(!left.contains("storage"), "{left}");
    site.hosts[2].run("ip link set eth0 up").expect_success();
    site.ondemand("stop", &all).expect_success();
    site.expect_unchanged(&before);

    // The test has removed the directory, and only the processes and the mount are left.
    site.ondemand("start", &all).expect_success();
    wait_for("the directory of running services is removed", LONG, || {
        // A service may create a file while `rm` works.
        site.hosts[0].run("rm -rf /var/lib/skep-ondemand").status.success().then_some(())
    });
    site.ondemand("stop", &all).expect_success();
    site.hosts[0].run("rmdir /mnt/ondemand").expect_success();
    site.hosts[0].run("rmdir /run/skep 2>/dev/null || true").expect_success();
    site.expect_unchanged(&before);
}

#[test]
fn ondemand_stop_leaves_foreign_processes_and_files_alone() {
    let site = SshSite::new(1);
    let (host, only) = (&site.hosts[0], ["10.0.0.1"]);
    site.ondemand("start", &only).expect_success();
    let run = host.run("echo /var/lib/skep-ondemand/ondemand.*").expect_success();
    let run = run.trim();
    // Start programs of root and of another user whose arguments contain the file system's
    // directory.
    let mut others: Vec<_> = ["0", "65534"]
        .iter()
        .map(|user| {
            let line = format!(
                "cp /bin/sh /srv/skep-{user}; exec setpriv --reuid {user} --clear-groups \
                 /srv/{} -c 'sleep 600; :' {run}/x",
                if *user == "0" { "../bin/sh" } else { "skep-65534" }
            );
            host.shell(&line).spawn().expect("nsenter can be started")
        })
        .collect();
    host.run(&format!(
        "mount -t tmpfs other /mnt/ondemand; ln -s /srv {run}/link; touch /srv/kept"
    ))
    .expect_success();
    let text = site.ondemand("stop", &only).expect_failure();
    assert!(text.contains("another file system (tmpfs other) is mounted over this"), "{text}");
    host.run(&format!("umount /mnt/ondemand; mkdir {run}/inside; mount --bind /srv {run}/inside"))
        .expect_success();
    let text = site.ondemand("stop", &only).expect_failure();
    assert!(text.contains(&format!("a file system is mounted on {run}/inside")), "{text}");
    host.run(&format!("umount {run}/inside")).expect_success();
    site.ondemand("stop", &only).expect_success();
    host.run("test -e /srv/kept; test ! -e /var/lib/skep-ondemand").expect_success();
    for other in &mut others {
        assert!(other.try_wait().expect("our own child").is_none(), "a foreign process was killed");
        other.kill().expect("our own child");
        other.wait().expect("our own child");
    }
}

#[test]
fn prolog_and_epilog_start_and_remove_on_demand_services() {
    let site = SshSite::new(3);
    install_scripts(&site, "printf 'n1\\nn2\\nn3\\n'");
    let on_all = |script: &str, job: u32, constraint: &str| on_all(&site, script, job, constraint);
    let before = site.contents();
    // A job that does not request a file system on demand gets no such file system.
    succeed(on_all("prolog", 6, "gpu"));
    site.expect_unchanged(&before);
    for result in on_all("prolog", 7, "skep") {
        let text = result.expect_failure();
        assert!(text.contains("cannot read the secret /etc/skep/ondemand.secret"), "{text}");
    }
    site.expect_unchanged(&before);
    for host in &site.hosts {
        host.run("umask 077; printf %032d 7 >/etc/skep/ondemand.secret").expect_success();
    }
    let before = site.contents();
    // Create the files that a crash of the node during an earlier job would have left.
    let stale = "umask 077; cd /var/lib; mkdir -p skep-ondemand/job-3.0123456789abcdef/storage; \
        echo another >skep-ondemand/job-3.0123456789abcdef/boot";
    site.hosts[1].run(stale).expect_success();
    let begin = Instant::now();
    succeed(on_all("prolog", 8, "gpu&skep"));
    println!("the prolog took {:.1} s", begin.elapsed().as_secs_f64());
    site.hosts[1].run("! ls -d /var/lib/skep-ondemand/job-3.*").expect_success();
    // After the prolog, the job's user must own the root directory. Check the owner on a host whose
    // prolog has not set this owner.
    let owner = site.hosts[2].run("stat -c %u /mnt/ondemand").expect_success();
    assert_eq!(owner, "65534\n");
    site.hosts[0].run("echo kept >/mnt/ondemand/file; sync /mnt/ondemand/file").expect_success();
    assert_eq!(site.hosts[2].run("cat /mnt/ondemand/file").expect_success(), "kept\n");
    // The epilogs remove the file system even after a kill of all processes of one node.
    kill(&site.hosts[1], "/skep-ondemand/job-8.");
    succeed(on_all("epilog", 8, "gpu&skep"));
    site.expect_unchanged(&before);

    // In the first round, the test kills a prolog that waits for the other nodes, as slurmd does at
    // its time limit. In the second round, the job is cancelled, and its epilog ends the prolog.
    for (job, is_killed) in [(9, true), (10, false)] {
        let waits = std::thread::scope(|scope| {
            let prolog = scope.spawn(|| finish(&mut prolog_of(&site.hosts[2], job), LONG));
            wait_for("the storage service runs", LONG, || {
                let look = format!("ls /var/lib/skep-ondemand/job-{job}.*/storage.log");
                site.hosts[2].run(&look).status.success().then_some(())
            });
            if is_killed {
                let line = format!("kill -9 $(cat /var/lib/skep-ondemand/job-{job}.*/starter)");
                site.hosts[2].run(&line).expect_success();
            }
            let host = &site.hosts[2];
            let epilog = format!("SLURM_JOB_ID={job} sh /srv/epilog");
            finish(&mut host.shell(&epilog), LONG).expect_success();
            prolog.join().expect("no panic")
        });
        waits.expect_failure();
        site.expect_unchanged(&before);
    }
}

/// A replacement of `scontrol` that reads the script and the properties of one job from files in
/// `TOP`. Like Slurm, this replacement refuses to change the comment of a job that has ended.
const SCONTROL: &str = "case \"$1 $2\" in\n\
    'show hostnames') printf 'n1\\nn2\\nn3\\n' ;;\n\
    'write batch_script') cat TOP/script ;;\n\
    'show job') cat TOP/facts ;;\n\
    update*) grep -q JobState=CONFIGURING TOP/facts && printf '%s\\n' \"${3#AdminComment=}\" >TOP/comment ;;\n\
    requeuehold*) ;;\n\
    *) exit 1 ;;\nesac";

/// Commands that create results of a job, and print their checksum.
const RESULTS: &str = "mkdir -p /mnt/ondemand/out; cd /mnt/ondemand/out; \
    head -c 3M /dev/urandom >file; sha256sum <file";

/// Nodes of batch jobs whose scripts contain `#SKEP` lines.
struct JobSite {
    site: SshSite,
    shared: SharedDirectory,
    /// The result of [`SshSite::contents`] before any on-demand file system existed.
    before: Vec<String>,
}

impl JobSite {
    fn new() -> Self {
        let (site, shared) = (SshSite::new(3), SharedDirectory::new("job-lines"));
        install_scripts(&site, &SCONTROL.replace("TOP", shared.path()));
        for host in &site.hosts {
            host.run(
                "mkdir /run/skep-refused-jobs; umask 077\n\
                 printf %032d 7 >/etc/skep/ondemand.secret",
            )
            .expect_success();
        }
        let make = "mkdir out closed; chown 65534 out";
        site.hosts[0].run(&format!("cd {}; {make}", shared.path())).expect_success();
        let before = site.contents();
        Self { site, shared, before }
    }

    /// Runs the prologs of a job whose script contains `lines`. After this call, the simulated
    /// Slurm shows the job as ended with `exit_code`.
    fn begin(&self, job: u32, lines: &str, exit_code: &str) {
        let (first, top) = (&self.site.hosts[0], self.shared.path());
        first
            .run(&format!(
                "printf '#!/bin/sh\\n{lines}\\ntrue\\n' >{top}/script\n\
                 printf 'JobId={job}\\n   JobState=CONFIGURING ExitCode={exit_code}\\n   \
                 StdOut={top}/out/output\\n' >{top}/facts"
            ))
            .expect_success();
        succeed(on_all(&self.site, "prolog", job, "skep"));
        first.run(&format!("sed -i s/CONFIGURING/COMPLETING/ {top}/facts")).expect_success();
    }

    /// Creates results as the user of the job, and returns their checksum.
    fn compute(&self, node: usize) -> String {
        let line = format!("setpriv --reuid 65534 --clear-groups sh -c '{RESULTS}'");
        self.site.hosts[node].run(&line).expect_success()
    }

    fn status(&self, node: usize, job: u32) -> String {
        let line = format!("SLURM_JOB_ID={job} skep ondemand status --job");
        self.site.hosts[node].run(&line).expect_success()
    }

    /// Returns the state of the copies of a job, from the JSON of the status.
    fn copies(&self, node: usize, job: u32) -> serde_json::Value {
        let line = format!("SLURM_JOB_ID={job} skep ondemand status --job --output json");
        let text = self.site.hosts[node].run(&line).expect_success();
        let status: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        schema::check("ondemand-status", &status);
        status["copies"]["state"].clone()
    }
}

#[test]
fn stage_out_lines_copy_results_before_removal_of_the_data() {
    let jobs = JobSite::new();
    let (site, before, top) = (&jobs.site, &jobs.before, jobs.shared.path());
    let [first, second, third] = &site.hosts[..] else { panic!("three hosts") };

    // The epilogs copy the results of the third node, even if its epilog runs long before the other
    // epilogs.
    jobs.begin(21, &format!("#SKEP stage-out out:{top}/out/run-%%j"), "0:0");
    let shown = jobs.status(1, 21);
    assert!(shown.contains("Copies of the job: the job has not ended"), "{shown}");
    assert_eq!(jobs.copies(1, 21), "pending");
    let sum = jobs.compute(2);
    std::thread::scope(|scope| {
        let early = scope.spawn(|| finish(&mut epilog_of(third, 21), LONG));
        wait_for("the epilog waits for the results", LONG, || {
            let reader = "getfattr -n trusted.skep.reader.n3 --only-values /mnt/ondemand";
            (third.run(reader).stdout == "waits").then_some(())
        });
        assert!(third.run("mountpoint -q /mnt/ondemand").status.success());
        // slurmd kills the epilog of the first node while this epilog waits for the second node.
        let mut killed = epilog_of(first, 21).spawn().expect("nsenter can be started");
        wait_for("the results are copied", LONG, || {
            let results = "getfattr -n trusted.skep.results --only-values /mnt/ondemand";
            second.run(results).stdout.starts_with("saved").then_some(())
        });
        killed.kill().expect("our own child");
        killed.wait().expect("our own child");
        finish(&mut epilog_of(second, 21), LONG).expect_success();
        early.join().expect("no panic").expect_success();
    });
    // The other nodes have removed their parts of the file system, so this epilog must not repeat
    // the copy.
    finish(&mut epilog_of(first, 21), LONG).expect_success();
    site.expect_unchanged(before);
    let copied = first.run(&format!("cd {top}/out/run-21; stat -c %u file; sha256sum <file"));
    assert_eq!(copied.expect_success(), format!("65534\n{sum}"));

    // A successful job must have created the results that its script names. A failed job need not
    // have created its results.
    jobs.begin(22, &format!("#SKEP stage-out none:{top}/out/none"), "0:0");
    let text = finish(&mut epilog_of(first, 22), LONG).expect_failure();
    assert!(text.contains("although the job has succeeded"), "{text}");
    first.run(&format!("sed -i s/ExitCode=0:0/ExitCode=1:0/ {top}/facts")).expect_success();
    succeed(on_all(site, "epilog", 22, "skep"));
    site.expect_unchanged(before);

    // A job whose input is missing never begins, so no node waits for its results.
    let lines = format!("#SKEP stage-in {top}/missing\\n#SKEP stage-out out:{top}/out/none");
    jobs.begin(23, &lines, "0:0");
    let comment = first.run(&format!("cat {top}/comment")).expect_success();
    assert!(comment.contains("cannot stage in"), "{comment}");
    succeed(on_all(site, "epilog", 23, "skep"));
    site.expect_unchanged(before);
}

#[test]
fn job_results_stay_until_their_destination_is_repaired() {
    let jobs = JobSite::new();
    let (site, top) = (&jobs.site, jobs.shared.path());
    let first = &site.hosts[0];
    jobs.begin(31, &format!("#SKEP stage-out out:{top}/closed/run"), "0:0");
    let sum = jobs.compute(1);
    // In the first case the destination is full. In the second case the file system of the
    // destination is gone, and the mount point belongs to root. All nodes keep the data.
    let full = format!("mount -t tmpfs -o size=1m full {top}/closed");
    let cases = [(full, "the destination is full"), (format!("umount {top}/closed"), "ermission")];
    for (change, reason) in cases {
        first.run(&change).expect_success();
        let words =
            ["cannot stage out /mnt/ondemand/out", "on /mnt/ondemand of n1, n2, n3", reason];
        let has_all = |text: &str| words.iter().all(|it| text.contains(it));
        for result in on_all(site, "epilog", 31, "skep") {
            let text = result.expect_failure();
            assert!(has_all(&text), "{reason}: {text}");
        }
        let shown = first.run(&format!("cat {top}/out/output")).expect_success();
        assert!(has_all(&shown), "{reason}: {shown}");
        let shown = jobs.status(2, 31);
        assert!(shown.contains("Copies of the job: cannot stage out"), "{reason}: {shown}");
        assert_eq!(jobs.copies(2, 31), "failed", "{reason}");
        assert!(has_all(&shown), "{reason}: {shown}");
    }
    let look = "sha256sum </mnt/ondemand/out/file";
    assert_eq!(site.hosts[2].run(look).expect_success(), sum);
    first.run(&format!("chown 65534 {top}/closed")).expect_success();
    succeed(on_all(site, "epilog", 31, "skep"));
    site.expect_unchanged(&jobs.before);
    let copied = first.run(&format!("sha256sum <{top}/closed/run/file"));
    assert_eq!(copied.expect_success(), sum);
}

/// Installs the prolog, the epilog and a program in the place of `scontrol` on all hosts.
fn install_scripts(site: &SshSite, scontrol: &str) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/slurm");
    let [prolog, epilog] =
        ["prolog.sh", "epilog.sh"].map(|name| files::read_to_string(directory.join(name)));
    for host in &site.hosts {
        host.run(&format!(
            "cat >/srv/prolog <<'END OF FILE'\n{prolog}\nEND OF FILE\n\
             cat >/srv/epilog <<'END OF FILE'\n{epilog}\nEND OF FILE\n\
             cat >/usr/bin/scontrol <<'END OF FILE'\n#!/bin/sh\n{scontrol}\nEND OF FILE\n\
             chmod 755 /usr/bin/scontrol"
        ))
        .expect_success();
    }
}

/// Runs a script on all nodes at the same time, as slurmd does.
fn on_all(site: &SshSite, script: &str, job: u32, constraint: &str) -> Vec<Finished> {
    let run = |host: &PageHost| {
        let line = format!(
            "export SLURM_JOB_ID={job} SLURM_JOB_NODELIST='n[1-3]' SLURM_JOB_UID=65534 \
             SLURMD_NODENAME={} SLURM_JOB_CONSTRAINTS='{constraint}'\nexec sh /srv/{script}",
            host.name()
        );
        finish(&mut host.shell(&line), LONG)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            site.hosts.iter().map(|host| scope.spawn(move || run(host))).collect();
        threads.into_iter().map(|it| it.join().expect("no panic")).collect()
    })
}

fn succeed(results: Vec<Finished>) {
    results.into_iter().for_each(|it| drop(it.expect_success()));
}

fn epilog_of(host: &PageHost, job: u32) -> std::process::Command {
    host.shell(&format!("SLURM_JOB_ID={job} exec sh /srv/epilog"))
}

/// Returns the prolog of a single node of a job with three nodes. The prologs of the other nodes
/// never run.
fn prolog_of(host: &PageHost, job: u32) -> std::process::Command {
    host.shell(&format!(
        "export SLURM_JOB_ID={job} SLURM_JOB_NODELIST='n[1-3]' SLURM_JOB_UID=65534 \
         SLURMD_NODENAME={} SLURM_JOB_CONSTRAINTS=skep\nexec sh /srv/prolog",
        host.name()
    ))
}
