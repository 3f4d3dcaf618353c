//! Frames that a receiver must refuse. Each frame contains a single error, and has the error code
//! that the receiver must return.

use super::{Vector, hex, pretty};
use crate::repository::Generated;
use serde_json::{Map, Value, json};
use skep_types::codec::{Bytes, Codec, crc32c};
use skep_types::{Error, ErrorCode, InodeId};
use skep_wire::frame::{HEADER_BYTES, Header, check_body};
use skep_wire::limits::{MAX_BODY_BYTES, MAX_DATA_BYTES};
use skep_wire::{Request, catalog, metadata as md, session};

/// Returns a valid frame, from which other functions make malformed frames.
fn lookup() -> Vec<u8> {
    let body = md::Lookup { directory: InodeId::ROOT, name: Bytes::from(&b"file"[..]) };
    Header { message: md::Lookup::ID, tag: 1, ..Header::default() }.frame(&body, 0)
}

/// Returns a frame with a valid header and checksums around a message body.
fn frame_around<R: Request>(body: &[u8]) -> Vec<u8> {
    Header { message: R::ID, tag: 1, ..Header::default() }.frame_raw(body, 0)
}

/// Changes bytes of a frame header, and corrects the checksum, so that only the change itself is
/// invalid.
fn with_header(change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut frame = lookup();
    change(&mut frame[..HEADER_BYTES - 4]);
    let checksum = crc32c(&frame[..HEADER_BYTES - 4]);
    frame[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&checksum.to_le_bytes());
    frame
}

fn with_flipped_bit(at: usize) -> Vec<u8> {
    let mut frame = lookup();
    frame[at] ^= 0x10;
    frame
}

/// Returns the body of a `Lookup` request. The body consists of the directory, the announced length
/// of the name, and the name itself.
fn lookup_body(announced: u32, name: &[u8]) -> Vec<u8> {
    [&1_u64.to_le_bytes()[..], &announced.to_le_bytes(), name].concat()
}

fn cases() -> Vec<(&'static str, Vec<u8>)> {
    let hello_with_kind = |kind: u8| {
        let mut body = session::Hello {
            cluster: skep_types::ClusterId::default(),
            oldest: 1,
            newest: 1,
            kind: skep_types::NodeKind::Client,
            node: skep_types::NodeId::default(),
            target: skep_types::TargetId::default(),
            channel: 0,
            nonce: 5,
            secrets: vec![1],
        }
        .to_bytes();
        body[20] = kind;
        frame_around::<session::Hello>(&body)
    };
    let large_body = (MAX_BODY_BYTES as u32 + 1).to_le_bytes();
    let large_data = (MAX_DATA_BYTES as u32 + 1).to_le_bytes();
    vec![
        ("magic", with_header(|h| h[0] = b's')),
        ("header checksum", with_flipped_bit(HEADER_BYTES - 1)),
        ("flipped bit in the header", with_flipped_bit(30)),
        ("flipped bit in the body", with_flipped_bit(HEADER_BYTES + 2)),
        ("header length", with_header(|h| h[4] = 64)),
        ("reserved bytes 6 and 7 not zero", with_header(|h| h[7] = 1)),
        ("reserved byte 47 not zero", with_header(|h| h[47] = 1)),
        ("unknown flag", with_header(|h| h[14] = 8)),
        ("request with the flag of times", with_header(|h| h[14] = 4)),
        ("body beyond the limit", with_header(|h| h[16..20].copy_from_slice(&large_body))),
        ("data beyond the limit", with_header(|h| h[20..24].copy_from_slice(&large_data))),
        ("empty body", frame_around::<md::Lookup>(&[])),
        ("truncated body", frame_around::<md::Lookup>(&lookup_body(4, b"fil"))),
        ("byte after the last field", frame_around::<md::Lookup>(&lookup_body(4, b"files"))),
        ("length beyond the body", frame_around::<md::Lookup>(&lookup_body(u32::MAX, b"file"))),
        ("count beyond the body", frame_around::<md::Prepare>(&[0xff; 16])),
        ("unknown enum number", hello_with_kind(9)),
        ("enum number zero", hello_with_kind(0)),
        ("boolean that is 2", frame_around::<md::Decide>(&[&[1; 12][..], &[2]].concat())),
        (
            "text that is not UTF-8",
            frame_around::<skep_wire::management::RegisterClient>(
                &[&2_u32.to_le_bytes()[..], &[0xc3, 0x28], &[0; 12]].concat(),
            ),
        ),
        ("unknown step", {
            let step = [&[1; 12][..], &1_u32.to_le_bytes(), &[99]].concat();
            frame_around::<md::Prepare>(&step)
        }),
    ]
}

/// Decodes a frame as a receiver does.
fn receive(frame: &[u8]) -> Result<(), Error> {
    let header = frame[..HEADER_BYTES].try_into().expect("a frame has a header");
    let (header, checksum) = Header::parse(header)?;
    let body = &frame[HEADER_BYTES..];
    check_body(body, checksum)?;
    let recoded = catalog::recode(header.message, header.is_reply(), body);
    recoded.expect("malformed vectors are of known messages").map(drop)
}

/// Returns the files with all malformed frames.
///
/// # Panics
/// Panics if a decoder accepts one of the frames.
pub(super) fn files() -> [Generated; 2] {
    let mut errors: Map<String, Value> = Map::new();
    let mut vectors = Vec::new();
    for (name, bytes) in cases() {
        let error = receive(&bytes).expect_err(name);
        let expected = [ErrorCode::Protocol, ErrorCode::Corrupt];
        assert!(expected.contains(&error.code()), "{name}: {error}");
        errors.insert(name.into(), json!({"error": error.code().to_string()}));
        vectors.push(Vector { name: name.into(), bytes });
    }
    [
        Generated { path: "vectors/wire/malformed-v1.json".into(), text: pretty(&errors.into()) },
        Generated { path: "vectors/wire/malformed-v1.hex".into(), text: hex(&vectors) },
    ]
}
