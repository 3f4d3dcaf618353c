//! `skep copy` between a mount and an object store: all kinds of entries, a copy that is killed,
//! the sources of credentials, and certificates of TLS.

use serde_json::Value;
use skep_testkit::cluster::program;
use skep_testkit::object_store::{ACCESS, Authority, Fault, ObjectStore, SECRET, TOKEN};
use skep_testkit::program::{Finished, finish, run};
use skep_testkit::{Cluster, Scratch, Shape, files, schema, wait_for};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Time limit for one copy. The limit is long, because the machine may be busy with other work.
const LONG: Duration = Duration::from_secs(300);

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Returns a `skep copy` command that uses the credentials of the store.
fn command(store: &ObjectStore, arguments: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.arg("copy").args(["--s3-endpoint", &store.url(), "--s3-part", "5MiB"]);
    command.args(arguments).envs(store.variables()).env_remove("AWS_PROFILE");
    command
}

fn copy(store: &ObjectStore, arguments: &[&str]) -> Value {
    let mut command = command(store, arguments);
    let printed = finish(command.args(["--output", "json"]), LONG).expect_success();
    let value = serde_json::from_str(&printed).expect("one JSON value");
    schema::check("copy", &value);
    value
}

/// Returns a line for each entry with its type, mode, owner, time and link target. For files, the
/// line also contains the checksum.
fn listing(top: &Path) -> String {
    let script = "cd \"$1\"\n\
        find . -printf '%P %y %m %U %G %T@ %l\\n' | sort\n\
        find . -type f -exec sha256sum {} + | sort -k 2";
    run("sh", ["-ec", script, "sh", &text(top)])
}

fn fill(top: &Path) {
    let script = "mkdir -p \"$1/a/empty\" \"$1/b\"; cd \"$1\"\n\
        for n in $(seq 40); do head -c $((n * 977)) /dev/urandom >b/f$n; done\n\
        head -c 23000000 /dev/urandom >a/large; : >a/zero; ln -s ../b/f1 a/link\n\
        printf x >'a/name \" with+signs%41 \u{e4}'\n\
        chown 1234:4321 b/f3; chmod 640 b/f4; chmod 2750 b; touch -d '2001-02-03 04:05:06.789' b/f5 a";
    run("sh", ["-ec", script, "sh", &text(top)]);
}

