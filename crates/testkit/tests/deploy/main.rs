//! `skep deploy` over real `sshd`s, to hosts with separate networks and root directories. The tests
//! begin with a hosts file, deploy and mount a cluster, and then remove Skep from all hosts. The
//! program `deploy_copies` has the tests of clusters with several copies of metadata.

mod tuning;

use skep_testkit::deploy_site::{DISK_BYTES, DeploySite, LOAD, MANAGEMENT, client, storage};
use skep_testkit::loop_device::LoopDevice;
use skep_testkit::program::run;
use skep_testkit::{PATIENCE, schema, wait_for};
use std::time::{Duration, Instant};

/// Time limit of `skep deploy apply` for a cluster of five hosts, from packages and a hosts file to
/// mounts. Debug builds have no limit.
const APPLY_LIMIT: Duration = Duration::from_secs(60);

/// Runs `skep deploy apply` for a new cluster of five hosts, and returns its output. The command
/// must end within the time limit.
fn apply_in_time(site: &DeploySite) -> String {
    let begin = Instant::now();
    let applied = site.deploy("apply").expect_success();
    let taken = begin.elapsed();
    println!("apply took {:.1} s", taken.as_secs_f64());
    assert!(
        cfg!(debug_assertions) || taken < APPLY_LIMIT,
        "`skep deploy apply` took {:.1} s for five hosts, the limit is {} s:\n{applied}",
        taken.as_secs_f64(),
        APPLY_LIMIT.as_secs()
    );
    applied
}

