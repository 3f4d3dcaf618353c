//! Converts JSON values to comma-separated values (RFC 4180), for the output format `csv`.
//!
//! Names come from other hosts and users. So the module changes texts that a spreadsheet would
//! evaluate as a formula, and replaces characters that would control a terminal.

use serde_json::Value;
use std::collections::BTreeSet;

/// Returns a list of JSON objects as comma-separated values. The columns are the field names of all
/// objects, in alphabetical order. A cell is empty if its object has no such field, or has null.
/// Nested values appear as JSON.
pub fn table(things: &[Value]) -> String {
    let objects = things.iter().filter_map(Value::as_object);
    let names: BTreeSet<&String> = objects.flat_map(|it| it.keys()).collect();
    if names.is_empty() {
        return things.iter().map(|thing| cell(thing) + "\n").collect();
    }
    let titles: Vec<String> = names.iter().map(|name| quoted(name)).collect();
    let mut text = titles.join(",") + "\n";
    for thing in things {
        let cells: Vec<String> = names
            .iter()
            .map(|name| cell(thing.get(name.as_str()).unwrap_or(&Value::Null)))
            .collect();
        text += &(cells.join(",") + "\n");
    }
    text
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => quoted(text),
        other => quoted(&other.to_string()),
    }
}

/// The character that replaces control characters other than line breaks and tabs, as in
/// [`crate::xml`].
const REPLACEMENT: &str = "\u{fffd}";

/// Quotes a text for CSV. Puts an apostrophe before a text that a spreadsheet would evaluate as a
/// formula.
fn quoted(text: &str) -> String {
    let controls = |it: char| it.is_control() && !matches!(it, '\t' | '\n' | '\r');
    let text = &text.replace(controls, REPLACEMENT);
    let is_number = text.parse::<f64>().is_ok();
    let is_formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']) && !is_number;
    let text = if is_formula { format!("'{text}") } else { text.to_owned() };
    match text.contains(['"', ',', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn csv_quotes_separators_and_formulas() {
        let things = [
            json!({ "name": "a,\"b\"\nc", "size": -5, "parts": [1, 2] }),
            json!({ "name": "=1+1", "size": null, "parts": [] }),
        ];
        let expected = "name,parts,size\n\"a,\"\"b\"\"\nc\",\"[1,2]\",-5\n'=1+1,[],\n";
        assert_eq!(table(&things), expected);
        assert_eq!(table(&[json!(7), json!("a,b")]), "7\n\"a,b\"\n");
        assert_eq!(table(&[json!("a\u{1b}[2J\tb\u{9b}c")]), "a\u{fffd}[2J\tb\u{fffd}c\n");
        assert_eq!(table(&[]), "");
        let sparse = [json!({ "b": 1 }), json!({ "a": 2 })];
        assert_eq!(table(&sparse), "a,b\n,1\n2,\n");
    }
}
