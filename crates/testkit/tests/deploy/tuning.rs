//! Hosts that `skep deploy` tunes. Other mounts hide the kernel's files on these hosts, so the test
//! changes no setting of this machine.

use skep_testkit::deploy_site::{DeploySite, MANAGEMENT, storage};

/// Hides `/sys`, and replaces `/proc/sys` by a single setting and the files that services read.
const HIDE_KERNEL: &str = "mount -t tmpfs tmpfs /sys\n\
    mkdir /srv/settings; mount -t tmpfs tmpfs /srv/settings\n\
    mkdir -p /srv/settings/vm /srv/settings/kernel/random; echo 60 >/srv/settings/vm/swappiness\n\
    cp /proc/sys/kernel/random/boot_id /srv/settings/kernel/random\n\
    cp /proc/sys/kernel/hostname /srv/settings/kernel\n\
    mount --bind /srv/settings /proc/sys; umount /srv/settings; rmdir /srv/settings";

/// Command: skep deploy plan, skep deploy apply, skep deploy status, skep deploy destroy.
#[test]
fn deployment_tunes_hosts_and_restores_their_settings() {
    let mut site = DeploySite::new(&["m1", "s1"]);
    for name in ["m1", "s1"] {
        site.host(name).run(HIDE_KERNEL).expect_success();
    }
    let s1 = storage("s1", 2, "storage_directories = [\"/disk1/skep\"]");
    let hosts = [MANAGEMENT, &s1].concat();
    site.write_with("tune = true\nmonitor = false\n", &hosts);
    let before = site.contents();
    let setting = "cat /proc/sys/vm/swappiness";
    let step = "tune the kernel for the roles of the host";

    let planned = site.deploy("plan").expect_success();
    assert_eq!(planned.matches(step).count(), 2, "{planned}");
    site.expect_unchanged(&before);
    let applied = site.deploy("apply --output json").expect_success();
    assert_eq!(applied.matches(step).count(), 2, "{applied}");
    for name in ["m1", "s1"] {
        assert_eq!(site.host(name).run(setting).expect_success().trim(), "10", "{name}");
        let boot = site.host(name).run("cat /etc/sysctl.d/90-skep.conf").expect_success();
        assert!(boot.contains("swappiness"), "{name}: {boot}");
    }
    let again = site.deploy("apply --output json").expect_success();
    assert!(!again.contains(step), "{again}");
    assert!(site.deploy("status").expect_success().contains("The cluster is complete"));

    // The new hosts file sets `tune = false` for the host `s1`.
    let s1 = storage("s1", 2, "tune = false\nstorage_directories = [\"/disk1/skep\"]");
    site.write_with("tune = true\nmonitor = false\n", &[MANAGEMENT, &s1].concat());
    let restored = site.deploy("apply --output json").expect_success();
    assert!(restored.contains("restore the previous kernel settings"), "{restored}");
    assert_eq!(site.host("s1").run(setting).expect_success().trim(), "60");
    assert_eq!(site.host("m1").run(setting).expect_success().trim(), "10");

    // An administrator now tunes `s1` by hand. The deployment must not undo these changes.
    site.host("s1").run("skep tune apply --role storage").expect_success();
    site.write_with("tune = true\nmonitor = false\n", &hosts);
    let refused = site.deploy("apply").expect_failure();
    assert!(refused.contains("s1") && refused.contains("`skep tune undo`"), "{refused}");
    site.host("s1").run("skep tune undo").expect_success();
    site.deploy("apply").expect_success();
    site.deploy("destroy --destroy-data").expect_success();
    for name in ["m1", "s1"] {
        assert_eq!(site.host(name).run(setting).expect_success().trim(), "60", "{name}");
    }
    site.expect_unchanged(&before);
}
