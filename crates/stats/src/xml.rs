//! Converts JSON values to XML 1.0 documents, for the output format `xml`.
//!
//! The fields of an object become elements. A list in a field becomes one element for each entry,
//! so an empty list has no element. Entries of other lists become elements with the name `item`.

use serde_json::Value;
use std::borrow::Cow;

/// Name of the elements for the entries of a list that is not the value of a field.
const ENTRY: &str = "item";
/// The character that replaces each character that XML 1.0 forbids.
const REPLACEMENT: char = '\u{fffd}';

/// Returns the document for `value`. Its root element has the name `root`.
pub fn document(root: &str, value: &Value) -> String {
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    add_element(&mut text, root, value, 0);
    text
}

/// Adds the element for `value`, indented by `depth` levels.
fn add_element(text: &mut String, key: &str, value: &Value, depth: usize) {
    let indent = "  ".repeat(depth);
    let name = element_name(key);
    // If the key is not a valid name, for example a number, the element has the exact key as an
    // attribute.
    let attribute = match &name {
        Cow::Borrowed(_) => String::new(),
        Cow::Owned(_) => format!(" name=\"{}\"", escaped(key)),
    };
    *text += &format!("{indent}<{name}{attribute}");
    match value {
        Value::Null => *text += " null=\"true\"/>\n",
        Value::Bool(_) | Value::Number(_) => *text += &format!(">{value}</{name}>\n"),
        Value::String(content) => *text += &format!(">{}</{name}>\n", escaped(content)),
        Value::Array(entries) => {
            *text += ">\n";
            entries.iter().for_each(|entry| add_element(text, ENTRY, entry, depth + 1));
            *text += &format!("{indent}</{name}>\n");
        }
        Value::Object(fields) => {
            *text += ">\n";
            fields.iter().for_each(|(key, value)| add_field(text, key, value, depth + 1));
            *text += &format!("{indent}</{name}>\n");
        }
    }
}

/// Adds the elements for a field of an object: one for each entry if the field is a list.
fn add_field(text: &mut String, key: &str, value: &Value, depth: usize) {
    match value {
        Value::Array(entries) => {
            entries.iter().for_each(|entry| add_element(text, key, entry, depth));
        }
        one => add_element(text, key, one, depth),
    }
}

/// Returns the name of the element for `key`. XML reserves names that begin with `xml`, so the name
/// for such a key begins with `_`.
fn element_name(key: &str) -> Cow<'_, str> {
    let is_start = |first: char| first.is_ascii_alphabetic() || first == '_';
    let is_part = |it: char| it.is_ascii_alphanumeric() || matches!(it, '_' | '-' | '.');
    let is_reserved = key.get(..3).is_some_and(|start| start.eq_ignore_ascii_case("xml"));
    let starts_well = key.starts_with(is_start) && !is_reserved;
    if starts_well && key.chars().all(is_part) {
        return Cow::Borrowed(key);
    }
    let parts = key.chars().map(|it| if is_part(it) { it } else { '_' });
    let prefix = (!starts_well).then_some('_');
    Cow::Owned(prefix.into_iter().chain(parts).collect())
}

/// Escapes a text for the content of an element or for an attribute. Readers of XML change line
/// breaks and tabs in attributes, and carriage returns everywhere, unless they are escaped.
fn escaped(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => shown += "&amp;",
            '<' => shown += "&lt;",
            '>' => shown += "&gt;",
            '"' => shown += "&quot;",
            '\t' | '\n' | '\r' => shown += &format!("&#{};", u32::from(character)),
            '\u{0}'..='\u{1f}' | '\u{fffe}' | '\u{ffff}' => shown.push(REPLACEMENT),
            other => shown.push(other),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lists_in_fields_become_repeated_xml_elements() {
        let value = json!([{ "id": 7, "parts": [1, [2]], "none": [], "free": null, "ok": true }]);
        let expected = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<skep-x>\n  <item>\n    \
            <free null=\"true\"/>\n    <id>7</id>\n    <ok>true</ok>\n    <parts>1</parts>\n    \
            <parts>\n      <item>2</item>\n    </parts>\n  </item>\n</skep-x>\n";
        assert_eq!(document("skep-x", &value), expected);
    }

    #[test]
    fn hostile_texts_cannot_forge_xml_markup() {
        let text = escaped("</a><b c=\"d\">&\u{1b}[2J\u{0}\u{ffff}\r\n");
        let expected = "&lt;/a&gt;&lt;b c=&quot;d&quot;&gt;&amp;\u{fffd}[2J\u{fffd}\u{fffd}";
        assert_eq!(text, format!("{expected}&#13;&#10;"));
    }

    #[test]
    fn keys_that_are_invalid_xml_names_become_valid_names() {
        let names = ["free_bytes", "7", "a b><c", "", "XmlThing", "\u{e4}"].map(element_name);
        assert_eq!(names, ["free_bytes", "_7", "a_b__c", "_", "_XmlThing", "__"]);
        let text = document("x", &json!({ "a\"b": 1 }));
        assert!(text.contains("<a_b name=\"a&quot;b\">1</a_b>"), "{text}");
    }
}
