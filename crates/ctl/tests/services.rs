//! Runs the services and commands without a mount. Checks configuration, directories, tokens,
//! restarts and error messages.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);

fn skep(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_skep"));
    command.args(arguments).output().expect("the program can be run")
}

/// Runs a command that must succeed, and returns its standard output.
fn stdout_of(arguments: &[&str]) -> String {
    let output = skep(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).expect("the output is UTF-8")
}

/// Runs a command that must fail. Returns its error message and exit code.
fn refused(arguments: &[&str]) -> (String, i32) {
    let output = skep(arguments);
    assert!(!output.status.success(), "{arguments:?} should fail");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    (text, output.status.code().expect("an exit code"))
}

fn refusal(arguments: &[&str]) -> String {
    refused(arguments).0
}

/// A service process that is killed when this value is dropped.
struct Service(Child);

impl Service {
    fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_skep"));
        command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().expect("the program can be run"))
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.0.kill().expect("a child process");
        self.0.wait().expect("a child process");
    }
}

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary directory"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Creates the management directory of a new cluster, and returns its path.
    fn cluster(&self, name: &str) -> String {
        let directory = self.text(name);
        stdout_of(&["management", "--init", "--directory", &directory, "--listen", "127.0.0.1:0"]);
        directory
    }
}

fn start_management(directory: &str) -> Service {
    let arguments = ["management", "--directory", directory, "--listen", "127.0.0.1:0"];
    let service = Service::start(&arguments);
    wait_for_management(directory);
    service
}

/// Starts management with more arguments. Management appends its log to the file `log`.
fn start_management_with_log(directory: &str, log: &Path, arguments: &[&str]) -> Service {
    let log = std::fs::File::options().create(true).append(true).open(log).expect("a log");
    let mut command = Command::new(env!("CARGO_BIN_EXE_skep"));
    command.args(["management", "--directory", directory, "--listen", "127.0.0.1:0"]);
    command.args(arguments).stdout(log.try_clone().expect("a second handle")).stderr(log);
    let service = Service(command.spawn().expect("the program can be run"));
    wait_for_management(directory);
    service
}

