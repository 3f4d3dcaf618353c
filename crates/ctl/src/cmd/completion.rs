//! `skep completion`: prints a completion script for a shell.

use crate::help::{Example, examples};
use clap::Command;
use skep_types::Result;

const EXAMPLES: &[Example] = &[
    (
        "print a script for bash; save it for all users as \
         /usr/share/bash-completion/completions/skep",
        "skep completion bash",
    ),
    ("print a script for zsh; save it as _skep in a directory of $fpath", "skep completion zsh"),
    (
        "print a script for fish; save it as ~/.config/fish/completions/skep.fish",
        "skep completion fish",
    ),
];

/// Print a completion script for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct CompletionArgs {
    /// The shell that will load the script
    shell: clap_complete::Shell,
}

pub(crate) fn run(args: &CompletionArgs, mut command: Command) -> Result<()> {
    let CompletionArgs { shell } = args;
    let mut script = Vec::new();
    clap_complete::generate(*shell, &mut command, "skep", &mut script);
    crate::output::say(String::from_utf8_lossy(&script).trim_end())
}
