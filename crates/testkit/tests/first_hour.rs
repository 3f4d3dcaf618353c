//! Mistakes that an administrator may make with services and mounts in the first hour. Skep refuses
//! or reports each such mistake with its reason. `docs/tests/first-hour.md` lists all such
//! mistakes, and names the tests in other files.

use skep_testkit::page::{PageHost, PageNetwork};
use skep_testkit::{Cluster, PATIENCE, Shape, cluster, files, wait_for};
use std::collections::BTreeSet;
use std::process::Command;

const README: &str = include_str!("../../../README.md");
/// A recorded session with commands of the README.
const SESSION: &str = include_str!("../../../docs/operations/images/first-session.txt");
/// The image of the session in the README. `tools/terminal-svg.py` draws this image.
const SESSION_IMAGE: &str = include_str!("../../../docs/operations/images/first-session.svg");
const STORAGE: &str = "skep storage --directory /srv/storage --target /disk1/skep";

/// Starts a service, and waits until its log has a line with `words`. Returns the log.
fn start(host: &mut PageHost, command: &str, words: &str) -> String {
    host.start(command);
    wait_for(words, PATIENCE, || {
        let log = files::read_to_string(host.log());
        log.contains(words).then_some(log)
    })
}

/// Case: D4. A target that the settings do not name any more gets no new files. The log and `skep
/// health check` name the target and the remedy.
///
/// Command: skep storage, skep health check.
#[test]
fn target_removed_from_the_settings_is_reported() {
    let network = PageNetwork::new();
    let mut host = network.host("all", "10.0.0.1/24");
    host.run("skep management --init --directory /srv/m").expect_success();
    start(&mut host, "skep management --directory /srv/m", " serves ");
    let token = "umask 077; mkdir -p /etc/skep; \
                 skep cluster token --cluster /srv/m > /etc/skep/token";
    host.run(token).expect_success();
    let both = format!("{STORAGE} --target /disk2/skep");
    host.run(&format!("{both} --init --token-file /etc/skep/token")).expect_success();
    start(&mut host, &both, " serves ");
    let down = |host: &PageHost, words: &str| {
        wait_for(words, PATIENCE, || {
            let health = host.run("skep health check").stdout;
            health.contains(words).then_some(health)
        })
    };
    host.stop();
    start(&mut host, "skep management --directory /srv/m", " serves ");
    let log = start(&mut host, STORAGE, "the settings do not name this target");
    assert!(log.contains("ERROR target t") && log.contains("/disk2/skep"), "{log}");
    let health = down(&host, "does not report this target");
    assert!(
        health.contains("add the directory of this target to `targets` in the settings"),
        "{health}"
    );
    let problems = health.split("Problems").nth(1).unwrap_or_default();
    assert_eq!(problems.matches("/disk2/skep").count(), 1, "{health}");
    host.stop();
}

/// Case: D10. A log level that does not exist would switch off the log of a mount.
///
/// Command: skep mount.
#[test]
fn unknown_log_level_of_a_mount_is_refused() {
    let cluster = Cluster::start(Shape::small());
    let data = cluster.data().display().to_string();
    let point = cluster.data().with_file_name("second");
    files::create_dir_all(&point);
    let second = point.display().to_string();
    for option in [["-o", "log=loud"], ["--log", "inof"]] {
        let arguments = [&["mount", "--cluster", &data, &second][..], &option].concat();
        let refused = cluster::skep(arguments).expect_failure();
        assert!(refused.contains("unknown level"), "{refused}");
    }
    cluster.stop();
}

/// Case: D36.
#[test]
fn refusal_of_an_unknown_command_names_a_similar_command() {
    let refused = cluster::skep(["status"]).expect_failure();
    assert!(refused.contains("try `skep health check`"), "{refused}");
}

/// Case: D23. The error message of `skep down` names the mount that a program uses, and a command
/// that finds this program.
///
/// Command: skep down.
#[test]
fn skep_down_names_the_mount_that_a_program_uses() {
    let cluster = Cluster::start(Shape::small());
    let mut program = Command::new("sleep");
    let mut program = program.arg("infinity").current_dir(cluster.path()).spawn().expect("sleep");
    let data = cluster.data().display().to_string();
    let down = cluster::skep(["down", "--data-dir", &data]);
    program.kill().expect("the process runs");
    program.wait().expect("ours");
    assert!(down.status.success(), "{down:?}");
    let mount = cluster.path().display().to_string();
    let words = [&format!("the mount on {mount} is in use"), "fuser -vm", "return errors"];
    assert!(words.iter().all(|word| down.stderr.contains(*word)), "{down:?}");
}

/// Returns a line of output without the values that differ between two clusters: ids, numbers,
/// paths, the version of the program, and the widths of columns.
fn without_values(line: &str) -> String {
    let labels = ["Skep ", "Cluster:", "Data:", "Mounted on:", "The cluster in "];
    if let Some(label) = labels.iter().find(|label| line.starts_with(**label)) {
        return (*label).to_owned();
    }
    let text = line.replace(|it: char| it.is_ascii_digit(), "");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Case: D17. All commands in the README succeed if a user types these commands in their order.
#[test]
fn every_command_of_the_readme_succeeds() {
    let network = PageNetwork::new();
    let host = network.host("laptop", "10.0.0.1/24");
    host.run("mkdir /srv/try; mount -t tmpfs tmpfs /run; rm -rf /etc/skep").expect_success();
    let blocks = README.split("```").map(str::trim);
    let commands = blocks.filter(|block| block.starts_with("export PATH="));
    let commands: Vec<_> = commands.flat_map(str::lines).collect();
    assert!(commands.len() > 8, "the README has its commands");
    let typed = format!("cd /srv/try; set -e\n{}", commands.join("\n"));
    let printed = host.run(&typed).expect_success();
    for shown in ["The cluster is healthy", "Storage targets", "hello\n", "is down"] {
        assert!(printed.contains(shown), "'{shown}' is not in:\n{printed}");
    }
    let lines: BTreeSet<String> = printed.lines().map(without_values).collect();
    for line in SESSION.lines().filter(|line| !line.starts_with("$ ")) {
        assert!(lines.contains(&without_values(line)), "'{line}' is not in:\n{printed}");
    }
}

/// The image in the README has exactly the lines of the recorded session.
#[test]
fn image_in_the_readme_shows_the_recorded_session() {
    let lines: Vec<_> = SESSION.lines().filter(|line| !line.is_empty()).collect();
    let shown = SESSION_IMAGE.lines().filter(|line| line.starts_with("<text "));
    let shown: Vec<_> = shown.map(|line| line.replace("&gt;", ">")).collect();
    assert_eq!(shown.len(), lines.len());
    for (line, shown) in lines.iter().zip(&shown) {
        assert!(shown.ends_with(&format!(">{line}</text>")), "'{line}' is not in {shown}");
    }
    assert!(README.contains("docs/operations/images/first-session.svg"));
}
