//! Converts single values of a plan from TOML to typed values. Errors name the key.

use skep_types::{Error, ErrorCode, Result, size};
use std::time::Duration;
use toml::Value;

/// Returns the error for a plan that is wrong.
pub(super) fn wrong(what: impl Into<String>) -> Error {
    Error::new(ErrorCode::Configuration, what)
}

/// Returns the values of a factor. The plan contains either one value or a list of different
/// values.
pub(super) fn list<T: PartialEq>(
    key: &str,
    value: &Value,
    mut one: impl FnMut(&Value) -> Result<T, String>,
) -> Result<Vec<T>> {
    let of = |value: &Value| one(value).map_err(|what| wrong(format!("`{key}`: {what}")));
    let values: Vec<T> = match value {
        Value::Array(values) => values.iter().map(of).collect::<Result<_>>()?,
        single => vec![single].into_iter().map(of).collect::<Result<_>>()?,
    };
    if values.is_empty() {
        return Err(wrong(format!("`{key}` is an empty list: add a value, or remove the key")));
    }
    if let Some(again) = (1..values.len()).find(|index| values[..*index].contains(&values[*index]))
    {
        return Err(wrong(format!(
            "`{key}` has the same value twice: value number {} equals an earlier one; to repeat \
             runs, raise `repetitions`",
            again + 1
        )));
    }
    Ok(values)
}

/// Parses a whole number from `least` to `most`.
pub(super) fn number(value: &Value, least: u32, most: u32) -> Result<u32, String> {
    let number = value.as_integer().and_then(|number| u32::try_from(number).ok());
    number.filter(|number| (least..=most).contains(number)).ok_or_else(|| {
        format!("invalid number {value}: expected a whole number from {least} to {most}")
    })
}

/// Parses a number of bytes, which must not be zero.
pub(super) fn bytes(value: &Value) -> Result<u64, String> {
    let parsed = match value {
        Value::Integer(number) => u64::try_from(*number).ok(),
        Value::String(text) => size::parse(text),
        _ => None,
    };
    parsed
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| format!("invalid size {value}: expected a number or a text like \"256MiB\""))
}

/// Parses a word in `all`, and returns the value that belongs to the word.
pub(super) fn word<T: Copy>(value: &Value, all: &[(&str, T)]) -> Result<T, String> {
    let found = all.iter().find(|(word, _)| value.as_str() == Some(word));
    found.map(|(_, meaning)| *meaning).ok_or_else(|| {
        let words: Vec<&str> = all.iter().map(|(word, _)| *word).collect();
        format!("invalid value {value}: expected one of {}", words.join(", "))
    })
}

/// Parses a duration such as `90s`, `30min` or `0s`.
pub(super) fn span(text: &str) -> Option<Duration> {
    let end = text.find(|letter: char| !letter.is_ascii_digit())?;
    let number: u64 = text[..end].parse().ok()?;
    match text[end..].trim() {
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        "min" => Some(Duration::from_secs(number.checked_mul(60)?)),
        "h" => Some(Duration::from_secs(number.checked_mul(3600)?)),
        _ => None,
    }
}

/// Checks that a name can be used in file names.
pub(super) fn name(key: &str, text: &str) -> Result<String> {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    match !text.is_empty() && text.len() <= 64 && text.bytes().all(is_plain) {
        true => Ok(text.to_owned()),
        false => Err(wrong(format!(
            "`{key}`: invalid name \"{text}\": expected up to 64 small letters, digits and dashes"
        ))),
    }
}
