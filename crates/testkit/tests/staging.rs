//! Copies in which several hosts take part, over real `sshd`s: `skep copy --hosts`, and copies into
//! and out of on-demand file systems.

use serde_json::Value;
use skep_testkit::object_store::{Fault, ObjectStore};
use skep_testkit::program::finish;
use skep_testkit::ssh_site::{LONG, SharedDirectory, SshSite, kill};
use skep_testkit::{schema, wait_for};

const ALL: [&str; 3] = ["10.0.0.1", "10.0.0.2", "10.0.0.3"];

/// Shell function that prints the paths, types, lengths and checksums of a tree.
const LIST: &str = "list() { (cd \"$1\" && find . -printf '%P %y %m %l\\n' | sort && \
    find . -type f -printf '%P %s\\n' | sort && find . -type f -exec sha256sum {} + | sort -k 2); }";

/// Creates a tree of 62 files. One of the files has five pieces, and another file has two names.
fn fill(site: &SshSite, top: &str) {
    let script = format!(
        "mkdir -p {top}/a/b {top}/empty; cd {top}\n\
         for number in $(seq 60); do\n\
         head -c ${{number}}000 /dev/urandom >a/b/file-$number\ndone\n\
         truncate -s 260M a/large\n\
         for piece in 0 64 128 192 256; do\n\
         head -c 100000 /dev/urandom | dd of=a/large bs=1M seek=$piece conv=notrunc status=none\n\
         done\n\
         echo text >linked; ln linked a/second; ln -s b/file-1 a/link; chmod 640 linked"
    );
    site.admin.run(&script).expect_success();
}

fn list(site: &SshSite, host: usize, top: &str) -> String {
    site.hosts[host].run(&format!("{LIST}\nlist {top}")).expect_success()
}

/// Runs `skep copy` on the administrator's host. All hosts copy.
fn copy(site: &SshSite, arguments: &str) -> skep_testkit::program::Finished {
    let line = format!(
        "printf '10.0.0.1\\n10.0.0.2\\n10.0.0.3\\n' >/srv/nodes\n\
         skep copy --hosts /srv/nodes {arguments}"
    );
    finish(&mut site.admin.shell(&line), LONG)
}

