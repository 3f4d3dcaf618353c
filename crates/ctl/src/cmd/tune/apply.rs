//! `skep tune apply`: changes the kernel settings that deviate from the rules. The command first
//! records the current values.

use super::args::{ScopeArgs, as_text, exit_code};
use crate::help::{Example, examples};
use crate::output::{print, render, table};
use skep_tune::Rules;
use skep_tune::changes::{apply, planned};
use skep_tune::check::{Finding, check};
use skep_types::Result;
use std::process::ExitCode;

const EXAMPLES: &[Example] = &[
    (
        "list the changes, and change nothing",
        "skep tune apply --role storage --target /data/t1 --dry-run",
    ),
    ("change the settings of a storage server", "skep tune apply --role storage --target /data/t1"),
    (
        "apply one rule that has a risk",
        "skep tune apply --role storage --interface eth0 --only mtu",
    ),
];

/// Change the settings of this host that deviate from the rules, now and at each boot. The previous
/// values are recorded first; `skep tune undo` restores the former values. Exit code 6 means that
/// the kernel refused some values
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct ApplyArgs {
    /// Apply only these rules, even those with a risk
    #[arg(long, value_delimiter = ',', value_name = "RULES")]
    only: Vec<String>,
    /// List the changes, and make none
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    scope: ScopeArgs,
}

pub(crate) fn run(args: &ApplyArgs) -> Result<ExitCode> {
    let (tree, scope) = args.scope.resolve(false)?;
    let rules = Rules::built_in();
    rules.check_names(&args.only)?;
    let findings = check(&tree, &rules, &scope);
    let planned = planned(&findings, &args.only);
    if args.dry_run {
        print(&planned, |planned| dry_run(planned))?;
        return Ok(ExitCode::SUCCESS);
    }
    let outcome = apply(&tree, &planned)?;
    print(&outcome, |outcome| as_text(outcome, "changed"))?;
    Ok(exit_code(&outcome))
}

fn dry_run(planned: &[&Finding]) -> String {
    let mut shown = table(&["Rule", "File", "Is", "Would be"]);
    for it in planned {
        shown.add_row([&it.rule, &it.file, &it.is, &it.should_be]);
    }
    render(&shown)
}
