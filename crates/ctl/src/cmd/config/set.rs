//! `skep config set`: gives a setting of the cluster another value, for everybody and at once.

use super::{parse, show};
use crate::access::ClusterArgs;
use crate::output::print;
use serde::Serialize;
use skep_cluster::settings::Setting;
use skep_types::Result;
use skep_wire::management::{ChangeSetting, ChangeSettingReply};

/// The word for the value that a setting has in a new cluster.
const DEFAULT: &str = "default";

/// What was changed, or would be.
#[derive(Debug, Serialize)]
struct Changed {
    name: &'static str,
    before: u64,
    value: u64,
    /// What stands for the value, if that is one of several words.
    word: Option<&'static str>,
    unit: &'static str,
    is_dry_run: bool,
    map_version: u64,
}

pub(crate) fn run(query: ClusterArgs, name: &str, value: &str, is_dry_run: bool) -> Result<()> {
    let setting = Setting::named(name)?;
    let value = match value {
        DEFAULT => setting.default(),
        value => parse(setting, value)?,
    };
    let access = query.access(None)?;
    let request = ChangeSetting { name: name.to_owned(), value, is_dry_run };
    let ChangeSettingReply { before, version } =
        super::super::block_on(async move { access.ask(&request).await })?;
    let changed = Changed {
        name: setting.name,
        before,
        value,
        word: setting.word(value),
        unit: setting.unit.word(),
        is_dry_run,
        map_version: version.raw(),
    };
    print(&changed, |it| {
        let (before, value) = (show(setting, it.before), show(setting, it.value));
        match (it.before == it.value, is_dry_run) {
            (true, _) => format!("{} is {value} already.", it.name),
            (false, true) => format!("{} would be {value}; it is {before}.", it.name),
            (false, false) => format!("{} is {value} now; it was {before}.", it.name),
        }
    })
}
