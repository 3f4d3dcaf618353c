//! Configuration from the defaults, the TOML file and the command line. A later source in this list
//! overrides an earlier source. Each value has an origin, and one error reports all problems.
//!
//! A service's settings are one plain struct with `Default` and serde. A setting that may be unset
//! is an empty text or list, never an `Option`. So the serialized defaults contain every setting.

use crate::NodeSettings;
use serde::Serialize;
use serde::de::DeserializeOwned;
use skep_types::{Error, ErrorCode, Result};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use toml::{Table, Value};

/// Settings that have a file, a manual and defaults.
pub trait Manual: Serialize + DeserializeOwned + Default {
    /// Name of the command, such as `storage` in `skep storage`.
    const NAME: &'static str;
    /// The source text of this struct and of its nested structs. The doc comments in this source
    /// text are the manual.
    const SOURCES: &'static [&'static str];

    /// Returns a description of each invalid setting.
    fn problems(&self) -> Vec<String>;
}

/// The settings of one service.
pub trait Settings: Manual {
    /// Returns the settings that all services have in common.
    fn node(&self) -> &NodeSettings;
}

/// Loaded settings, with the origin of each value.
#[derive(Debug, Clone)]
pub struct Loaded<T> {
    /// The settings, checked by [`Manual::problems`].
    pub settings: T,
    values: Table,
    origins: BTreeMap<String, String>,
}

/// A value from the file or the command line, not checked yet.
struct SettingValue {
    key: String,
    value: Value,
    origin: String,
}

/// Loads settings from a TOML file and the command line. `overrides` are the settings of the
/// command line, as pairs of a dotted key and a value.
///
/// # Errors
/// `Configuration` with all problems, one per line: an unreadable file, unknown settings, values of
/// a wrong type, and the problems that [`Manual::problems`] returns.
pub fn load<T: Manual>(file: Option<&Path>, overrides: &[(String, String)]) -> Result<Loaded<T>> {
    load_from(file.map(|path| (path.display().to_string(), read(path))), overrides)
}

/// Checks the settings in a table in the same way as [`load`] checks the settings in a file. The
/// description of each problem with a setting begins with `origin`.
///
/// # Errors
/// `Configuration` with all problems, one per line: unknown settings, values of a wrong type, and
/// the problems that [`Manual::problems`] returns.
pub fn check<T: Manual>(table: Table, origin: &str) -> Result<()> {
    load_from::<T>(Some((origin.to_owned(), Ok(table))), &[]).map(drop)
}

/// Loads settings from a table and the command line. `table` is a pair. Its first part is the path
/// of the file, or another origin. Its second part is the table, or the reason why the file cannot
/// be read.
fn load_from<T: Manual>(
    table: Option<(String, std::result::Result<Table, String>)>,
    overrides: &[(String, String)],
) -> Result<Loaded<T>> {
    let mut values = defaults::<T>();
    let mut problems = Vec::new();
    let mut given = Vec::new();
    let mut is_readable = true;
    if let Some((origin, table)) = table {
        match table {
            Ok(table) => flatten("", &table, &values, &origin, &mut given),
            Err(problem) => {
                is_readable = false;
                problems.push(format!("{origin}: {problem}"));
            }
        }
    }
    for (key, text) in overrides {
        let value = from_text(find(&values, key), text);
        given.push(SettingValue { key: key.clone(), value, origin: "command line".into() });
    }
    let mut origins = BTreeMap::new();
    for SettingValue { key, value, origin } in given {
        // Checks each value separately, so that an invalid value does not hide the problems of
        // other values.
        let mut trial = values.clone();
        if !replace(&mut trial, &key, value) {
            problems.push(format!("{origin}: unknown setting `{key}`{}", hint(&values, &key)));
            continue;
        }
        match trial.clone().try_into::<T>() {
            Ok(_) => {
                values = trial;
                origins.insert(key, origin);
            }
            Err(error) => {
                let why = error.message().trim().to_owned();
                problems.push(format!("{origin}: `{key}`: {why}"));
            }
        }
    }
    complete_listen(&mut values, &defaults::<T>());
    let settings: T = values.clone().try_into().map_err(|error: toml::de::Error| {
        Error::new(ErrorCode::Configuration, error.message().to_owned())
    })?;
    // Do not report missing values if the file cannot be read, because the unread file may contain
    // these values.
    if is_readable {
        problems.extend(settings.problems());
    }
    if problems.is_empty() {
        return Ok(Loaded { settings, values, origins });
    }
    let count = problems.len();
    let list = problems.join("\n  ");
    Err(Error::new(
        ErrorCode::Configuration,
        format!(
            "{count} problem{} with the configuration of `skep {}`:\n  {list}\n\
             `skep {} --print-sample` shows all settings",
            if count == 1 { "" } else { "s" },
            T::NAME,
            T::NAME
        ),
    ))
}

