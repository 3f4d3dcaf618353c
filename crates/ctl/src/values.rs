//! Values that shell completion and the help text suggest for arguments. The parser also accepts
//! any other value. If such a value is invalid, the command reports an error that names the object
//! and the possible values, which the parser cannot name.

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Arg, Command};
use skep_cluster::settings::SETTINGS;
use skep_types::pattern::Chooser;
use std::ffi::OsStr;

/// A parser that accepts any text and suggests some values. A function computes these values on
/// demand, because most commands do not need the values.
#[derive(Debug, Clone)]
pub(crate) struct Known(fn() -> Vec<&'static str>);

impl TypedValueParser for Known {
    type Value = String;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new((self.0)().into_iter().map(PossibleValue::new)))
    }
}

/// Suggests the names of the cluster's settings.
pub(crate) fn settings() -> Known {
    Known(|| SETTINGS.iter().map(|setting| setting.name).collect())
}

/// Suggests the placement policies, which choose the targets of new files.
pub(crate) fn choosers() -> Known {
    Known(|| Chooser::ALL.iter().map(|(_, word)| *word).collect())
}

/// Suggests the transports of a mount.
pub(crate) fn transports() -> Known {
    Known(|| vec!["auto", "uring", "device"])
}

/// Suggests log levels.
pub(crate) fn levels() -> Known {
    Known(|| vec!["error", "warn", "info", "debug", "trace"])
}

/// Suggests log levels for a running service, including `default`.
pub(crate) fn levels_and_default() -> Known {
    Known(|| vec!["error", "warn", "info", "debug", "trace", "default"])
}

/// Suggests the predefined shapes of labs.
pub(crate) fn shapes() -> Known {
    Known(|| skep_lab::shapes().iter().map(|shape| shape.name).collect())
}

/// Suggests the predefined plans of studies.
pub(crate) fn plans() -> Known {
    Known(|| skep_study::plans::names().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_fuse::TransportChoice;

    #[test]
    fn commands_accept_all_suggested_values() {
        for word in (transports().0)() {
            word.parse::<TransportChoice>().unwrap();
        }
        for word in (choosers().0)() {
            assert!(Chooser::named(word).is_some(), "{word}");
        }
        let all = skep_study::plans::all();
        let all: Vec<_> = all.iter().map(|plan| plan.name.as_str()).collect();
        assert_eq!((plans().0)(), all);
    }
}