/// Command: skep deploy plan, skep deploy apply, skep deploy status, skep deploy add.
/// Command: skep deploy upgrade, skep deploy remove, skep deploy destroy.
#[test]
fn cluster_is_deployed_extended_upgraded_and_destroyed() {
    let mut site = DeploySite::new(&["m1", "s1", "s2", "c1", "c2", "s3"]);
    let disk = LoopDevice::with_size(DISK_BYTES);
    let options =
        "[disks]\nstorage_mkfs = \"-K -i size=512\"\nstorage_mount = \"noatime,largeio\"\n";
    let base = [
        format!("{options}{MANAGEMENT}"),
        storage("s1", 2, &format!("storage_disks = [\"{}\"]", disk.path())),
        storage("s2", 3, "storage_directories = [\"/disk1/skep\", \"/disk2/skep\"]"),
        client("c1", 4),
        client("c2", 5),
    ]
    .concat();
    let s3 = storage("s3", 6, "storage_directories = [\"/disk1/skep\"]");
    site.write(&base);
    let before = site.contents();

    let planned = site.deploy("plan").expect_success();
    assert!(planned.contains("No problem found"), "{planned}");
    assert!(planned.contains(&format!("format {} for storage", disk.path())), "{planned}");
    site.expect_unchanged(&before);

    let applied = apply_in_time(&site);
    println!("{planned}\n{applied}");
    assert!(applied.contains("Deployed and verified cluster scratch"), "{applied}");
    let status = site.deploy("status").expect_success();
    println!("{status}");
    assert!(status.contains("The cluster is complete"), "{status}");
    assert_eq!(status.matches(" mounted").count(), 2, "{status}");
    assert!(status.contains("monitor running"), "{status}");
    site.expect_monitored("m1", 4);
    let mounts = site.host("s1").run("grep ' /srv/skep/disks/' /proc/mounts").expect_success();
    assert!(mounts.contains("largeio"), "{mounts}");
    site.host("s1").run("grep ' xfs noatime,largeio,nofail 0 0' /etc/fstab").expect_success();
    let mode = site.host("c1").run("stat -c %a /etc/skep/token").expect_success();
    assert_eq!(mode.trim(), "600");
    site.host("c1").run("echo kept >/mnt/skep/file; sync /mnt/skep/file").expect_success();
    assert_eq!(site.host("c2").run("cat /mnt/skep/file").expect_success(), "kept\n");

    site.host("c1").start(LOAD);
    site.write(&format!("{base}{s3}"));
    let added = site.deploy("add s3").expect_success();
    println!("{added}");
    let targets = site.host("m1").run("skep target list").expect_success();
    assert!(targets.contains("s3 [") && targets.matches(" Online ").count() == 5, "{targets}");
    site.admin.run("cp /usr/bin/skep ~root/newer; echo >>~root/newer").expect_success();
    let upgraded = site.deploy("upgrade --program ~root/newer --output json").expect_success();
    assert!(upgraded.contains("\"step\": \"stop storage\""), "{upgraded}");
    schema::check("deploy", &serde_json::from_str(&upgraded).expect("one JSON value"));
    let again = site.deploy("upgrade --program ~root/newer").expect_success();
    assert!(again.contains("; nothing was restarted"), "{again}");
    site.expect_monitored("m1", 5);
    for name in ["m1", "s1", "s2", "s3"] {
        let old = "ls -l /proc/$(cat /run/skep/*.pid | head -n 1)/exe";
        let shown = site.host(name).run(old).expect_success();
        assert!(!shown.contains("deleted"), "{name}: {shown}");
    }
    site.await_load("c1");
    site.end_load("c1");

    // A changed hosts file first moves the monitor to another host. A second changed hosts file
    // removes the monitor.
    let hosts = format!("{base}{s3}");
    site.write(
        &hosts.replace("[\"storage\"]\nstorage_disks", "[\"storage\", \"monitor\"]\nstorage_disks"),
    );
    site.deploy("apply --program ~root/newer").expect_success();
    site.expect_monitored("s1", 5);
    site.host("m1").run("test -e /run/skep/monitor.pid").expect_failure();
    site.write(&hosts);
    site.admin.run("sed -i '1i monitor = false' ~root/hosts.toml").expect_success();
    let off = site.deploy("apply --program ~root/newer").expect_success();
    assert!(!off.contains("start monitor"), "{off}");
    let status = site.deploy("status").expect_success();
    assert!(!status.contains("monitor"), "{status}");
    site.write(&hosts);
    site.deploy("apply --program ~root/newer").expect_success();

    check_refused_removal(&site);
    site.deploy("remove c2 --program ~root/newer").expect_success();
    let c2 = site.host("c2").run("ls -d /mnt/skep /usr/bin/skep /etc/skep").expect_failure();
    assert_eq!(c2.matches("No such file").count(), 3, "{c2}");
    check_removed_storage_host(&site);
    let refused = site.deploy("destroy").expect_failure();
    assert!(refused.contains("metadata on host m1 (/nvme0/skep)"), "{refused}");
    assert_eq!(site.host("c1").run("cat /mnt/skep/file").expect_success(), "kept\n");
    // Remove the initialised directories from the file `deploy.list` of each host. `skep deploy
    // destroy` must still find and name the directories that contain data.
    for name in ["m1", "s1", "s2"] {
        let shorten = "sed -i '/^initialised /d' /etc/skep/deploy.list";
        site.host(name).run(shorten).expect_success();
    }
    let refused = site.deploy("destroy").expect_failure();
    for found in ["/nvme0/skep on host m1", "/target on host s1", "/disk2/skep on host s2"] {
        assert!(refused.contains(found), "{found}: {refused}");
    }
    assert_eq!(site.host("c1").run("cat /mnt/skep/file").expect_success(), "kept\n");
    let destroyed = site.deploy("destroy --destroy-data").expect_success();
    println!("{destroyed}");
    site.expect_unchanged(&before);
    assert_eq!(disk.signatures(), "");
    let again = site.deploy("destroy --destroy-data").expect_success();
    assert!(again.contains(" 0 steps"), "{again}");
}

/// Checks that the host of management is not removed, and that a host with open targets is only
/// removed after a confirmation.
fn check_refused_removal(site: &DeploySite) {
    let refused = site.deploy("remove m1 --destroy-data").expect_failure();
    assert!(refused.contains("runs management"), "{refused}");
    let refused = site.deploy("remove s3").expect_failure();
    assert!(refused.contains("/disk1/skep") && refused.contains("--destroy-data"), "{refused}");
    let refused = site.deploy("remove s3 --destroy-data").expect_failure();
    for words in ["open to new files", "#retire-a-storage-target", "--confirm s3"] {
        assert!(refused.contains(words), "{words}: {refused}");
    }
    let refused = site.deploy("remove s3 --destroy-data --confirm s2").expect_failure();
    assert!(refused.contains("--confirm names 's2'"), "{refused}");
}

