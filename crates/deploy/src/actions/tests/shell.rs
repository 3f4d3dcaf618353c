//! Tests that run parts of the scripts in a shell. Shell functions replace programs of the host.

use super::*;
use std::path::Path;

/// Runs commands in a shell with a function `die` that only prints its text and exits. Returns the
/// exit status and the output.
fn run_script(commands: &str) -> (Option<i32>, String) {
    let script = format!("set -eu\ndie() {{ echo \"$*\"; exit 1; }}\n{commands}");
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    let texts = [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap());
    (output.status.code(), texts.concat())
}

/// Runs commands with the part of [`PRELUDE`] from the text `from` to the text `to`. The list of
/// the deployment is the file `list` in `place`. Returns the exit status and the output.
fn run_in(place: &Path, (from, to): (&str, &str), body: &str) -> (Option<i32>, String) {
    let functions = &PRELUDE[PRELUDE.find(from).unwrap()..PRELUDE.find(to).unwrap()];
    run_script(&format!("CLUSTER=scratch\nlist={}/list\n{functions}\n{body}", place.display()))
}

/// An interrupted run writes the settings and does not initialise a new target. The next run finds
/// its settings already written, and must still initialise the target.
#[test]
fn changed_settings_are_recorded_until_the_initialisation() {
    let place = tempfile::tempdir().unwrap();
    let at = place.path();
    std::fs::write(at.join("list"), "cluster scratch\n").unwrap();
    let list = || std::fs::read_to_string(at.join("list")).unwrap();
    let run = |text: &str, body: &str| {
        let deployment = Deployment::parse(text).unwrap();
        let configure = configure(&deployment, deployment.host("s1").unwrap());
        let configure = configure.replace("/etc/skep/", &format!("{}/", at.display()));
        let stubs =
            "make_dir() { :; }\nhas_systemd() { false; }\nwrite_fstab() { cat >/dev/null; }\n";
        let part = ("is_recorded() {", "has_systemd() {");
        let body = format!("{stubs}{configure}{body}");
        assert_eq!(run_in(at, part, &body), (Some(0), String::new()));
    };
    run(GOOD, "");
    assert!(list().contains("\nchanged storage\n"), "{}", list());
    let of_initialise =
        initialise(Deployment::parse(GOOD).unwrap().host("s1").unwrap(), Role::Storage, false);
    assert!(of_initialise.ends_with("record 'initialised storage'\nforget 'changed storage'\n"));
    run(GOOD, "forget 'changed storage'\n");
    assert!(!list().contains("changed"), "{}", list());
    run(GOOD, "");
    assert!(!list().contains("changed"), "the same settings: {}", list());
    run(&GOOD.replace("rack-1", "rack-2"), "");
    assert!(list().contains("\nchanged storage\n"), "{}", list());
}

/// After a boot, an empty disk may have the name of a disk that has data.
#[test]
fn disk_is_not_formatted_with_the_uuid_of_another_disk() {
    let deployment = Deployment::parse(GOOD).unwrap();
    let host = deployment.host("s1").unwrap();
    let text = format_disk(&deployment, host, &host.disks[0]);
    let text = text.replace("blkid ", "fake_blkid ").replace("mkfs.xfs ", "fake_mkfs ");
    let run = |fakes: &str| {
        run_script(&format!(
            "record() {{ echo \"record $1\"; }}\nfake_mkfs() {{ echo made >&2; }}\n{fakes}\n{text}"
        ))
    };
    let empty = "fake_blkid() { return 2; }\n";
    let (code, text) = run(&format!("{empty}is_mounted() {{ false; }}"));
    assert!(code == Some(0) && text.ends_with("made\n"), "{text}");
    let (code, text) = run(&format!("{empty}is_mounted() {{ true; }}"));
    assert!(code == Some(1) && !text.contains("made"), "{text}");
    assert!(text.contains("names of the disks have changed"), "{text}");
    let (code, text) = run("fake_blkid() { echo TYPE=ext4; }\nis_mounted() { false; }");
    assert_eq!((code, text.as_str()), (Some(1), "/dev/nvme1n1 holds data\n"));
}

