//! Tests of the scripts. The tests check the syntax with `sh -n`, and run some of the scripts with
//! a stand-in for `skep`.

#[path = "tests/shell.rs"]
mod shell;

use super::*;
use crate::facts;
use crate::hosts::Place;
use crate::hosts::tests::GOOD;
use std::io::Write as _;
use std::process::{Command, Stdio};

/// Returns the metadata target of a host.
fn place(host: &str) -> Place {
    Place { host: host.into(), path: "/nvme0/t".into() }
}

fn all_scripts() -> Vec<(String, String)> {
    let deployment = Deployment::parse(&format!("tune = true{GOOD}")).unwrap();
    let mut scripts = Vec::new();
    for host in &deployment.hosts {
        let mut actions = vec![
            Action::Install,
            Action::Configure,
            Action::WriteUnits,
            Action::MountDisks,
            Action::WriteToken,
            Action::FormatCluster,
            Action::AwaitHealth,
            Action::AwaitMembers,
            Action::Tune,
            Action::RestoreTuning,
            Action::Mount,
            Action::Unmount,
            Action::WriteCheck,
            Action::ReadCheck,
            Action::RemoveCheck,
            Action::Remove { keeps_data: true },
            Action::JoinManagement,
            Action::AddMember,
            Action::RemoveMember { host: "m2".into(), node: 5 },
            Action::DiscardManagement,
            Action::SetCopies(2),
            Action::CreateGroup(["a1", "a2"].map(place).into()),
            Action::AddCopy { group: 3, place: place("a2") },
        ];
        actions.extend(host.disks.iter().cloned().map(Action::Format));
        for role in Role::SERVICES {
            actions.extend([Action::Initialise(role), Action::Start(role), Action::Stop(role)]);
        }
        let secrets = Secrets { token: "skep:secret", program_hash: "abc" };
        for action in actions {
            let text = script(&deployment, host, &action, secrets);
            scripts.push((format!("{}: {action}", host.name), text));
        }
        scripts.push((format!("{}: cluster", host.name), crate::cluster::script()));
        scripts.push((format!("{}: facts", host.name), facts::script(&deployment, host)));
        let peers = crate::checks::peers(&deployment, host);
        scripts.push((format!("{}: reach", host.name), crate::checks::reach_script(&peers)));
    }
    scripts
}

#[test]
fn shell_accepts_the_syntax_of_all_scripts() {
    for (name, text) in all_scripts() {
        let mut shell = Command::new("sh");
        let shell = shell.args(["-n", "-s"]).stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut child = shell.spawn().unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && errors.is_empty(), "{name}: {errors}\n{text}");
    }
}

/// A shell that has received only a part of a script must not run this part. The last line may be
/// incomplete, such as `rm -rf /srv` of `rm -rf /srv/skep/management`.
#[test]
fn incomplete_script_of_a_step_is_not_run() {
    let is_complete = |text: &str| {
        let mut shell = Command::new("sh");
        let shell = shell.args(["-n", "-s"]).stdin(Stdio::piped()).stderr(Stdio::null());
        let mut child = shell.spawn().unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        child.wait().unwrap().success()
    };
    let steps: Vec<_> =
        all_scripts().into_iter().filter(|(_, text)| text.starts_with("{\n")).collect();
    assert!(steps.len() > 50, "all steps except the installation");
    let removal = |name: &str| name.ends_with(&Action::Remove { keeps_data: true }.to_string());
    assert!(steps.iter().any(|(name, _)| removal(name)));
    for (name, text) in steps {
        let end = "} </dev/null\n";
        assert!(text.ends_with(end), "{name}");
        for length in [text.len() - end.len(), text.len() / 2] {
            assert!(!is_complete(&text[..length]), "{name}: {length} bytes");
        }
    }
}

/// A monitor that an administrator runs by hand on a host of the deployment must survive
/// `skep deploy destroy`.
#[test]
fn only_a_monitor_of_the_deployment_is_stopped() {
    for (name, script) in all_scripts() {
        for line in script.lines().filter(|line| line.contains("stop_service monitor")) {
            assert!(line.contains("is_recorded 'file /etc/skep/monitor.toml'"), "{name}: {line}");
        }
    }
}

