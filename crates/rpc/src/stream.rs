//! Reads frames from a byte stream.
//!
//! Headers and bodies come from a read-ahead buffer, so that one receive gets many small frames.
//! The reader must copy bulk data that arrives in this buffer to the caller's buffer. So after a
//! frame with much bulk data the reader reads only `BULK_READ_AHEAD_BYTES` ahead, since the next
//! frame probably has much bulk data too.
//!
//! A process may have hundreds of thousands of connections, and most of them carry one small frame
//! at a time. So the read-ahead buffer is long while many frames arrive together, and short before
//! and after this time.

use crate::limits::{
    BULK_BYTES, BULK_READ_AHEAD_BYTES, MAX_LONG_BUFFERS, READ_AHEAD_BYTES, SHORT_READ_AHEAD_BYTES,
    SHORT_RECEIVES,
};
use skep_env::{Buf, TcpStream};
use skep_types::{Error, ErrorCode, Result};
use skep_wire::frame::{HEADER_BYTES, Header, check_body};
use std::cell::Cell;

/// Reads frames. Headers and bodies come from a read-ahead buffer; bulk data is received directly
/// into the caller's buffer.
pub(crate) struct FrameReader {
    stream: TcpStream,
    ahead: Buf,
    length: AheadLength,
    start: usize,
    end: usize,
    /// Whether the last frame had much bulk data.
    is_bulk: bool,
}

thread_local! {
    /// Number of long read-ahead buffers of this thread.
    static LONG_BUFFERS: Cell<usize> = const { Cell::new(0) };
}

/// Chooses the length of a read-ahead buffer. A thread has at most [`MAX_LONG_BUFFERS`] long
/// buffers.
#[derive(Debug)]
struct AheadLength {
    /// Length of the long buffer in bytes.
    longest: usize,
    is_long: bool,
    /// Number of consecutive receives that would have fitted into the short buffer.
    short_receives: u32,
}

impl AheadLength {
    fn new(longest: usize) -> Self {
        Self { longest, is_long: false, short_receives: 0 }
    }

    /// Returns the length in bytes.
    fn bytes(&self) -> usize {
        match self.is_long {
            true => self.longest,
            false => SHORT_READ_AHEAD_BYTES.min(self.longest),
        }
    }

    /// Makes the buffer long, if the thread may have one more long buffer.
    fn lengthen(&mut self) {
        self.short_receives = 0;
        let has_long = self.longest > SHORT_READ_AHEAD_BYTES;
        if has_long && !self.is_long && LONG_BUFFERS.get() < MAX_LONG_BUFFERS {
            LONG_BUFFERS.set(LONG_BUFFERS.get() + 1);
            self.is_long = true;
        }
    }

    fn shorten(&mut self) {
        self.short_receives = 0;
        if std::mem::take(&mut self.is_long) {
            // When the thread ends, the thread-local count may be destroyed already.
            let _ = LONG_BUFFERS.try_with(|count| count.set(count.get().saturating_sub(1)));
        }
    }

    /// Handles a receive of `got` bytes. `is_full` is whether these bytes have filled the buffer.
    /// After a full buffer, more bytes probably wait in the socket.
    fn received(&mut self, got: usize, is_full: bool) {
        if is_full {
            return self.lengthen();
        }
        self.short_receives =
            if got > SHORT_READ_AHEAD_BYTES { 0 } else { self.short_receives + 1 };
        if self.short_receives >= SHORT_RECEIVES {
            self.shorten();
        }
    }
}

impl Drop for AheadLength {
    fn drop(&mut self) {
        self.shorten();
    }
}

fn disconnected(error: impl std::fmt::Display) -> Error {
    Error::new(ErrorCode::Disconnected, format!("the connection was lost: {error}"))
}

