//! Decodes the bytes that a terminal sends into keys.
//!
//! A terminal sends a character in UTF-8, and a special key as a sequence that begins with the byte
//! of the Escape key. So the decoder cannot detect the Escape key until a moment has passed without
//! further bytes. The decoder has no clock: the caller calls [`KeyDecoder::end`] after this moment.

/// Maximum length of a sequence in bytes. Terminals send much shorter sequences, so the decoder
/// drops a longer sequence.
const MAX_SEQUENCE_BYTES: usize = 16;
/// The byte of the Escape key. Each sequence begins with this byte.
const ESCAPE: u8 = 0x1b;

/// A key of the keyboard, or a combination with Ctrl.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    /// A character without a special meaning for the terminal.
    Char(char),
    Enter,
    Escape,
    Backspace,
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
    /// Ctrl-C, if the terminal sends it as a character.
    Interrupt,
    /// Ctrl-L. The view draws the whole screen again.
    Redraw,
    /// Ctrl-U. The view removes the text of the filter that the user is typing.
    ClearText,
}

/// The next step of the decoder.
enum Step {
    /// The bytes begin with a key, or with bytes that are no key (`None`). The number is the length
    /// of this beginning.
    Decoded(Option<Key>, usize),
    /// The bytes are the start of a sequence or character.
    Incomplete,
}

/// Decodes bytes into keys.
///
/// # Invariants
/// Between two calls, the decoder holds at most [`MAX_SEQUENCE_BYTES`] bytes.
#[derive(Debug, Default)]
pub(super) struct KeyDecoder {
    /// The start of a sequence or character whose other bytes have not arrived yet.
    pending: Vec<u8>,
}

impl KeyDecoder {
    /// Decodes further bytes, and returns the keys that are complete.
    pub(super) fn add(&mut self, bytes: &[u8]) -> Vec<Key> {
        self.pending.extend_from_slice(bytes);
        let (mut keys, mut done) = (Vec::new(), 0);
        while let Step::Decoded(key, len) = step(&self.pending[done..]) {
            keys.extend(key);
            done += len;
        }
        self.pending.drain(..done);
        self.check_invariants();
        keys
    }

