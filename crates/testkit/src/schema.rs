//! Checks values against JSON Schema, limited to the keywords in the schemas of Skep's output:
//! `type`, `enum`, `required`, `properties`, `additionalProperties: false`, `items`. If a schema
//! has any other keyword, the check panics, so that no part of a schema is ignored.
//!
//! The schemas are in `crates/testkit/tests/schemas`. [`check`] and [`check_lines`] compare the
//! output of commands with the schemas.

use crate::view::Typed;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// Returns the directory of the schemas.
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/schemas")
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn read(name: &str) -> Value {
    let path = directory().join(format!("{name}.json"));
    let text = fs::read_to_string(&path);
    parse(&text.unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}

/// Checks `value` against the schema `name` of a command's output.
///
/// # Panics
/// Panics if the value does not match the schema, or if no schema has the name `name`.
pub fn check(name: &str, value: &Value) {
    let problems = problems(&read(name), value);
    assert_eq!(problems, Vec::<String>::new(), "{name}: {value}");
}

/// Checks the output of a command with `--output ndjson` against the schema `name`. A list must
/// have one line for each element. A value that is not a list must have exactly one line. Returns
/// the value that `--output json` would have printed.
///
/// # Panics
/// Panics like [`check`], and if a line is not JSON.
pub fn check_lines(name: &str, lines: &str) -> Value {
    let mut values: Vec<Value> = lines.lines().map(parse).collect();
    let value = match read(name)["type"] == "array" {
        true => Value::Array(values),
        false => {
            assert_eq!(values.len(), 1, "{name}: {lines}");
            values.remove(0)
        }
    };
    check(name, &value);
    value
}

/// Returns each violation of `schema` by `value`. An empty list means that the value matches.
///
/// # Panics
/// Panics if the schema has an unsupported keyword.
pub fn problems(schema: &Value, value: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    compare(schema, value, "", &mut problems);
    problems
}

fn compare(schema: &Value, value: &Value, place: &str, problems: &mut Vec<String>) {
    let keywords = schema.as_object().expect("a schema is an object");
    for (keyword, argument) in keywords {
        match keyword.as_str() {
            "$schema" | "title" | "properties" => {}
            "type" => {
                let is_one = |word: &Value| has_type(word.text(), value);
                let holds = argument
                    .as_array()
                    .map_or_else(|| is_one(argument), |words| words.iter().any(is_one));
                if !holds {
                    problems.push(format!("{place}: {value} is not {argument}"));
                }
            }
            "enum" => {
                let words = argument.list();
                if !value.is_null() && !words.contains(value) {
                    problems.push(format!("{place}: {value} is not one of {argument}"));
                }
            }
            "required" => {
                let Some(object) = value.as_object() else { continue };
                let names = argument.list().iter();
                let names = names.map(|name| name.text());
                for name in names.filter(|name| !object.contains_key(*name)) {
                    problems.push(format!("{place}: {name} is missing"));
                }
            }
            "additionalProperties" => {
                assert_eq!(argument, false, "additionalProperties");
                let properties = &schema["properties"];
                for (name, inner) in value.as_object().into_iter().flatten() {
                    match properties.get(name) {
                        Some(schema) => {
                            compare(schema, inner, &format!("{place}/{name}"), problems);
                        }
                        None => problems.push(format!("{place}: {name} is not in the schema")),
                    }
                }
            }
            "items" => {
                for (index, inner) in value.as_array().into_iter().flatten().enumerate() {
                    compare(argument, inner, &format!("{place}/{index}"), problems);
                }
            }
            other => panic!("{place}: cannot check the keyword {other}"),
        }
    }
    let has_properties = keywords.contains_key("properties");
    assert_eq!(has_properties, keywords.contains_key("additionalProperties"), "{place}");
}

fn has_type(word: &str, value: &Value) -> bool {
    match word {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.is_u64() || value.is_i64(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("cannot check the type {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn check_reports_values_that_violate_the_schema() {
        let schema = json!({
            "type": "array",
            "items": {
                "type": "object",
                "required": ["a"],
                "additionalProperties": false,
                "properties": {
                    "a": { "type": ["string", "null"], "enum": ["x"] },
                    "b": { "type": "integer" },
                    "d": { "type": "number" },
                },
            },
        });
        let check = |value: Value, expected: usize| {
            let found = problems(&schema, &value);
            assert_eq!(found.len(), expected, "{value}: {found:?}");
        };
        check(json!([{ "a": "x", "b": 1 }, { "a": null, "d": 1.5 }, { "a": "x", "d": 1 }]), 0);
        check(json!([{ "a": "x", "d": "1" }]), 1);
        check(json!({}), 1);
        check(json!([{ "a": "y" }]), 1);
        check(json!([{ "a": "x", "b": 1.5 }]), 1);
        check(json!([{ "b": 1, "c": 2 }]), 2);
    }

    #[test]
    fn check_requires_one_ndjson_line_per_list_element() {
        let two = check_lines("study-plans", &(line("a") + "\n" + &line("b") + "\n"));
        assert_eq!((&two[0]["name"], &two[1]["name"]), (&json!("a"), &json!("b")));
        let whole =
            std::panic::catch_unwind(|| check_lines("study-plans", &format!("[{}]", line("a"))));
        assert!(whole.is_err(), "a list on one line");
    }

    fn line(name: &str) -> String {
        let plan = json!({
            "name": name, "title": "", "about": "", "lab": null, "experiments": [], "runs": 1,
        });
        plan.to_string()
    }
}
