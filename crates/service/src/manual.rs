//! The manual of a service's settings: a sample configuration file, and a page in `docs/config/`.
//! This module generates the two pages from the doc comments of the settings structs.
//!
//! The program contains the source text of these structs (`Manual::SOURCES`), and reads the
//! comments from it. So only one place describes each setting, and the structs need no macro.

use crate::config::{Manual, defaults};
use std::collections::HashMap;
use std::fmt::Write;
use toml::{Table, Value};

/// The fields of a struct: the name, type and doc comment of each field.
type Fields = Vec<(String, String, String)>;

/// Returns a commented configuration file with every setting and its default.
pub fn sample<T: Manual>() -> String {
    let structs = parse(T::SOURCES);
    let mut text =
        format!("# Settings of `skep {}`. All values shown are the defaults.\n", T::NAME);
    let about =
        |prefix: &str| if prefix.is_empty() { String::new() } else { format!("\n[{prefix}]\n") };
    visit::<T>(&structs, &mut |prefix, entry| match entry {
        Entry::Table => text.push_str(&about(prefix)),
        Entry::Value { name, doc, value } => {
            text.push('\n');
            for line in doc.lines() {
                let _ = writeln!(text, "# {line}");
            }
            let _ = writeln!(text, "{name} = {value}");
        }
    });
    text
}

/// Returns the page of a service's settings for `docs/config/`.
pub fn page<T: Manual>() -> String {
    let structs = parse(T::SOURCES);
    let name = T::NAME;
    let mut text = format!(
        "# Settings of `skep {name}`\n\n\
         Values come from the defaults, then the file given with `--config`, then the command\n\
         line (`--set key=value`). `skep {name} --print-config` shows the values in effect and\n\
         where each came from; `skep {name} --print-sample` prints this page as a file to start\n\
         from.\n\n\
         | setting | default | meaning |\n|---|---|---|\n"
    );
    visit::<T>(&structs, &mut |prefix, entry| {
        if let Entry::Value { name, doc, value } = entry {
            let key = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") };
            let doc = doc.replace('\n', " ").replace('|', "\\|");
            let _ = writeln!(text, "| `{key}` | `{value}` | {doc} |");
        }
    });
    text
}

enum Entry<'a> {
    Table,
    Value { name: &'a str, doc: &'a str, value: &'a Value },
}

fn visit<T: Manual>(structs: &HashMap<String, Fields>, see: &mut impl FnMut(&str, Entry<'_>)) {
    let root = std::any::type_name::<T>().rsplit("::").next().unwrap_or_default();
    visit_struct(structs, root, "", &defaults::<T>(), see);
}

/// Visits the fields with plain values first and then the fields with tables, as TOML requires.
/// Within each of the two groups, the order is the order of the fields in the struct.
fn visit_struct(
    structs: &HashMap<String, Fields>,
    name: &str,
    prefix: &str,
    values: &Table,
    see: &mut impl FnMut(&str, Entry<'_>),
) {
    let fields = structs.get(name).unwrap_or_else(|| panic!("the sources hold struct {name}"));
    for (field, _, doc) in fields {
        match values.get(field) {
            Some(Value::Table(_)) | None => {}
            Some(value) => see(prefix, Entry::Value { name: field, doc, value }),
        }
    }
    for (field, kind, _) in fields {
        if let Some(Value::Table(inner)) = values.get(field) {
            let prefix =
                if prefix.is_empty() { field.clone() } else { format!("{prefix}.{field}") };
            see(&prefix, Entry::Table);
            visit_struct(structs, kind, &prefix, inner, see);
        }
    }
}

/// Parses source text. Returns the public fields of each public struct, with their doc comments.
fn parse(sources: &[&str]) -> HashMap<String, Fields> {
    let mut structs: HashMap<String, Fields> = HashMap::new();
    for source in sources {
        let mut current: Option<String> = None;
        let mut doc = String::new();
        for line in source.lines().map(str::trim) {
            if let Some(text) = line.strip_prefix("///") {
                let _ = writeln!(doc, "{}", text.trim());
            } else if let Some(rest) = line.strip_prefix("pub struct ") {
                let name = rest.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
                current = Some(name.to_owned());
                structs.insert(name.to_owned(), Vec::new());
                doc.clear();
            } else if line == "}" {
                current = None;
                doc.clear();
            } else if let (Some(name), Some(rest)) = (&current, line.strip_prefix("pub ")) {
                if let Some((field, kind)) = rest.split_once(':') {
                    let kind = kind.trim().trim_end_matches(',').rsplit("::").next();
                    let field = (field.to_owned(), kind.unwrap_or_default().to_owned());
                    let fields = structs.entry(name.clone()).or_default();
                    fields.push((field.0, field.1, doc.trim().to_owned()));
                }
                doc.clear();
            } else if !line.starts_with("#[") {
                doc.clear();
            }
        }
    }
    structs
}