impl<T: Manual> Loaded<T> {
    /// Returns all values and their origins as TOML, for `--print-config`.
    pub fn print(&self) -> String {
        let mut lines = Vec::new();
        leaves("", &self.values, &mut |key, value| {
            let origin = self.origins.get(key).map_or("default", String::as_str);
            lines.push((format!("{key} = {value}"), origin.to_owned()));
        });
        let width = lines.iter().map(|(line, _)| line.len()).max().unwrap_or(0);
        lines.iter().fold(String::new(), |mut text, (line, origin)| {
            let _ = writeln!(text, "{line:width$}  # {origin}");
            text
        })
    }
}

/// If `node.listen` has no port, adds the default port of the service.
fn complete_listen(values: &mut Table, default: &Table) {
    let port = |table: &Table| -> Option<u16> {
        let listen = find(table, "node.listen")?.as_str()?;
        listen.rsplit_once(':')?.1.parse().ok()
    };
    let listen = find(values, "node.listen").and_then(Value::as_str).filter(|it| !it.is_empty());
    if let (Some(listen), Some(port)) = (listen, port(default)) {
        let complete = crate::advertise::with_port(listen, port);
        replace(values, "node.listen", Value::String(complete));
    }
}

/// Returns the defaults of all settings.
pub(crate) fn defaults<T: Manual>() -> Table {
    Table::try_from(T::default()).expect("settings are plain structs of plain values")
}

fn read(path: &Path) -> std::result::Result<Table, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    text.parse().map_err(|error: toml::de::Error| error.to_string().trim().to_owned())
}

/// Lists the values of a table by dotted keys. If the file has a table where a plain value is
/// expected, lists the table as a value, which the caller then refuses.
fn flatten(
    prefix: &str,
    table: &Table,
    defaults: &Table,
    origin: &str,
    given: &mut Vec<SettingValue>,
) {
    for (name, value) in table {
        let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        match (value, defaults.get(name)) {
            (Value::Table(inner), Some(Value::Table(known))) => {
                flatten(&key, inner, known, origin, given);
            }
            _ => given.push(SettingValue { key, value: value.clone(), origin: origin.to_owned() }),
        }
    }
}

pub(crate) fn leaves(prefix: &str, table: &Table, visit: &mut impl FnMut(&str, &Value)) {
    // TOML requires plain values before tables.
    for wants_tables in [false, true] {
        for (name, value) in table.iter().filter(|(_, value)| value.is_table() == wants_tables) {
            let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
            match value {
                Value::Table(inner) => leaves(&key, inner, visit),
                value => visit(&key, value),
            }
        }
    }
}

fn find<'a>(table: &'a Table, key: &str) -> Option<&'a Value> {
    match key.split_once('.') {
        None => table.get(key),
        Some((first, rest)) => find(table.get(first)?.as_table()?, rest),
    }
}

/// Replaces the value of a dotted key. Returns `false` if the key does not exist.
fn replace(table: &mut Table, key: &str, value: Value) -> bool {
    match key.split_once('.') {
        None => match table.get_mut(key) {
            Some(old) if !old.is_table() => {
                *old = value;
                true
            }
            _ => false,
        },
        Some((first, rest)) => match table.get_mut(first) {
            Some(Value::Table(inner)) => replace(inner, rest, value),
            _ => false,
        },
    }
}

/// Converts a value from the command line. `known` is the setting's default, whose type determines
/// the syntax: a text setting needs no quotes, and the items of a list may be separated by commas.
fn from_text(known: Option<&Value>, text: &str) -> Value {
    let parsed = || format!("v = {text}").parse::<Table>().ok()?.remove("v");
    match known {
        Some(Value::String(_)) => Value::String(text.into()),
        Some(Value::Array(_)) => parsed().filter(Value::is_array).unwrap_or_else(|| {
            let items = text.split(',').filter(|item| !item.is_empty());
            Value::Array(items.map(|item| Value::String(item.trim().into())).collect())
        }),
        _ => parsed().unwrap_or_else(|| Value::String(text.into())),
    }
}