#[test]
fn deployment_changes_only_its_marked_fstab_lines() {
    let place = tempfile::tempdir().unwrap();
    let fstab = place.path().join("fstab");
    let write = |before: &str, body: &str| {
        std::fs::write(&fstab, before).unwrap();
        let functions = &PRELUDE[PRELUDE.find("write_fstab() {").unwrap()..];
        let functions = functions.replace("/etc/fstab", &fstab.display().to_string());
        let (code, text) = run_script(&format!(
            "has_systemd() {{ false; }}\n{functions}\nwrite_fstab <<'END'\n{body}END\n"
        ));
        (code, std::fs::read_to_string(&fstab).unwrap(), text)
    };
    let (begin, end) = ("# skep deploy: begin\n", "# skep deploy: end\n");
    let before = format!("/dev/a / xfs\n{begin}old\n{end}/dev/b /home xfs\n");
    let (code, after, _) = write(&before, "new\n");
    assert_eq!(code, Some(0));
    assert_eq!(after, format!("/dev/a / xfs\n/dev/b /home xfs\n{begin}new\n{end}"));
    let (_, after, _) = write(&after, "");
    assert_eq!(after, "/dev/a / xfs\n/dev/b /home xfs\n");
    // An administrator has removed the last line of the deployment.
    let cut = before.replace(end, "");
    let (code, after, text) = write(&cut, "new\n");
    assert_eq!((code, after), (Some(1), cut));
    assert!(text.contains("insert this line"), "{text}");
    assert!(!place.path().join("fstab.skep-new").exists());
}

/// Runs commands with the functions that stop and start services. `systemctl` is a shell function.
fn run_with_systemd(systemctl: &str, body: &str) -> (Option<i32>, String) {
    let place = tempfile::tempdir().unwrap();
    let stubs = format!(
        "has_systemd() {{ true; }}\nunit_of() {{ echo \"skep-$1@scratch\"; }}\n\
         timeout() {{ shift; \"$@\"; }}\njournalctl() {{ echo log; }}\n\
         systemctl() {{\n{systemctl}\n}}\n{body}"
    );
    run_in(place.path(), ("stop_service() {", "is_mounted() {"), &stubs)
}

/// After a stop that has failed, the start would find the running service and do nothing, so an
/// upgrade would leave the old program running.
#[test]
fn stop_of_a_unit_that_still_runs_is_an_error() {
    let state = |state: &str| format!("if [ \"$1\" = show ]; then echo {state}; else return 1; fi");
    for stopped in ["inactive", "failed"] {
        let result = run_with_systemd(&state(stopped), "stop_service storage\necho done\n");
        assert_eq!(result, (Some(0), "done\n".into()), "{stopped}");
    }
    for running in ["active", "deactivating", "''"] {
        let (code, text) = run_with_systemd(&state(running), "stop_service storage\n");
        assert_eq!(code, Some(1), "{running}");
        assert!(text.starts_with("cannot stop the unit skep-storage@scratch.service"), "{text}");
    }
}

#[test]
fn start_of_a_unit_that_is_not_ready_fails_after_a_time_limit() {
    let systemctl = |code: i32| format!("case \"$*\" in *storage*) return {code} ;; esac");
    let start = "start_service storage 7420\necho done\n";
    assert_eq!(run_with_systemd(&systemctl(0), start), (Some(0), "done\n".into()));
    // `timeout` has this exit code if the time is over.
    let (code, text) = run_with_systemd(&systemctl(124), start);
    assert!(code == Some(1) && text.contains("is not ready after 600 s"), "{text}");
    let (code, text) = run_with_systemd(&systemctl(1), start);
    assert!(code == Some(1) && text.contains("did not start") && text.contains("log"), "{text}");
}