impl FrameReader {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self::with_buffer(stream, READ_AHEAD_BYTES)
    }

    /// Creates a reader with a read-ahead buffer of at most `longest` bytes.
    pub(crate) fn with_buffer(stream: TcpStream, longest: usize) -> Self {
        let length = AheadLength::new(longest);
        let ahead = Buf::new(length.bytes());
        Self { stream, ahead, length, start: 0, end: 0, is_bulk: false }
    }

    /// Moves the unread bytes to the start of the read-ahead buffer, or to a buffer of another
    /// length.
    fn make_space(&mut self) {
        let (unread, len) = (self.end - self.start, self.length.bytes());
        if self.ahead.len() < len || (self.ahead.len() > len && unread == 0) {
            let other = Buf::new(len);
            other.write(0, &self.ahead.bytes()[self.start..self.end]);
            self.ahead = other;
        } else if self.start > 0 {
            self.ahead.move_to_start(self.start..self.end);
        }
        (self.start, self.end) = (0, unread);
    }

    /// Receives until the read-ahead buffer holds `count` bytes. Returns `false` if the stream ends
    /// before the first byte.
    async fn fill(&mut self, count: usize) -> Result<bool> {
        debug_assert!(count <= self.length.bytes(), "callers read at most the buffer's length");
        while self.end - self.start < count {
            self.make_space();
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
            self.length.received(got, self.end == self.ahead.len());
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
        if len > self.length.bytes() {
            self.length.lengthen();
        }
        let body = if len <= self.length.bytes() {
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
    use skep_env::{MessagePart, TcpListener, block_on, spawn};

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

    /// Sends frames in one message, and reads these frames. Each frame has a body and bulk data of
    /// the given lengths.
    async fn exchange(sender: &TcpStream, reader: &mut FrameReader, frames: &[(usize, usize)]) {
        let byte = |index: usize| index as u8;
        let mut parts = Vec::new();
        for (index, (body, data)) in frames.iter().enumerate() {
            let frame = Header::default().frame_raw(&vec![byte(index); *body], *data as u32);
            parts.push(MessagePart::Bytes(frame));
            parts.push(MessagePart::Bytes(vec![byte(index + 1); *data]));
        }
        // The buffers of the sockets may be too small for all frames, so a separate task sends the
        // frames.
        let sender = sender.clone();
        let sending = spawn(async move { sender.send(parts).await });
        for (index, lengths) in frames.iter().enumerate() {
            let (body, data, _) = next(reader).await;
            assert_eq!((body.len(), data.len()), *lengths);
            assert!(body.iter().all(|it| *it == byte(index)));
            assert!(data.iter().all(|it| *it == byte(index + 1)));
        }
        sending.await.unwrap();
    }

    async fn connect() -> (TcpStream, FrameReader) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_address().unwrap().to_string();
        let sender = TcpStream::connect(&address).await.unwrap();
        (sender, FrameReader::new(listener.accept().await.unwrap()))
    }

    #[test]
    fn buffer_is_long_only_while_many_frames_arrive_together() {
        block_on(async {
            let (sender, mut reader) = connect().await;
            exchange(&sender, &mut reader, &[(100, 0); 3]).await;
            assert_eq!(reader.ahead.len(), SHORT_READ_AHEAD_BYTES);
            for _ in 0..3 {
                exchange(&sender, &mut reader, &[(100, 0); 100]).await;
                assert_eq!(reader.ahead.len(), READ_AHEAD_BYTES);
            }
            // The reader replaces the buffer before its next receive, so the loop exchanges one
            // frame more than `SHORT_RECEIVES`.
            for _ in 0..=SHORT_RECEIVES {
                exchange(&sender, &mut reader, &[(100, 0)]).await;
            }
            assert_eq!(reader.ahead.len(), SHORT_READ_AHEAD_BYTES);
        })
        .unwrap();
    }

    #[test]
    fn thread_has_a_bounded_number_of_long_buffers() {
        let create = || {
            let mut length = AheadLength::new(READ_AHEAD_BYTES);
            length.lengthen();
            length
        };
        let mut all: Vec<_> = (0..MAX_LONG_BUFFERS).map(|_| create()).collect();
        assert!(all.iter().all(|length| length.bytes() == READ_AHEAD_BYTES));
        let mut more = create();
        assert_eq!(more.bytes(), SHORT_READ_AHEAD_BYTES);
        all.pop();
        more.received(SHORT_READ_AHEAD_BYTES, true);
        assert_eq!(more.bytes(), READ_AHEAD_BYTES);
        assert_eq!(create().bytes(), SHORT_READ_AHEAD_BYTES);
        drop((all, more));
        assert_eq!(LONG_BUFFERS.get(), 0);
    }

    #[test]
    fn frames_of_all_lengths_are_read_in_all_orders() {
        let bodies = [0, 1, 8_000, 9_000, READ_AHEAD_BYTES, READ_AHEAD_BYTES + 1];
        let data = [0, 1, 5_000, BULK_BYTES as usize];
        let lengths: Vec<_> =
            bodies.iter().flat_map(|body| data.iter().map(move |data| (*body, *data))).collect();
        let pairs: Vec<_> =
            lengths.iter().flat_map(|first| lengths.iter().map(move |it| (*first, *it))).collect();
        block_on(async move {
            // The test covers a thread without long buffers, and a thread that has all its long
            // buffers.
            for long_buffers in [0, MAX_LONG_BUFFERS] {
                LONG_BUFFERS.set(long_buffers);
                let (sender, mut reader) = connect().await;
                for (first, second) in &pairs {
                    exchange(&sender, &mut reader, &[*first, *second, (0, 0)]).await;
                }
            }
        })
        .unwrap();
    }
}
