//! Verbs of `skep config`: settings of the cluster, and how they are shown.

pub(super) mod list;
pub(super) mod set;

use serde::Serialize;
use skep_cluster::settings::{Setting, Unit};
use skep_service::{ByteSize, Interval};
use skep_types::{ClusterMap, Error, ErrorCode, Result};
use std::time::Duration;

/// A setting as it is shown.
#[derive(Debug, Serialize)]
struct SettingLine {
    name: &'static str,
    value: u64,
    default: u64,
    unit: &'static str,
    min: u64,
    max: u64,
    is_power_of_two: bool,
    meaning: &'static str,
    #[serde(skip)]
    shown: Unit,
}

fn line(setting: &Setting, map: &ClusterMap) -> SettingLine {
    SettingLine {
        name: setting.name,
        value: setting.value(map),
        default: setting.default(),
        unit: setting.unit.word(),
        min: setting.min,
        max: setting.max,
        is_power_of_two: setting.is_power_of_two,
        meaning: setting.meaning,
        shown: setting.unit,
    }
}

/// A number with its unit, for people.
fn show(unit: Unit, value: u64) -> String {
    match unit {
        Unit::Milliseconds => Interval(Duration::from_millis(value)).to_string(),
        Unit::Bytes => ByteSize(value).to_string(),
        Unit::Targets if value == 1 => "1 target".into(),
        Unit::Targets => format!("{value} targets"),
        Unit::Level => value.to_string(),
    }
}

/// Reads a number with its unit as people write it.
fn parse(setting: &Setting, text: &str) -> Result<u64> {
    let wrong =
        |what: String| Error::new(ErrorCode::InvalidArgument, format!("{}: {what}", setting.name));
    match setting.unit {
        Unit::Milliseconds => {
            let interval: Interval = text.parse().map_err(wrong)?;
            Ok(u64::try_from(interval.0.as_millis()).unwrap_or(u64::MAX))
        }
        Unit::Bytes => text.parse::<ByteSize>().map(|size| size.0).map_err(wrong),
        Unit::Targets | Unit::Level => text.parse().map_err(|_| {
            wrong(format!("'{text}' is no number; it is from {} to {}", setting.min, setting.max))
        }),
    }
}
