//! `cargo xtask ci`: the table of all steps of CI, in their order.

use crate::built::{self, KERNEL_REQUESTS_FEATURE, Program, SIMULATION, UNIT_TESTS};
use crate::needs::is_installed;
use crate::repository::{Outcome, root, run as call};
use crate::runner::{Runner, failed, table};
use crate::{black_box, dashboards, docs, fuzz, needs, tidy, vectors};
use std::process::Command;
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
    /// Maximum time on a host with two cores, in seconds. The time includes builds that begin with
    /// an empty target directory.
    budget: u64,
    run: fn() -> Outcome,
}

/// Maximum time of all steps from an empty target directory, in seconds. An increase of the budget
/// of one step requires an equal reduction of the budget of another step.
const BUDGET: u64 = 55 * 60;

/// Maximum time of all steps if an earlier run has built everything, in seconds.
const BUDGET_WITHOUT_BUILDS: u64 = 35 * 60;

#[rustfmt::skip]
const STEPS: &[Step] = &[
    Step {
        name: "format", needs_machine: false, budget: 10,
        run: || cargo(&["fmt", "--all", "--check"]),
    },
    Step { name: "tidy", needs_machine: false, budget: 30, run: tidy::run },
    Step { name: "dashboards", needs_machine: false, budget: 5, run: || dashboards::run(true) },
    Step { name: "clippy", needs_machine: false, budget: 230, run: clippy },
    Step { name: "deny", needs_machine: false, budget: 15, run: deny },
    Step { name: "vectors", needs_machine: false, budget: 20, run: check_vectors },
    Step { name: "page", needs_machine: true, budget: 10, run: test_page },
    Step { name: "test", needs_machine: true, budget: 590, run: test },
    Step { name: "docs", needs_machine: false, budget: 20, run: check_docs },
    // This step does not fuzz the decoder of kernel requests, because the step `test` fuzzes this
    // decoder.
    Step {
        name: "fuzz", needs_machine: false, budget: 40,
        run: || fuzz::run(&fuzz::Options::default()),
    },
    Step { name: "rustdoc", needs_machine: false, budget: 60, run: rustdoc },
    Step { name: "simulation", needs_machine: false, budget: 400, run: simulation },
    Step { name: "black-box", needs_machine: true, budget: 1_870, run: black_box::run },
];

fn names() -> Vec<&'static str> {
    STEPS.iter().map(|step| step.name).collect()
}

fn cargo(arguments: &[&str]) -> Outcome {
    call(env!("CARGO"), arguments, &[])
}

fn clippy() -> Outcome {
    let features = ["--features", KERNEL_REQUESTS_FEATURE];
    let packages = ["clippy", "--workspace", "--all-targets"];
    cargo(&[&packages[..], &features, &["--", "-D", "warnings"]].concat())
}

/// Checks the licences and sources of all libraries. The check for known vulnerabilities (`cargo
/// deny check advisories`) is not a step of CI, because it needs a database from the network. It is
/// the suite `advisories` of `cargo xtask external`.
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

/// Programs with unit tests that take long. The step starts these programs first.
const LONG: &[&str] =
    &["scale", "skep_management", "skep_metadata", "skep_copy", "skep_storage", "skep_cluster"];

/// Tests all crates, except the crates that have a step of their own. Runs two programs at a time,
/// because some of the long programs wait for timers or disks most of the time.
fn test() -> Outcome {
    let mut programs = built::programs(UNIT_TESTS)?;
    programs.retain(|program| program.is_test);
    let position = |name: &str| LONG.iter().position(|long| *long == name);
    programs.sort_by_key(|program| position(&program.name).unwrap_or(LONG.len()));
    let runner = Runner { logs: "target/unit-tests", workers: 2, command: unit_tests };
    let mut ended = runner.run(programs)?;
    println!("\n{}", table(&mut ended));
    let mut failed = failed(&ended);
    if cargo(&[UNIT_TESTS, &["--doc", "--no-fail-fast"]].concat()).is_err() {
        failed.push("examples in comments".into());
    }
    if failed.is_empty() {
        Ok(())
    } else {
        Err(format!("these tests failed: {}", failed.join(", ")))
    }
}

/// Returns the command that runs a program as `cargo test` does.
fn unit_tests(program: &Program) -> Command {
    let mut command = Command::new(&program.executable);
    command
        .env("CARGO", env!("CARGO"))
        .env("CARGO_MANIFEST_DIR", &program.package)
        .current_dir(&program.package);
    command
}

