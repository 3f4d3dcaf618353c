//! Framing of records that each have their own file: magic, version, length, body, checksum.
//!
//! `docs/format/sealed.md` shows the layout. Each kind of record has its own magic, so a reader
//! refuses a file that was copied over a file of a different kind.

use skep_types::codec::{Codec, Reader, Writer, crc32c};
use skep_types::{Error, ErrorCode, Result};

/// Number of bytes before the body.
const HEAD_BYTES: usize = 16;
/// Maximum length of the body. Management's snapshot with a hundred thousand clients takes about 20
/// MiB.
pub const MAX_BODY_BYTES: usize = 64 << 20;

/// Encodes `body` as a record with its frame.
///
/// # Panics
/// Panics if the encoded record is longer than [`MAX_BODY_BYTES`].
pub fn seal(magic: [u8; 8], version: u16, body: &impl Codec) -> Vec<u8> {
    let body = body.to_bytes();
    assert!(body.len() <= MAX_BODY_BYTES, "sealed records are small");
    let mut w = Writer::new();
    w.raw(&magic);
    version.encode(&mut w);
    0_u16.encode(&mut w);
    (body.len() as u32).encode(&mut w);
    w.raw(&body);
    let mut bytes = w.finish();
    let crc = crc32c(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

/// Decodes a framed record. Its magic and version must be `magic` and `version`.
///
/// # Errors
/// - `Corrupt` if the bytes are not a valid record of this kind.
/// - `Unsupported` if the record has a different version.
pub fn open<T: Codec>(magic: [u8; 8], version: u16, bytes: &[u8]) -> Result<T> {
    let corrupt = |what: String| Error::new(ErrorCode::Corrupt, what);
    let mut r = Reader::new(bytes);
    let found: [u8; 8] = r.array()?;
    if found != magic {
        return Err(corrupt(format!(
            "the magic number of the record is \"{}\", not \"{}\"",
            found.escape_ascii(),
            magic.escape_ascii()
        )));
    }
    let (found_version, zero, length) =
        (u16::decode(&mut r)?, u16::decode(&mut r)?, u32::decode(&mut r)? as usize);
    if length > MAX_BODY_BYTES || bytes.len() != HEAD_BYTES + length + 4 {
        return Err(corrupt(format!(
            "the record has {} bytes, but its header announces {length}",
            bytes.len()
        )));
    }
    let (covered, crc) = bytes.split_at(HEAD_BYTES + length);
    if crc32c(covered) != u32::from_bytes(crc)? {
        return Err(corrupt("the checksum of the record does not match".into()));
    }
    if found_version != version {
        return Err(Error::new(
            ErrorCode::Unsupported,
            format!(
                "cannot read a record of version {found_version}: this program reads version \
                 {version}"
            ),
        ));
    }
    if zero != 0 {
        return Err(corrupt("the reserved bytes of the record are not zero".into()));
    }
    T::from_bytes(&covered[HEAD_BYTES..])
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAGIC: [u8; 8] = *b"SKEPTEST";

    #[test]
    fn flipped_bits_and_truncation_of_a_record_are_detected() {
        let bytes = seal(MAGIC, 1, &0xABCD_u32);
        assert_eq!(open::<u32>(MAGIC, 1, &bytes).unwrap(), 0xABCD);
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(open::<u32>(MAGIC, 1, &bad).is_err(), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(open::<u32>(MAGIC, 1, &bytes[..len]).is_err(), "truncated to {len}");
        }
    }

    #[test]
    fn error_for_a_record_of_another_version_names_the_version() {
        let error = open::<u32>(MAGIC, 1, &seal(MAGIC, 7, &1_u32)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::Unsupported);
        assert!(error.context().contains("version 7"), "{error}");
    }
}
