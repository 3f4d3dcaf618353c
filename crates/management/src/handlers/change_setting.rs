//! `ChangeSetting`: changes one setting of the cluster.

use crate::authority::Authority;
use skep_cluster::RequestId;
use skep_cluster::settings::{Setting, Unit};
use skep_types::Result;
use skep_wire::management::{ChangeSetting, ChangeSettingReply};

pub(super) async fn handle(
    authority: &Authority,
    id: RequestId,
    request: ChangeSetting,
) -> Result<ChangeSettingReply> {
    let ChangeSetting { name, value, is_dry_run } = request;
    let setting = Setting::named(&name)?;
    let command = setting.change(value)?;
    let outcome = match is_dry_run {
        true => authority.check(&command)?,
        false => authority.command(id, command).await?,
    };
    let before = outcome.before;
    if outcome.changed && !is_dry_run {
        let show = |value: u64| match setting.word(value) {
            Some(word) => word.to_owned(),
            None if value == 1 && setting.unit == Unit::Targets => "1 target".to_owned(),
            None if value == 1 && setting.unit == Unit::Files => "1 file".to_owned(),
            None => format!("{value} {}", setting.unit.word()),
        };
        let (before, value) = (show(before), show(value));
        tracing::info!("setting {name} was changed from {before} to {value}");
    }
    Ok(ChangeSettingReply { before, version: authority.map().version })
}