/// Removes the host `s3`, which stays in the hosts file. Management still lists its service, and a
/// plan must name this service before a step fails.
fn check_removed_storage_host(site: &DeploySite) {
    site.deploy("remove s3 --destroy-data --confirm s3 --program ~root/newer").expect_success();
    let planned = site.deploy("plan").expect_failure();
    for words in ["management still lists storage service s3", "`skep node remove s3`"] {
        assert!(planned.contains(words), "{words}: {planned}");
    }
}

#[test]
fn next_skep_deploy_completes_an_interrupted_run() {
    let mut site = DeploySite::new(&["m1", "s1", "c1"]);
    let disk = LoopDevice::with_size(DISK_BYTES);
    let storage = storage("s1", 2, &format!("storage_disks = [\"{}\"]", disk.path()));
    let monitor = "[monitor]\nhistory = \"32 MiB\"\n";
    site.write(&[monitor, MANAGEMENT, &storage, &client("c1", 3)].concat());
    let before = site.contents();
    // Each run continues after the last step of the previous killed run, and completes at least one
    // further step.
    let mut kills = 0;
    for steps in [1, 3, 2, 1, 2, 3, 1, 1] {
        kills += u32::from(site.kill_after("apply", steps));
    }
    assert!(kills >= 4, "{kills} runs were interrupted");
    let applied = site.deploy("apply").expect_success();
    assert!(applied.contains("verified"), "{applied}");
    let again = site.deploy("apply").expect_success();
    assert!(again.contains("verified"), "{again}");
    site.host("m1").run("grep '^history = .32 MiB' /etc/skep/monitor.toml").expect_success();
    site.expect_monitored("m1", 3);
    check_failed_file_system(&mut site, &disk);
    site.kill_after("destroy --destroy-data", 2);
    site.kill_after("destroy --destroy-data", 3);
    site.deploy("destroy --destroy-data").expect_success();
    site.expect_unchanged(&before);
    assert_eq!(disk.signatures(), "");
}

/// Shuts down the mounted file system of a disk of `s1`, as the kernel does after an error of the
/// disk. The next deployment must name the disk, and a remedy that works. Before the fix, the
/// deployment accepted the file system, because it was mounted.
fn check_failed_file_system(site: &mut DeploySite, disk: &LoopDevice) {
    let point = format!("/srv/skep/disks/loop{}", disk.number());
    site.host("s1").run(&format!("xfs_io -x -c shutdown {point}")).expect_success();
    let refused = site.deploy("apply").expect_failure();
    for words in [disk.path(), "[UUID ", "does not work: a read fails", &format!("umount {point}")]
    {
        assert!(refused.contains(words), "{words}: {refused}");
    }
    // The service may have ended already, because it has no other target. Wait for its end, because
    // the next deployment starts only services that do not run.
    let host = site.host("s1");
    let runs = "pid=$(cat /run/skep/storage.pid); grep -qs storage /proc/$pid/cmdline";
    host.run(&format!("if {runs}; then kill $pid || true; fi")).expect_success();
    wait_for("the storage service ends", PATIENCE, || {
        host.run(&format!("if {runs}; then exit 1; fi")).status.success().then_some(())
    });
    host.run(&format!("umount {point}")).expect_success();
    let repaired = site.deploy("apply --output json").expect_success();
    for step in ["mount the disks", "start storage"] {
        assert!(repaired.contains(&format!("\"step\": \"{step}\"")), "{step}: {repaired}");
    }
}

