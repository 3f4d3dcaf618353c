//! `skep completion`: a script for a shell.

use skep_types::Result;

pub(super) fn run(shell: clap_complete::Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut crate::help::command(), "skep", &mut script);
    crate::output::say(String::from_utf8_lossy(&script).trim_end())
}
