//! Bytes with a length before them, as a field of a message or record.

use super::{Codec, Reader, Writer};
use crate::error::Result;

/// Bytes preceded by their 32-bit length: names, attribute values, targets of symbolic links.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(pub Vec<u8>);

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "b\"{}\"", self.0.escape_ascii())
    }
}

impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl std::ops::Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Bytes {
    /// Encodes borrowed bytes in the layout of [`Bytes`], without copying the bytes into a
    /// [`Bytes`].
    pub fn encode_borrowed(bytes: &[u8], w: &mut Writer) {
        (bytes.len() as u32).encode(w);
        w.raw(bytes);
    }
}

/// Space that an encoded [`Bytes`] leaves for the fields that follow it. Without this space, a
/// checksum after many bytes would make the vector grow to twice its length, which copies all bytes
/// once more.
const SPACE_BEHIND_BYTES: usize = 64;

impl Codec for Bytes {
    const LAYOUT: &'static str = "u32 length, bytes";
    fn encode(&self, w: &mut Writer) {
        w.reserve(size_of::<u32>() + self.0.len() + SPACE_BEHIND_BYTES);
        Self::encode_borrowed(&self.0, w);
    }
    fn decode(r: &mut Reader<'_>) -> Result<Self> {
        let len = u32::decode(r)? as usize;
        Ok(Self(r.take(len)?.to_vec()))
    }
}