/// If `skep deploy` initialised a new directory for management, a different cluster would start,
/// and the existing services could not join this cluster.
///
/// Command: skep deploy apply, skep cluster backup, skep cluster restore.
#[test]
fn lost_management_is_restored_and_not_initialised_again() {
    let mut site = DeploySite::new(&["m1", "s1"]);
    let m1 = "[[host]]\nname = \"m1\"\naddress = \"10.0.0.1\"\nroles = [\"management\"]\n";
    let s1 = "[[host]]\nname = \"s1\"\naddress = \"10.0.0.2\"\n\
        roles = [\"metadata\", \"storage\"]\nmetadata_directories = [\"/nvme0/skep\"]\n\
        storage_directories = [\"/disk1/skep\"]\n";
    site.write_with("monitor = false\n", &[m1, s1].concat());
    site.deploy("apply").expect_success();
    let id = "skep cluster token --cluster /srv/skep/management | cut -d - -f 2";
    let host = site.host("m1");
    let cluster = host.run(id).expect_success();
    let backup = "skep cluster backup --directory /srv/skep/management ~root/copy";
    host.run(backup).expect_success();

    // Simulate a new installation of the host. Only the backup of management's directory remains.
    let lose = "kill -KILL $(cat /run/skep/management.pid); rm -rf /srv/skep /etc/skep /run/skep";
    host.run(lose).expect_success();
    wait_for("management has ended", PATIENCE, || {
        let port = host.run("bash -c '</dev/tcp/127.0.0.1/7400'");
        (!port.status.success()).then_some(())
    });
    let refused = site.deploy("apply").expect_failure();
    assert!(refused.contains("m1") && refused.contains("`skep cluster restore`"), "{refused}");
    assert!(!is_complete(&site));
    let host = site.host("m1");
    host.run("test -e /srv/skep/management").expect_failure();
    let restore = "mkdir -p /srv/skep\n\
        skep cluster restore --directory /srv/skep/management ~root/copy";
    host.run(restore).expect_success();

    site.deploy("apply").expect_success();
    let host = site.host("m1");
    assert_eq!(host.run(id).expect_success(), cluster);
    let targets = host.run("skep target list").expect_success();
    assert_eq!(targets.matches(" Online ").count(), 2, "{targets}");
    assert!(site.deploy("status").expect_success().contains("The cluster is complete"));
    assert!(is_complete(&site));
}

/// Returns whether the cluster is complete, as `skep deploy status` prints it in JSON.
fn is_complete(site: &DeploySite) -> bool {
    let status = site.deploy("status --output json").stdout;
    let status: serde_json::Value = serde_json::from_str(&status).expect("one JSON value");
    schema::check("deploy", &status);
    status["is_complete"].as_bool().expect("the status has this field")
}

