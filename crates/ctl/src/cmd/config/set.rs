//! `skep config set`: changes a setting of the cluster, immediately on all nodes.

use super::{in_unit, parse};
use crate::access::ClusterArgs;
use crate::help::{Example, examples};
use crate::output::print;
use crate::values;
use serde::Serialize;
use skep_cluster::settings::Setting;
use skep_types::Result;
use skep_wire::management::{ChangeSetting, ChangeSettingReply};

const EXAMPLES: &[Example] = &[
    ("new files get chunks of 1 MiB", "skep config set chunk-size 1MiB"),
    ("check whether a value is valid", "skep config set lease 20s --dry-run"),
    ("restore the default", "skep config set chunk-size default"),
];

/// Change a setting; services and clients apply it immediately, without a restart
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct SetArgs {
    #[command(flatten)]
    query: ClusterArgs,
    /// Check the value and show the change; change nothing
    #[arg(long = "dry-run")]
    is_dry_run: bool,
    /// Name of the setting
    #[arg(value_parser = values::settings())]
    name: String,
    /// New value: a time as in `500 ms` or `5s`, a size as in `1MiB`, a number, a word, or
    /// `default` for the value in a new cluster
    value: String,
}

/// The word that sets a setting back to its value in a new cluster.
const DEFAULT: &str = "default";

/// A changed setting, as JSON. With `--dry-run`, the change that the command would make.
#[derive(Debug, Serialize)]
struct SettingChange {
    name: &'static str,
    before: u64,
    value: u64,
    /// The name of the new value. `None` if the setting is a number.
    word: Option<&'static str>,
    unit: &'static str,
    is_dry_run: bool,
    map_version: u64,
}

pub(crate) fn run(args: SetArgs) -> Result<()> {
    let SetArgs { query, is_dry_run, name, value } = args;
    let setting = Setting::named(&name)?;
    let value = match value.as_str() {
        DEFAULT => setting.default(),
        value => parse(setting, value)?,
    };
    let access = query.access(None)?;
    let request = ChangeSetting { name, value, is_dry_run };
    let ChangeSettingReply { before, version } =
        crate::cmd::block_on(async move { access.ask(&request).await })?;
    let changed = SettingChange {
        name: setting.name,
        before,
        value,
        word: setting.word(value),
        unit: setting.unit.word(),
        is_dry_run,
        map_version: version.raw(),
    };
    print(&changed, |it| {
        let (before, value) = (in_unit(setting, it.before), in_unit(setting, it.value));
        match (it.before == it.value, is_dry_run) {
            (true, _) => format!("{} is {value} already.", it.name),
            (false, true) => {
                format!("{} would be {value}; the current value is {before}.", it.name)
            }
            (false, false) => format!("{} is {value} now; the former value was {before}.", it.name),
        }
    })
}
