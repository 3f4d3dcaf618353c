//! Checks the units in packaging/systemd: the program must accept their command lines, settings and
//! mount options. Most of these tests do not need systemd.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const PROGRAM: &str = env!("CARGO_BIN_EXE_skep");

/// The sections of a unit, each with its keys and values in order.
type Unit = BTreeMap<String, Vec<(String, String)>>;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd")
}

/// Returns the texts of all units by their file names.
fn units() -> BTreeMap<String, String> {
    let entries = fs::read_dir(folder()).expect("packaging/systemd");
    let read = |entry: std::io::Result<fs::DirEntry>| {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        (name, fs::read_to_string(&path).expect("text"))
    };
    entries.map(read).collect()
}

fn parse(name: &str, text: &str) -> Unit {
    let mut unit = Unit::new();
    let mut section = String::new();
    let lines = text.lines().map(str::trim);
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(title) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            title.clone_into(&mut section);
            continue;
        }
        let (key, value) = line.split_once('=').unwrap_or_else(|| panic!("{name}: {line}"));
        assert!(!section.is_empty(), "{name}: {line} is in no section");
        unit.entry(section.clone()).or_default().push((key.to_owned(), value.to_owned()));
    }
    unit
}

fn value<'a>(unit: &'a Unit, section: &str, key: &str) -> &'a str {
    let values = unit.get(section).into_iter().flatten();
    let found = values.filter(|(name, _)| name == key).map(|(_, value)| value.as_str());
    let found: Vec<_> = found.collect();
    assert_eq!(found.len(), 1, "{section} has one {key}");
    found[0]
}