#[test]
fn deploy_refuses_a_bad_host_and_names_the_fix() {
    let mut site = DeploySite::new(&["m1", "s1"]);
    let disk = LoopDevice::with_size(DISK_BYTES);
    let good = storage("s1", 2, "storage_directories = [\"/disk1/skep\"]");
    let with_disk = storage("s1", 2, &format!("storage_disks = [\"{}\"]", disk.path()));
    site.write(&[MANAGEMENT, &good].concat());
    site.deploy("plan").expect_success();
    let before = site.contents();
    let check = |site: &DeploySite, body: &str, words: &[&str]| {
        site.write(body);
        let text = site.deploy("apply").expect_failure();
        for word in words {
            assert!(text.contains(word), "{word}: {text}");
        }
        text
    };
    let hosts = |storage: &str| format!("{MANAGEMENT}{storage}");

    check(&site, &hosts(&good.replace("10.0.0.2", "10.0.0.77")), &["host s1", "10.0.0.77", "sshd"]);
    check(&site, &hosts(&good.replace("storage\"]", "storag\"]")), &["s1", "'storag'"]);
    check(
        &site,
        &hosts(&good.replace("storage\"]", "management\"]")),
        &["m1 and s1", "three or five hosts"],
    );
    check(&site, &hosts(&good.replace("/disk1/skep", "/disk1/../etc")), &["s1", "invalid path"]);

    // In these cases, the SSH key of the deploying host is wrong, or the host key has changed.
    site.admin
        .run("mv ~root/key ~root/right; ssh-keygen -q -t ed25519 -N '' -f ~root/wrong")
        .expect_success();
    check(&site, &hosts(&good), &["cannot use the key file", "ssh.identity"]);
    site.admin.run("cp ~root/wrong ~root/key").expect_success();
    check(&site, &hosts(&good), &["host m1", "host s1", "Permission denied", "ssh-copy-id"]);
    site.admin.run("mv ~root/right ~root/key; cp ~root/known ~root/kept").expect_success();
    site.admin
        .run("sed -i 's/10.0.0.2 /10.0.0.3 /; s/10.0.0.1 /10.0.0.2 /' ~root/known")
        .expect_success();
    check(&site, &hosts(&good), &["host s1", "ssh-keygen -R 10.0.0.2"]);
    site.admin.run("mv ~root/kept ~root/known").expect_success();

    // In these cases, one disk has a file system, and another disk has bytes that no program
    // recognises.
    run("mkfs.ext4", ["-q", disk.path()]);
    let text = check(&site, &hosts(&with_disk), &["s1", "ext4", "wipefs --all"]);
    assert!(text.contains("no host was changed"), "{text}");
    run("wipefs", ["--quiet", "--all", disk.path()]);
    run("dd", ["if=/dev/urandom", &format!("of={}", disk.path()), "bs=4k", "count=1", "seek=9"]);
    check(&site, &hosts(&with_disk), &["s1", "unknown data"]);
    check(&site, &hosts(&with_disk.replace(disk.path(), "/dev/none")), &["no block device"]);
    site.host("s1").run("mkdir -p /disk1/skep; echo x >/disk1/skep/thesis").expect_success();
    check(&site, &hosts(&good), &["/disk1/skep", "not empty"]);
    site.host("s1").run("rm -r /disk1/skep").expect_success();
    site.expect_unchanged(&before);

    // In these cases, the host already has parts of another installation: a program, a token, a
    // service or a used port.
    site.host("s1")
        .run("printf '#!/bin/sh\\necho skep 9\\n' >/usr/bin/skep; chmod 755 /usr/bin/skep")
        .expect_success();
    check(&site, &hosts(&good), &["s1", "another /usr/bin/skep", "skep 9"]);
    site.host("s1")
        .run("rm /usr/bin/skep; mkdir /etc/skep; touch /etc/skep/token")
        .expect_success();
    check(&site, &hosts(&good), &["s1", "/etc/skep/token"]);
    site.host("s1")
        .run("rm -r /etc/skep; mkdir -p /srv/skep/storage; touch /srv/skep/storage/skep-identity")
        .expect_success();
    check(&site, &hosts(&good), &["s1", "/srv/skep/storage", "move the directory away"]);
    site.host("s1").run("rm -r /srv/skep").expect_success();
    site.host("s1").start("python3 -m http.server 7420");
    wait_for("the port is taken", PATIENCE, || {
        site.admin.run("bash -c '</dev/tcp/10.0.0.2/7420'").status.success().then_some(())
    });
    check(&site, &hosts(&good), &["s1", "port 7420", "stop that program"]);
    site.expect_unchanged(&before);

    // In these cases, the user on a host cannot become root, or the network loses packets between
    // two hosts.
    site.host("m1")
        .run(
            "useradd --create-home worker; usermod -p '*' worker\n\
             cp -r ~root/.ssh /home/worker; chown -R worker /home/worker/.ssh",
        )
        .expect_success();
    let user = hosts(&good).replace("10.0.0.1\"", "worker@10.0.0.1\"");
    check(&site, &user, &["m1", "invalid address"]);
    site.write(&hosts(&good));
    site.admin
        .run("sed -i 's/user = \"root\"/user = \"worker\"/' ~root/hosts.toml")
        .expect_success();
    let text = site.deploy("plan").expect_failure();
    for word in ["become root on host m1", "sudo without a password"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    site.host("s1").run("ip route add blackhole 10.0.0.1/32").expect_success();
    check(&site, &hosts(&good), &["s1", "cannot reach management on m1 (10.0.0.1:7400)"]);
}