fn wait_for_management(directory: &str) {
    let deadline = Instant::now() + PATIENCE;
    while !skep(&["node", "list", "--cluster", directory]).status.success() {
        assert!(Instant::now() < deadline, "management answers");
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn print_config_shows_setting_sources_and_all_problems() {
    let place = Place::new();
    std::fs::write(place.path("a.toml"), "[node]\nlog = \"warn\"\n").unwrap();
    let file = place.text("a.toml");
    let shown = stdout_of(&[
        "storage",
        "--config",
        &file,
        "--directory",
        "/d",
        "--target",
        "/t",
        "--print-config",
    ]);
    let line = |key: &str| shown.lines().find(|line| line.starts_with(key)).unwrap().to_owned();
    assert!(line("node.log").ends_with(&format!("# {file}")), "{shown}");
    assert!(line("node.directory").ends_with("# command line"), "{shown}");
    assert!(line("node.name").ends_with("# default"), "{shown}");

    std::fs::write(place.path("b.toml"), "[node]\nlisten = 5\nlisen = \"x\"\n").unwrap();
    let (text, code) = refused(&["storage", "--config", &place.text("b.toml")]);
    assert_eq!(code, 2);
    for words in [
        "`node.listen`",
        "unknown setting `node.lisen`",
        "`node.directory` is not set",
        "`targets`",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let missing = refusal(&["storage", "--config", "/nowhere.toml", "--directory", "/d"]);
    assert!(missing.contains("/nowhere.toml"), "{missing}");
}

#[test]
fn sample_configuration_is_valid_and_sets_every_default() {
    let place = Place::new();
    for service in ["management", "metadata", "storage"] {
        let file = place.path(service);
        std::fs::write(&file, stdout_of(&[service, "--print-sample"])).unwrap();
        let file = file.display().to_string();
        let mut arguments = vec![service, "--config", &file, "--directory", "/d", "--print-config"];
        if service != "management" {
            arguments.extend(["--target", "/t"]);
        }
        let shown = stdout_of(&arguments);
        assert!(shown.contains(&file) && !shown.contains("# default"), "{shown}");
    }
}

/// No option takes the token itself, because other users can see the arguments of a process.
#[test]
fn token_comes_from_a_file_or_the_standard_input() {
    let place = Place::new();
    let token = read(&Path::new(&place.cluster("one")).join("join-token"));
    let (node, target) = (place.text("storage"), place.text("target"));
    let init = ["storage", "--directory", &node, "--target", &target, "--init"];
    let refused = refusal(&[&init[..], &["--token", &token]].concat());
    assert!(refused.contains("--token"), "{refused}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_skep"));
    command.args(init).args(["--token-file", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("the program can be run");
    let mut input = child.stdin.take().expect("standard input is a pipe");
    input.write_all(token.as_bytes()).expect("the program reads the token");
    drop(input);
    assert!(child.wait().expect("a child process").success());
    assert!(refusal(&init).contains("already"), "the directory is initialised");
}

#[test]
fn errors_name_unusable_directories_and_addresses() {
    let place = Place::new();
    let blank = refusal(&["management", "--directory", &place.text("blank")]);
    assert!(blank.contains("--init") && blank.contains("blank"), "{blank}");
    let (one, two) = (place.cluster("one"), place.cluster("two"));
    let again = refusal(&["management", "--init", "--directory", &one]);
    assert!(again.contains("already"), "{again}");

    let token = format!("{two}/join-token");
    let (node, target) = (place.text("storage"), place.text("target"));
    let storage = ["storage", "--directory", &node, "--target", &target];
    let without = refusal(&[&storage[..], &["--init"]].concat());
    assert!(without.contains("--token"), "{without}");
    let nowhere = place.text("no-token");
    let missing = refusal(&[&storage[..], &["--init", "--token-file", &nowhere]].concat());
    for words in ["no-token: no such file", "skep cluster token --cluster", "--token-file -"] {
        assert!(missing.contains(words), "{words}: {missing}");
    }
    stdout_of(&[&storage[..], &["--init", "--token-file", &token]].concat());
    let other = format!("{one}/join-token");
    let foreign = refusal(&[&storage[..], &["--init", "--token-file", &other]].concat());
    assert!(foreign.contains("cluster"), "{foreign}");

    let _running = start_management(&one);
    let in_use = refusal(&["management", "--directory", &one, "--listen", "127.0.0.1:0"]);
    assert!(in_use.contains("another process uses this directory"), "{in_use}");
    let address = read(&place.path("one/address"));
    let taken = refusal(&["management", "--directory", &two, "--listen", address.trim()]);
    assert!(taken.contains(address.trim()) && taken.contains("node.listen"), "{taken}");
}

#[test]
fn management_keeps_its_address_and_state_after_a_kill() {
    let place = Place::new();
    let management = place.cluster("management");
    let running = start_management(&management);
    let address = read(&place.path("management/address"));
    let (node, target) = (place.text("metadata"), place.text("target"));
    let metadata = ["metadata", "--directory", &node, "--target", &target];
    let token = format!("{management}/join-token");
    stdout_of(&[&metadata[..], &["--init", "--token-file", &token]].concat());
    let _metadata = Service::start(&[&metadata[..], &["--listen", "127.0.0.1:0"]].concat());
    let targets = || {
        let text = stdout_of(&["target", "list", "--cluster", &management, "--output", "json"]);
        serde_json::from_str::<serde_json::Value>(&text).expect("the output is JSON")
    };
    let wait_online = || {
        let deadline = Instant::now() + PATIENCE;
        while targets()[0]["reachability"] != "Online" {
            assert!(Instant::now() < deadline, "the target is online");
        }
    };
    wait_online();
    stdout_of(&["cluster", "format", "--cluster", &management]);
    let twice = refusal(&["cluster", "format", "--cluster", &management]);
    assert!(twice.contains("already"), "{twice}");
    let before = targets();
    drop(running);
    let down = refusal(&["target", "list", "--cluster", &management]);
    assert!(down.contains("check that the cluster is running"), "{down}");
    let _running = start_management(&management);
    assert_eq!(read(&place.path("management/address")), address);
    wait_online();
    assert_eq!(targets()[0]["id"], before[0]["id"]);
    // A missing storage service is a problem, and a problem sets the exit code.
    let check = skep(&["health", "check", "--cluster", &management]);
    let text = String::from_utf8_lossy(&check.stdout);
    assert!(text.contains("the cluster has no storage service"), "{text}");
    assert!(text.contains("metadata-1 [ID: 2]: reachable at 127.0.0.1:"), "{text}");
    assert_eq!(check.status.code(), Some(1));
}

#[test]
fn refusal_of_an_unusable_token_names_the_fix() {
    let place = Place::new();
    let (one, two) = (place.cluster("one"), place.cluster("two"));
    let _running = start_management(&one);
    let address = read(&place.path("one/address"));
    let other = format!("{two}/join-token");
    let list = ["node", "list", "--cluster", address.trim()];
    let wrong = refusal(&[&list[..], &["--token-file", &other]].concat());
    assert!(wrong.contains("belongs to cluster"), "{wrong}");
    let none = refusal(&list);
    assert!(none.contains("--token-file"), "{none}");
    let token = stdout_of(&["cluster", "token", "--cluster", &one]);
    assert!(token.starts_with("skep1-") && token.trim().ends_with(address.trim()), "{token}");
    std::fs::write(place.path("mixed"), token.replace(&token[39..60], &"0".repeat(21))).unwrap();
    // The service refuses a token file that other users may read. The message contains the command
    // that repairs the permissions.
    let mode = std::os::unix::fs::PermissionsExt::from_mode;
    std::fs::set_permissions(place.path("mixed"), mode(0o644)).unwrap();
    let open = refusal(&[&list[..], &["--token-file", &place.text("mixed")]].concat());
    assert!(open.contains("chmod 600"), "{open}");
    std::fs::set_permissions(place.path("mixed"), mode(0o600)).unwrap();
    let guessed = refusal(&[&list[..], &["--token-file", &place.text("mixed")]].concat());
    assert!(guessed.contains("secret") || guessed.contains("cluster"), "{guessed}");
}

/// `--init` checks the token with management, and a wrong secret does not remain in the directory
/// of a service that never joined.
#[test]
fn wrong_secret_is_refused_by_init_and_never_stored() {
    let place = Place::new();
    let management = place.cluster("management");
    let first = start_management(&management);
    let good = format!("{management}/join-token");
    let token = read(Path::new(&good));
    let wrong = place.text("wrong");
    std::fs::write(&wrong, token.replace(&token[39..60], &"0".repeat(21))).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&wrong, mode).unwrap();
    let directories =
        ["one", "two"].map(|name| (place.text(name), place.text(&format!("{name}-t"))));
    let init = |(node, target): &(String, String), file: &str| {
        ["storage", "--init", "--directory", node, "--target", target, "--token-file", file]
            .map(str::to_owned)
    };
    let arguments = init(&directories[0], &wrong);
    let refused = refusal(&arguments.each_ref().map(String::as_str));
    assert!(refused.contains("management refuses the token"), "{refused}");
    assert!(!Path::new(&directories[0].0).exists(), "no directory is initialised");
    drop(first);
    for directory in &directories {
        let arguments = init(directory, &wrong);
        stdout_of(&arguments.each_ref().map(String::as_str));
    }
    let _running = start_management(&management);
    let [(one, target), (two, _)] = &directories;
    let start = ["storage", "--directory", one, "--target", target, "--listen", "127.0.0.1:0"];
    let failed = refusal(&start);
    assert!(failed.contains(&format!("--token-file FILE --directory {one}")), "{failed}");
    stdout_of(&["token", "install", "--token-file", &good, "--directory", one]);
    let arguments = init(&directories[1], &good);
    stdout_of(&arguments.each_ref().map(String::as_str));
    for directory in [one, two] {
        let tokens = stdout_of(&["token", "list", "--directory", directory]);
        assert!(tokens.contains("newest") && !tokens.contains("accepted"), "{tokens}");
    }
}

#[test]
fn log_rotation_at_the_limit_keeps_the_newest_lines() {
    let place = Place::new();
    let (management, log) = (place.cluster("management"), place.path("log"));
    let settings = ["--set", "node.log_limit=4 KiB"];
    let _running = start_management_with_log(&management, &log, &settings);
    let deadline = Instant::now() + PATIENCE;
    // Management logs a line for each change of its log level.
    let old = place.path("log.old");
    let both = || std::fs::read_to_string(&old).unwrap_or_default() + &read(&log);
    let mut lines = Vec::new();
    for number in 100..250 {
        let level = format!("info,skep_n{number}=info");
        stdout_of(&["node", "log-level", "all", &level, "--cluster", &management]);
        let line = format!(" to {level}");
        while !both().contains(&line) {
            assert!(Instant::now() < deadline, "{line}: {}", both());
        }
        lines.push(line);
    }
    for file in [&old, &log] {
        assert!(std::fs::metadata(file).unwrap().len() <= 4096, "{}", file.display());
    }
    let found: Vec<_> = lines.iter().filter(|line| both().contains(*line)).collect();
    assert!(found.len() > 20 && found.len() < lines.len(), "{}", both());
    assert_eq!(found.last(), lines.last().as_ref());
    let newest: Vec<_> = lines[lines.len() - found.len()..].iter().collect();
    assert_eq!(found, newest, "there is no gap");
}

/// Regression test: a service wrote into the renamed file until the service ended, so that
/// logrotate needed `copytruncate`, which may lose lines.
#[test]
fn log_continues_in_a_new_file_after_a_rename() {
    let place = Place::new();
    let (management, log) = (place.cluster("management"), place.path("log"));
    let _running = start_management_with_log(&management, &log, &[]);
    let deadline = Instant::now() + PATIENCE;
    // Management logs a line for each change of its log level.
    let change = |level: &str| {
        stdout_of(&["node", "log-level", "all", level, "--cluster", &management]);
        let line = format!(" to {level}");
        let text = || std::fs::read_to_string(&log).unwrap_or_default();
        while !text().contains(&line) {
            assert!(Instant::now() < deadline, "{line}: {}", text());
        }
    };
    change("info,skep_n1=info");
    let renamed = place.path("log.1");
    std::fs::rename(&log, &renamed).unwrap();
    change("info,skep_n2=info");
    assert!(read(&renamed).contains(" to info,skep_n1=info"), "{}", read(&renamed));
    assert!(!read(&renamed).contains("skep_n2"), "{}", read(&renamed));
    assert!(!read(&log).contains("management serves cluster"), "{}", read(&log));
    // If another program has created a file in place of the removed file, the service uses this new
    // file.
    std::fs::remove_file(&log).unwrap();
    std::fs::write(&log, "made by logrotate\n").unwrap();
    change("info,skep_n3=info");
    assert!(read(&log).starts_with("made by logrotate\n"), "{}", read(&log));
}

#[test]
fn completion_scripts_and_help_are_printed() {
    for shell in ["bash", "zsh", "fish"] {
        assert!(stdout_of(&["completion", shell]).contains("skep"));
    }
    let help = stdout_of(&["help"]);
    for verb in ["up", "down", "mount", "node", "target", "health", "entry", "cluster"] {
        assert!(help.contains(&format!("\n  {verb} ")), "{verb}: {help}");
    }
    let not_mounted = refusal(&["entry", "info", "/"]);
    assert!(not_mounted.contains("not in a mount of Skep"), "{not_mounted}");
}
