//! Examples of messages to a running process.

use crate::vectors::{Example, example};
use skep_wire::node::{LogLevel, SetLogLevel};

pub(super) fn examples() -> Vec<Example> {
    let set = SetLogLevel { level: Some("info,skep_storage=debug".into()) };
    let level = LogLevel { current: "info,skep_storage=debug".into(), configured: "info".into() };
    vec![example(&set, &level).request(&SetLogLevel { level: None })]
}
