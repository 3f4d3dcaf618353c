//! Checks that each command has help, completion and a manual page, and that help and manual page
//! contain the examples of the command.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn skep(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_skep"));
    command.args(arguments).output().expect("the program can be run")
}

fn stdout_of(arguments: &[&str]) -> String {
    let output = skep(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).expect("the output is UTF-8")
}

/// Returns the names of the files in a directory without their extensions.
fn names(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).expect("a directory");
    let name = |entry: std::io::Result<fs::DirEntry>| {
        let path = entry.expect("an entry").path();
        path.file_stem().expect("a name").to_string_lossy().into_owned()
    };
    entries.map(name).collect()
}

/// Command: skep man.
#[test]
fn every_command_has_a_manual_page_and_help_with_its_examples() {
    let place = tempfile::tempdir().expect("a temporary directory");
    let (roff, pages) = (place.path().join("man"), place.path().join("pages"));
    let text = |path: &Path| path.display().to_string();
    // The directory exists already, with a page of another program. The command must count only its
    // own pages.
    fs::create_dir_all(roff.join("man1")).expect("a new directory");
    fs::write(roff.join("man1/other.1"), "of others").expect("written");
    let wrote = stdout_of(&["man", "--dir", &text(&roff)]);
    stdout_of(&["man", "--markdown", "--dir", &text(&pages)]);
    let commands = names(&pages);
    assert!(commands.len() > 20 && commands.contains("skep-node-log-level"), "{commands:?}");
    let (first, eighth) = (names(&roff.join("man1")), names(&roff.join("man8")));
    assert!(
        wrote.starts_with(&format!("Wrote {} manual pages ", first.len() - 1 + eighth.len())),
        "{wrote}"
    );
    assert!(first.union(&eighth).cloned().collect::<BTreeSet<_>>().is_superset(&commands));
    let expected = ["mount.skep", "skep-management", "skep-metadata", "skep-storage"];
    assert!(eighth.iter().eq(&expected), "{eighth:?}");
    for command in &commands {
        let section = if eighth.contains(command) { 8 } else { 1 };
        let file = roff.join(format!("man{section}/{command}.{section}"));
        let manual = fs::read_to_string(file).expect("a page");
        assert!(manual.contains(&format!(".TH {command} {section}")), "{manual}");
        // In a manual page, dashes are escaped as `\\-`.
        let plain = manual.replace("\\-", "-");
        let page = fs::read_to_string(pages.join(format!("{command}.md"))).expect("a page");
        let example = page.lines().find(|line| line.starts_with("  skep ")).expect("an example");
        assert!(plain.contains(".SH EXAMPLES") && plain.contains(example.trim()), "{plain}");
    }
    let overview = fs::read_to_string(roff.join("man1/skep.1")).expect("a page");
    assert!(overview.contains("skep\\-storage(8)"), "{overview}");
    assert!(overview.contains("skep\\-mount(1)"), "{overview}");
    let helper = fs::read_to_string(roff.join("man8/mount.skep.8")).expect("a page");
    assert!(helper.contains(".SH \"MOUNT OPTIONS\"") && helper.contains("attribute_timeout="));
    let help = stdout_of(&["node", "log-level", "--help"]);
    assert!(
        help.contains(
            "Examples:\n  # show the log level of all services\n  skep node log-level all"
        ),
        "{help}"
    );
}

/// Command: skep completion.
#[test]
fn completion_scripts_suggest_commands_options_and_values() {
    for shell in ["bash", "zsh", "fish"] {
        let script = stdout_of(&["completion", shell]);
        for word in ["log-level", "session", "config", "--output", "ndjson"] {
            assert!(script.contains(word.trim_start_matches('-')), "{shell}: {word}");
        }
    }
    let place = tempfile::tempdir().expect("a temporary directory");
    let path = place.path().join("skep.bash");
    fs::write(&path, stdout_of(&["completion", "bash"])).expect("written");
    // Runs the real shell, which completes the last word of `line`. Returns the completions.
    let completed = |line: &str| {
        let ask = "source $1; shift; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); \
                   _skep skep \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD - 1]}\"; \
                   echo \"${COMPREPLY[*]}\"";
        let mut command = Command::new("bash");
        command.args(["-c", ask, "bash"]).arg(&path).args(line.split(' '));
        let output = command.output().expect("bash can be run");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {errors}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    for (line, words) in [
        ("skep con", "config"),
        ("skep config get ch", "chunk-size chooser"),
        ("skep config set stripe-", "stripe-width stripe-from"),
        ("skep mount --transport u", "uring"),
        ("skep up --transport ", "auto uring device"),
        ("skep mount --log d", "debug"),
        ("skep node log-level all def", "default"),
        ("skep node list --output ", "table json ndjson csv xml"),
        (
            "skep entry set --chooser random",
            "randomized randomrobin randominternode randomintranode",
        ),
        ("skep lab up scen", "scenario1 scenario2"),
        ("skep study plan scen", "scenario1 scenario2"),
        ("skep completion z", "zsh"),
    ] {
        assert_eq!(completed(line), words, "{line}");
    }
    // The parser of the command line accepts an unknown value, and the command then reports an
    // error.
    let unknown = skep(&["config", "get", "colour"]);
    let errors = String::from_utf8_lossy(&unknown.stderr);
    assert!(errors.contains("unknown setting 'colour': expected one of lease, "), "{errors}");
}
