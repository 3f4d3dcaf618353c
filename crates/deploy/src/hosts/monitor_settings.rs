//! The entry `monitor` of the hosts file: whether the cluster has a monitor, and its settings.
//!
//! The module checks only the settings on which a deployment depends. `skep deploy` checks all
//! settings in the same way as the monitor.

use super::Role;
use toml::{Table, Value};

/// Returns whether the cluster has a monitor, and the settings of the monitor.
pub(super) fn read(entry: Option<Value>, problems: &mut Vec<String>) -> (bool, Table) {
    let settings = match entry {
        None => return (true, Table::new()),
        Some(Value::Boolean(is_wanted)) => return (is_wanted, Table::new()),
        Some(Value::Table(settings)) => settings,
        Some(_) => {
            problems.push(
                "invalid monitor: expected true, false, or a table [monitor] with settings of the \
                 monitor"
                    .into(),
            );
            return (true, Table::new());
        }
    };
    if settings.contains_key("directory") {
        problems.push(
            "monitor.directory: the deployment sets the directory of the monitor; remove this \
             setting"
                .into(),
        );
    }
    // A deployment checks that this port is free, and waits for this port when it starts the
    // monitor.
    let port = format!(":{}", Role::Monitor.port().unwrap_or_default());
    let is_right = |listen: &Value| listen.as_str().is_some_and(|it| it.ends_with(&port));
    if let Some(listen) = settings.get("listen").filter(|it| !is_right(it)) {
        problems.push(format!(
            "invalid monitor.listen {listen}: expected an address with the port of the monitor, \
             such as \"0.0.0.0{port}\""
        ));
    }
    if !settings.iter().all(|(key, value)| is_one_line(key) && has_only_lines(value)) {
        problems.push(
            "invalid table [monitor]: a setting has a line break or another control character; \
             remove this character"
                .into(),
        );
    }
    (true, settings)
}

/// Whether a script can contain a text as a part of a line.
fn is_one_line(text: &str) -> bool {
    !text.chars().any(char::is_control)
}

/// Whether a script can contain each text in a value as a part of a line.
fn has_only_lines(value: &Value) -> bool {
    match value {
        Value::String(text) => is_one_line(text),
        Value::Array(items) => items.iter().all(has_only_lines),
        Value::Table(table) => table.iter().all(|(key, it)| is_one_line(key) && has_only_lines(it)),
        _ => true,
    }
}
