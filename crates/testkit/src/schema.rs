//! JSON Schema, as far as the schemas of Skep's output use it: `type`, `enum`, `required`,
//! `properties`, `additionalProperties: false`, `items`. Anything else in a schema is refused, so
//! that nothing in it goes unchecked.

use serde_json::Value;

/// What is wrong with a value by a schema; empty if nothing is.
///
/// # Panics
/// If the schema says something that isn't checked here.
pub fn problems(schema: &Value, value: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    check(schema, value, "", &mut problems);
    problems
}

fn check(schema: &Value, value: &Value, place: &str, problems: &mut Vec<String>) {
    let keywords = schema.as_object().expect("a schema is an object");
    for (keyword, argument) in keywords {
        match keyword.as_str() {
            "$schema" | "title" | "properties" => {}
            "type" => {
                let is_one = |word: &Value| has_type(word.as_str().expect("a type"), value);
                let holds = argument
                    .as_array()
                    .map_or_else(|| is_one(argument), |words| words.iter().any(is_one));
                if !holds {
                    problems.push(format!("{place}: {value} is not {argument}"));
                }
            }
            "enum" => {
                let words = argument.as_array().expect("a list of values");
                if !value.is_null() && !words.contains(value) {
                    problems.push(format!("{place}: {value} is none of {argument}"));
                }
            }
            "required" => {
                let Some(object) = value.as_object() else { continue };
                let names = argument.as_array().expect("a list of names").iter();
                let names = names.map(|name| name.as_str().expect("a name"));
                for name in names.filter(|name| !object.contains_key(*name)) {
                    problems.push(format!("{place}: {name} is missing"));
                }
            }
            "additionalProperties" => {
                assert_eq!(argument, false, "additionalProperties");
                let properties = &schema["properties"];
                for (name, inner) in value.as_object().into_iter().flatten() {
                    match properties.get(name) {
                        Some(schema) => check(schema, inner, &format!("{place}/{name}"), problems),
                        None => problems.push(format!("{place}: {name} is not in the schema")),
                    }
                }
            }
            "items" => {
                for (index, inner) in value.as_array().into_iter().flatten().enumerate() {
                    check(argument, inner, &format!("{place}/{index}"), problems);
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
    fn what_a_schema_does_not_allow_is_found() {
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
}
