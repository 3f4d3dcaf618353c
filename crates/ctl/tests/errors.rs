//! Checks the error messages of commands: each message names the object and the problem, and
//! recommends only commands and options that exist.
//!
//! The messages come from two sources: errors that commands report without a cluster, and all
//! string literals in the sources of this crate and of skep-lab. The literals include errors that
//! occur only with a cluster.

use skep_types::ErrorCode;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Phrases that are unclear or not idiomatic.
const FORBIDDEN: [&str; 6] = ["is no ", "is none", "none of", "can't", "couldn't", "nobody"];

/// The help text of each command, by its full name, such as `skep node list`.
struct Commands(BTreeMap<String, String>);

impl Commands {
    fn load() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut command = Command::new(env!("CARGO_BIN_EXE_skep"));
        let status = command.args(["man", "--markdown", "--dir"]).arg(directory.path()).status();
        assert!(status.expect("skep starts").success());
        let pages = fs::read_dir(directory.path()).expect("the pages");
        let page = |path: PathBuf| {
            let text = fs::read_to_string(&path).expect("a page");
            let title = text.lines().next().expect("a title").trim_matches(['#', ' ', '`']);
            (title.to_owned(), text)
        };
        Self(pages.map(|entry| page(entry.expect("an entry").path())).collect())
    }

    /// Whether the help of the command `name` lists an option. An empty name means any command.
    fn has_option(&self, name: &str, option: &str) -> bool {
        let mut pages = self.0.iter().filter(|(command, _)| name.is_empty() || *command == name);
        pages.any(|(_, text)| {
            let is_option_char = |c: char| c.is_ascii_alphanumeric() || c == '-';
            text.split(|c| !is_option_char(c)).any(|word| word == option)
        })
    }

    /// Checks that a text names only commands and options that exist.
    fn check(&self, text: &str) {
        // `split` separates the text at the backticks, so the pieces with odd numbers were between
        // two backticks.
        for (index, piece) in text.split('`').enumerate() {
            let is_command = index % 2 == 1 && piece.starts_with("skep ");
            let name = if is_command { self.command_in(piece, text) } else { String::new() };
            let is_foreign = index % 2 == 1 && !is_command;
            for word in piece.split([' ', '=', ',', ';', '(', ')', ':', '.', '\n', '\'']) {
                let is_option = word.starts_with("--") && word.len() > 2 && !word.contains('{');
                if is_option && !is_foreign && word != "--help" {
                    assert!(self.has_option(&name, word), "{word} does not exist: {text}");
                }
            }
        }
    }

    /// Returns the name of the command in a line such as `skep node list --output json`.
    fn command_in(&self, line: &str, text: &str) -> String {
        let words: Vec<&str> = line.split(' ').collect();
        let names = (2..=words.len()).rev().map(|len| words[..len].join(" "));
        if words[1].starts_with('{') || words[1].starts_with("--") {
            return String::new();
        }
        let mut known = names.filter(|name| self.0.contains_key(name));
        known.next().unwrap_or_else(|| panic!("`{line}` does not exist: {text}"))
    }
}

fn check_phrases(text: &str) {
    for phrase in FORBIDDEN {
        assert!(!text.contains(phrase), "'{phrase}' in: {text}");
    }
}

/// An error that occurs without a cluster. The fields are the arguments of the command, the name of
/// the error code and the exit code. The last two fields are the object in the message, and the
/// hint on how to fix the problem.
type Row<'a> = (Vec<&'a str>, &'a str, i32, &'a str, &'a str);

