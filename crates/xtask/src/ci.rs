//! `cargo xtask ci`: the table of all steps of CI, in their order.

use crate::needs::is_installed;
use crate::repository::{Outcome, run as call};
use crate::{black_box, dashboards, docs, fuzz, needs, tidy, vectors};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Options of `ci`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Continue after a failed step, and list all failures at the end.
    #[arg(long)]
    keep_going: bool,
    /// Run only these steps.
    #[arg(long, value_name = "STEP", value_parser = names())]
    only: Vec<String>,
}

struct Step {
    name: &'static str,
    /// Whether the step needs root, or programs that do not belong to Rust's tools.
    needs_machine: bool,
    run: fn() -> Outcome,
}

/// Arguments of the test of all crates, except the crates that have a step of their own.
const TESTED: &[&str] = &[
    "test",
    "--workspace",
    "--exclude",
    "skep-sim",
    "--exclude",
    "skep-testkit",
    "--no-fail-fast",
];

#[rustfmt::skip]
const STEPS: &[Step] = &[
    Step { name: "format", needs_machine: false, run: || cargo(&["fmt", "--all", "--check"]) },
    Step { name: "tidy", needs_machine: false, run: tidy::run },
    Step { name: "docs", needs_machine: false, run: || docs::run(true) },
    Step { name: "dashboards", needs_machine: false, run: || dashboards::run(true) },
    Step { name: "clippy", needs_machine: false, run: clippy },
    Step { name: "deny", needs_machine: false, run: deny },
    Step { name: "vectors", needs_machine: false, run: check_vectors },
    Step { name: "page", needs_machine: true, run: test_page },
    Step { name: "test", needs_machine: true, run: || cargo(TESTED) },
    Step { name: "fuzz", needs_machine: false, run: || fuzz::run(&fuzz::Options::default()) },
    Step { name: "rustdoc", needs_machine: false, run: rustdoc },
    Step { name: "simulation", needs_machine: false, run: simulation },
    Step { name: "black-box", needs_machine: true, run: black_box::run },
];

fn names() -> Vec<&'static str> {
    STEPS.iter().map(|step| step.name).collect()
}

fn cargo(arguments: &[&str]) -> Outcome {
    call(env!("CARGO"), arguments, &[])
}

fn clippy() -> Outcome {
    cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])
}

/// Checks the licences and sources of all libraries. The check for known vulnerabilities (`cargo
/// deny check advisories`) needs a database from the network, so it is not a step of CI.
fn deny() -> Outcome {
    if !is_installed("cargo-deny") {
        return Err("cargo-deny not found: run `.ci/run`, which installs it, or \
                    `cargo install --locked cargo-deny`"
            .into());
    }
    cargo(&["deny", "--locked", "check", "bans", "licenses", "sources"])
}

fn check_vectors() -> Outcome {
    vectors::run(true)?;
    call("python3", &["tools/vectors.py"], &[])
}

/// Tests the part of the monitor's page that needs no browser. `cargo xtask external --only page`
/// opens the page in a browser.
fn test_page() -> Outcome {
    call("node", &["--test", "crates/monitor/tests/page.test.mjs"], &[])
}

/// Builds the documentation for developers, with private items, so that links to private items are
/// valid.
fn rustdoc() -> Outcome {
    let arguments = ["doc", "--workspace", "--no-deps", "--document-private-items"];
    let flags = "-D warnings -A rustdoc::private_intra_doc_links";
    call(env!("CARGO"), &arguments, &[("RUSTDOCFLAGS", flags)])
}

/// Simulates fixed seeds, and then new seeds that depend on the clock. If a seed fails, the
/// simulator prints the command that runs this seed again.
fn simulation() -> Outcome {
    cargo(&["test", "--release", "--package", "skep-sim"])?;
    let simulate = ["run", "--quiet", "--release", "--package", "skep-sim", "--", "--keep-going"];
    cargo(&[&simulate[..], &["--seed", "1", "--new", "200", "--seconds", "60"]].concat())?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seed = (now.as_secs() * 1_000).to_string();
    cargo(&[&simulate[..], &["--seed", &seed, "--new", "100000", "--seconds", "30"]].concat())
}

/// Runs the selected steps of CI.
///
/// # Errors
/// Lists the programs that are missing on the machine, or the steps that failed.
pub(crate) fn run(options: &Options) -> Outcome {
    let is_wanted =
        |step: &&Step| options.only.is_empty() || options.only.iter().any(|n| n == step.name);
    let steps: Vec<_> = STEPS.iter().filter(is_wanted).collect();
    if steps.iter().any(|step| step.needs_machine) {
        needs::check()?;
    }
    let mut report: Vec<(&str, Duration, Outcome)> = Vec::new();
    for step in steps {
        println!("== {}", step.name);
        let start = Instant::now();
        let outcome = (step.run)();
        let has_failed = outcome.is_err();
        report.push((step.name, start.elapsed(), outcome));
        if has_failed && !options.keep_going {
            break;
        }
    }
    println!();
    for (name, time, outcome) in &report {
        let word = if outcome.is_ok() { "ok" } else { "FAILED" };
        println!("{name:<12} {word:<6} {:>7.1} s", time.as_secs_f64());
    }
    let failures: Vec<_> = report
        .into_iter()
        .filter_map(|(name, _, outcome)| outcome.err().map(|problem| format!("{name}: {problem}")))
        .collect();
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}
