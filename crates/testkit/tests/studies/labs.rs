//! Studies that run in a lab: in their own lab, or in a lab that already runs.

use crate::{interrupt, journal_of, parse, prepare, runs_of, skep};
use serde_json::{Value, json};
use skep_testkit::lab::Lab;
use skep_testkit::schema::check;
use skep_testkit::view::Typed;
use skep_testkit::{Scratch, files};
use std::collections::{BTreeMap, BTreeSet};

/// A plan with short runs that write very little, in the study's own lab.
const OWN: &str = "name = 'own'\ntitle = 'Own'\nrepetitions = 3\nblock = 3\n\
    lab = { shape = 'small', targets = 1, clients = 1 }\n\
    [factors]\ndata-size = '256KiB'\nhosts = 1\nprocesses = 2\ntransfer = '64KiB'\n\
    [[experiment]]\nname = 'count'\ntitle = 'How many?'\n\
    factors = { count = [1, 2], chooser = ['balanced'] }\n";

/// Returns the arguments of `skep study run` for the plan `./plan.toml`. The study's own lab gets
/// the name of `lab`.
fn in_own_lab<'a>(lab: &'a Lab, more: &[&'a str]) -> Vec<&'a str> {
    let line = ["study", "run", "./plan.toml", "--force", "--lab-name", lab.name()];
    [&line[..], &["--directory", "study"], more].concat()
}

#[test]
fn study_removes_its_own_lab_at_its_end() {
    let (scratch, study) = prepare(OWN);
    let lab = Lab::new();
    let run = |more: &[&str]| skep(scratch.path(), &in_own_lab(&lab, more));
    let ended = parse(&run(&["--output", "json"]).expect_success());
    check("study-run", &ended);
    assert_eq!((&ended["runs_done"], &ended["runs_planned"]), (&json!(6), &json!(6)));
    assert_eq!(runs_of(&study).len(), 6);
    assert_eq!(lab.remains(), Vec::<String>::new());
    // A failed study prints the reason, and still removes its lab.
    files::remove_dir_all(&study);
    files::write(&study, "a file");
    let printed = run(&[]).expect_failure();
    assert!(printed.contains("study: File exists"), "{printed}");
    assert_eq!(lab.remains(), Vec::<String>::new());
}

/// A plan whose runs use one or both servers of a lab, with a file for each process. The links of
/// the servers are the limit.
const SERVERS: &str = "name = 'servers'\ntitle = 'Servers'\nrepetitions = 3\nblock = 1\n\
    lab = { shape = 'small', targets = 2, clients = 1 }\n\
    [factors]\ndata-size = '16MiB'\nclients = '1x2'\ntransfer = '1MiB'\n\
    access = 'file-per-process'\n\
    [[experiment]]\nname = 'servers'\ntitle = 'How many?'\nfactors = { servers = [1, 2] }\n";

#[test]
fn bandwidth_grows_with_the_servers_that_a_run_may_use() {
    let (scratch, study) = prepare(SERVERS);
    let lab = Lab::new();
    skep(scratch.path(), &in_own_lab(&lab, &[])).expect_success();
    let runs = runs_of(&study);
    assert_eq!(runs.len(), 6);
    let mut best = BTreeMap::from([(1_u64, 0.0_f64), (2, 0.0)]);
    for run in &runs {
        let servers = run["settings"]["servers"].number();
        let allocation = &run["applications"][0]["allocation"];
        assert_eq!(allocation["targets"].list().len() as u64, 2 * servers, "{run}");
        assert_eq!(allocation["min_max"], json!([2, 2]), "of the servers that the run may use");
        let rate = run["bytes_per_second"].float().max(best[&servers]);
        best.insert(servers, rate);
    }
    let ratio = best[&2_u64] / best[&1_u64];
    assert!((1.6..2.2).contains(&ratio), "two servers are {ratio} times as fast as one");
    // The link of a server in this shape has 200 Mbit/s.
    let first = parse(&journal_of(&study)[0]);
    assert_eq!(first["limit"]["server_bytes_per_second"], 25_000_000);
    let shown = skep(scratch.path(), &["study", "report", "study", "--with-invalid"]);
    assert!(shown.expect_success().contains("WRITE % OF LIMIT"));
    assert!(study.join("report/scaling-bandwidth.svg").exists());
    assert_eq!(lab.remains(), Vec::<String>::new());
}

#[test]
fn study_resumes_in_a_new_lab_after_ctrl_c() {
    let (scratch, study) = prepare(&OWN.replace("repetitions = 3", "repetitions = 15"));
    let lab = Lab::new();
    let (before, printed) = interrupt(&scratch, &study, &in_own_lab(&lab, &[]), || {
        assert_ne!(lab.remains(), Vec::<String>::new());
    });
    let go_on = format!("--directory study --lab-name {} --resume", lab.name());
    assert!(printed.contains(&go_on), "{printed}");
    assert_eq!(lab.remains(), Vec::<String>::new());
    let interrupted = journal_of(&study);
    assert_eq!(interrupted[..before.len()], before, "kept");
    assert!(runs_of(&study).len() < 30, "the study was interrupted");

    skep(scratch.path(), &in_own_lab(&lab, &["--resume"])).expect_success();
    assert_eq!(
        journal_of(&study)[..interrupted.len()],
        interrupted,
        "the journal keeps all records"
    );
    // Count distinct run numbers, because the study repeats runs during which this machine was too
    // busy.
    let numbers: BTreeSet<u64> = runs_of(&study).iter().map(|run| run["run"].number()).collect();
    assert_eq!(numbers.len(), 30);
    assert_eq!(lab.remains(), Vec::<String>::new());
}

/// A short study of a whole emulated cluster must find the exact targets of each chooser. The study
/// must also find the ratios of bandwidth that follow from the placement of these targets.
#[test]
fn small_study_finds_the_known_properties_of_its_lab() {
    let scratch = Scratch::new();
    let lab = Lab::new();
    lab.call("up", &["small", "--targets", "4", "--force"]).expect_success();
    let line = ["study", "run", "small", "--lab", lab.name(), "--directory", "study"];
    let ended =
        parse(&skep(scratch.path(), &[&line[..], &["--output", "json"]].concat()).expect_success());
    check("study-run", &ended);
    let study = scratch.join("study");
    let first = parse(&journal_of(&study)[0]);
    let servers = first["targets_per_server"].as_object().expect("servers");
    assert_eq!(servers.values().collect::<Vec<_>>(), [&json!(4), &json!(4)]);
    let runs = runs_of(&study);
    assert_eq!(runs.len(), 32);

    let mut found: BTreeMap<(String, u64), BTreeMap<String, Vec<f64>>> = BTreeMap::new();
    for run in runs.iter().filter(|run| run["experiment"] == "count") {
        let allocation = &run["applications"][0]["allocation"];
        let count = run["settings"]["count"].number();
        assert_eq!(allocation["targets"].list().len() as u64, count);
        let chooser = run["settings"]["chooser"].text().to_owned();
        let rate = run["bytes_per_second"].float();
        let rates = found.entry((chooser, count)).or_default();
        rates.entry(allocation["min_max"].to_string()).or_default().push(rate);
    }
    let allocations = |chooser: &str, count: u64| -> Vec<&str> {
        found[&(chooser.to_owned(), count)].keys().map(String::as_str).collect()
    };
    assert_eq!(allocations("balanced", 2), ["[1,1]"]);
    assert_eq!(allocations("balanced", 4), ["[2,2]"]);
    assert_eq!(allocations("roundrobin", 2), ["[0,2]", "[1,1]"]);
    assert_eq!(allocations("roundrobin", 4), ["[1,3]"], "always");

    let best = |chooser: &str, count: u64, allocation: &str| {
        found[&(chooser.to_owned(), count)][allocation].iter().copied().fold(0.0, f64::max)
    };
    let ratio = |name: &str, one: f64, two: f64, expected: f64| {
        let ratio = one / two;
        assert!((ratio / expected - 1.0).abs() < 0.2, "{name}: {ratio}, not {expected}");
    };
    let even = best("balanced", 4, "[2,2]");
    ratio("(2,2) over (1,3)", even, best("roundrobin", 4, "[1,3]"), 1.5);
    ratio("(2,2) over (0,2)", even, best("roundrobin", 2, "[0,2]"), 2.0);
    ratio("(2,2) over (1,1)", even, best("balanced", 2, "[1,1]"), 1.0);

    let targets_of = |run: &Value, application: usize| -> BTreeSet<u64> {
        let targets = &run["applications"][application]["allocation"]["targets"];
        targets.list().iter().map(|it| it.number()).collect()
    };
    let mut sharing: BTreeMap<&str, f64> = BTreeMap::new();
    for run in runs.iter().filter(|run| run["experiment"] == "sharing") {
        let word = run["settings"]["targets"].text();
        let (one, two) = (targets_of(run, 0), targets_of(run, 1));
        match word {
            "shared" => assert_eq!(one, two, "{run}"),
            _ => assert!(one.is_disjoint(&two), "{run}"),
        }
        let rate = run["bytes_per_second"].float();
        let best = sharing.entry(word).or_default();
        *best = best.max(rate);
    }
    ratio("shared over separate targets", sharing["shared"], sharing["separate"], 1.0);
}
