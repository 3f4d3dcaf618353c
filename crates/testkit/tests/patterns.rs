//! The placement of files on a real cluster: choosers (placement policies) and stripe patterns.

use rustix::fs::{XattrFlags, copy_file_range};
use rustix::process::Signal;
use serde_json::Value;
use skep_testkit::files::{self, OrFail};
use skep_testkit::program::{Finished, finish, run};
use skep_testkit::view::{Component, Typed};
use skep_testkit::{Cluster, PATIENCE, Scratch, Shape, cluster, wait_for};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

const PATTERN: &str = "user.skep.pattern";
/// The id of a user other than root.
const USER: u32 = 23_456;

/// Starts a cluster of two storage servers with four targets each, as in the study of Boito, Pallez
/// and Teylo (CLUSTER 2022). Files are striped over four targets from the first byte on.
fn scenario() -> Cluster {
    let cluster = Cluster::start(Shape {
        metadata_targets: 1,
        storage_services: 2,
        targets_per_service: 4,
        ..Shape::default()
    });
    cluster.skep(&["config", "set", "stripe-from", "0"]);
    cluster.skep(&["config", "set", "stripe-width", "4"]);
    wait_for_rule(&cluster, "balanced", 4);
    cluster
}

fn first_component(cluster: &Cluster, path: &Path) -> Component {
    cluster.entry_info(path).first_component()
}

/// Creates files until a file has the new chooser and width, because new settings take effect with
/// a delay.
fn wait_for_rule(cluster: &Cluster, chooser: &str, width: u64) {
    let mut number = 0;
    wait_for("new files follow the new settings", PATIENCE, || {
        number += 1;
        let path = cluster.path().join(format!("{chooser}-{width}-{number}"));
        files::write(&path, "x");
        let component = first_component(cluster, &path);
        files::remove_file(&path);
        let is_new = component.chooser() == chooser && component.targets_wanted() == width;
        is_new.then_some(())
    });
}

/// Creates eight files in succession. For each file, counts the targets on each of the two servers.
/// Returns the different pairs of counts.
fn allocations(cluster: &Cluster, chooser: &str, width: u64) -> BTreeSet<(u64, u64)> {
    cluster.skep(&["config", "set", "stripe-width", &width.to_string()]);
    wait_for_rule(cluster, chooser, width);
    let of = |number: usize| {
        let path = cluster.path().join(format!("{chooser}-{width}-allocation-{number}"));
        files::write(&path, "x");
        let found = cluster.entry_info(&path).allocation();
        (found[0], found[1])
    };
    (0..8).map(of).collect()
}