/// Runs the part of a removal that removes the files of the deployment, on a host with systemd.
/// `systemctl` prints the units in `running`. Returns the calls of `systemctl` that change units,
/// and whether the unit of storage, its drop-in file, the program and the token are left.
fn remove_files(running: &str, enabled: &[&str]) -> (String, [bool; 4]) {
    let place = tempfile::tempdir().unwrap();
    let at = place.path();
    let units = at.join("etc/systemd/system");
    let wants = units.join("skep.target.wants");
    std::fs::create_dir_all(&wants).unwrap();
    for unit in enabled {
        std::os::unix::fs::symlink(units.join("skep-storage@.service"), wants.join(unit)).unwrap();
    }
    let files = [
        "etc/systemd/system/skep-storage@.service",
        "etc/systemd/system/skep-storage@scratch.service.d/disks.conf",
        "usr/bin/skep",
        "etc/skep/token",
    ];
    let mut list = "cluster scratch\n".to_owned();
    for file in files {
        std::fs::create_dir_all(at.join(file).parent().unwrap()).unwrap();
        std::fs::write(at.join(file), "").unwrap();
        list += &format!("file {}/{file}\n", at.display());
    }
    std::fs::write(at.join("list"), list).unwrap();
    let from = REMOVE.find("# Whether services that").unwrap();
    let to = REMOVE.find("if has_systemd; then systemctl daemon-reload; fi").unwrap();
    let mut part = REMOVE[from..to].to_owned();
    for directory in ["/etc/", "/usr/bin/", "/sbin/", "/srv/"] {
        part = part.replace(directory, &format!("{}{directory}", at.display()));
    }
    let body = format!(
        "has_systemd() {{ true; }}\nsystemctl() {{\n\
         if [ \"$1\" = list-units ]; then printf '{running}'; else echo \"$*\"; fi\n}}\n{part}"
    );
    let (code, text) = run_in(at, ("is_recorded() {", "record() {"), &body);
    assert_eq!(code, Some(0), "{text}");
    (text, files.map(|file| at.join(file).exists()))
}

/// `skep.target` also stops the services of other clusters and a monitor of the administrator.
/// These services use the units and the program that the deployment has installed.
#[test]
fn removal_leaves_units_and_program_of_other_services() {
    let disabled = "disable --now --quiet skep.target\n";
    let own = ["skep-storage@scratch.service"];
    assert_eq!(remove_files("", &own), (disabled.into(), [false; 4]));
    let left = (String::new(), [true, false, true, false]);
    let running = "skep-storage@other.service loaded active running\\n";
    assert_eq!(remove_files(running, &[]), left);
    // The other service does not run at the moment, and starts at the next boot.
    assert_eq!(remove_files("", &["skep-storage@other.service"]), left);
    assert_eq!(remove_files("", &["skep-monitor.service"]), left);
}

#[test]
fn check_of_a_mount_writes_only_into_the_mount() {
    let place = tempfile::tempdir().unwrap();
    let point = place.path().display().to_string();
    let deployment = Deployment::parse(&GOOD.replace("/scratch\"", &format!("{point}\""))).unwrap();
    let run = |is_mounted: bool, commands: &str| {
        let script = on_mount(&deployment, commands);
        run_script(&format!("is_skep_mount() {{ {is_mounted}; }}\n{script}"))
    };
    let (code, text) = run(false, "echo x >file\n");
    assert!(code == Some(1) && text.contains("is not mounted on"), "{text}");
    assert!(!place.path().join("file").exists());
    assert_eq!(run(true, "echo x >file\n"), (Some(0), String::new()));
    assert!(place.path().join("file").exists());
    assert_eq!(run(true, "exit 3\n").0, Some(3));
}

