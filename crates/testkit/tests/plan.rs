//! The command `skep plan`: its proposals, predictions, comparisons and refusals, with their JSON.

use serde_json::Value;
use skep_testkit::program::{Finished, finish};
use skep_testkit::schema::{check, check_lines};
use skep_testkit::{PATIENCE, Scratch, cluster};
use std::path::Path;
use std::process::Command;

fn run(directory: &Path, arguments: &[&str]) -> Finished {
    let mut command = Command::new(cluster::program());
    finish(command.current_dir(directory).arg("plan").args(arguments), PATIENCE)
}

/// Runs a command, and checks both forms of its JSON output against its schema.
fn checked(directory: &Path, arguments: &[&str]) -> Value {
    let name = format!("plan-{}", arguments[0]);
    let with =
        |format| run(directory, &[arguments, &["--output", format]].concat()).expect_success();
    let value: Value = serde_json::from_str(&with("json")).expect("JSON");
    check(&name, &value);
    check_lines(&name, &with("ndjson"));
    value
}

fn refused(directory: &Path, arguments: &[&str], expected: &str) {
    let finished = run(directory, arguments);
    assert!(!finished.status.success(), "{arguments:?}");
    assert!(finished.stderr.contains(expected), "{arguments:?}: {}", finished.stderr);
}

const SYSTEM: [&str; 6] = ["--server", "i2.8xlarge", "--servers", "2", "--client", "c4.8xlarge"];

/// Command: skep plan propose.
#[test]
fn plan_propose_prints_cost_and_rates_and_writes_pages() {
    let scratch = Scratch::new();
    let at = scratch.path();
    let needs =
        ["propose", "--capacity", "10", "--write", "3", "--place", "aws", "--clients", "24"];
    let found = checked(at, &needs);
    let first = &found[0];
    assert!(first["cost"]["capacity_tb"].as_f64() >= Some(10.0), "{first}");
    let write = &first["rates"][0];
    assert!(write["low"].as_f64() >= Some(3000.0), "{write}");
    assert_eq!(write["needed"], 3000.0);
    let pages = ["--html", "plan.html", "--csv", "plan.csv"];
    let shown = run(at, &[&needs[..], &pages].concat()).expect_success();
    assert!(shown.contains("$/(GB/s)/hr"), "{shown}");
    let page = std::fs::read_to_string(at.join("plan.html")).expect("a page");
    assert!(page.contains("<svg") && page.contains("usd_per_tb_hour"));
    let csv = std::fs::read_to_string(at.join("plan.csv")).expect("a table");
    assert_eq!(csv.lines().count(), found.as_array().map_or(0, Vec::len) + 1, "{csv}");
    for (more, expected) in [
        (&["--budget", "0.1"][..], "more than the budget"),
        (&["--clients", "1", "--processes", "1"], "more clients"),
        (&["--place", "moon"], "us-east-1"),
        (&["--redundancy", "raid9"], "raid6"),
        (&["--mtu", "9"], "--mtu"),
    ] {
        refused(at, &[&["propose", "--write", "3"], more].concat(), expected);
    }
    refused(at, &["propose"], "--capacity");
}