#[test]
fn choosers_allocate_targets_as_in_the_published_study() {
    let cluster = scenario();
    for (width, best) in [(2, (1, 1)), (3, (1, 2)), (4, (2, 2)), (6, (3, 3))] {
        assert_eq!(allocations(&cluster, "balanced", width), BTreeSet::from([best]), "{width}");
    }
    cluster.skep(&["config", "set", "chooser", "roundrobin"]);
    // Test even target counts first, because each new file advances the position of the round-robin
    // chooser by the file's target count.
    for (width, measured) in [
        (6, &[(2, 4), (3, 3)][..]),
        (4, &[(1, 3)]),
        (8, &[(4, 4)]),
        (2, &[(0, 2), (1, 1)]),
        (5, &[(1, 4), (2, 3)]),
        (3, &[(0, 3), (1, 2)]),
    ] {
        let found = allocations(&cluster, "roundrobin", width);
        assert_eq!(found, measured.iter().copied().collect(), "{width}");
    }
    let path = cluster.path().join("explained");
    files::write(&path, "x");
    let shown = cluster.skep(&["entry", "info", &path.display().to_string()]);
    for words in
        ["Chosen by: roundrobin (the next targets in the order", "Set by: the cluster's settings"]
    {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    assert_eq!(cluster.entry_info(&path).origin(), "cluster");
    cluster.stop();
}

/// Creates an empty file, and returns the services that own its targets. The creation of the file
/// sends no request to these services.
fn services_of_new(cluster: &Cluster, path: &Path) -> BTreeSet<String> {
    files::create_new(path);
    first_component(cluster, path).services()
}

#[test]
fn offline_targets_get_no_new_files_until_their_return() {
    let cluster = scenario();
    let new =
        |number: u32| services_of_new(&cluster, &cluster.path().join(format!("new-{number}")));
    let both = new(0);
    assert_eq!(both.len(), 2);
    let gone = cluster.processes("storage").swap_remove(0);
    // Suspend the service, because the supervisor would restart a killed service immediately.
    gone.signal(Signal::STOP);
    let mut number = 0;
    let mut found = |count: usize, what: &str| {
        wait_for(what, PATIENCE, || {
            number += 1;
            let services = new(number);
            (services.len() == count).then_some(services)
        })
    };
    let others = found(1, "only the other service's targets are chosen");
    assert!(others.is_subset(&both));
    gone.kill();
    assert_eq!(found(2, "metadata chooses targets of the restarted service"), both);
    let path = cluster.path().join("written");
    files::write(&path, vec![7; 4 << 20]);
    assert_eq!(files::read(&path), vec![7; 4 << 20]);
    cluster.stop();
}

/// Starts a cluster of four storage servers with one target each. `domains` contains the failure
/// domains of some of the servers.
fn with_domains(directory: &Path, domains: &[(usize, &str)]) -> Cluster {
    let option = |(number, name): &(usize, &str)| {
        ["--set".to_owned(), format!("storage-{number}:node.domain={name}")]
    };
    let shape = Shape {
        metadata_targets: 1,
        storage_services: 4,
        targets_per_service: 1,
        more: domains.iter().flat_map(option).collect(),
        ..Shape::default()
    };
    Cluster::start_in(directory, shape)
}

/// Returns the failure domains of the storage servers, in ascending order of server names.
fn domains(cluster: &Cluster) -> Vec<String> {
    let nodes = cluster.nodes("storage");
    let text = |node: &Value, field: &str| node[field].as_str().unwrap_or("none").to_owned();
    let by_name: BTreeMap<_, _> =
        nodes.iter().map(|node| (text(node, "name"), text(node, "domain"))).collect();
    by_name.into_values().collect()
}

/// Creates some files, and joins the names of each file's servers to a string. Returns the set of
/// these strings.
fn servers_of_files(cluster: &Cluster, name: &str) -> BTreeSet<String> {
    let path = |number: usize| cluster.path().join(format!("{name}-{number}"));
    let servers = |number: usize| services_of_new(cluster, &path(number));
    (0..12).map(|number| servers(number).into_iter().collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn two_targets_of_a_file_are_in_different_failure_domains() {
    let scratch = Scratch::new();
    let racks = [(1, "rack-1"), (2, "rack-1"), (3, "rack-2"), (4, "rack-2")];
    let cluster = with_domains(scratch.path(), &racks);
    assert_eq!(domains(&cluster), racks.map(|(_, name)| name));
    cluster.skep(&["config", "set", "stripe-from", "0"]);
    cluster.skep(&["config", "set", "stripe-width", "2"]);
    wait_for_rule(&cluster, "balanced", 2);
    let pairs = servers_of_files(&cluster, "before");
    let within = ["storage-1 storage-2", "storage-3 storage-4"];
    assert!(pairs.len() > 1 && within.iter().all(|pair| !pairs.contains(*pair)), "{pairs:?}");
    let path = cluster.path().join("before-0");
    assert_eq!(first_component(&cluster, &path).targets_per_domain(), [1, 1]);
    let shown = cluster.skep(&["entry", "info", &path.display().to_string()]);
    for words in ["evenly over failure domains", "failure domain (min,max): (1,1)", ", rack-2]"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    cluster.stop();

    // Two servers start with new domains. The other servers start without the option, and keep
    // their old domains.
    let cluster = with_domains(scratch.path(), &[(2, "rack-2"), (3, "rack-1")]);
    assert_eq!(domains(&cluster), ["rack-1", "rack-2", "rack-1", "rack-2"]);
    let mut round = 0;
    wait_for("files follow the new domains", PATIENCE, || {
        round += 1;
        let pairs = servers_of_files(&cluster, &format!("after-{round}"));
        let within = ["storage-1 storage-3", "storage-2 storage-4"];
        within.iter().all(|pair| !pairs.contains(*pair)).then_some(())
    });
    cluster.stop();

    let refused = |arguments: &[&str], words: &str| {
        let failed = cluster::skep(arguments);
        assert!(!failed.status.success() && failed.stderr.contains(words), "{}", failed.stderr);
    };
    let data = cluster.data().display().to_string();
    let storage = ["storage", "--domain", "rack 2", "--directory", &data, "--target", "/t"];
    refused(&storage, "cannot name a failure domain");
    let nobody = "storage-5:node.domain=rack-1";
    refused(&["up", "--data-dir", &data, "--no-mount", "--set", nobody], "such as storage-1");
}

/// Runs `skep entry` as root.
fn entry(arguments: &[&str], path: &Path) -> Finished {
    let path = path.display().to_string();
    cluster::skep([&["entry"], arguments, &[&path, "--output", "json"]].concat())
}

fn entry_json(arguments: &[&str], path: &Path) -> Value {
    serde_json::from_str(&entry(arguments, path).expect_success()).expect("JSON")
}

/// Runs a command that must fail and must not change the pattern. Checks its error code and
/// message.
fn refused(arguments: &[&str], path: &Path, code: &str, words: &str) {
    let before = fs::exists(path).expect("the directory can be searched").then(|| pattern_of(path));
    let failed = entry(arguments, path);
    assert_refusal(&failed, code, words);
    let after = fs::exists(path).expect("the directory can be searched").then(|| pattern_of(path));
    assert_eq!(before, after, "{arguments:?}");
}

fn assert_refusal(failed: &Finished, code: &str, words: &str) {
    assert!(!failed.status.success(), "{}", failed.line);
    let error: Value = serde_json::from_str(&failed.stderr).expect("JSON");
    let (found, message) = (&error["error"]["code"], error["error"]["message"].to_string());
    assert!(found == code && message.contains(words), "{}: {found}: {message}", failed.line);
}

/// Returns the value of the pattern attribute. `None` means that the attribute is not set.
fn pattern_of(path: &Path) -> Option<String> {
    let mut bytes = [0; 4096];
    match rustix::fs::getxattr(path, PATTERN, &mut bytes) {
        Ok(len) => Some(String::from_utf8(bytes[..len].to_vec()).expect("text")),
        Err(rustix::io::Errno::NODATA) => None,
        Err(error) => panic!("{}: {error}", path.display()),
    }
}

/// Creates a file without an explicit pattern. Returns the origin, the target count, the chunk size
/// and the chooser of the file's pattern.
fn made(cluster: &Cluster, path: &Path) -> (String, u64, u64, String) {
    files::write(path, "x");
    let info = cluster.entry_info(path);
    let first = info.first_component();
    let chooser = first.chooser().to_owned();
    (info.origin().to_owned(), first.targets_wanted(), first.chunk_bytes(), chooser)
}

/// Returns the value that [`made`] returns for a pattern with these properties.
fn rule(origin: &str, count: u64, chunk_bytes: u64, chooser: &str) -> (String, u64, u64, String) {
    (origin.to_owned(), count, chunk_bytes, chooser.to_owned())
}

/// docs/semantics.md 1.21.
///
/// Command: skep entry set.
#[test]
fn new_pattern_of_a_directory_applies_only_to_new_files() {
    let cluster = Cluster::start(Shape { storage_services: 2, ..Shape::default() });
    let directory = cluster.path().join("directory");
    files::create_dir(&directory);
    assert_eq!(pattern_of(&directory), None);
    let default = rule("cluster", 1, 512 << 10, "balanced");
    assert_eq!(made(&cluster, &directory.join("before")), default);
    let before = pattern_of(&directory.join("before")).expect("a pattern");
    let set = ["set", "--num-targets", "2", "--chunk-size", "1MiB"];
    let changed = entry_json(&set, &directory);
    assert_eq!(changed[0]["pattern"], "chunk-size=1MiB,count=2");
    let own = rule("directory", 2, 1 << 20, "balanced");
    assert_eq!(made(&cluster, &directory.join("file")), own);
    // Directories inherit the pattern, on every metadata target.
    for number in 0..8 {
        let inner = directory.join(format!("inner-{number}"));
        files::create_dir(&inner);
        assert_eq!(pattern_of(&inner).as_deref(), Some("chunk-size=1MiB,count=2"));
        files::create_dir(inner.join("more"));
        assert_eq!(made(&cluster, &inner.join("more/file")), own);
    }
    assert_eq!(pattern_of(&directory.join("before")), Some(before));
    // Programs can also set the pattern by its extended attribute. The cluster's settings apply to
    // the fields that the attribute does not set.
    let flags = XattrFlags::empty();
    rustix::fs::setxattr(&directory, PATTERN, b"chooser=roundrobin", flags)
        .or_fail("setxattr", &directory);
    let chosen = rule("directory", 1, 512 << 10, "roundrobin");
    assert_eq!(made(&cluster, &directory.join("chosen")), chosen);
    let shown = cluster.skep(&["entry", "info", &directory.display().to_string()]);
    for words in [
        "Chosen by: roundrobin",
        "desired: 1\n",
        "From byte 4194304",
        "desired: 32\n",
        "Set by: this directory",
    ] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    // The list of a file's extended attributes omits the pattern and the map. So programs that copy
    // all attributes do not copy these two.
    let mut bytes = [0; 4096];
    let file = directory.join("file");
    let len = rustix::fs::getxattr(&file, "user.skep.map", &mut bytes).or_fail("getxattr", &file);
    assert_eq!(bytes[..len].iter().filter(|byte| **byte == b'\n').count(), 2);
    for path in [&directory, &file] {
        assert_eq!(rustix::fs::listxattr(path, &mut bytes[..]), Ok(0));
    }
    assert_eq!(entry_json(&["set", "--inherit"], &directory)[0]["pattern"], Value::Null);
    assert_eq!(made(&cluster, &directory.join("after")), default);
    refused(
        &["set", "--inherit"],
        &directory.join("file"),
        "NotPermitted",
        "only a directory can inherit its pattern",
    );
    cluster.stop();
}

/// Command: skep entry set.
#[test]
fn recursive_change_sets_directories_and_leaves_files() {
    let cluster = Cluster::start(Shape::small());
    let top = cluster.path().join("top");
    files::create_dir_all(top.join("a/b"));
    files::create(top.join("a/empty"));
    let elsewhere = cluster.path().join("elsewhere");
    files::create_dir(&elsewhere);
    files::symlink(&elsewhere, top.join("link"));
    let of_file = pattern_of(&top.join("a/empty"));

    // Without `--recursive`, directories that exist already keep their patterns.
    entry_json(&["set", "--chunk-size", "64KiB"], &top);
    assert_eq!(pattern_of(&top.join("a")), None);

    let changed = entry_json(&["set", "--recursive", "--chunk-size", "1MiB"], &top);
    let changed = changed.as_array().expect("a list");
    let paths: Vec<_> = changed.iter().map(|it| it["path"].as_str().expect("a path")).collect();
    let expected = ["", "a", "a/b"].map(|name| top.join(name).display().to_string());
    let expected: Vec<_> = expected.iter().map(|it| it.trim_end_matches('/')).collect();
    assert_eq!(paths, expected);
    for directory in [top.clone(), top.join("a"), top.join("a/b")] {
        assert_eq!(pattern_of(&directory).as_deref(), Some("chunk-size=1MiB"));
    }
    assert_eq!(pattern_of(&top.join("a/empty")), of_file);
    assert_eq!(pattern_of(&elsewhere), None);

    entry_json(&["set", "--recursive", "--inherit"], &top);
    assert_eq!(pattern_of(&top.join("a/b")), None);
    cluster.stop();
}

/// Returns the targets of a file, in stripe order.
fn targets(cluster: &Cluster, path: &Path) -> Vec<u64> {
    first_component(cluster, path).targets()
}

/// Command: skep entry create.
#[test]
fn pattern_of_a_file_can_be_set_until_its_first_write() {
    let cluster = scenario();
    let path = |name: &str| cluster.path().join(name);
    entry_json(&["create", "--num-targets", "all", "--permissions", "640"], &path("wide"));
    assert_eq!(files::metadata(path("wide")).permissions().mode() & 0o777, 0o640);
    assert_eq!(targets(&cluster, &path("wide")).len(), 8);
    assert_eq!(cluster.entry_info(&path("wide")).origin(), "asked");
    let storage = cluster.target_ids("storage");
    let listed = [storage[6], storage[1], storage[2]];
    let ids = listed.map(|id| id.to_string()).join(",");
    entry_json(&["create", "--targets", &ids, "--chunk-size", "64KiB"], &path("listed"));
    assert_eq!(targets(&cluster, &path("listed")), listed);
    assert_eq!(first_component(&cluster, &path("listed")).chooser(), "listed");
    // An administrator can change the pattern of an existing empty file. The first write after this
    // change does not change the pattern.
    files::create(path("empty"));
    entry_json(&["set", "--targets", &ids], &path("empty"));
    files::write(path("empty"), vec![7; 3 << 20]);
    assert_eq!(targets(&cluster, &path("empty")), listed);
    assert_eq!(files::read(path("empty")), vec![7; 3 << 20]);
    let again = ["set", "--num-targets", "1"];
    refused(&again, &path("empty"), "InUse", "skep entry create");
    files::set_len(&files::open_with(OpenOptions::new().write(true), path("empty")), 0);
    refused(&again, &path("empty"), "InUse", "has stored data");
    let open = files::create(path("open"));
    refused(&again, &path("open"), "InUse", "open");
    drop(open);
    entry_json(&again, &path("open"));
    assert_eq!(targets(&cluster, &path("open")).len(), 1);

    refused(&["create", "--num-targets", "1"], &path("open"), "Exists", "exists");
    for (arguments, code, words) in [
        (&["--targets", "99"][..], "NotFound", "unknown target or group"),
        (&["--groups", "g99"], "NotFound", "unknown target or group"),
        (&["--num-targets", "257"], "InvalidArgument", "256"),
        (&["--num-targets", "0"], "InvalidArgument", "from 1 to 256"),
        (&["--chunk-size", "100KiB"], "InvalidArgument", "not a power of two"),
        (&["--chunk-size", "32KiB"], "InvalidArgument", "64 KiB"),
        (&["--chooser", "best"], "InvalidArgument", "expected one of balanced"),
        (&["--pattern", "count=1/count=2"], "InvalidArgument", "order of their start"),
        (&[], "InvalidArgument", "--num-targets"),
    ] {
        refused(&[&["create"], arguments].concat(), &path("none"), code, words);
        assert!(!path("none").exists(), "{arguments:?}");
        refused(&[&["set"], arguments].concat(), cluster.path(), code, words);
    }
    let both = ["create", "--num-targets", "1", "--targets", "3"];
    refused(&both, &path("none"), "Usage", "--targets");
    refused(&["set", "--num-targets", "1"], Path::new("/nowhere"), "NotFound", "/nowhere");
    refused(&["map"], cluster.path(), "InvalidArgument", "not a regular file");
    cluster.stop();
}

/// Runs `skep entry` as a user other than root.
fn as_user(program: &Path, arguments: &[&str], path: &Path) -> Finished {
    let mut command = Command::new(program);
    command.arg("entry").args(arguments).arg(path).args(["--output", "json"]);
    finish(command.uid(USER).gid(USER), PATIENCE)
}

#[test]
fn users_can_set_patterns_of_own_files_within_limits() {
    let cluster = scenario();
    let around = cluster.path().parent().expect("a directory");
    files::set_permissions(around, fs::Permissions::from_mode(0o755));
    // Copy the program to a directory that other users may access.
    let program = around.join("skep");
    files::copy(cluster::program(), &program);
    let as_user = |arguments: &[&str], path: &Path| as_user(&program, arguments, path);
    let own = cluster.path().join("own");
    files::create_dir(&own);
    files::chown(&own, Some(USER), Some(USER));
    let others = cluster.path().join("others");
    files::create_dir(&others);
    files::set_permissions(&others, fs::Permissions::from_mode(0o777));
    as_user(&["set", "--num-targets", "8"], &own).expect_success();
    assert_eq!(pattern_of(&own).as_deref(), Some("count=8"));
    as_user(&["create", "--num-targets", "3"], &own.join("file")).expect_success();
    assert_eq!(targets(&cluster, &own.join("file")).len(), 3);
    assert_refusal(&as_user(&["set", "--num-targets", "2"], &others), "NotPermitted", "owner");
    assert_eq!(pattern_of(&others), None);
    let denied = |arguments: &[&str]| {
        let failed = as_user(&[&["create"], arguments].concat(), &own.join("none"));
        assert_refusal(&failed, "PermissionDenied", "change the setting user-");
        assert!(!own.join("none").exists(), "{arguments:?}");
    };
    let id = targets(&cluster, &own.join("file"))[0].to_string();
    denied(&["--targets", &id]);
    for (name, value) in [
        ("user-stripe-width-max", "4"),
        ("user-chunk-size-max", "1MiB"),
        ("user-chunk-size-min", "128KiB"),
    ] {
        cluster.skep(&["config", "set", name, value]);
    }
    let mut number = 0;
    wait_for("the metadata service has the new limits", PATIENCE, || {
        number += 1;
        let path = own.join(format!("small-{number}"));
        (!as_user(&["create", "--chunk-size", "64KiB"], &path).status.success()).then_some(())
    });
    denied(&["--num-targets", "5"]);
    denied(&["--num-targets", "all"]);
    denied(&["--chunk-size", "2MiB"]);
    as_user(&["create", "--num-targets", "4"], &own.join("at-most")).expect_success();
    // The limits do not apply to root. Files inherit a pattern that root has set, even if the
    // pattern exceeds the limits.
    entry_json(&["set", "--num-targets", "8", "--chunk-size", "4MiB"], &own);
    files::write(own.join("inherited"), "x");
    assert_eq!(targets(&cluster, &own.join("inherited")).len(), 8);
    cluster.skep(&["config", "set", "user-patterns", "no"]);
    wait_for("metadata refuses patterns of users", PATIENCE, || {
        let failed = as_user(&["set", "--num-targets", "1"], &own);
        (!failed.status.success()).then_some(())
    });
    denied(&["--num-targets", "1"]);
    cluster.stop();
}

/// Returns pseudo-random bytes.
fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Returns the number of bytes that the cluster's mount has sent and received on all its
/// connections.
fn traffic(cluster: &Cluster) -> u64 {
    let mounts = cluster.processes("mount");
    let [mount] = &mounts[..] else { panic!("expected one mount, found {mounts:?}") };
    let owner = format!("pid={},", mount.pid);
    let sockets = run("ss", ["--tcp", "--info", "--numeric", "--processes", "--oneline"]);
    let words =
        sockets.lines().filter(|line| line.contains(&owner)).flat_map(str::split_whitespace);
    let bytes = |word: &str| -> Option<u64> {
        let (name, value) = word.split_once(':')?;
        ["bytes_sent", "bytes_received"].contains(&name).then(|| value.parse().expect("a number"))
    };
    words.filter_map(bytes).sum()
}

/// Copies `from` over `to`. Returns the number of bytes that the mount sent and received during the
/// copy.
fn traffic_of_copy(cluster: &Cluster, from: &Path, to: &Path) -> u64 {
    let (source, copy) = (files::open(from), files::open_with(OpenOptions::new().write(true), to));
    let (mut at, mut place) = (0, 0);
    let before = traffic(cluster);
    while copy_file_range(&source, Some(&mut at), &copy, Some(&mut place), 1 << 30).expect("copied")
        > 0
    {}
    traffic(cluster) - before
}

/// docs/semantics.md 2.13.
#[test]
fn storage_copies_ranges_within_a_target_without_the_client() {
    const LEN: usize = 64 << 20;
    let cluster = scenario();
    let path = |name: &str| cluster.path().join(name);
    let mut ids: Vec<_> =
        cluster.target_ids("storage")[..4].iter().map(ToString::to_string).collect();
    for name in ["source", "same"] {
        entry_json(&["create", "--targets", &ids.join(",")], &path(name));
    }
    ids.rotate_left(1);
    entry_json(&["create", "--targets", &ids.join(",")], &path("others"));
    let bytes = bytes(LEN, 5);
    files::write(path("source"), &bytes);
    let few = traffic_of_copy(&cluster, &path("source"), &path("same"));
    assert!(few < LEN as u64 / 20, "{few} bytes went through the mount");
    // If no range of the copy is on the same target in both files, all bytes go through the mount.
    let many = traffic_of_copy(&cluster, &path("source"), &path("others"));
    assert!(many >= 2 * LEN as u64, "only {many} bytes went through the mount");
    for name in ["same", "others"] {
        assert!(files::read(path(name)) == bytes, "{name}");
    }
    cluster.stop();
}

/// Command: skep entry map.
#[test]
fn progressive_files_use_more_targets_as_they_grow() {
    let mut cluster = scenario();
    let directory = cluster.path().join("progressive");
    files::create_dir(&directory);
    let pattern = "count=1,chunk-size=64KiB/from=1MiB,count=2/from=4MiB,count=all,chunk-size=1MiB";
    entry_json(&["set", "--pattern", pattern], &directory);
    let second = cluster.mount(skep_testkit::Transport::Device);
    let path = directory.join("file");
    let elsewhere = second.path().join("progressive/file");
    let content = bytes(13 << 20, 1);
    let file = files::open_with(OpenOptions::new().create(true).truncate(true).write(true), &path);
    // Write across the boundaries of components, out of order, and with a hole between the written
    // ranges.
    for (start, end) in
        [(5 << 20, 13 << 20), (900_000, 1_200_000), (0, 900_000), (4_000_000, 5 << 20)]
    {
        files::write_all_at(&file, &content[start..end], start as u64);
    }
    let mut expected = content;
    expected[1_200_000..4_000_000].fill(0);
    let is_seen = |what: &str, expected: &[u8]| {
        assert!(files::read(&path) == expected, "{what}");
        // Wait, because for up to a second the other mount may read the previous size and bytes.
        wait_for(what, PATIENCE, || (files::read(&elsewhere) == expected).then_some(()));
    };
    is_seen("what was written", &expected);
    let components = cluster.entry_info(&path).components();
    let widths: Vec<_> = components.iter().map(|it| it.targets().len()).collect();
    assert_eq!(widths, [1, 2, 8]);

    let map = entry_json(&["map", "--offset", "0", "--length", "13MiB"], &path);
    let pieces = map["pieces"].list();
    let mut at = 0;
    let mut per_component = BTreeMap::<u64, BTreeSet<u64>>::new();
    for piece in pieces {
        let number = |name: &str| piece[name].number();
        assert_eq!(number("offset"), at);
        at += number("length");
        per_component.entry(number("component")).or_default().insert(number("target"));
    }
    assert_eq!(at, 13 << 20);
    assert_eq!(per_component.values().map(BTreeSet::len).collect::<Vec<_>>(), [1, 2, 8]);
    assert_eq!(pieces[0]["length"], 64 << 10);

    // Truncate the file within its second component, and then extend the file. The truncated bytes
    // must not reappear.
    files::set_len(&file, 2_000_000);
    files::set_len(&file, 6 << 20);
    files::write_all_at(&file, b"end", (6 << 20) - 3);
    expected.truncate(2_000_000);
    expected.resize(6 << 20, 0);
    let len = expected.len();
    expected[len - 3..].copy_from_slice(b"end");
    is_seen("what was cut", &expected);
    drop(file);
    // A small file has a chunk file on one target only.
    let count = || cluster.chunk_files().len();
    let before = count();
    files::write(directory.join("small"), bytes(300_000, 2));
    assert_eq!(count(), before + 1);
    files::remove_file(&path);
    files::remove_file(directory.join("small"));
    wait_for("all chunk files are gone", PATIENCE, || (count() == 0).then_some(()));
    drop(second);
    cluster.stop();
}

#[test]
fn job_patterns_option_applies_patterns_from_the_environment() {
    let cluster = scenario();
    let scratch = Scratch::new();
    let mount_point = scratch.join("jobs");
    files::create_dir(&mount_point);
    let shown = mount_point.display().to_string();
    let data = cluster.data().display().to_string();
    let mount = ["mount", "--cluster", &data, "--detach", "--job-patterns", &shown];
    cluster::skep(mount).expect_success();
    let make = |directory: &Path, name: &str, pattern: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("echo x > {name}")]).env("SKEP_PATTERN", pattern);
        finish(command.current_dir(directory), PATIENCE)
    };
    make(&mount_point, "asked", "count=7,chunk-size=1MiB").expect_success();
    let path = cluster.path().join("asked");
    let first = first_component(&cluster, &path);
    assert_eq!((first.targets_wanted(), first.chunk_bytes()), (7, 1 << 20));
    assert_eq!(cluster.entry_info(&path).origin(), "asked");
    make(&mount_point, "small", "inline/from=4KiB,count=7").expect_success();
    let components = cluster.entry_info(&cluster.path().join("small")).components();
    assert_eq!(components[0].redundancy(), "inline");
    assert_eq!((components[1].start_byte(), components[1].targets_wanted()), (4096, 7));
    make(&mount_point, "silent", "").expect_success();
    assert_eq!(targets(&cluster, &cluster.path().join("silent")).len(), 4);
    let failed = make(&mount_point, "wrong", "count=many");
    assert!(failed.stderr.contains("Invalid argument"), "{}", failed.stderr);
    assert!(!cluster.path().join("wrong").exists());
    // A mount without the option `--job-patterns` ignores the environment variable.
    make(cluster.path(), "elsewhere", "count=many").expect_success();
    assert_eq!(targets(&cluster, &cluster.path().join("elsewhere")).len(), 4);
    cluster::skep(["umount", &shown]).expect_success();
    cluster.stop();
}
