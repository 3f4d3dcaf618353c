//! `ChangeSetting`: changes one setting of the cluster.

use crate::authority::Authority;
use skep_cluster::settings::Setting;
use skep_types::Result;
use skep_wire::management::{ChangeSetting, ChangeSettingReply};

pub(super) fn handle(authority: &Authority, request: ChangeSetting) -> Result<ChangeSettingReply> {
    let ChangeSetting { name, value, is_dry_run } = request;
    let setting = Setting::named(&name)?;
    let map = authority.map();
    let before = setting.value(&map);
    let command = setting.change(&map, value)?;
    if is_dry_run {
        authority.check(&command)?;
    } else if authority.command(&command)?.changed {
        let show = |value: u64| match setting.word(value) {
            Some(word) => word.to_owned(),
            None => format!("{value} {}", setting.unit.word()),
        };
        let (before, value) = (show(before), show(value));
        tracing::info!("setting {name} was changed from {before} to {value}");
    }
    Ok(ChangeSettingReply { before, version: authority.map().version })
}