/// Command: skep plan predict, skep plan explain.
#[test]
fn plan_predict_uses_a_catalogue_file_and_a_benchmark() {
    let scratch = Scratch::new();
    let at = scratch.path();
    let rates = |more: &[&str]| {
        let all = [&["predict", "--clients", "2,64"], &SYSTEM[..], more].concat();
        let lines = checked(at, &all);
        [0_usize, 1].map(|index| lines[index]["rate"].as_f64().expect("a rate"))
    };
    let [few, many] = rates(&[]);
    assert!((1300.0..2000.0).contains(&few) && (2000.0..2500.0).contains(&many), "{few} {many}");
    let text = "provider = 'own'\nplace = 'here'\nas_of = '2026'\nsource = 'me'\n\
                [[server]]\nname = 'i2.8xlarge'\ncores = 32\nmemory_gib = 244\n\
                network_gbit_s = 40\ndisk = 'aws-sata-ssd-800'\ndisks = 8\n";
    std::fs::write(at.join("mine.toml"), text).expect("written");
    let [_, faster] = rates(&["--catalogue", "mine.toml"]);
    assert!(faster > 2.0 * many, "{faster} after {many}");
    std::fs::write(at.join("holes.toml"), &text[..50]).expect("written");
    let of = |file| [&["predict", "--catalogue", file], &SYSTEM[..]].concat();
    refused(at, &of("holes.toml"), "holes.toml");
    refused(at, &of("absent.toml"), "cannot read absent.toml");
    // If the benchmark comes from a much slower system, the predicted rates are lower.
    let result = "{\"plan\":{\"transfer_bytes\":1048576,\"file_per_process\":true},\
                  \"processes\":64,\"is_valid\":true,\"phases\":[{\"phase\":\"write\",\
                  \"bandwidth_mib_per_s\":900.0,\"operations_per_s\":900.0,\
                  \"hosts\":[{\"name\":\"a\"}]}]}";
    std::fs::write(at.join("io.json"), result).expect("written");
    let [_, slower] = rates(&["--bench", "io.json"]);
    assert!(slower < many, "{slower} after {many}");
    std::fs::write(at.join("io.json"), result.replace("true,\"phases", "false,\"phases"))
        .expect("written");
    refused(at, &[&["predict", "--bench", "io.json"], &SYSTEM[..]].concat(), "invalid");
    let explained = checked(at, &[&["explain", "--clients", "64"], &SYSTEM[..]].concat());
    assert_eq!(explained["prediction"]["binds"], "server_network");
    refused(at, &["explain", "--server", "c9.huge"], "c3.8xlarge");
    refused(at, &["explain", "--server", "c3.large"], "--disk");
    refused(at, &[&["explain", "--allocation", "3,1"], &SYSTEM[..]].concat(), "MIN,MAX");
}

/// The tutorial for AWS compares a measurement with these predictions.
///
/// Command: skep plan explain.
#[test]
fn aws_tutorial_has_the_predicted_rates() {
    let page = include_str!("../../../docs/tutorials/aws.md");
    let scratch = Scratch::new();
    let rate = |load: &[&str]| {
        let all = [&["explain", "--mtu", "9001"], &SYSTEM[..], load].concat();
        let explained = checked(scratch.path(), &all);
        explained["prediction"]["rate"].as_f64().expect("a rate")
    };
    let of_eight = format!("write by 8 clients: {:.0} MB/s", rate(&["--clients", "8"]));
    let one = rate(&["--clients", "1", "--processes", "8"]);
    let tens = |rate: f64| (rate / 10.0).round() * 10.0;
    let of_one = format!("about {} MB/s, which is {} MiB/s", tens(one), tens(one / 1.048_576));
    for text in [of_eight, of_one] {
        assert!(page.contains(&text), "docs/tutorials/aws.md lacks: {text}");
    }
}

/// Command: skep plan compare, skep plan calibrate, skep plan catalogue.
#[test]
fn plan_predicts_published_rates_within_documented_errors() {
    let scratch = Scratch::new();
    let at = scratch.path();
    let median = |value: &Value| value["median_percent"].as_f64().expect("a number");
    assert!(median(&checked(at, &["compare", "--html", "page.html"])["errors"]) <= 5.0);
    let by_table = checked(at, &["compare", "--left-out"]);
    assert!(median(&by_table["errors"]) <= 10.0, "{by_table}");
    assert_eq!(by_table, checked(at, &["compare", "--left-out=table"]));
    let by_study = checked(at, &["compare", "--left-out=study"]);
    let page = std::fs::read_to_string(at.join("page.html")).expect("a page");
    assert!(page.contains("<svg") && page.contains("boito-scenario1"));
    let calibrated = checked(at, &["calibrate"]);
    assert_eq!(calibrated["measured_points"], 45);
    assert!(median(&calibrated["one_study_left_out"]) <= 10.0, "{calibrated}");
    assert_eq!(by_study["errors"], calibrated["one_study_left_out"]);
    let listed = checked(at, &["catalogue"]);
    assert!(listed["servers"].as_array().map_or(0, Vec::len) > 15);
    let own = run(at, &["catalogue", "--print-file", "own.toml"]).expect_success();
    std::fs::write(at.join("own.toml"), own).expect("written");
    run(at, &["catalogue", "--catalogue", "own.toml"]).expect_success();
    refused(at, &["catalogue", "--print-file", "x"], "azure.toml");
    // Compare with a user's table in the same form as the built-in tables.
    let tables = run(at, &["compare", "--print-tables"]).expect_success();
    let first = tables.split("\n\n").nth(1).expect("a table");
    std::fs::write(at.join("tables.toml"), first).expect("written");
    let csv = "system,clients,write_mb_s\noption1,2,1700\noption1,16,6700\n";
    std::fs::write(at.join("alces_throughput.csv"), csv).expect("written");
    let own = checked(at, &["compare", "--tables", "tables.toml"]);
    assert_eq!(own["errors"]["points"], 2, "{own}");
    std::fs::write(at.join("alces_throughput.csv"), csv.replace("6700", "fast")).expect("written");
    refused(at, &["compare", "--tables", "tables.toml"], "line 3: invalid write_mb_s 'fast'");
}