/// Runs a command in a directory in which no cluster exists, and checks its error.
fn check_row(commands: &Commands, directory: &Path, row: &Row) {
    let (arguments, code, exit_code, object, way_out) = row;
    let mut command = Command::new(env!("CARGO_BIN_EXE_skep"));
    let words: Vec<_> = [&["--output", "json"], arguments.as_slice()].concat();
    let output = command.current_dir(directory).args(words).output().expect("skep starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(*exit_code), "{arguments:?}: {stderr}");
    let line = stderr.lines().last().unwrap_or_default();
    let error: serde_json::Value =
        serde_json::from_str(line).unwrap_or_else(|_| panic!("{arguments:?}: {stderr}"));
    let message = error["error"]["message"].as_str().expect("a message");
    assert_eq!(error["error"]["code"], *code, "{arguments:?}: {message}");
    assert!(message.contains(object), "{arguments:?}: '{object}' is missing: {message}");
    assert!(message.contains(way_out), "{arguments:?}: '{way_out}' is missing: {message}");
    assert!(message.contains(": "), "{arguments:?}: no fact: {message}");
    check_phrases(message);
    commands.check(message);
}

#[test]
#[expect(clippy::too_many_lines, reason = "one table")]
fn errors_name_the_object_and_a_fix_if_no_cluster_runs() {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| scratch.path().join(name).display().to_string();
    let (blank, used, cluster) = (path("blank"), path("used"), path("cluster"));
    let (inner, hosts, target) = (path("cluster/mnt"), path("hosts"), path("target"));
    fs::create_dir(&blank).expect("created");
    fs::create_dir(&used).expect("created");
    fs::write(path("used/thesis.tex"), "").expect("written");
    fs::write(&hosts, "# none\n").expect("written");
    let address = "10.0.0.1:7400";
    let config = |words: [&'static str; 2]| vec!["config", "set", words[0], words[1]];
    let rows: Vec<Row> = vec![
        (vec!["node", "list"], "Configuration", 2, "cluster", "--cluster"),
        (vec!["node", "list", "--cluster", "/none"], "Configuration", 2, "/none", "`skep up`"),
        (vec!["node", "list", "--cluster", address], "Configuration", 2, address, "--token-file"),
        (
            vec!["node", "list", "--cluster", address, "--token-file", "/none"],
            "Configuration",
            2,
            "/none",
            "`skep cluster token --cluster DIRECTORY`",
        ),
        (vec!["deploy", "plan", "--hosts", "/none"], "NotFound", 4, "/none", "--hosts"),
        (
            vec!["deploy", "apply", "--hosts", &hosts],
            "Configuration",
            2,
            "management is missing",
            "give it to one host",
        ),
        (vec!["node", "list", "--cluster", &blank], "Configuration", 2, &blank, "`skep up "),
        (vec!["down", "--data-dir", "/none"], "Configuration", 2, "/none", "--data-dir"),
        (vec!["up", "--data-dir", &used], "Configuration", 2, "'thesis.tex'", "--data-dir"),
        (
            vec!["up", "--data-dir", &cluster, "--mount-point", &inner],
            "Configuration",
            2,
            &inner,
            "--mount-point",
        ),
        (
            vec!["up", "--data-dir", &cluster, "--no-mount", "--storage-services", "0"],
            "Configuration",
            2,
            "cluster",
            "--storage-services",
        ),
        (
            vec!["up", "--data-dir", &cluster, "--no-mount", "--set", "sync"],
            "Configuration",
            2,
            "--set 'sync'",
            "SERVICE:KEY=VALUE",
        ),
        (
            vec!["mount", "-o", "colour=red", "m"],
            "Configuration",
            2,
            "'colour=red'",
            "`skep mount --help`",
        ),
        (vec!["mount", "-o", "retry=soon", "m"], "Configuration", 2, "retry=soon", "expected"),
        (vec!["entry", "set", &blank], "InvalidArgument", 2, "pattern", "--num-targets"),
        (
            vec!["entry", "set", "--num-targets", "2", &blank],
            "InvalidArgument",
            2,
            &blank,
            "`skep client list`",
        ),
        (
            vec!["entry", "create", "--num-targets", "2", "--permissions", "9", "x"],
            "InvalidArgument",
            2,
            "--permissions '9'",
            "expected",
        ),
        (vec!["entry", "info", "/none"], "NotFound", 4, "/none", ""),
        (
            config(["chooser", "best"]),
            "InvalidArgument",
            2,
            "chooser: invalid value 'best'",
            "balanced",
        ),
        (config(["stripe-width", "x"]), "InvalidArgument", 2, "'x'", "expected a number"),
        (vec!["management", "--token-file", "x"], "Configuration", 2, "token", "--token-file"),
        (vec!["management", "--target", "x"], "Configuration", 2, "--target", "remove"),
        (vec!["storage", "--set", "x"], "Configuration", 2, "--set 'x'", "KEY=VALUE"),
        (
            vec!["metadata", "--init", "--directory", &blank, "--target", &target],
            "Configuration",
            2,
            "token",
            "`skep cluster token --cluster DIRECTORY`",
        ),
        (vec!["bench", "io", "-t", "1x", "-o", "x"], "Usage", 2, "size '1x'", "expected"),
        (
            vec!["bench", "io", "--host-file", &hosts, "-o", "x"],
            "InvalidArgument",
            2,
            &hosts,
            "one host name per line",
        ),
        (
            vec!["bench", "slow-targets", "--slower-by", "200"],
            "InvalidArgument",
            2,
            "--slower-by",
            "expected",
        ),
        (
            vec!["bench", "storage", "--block-size", "8g"],
            "InvalidArgument",
            2,
            "--block-size",
            "4 MiB",
        ),
        (vec!["lab", "up", "none"], "Configuration", 2, "'none'", "scenario1"),
        (vec!["lab", "up", "--servers", "0"], "Configuration", 2, "servers 0", "expected"),
        (vec!["lab", "up", "--name", "a-b"], "Configuration", 2, "'a-b'", "expected"),
        (vec!["lab", "up", "--link", "fast"], "Usage", 2, "rate 'fast'", "400Mbit"),
        (vec!["lab", "status", "--name", "none0"], "NotFound", 4, "'none0'", "lab"),
        (
            vec!["study", "run", "small", "--mount", "/none", "--directory", &cluster],
            "NotFound",
            4,
            "--mount /none",
            "",
        ),
    ];
    let commands = Commands::load();
    for row in &rows {
        check_row(&commands, scratch.path(), row);
    }
}

/// Returns the string literals of a source file that are outside of comments and tests.
fn literals(source: &str) -> Vec<String> {
    let product = source.split("#[cfg(test)]").next().unwrap_or_default();
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    let code: Vec<&str> = product.lines().filter(is_code).collect();
    let code = code.join("\n").replace("\\\"", "'").replace("'\"'", "");
    let literals = code.split('"').skip(1).step_by(2);
    // A backslash at the end of a line joins it with the next line.
    let join = |text: &str| text.split("\\\n").map(str::trim_start).collect::<String>();
    literals.map(join).collect()
}

fn add_sources(directory: &Path, sources: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory of sources") {
        let path = entry.expect("an entry").path();
        match path.is_dir() {
            true => add_sources(&path, sources),
            false => sources.push(path),
        }
    }
}

#[test]
fn messages_name_only_existing_commands_and_options() {
    let commands = Commands::load();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources = Vec::new();
    add_sources(&root.join("src"), &mut sources);
    add_sources(&root.join("../lab/src"), &mut sources);
    let mut count = 0;
    for path in sources {
        let source = fs::read_to_string(&path).expect("a source file");
        // Error messages have more than three words. Shorter literals are arguments of programs.
        let is_text = |text: &String| text.split(' ').count() > 3 && !text.starts_with("ip ");
        for text in literals(&source).into_iter().filter(is_text) {
            check_phrases(&text);
            commands.check(&text);
            count += 1;
        }
    }
    assert!(count > 200, "{count} texts");
}

#[test]
fn every_error_code_has_a_name_and_a_meaning() {
    let page = include_str!("../../../docs/protocol/errors.md");
    for (code, name, _, meaning) in ErrorCode::ALL {
        assert_eq!(code.to_string(), *name);
        assert!(!name.is_empty() && name.chars().all(char::is_alphanumeric), "{name}");
        assert!(page.contains(&format!("| `{name}` |")), "{name} is not in the manual");
        assert!(meaning.ends_with('.') && meaning.split(' ').count() > 2, "{name}: {meaning}");
        check_phrases(meaning);
    }
}

#[test]
fn usage_errors_are_json_in_each_format_for_programs() {
    for format in ["--output=json", "--output=ndjson", "--output=csv", "--output=xml"] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_skep"));
        let output = command.args([format, "node", "list", "--unknown"]).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.starts_with("{\"error\":{\"code\":\"Usage\""), "{format}: {errors}");
    }
}
