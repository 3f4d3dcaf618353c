//! `skep tune undo`: restores the settings that were in effect before `skep tune apply`.

use super::args::{RootArgs, as_text, exit_code};
use crate::help::{Example, examples};
use crate::output::print;
use skep_tune::changes::undo;
use skep_types::Result;
use std::process::ExitCode;

const EXAMPLES: &[Example] = &[("restore all previous values", "skep tune undo")];

/// Restore the exact settings from before `skep tune apply`, even after reboots
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct UndoArgs {
    #[command(flatten)]
    root: RootArgs,
}

pub(crate) fn run(args: &UndoArgs) -> Result<ExitCode> {
    let outcome = undo(&args.root.tree()?)?;
    print(&outcome, |outcome| as_text(outcome, "restored"))?;
    Ok(exit_code(&outcome))
}
