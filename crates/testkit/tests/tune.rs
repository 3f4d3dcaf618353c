//! The command `skep tune`, on an artificial root directory and as a check of this host.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use skep_testkit::page::PageNetwork;
use skep_testkit::program::{Finished, finish};
use skep_testkit::schema::{check, check_lines};
use skep_testkit::wait::wait_for;
use skep_testkit::{PATIENCE, Scratch, cluster};
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

fn run(arguments: &[&str]) -> Finished {
    finish(Command::new(cluster::program()).arg("tune").args(arguments), PATIENCE)
}

fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().expect("a parent")).expect("made");
    fs::write(path, text).expect("written");
}

/// Command: skep tune check, skep tune apply, skep tune undo.
#[test]
fn tune_apply_corrects_settings_and_undo_restores_them() {
    let scratch = Scratch::new();
    let root = scratch.path();
    let swappiness = "proc/sys/vm/swappiness";
    let pages = "sys/kernel/mm/transparent_hugepage/enabled";
    put(root, swappiness, "60\n");
    put(root, pages, "[always] madvise never\n");
    put(root, "sys/class/net/eth0/mtu", "1500\n");
    let at = root.display().to_string();
    let with = |verb: &'static str, more: &[&'static str]| {
        let of_host: &[&str] =
            if verb == "undo" { &[] } else { &["--role", "storage", "--interface", "eth0"] };
        let words: Vec<&str> = [&[verb, "--root", at.as_str()], of_host, more].concat();
        run(&words)
    };
    let checked = with("check", &["--output", "json"]);
    assert_eq!(checked.status.code(), Some(1), "{}", checked.stderr);
    let report: Value = serde_json::from_str(&checked.stdout).expect("JSON");
    check("tune-check", &report);
    assert_eq!(report["deviations"], 3, "{report}");
    let dry = with("apply", &["--dry-run", "--output", "json"]).expect_success();
    check("tune-apply-dry", &serde_json::from_str(&dry).expect("JSON"));
    assert_eq!(fs::read_to_string(root.join(swappiness)).expect("read"), "60\n");
    let applied = with("apply", &["--output", "ndjson"]).expect_success();
    let applied = check_lines("tune-apply", &applied);
    assert_eq!(applied["changed"].as_array().map(Vec::len), Some(2), "{applied}");
    assert_eq!(fs::read_to_string(root.join(swappiness)).expect("read"), "10");
    with("apply", &["--only", "mtu"]).expect_success();
    with("check", &[]).expect_success();
    let kept = fs::read_to_string(root.join("etc/sysctl.d/90-skep.conf")).expect("read");
    assert!(kept.contains("vm.swappiness = 10"), "{kept}");
    let undone = with("undo", &["--output", "json"]).expect_success();
    check("tune-undo", &serde_json::from_str(&undone).expect("JSON"));
    assert_eq!(fs::read_to_string(root.join(swappiness)).expect("read"), "60\n");
    assert_eq!(fs::read_to_string(root.join(pages)).expect("read"), "[always] madvise never\n");
    assert!(!root.join("etc/sysctl.d/90-skep.conf").exists());
    let again = with("undo", &[]);
    assert_eq!(again.status.code(), Some(4), "{}", again.stderr);
    assert!(again.stderr.contains("cannot undo"), "{}", again.stderr);
}

/// Command: skep tune measure.
#[test]
fn tune_measure_compares_values_and_restores_them() {
    let scratch = Scratch::new();
    let root = scratch.path();
    let swappiness = root.join("proc/sys/vm/swappiness");
    put(root, "proc/sys/vm/swappiness", "60\n");
    put(root, "sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n");
    let at = root.display().to_string();
    let with = |more: &[&str], command: &[&str]| {
        let of_host = ["measure", "--root", at.as_str(), "--role", "storage"];
        run(&[&of_host[..], more, &["--"], command].concat())
    };
    // The measured command prints the value of one setting, so only the rule of this setting has a
    // gain.
    let file = swappiness.display().to_string();
    let number = ["--number", "--repetitions", "2", "--output", "json"];
    let measured = with(&number, &["cat", &file]).expect_success();
    let report: Value = serde_json::from_str(&measured).expect("JSON");
    check("tune-measure", &report);
    let rules = report["rules"].as_array().expect("rules");
    assert_eq!(rules.len(), 2, "{report}");
    let of = |name: &str| rules.iter().find(|it| it["rule"] == name).expect("a rule");
    assert_eq!(of("swappiness")["former"], serde_json::json!([60.0, 60.0]), "{report}");
    assert_eq!(of("swappiness")["changed"], serde_json::json!([10.0, 10.0]), "{report}");
    let gain = of("swappiness")["gain"].as_f64().expect("a number");
    assert!((gain + 5.0 / 6.0).abs() < 1e-9, "{report}");
    assert_eq!(of("transparent-huge-pages")["gain"], 0.0, "{report}");
    let is_restored = || {
        assert_eq!(fs::read_to_string(&swappiness).expect("read"), "60\n");
        assert!(!root.join("var/lib/skep/tune/state.json").exists());
        assert!(!root.join("etc/sysctl.d/90-skep.conf").exists());
    };
    is_restored();
    let shown = with(&["--only", "swappiness"], &["true"]).expect_success();
    assert!(shown.contains("seconds of the command"), "{shown}");
    // This command fails only with the recommended value.
    let fails = with(&["--only", "swappiness"], &["grep", "-q", "60", &file]);
    assert!(
        !fails.status.success() && fails.stderr.contains("cannot measure command"),
        "{fails:?}"
    );
    is_restored();
    let text = with(&["--only", "swappiness", "--number"], &["echo", "fast"]);
    assert!(
        text.stderr.contains("the last line of its output, 'fast', is not a number"),
        "{}",
        text.stderr
    );
    run(&["apply", "--root", &at, "--role", "storage"]).expect_success();
    // `skep tune measure` creates no object. So this refusal must not have the exit code of a
    // command that cannot create an object because the object exists.
    let refused = with(&[], &["true"]);
    assert_eq!(refused.status.code(), Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("run `skep tune undo` first"), "{}", refused.stderr);
}

