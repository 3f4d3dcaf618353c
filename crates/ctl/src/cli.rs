//! The definition of the whole command line: global options and the subcommand. Each command
//! declares its own arguments in `cmd`.

use crate::cmd::Verb;
use crate::output::OutputFormat;
use crate::table_layout::TableLayout;
use clap::{ArgMatches, Command, CommandFactory, FromArgMatches, Parser};

/// A parallel file system: many clients, many servers, one POSIX namespace.
#[derive(Debug, Parser)]
#[command(
    name = "skep",
    version = skep_service::PROGRAM_VERSION,
    propagate_version = true,
    max_term_width = 100
)]
pub(crate) struct Cli {
    /// Output format: a table for people, or JSON, CSV or XML for programs
    #[arg(long, value_enum, global = true, default_value = "table", value_name = "FORMAT")]
    pub(crate) output: OutputFormat,
    #[command(flatten)]
    pub(crate) tables: TableLayout,
    #[command(subcommand)]
    pub(crate) verb: Verb,
    /// The words of the command, joined by dashes, such as `skep-node-list`.
    #[arg(skip)]
    pub(crate) path: String,
}

/// Returns the definition of the command line with all commands.
pub(crate) fn command() -> Command {
    Cli::command()
}

/// Parses the arguments of this process.
///
/// # Errors
/// The error of the parser: an invalid argument, or the requested help or version text.
pub(crate) fn parse() -> Result<Cli, clap::Error> {
    let mut matches = command().try_get_matches()?;
    let path = path(&matches);
    let cli = Cli::from_arg_matches_mut(&mut matches);
    cli.map(|cli| Cli { path, ..cli }).map_err(|error| error.format(&mut command()))
}

/// Returns the names of the program and of the parsed commands, joined by dashes.
fn path(matches: &ArgMatches) -> String {
    let mut path = String::from("skep");
    let mut below = matches.subcommand();
    while let Some((name, matches)) = below {
        path = path + "-" + name;
        below = matches.subcommand();
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::help::TITLE;

    fn check(command: &Command, path: &str) -> usize {
        let visible = || command.get_subcommands().filter(|sub| !sub.is_hide_set());
        let below = visible().map(|sub| check(sub, &format!("{path} {}", sub.get_name()))).sum();
        if command.is_subcommand_required_set() {
            return below;
        }
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        assert!(help.starts_with(TITLE), "{path} has no example");
        let lines: Vec<_> = help.lines().filter(|line| !line.starts_with("  # ")).skip(1).collect();
        assert!(!lines.is_empty(), "{path} has no example");
        for line in lines.iter().map(|line| line.trim()) {
            assert!(line.starts_with(path), "{path}: {line}");
            Cli::try_parse_from(line.split(' ')).unwrap_or_else(|why| panic!("{line}: {why}"));
        }
        below + 1
    }

    #[test]
    fn command_path_has_the_names_of_all_subcommands() {
        let matches = command().try_get_matches_from(["skep", "node", "list"]).unwrap();
        assert_eq!(path(&matches), "skep-node-list");
    }

    #[test]
    fn every_command_has_examples_that_parse() {
        let count = check(&command(), "skep");
        assert!(count > 40, "{count} commands");
    }
}
