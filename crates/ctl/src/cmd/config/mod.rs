//! Subcommands of `skep config`, and the functions of these subcommands that parse and show
//! settings of the cluster.

mod get;
mod list;
mod set;

use crate::cmd::done;
use clap::Subcommand;
use serde::Serialize;
use skep_cluster::settings::{Setting, Unit};
use skep_service::{ByteSize, Interval};
use skep_types::{ClusterMap, Error, ErrorCode, Result};
use std::process::ExitCode;
use std::time::Duration;

/// Show and change settings of the whole cluster, in effect on all nodes immediately
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigVerb {
    List(list::ListArgs),
    Get(get::GetArgs),
    Set(set::SetArgs),
}

impl ConfigVerb {
    /// Runs the chosen subcommand.
    pub(super) fn run(self) -> Result<ExitCode> {
        match self {
            Self::List(args) => done(list::run(args)),
            Self::Get(args) => done(get::run(args)),
            Self::Set(args) => done(set::run(args)),
        }
    }
}

/// A setting of the cluster, as JSON.
#[derive(Debug, Serialize)]
struct SettingLine {
    name: &'static str,
    value: u64,
    default: u64,
    /// The name of the setting's value. `None` if the setting is a number.
    word: Option<&'static str>,
    /// The names of all possible values, in ascending order of the values. Empty if the setting is
    /// a number.
    words: Vec<&'static str>,
    unit: &'static str,
    min: u64,
    max: u64,
    is_power_of_two: bool,
    meaning: &'static str,
    #[serde(skip)]
    shown: &'static Setting,
}

fn line(setting: &'static Setting, map: &ClusterMap) -> SettingLine {
    SettingLine {
        name: setting.name,
        value: setting.value(map),
        default: setting.default(),
        word: setting.word(setting.value(map)),
        words: match setting.unit {
            Unit::Choice(words) => words.iter().map(|(word, _)| *word).collect(),
            _ => Vec::new(),
        },
        unit: setting.unit.word(),
        min: setting.min,
        max: setting.max,
        is_power_of_two: setting.is_power_of_two,
        meaning: setting.meaning,
        shown: setting,
    }
}

/// Returns the value of a setting as text for people: the name of the value, or the number with its
/// unit.
fn in_unit(setting: &Setting, value: u64) -> String {
    match setting.unit {
        Unit::Milliseconds => Interval(Duration::from_millis(value)).to_string(),
        Unit::Bytes => ByteSize(value).to_string(),
        Unit::Targets if value == 1 => "1 target".into(),
        Unit::Targets => format!("{value} targets"),
        Unit::Files if value == 1 => "1 file".into(),
        Unit::Files => format!("{value} files"),
        Unit::Percent => format!("{value} %"),
        Unit::Level => value.to_string(),
        Unit::Choice(_) => setting.word(value).unwrap_or("unknown").to_owned(),
    }
}

/// Parses the value of a setting: a number with its unit, or a name.
fn parse(setting: &Setting, text: &str) -> Result<u64> {
    let wrong = |what: String| {
        Error::new(
            ErrorCode::InvalidArgument,
            format!("cannot change the setting {}: {what}", setting.name),
        )
    };
    match setting.unit {
        Unit::Milliseconds => {
            let interval: Interval = text.parse().map_err(wrong)?;
            Ok(u64::try_from(interval.0.as_millis()).unwrap_or(u64::MAX))
        }
        Unit::Bytes => text.parse::<ByteSize>().map(|size| size.0).map_err(wrong),
        Unit::Choice(words) => match words.iter().find(|(word, _)| *word == text) {
            Some((_, number)) => Ok(*number),
            None => {
                let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
                Err(wrong(format!("invalid value '{text}': expected one of {}", words.join(", "))))
            }
        },
        Unit::Targets | Unit::Files | Unit::Percent | Unit::Level => {
            let number = match setting.unit {
                Unit::Percent => text.strip_suffix('%').unwrap_or(text).trim_end(),
                _ => text,
            };
            number.parse().map_err(|_| {
                wrong(format!(
                    "invalid value '{text}': expected a number from {} to {}",
                    setting.min, setting.max
                ))
            })
        }
    }
}
