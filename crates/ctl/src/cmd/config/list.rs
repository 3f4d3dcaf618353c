//! `skep config list`: lists the current settings of the cluster. The module also prints the output
//! of `skep config get`.

use super::{SettingLine, in_unit, line};
use crate::access::ClusterArgs;
use crate::help::{Example, examples};
use crate::output::{print, render, table};
use comfy_table::ContentArrangement;
use skep_cluster::settings::{SETTINGS, Setting};
use skep_types::Result;

const EXAMPLES: &[Example] = &[("list all settings", "skep config list")];

/// Width of the table in characters.
const TABLE_WIDTH: u16 = 100;

/// List all settings with their value, default, range and meaning
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct ListArgs {
    #[command(flatten)]
    query: ClusterArgs,
}

pub(crate) fn run(args: ListArgs) -> Result<()> {
    show(args.query, None)
}

/// Prints the setting `name`, or all settings if `name` is `None`.
pub(super) fn show(query: ClusterArgs, name: Option<&str>) -> Result<()> {
    let settings = match name {
        Some(name) => std::slice::from_ref(Setting::named(name)?),
        None => SETTINGS,
    };
    let access = query.access(None)?;
    let map = crate::cmd::block_on(async move { access.map().await })?;
    let lines: Vec<_> = settings.iter().map(|setting| line(setting, &map)).collect();
    match (&lines[..], name) {
        ([one], Some(_)) => print(one, |one| as_table(std::slice::from_ref(one))),
        (all, _) => print(&all, |all| as_table(all)),
    }
}

fn as_table(lines: &[SettingLine]) -> String {
    let mut shown = table(&["NAME", ">VALUE", ">DEFAULT", "RANGE", "MEANING"]);
    for line in lines {
        let show = |value| in_unit(line.shown, value);
        let range = match (line.is_power_of_two, &line.words[..]) {
            (true, _) => format!("{} to {}, powers of two", show(line.min), show(line.max)),
            (false, []) => format!("{} to {}", show(line.min), show(line.max)),
            (false, words) => words.join(", "),
        };
        shown.add_row([
            line.name.to_owned(),
            show(line.value),
            show(line.default),
            range,
            line.meaning.to_owned(),
        ]);
    }
    // If the meaning of a setting is longer than the column, the table breaks the meaning into
    // lines.
    shown.set_content_arrangement(ContentArrangement::Dynamic).set_width(TABLE_WIDTH);
    render(&shown)
}
