//! The tuning of hosts: the settings of the kernel that `skep tune apply` changes on the hosts for
//! which the hosts file has `tune = true`.
//!
//! The module does no I/O. A host records for which roles and targets it was tuned, so a plan
//! detects a change of these roles and targets. A host is tuned again only after such a change.
//! `skep tune check` finds settings that other programs have changed since the last tuning.

use crate::hosts::{Host, Role};
use std::fmt::Write;

/// The shell functions that tune a host and restore its settings. The removal of a deployment calls
/// them too.
pub(crate) const FUNCTIONS: &str = include_str!("scripts/tuning.sh");
/// The directories in which `skep tune apply` writes files. Before the command runs, the deployment
/// records the directories that the host lacks, so that a removal of the deployment removes them.
const DIRECTORIES: [&str; 4] =
    ["/var/lib/skep/tune", "/etc/sysctl.d", "/etc/tmpfiles.d", "/etc/udev/rules.d"];
/// The roles that have rules. The monitor has none.
const ROLES: [Role; 4] = [Role::Management, Role::Metadata, Role::Storage, Role::Client];

/// Returns the roles and the directories of targets for which the hosts file asks to tune the host,
/// as one line. `None` means that the hosts file does not ask for tuning, or that no role of the
/// host has rules.
pub(crate) fn wanted(host: &Host) -> Option<String> {
    if !host.tune {
        return None;
    }
    let roles = ROLES.into_iter().filter(|role| host.has(*role));
    let words = |role: Role| [vec![role.to_string()], host.targets(role)].concat().join(" ");
    let words: Vec<String> = roles.map(words).collect();
    (!words.is_empty()).then(|| words.join(", "))
}

/// Returns the script that tunes the host.
pub(crate) fn script(host: &Host) -> String {
    let mut text = FUNCTIONS.to_owned();
    for directory in DIRECTORIES {
        let _ = writeln!(text, "make_dir {directory} 755");
    }
    text += "set_tuned unfinished\n";
    let wanted = wanted(host).unwrap_or_default();
    for part in wanted.split(", ").filter(|part| !part.is_empty()) {
        let _ = writeln!(text, "tune {part}");
    }
    let _ = writeln!(text, "set_tuned '{wanted}'");
    text
}

/// Returns the script that restores the settings from before the first tuning.
pub(crate) fn restoring_script() -> String {
    format!("{FUNCTIONS}restore_tuning\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::Deployment;
    use crate::hosts::tests::GOOD;

    #[test]
    fn each_role_is_tuned_with_its_own_targets() {
        let tuned = Deployment::parse(&format!("tune = true{GOOD}")).unwrap();
        let wanted = |name: &str| wanted(tuned.host(name).unwrap());
        assert_eq!(wanted("m1").as_deref(), Some("management, metadata /nvme0/skep"));
        let disks = "/srv/skep/disks/nvme1n1/target /srv/skep/disks/mapper-data/target";
        assert_eq!(wanted("s1"), Some(format!("storage {disks} /data/skep, client")));
        let text = script(tuned.host("s1").unwrap());
        assert!(
            text.contains(&format!("\ntune storage {disks} /data/skep\ntune client\n")),
            "{text}"
        );
    }

    #[test]
    fn hosts_are_tuned_only_if_the_hosts_file_requests_tuning() {
        let check = |text: &str, expected: [bool; 2]| {
            let read = Deployment::parse(text).unwrap();
            let is_tuned = |name: &str| wanted(read.host(name).unwrap()).is_some();
            assert_eq!(["m1", "s1"].map(is_tuned), expected, "{text}");
        };
        check(GOOD, [false, false]);
        check(&format!("tune = true{GOOD}"), [true, true]);
        let but_one = GOOD.replace("domain =", "tune = false\ndomain =");
        check(&format!("tune = true{but_one}"), [true, false]);
        check(&GOOD.replace("domain =", "tune = true\ndomain ="), [false, true]);
    }

    /// Runs `body` with the shell functions [`FUNCTIONS`], a stand-in for `skep`, and a
    /// `deploy.list` in which the deployment has recorded nothing yet. Returns the exit status, the
    /// text of `deploy.list`, and the output.
    fn run(body: &str) -> (Option<i32>, String, String) {
        let directory = tempfile::tempdir().unwrap();
        let list = directory.path().join("list");
        std::fs::write(&list, "cluster scratch\n").unwrap();
        // The stand-in for `skep` fails for the target `/shared`, as for a target that is on no
        // local disk. For clients, the stand-in fails as for a value that the kernel refuses. The
        // stand-in also fails for metadata and management.
        let script = format!(
            "set -eu\nlist={}\ndie() {{ echo \"$*\"; exit 1; }}\n\
             fake_skep() {{ case \"$*\" in\n\
             *'--target /shared') echo 'no local disk' >&2; return 4 ;;\n\
             *'--role client') echo 'cannot write 10'; return 6 ;;\n\
             *'--role metadata') echo 'failed: no record' >&2; return 1 ;;\n\
             *'--role management') echo 'no rules' >&2; return 4 ;;\n\
             esac; }}\n{}{body}",
            list.display(),
            FUNCTIONS.replace("/usr/bin/skep ", "fake_skep ")
        );
        let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
        let text = [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap());
        (output.status.code(), std::fs::read_to_string(&list).unwrap(), text.concat())
    }

    #[test]
    fn tuning_errors_end_a_deployment_but_refused_values_do_not() {
        let body = "set_tuned unfinished\ntune storage /data /shared\ntune client\n";
        let (code, list, text) = run(&format!("{body}set_tuned 'storage /data, client'\n"));
        assert_eq!((code, text.as_str()), (Some(0), ""));
        assert_eq!(list, "cluster scratch\ntuned storage /data, client\n");
        let (code, list, text) = run(&format!("{body}tune metadata\nset_tuned x\n"));
        assert_eq!((code, text.as_str()), (Some(1), "failed: no record\n"));
        assert_eq!(list, "cluster scratch\ntuned unfinished\n");
        assert_eq!(run("tune management\n").0, Some(1), "no directory was named");
        let (_, list, _) = run("set_tuned x\nset_tuned ''\n");
        assert_eq!(list, "cluster scratch\n");
    }
}