/// The disk of a target may be detached, and another disk may have its name.
#[test]
fn mount_script_mounts_only_the_disk_with_the_expected_uuid() {
    let deployment = Deployment::parse(GOOD).unwrap();
    let host = deployment.host("s1").unwrap();
    let text_of_mount = mount_disks(&deployment, host);
    let text = text_of_mount.replace("blkid ", "fake_blkid ");
    let [first, second] =
        ["/dev/nvme1n1", "/dev/mapper/data"].map(|it| disk_uuid(&deployment, host, it));
    let run = |uuid: &str| {
        run_script(&format!(
            "make_dir() {{ :; }}\nis_mounted() {{ false; }}\nmount() {{ echo \"$*\"; }}\n\
             fake_blkid() {{ case \"$6\" in */data) echo {second} ;; *) echo {uuid} ;; esac; }}\n\
             {text}"
        ))
    };
    let mounts = "-t xfs -o noatime /dev/nvme1n1 /srv/skep/disks/nvme1n1\n\
        -t xfs -o noatime /dev/mapper/data /srv/skep/disks/mapper-data\n";
    assert_eq!(run(&first), (Some(0), mounts.into()));
    let (code, text) = run("of-another-disk");
    assert!(code == Some(1) && text.starts_with("cannot mount the disk for"), "{text}");
    let stubs = "is_mounted() { true; }\n";
    let failed = "failed_mount() { echo 'a read fails'; }\n";
    // The stubs replace the shell functions that the script defines.
    let text = text_of_mount.replace(DISKS, &format!("{stubs}{failed}"));
    let (code, text) = run_script(&text);
    assert!(code == Some(1) && text.contains("does not work: a read fails. If"), "{text}");
    assert!(text.contains(&first) && text.contains("umount /srv/skep/disks/nvme1n1"), "{text}");
}

/// Earlier versions accepted a mounted file system whose device did not work.
#[test]
fn failed_file_system_of_a_mounted_disk_is_detected() {
    let place = tempfile::tempdir().unwrap();
    let at = place.path().display().to_string();
    std::fs::create_dir_all(place.path().join("block/8:16")).unwrap();
    let line = |number: &str| {
        let line = format!("36 35 {number} / {at} rw,noatime shared:1 - xfs /dev/none rw\n");
        std::fs::write(place.path().join("mounts"), line).unwrap();
    };
    let functions = DISKS.replace("/proc/self/mountinfo", &format!("{at}/mounts"));
    let functions = functions.replace("/sys/dev/block", &format!("{at}/block"));
    let run = |stubs: &str| {
        run_script(&format!(
            "{functions}\ntimeout() {{ shift; \"$@\"; }}\n{stubs}\n\
             if reason=$(failed_mount {at}); then echo \"$reason\"; else echo works; fi\n"
        ))
    };
    let check = |stubs: &str, words: &str| assert_eq!(run(stubs), (Some(0), format!("{words}\n")));
    let error = "echo 'x: error reading y: Input/output error' >&2; return 2;";
    let same = "device_number() { echo 8:16; }\n";
    line("8:16");
    check("", "works");
    check(&format!("{same}dd() {{ :; }}"), "works");
    check(&format!("{same}dd() {{ {error} }}"), "a read fails (Input/output error)");
    check(&format!("ls() {{ {error} }}"), "a read fails (Input/output error)");
    let late =
        "a read does not end within 20 s (if the disk is only busy, repeat the command later)";
    check("ls() { return 124; }", late);
    let closed = "dd() { echo 'dd: failed to open: Operation not permitted' >&2; return 1; }";
    check(&format!("{same}{closed}"), "works");
    // Another disk has the name of the device.
    check(&format!("device_number() {{ echo 8:32; }}\ndd() {{ {error} }}"), "works");
    line("8:32");
    check("", "its device (/dev/none) is gone");
    line("0:45");
    check(&format!("ls() {{ {error} }}"), "works");
    std::fs::write(place.path().join("mounts"), "").unwrap();
    check("", "works");
}

#[test]
fn failed_unmount_names_its_own_reason() {
    let place = tempfile::tempdir().unwrap();
    let run = |stubs: &str| {
        let body = format!("{stubs}\nunmount_cluster /mnt/a\necho done\n");
        run_in(place.path(), ("unmount_cluster() {", "# Replaces the lines"), &body)
    };
    assert_eq!(run("is_skep_mount() { false; }"), (Some(0), "done\n".into()));
    let (code, text) = run("is_skep_mount() { true; }\numount() { return 32; }");
    assert!(code == Some(1) && text.contains("/mnt/a is in use"), "{text}");
    // The mount has ended, and metadata has not confirmed its last changes.
    let unconfirmed = "mounted=yes\nis_skep_mount() { [ $mounted = yes ]; }\n\
        umount() { mounted=no; echo unconfirmed >&2; return 32; }";
    assert_eq!(run(unconfirmed), (Some(1), "unconfirmed\n".into()));
}