/// Checks the generated pages. The pages come from the program `skep` that the step `test` has
/// built, because a build of this program alone would recompile most crates.
fn check_docs() -> Outcome {
    let programs = built::programs(UNIT_TESTS)?;
    let skep = programs.iter().find(|it| !it.is_test && it.name == "skep");
    docs::check(&skep.ok_or("cargo has not built the program skep")?.executable)
}

/// Tests the part of the monitor's page that needs no browser. `cargo xtask external --only page`
/// opens the page in a browser.
fn test_page() -> Outcome {
    call("node", &["--test", "crates/monitor/tests/page.test.mjs"], &[])
}

/// Builds the documentation for developers, with private items, so that links to private items are
/// valid.
fn rustdoc() -> Outcome {
    let packages = ["doc", "--workspace", "--no-deps", "--features", KERNEL_REQUESTS_FEATURE];
    let arguments = [&packages[..], &["--document-private-items"]].concat();
    let flags = "-D warnings -A rustdoc::private_intra_doc_links";
    call(env!("CARGO"), &arguments, &[("RUSTDOCFLAGS", flags)])
}

/// Simulates fixed seeds, and then new seeds that depend on the clock. If a seed fails, the
/// simulator prints the command that repeats the run with this seed.
fn simulation() -> Outcome {
    let programs = built::programs(SIMULATION)?;
    for test in programs.iter().filter(|it| it.is_test) {
        println!("{}", test.name);
        call(&test.executable.display().to_string(), &[], &[])?;
    }
    cargo(&[SIMULATION, &["--doc"]].concat())?;
    let program = programs.iter().find(|it| !it.is_test);
    let simulator = &program.ok_or("cargo has not built the simulator")?.executable;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seed = (now.as_secs() * 1_000).to_string();
    let new = ["--keep-going", "--new", "100000", "--seconds", "30", "--seed", &seed];
    call(&simulator.display().to_string(), &new, &[])
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
    // If the last step has left outputs, an earlier run has built everything, so the smaller budget
    // applies.
    let is_built = root().join(black_box::LOGS).exists();
    let budget = if is_built { BUDGET_WITHOUT_BUILDS } else { BUDGET };
    let mut report: Vec<(&Step, Duration, Outcome)> = Vec::new();
    for step in steps {
        println!("== {}", step.name);
        let start = Instant::now();
        let outcome = (step.run)();
        let has_failed = outcome.is_err();
        report.push((step, start.elapsed(), outcome));
        if has_failed && !options.keep_going {
            break;
        }
    }
    println!();
    for (step, time, outcome) in &report {
        let word = if outcome.is_ok() { "ok" } else { "FAILED" };
        println!("{:<12} {word:<6} {:>7.1} s", step.name, time.as_secs_f64());
    }
    let total: Duration = report.iter().map(|(_, time, _)| time).sum();
    println!("all steps           {:>7.1} s", total.as_secs_f64());
    let warnings =
        report.iter().filter_map(|(step, time, _)| excess(step.name, *time, step.budget));
    for warning in warnings.chain(excess("all steps", total, budget)) {
        println!("{warning}");
    }
    let failures: Vec<_> = report
        .into_iter()
        .filter_map(|(step, _, outcome)| {
            outcome.err().map(|problem| format!("{}: {problem}", step.name))
        })
        .collect();
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

/// Returns a warning if a time is longer than a budget in seconds.
fn excess(name: &str, time: Duration, budget: u64) -> Option<String> {
    let seconds = time.as_secs_f64();
    (time > Duration::from_secs(budget))
        .then(|| format!("warning: {name} took {seconds:.0} s, but its budget is {budget} s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_of_all_steps_fit_into_the_budget_of_ci() {
        let sum: u64 = STEPS.iter().map(|step| step.budget).sum();
        assert!(sum <= BUDGET, "{sum} s");
    }

    #[test]
    fn step_that_exceeds_its_budget_gives_a_warning() {
        let warning = excess("test", Duration::from_millis(9_600), 9);
        assert_eq!(warning.as_deref(), Some("warning: test took 10 s, but its budget is 9 s"));
        assert_eq!(excess("test", Duration::from_secs(9), 9), None);
    }
}
