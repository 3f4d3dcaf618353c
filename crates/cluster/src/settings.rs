//! The settings of the cluster and the commands that change them. The module `table` has the table
//! of all settings, which `skep config` and management use.
//!
//! Management stores the settings. All nodes receive them with the cluster map, without a restart.

mod problems;
mod table;

pub(crate) use problems::problems;
pub use table::SETTINGS;

use crate::command::Command;
use skep_types::map::Policy;
use skep_types::{ClusterId, ClusterMap, Error, ErrorCode, Result};

/// The unit of a setting's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Milliseconds.
    Milliseconds,
    /// Bytes.
    Bytes,
    /// Number of targets.
    Targets,
    /// Number of files.
    Files,
    /// Percentage.
    Percent,
    /// Feature level.
    Level,
    /// One of several words. Each word has a number, which is the value.
    Choice(&'static [(&'static str, u64)]),
}

impl Unit {
    /// Returns the name of the unit: `ms`, `bytes`, `targets`, `files`, `percent`, `level` or
    /// `choice`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Milliseconds => "ms",
            Self::Bytes => "bytes",
            Self::Targets => "targets",
            Self::Files => "files",
            Self::Percent => "percent",
            Self::Level => "level",
            Self::Choice(_) => "choice",
        }
    }
}

/// A copy of the part of the cluster map that contains a setting. The copy has the new value, and
/// replaces that part of the map.
#[derive(Debug)]
pub(crate) enum Changed {
    /// The policy with the new value.
    Policy(Policy),
    /// The new feature level.
    FeatureLevel(u32),
}

/// The field of the cluster map that holds the value of a setting.
#[derive(Debug, Clone, Copy)]
enum Field {
    /// A field of the policy.
    Policy { get: fn(&Policy) -> u64, put: fn(&mut Policy, u64) },
    /// The feature level, which must never decrease.
    FeatureLevel,
}

/// One setting of the cluster.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// Name of the setting.
    pub name: &'static str,
    /// Unit of the value.
    pub unit: Unit,
    /// Minimum value.
    pub min: u64,
    /// Maximum value.
    pub max: u64,
    /// Whether the value must be a power of two.
    pub is_power_of_two: bool,
    /// Effect of the setting, for output.
    pub meaning: &'static str,
    field: Field,
}

/// Converts a value to 32 bits. The value must be within the range of its setting.
fn small(value: u64) -> u32 {
    u32::try_from(value).expect("the setting's range fits into 32 bits")
}

impl Setting {
    /// Returns the setting called `name`.
    ///
    /// # Errors
    /// Returns `InvalidArgument`, which lists all names, if there is no such setting.
    pub fn named(name: &str) -> Result<&'static Self> {
        // Patterns call this setting `count`, and options of `skep entry` call it `num-targets`.
        let name = match name {
            "num-targets" | "count" => "stripe-width",
            name => name,
        };
        SETTINGS.iter().find(|setting| setting.name == name).ok_or_else(|| {
            let names: Vec<_> = SETTINGS.iter().map(|setting| setting.name).collect();
            let what = format!("unknown setting '{name}': expected one of {}", names.join(", "));
            Error::new(ErrorCode::InvalidArgument, what)
        })
    }

    /// Returns the value of the setting in a cluster.
    pub fn value(&self, map: &ClusterMap) -> u64 {
        match self.field {
            Field::Policy { get, .. } => get(&map.policy),
            Field::FeatureLevel => u64::from(map.feature_level),
        }
    }

    /// Returns the value of the setting in a new cluster.
    pub fn default(&self) -> u64 {
        self.value(&ClusterMap::empty(ClusterId::new([0; 16])))
    }

    /// Returns the word for a value. `None` if the unit is not [`Unit::Choice`] or no word has this
    /// value.
    pub fn word(&self, value: u64) -> Option<&'static str> {
        let Unit::Choice(words) = self.unit else { return None };
        words.iter().find(|(_, number)| *number == value).map(|(word, _)| *word)
    }

    /// Returns the command that sets this setting to `value` and does not change the other
    /// settings.
    ///
    /// # Errors
    /// Returns `InvalidArgument`, which names the setting and its range, if `value` is out of
    /// range. Rules that depend on other settings or on the old value are checked only when the
    /// command is applied.
    pub fn change(&self, value: u64) -> Result<Command> {
        self.check(value).map_err(|what| Error::new(ErrorCode::InvalidArgument, what))?;
        Ok(Command::ChangeSetting { name: self.name.into(), value })
    }

    /// Returns a copy of the part of the cluster map that contains this setting, with the new
    /// `value`. Does not check rules that depend on other settings or on the old value.
    ///
    /// # Errors
    /// Returns `InvalidArgument` if `value` is out of range.
    pub(crate) fn put(&self, policy: &Policy, value: u64) -> Result<Changed> {
        self.check(value).map_err(|what| Error::new(ErrorCode::InvalidArgument, what))?;
        Ok(match self.field {
            Field::Policy { put, .. } => {
                let mut policy = policy.clone();
                put(&mut policy, value);
                Changed::Policy(policy)
            }
            Field::FeatureLevel => Changed::FeatureLevel(small(value)),
        })
    }

    fn check(&self, value: u64) -> std::result::Result<(), String> {
        let Self { name, unit, min, max, .. } = self;
        if let Unit::Choice(words) = unit
            && self.word(value).is_none()
        {
            let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
            return Err(format!(
                "{name}: invalid number {value}: expected one of {}",
                words.join(", ")
            ));
        }
        if !(*min..=*max).contains(&value) {
            // A level is a number without a unit.
            let unit =
                if *unit == Unit::Level { String::new() } else { format!(" {}", unit.word()) };
            return Err(format!("{name}: {value}{unit} is not between {min} and {max}{unit}"));
        }
        if self.is_power_of_two && !value.is_power_of_two() {
            let (below, above) = (value.next_power_of_two() / 2, value.next_power_of_two());
            let unit = unit.word();
            return Err(format!(
                "{name}: {value} {unit} is not a power of two; the nearest ones are {below} and \
                 {above}"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
