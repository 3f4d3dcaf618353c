//! All decoders of untrusted bytes. Each decoder has a check of the same property: the decoder
//! never panics, and the encoding of an accepted value has the same bytes.

mod records;

use skep_types::codec::{Codec, crc32c};
use skep_wire::catalog;
use skep_wire::frame::{HEADER_BYTES, Header};

/// A decoder under test.
#[derive(Debug, Clone, Copy)]
pub struct Decoder {
    /// Name of the decoder, and of its fuzz target in `fuzz/`.
    pub name: &'static str,
    /// Decodes bytes. If the decoder accepts the bytes, encodes the decoded value again. Panics if
    /// the encoding differs from the bytes.
    pub check: fn(&[u8]),
    /// Returns valid inputs of the decoder. Valid inputs of the decoders for messages are in
    /// `vectors/wire` instead.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

const MESSAGES: &[Decoder] = &[
    Decoder { name: "header", check: check_header, seeds: Vec::new },
    Decoder { name: "body", check: check_body, seeds: Vec::new },
    #[cfg(feature = "kernel-requests")]
    Decoder { name: KERNEL_REQUESTS, check: check_fuse_request, seeds: fuse_requests },
];

/// Name of the decoder of kernel requests, which only a build with the feature `kernel-requests`
/// has.
#[cfg(feature = "kernel-requests")]
pub const KERNEL_REQUESTS: &str = "fuse_request";

/// Returns all decoders of this build.
pub fn all() -> impl Iterator<Item = &'static Decoder> {
    MESSAGES.iter().chain(records::RECORDS)
}

/// Decodes `bytes` with the decoder `name`. Checks that the encoding of an accepted value has the
/// same bytes.
///
/// # Panics
/// Panics if no decoder has this name, or if the bytes differ.
pub fn check(name: &str, bytes: &[u8]) {
    let decoder = all().find(|decoder| decoder.name == name);
    (decoder.unwrap_or_else(|| panic!("no decoder has the name {name}")).check)(bytes);
}

/// Checks the decoder of frame headers, both with the unchanged bytes and with a corrected
/// checksum.
fn check_header(bytes: &[u8]) {
    let mut header = [0; HEADER_BYTES];
    let length = bytes.len().min(HEADER_BYTES);
    header[..length].copy_from_slice(&bytes[..length]);
    check_whole_header(&header);
    let checksum = crc32c(&header[..HEADER_BYTES - 4]);
    header[HEADER_BYTES - 4..].copy_from_slice(&checksum.to_le_bytes());
    check_whole_header(&header);
}

fn check_whole_header(bytes: &[u8; HEADER_BYTES]) {
    if let Ok((header, _)) = Header::parse(bytes) {
        let again = header.to_bytes();
        assert_eq!(again, bytes[8..8 + again.len()], "the header differs when encoded again");
    }
}

/// Returns the input of the decoder `body` for the body of a message. The input consists of the
/// message number, a byte that is 1 for a reply, and the body.
pub fn body_input(message: u16, is_reply: bool, body: &[u8]) -> Vec<u8> {
    [&message.to_le_bytes()[..], &[u8::from(is_reply)], body].concat()
}

/// Checks the decoders of all message bodies. `bytes` are in the form that [`body_input`] returns.
fn check_body(bytes: &[u8]) {
    let [low, high, is_reply, body @ ..] = bytes else { return };
    let message = u16::from_le_bytes([*low, *high]);
    if let Some(Ok(again)) = catalog::recode(message, is_reply & 1 == 1, body) {
        assert_eq!(again, body, "the body differs when encoded again");
    }
}

/// Checks the decoder of kernel requests. The check requires only that the decoder never panics,
/// because kernel requests have no encoder.
#[cfg(feature = "kernel-requests")]
fn check_fuse_request(bytes: &[u8]) {
    let _ = skep_fuse::is_request(bytes);
}

/// Returns one kernel request of each kind. Each request consists of the header with its opcode,
/// the struct of the operation, and two names.
#[cfg(feature = "kernel-requests")]
fn fuse_requests() -> Vec<Vec<u8>> {
    let request = |opcode: u8| {
        let mut bytes = vec![0; 40];
        bytes[4] = opcode;
        bytes.resize(40 + usize::from(opcode % 12) * 8, 0);
        bytes.extend_from_slice(b"from\0to\0");
        bytes
    };
    (1..=52).map(request).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_decoder_has_a_fuzz_target() {
        let manifest = include_str!("../../../fuzz/Cargo.toml");
        for decoder in all() {
            assert!(manifest.contains(&format!("name = \"{}\"", decoder.name)), "{}", decoder.name);
        }
    }

    #[test]
    fn each_decoder_accepts_its_seeds() {
        for decoder in all() {
            (decoder.seeds)().iter().for_each(|seed| (decoder.check)(seed));
        }
    }
}