/// The file `deploy.list` of a host may lack the lines about initialised services. The files in the
/// targets that `deploy.list` names then show that the host stores data.
#[test]
fn files_of_listed_targets_count_as_stored_data() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    for name in ["full/chunks", "empty/lost+found", "unlisted"] {
        std::fs::create_dir_all(path(name)).unwrap();
    }
    for name in ["full/chunks/1", "unlisted/1"] {
        std::fs::write(path(name), "data").unwrap();
    }
    let (list, full) = (path("deploy.list"), path("full"));
    let stored = || {
        let script = format!("set -eu\nlist={}\n{STORED}\nstored_data\n", list.display());
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(stored(), "", "the host has no list");
    let targets = ["full", "empty", "missing"].map(|name| path(name).display().to_string());
    let lines = targets.map(|target| format!("target {target}\n")).concat();
    std::fs::write(&list, format!("cluster scratch\n{lines}")).unwrap();
    assert_eq!(stored(), format!("{}\n", full.display()));
}

/// If the disk did not count as data, a removal without `--destroy-data` would erase its files.
#[test]
fn target_on_a_failed_disk_counts_as_stored_data() {
    let directory = tempfile::tempdir().unwrap();
    let list = directory.path().join("deploy.list");
    std::fs::write(&list, "cluster scratch\ntarget /nowhere/skep\n").unwrap();
    let stored = |error: &str| {
        let script = format!(
            "set -eu\nlist={}\nfind() {{ echo \"find: '$1': {error}\" >&2; return 1; }}\n\
             {STORED}\nstored_data\n",
            list.display()
        );
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(stored("Input/output error"), "/nowhere/skep\n");
    assert_eq!(stored("No such file or directory"), "");
}

/// After an interrupted deployment, a disk may not be mounted. The script cannot list the files of
/// such a disk, so the disk counts as data.
#[test]
fn disk_that_is_not_mounted_counts_as_stored_data() {
    let directory = tempfile::tempdir().unwrap();
    let list = directory.path().join("deploy.list");
    let disk = |uuid: &str, name: &str| format!("disk /dev/{name} {uuid} /nowhere/{name}\n");
    let lines = [disk("own", "sda"), disk("other", "sdb")].concat();
    std::fs::write(&list, format!("cluster scratch\n{lines}")).unwrap();
    let script = format!(
        "set -eu\nlist={}\nblkid() {{ echo own; }}\n{STORED}\nstored_data\n",
        list.display()
    );
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let stored = String::from_utf8(output.stdout).unwrap();
    assert_eq!(stored, "/nowhere/sda /dev/sda not-mounted\n", "sdb has another file system");
}

/// The program that deploys may be of another version than the program that it installs.
#[test]
fn hosts_receive_systemd_units_of_the_installed_program() {
    let writes = |script: &str| script.lines().any(|line| line.starts_with("write_units "));
    let scripts: Vec<_> = all_scripts().into_iter().filter(|(_, it)| writes(it)).collect();
    assert_eq!(scripts.len(), 4, "each host has two scripts that write units");
    for (name, script) in scripts {
        assert!(!script.contains("ExecStart="), "{name}");
        assert_eq!(script.contains("\nwrite_units --monitor\n"), name.contains("m1"), "{name}");
        let drop_in = "/etc/systemd/system/skep-storage@scratch.service.d/disks.conf";
        assert_eq!(script.contains(drop_in), name.contains("s1"), "{name}");
    }
}

#[test]
fn only_the_script_for_the_token_file_has_the_token() {
    let with: Vec<_> =
        all_scripts().into_iter().filter(|(_, text)| text.contains("skep:secret")).collect();
    assert_eq!(with.len(), 2, "each host has one such script");
    for (name, text) in with {
        assert!(name.ends_with("write the token"), "{name}");
        assert!(text.contains("write_file /etc/skep/token 600"), "{text}");
    }
}

#[test]
fn configuration_has_targets_and_addresses_of_the_host() {
    let deployment = Deployment::parse(GOOD).unwrap();
    let host = deployment.host("s1").unwrap();
    let text = config(&deployment, host, Role::Storage);
    let table: toml::Table = text.parse().unwrap();
    assert_eq!(table["targets"].as_array().unwrap().len(), 3);
    let node = table["node"].as_table().unwrap();
    assert_eq!(node["name"].as_str(), Some("s1"));
    assert_eq!(node["domain"].as_str(), Some("rack-1"));
    assert_eq!(node["advertise"].as_array().unwrap().len(), 2);
    assert!(!node.contains_key("listen"));
    assert!(!node.contains_key("cpus") && !node.contains_key("numa_node"), "{text}");
    let bound = Deployment::parse(&GOOD.replace("domain =", "numa_node = 1\ndomain =")).unwrap();
    let text = config(&bound, bound.host("s1").unwrap(), Role::Storage);
    assert!(text.contains("\nnuma_node = \"1\"\n"), "{text}");
    let v6 = GOOD.replace("network = [\"10.1.0.2\"", "network = [\"2001:db8::2\"");
    let v6 = Deployment::parse(&v6).unwrap();
    let text = config(&v6, v6.host("s1").unwrap(), Role::Storage);
    assert!(text.contains("listen = \"[::]:7420\""), "{text}");
}

#[test]
fn other_hosts_read_metrics_only_if_enabled_in_the_hosts_file() {
    let metrics = |text: &str, role: Role| {
        let deployment = Deployment::parse(text).unwrap();
        let host = if role == Role::Storage { "s1" } else { "m1" };
        let config = config(&deployment, deployment.host(host).unwrap(), role);
        let table: toml::Table = config.parse().unwrap();
        table["node"].get("metrics").and_then(|it| it.as_str()).map(str::to_owned)
    };
    assert_eq!(metrics(GOOD, Role::Storage), None);
    let open = format!("metrics = true\n{GOOD}");
    assert_eq!(metrics(&open, Role::Storage).as_deref(), Some("0.0.0.0:7421"));
    assert_eq!(metrics(&open, Role::Management).as_deref(), Some("0.0.0.0:7401"));
    let v6 = open.replace("network = [\"10.1.0.2\"", "network = [\"2001:db8::2\"");
    assert_eq!(metrics(&v6, Role::Storage).as_deref(), Some("[::]:7421"));
}

#[test]
fn disks_are_formatted_and_mounted_with_options_of_the_service() {
    let disks = "[disks]\nstorage_mkfs = \"-i size=512 -d su=128k,sw=8\"\n\
        storage_mount = \"noatime,largeio\"\nmetadata_mkfs = \"-n size=8192\"\n[mount]";
    let scripts = |text: &str| {
        let deployment = Deployment::parse(text).unwrap();
        let host = deployment.host("s1").unwrap();
        let secrets = Secrets { token: "skep:secret", program_hash: "abc" };
        let format = Action::Format(host.disks[0].clone());
        [format, Action::MountDisks, Action::Configure]
            .map(|action| script(&deployment, host, &action, secrets))
    };
    let [format, mount, configure] = scripts(&GOOD.replace("[mount]", disks));
    let mkfs = "mkfs.xfs -q -i size=512 -d su=128k,sw=8 -m uuid=";
    assert!(format.contains(mkfs) && !format.contains("8192"), "{format}");
    assert!(mount.contains("-o noatime,largeio /dev/nvme1n1 "), "{mount}");
    assert!(configure.contains(" xfs noatime,largeio,nofail 0 0\n"), "{configure}");
    // A hosts file without settings for disks gives the same scripts and fstab lines as earlier
    // versions.
    let [format, mount, configure] = scripts(GOOD);
    assert!(format.contains("mkfs.xfs -q -m uuid="), "{format}");
    assert!(mount.contains("mount -t xfs -o noatime /dev/nvme1n1 "), "{mount}");
    assert!(configure.contains(" xfs noatime,nofail 0 0\n"), "{configure}");
}

#[test]
fn shell_does_not_interpret_mount_options() {
    let options = "[mount]\noptions = \"noatime;>injected;$(>injected)\"";
    let deployment = Deployment::parse(&GOOD.replace("[mount]", options)).unwrap();
    let functions = "modprobe() { :; }\nmake_dir() { :; }\nrecord() { :; }\n\
        is_mounted() { false; }\ndie() { exit 1; }\n\
        mount() { printf '%s\\n' \"$@\" >arguments; }\n";
    let directory = tempfile::tempdir().unwrap();
    let status = Command::new("sh")
        .args(["-euc", &format!("{functions}{}", mount(&deployment))])
        .current_dir(directory.path())
        .status()
        .unwrap();
    assert!(status.success());
    let arguments = std::fs::read_to_string(directory.path().join("arguments")).unwrap();
    let options = "noatime;>injected;$(>injected),token_file=/etc/skep/token";
    assert_eq!(arguments, format!("-t\nskep\n-o\n{options}\n10.0.0.1:7400\n/scratch\n"));
    assert!(!directory.path().join("injected").exists());
}

/// One health check can take seconds on a busy cluster. A limit for the number of attempts would
/// not limit the time.
#[test]
fn waits_are_bounded_by_time_and_not_by_attempts() {
    let from = PRELUDE.find("uptime_seconds() {").unwrap();
    let to = PRELUDE.find("stop_service() {").unwrap();
    let functions = &PRELUDE[from..to];
    // In this script, only the checked command advances the clock, by 25 s for each attempt.
    let script = format!(
        "set -eu\n{functions}\nclock=100\nattempts=0\n\
         uptime_seconds() {{ echo \"$clock\"; }}\n\
         sleep() {{ :; }}\n\
         die() {{ echo \"$attempts attempts: $*\"; exit 1; }}\n\
         fails() {{ clock=$((clock + 25)); attempts=$((attempts + 1)); false; }}\n\
         await 60 'too late' fails\n"
    );
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "3 attempts: too late\n");
    assert_eq!(output.status.code(), Some(1));
    let waiting = all_scripts().into_iter().filter(|(_, script)| script.contains("health check"));
    let mut bounded = waiting.map(|(_, script)| script.contains("(await 60 "));
    assert_eq!((bounded.next(), bounded.all(|it| it)), (Some(true), true));
}