fn run(program: &Path, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().expect("the program can be run");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn command_line_of_each_service_unit_is_accepted() {
    let place = tempfile::tempdir().expect("a temporary directory");
    let units = units();
    for kind in ["management", "metadata", "storage"] {
        let name = format!("skep-{kind}@.service");
        let unit = parse(&name, &units[&name]);
        let line = value(&unit, "Service", "ExecStart");
        assert_eq!(line, format!("/usr/bin/skep {kind} --config /etc/skep/{kind}-%i.toml"));
        let file = line.rsplit(' ').next().expect("a file");
        assert_eq!(value(&unit, "Unit", "AssertPathExists"), file);
        assert_eq!(value(&unit, "Service", "Type"), "notify");
        assert_eq!(value(&unit, "Install", "WantedBy"), "skep.target");
        // systemd starts mounts of network file systems after the service, and stops these mounts
        // before the service. The systemd target that defines this order is active only if a unit
        // has a `Wants=` for this target.
        assert_eq!(value(&unit, "Unit", "Before"), "remote-fs-pre.target");
        let wanted = value(&unit, "Unit", "Wants");
        assert!(wanted.split(' ').any(|it| it == "remote-fs-pre.target"), "{wanted}");
        // The program accepts the command line of the unit, together with the sample configuration
        // that the unit's comment recommends.
        let sample = run(Path::new(PROGRAM), &[kind, "--print-sample"]);
        let config = place.path().join(format!("{kind}-a.toml"));
        let directory = format!("directory = \"{}\"", place.path().join(kind).display());
        let set = |line: &str| match line.split_once(" = ") {
            Some(("directory", _)) => directory.clone(),
            Some(("targets", _)) => "targets = [\"/disk1\"]".to_owned(),
            _ => line.to_owned(),
        };
        let sample: Vec<String> = sample.lines().map(set).collect();
        fs::write(&config, sample.join("\n")).expect("written");
        let config = config.display().to_string();
        let arguments: Vec<&str> = line
            .split(' ')
            .skip(1)
            .map(|it| if it == file { config.as_str() } else { it })
            .collect();
        let shown = run(Path::new(PROGRAM), &[&arguments[..], &["--print-config"]].concat());
        assert!(shown.contains(&directory), "{shown}");
    }
}

/// The services need no rights of root. Root only gives the services their files before each start.
#[test]
fn units_run_services_as_a_user_without_capabilities() {
    let file = folder().join("../sysusers/skep.conf");
    let user = fs::read_to_string(&file).expect("packaging/sysusers");
    assert!(user.lines().any(|line| line.starts_with("u skep - ")), "{user}");
    for (name, text) in units().iter().filter(|(name, _)| name.ends_with(".service")) {
        let unit = parse(name, text);
        let setting = |key: &str| value(&unit, "Service", key);
        assert_eq!((setting("User"), setting("Group")), ("skep", "skep"), "{name}");
        assert_eq!(setting("CapabilityBoundingSet"), "", "{name}");
        assert_eq!(setting("NoNewPrivileges"), "yes", "{name}");
        assert!(!unit["Service"].iter().any(|(key, _)| key == "AmbientCapabilities"), "{name}");
        let expected = format!("+{} --give-to skep", setting("ExecStart"));
        assert_eq!(setting("ExecStartPre"), expected, "{name}");
    }
}

/// Settings that give a service its own mount namespace (systemd.exec(5)). An entry is the name of
/// a setting, or a prefix of such names.
const NAMESPACE_SETTINGS: &[&str] = &[
    "Private",
    "Protect",
    "ReadOnlyPaths",
    "ReadWritePaths",
    "InaccessiblePaths",
    "ExecPaths",
    "NoExecPaths",
    "BindPaths",
    "BindReadOnlyPaths",
    "TemporaryFileSystem",
    "MountFlags",
    "MountAPIVFS",
    "MountImages",
    "ExtensionImages",
    "ExtensionDirectories",
    "RootDirectory",
    "RootImage",
    "DynamicUser",
    "LogNamespace",
    "JoinsNamespaceOf",
];

/// docs/semantics.md 3.1: a killed storage service reports no loss, so its mount must be the same
/// after the restart (docs/design/0003-chunk-store.md).
#[test]
fn storage_unit_stays_in_the_mount_namespace_of_the_host() {
    let name = "skep-storage@.service";
    let unit = parse(name, &units()[name]);
    for (key, _) in unit.values().flatten() {
        let is_namespace = NAMESPACE_SETTINGS.iter().any(|prefix| key.starts_with(prefix));
        assert!(!is_namespace, "{key} changes the id of the mount at each start");
    }
}

#[test]
fn mount_helper_accepts_the_options_of_the_example_unit() {
    let place = tempfile::tempdir().expect("a temporary directory");
    let directory = place.path().join("management").display().to_string();
    run(Path::new(PROGRAM), &["management", "--init", "--directory", &directory]);
    let token = format!("token_file={directory}/join-token");
    let unit = parse("mnt-skep.mount", &units()["mnt-skep.mount"]);
    let field = |key: &str| value(&unit, "Mount", key).to_owned();
    assert_eq!((field("Where").as_str(), field("Type").as_str()), ("/mnt/skep", "skep"));
    let options = field("Options");
    assert!(options.split(',').any(|option| option == "_netdev"), "{options}");
    // The mount must end its retries before systemd kills the mount, so that the mount can report
    // the reason.
    let seconds = |text: &str| text.parse::<u32>().expect("seconds");
    let retry = options.split(',').find_map(|option| option.strip_prefix("retry="));
    assert!(seconds(retry.expect("the option retry")) < seconds(&field("TimeoutSec")), "{options}");
    let options = options.replace("token_file=/etc/skep/token", &token);
    assert!(options.contains(&token), "{options}");
    let helper = place.path().join("mount.skep");
    std::os::unix::fs::symlink(PROGRAM, &helper).expect("a link");
    run(&helper, &[&field("What"), &directory, "-f", "-o", &options]);
}

/// Needs the package `systemd` (its name on Debian), but no running systemd.
#[test]
fn systemd_analyze_accepts_all_units() {
    let place = tempfile::tempdir().expect("a temporary directory");
    let mut names = Vec::new();
    for (name, text) in units() {
        // Inserts an instance name, and replaces the path of the program by a path that exists on
        // this host.
        let name = name.replace('@', "@a");
        let text = text.replace("/usr/bin/skep", PROGRAM);
        fs::write(place.path().join(&name), text).expect("written");
        names.push(place.path().join(name));
    }
    let output = Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .env("SYSTEMD_UNIT_PATH", format!("{}:", place.path().display()))
        .args(&names)
        .output()
        .expect("systemd-analyze can be run: install Debian's package systemd");
    let errors = String::from_utf8_lossy(&output.stderr);
    // Warnings about units of other packages are ignored.
    let ours: Vec<_> = errors.lines().filter(|line| line.contains("skep")).collect();
    assert_eq!(ours, Vec::<&str>::new(), "{errors}");
    assert!(output.status.success(), "{errors}");
    // systemd rates the exposure of a service to attacks from 0 to 10. A service of root without
    // any restriction has 9.6. The rating in this output is in tenths.
    for name in names.iter().filter(|name| name.extension().is_some_and(|it| it == "service")) {
        let output = Command::new("systemd-analyze")
            .args(["security", "--offline=yes", "--threshold=60", "--no-pager"])
            .arg(name)
            .output()
            .expect("systemd-analyze can be run");
        let report = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{}: {report}", name.display());
    }
}
