//! `skep`: the services, mounts and the administration of a cluster, in one program.
//!
//! Owns: the command line, tables and JSON, and the supervision of a whole cluster on one host
//! (`local`). Every verb has a file in `cmd`; it parses and prints, and leaves the work to the
//! libraries.

mod access;
mod cli;
mod cmd;
mod failure;
mod help;
mod local;
mod manual;
mod output;
mod uses;
mod view;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    if arguments.next().is_some_and(|program| cmd::mount::helper::is_called_so(&program)) {
        return cmd::mount::helper::run(arguments);
    }
    let cli = match help::parse() {
        Ok(cli) => cli,
        Err(error) => return failure::report_usage(&error),
    };
    output::choose(cli.output);
    cmd::run(cli).unwrap_or_else(|error| failure::report(&error))
}