/// Runs the wait for members with a stand-in for `skep`. The output of the stand-in shows that all
/// members serve from the time `serving_from` in seconds, and that all management nodes have the
/// whole log from the time `current_from`. Returns the exit status and the output.
fn wait_for_members(serving_from: u32, current_from: u32) -> (Option<i32>, String) {
    let from = PRELUDE.find("uptime_seconds() {").unwrap();
    let to = PRELUDE.find("stop_service() {").unwrap();
    let functions = &PRELUDE[from..to];
    let group = |state: &str| {
        let storage = r#"{"id":9,"kind":"storage","members":[{"state":"Waiting"}],"state":"Good"}"#;
        let first = r#"{"lag":null,"state":"Serving","target":1}"#;
        let second = format!(r#"{{"lag":null,"state":"{state}","target":2}}"#);
        let begin = r#"{"epoch":4,"id":1,"kind":"metadata","members":"#;
        format!("{storage}\n{begin}[{first},{second}],\"state\":\"Degraded\"}}")
    };
    let management = |lag: &str, state: &str| {
        let leader = r#"{"id":1,"lag":0,"role":"leader"}"#;
        let follower =
            format!(r#"{{"id":5,"lag":{lag},"reachability":"{state}","role":"follower"}}"#);
        let learner = r#"{"id":6,"lag":7,"role":"learner"}"#;
        format!("{{\"last\":12,\"nodes\":[{leader},{follower},{learner}]}}")
    };
    let (waiting, serving) = (group("Waiting"), group("Serving"));
    // At first a follower lacks changes. After this, the follower is restarted.
    let behind = management("null", "Online");
    let (restarted, current) = (management("0", "Offline"), management("0", "Online"));
    // In this script, only the pauses advance the clock, by 25 s each.
    let script = format!(
        "set -eu\n{functions}\nclock=100\n\
         uptime_seconds() {{ echo \"$clock\"; }}\n\
         sleep() {{ clock=$((clock + 25)); }}\n\
         die() {{ echo \"at $clock: $*\"; exit 1; }}\n\
         choose() {{ if [ \"$clock\" -lt \"$1\" ]; then echo \"$2\"; else echo \"$3\"; fi; }}\n\
         fake_skep() {{ case \"$1 $3\" in\n\
         'group --output') choose {serving_from} '{waiting}' '{serving}' ;;\n\
         'management --output') if [ \"$clock\" -lt 200 ]; then choose {current_from} '{behind}' \
         '{current}'; else choose {current_from} '{restarted}' '{current}'; fi ;;\n\
         *) echo \"the table of $*\" >&2 ;;\n\
         esac; }}\n{}",
        await_members().replace("/usr/bin/skep ", "fake_skep ")
    );
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    let texts = [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap());
    (output.status.code(), texts.concat())
}

#[test]
fn upgrade_waits_for_members_and_names_missing_members() {
    assert_eq!(wait_for_members(0, 0), (Some(0), String::new()));
    assert_eq!(wait_for_members(300, 500), (Some(0), String::new()));
    let (code, text) = wait_for_members(9_000, 0);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.starts_with("at 700: not all members of the metadata groups serve"), "{text}");
    assert!(text.contains("the table of group list"), "{text}");
    let (code, text) = wait_for_members(0, 9_000);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.starts_with("at 700: not all management nodes answer"), "{text}");
    assert!(text.contains("the table of management status"), "{text}");
}