    /// Whether the decoder holds the start of a sequence or character.
    pub(super) fn is_waiting(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Ends the sequence that the decoder holds, because no further byte has come for a moment.
    /// Returns the Escape key if the sequence has no other byte.
    pub(super) fn end(&mut self) -> Option<Key> {
        let pending = std::mem::take(&mut self.pending);
        (pending == [ESCAPE]).then_some(Key::Escape)
    }

    fn check_invariants(&self) {
        assert!(self.pending.len() <= MAX_SEQUENCE_BYTES, "a sequence is dropped before");
    }
}

fn step(bytes: &[u8]) -> Step {
    match bytes {
        [] => Step::Incomplete,
        [ESCAPE, ..] => sequence(bytes),
        [b'\r' | b'\n', ..] => Step::Decoded(Some(Key::Enter), 1),
        [0x7f | 0x08, ..] => Step::Decoded(Some(Key::Backspace), 1),
        [0x03, ..] => Step::Decoded(Some(Key::Interrupt), 1),
        [0x0c, ..] => Step::Decoded(Some(Key::Redraw), 1),
        [0x15, ..] => Step::Decoded(Some(Key::ClearText), 1),
        [first, ..] => character(bytes, *first),
    }
}

/// Decodes a character in UTF-8. Control characters and invalid bytes are no keys.
fn character(bytes: &[u8], first: u8) -> Step {
    let len = match first {
        0x00..=0x7f => 1,
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf4 => 4,
        _ => return Step::Decoded(None, 1),
    };
    let available = &bytes[..len.min(bytes.len())];
    match std::str::from_utf8(available) {
        Ok(text) => {
            let character = text.chars().next().filter(|it| !it.is_control());
            Step::Decoded(character.map(Key::Char), len)
        }
        // `None` means that the bytes may be the start of a valid character.
        Err(error) if error.error_len().is_none() => Step::Incomplete,
        Err(_) => Step::Decoded(None, 1),
    }
}

/// Decodes a sequence of ECMA-48: `ESC [`, parameters, and a final byte, or `ESC O` and a final
/// byte.
fn sequence(bytes: &[u8]) -> Step {
    match bytes {
        [_] | [_, b'O'] => Step::Incomplete,
        [_, b'O', last, ..] => Step::Decoded(special(b"", *last), 3),
        [_, b'[', rest @ ..] => {
            let inner = rest.iter().take_while(|byte| (0x20..0x40_u8).contains(*byte)).count();
            match rest.get(inner) {
                Some(last) => Step::Decoded(special(&rest[..inner], *last), inner + 3),
                None if bytes.len() >= MAX_SEQUENCE_BYTES => Step::Decoded(None, bytes.len()),
                None => Step::Incomplete,
            }
        }
        // A key that is pressed with Alt also sends these bytes. The decoder returns the Escape
        // key, followed by the other key.
        _ => Step::Decoded(Some(Key::Escape), 1),
    }
}

/// Returns the key of a terminal escape sequence (CSI) with these parameters and this final byte.
/// If the final byte is a letter, the parameters are modifiers such as Shift, and are ignored.
fn special(parameters: &[u8], last: u8) -> Option<Key> {
    Some(match (last, parameters) {
        (b'A', _) => Key::Up,
        (b'B', _) => Key::Down,
        (b'C', _) => Key::Right,
        (b'D', _) => Key::Left,
        (b'H', _) | (b'~', b"1" | b"7") => Key::Home,
        (b'F', _) | (b'~', b"4" | b"8") => Key::End,
        (b'~', b"5") => Key::PageUp,
        (b'~', b"6") => Key::PageDown,
        (b'M', b"") => Key::Enter,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, prop};
    use proptest::{prop_assert_eq, proptest};

    fn keys(bytes: &[u8]) -> Vec<Key> {
        let mut decoder = KeyDecoder::default();
        let mut keys = decoder.add(bytes);
        keys.extend(decoder.end());
        keys
    }

    #[test]
    fn escape_sequences_of_common_terminals_become_keys() {
        let check = |bytes: &str, expected: &[Key]| assert_eq!(keys(bytes.as_bytes()), expected);
        check("qW\u{f6}\u{4e2d}", &['q', 'W', '\u{f6}', '\u{4e2d}'].map(Key::Char));
        check("\x1b[A\x1bOB\x1b[C\x1b[D", &[Key::Up, Key::Down, Key::Right, Key::Left]);
        check("\x1b[1;2A\x1b[5~\x1b[6~", &[Key::Up, Key::PageUp, Key::PageDown]);
        check("\x1b[H\x1b[4~\x1bOF\x1b[1~", &[Key::Home, Key::End, Key::End, Key::Home]);
        check(
            "\r\x7f\x08\x03\x0c\x15",
            &[
                Key::Enter,
                Key::Backspace,
                Key::Backspace,
                Key::Interrupt,
                Key::Redraw,
                Key::ClearText,
            ],
        );
        check("\x1b", &[Key::Escape]);
        check("\x1b\x1bq", &[Key::Escape, Key::Escape, Key::Char('q')]);
        // Function keys, other control characters and incomplete sequences are no keys.
        check("\x1b[15~\x1bOP\x01\t\u{9b}\x1b[1;", &[]);
    }

    #[test]
    fn endless_escape_sequence_does_not_fill_memory() {
        let mut decoder = KeyDecoder::default();
        decoder.add(b"\x1b[");
        for _ in 0..1000 {
            assert!(decoder.add(b"1").is_empty());
            if !decoder.is_waiting() {
                return;
            }
        }
        panic!("the decoder keeps all bytes");
    }

    /// Bytes that occur in sequences and characters.
    const PARTS: &[u8] = b"\x1b[O15~;A\xc3\xb6q";

    proptest! {
        #[test]
        fn decoded_keys_do_not_depend_on_how_input_is_split(
            bytes in prop::collection::vec(any::<u8>(), 0..64),
            special in prop::collection::vec(prop::sample::select(PARTS), 0..40),
            cut in 0..40_usize,
        ) {
            for bytes in [bytes, special] {
                // The split of the input determines where the decoder drops a sequence that is too
                // long. So the test compares only shorter sequences.
                let is_long = |it: &[u8]| it.len() >= MAX_SEQUENCE_BYTES - 1;
                if bytes.split(|it| *it == ESCAPE).any(is_long) {
                    continue;
                }
                let cut = cut.min(bytes.len());
                let mut decoder = KeyDecoder::default();
                let mut parts = decoder.add(&bytes[..cut]);
                parts.extend(decoder.add(&bytes[cut..]));
                parts.extend(decoder.end());
                prop_assert_eq!(parts, keys(&bytes));
            }
        }
    }
}
