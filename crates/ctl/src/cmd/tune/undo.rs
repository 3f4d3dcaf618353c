//! `skep tune undo`: restores the settings that were in effect before `skep tune apply`.

use super::args::{RootArgs, as_text, exit_code};
use crate::help::{Example, examples};
use crate::output::print;
use skep_tune::changes::undo;
use skep_types::Result;
use std::process::ExitCode;

const EXAMPLES: &[Example] = &[
    ("restore all previous values", "skep tune undo"),
    ("give up the values that the kernel does not accept any more", "skep tune undo --forget"),
];

/// Restore the exact settings from before `skep tune apply`, even after reboots. If the kernel
/// refuses a value, the exit code is 6, and the value stays in the record
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct UndoArgs {
    /// Also remove the values that cannot be restored from the record
    #[arg(long)]
    forget: bool,
    #[command(flatten)]
    root: RootArgs,
}

pub(crate) fn run(args: &UndoArgs) -> Result<ExitCode> {
    let outcome = undo(&args.root.tree()?, args.forget)?;
    print(&outcome, |outcome| {
        let hint = match outcome.failures.is_empty() {
            true => "",
            false => "`skep tune undo --forget` removes the failed values from the record\n",
        };
        as_text(outcome, "restored") + hint
    })?;
    Ok(exit_code(&outcome))
}
