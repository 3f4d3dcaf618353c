//! Reads frames from a byte stream.
//!
//! Headers and bodies come from a read-ahead buffer, so that one receive gets many small frames.
//! Bulk data that arrives in this buffer must be copied once more, to the caller's buffer. So after
//! a frame with much bulk data the reader reads only `BULK_READ_AHEAD_BYTES` ahead, since the next
//! frame probably has much bulk data too.

use crate::limits::{BULK_BYTES, BULK_READ_AHEAD_BYTES, READ_AHEAD_BYTES};
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
    /// Whether the last frame had much bulk data.
    is_bulk: bool,
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
        Self { stream, ahead: Buf::new(capacity), start: 0, end: 0, is_bulk: false }
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
            let most = if self.is_bulk { BULK_READ_AHEAD_BYTES } else { self.ahead.len() };
            let limit = most.max(count).min(self.ahead.len());
            let buffer = self.ahead.slice(self.end..self.start + limit);
            let got = self.stream.receive(buffer).await.map_err(disconnected)?;
            if got == 0 {
                return match self.end - self.start {
                    0 => Ok(false),
                    _ => Err(disconnected("the peer closed the connection within a frame")),
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
        let (header, crc) = Header::parse(&bytes)?;
        self.is_bulk = header.data_bytes >= BULK_BYTES;
        Ok(Some((header, crc)))
    }

    /// Reads the body that belongs to `header`, and verifies its checksum.
    pub(crate) async fn body(&mut self, header: &Header, expected_crc: u32) -> Result<Vec<u8>> {
        let len = header.body_bytes as usize;
        let body = if len <= self.ahead.len() {
            if len > 0 && !self.fill(len).await? {
                return Err(disconnected("the stream ended within a frame"));
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

#[cfg(test)]
mod tests {
    use super::*;
    use skep_env::{MessagePart, TcpListener, block_on};

    /// Returns the next frame's body and data, and the number of bytes that the reader received
    /// ahead of the data.
    async fn next(reader: &mut FrameReader) -> (Vec<u8>, Vec<u8>, usize) {
        let (header, crc) = reader.header().await.unwrap().unwrap();
        let body = reader.body(&header, crc).await.unwrap();
        let ahead = reader.end - reader.start;
        let data = Buf::new(header.data_bytes as usize);
        reader.data(&data).await.unwrap();
        (body, data.bytes().to_vec(), ahead)
    }

    #[test]
    fn frame_reader_reads_little_ahead_after_bulk_data() {
        block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_address().unwrap().to_string();
            let sender = TcpStream::connect(&address).await.unwrap();
            let mut reader = FrameReader::new(listener.accept().await.unwrap());
            let lengths = [BULK_BYTES, BULK_BYTES, BULK_BYTES, 0, 1000];
            let mut ahead_of = Vec::new();
            for (index, len) in lengths.into_iter().enumerate() {
                let (body, data) = (vec![7; 3000 * index], vec![index as u8; len as usize]);
                let frame = Header::default().frame_raw(&body, len);
                let parts = vec![MessagePart::Bytes(frame), MessagePart::Bytes(data.clone())];
                sender.send(parts).await.unwrap();
                let (read_body, read_data, ahead) = next(&mut reader).await;
                assert!(read_body == body && read_data == data, "frame {index}");
                assert_eq!(reader.is_bulk, len == BULK_BYTES, "frame {index}");
                ahead_of.push(ahead);
            }
            assert!(ahead_of[1..3].iter().all(|it| *it <= BULK_READ_AHEAD_BYTES), "{ahead_of:?}");
        })
        .unwrap();
    }
}
