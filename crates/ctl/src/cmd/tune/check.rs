//! `skep tune check`: compares the kernel settings of this host with the rules for its roles.

use super::args::ScopeArgs;
use super::peers;
use crate::help::{Example, examples};
use crate::output::{print, render, table};
use serde::Serialize;
use skep_tune::check::{Advice, Finding, advice, check};
use skep_tune::{Rules, acceleration, interrupts, numa};
use skep_types::Result;
use std::fmt::Write;
use std::process::ExitCode;

const EXAMPLES: &[Example] = &[
    (
        "check a storage server with two targets",
        "skep tune check --role storage --target /data/t1 --target /data/t2",
    ),
    (
        "check a client, and show all rules, including those that pass",
        "skep tune check --role client --all",
    ),
    (
        "also check that large packets arrive at two servers",
        "skep tune check --role client --peer s1,s2",
    ),
];

/// Compare the settings of this host with the rules for its roles. Exit code 1 means that a value
/// deviates
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct CheckArgs {
    /// Also show the values that do not deviate, and advice on the creation of file systems
    #[arg(long)]
    all: bool,
    /// Other hosts: check whether packets of the MTU of this host's interface arrive there
    #[arg(long = "peer", value_delimiter = ',', value_name = "HOSTS", conflicts_with = "root")]
    peers: Vec<String>,
    #[command(flatten)]
    scope: ScopeArgs,
}

/// The JSON output: the result of the check.
#[derive(Debug, Serialize)]
struct CheckReport {
    checked: usize,
    deviations: usize,
    findings: Vec<Finding>,
    advice: Vec<Advice>,
}

pub(crate) fn run(args: &CheckArgs) -> Result<ExitCode> {
    let (tree, scope) = args.scope.resolve(true)?;
    let rules = Rules::built_in();
    let mut findings = check(&tree, &rules, &scope);
    findings.extend(numa::findings(&tree, &scope));
    findings.extend(interrupts::findings(&tree, &scope));
    findings.extend(acceleration::findings(&tree, &scope));
    findings.extend(peers::findings(&args.peers)?);
    let (checked, deviations) = (findings.len(), findings.iter().filter(|it| !it.passes).count());
    findings.retain(|it| args.all || !it.passes);
    let advice = if args.all { advice(&rules, &scope) } else { Vec::new() };
    print(&CheckReport { checked, deviations, findings, advice }, as_text)?;
    Ok(if deviations == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn as_text(report: &CheckReport) -> String {
    let mut text = String::new();
    if !report.findings.is_empty() {
        let mut shown = table(&["Rule", "File", "Is", "Should be", "Apply"]);
        for it in &report.findings {
            let apply = match (it.passes, it.can_apply, it.risk.is_empty()) {
                (true, ..) => "-",
                (_, false, _) => "by hand",
                (_, _, true) => "yes",
                _ => "--only",
            };
            let should_be = format!("{}{}", it.test.words(), it.should_be);
            shown.add_row([it.rule.as_str(), &it.file, &it.is, &should_be, apply]);
        }
        text = render(&shown) + "\n";
    }
    for it in report.findings.iter().filter(|it| !it.passes) {
        let _ = writeln!(text, "{}: {} ({})", it.rule, it.why, it.source);
        if !it.risk.is_empty() {
            let _ = writeln!(text, "  risk: {}", it.risk);
        }
    }
    for it in &report.advice {
        let _ = writeln!(text, "{}: {}\n  {} ({})", it.rule, it.command, it.why, it.source);
    }
    let _ =
        writeln!(text, "{} of {} values deviate from the rules", report.deviations, report.checked);
    text
}
