//! `skep`: the services, mounts and the administration of a cluster, in one program.
//!
//! Owns: the command line, tables and JSON, and the supervision of a whole cluster on one host
//! (`local`). Every verb has a file in `cmd`; it parses and prints, and leaves the work to the
//! libraries.

mod access;
mod cli;
mod cmd;
mod local;
mod output;
mod uses;
mod view;

use clap::Parser;
use skep_types::ErrorCode;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    if arguments.next().is_some_and(|program| cmd::mount::helper::is_called_so(&program)) {
        return cmd::mount::helper::run(arguments);
    }
    let cli = cli::Cli::parse();
    match cmd::run(cli) {
        Ok(code) => code,
        Err(error) => {
            // The code is for scripts; people get the sentence.
            eprintln!("skep: {}", describe(&error));
            match error.code() {
                ErrorCode::Configuration | ErrorCode::InvalidArgument => ExitCode::from(2),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

fn describe(error: &skep_types::Error) -> String {
    match error.context() {
        "" => error.code().to_string(),
        context => context.to_owned(),
    }
}
