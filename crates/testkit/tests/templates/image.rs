//! The script `deploy/image/prepare.sh`, which prepares a host for an image. A host of the test
//! plays the machine from which a user makes the image, and then a machine that starts from this
//! image.

use super::{Cloud, TOKEN, directory, render};
use skep_testkit::{PATIENCE, files, wait_for};

/// Files that must be different on each machine.
const IDENTITY: &str = "/etc/ssh/ssh_host_ed25519_key /var/lib/cloud/instance ~root/.ssh/id \
    /var/lib/systemd/random-seed";

#[test]
fn prepared_host_has_no_identity_and_boots_without_download() {
    let mut cloud = Cloud::new("10.75.0");
    let at = cloud.add("image", 10, 1);
    let url = cloud.url();
    let script = files::read_to_string(directory().join("image/prepare.sh"));
    let host = &cloud.hosts[at];
    host.run(&format!(
        "cat >/srv/prepare.sh <<'END OF SCRIPT'\n{script}\nEND OF SCRIPT\n\
         for file in {IDENTITY}; do mkdir -p ${{file%/*}}; echo own >$file; done\n\
         echo 0123456789abcdef0123456789abcdef >/etc/machine-id\n\
         mkdir -p /var/log; echo secret >/var/log/messages"
    ))
    .expect_success();
    wait_for("the web server has the package", PATIENCE, || {
        host.run(&format!("curl -fsSo /srv/skep.tar.gz {url}")).status.success().then_some(())
    });
    // The home directory of a user is on another file system, such as that of a file server.
    let shared = "mkdir -p /home/shared; mount -t tmpfs tmpfs /home/shared\n\
        mkdir /home/shared/.ssh; echo own >/home/shared/.ssh/id";
    host.run(shared).expect_success();
    let prepare = |options: &str| {
        host.run(&format!("sh /srv/prepare.sh --package /srv/skep.tar.gz {options}"))
    };

    // The script refuses wrong directories before it changes any file.
    let refused = [
        ("", "name a package and a root directory"),
        ("--root /srv", "is not the root directory of a host"),
        ("--root /", "write --this-host"),
    ];
    for (options, words) in refused {
        let text = prepare(options).expect_failure();
        assert!(text.contains(words), "{options}: {text}");
    }
    host.run("mkdir -p /srv/skep/storage").expect_success();
    let text = prepare("--this-host --without-cloud-init").expect_failure();
    assert!(text.contains("the host belongs to a cluster"), "{text}");
    host.run("rmdir /srv/skep/storage").expect_success();
    // An absolute link in a mounted image refers to a path on this host, and not in the image.
    host.run("mkdir -p /srv/image/etc /srv/image/usr/bin; ln -s /var /srv/image/var")
        .expect_success();
    let text = prepare("--root /srv/image --without-cloud-init").expect_failure();
    assert!(text.contains("/srv/image/var leads out of the image to /var"), "{text}");
    host.run(&format!("ls {IDENTITY}; grep 0123 /etc/machine-id")).expect_success();

    let text = prepare("--this-host --without-cloud-init").expect_success();
    assert!(text.contains("is ready for an image"), "{text}");
    assert!(text.contains("left /home/shared alone"), "{text}");
    host.run("grep own /home/shared/.ssh/id && umount /home/shared").expect_success();
    let left = host.run(&format!("ls -d {IDENTITY} 2>/dev/null || true")).expect_success();
    assert_eq!(left, "");
    let sizes = "stat -c %s /etc/machine-id /var/log/messages";
    assert_eq!(host.run(sizes).expect_success(), "0\n0\n");

    let settings = [
        "SKEP_ROLES=management metadata storage".to_owned(),
        "SKEP_MANAGEMENT=10.75.0.10".to_owned(),
        format!("SKEP_TOKEN={TOKEN}"),
        "SKEP_FORMAT=1 1".to_owned(),
        "SKEP_PACKAGE=".to_owned(),
    ];
    let hosts = render("cloud-init/node.yaml", "", &settings);
    let (user_data, _) = hosts.into_values().next().expect("one host");
    cloud.web.stop();
    cloud.start(at, &user_data);
    cloud.await_ready(at);
    cloud.hosts[at].run("skep health check --cluster 10.75.0.10").expect_success();
}