/// Runs a script of the module `cluster` with a stand-in for `skep`, which a shell function
/// `fake_skep` defines. Returns the exit status and the output.
fn run_with(fake: &str, body: &str) -> (Option<i32>, String) {
    let from = PRELUDE.find("uptime_seconds() {").unwrap();
    let to = PRELUDE.find("stop_service() {").unwrap();
    let script = format!(
        "set -eu\n{}\nclock=100\n\
         uptime_seconds() {{ echo \"$clock\"; }}\n\
         sleep() {{ clock=$((clock + 25)); }}\n\
         die() {{ echo \"at $clock: $*\"; exit 1; }}\n\
         fake_skep() {{\n{fake}\n}}\n{}",
        &PRELUDE[from..to],
        body.replace("/usr/bin/skep ", "fake_skep ")
    );
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    let texts = [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap());
    (output.status.code(), texts.concat())
}

/// A stand-in for `skep`. It lists the targets of a cluster, as `skep target list --output ndjson`
/// prints them, and refuses all other commands. A lost target of the host `a1` has the same
/// directory as the new target.
const TARGETS: &str = r#"case "$1 $2" in 'target list') cat <<'END'
{"group":null,"id":3,"kind":"metadata","node_name":"a1","path":"/nvme0/t","reachability":"Offline"}
{"group":null,"id":11,"kind":"metadata","node_name":"a1","path":"/nvme0/t","reachability":"Online"}
{"group":3,"id":12,"kind":"metadata","node_name":"a2","path":"/nvme0/t","reachability":"Online"}
{"group":1,"id":1,"kind":"storage","node_name":"a2","path":"/disk1/skep","reachability":"Online"}
END
;; *) echo "$*" >&2; exit 1 ;; esac"#;