/// Command: skep copy.
#[test]
fn several_hosts_copy_one_tree_and_resume_the_copy() {
    let site = SshSite::new(3);
    let shared = SharedDirectory::new("copy");
    let [from, to] = ["source", "copy"].map(|it| format!("{}/{it}", shared.path()));
    fill(&site, &from);
    let expected = list(&site, 0, &from);
    let text = copy(&site, &format!("--verify --output json {from} {to}")).expect_success();
    let outcome: Value = serde_json::from_str(&text).expect("JSON");
    schema::check("copy", &outcome);
    assert_eq!(list(&site, 1, &to), expected);
    // The expected 62 files are the large file, the file with two names, and 60 other files.
    assert_eq!((outcome["files"].as_u64(), outcome["problem_count"].as_u64()), (Some(62), Some(0)));
    let hosts = outcome["hosts"].as_array().expect("a list");
    for host in hosts {
        assert_eq!(host["shares"], 1, "{text}");
        assert!(
            host["files"].as_u64() > Some(5) && host["bytes"].as_u64() > Some(100_000),
            "{text}"
        );
    }
    let again = copy(&site, &format!("--resume {from} {to}")).expect_success();
    assert!(again.contains("Copied 0 files") && again.contains("Left out 64"), "{again}");

    // One host dies during the copy, so the other hosts copy the share of this host.
    site.admin.run(&format!("rm -r {to}")).expect_success();
    let finished = std::thread::scope(|scope| {
        let options = format!("--rate 300KiB --verify {from} {to}");
        let site = &site;
        let running = scope.spawn(move || copy(site, &options));
        wait_for("the shares run", LONG, || {
            let look = format!("ls {to}/a/b | grep '^file'");
            site.hosts[1].run(&look).status.success().then_some(())
        });
        kill(&site.hosts[1], "--part 1/3");
        running.join().expect("no panic")
    });
    let text = finished.expect_success();
    for word in ["2 of 3 hosts have copied", "Host 10.0.0.2 failed", "exit status: 137"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert_eq!(list(&site, 0, &to), expected);

    let text = copy(&site, &format!("{}/missing {to}", shared.path())).expect_failure();
    assert!(
        text.contains("host 10.0.0.1") && text.contains("missing: it does not exist"),
        "{text}"
    );
}

#[test]
fn processes_of_a_copy_end_with_their_coordinator() {
    let site = SshSite::new(3);
    let shared = SharedDirectory::new("coordinator");
    let [from, to] = ["source", "copy"].map(|it| format!("{}/{it}", shared.path()));
    fill(&site, &from);
    let line = format!(
        "printf '10.0.0.1\\n10.0.0.2\\n10.0.0.3\\n' >/srv/nodes\n\
         exec skep copy --hosts /srv/nodes --rate 200KiB {from} {to}"
    );
    let mut running = site.admin.shell(&line);
    let mut running = running.spawn().expect("nsenter can be started");
    wait_for("the shares run", LONG, || {
        let look = format!("ls {to}/a/b | grep '^file'");
        site.hosts[1].run(&look).status.success().then_some(())
    });
    kill(&site.admin, "copy --hosts");
    running.wait().expect("our own child");
    for host in &site.hosts {
        wait_for("the process ends", LONG, || host.names_of_processes().is_empty().then_some(()));
    }
    copy(&site, &format!("--resume --verify {from} {to}")).expect_success();
    assert_eq!(list(&site, 2, &to), list(&site, 0, &from));
}

/// Command: skep ondemand start, skep ondemand stop.
#[test]
fn data_is_staged_in_and_out_by_all_hosts() {
    let site = SshSite::new(3);
    let shared = SharedDirectory::new("staging");
    let input = format!("{}/input", shared.path());
    let before = site.contents();
    let missing = site.ondemand("start --stage-in /nowhere/input", &ALL).expect_failure();
    assert!(missing.contains("cannot stage in /nowhere/input: it does not exist"), "{missing}");
    site.expect_unchanged(&before);
    fill(&site, &input);
    let output = format!("{}/output", shared.path());
    let start =
        format!("start --stage-in {input} --stage-in {input}/a:more --stage-out out:{output}");
    let started = site.ondemand(&start, &ALL);
    assert_eq!(started.stderr.matches("3 of 3 hosts have copied").count(), 2, "{started:?}");
    started.expect_success();
    for host in 0..3 {
        assert_eq!(list(&site, host, "/mnt/ondemand/input"), list(&site, host, &input));
    }
    assert_eq!(list(&site, 0, "/mnt/ondemand/more"), list(&site, 0, &format!("{input}/a")));
    let status = site.ondemand("status", &ALL).expect_success();
    let note = format!("To stage out before the removal: /mnt/ondemand/out:{output}");
    assert!(status.contains(&note), "{status}");

    // No option names a directory to which the data can be copied, so the data stays.
    let text = site.ondemand("stop", &ALL).expect_failure();
    for word in ["/mnt/ondemand/out: it does not exist", "nothing was removed", "--discard"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    site.hosts[2].run("cp -a /mnt/ondemand/input /mnt/ondemand/out").expect_success();
    let expected = list(&site, 0, &input);
    let stopped = site.ondemand("stop", &ALL);
    assert!(stopped.stderr.contains("Staged out /mnt/ondemand/out"), "{stopped:?}");
    stopped.expect_success();
    site.expect_unchanged(&before);
    assert_eq!(list(&site, 0, &output), expected);
}

/// Command: skep ondemand start, skep ondemand stop, skep copy.
#[test]
fn data_is_staged_from_and_to_an_object_store() {
    let site = SshSite::new(3);
    let shared = SharedDirectory::new("store");
    let input = format!("{}/input", shared.path());
    // Only the administrator's host has credentials.
    let store = ObjectStore::start_at(&site.admin, "10.0.0.99:0");
    let options = format!("--s3-endpoint {} --s3-part 5MiB", store.url());
    let skep = |arguments: &str| {
        let line = format!(
            "{}printf '10.0.0.1\\n10.0.0.2\\n10.0.0.3\\n' >/srv/nodes\n\
             skep {arguments} --hosts /srv/nodes {options}",
            store.exports()
        );
        finish(&mut site.admin.shell(&line), LONG)
    };
    let before = site.contents();
    let text = skep("ondemand start --stage-in s3://data/input").expect_failure();
    assert!(text.contains("cannot use s3://data/input: no object has this key"), "{text}");
    let line = format!("skep ondemand start --stage-in s3://data/in --hosts /srv/nodes {options}");
    let without = format!("export AWS_EC2_METADATA_DISABLED=true; {line}");
    let text = site.admin.run(&without).expect_failure();
    assert!(text.contains("no credentials for S3"), "{text}");
    site.expect_unchanged(&before);
    site.admin
        .run(&format!(
            "mkdir -p {input}/a/empty; cd {input}; for n in $(seq 30); do echo $n >a/f$n; done\n\
             head -c 17000000 /dev/urandom >large; ln -s a/f1 link; chmod 640 a/f2"
        ))
        .expect_success();
    let text = skep(&format!("copy {input} s3://data/input")).expect_success();
    assert!(text.contains("Copied 31 files") && text.contains("3 of 3 hosts"), "{text}");
    assert_eq!(store.count("PUT", "partNumber="), 4);
    skep("ondemand start --stage-in s3://data/input --stage-out input:s3://data/output")
        .expect_success();
    assert_eq!(list(&site, 1, "/mnt/ondemand/input"), list(&site, 0, &input));
    store.fail("PUT", "/data/output/large", Fault::Denied, 3);
    let text = skep("ondemand stop").expect_failure();
    for word in ["input/large", "AccessDenied", "nothing was removed", "--discard"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    skep("ondemand stop").expect_success();
    site.expect_unchanged(&before);
    let keys = |top: &str| {
        let all = store.keys().into_iter();
        all.filter_map(|it| it.strip_prefix(top).map(str::to_owned)).collect::<Vec<_>>()
    };
    assert_eq!(keys("output/"), keys("input/"));
    let bytes = |key: &str| store.get(key).expect("an object").bytes;
    assert!(bytes("output/large") == bytes("input/large"));
    assert_eq!((store.uploads(), keys("input/").len()), (0, 35));
}

#[test]
fn data_that_was_not_staged_out_is_not_removed() {
    let site = SshSite::new(3);
    let shared = SharedDirectory::new("unsaved");
    let before = site.contents();
    let refused = |arguments: &str, words: &[&str]| {
        let text = site.ondemand(arguments, &ALL).expect_failure();
        for word in words {
            assert!(text.contains(word), "{arguments}: {word}: {text}");
        }
        assert_eq!(site.hosts[1].run("cat /mnt/ondemand/file").expect_success(), "kept\n");
    };
    site.ondemand("start", &ALL).expect_success();
    site.hosts[0].run("echo kept >/mnt/ondemand/file; sync /mnt/ondemand/file").expect_success();
    site.hosts[0].run("echo run 7 is not saved >/mnt/ondemand/.skep-hold").expect_success();
    refused(
        "stop",
        &["/mnt/ondemand/.skep-hold protects its data (run 7 is not saved)", "--discard"],
    );
    // An epilog would remove only its own node's part of the file system. The file `.skep-hold`
    // also makes the epilog fail.
    let epilog = "SLURM_JOB_ID=1 skep ondemand stop --job --name ondemand";
    let text = site.hosts[2].run(epilog).expect_failure();
    assert!(text.contains(".skep-hold protects the data of ondemand (run 7"), "{text}");
    // The other hosts may have the name in their caches for a second (docs/semantics.md 1.2).
    let wait_for_hold = |is_there: bool| {
        for host in &site.hosts {
            wait_for("each host sees the change of the hold", LONG, || {
                let test = "test -e /mnt/ondemand/.skep-hold -o -L /mnt/ondemand/.skep-hold";
                (host.run(test).status.success() == is_there).then_some(())
            });
        }
    };
    site.hosts[0].run("rm /mnt/ondemand/.skep-hold").expect_success();
    wait_for_hold(false);
    // The file `.skep-hold` can be a link to a file that the user may not read, so `stop` must not
    // print the linked file as root. Even a dangling link protects the data.
    site.hosts[0]
        .run("echo of root >/srv/private; ln -s /srv/private /mnt/ondemand/.skep-hold")
        .expect_success();
    wait_for_hold(true);
    refused("stop", &["/mnt/ondemand/.skep-hold protects its data (no reason)"]);
    site.hosts[0].run("rm /mnt/ondemand/.skep-hold").expect_success();
    wait_for_hold(false);
    // After a failed copy, the data still counts as not staged out, so `skep ondemand stop` keeps
    // the file system.
    refused(
        "stop --stage-out /proc/none/output",
        &["cannot stage out /mnt/ondemand", "/proc/none"],
    );
    refused("stop", &["cannot stage out /mnt/ondemand", "nothing was removed"]);
    let text = site.hosts[2].run(epilog).expect_failure();
    assert!(text.contains("not staged out (/mnt/ondemand:/proc/none/output)"), "{text}");
    // A host without its storage service, or without the mount, cannot take part in a copy. `stop`
    // refuses immediately, because the copy would wait for ever.
    let stop = format!("stop --stage-out {}/output", shared.path());
    let refused_without_host = |reason: &str| {
        let text = site.ondemand(&stop, &ALL).expect_failure();
        assert!(text.contains(reason) && text.contains("nothing was removed"), "{reason}: {text}");
        site.hosts[1].run("mountpoint /mnt/ondemand").expect_success();
    };
    kill(&site.hosts[2], "skep storage ");
    wait_for("the status names the lost storage server", LONG, || {
        let shown = site.ondemand("status", &ALL).stdout;
        (shown.contains("Not staged out: the storage servers") && shown.contains("10.0.0.3:7602"))
            .then_some(())
    });
    refused_without_host("their part of the data cannot be copied");
    kill(&site.hosts[2], "skep mount ");
    site.hosts[2].run("umount -l /mnt/ondemand || true").expect_success();
    refused_without_host("this file system is not mounted on 10.0.0.3");
    site.ondemand("stop --discard", &ALL).expect_success();
    site.expect_unchanged(&before);
}

/// After a boot of a host, no process of the file system runs, but the data of the file system is
/// still on the disk. The test starts the services as docs/operations/ondemand.md describes.
///
/// Command: skep ondemand start, skep ondemand stop.
#[test]
fn unsaved_data_stays_after_a_boot_and_can_be_staged_out() {
    let site = SshSite::new(1);
    let (host, only) = (&site.hosts[0], ["10.0.0.1"]);
    let before = site.contents();
    site.ondemand("start --stage-out /srv/output", &only).expect_success();
    host.run("echo result >/mnt/ondemand/file; sync /mnt/ondemand/file").expect_success();
    let run = host.run("echo /var/lib/skep-ondemand/ondemand.*").expect_success();
    let run = run.trim();
    kill(host, "/var/lib/skep-ondemand/ondemand.");
    wait_for("all processes end", LONG, || host.names_of_processes().is_empty().then_some(()));
    host.run(&format!(
        "umount -l /mnt/ondemand; echo another >{run}/boot; rm -f /run/skep/mount-*.sock"
    ))
    .expect_success();

    let refused = site.ondemand("start", &only).expect_failure();
    for word in ["not staged out (/mnt/ondemand:/srv/output)", run, "After a boot", "--discard"] {
        assert!(refused.contains(word), "{word}: {refused}");
    }
    let other = site.ondemand("start --name other --mount /mnt/other", &only).expect_success();
    assert!(other.contains("not staged out") && other.contains(run), "{other}");
    site.ondemand("stop --name other", &only).expect_success();

    host.run(&format!(
        "run={run}\n\
         service() {{\n\
         kind=$1 port=$2; shift 2\n\
         setsid skep $kind --directory $run/$kind --listen 0.0.0.0:$port \
         --set node.metrics=none \"$@\" </dev/null >>$run/$kind.log 2>&1 &\n\
         }}\n\
         cat /proc/sys/kernel/random/boot_id >$run/boot\n\
         service management 7600 --advertise 10.0.0.1\n\
         service metadata 7601 --target $run/metadata-target\n\
         service storage 7602 --target $run/storage-target\n\
         skep mount --cluster $run -o nosuid,nodev,log_file=$run/mount.log /mnt/ondemand"
    ))
    .expect_success();
    wait_for("both targets are online", LONG, || {
        let list = host.run(&format!("skep target list --cluster {run}")).stdout;
        (list.matches(" Online ").count() == 2).then_some(())
    });
    assert_eq!(host.run("cat /mnt/ondemand/file").expect_success(), "result\n");
    site.ondemand("stop", &only).expect_success();
    assert_eq!(host.run("cat /srv/output/file").expect_success(), "result\n");
    site.expect_unchanged(&before);
}
