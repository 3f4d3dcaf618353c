//! `skep`: the services, the mount and the administration of a cluster, in one program.
//!
//! This crate contains the command line, the printed tables and JSON, and the supervision of a
//! whole cluster on one host (`local`). Each command has a file in `cmd`, which parses arguments
//! and prints results. Libraries do the work.

// These macros panic at a closed pipe and at a full disk. Use `output::say` and
// `output::say_aside`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod access;
mod account;
mod cli;
mod client_file;
mod cmd;
mod ending_signals;
mod entry_paths;
mod evictions;
mod failure;
mod group_files;
mod group_progress;
mod help;
mod helper_arguments;
mod host_users;
mod in_time;
mod learned_note;
mod local;
mod log_end;
mod monitor_address;
mod mount_process;
mod mount_result;
mod mounts;
mod near_misses;
mod output;
mod path_lookup;
mod program;
#[cfg(test)]
mod sizing_page;
mod slurm_job;
mod table_layout;
mod through_mount;
mod token_check;
mod tree_output;
mod tree_walk;
mod uses;
mod values;
mod view;
mod wait_chain;

use std::process::ExitCode;

fn main() -> ExitCode {
    // This variable is only for measurements of the cost of statistics
    // (docs/design/0012-metrics.md).
    if std::env::var_os(skep_metrics::STATISTICS_VARIABLE).is_some_and(|value| value == "off") {
        skep_metrics::switch_off();
    }
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_default();
    if program::is_mount_helper(&name) {
        program::set_process_name(program::MOUNT_PROCESS);
        return cmd::mount::helper::run(arguments);
    }
    if program::is_umount_helper(&name) {
        return cmd::umount::helper::run(arguments);
    }
    let cli = match cli::parse() {
        Ok(cli) => cli,
        Err(error) => return failure::report_usage(&error, &cli::command()),
    };
    output::choose(cli.output, cli.path);
    table_layout::choose(cli.tables);
    program::set_process_name(cli.verb.process_name());
    cli.verb.run(cli::command).unwrap_or_else(|error| failure::report(&error))
}
