//! Reads frames from a byte stream.

use crate::limits::READ_AHEAD_BYTES;
use skep_env::{Buf, TcpStream};
use skep_types::{Error, ErrorCode, Result};
use skep_wire::frame::{HEADER_BYTES, Header, check_body};

/// Reads frames. Headers and bodies come from a read-ahead buffer; bulk data is received directly
/// into the caller's buffer.
pub(crate) struct FrameReader {
    stream: TcpStream,
    ahead: Buf,
    start: usize,
    end: usize,
}

fn disconnected(error: impl std::fmt::Display) -> Error {
    Error::new(ErrorCode::Disconnected, format!("connection lost: {error}"))
}

impl FrameReader {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self::with_buffer(stream, READ_AHEAD_BYTES)
    }

    /// Creates a reader with a read-ahead buffer of `capacity` bytes.
    pub(crate) fn with_buffer(stream: TcpStream, capacity: usize) -> Self {
        Self { stream, ahead: Buf::new(capacity), start: 0, end: 0 }
    }

    /// Receives until the read-ahead buffer holds `count` bytes. Returns `false` if the stream ends
    /// before the first byte.
    async fn fill(&mut self, count: usize) -> Result<bool> {
        debug_assert!(count <= self.ahead.len(), "callers read at most the buffer's length");
        while self.end - self.start < count {
            if self.start > 0 {
                self.ahead.move_to_start(self.start..self.end);
                self.end -= self.start;
                self.start = 0;
            }
            let buffer = self.ahead.slice(self.end..self.ahead.len());
            let got = self.stream.receive(buffer).await.map_err(disconnected)?;
            if got == 0 {
                return match self.end - self.start {
                    0 => Ok(false),
                    _ => Err(disconnected("the peer ended it within a frame")),
                };
            }
            self.end += got;
        }
        Ok(true)
    }

    /// Reads the next header and the checksum of its body; returns `None` at the end of the stream.
    pub(crate) async fn header(&mut self) -> Result<Option<(Header, u32)>> {
        if !self.fill(HEADER_BYTES).await? {
            return Ok(None);
        }
        let mut bytes = [0; HEADER_BYTES];
        bytes.copy_from_slice(&self.ahead.bytes()[self.start..self.start + HEADER_BYTES]);
        self.start += HEADER_BYTES;
        Header::parse(&bytes).map(Some)
    }

    /// Reads the body that belongs to `header`, and verifies its checksum.
    pub(crate) async fn body(&mut self, header: &Header, expected_crc: u32) -> Result<Vec<u8>> {
        let len = header.body_bytes as usize;
        let body = if len <= self.ahead.len() {
            if len > 0 && !self.fill(len).await? {
                return Err(disconnected("it ended within a frame"));
            }
            let body = self.ahead.bytes()[self.start..self.start + len].to_vec();
            self.start += len;
            body
        } else {
            let buf = Buf::new(len);
            self.data(&buf).await?;
            buf.bytes().to_vec()
        };
        check_body(&body, expected_crc)?;
        Ok(body)
    }

    /// Receives bulk data until `into` is full.
    pub(crate) async fn data(&mut self, into: &Buf) -> Result<()> {
        let ready = (self.end - self.start).min(into.len());
        into.write(0, &self.ahead.bytes()[self.start..self.start + ready]);
        self.start += ready;
        if ready == into.len() {
            return Ok(());
        }
        self.stream.receive_exact(into.slice(ready..into.len())).await.map_err(disconnected)
    }
}
