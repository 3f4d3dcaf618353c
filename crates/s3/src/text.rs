//! Escapes keys and parameters, and formats checksums. This module does no I/O.

use std::fmt::Write as _;

/// Escapes a text for the path or the query of a request, by the rules of signatures of version 4.
/// Does not escape letters, digits and `-._~`. With `keeps_slash`, as in paths, `/` is also not
/// escaped.
pub(crate) fn escape(text: &str, keeps_slash: bool) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                escaped.push(char::from(byte));
            }
            b'/' if keeps_slash => escaped.push('/'),
            _ => {
                let _ = write!(escaped, "%{byte:02X}");
            }
        }
    }
    escaped
}

/// Decodes the escapes in a key of a listing (`encoding-type=url`). `None` means that an escape is
/// malformed, or that the result is not UTF-8.
pub(crate) fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                let (high, low) = (digit(rest.next()?)?, digit(rest.next()?)?);
                u8::try_from(high * 16 + low).ok()?
            }
            b'+' => b' ',
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

/// Returns bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Returns a CRC-32C in the form that headers contain: base 64 of its bytes, the most significant
/// byte first.
pub(crate) fn checksum(crc: u32) -> String {
    let number = u64::from(crc) << 4;
    let digit = |index: u32| char::from(BASE64[(number >> (30 - 6 * index)) as usize & 63]);
    (0..6).map(digit).chain("==".chars()).collect()
}

/// Parses the form that [`checksum`] returns. `None` means that the text has another form. An
/// example is the checksum of the parts' checksums, which ends with `-` and the number of parts.
pub(crate) fn parse_checksum(text: &str) -> Option<u32> {
    let digits = text.strip_suffix("==").filter(|it| it.len() == 6)?;
    let mut number = 0;
    for digit in digits.bytes() {
        let value = BASE64.iter().position(|it| *it == digit)?;
        number = number << 6 | value as u64;
    }
    u32::try_from(number >> 4).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, prop_assert_eq, proptest};

    #[test]
    fn keys_are_escaped_as_signatures_prescribe() {
        assert_eq!(escape("a b/\u{e4}+$", true), "a%20b/%C3%A4%2B%24");
        assert_eq!(escape("a/b~", false), "a%2Fb~");
        assert_eq!(unescape("a%20b+c%2fd").as_deref(), Some("a b c/d"));
        for wrong in ["%", "%2", "%zz", "%ff"] {
            assert_eq!(unescape(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn checksum_is_formatted_as_the_s3_protocol_requires() {
        // The CRC-32C of "123456789" is E3069283.
        assert_eq!(checksum(0xe306_9283), "4waSgw==");
        assert_eq!(parse_checksum("4waSgw=="), Some(0xe306_9283));
        for wrong in ["", "4waSgw==-3", "4waSgw", "4wa!gw=="] {
            assert_eq!(parse_checksum(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn escaped_texts_are_read_back(text in any::<String>(), crc in any::<u32>()) {
            let escaped = escape(&text, true);
            prop_assert_eq!(unescape(&escaped), Some(text));
            prop_assert_eq!(parse_checksum(&checksum(crc)), Some(crc));
        }
    }
}
