//! The pages of docs/commands, which contain the help text of each command.

use clap::Command;

/// Width of the help text in columns. The width is fixed, because the width of a terminal must not
/// change the pages.
const PAGE_COLUMNS: usize = 100;

/// Returns a page for each command that can run without a subcommand. Each page is a pair of a name
/// and a text. In the name, dashes replace the spaces of the command.
pub(super) fn pages(command: Command) -> Vec<(String, String)> {
    let mut pages = Vec::new();
    let mut command = command.term_width(PAGE_COLUMNS).disable_help_subcommand(true);
    command.build();
    add_pages(&command, "skep", &mut pages);
    pages
}

fn add_pages(command: &Command, path: &str, pages: &mut Vec<(String, String)>) {
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        add_pages(sub, &format!("{path} {}", sub.get_name()), pages);
    }
    if command.is_subcommand_required_set() {
        return;
    }
    let help = command.clone().render_long_help().to_string();
    let help: String = help.lines().map(|line| line.trim_end().to_owned() + "\n").collect();
    let text = format!("# `{path}`\n\n```text\n{}\n```\n", help.trim_end());
    pages.push((path.replace(' ', "-"), text));
}
