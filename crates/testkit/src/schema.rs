//! JSON Schema, as far as the schemas of Skep's output use it: `type`, `enum`, `required`,
//! `properties`, `additionalProperties: false`, `items`. Anything else in a schema is refused, so
//! that nothing in it goes unchecked.
//!
//! The schemas lie in `crates/testkit/tests/schemas`; [`check`] and [`check_lines`] hold what
//! commands print against them.

use crate::view::Typed;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// Where the schemas are.
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

/// Checks a value against a command's schema.
///
/// # Panics
/// If it doesn't fit, or there is no schema of that name.
pub fn check(name: &str, value: &Value) {
    let problems = problems(&read(name), value);
    assert_eq!(problems, Vec::<String>::new(), "{name}: {value}");
}

/// Checks what a command printed with `--output ndjson` against its schema: a line for each thing
/// of a list, and one line of all else. Gives the value that `json` would have printed.
///
/// # Panics
/// As [`check`], or if a line is no JSON.
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

/// What is wrong with a value by a schema; empty if nothing is.
///
/// # Panics
/// If the schema says something that isn't checked here.
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
                    problems.push(format!("{place}: {value} is none of {argument}"));
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
            other => panic!("{place}: the keyword {other} is not known here"),
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
        other => panic!("the type {other} is not known here"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn check_reports_values_the_schema_forbids() {
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
    fn ndjson_lists_have_one_line_per_element() {
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