/// Command: skep plan size.
#[test]
fn plan_size_prints_disks_memory_and_cores_of_hosts() {
    let scratch = Scratch::new();
    let at = scratch.path();
    let hosts = ["size", "--files", "100M", "--metadata", "2x2", "--storage", "4x8"];
    let value = checked(at, &hosts);
    // The page about sizing names this number of bytes of metadata for each file with 32 targets.
    assert_eq!(value["size"]["metadata_bytes_of_file"], 487, "{value}");
    assert_eq!(value["size"]["metadata"]["disk_bytes_of_target"], 12_175_000_000_u64 + (2 << 30));
    assert_eq!(value["size"]["storage"]["cores"], 12);
    // Without inline bytes, the pattern of each file has one component less than with inline bytes.
    let plain = checked(at, &[&hosts[..], &["--inline-bytes", "0"]].concat());
    assert_eq!(plain["size"]["metadata_bytes_of_file"], 460, "{plain}");
    let many = [&hosts[..], &["--clients", "2000"]].concat();
    let shown = run(at, &many).expect_success();
    assert!(shown.contains("metadata.cache = \"1162 MiB\""), "{shown}");
    assert!(shown.contains("Problem: a storage service with 8 targets"), "{shown}");
    refused(at, &[&hosts[..], &["--stripe-width", "33"]].concat(), "have 32 targets");
    refused(at, &[&hosts[..], &["--copies", "3"]].concat(), "different hosts");
    refused(at, &["size", "--files", "many"], "200M");
}

/// The files `deploy/examples/*/rates.csv` have the rates of the reference designs. If a new
/// calibration or model changes these rates, write the rates from the failure message into these
/// files.
///
/// Command: skep plan predict.
#[test]
fn reference_designs_have_the_predicted_rates() {
    let scratch = Scratch::new();
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/examples");
    for (design, server, servers) in
        [("capacity", "sixteen-raid6-two-100g", "2"), ("nvme", "twelve-nvme-100g", "4")]
    {
        let rates = |operation| {
            let system = ["predict", "--server", server, "--servers", servers];
            let load = ["--client", "client-100g", "--processes", "8", "--operation", operation];
            checked(scratch.path(), &[&system[..], &load].concat())
        };
        let (write, read) = (rates("write"), rates("read"));
        let file = deploy.join(design).join("rates.csv");
        let text = std::fs::read_to_string(&file).expect("the rates of the design");
        let lines: Vec<Vec<f64>> = text
            .lines()
            .skip(1)
            .map(|line| line.split(',').map(|it| it.parse().expect("a number")).collect())
            .collect();
        let predicted =
            write.as_array().expect("a list").iter().zip(read.as_array().expect("a list"));
        let predicted: Vec<_> = predicted
            .map(|(write, read)| {
                [&write["clients"], &write["rate"], &read["rate"]]
                    .map(|it| it.as_f64().expect("a number"))
            })
            .collect();
        assert_eq!(lines.len(), predicted.len(), "{design}");
        for (line, predicted) in lines.iter().zip(&predicted) {
            let is_near = |(one, other): (&f64, &f64)| (one - other).abs() <= other / 100.0;
            assert!(line.iter().zip(predicted).all(is_near), "{design}: {line:?} {predicted:?}");
        }
    }
}