/// Command: skep tune measure.
#[test]
fn interrupted_tune_measure_restores_the_settings() {
    let scratch = Scratch::new();
    let root = scratch.path();
    let swappiness = root.join("proc/sys/vm/swappiness");
    let begun = root.join("begun");
    // The command takes long only with the recommended value, so the signal comes while this value
    // is set.
    let script = format!(
        "grep -q 60 {} || {{ touch {}; exec sleep 1000; }}",
        swappiness.display(),
        begun.display()
    );
    put(root, "proc/sys/vm/swappiness", "60\n");
    let mut command = Command::new(cluster::program());
    command.args(["tune", "measure", "--role", "storage", "--only", "swappiness", "--root"]);
    command.arg(root).args(["--", "sh", "-c", &script]);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut measuring = command.spawn().expect("started");
    wait_for("the command runs", PATIENCE, || begun.exists().then_some(()));
    assert_eq!(fs::read_to_string(&swappiness).expect("read"), "10");
    kill_process(Pid::from_child(&measuring), Signal::TERM).expect("sent");
    let mut errors = String::new();
    let stderr = measuring.stderr.as_mut().expect("a pipe");
    stderr.read_to_string(&mut errors).expect("read");
    let status = measuring.wait().expect("ended");
    assert_eq!(status.code(), Some(1), "{errors}");
    assert!(errors.contains("a signal interrupted the measurement"), "{errors}");
    assert_eq!(fs::read_to_string(&swappiness).expect("read"), "60\n");
    assert!(!root.join("var/lib/skep/tune/state.json").exists());
}

/// Command: skep tune check.
#[test]
fn tune_check_reports_hosts_that_get_no_large_packets() {
    let network = PageNetwork::new();
    let host = network.host("one", "10.0.0.1/24");
    let other = network.host("other", "10.0.0.2/24");
    let path_to_other = || {
        let command = "skep tune check --role client --peer 10.0.0.2 --all --output json";
        let checked = host.run(command);
        let report: Value = serde_json::from_str(&checked.stdout).expect("JSON");
        check("tune-check", &report);
        let findings = report["findings"].as_array().expect("findings").clone();
        let found = findings.into_iter().find(|it| it["rule"] == "path-mtu");
        found.unwrap_or_else(|| panic!("no finding about the path: {}", checked.stderr))
    };
    let good = path_to_other();
    assert_eq!((&good["passes"], good["is"].as_str()), (&Value::from(true), Some("1500")));
    // The interface of the other host drops larger packets without a report.
    other.run("ip link set eth0 mtu 1400").expect_success();
    let lost = path_to_other();
    let no = Value::from(false);
    assert_eq!((&lost["passes"], lost["is"].as_str()), (&no, Some("1400")));
    assert_eq!((lost["file"].as_str(), &lost["can_apply"]), (Some("path to 10.0.0.2"), &no));
    assert!(lost["why"].as_str().is_some_and(|it| it.contains("lost without a report")), "{lost}");
    let silent = host.run("skep tune check --role client --peer 10.0.0.9");
    assert!(silent.stderr.contains("answers no test packets"), "{}", silent.stderr);
    for (peer, expected) in [("10.9.9.9", "path to 10.9.9.9"), ("127.0.0.1", "another host")] {
        let refused = host.run(&format!("skep tune check --role client --peer {peer}"));
        let text = refused.expect_failure();
        assert!(text.contains("cannot probe") && text.contains(expected), "{text}");
    }
}

#[test]
fn tune_check_runs_on_any_host_and_refuses_wrong_arguments() {
    let checked = run(&["check", "--role", "metadata,storage", "--all", "--output", "json"]);
    let report: Value = serde_json::from_str(&checked.stdout).expect("JSON");
    check("tune-check", &report);
    assert!(report["checked"].as_u64() > Some(5), "{report}");
    for (arguments, expected) in [
        (&["check", "--role", "cook"][..], "invalid role 'cook'"),
        (&["check"], "--role"),
        (&["check", "--role", "client", "--root", "/none"], "--root /none"),
        (&["check", "--role", "client", "--root", "/none", "--peer", "s1"], "--peer"),
        (&["check", "--role", "storage", "--device", "none0"], "block device none0"),
        (
            &["apply", "--role", "client", "--only", "speed", "--dry-run"],
            "cannot find rule 'speed'",
        ),
    ] {
        let refused = run(arguments);
        assert!(!refused.status.success(), "{arguments:?}");
        assert!(refused.stderr.contains(expected), "{arguments:?}: {}", refused.stderr);
    }
}