#[test]
fn group_is_created_from_the_ids_of_online_targets() {
    let (code, text) = run_with(TARGETS, &cluster::create_group(&["a1", "a2"].map(place)));
    assert_eq!(code, Some(1));
    assert!(text.contains("group create 11 12 --cluster /srv/skep/management"), "{text}");
    let (code, text) = run_with(TARGETS, &cluster::create_group(&["a1", "a9"].map(place)));
    assert_eq!(code, Some(1));
    assert!(text.starts_with("at 175: the metadata target /nvme0/t of host a9"), "{text}");
}

#[test]
fn target_joins_a_group_only_once() {
    assert_eq!(run_with(TARGETS, &cluster::add_copy(3, &place("a2"))), (Some(0), String::new()));
    let (code, text) = run_with(TARGETS, &cluster::add_copy(3, &place("a1")));
    assert_eq!(code, Some(1));
    assert!(text.contains("group add 3 11 --cluster"), "{text}");
}

#[test]
fn make_once_succeeds_if_the_object_exists_already() {
    let body = "make_once fake_skep cluster format\necho done\n";
    for code in [0, 7] {
        let fake = format!("echo \"$*\" >&2; return {code}");
        assert_eq!(run_with(&fake, body), (Some(0), "done\n".into()));
    }
    let (code, text) = run_with("echo 'it is formatted already' >&2; return 1", body);
    assert_eq!((code, text.as_str()), (Some(1), "at 100: it is formatted already\n"));
}

/// The first attempts fail, because the previous leader has stopped and management elects another.
#[test]
fn removal_of_a_management_node_waits_for_the_next_leader() {
    let fake = |leads_from: u32| {
        format!(
            "[ \"$clock\" -ge {leads_from} ] || {{ echo 'no leader' >&2; return 1; }}\n\
             if [ \"$2\" = remove ]; then removed=$3; return 0; fi\n\
             if [ -z \"$removed\" ]; then echo '{{\"nodes\":[{{\"id\":5,\"lag\":0}}]}}'; \
             else echo '{{\"nodes\":[]}}'; fi"
        )
    };
    let body = format!("removed=\n{}", cluster::remove_member(5));
    assert_eq!(run_with(&fake(120), &body), (Some(0), String::new()));
    let (code, text) = run_with(&fake(9_000), &body);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("the node was not removed within 60 s"), "{text}");
    assert!(text.contains("no leader"), "{text}");
}