/// Returns a hint that names a setting whose last word equals or resembles the last word of `key`.
/// The hint is empty if no setting matches.
fn hint(values: &Table, key: &str) -> String {
    let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
    let last_word = last(key);
    let mut similar = None;
    leaves("", values, &mut |known, _| {
        let name = last(known);
        if name == last_word
            || (last_word.len() > 3 && (name.contains(&last_word) || last_word.contains(&name)))
        {
            similar.get_or_insert_with(|| known.to_owned());
        }
    });
    similar.map_or_else(String::new, |known| format!("; did you mean `{known}`?"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{ByteSize, Interval};
    use serde::Deserialize;
    use std::time::Duration;

    #[derive(Debug, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Sample {
        width: u16,
        inner: Nested,
        names: Vec<String>,
    }

    #[derive(Debug, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Nested {
        size: ByteSize,
        wait: Interval,
    }

    impl Default for Sample {
        fn default() -> Self {
            let inner = Nested { size: ByteSize(1 << 20), wait: Interval(Duration::from_secs(1)) };
            Self { width: 4, inner, names: Vec::new() }
        }
    }

    impl Manual for Sample {
        const NAME: &'static str = "sample";
        const SOURCES: &'static [&'static str] = &[];
        fn problems(&self) -> Vec<String> {
            if self.width == 0 { vec!["`width` is zero".into()] } else { Vec::new() }
        }
    }

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    fn set(key: &str, value: &str) -> (String, String) {
        (key.into(), value.into())
    }

    #[test]
    fn command_line_overrides_file_and_file_overrides_defaults() {
        let file = file("width = 8\n[inner]\nsize = \"2 MiB\"\n");
        let overrides = [set("width", "9"), set("names", "a, b")];
        let loaded: Loaded<Sample> = load(Some(file.path()), &overrides).unwrap();
        let Sample { width, inner, names } = &loaded.settings;
        assert_eq!((*width, inner.size.0, inner.wait.0.as_secs()), (9, 2 << 20, 1));
        assert_eq!(names, &["a", "b"]);
        let text = loaded.print();
        let line = |key: &str| text.lines().find(|line| line.starts_with(key)).unwrap().to_owned();
        assert!(line("width = 9").ends_with("# command line"));
        assert!(line("inner.size = \"2 MiB\"").ends_with(&file.path().display().to_string()));
        assert!(line("inner.wait = \"1 s\"").ends_with("# default"));
        // The output must be valid TOML.
        text.parse::<Table>().unwrap();
    }

    #[test]
    fn configuration_error_lists_all_problems_of_the_settings() {
        let file = file("wdth = 8\ninner.wait = 5\nsize = 3\n");
        let overrides = [set("inner.size", "lots"), set("width", "0"), set("a.b", "1")];
        let error = load::<Sample>(Some(file.path()), &overrides).unwrap_err();
        assert_eq!(error.code(), ErrorCode::Configuration);
        for words in [
            "6 problems",
            "unknown setting `wdth`",
            "unknown setting `size`; did you mean `inner.size`?",
            "`inner.wait`",
            "`inner.size`: invalid size 'lots'",
            "`width` is zero",
            "unknown setting `a.b`",
        ] {
            assert!(error.context().contains(words), "{words}: {error}");
        }
    }

    #[test]
    fn error_names_an_unreadable_configuration_file() {
        let missing = load::<Sample>(Some(Path::new("/nowhere.toml")), &[]).unwrap_err();
        assert!(missing.context().contains("/nowhere.toml: No such file"), "{missing}");
        // If the file cannot be read, its values are not reported as missing.
        let set = [set("width", "0")];
        let missing = load::<Sample>(Some(Path::new("/nowhere.toml")), &set).unwrap_err();
        assert!(missing.context().starts_with("1 problem "), "{missing}");
        let file = file("width = ");
        let broken = load::<Sample>(Some(file.path()), &[]).unwrap_err();
        assert!(broken.context().contains("line 1"), "{broken}");
    }
}