/// Command: skep copy.
#[test]
fn tree_is_copied_to_an_object_store_and_back() {
    let cluster = Cluster::start(Shape::small());
    let mount = cluster.path();
    let store = ObjectStore::start();
    let [source, back] = ["source", "back"].map(|it| mount.join(it));
    fill(&source);
    let [from, to] = [text(&source), text(&back)];
    let count = |value: &Value, name: &str| value[name].as_u64().expect("a number");
    let up = copy(&store, &["--verify", &from, "s3://data/run"]);
    assert_eq!(
        (count(&up, "files"), count(&up, "others"), count(&up, "problem_count")),
        (43, 1, 0)
    );
    let down = copy(&store, &["--verify", "--s3-owners", "s3://data/run", &to]);
    assert_eq!((count(&down, "files"), count(&down, "directories")), (43, 4));
    assert_eq!(listing(&back), listing(&source));
    // Without the option `--s3-owners`, the copy ignores the owners and setgid bits that the
    // objects name, because every user of the bucket can set them.
    let safe = text(&mount.join("safe"));
    copy(&store, &["s3://data/run", &safe]);
    let any = ["-uid", "1234", "-o", "-gid", "4321", "-o", "-perm", "-2000"];
    let found = run("find", [&[safe.as_str()][..], &any[..]].concat());
    assert_eq!(found, "");
    let again = copy(&store, &["--resume", "--verify", &from, "s3://data/run"]);
    assert_eq!((count(&again, "files"), count(&again, "skipped")), (0, 44));

    // A killed copy leaves no incomplete object. The next copy sends only the objects that are
    // missing.
    store.forget();
    let mut running = command(&store, &["--rate", "3MiB", &from, "s3://data/killed"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    wait_for("two parts are there", LONG, || {
        (store.count("PUT", "killed/a/large?partNumber") >= 3).then_some(())
    });
    running.kill().expect("our own child");
    running.wait().expect("our own child");
    assert!(store.get("killed/a/large").is_none() && store.uploads() == 1);
    store.forget();
    copy(&store, &["--resume", "--verify", &from, "s3://data/killed"]);
    assert!(store.count("PUT", "killed/a/large?partNumber") < 5);
    assert!(
        store.get("killed/a/large").expect("an object").bytes
            == files::read(source.join("a/large"))
    );
    assert_eq!(store.uploads(), 0);
    assert!(store.keys().iter().all(|it| !it.contains(".skep-copy")), "{:?}", store.keys());
    cluster.stop_checked(&[]);
}

#[test]
fn destination_determines_the_name_of_a_copied_object_or_file() {
    let scratch = Scratch::new();
    let store = ObjectStore::start();
    let at = |path: &str| text(&scratch.path().join(path));
    files::write(scratch.path().join("file"), b"1");
    copy(&store, &[&at("file"), "s3://data"]);
    copy(&store, &[&at("file"), "s3://data/other"]);
    copy(&store, &[&at("file"), "s3://data/dir/"]);
    assert_eq!(store.keys(), ["dir/file", "file", "other"]);
    files::create_dir_all(scratch.path().join("here"));
    copy(&store, &["s3://data/other", &at("here")]);
    copy(&store, &["s3://data/dir/file", &at("new/name")]);
    assert!(scratch.path().join("here/other").exists() && scratch.path().join("new/name").exists());
    let failed = |arguments: &[&str], words: &[&str]| {
        let shown = finish(&mut command(&store, arguments), LONG).expect_failure();
        assert!(words.iter().all(|it| shown.contains(it)), "{arguments:?}: {shown}");
    };
    failed(&["s3://data/missing", &at("x")], &["no object has this key"]);
    failed(&["s3://other/a", &at("x")], &["no bucket other"]);
    failed(&["s3://data/a", "s3://data/b"], &["directory first"]);
    failed(&["s3://d", &at("x")], &["invalid location"]);
    store.fail("PUT", "/data/denied", Fault::Denied, 1);
    failed(&[&at("file"), "s3://data/denied"], &["AccessDenied", "--resume"]);
}

#[test]
fn credentials_come_from_the_environment_or_a_profile() {
    let scratch = Scratch::new();
    let store = ObjectStore::start();
    files::write(scratch.path().join("file"), b"1");
    files::create_dir_all(scratch.path().join(".aws"));
    let profile = format!(
        "[work]\naws_access_key_id = {ACCESS}\naws_secret_access_key = {SECRET}\n\
         aws_session_token = {TOKEN}\n"
    );
    files::write(scratch.path().join(".aws/credentials"), profile.as_bytes());
    let from = text(&scratch.path().join("file"));
    let run = |arguments: &[&str], variables: &[(&str, &str)]| -> Finished {
        let mut command = Command::new(program());
        command.args(["copy", "--s3-endpoint", &store.url()]).args(arguments);
        command.args([&from, "s3://data/file"]).env("HOME", scratch.path());
        for (name, _) in store.variables() {
            command.env_remove(name);
        }
        command.env("AWS_EC2_METADATA_DISABLED", "true").envs(variables.iter().copied());
        finish(&mut command, LONG)
    };
    run(&["--s3-profile", "work"], &[]).expect_success();
    run(&[], &[("AWS_PROFILE", "work")]).expect_success();
    run(&[], &store.variables()).expect_success();
    let text = run(&[], &[]).expect_failure();
    assert!(text.contains("no credentials for S3"), "{text}");
    let text = run(&["--s3-profile", "none"], &[]).expect_failure();
    assert!(text.contains("profile none is neither"), "{text}");
    let text = run(&["--s3-anonymous"], &[]).expect_failure();
    assert!(text.contains("AccessDenied"), "{text}");
    let wrong = [("AWS_ACCESS_KEY_ID", ACCESS), ("AWS_SECRET_ACCESS_KEY", "hidden-word")];
    let shown = run(&[], &wrong).expect_failure();
    assert!(!shown.contains("hidden-word"), "{shown}");
}

/// Command: skep copy.
#[test]
fn copy_over_tls_needs_a_trusted_certificate() {
    let scratch = Scratch::new();
    let [own, other] = ["own", "other"].map(|it| Authority::create(&scratch.directory(it)));
    let store = ObjectStore::start_secure(&own, "IP:127.0.0.1");
    let at = |path: &str| text(&scratch.path().join(path));
    let [source, back] = ["source", "back"].map(at);
    files::create_dir_all(&source);
    files::write(scratch.path().join("source/large"), vec![7; 11 << 20]);
    files::write(scratch.path().join("source/small"), b"1");
    let [own, other] = [own, other].map(|it| text(&it.certificate()));

    copy(&store, &["--s3-ca", &own, "--verify", &source, "s3://data/run"]);
    let mut by_variable = command(&store, &["--verify", "s3://data/run", &back]);
    finish(by_variable.env("AWS_CA_BUNDLE", &own), LONG).expect_success();
    run("diff", ["-r", &source, &back]);

    let sent = store.count("", "");
    let refused = |endpoint: &str, arguments: &[&str], words: &[&str]| {
        let mut command = Command::new(program());
        command.args(["copy", "--s3-endpoint", endpoint]).args(arguments);
        command.args([&source, "s3://data/other"]).envs(store.variables());
        let shown = finish(command.env_remove("AWS_CA_BUNDLE"), LONG).expect_failure();
        assert!(words.iter().all(|it| shown.contains(it)), "{arguments:?}: {shown}");
    };
    let unknown = &["127.0.0.1", "no trusted authority has signed it", "--s3-ca"];
    refused(&store.url(), &[], unknown);
    refused(&store.url(), &["--s3-ca", &other], unknown);
    let name = format!("https://localhost:{}", store.port());
    refused(&name, &["--s3-ca", &own], &["localhost", "the certificate belongs to another host"]);
    let reverse = format!("http://127.0.0.1:{}", store.port());
    refused(&reverse, &[], &["does not answer"]);
    // No request has reached the store, because each handshake failed.
    assert_eq!(store.count("", ""), sent);
}
