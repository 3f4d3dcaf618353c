//! A frame consists of a header of 128 bytes, a body of `body_bytes`, and bulk data of
//! `data_bytes`.
//!
//! `docs/protocol/frame.md` shows the layout. Bulk data is never re-encoded and never copied into
//! the body. The body contains the checksums of the bulk data, one per granule, so the header has
//! no checksum of the bulk data.

use crate::limits::{MAX_BODY_BYTES, MAX_DATA_BYTES};
use skep_types::codec::{Codec, Described, FieldDoc, Reader, Writer, crc32c};
use skep_types::{Epoch, Error, ErrorCode, GroupId, MapVersion, Result, SessionId};

/// Length of a frame header in bytes.
pub const HEADER_BYTES: usize = 128;
/// The first four bytes of every frame.
pub const MAGIC: [u8; 4] = *b"SKEP";
/// Oldest protocol version that this program supports.
pub const OLDEST_PROTOCOL: u16 = 1;
/// Newest protocol version that this program supports.
pub const NEWEST_PROTOCOL: u16 = 1;

/// Flag that marks a frame as a reply.
pub const FLAG_REPLY: u16 = 1;
/// Flag of requests whose effect must be durable on the device before the reply (`fsync`,
/// `O_SYNC`).
pub const FLAG_DURABLE: u16 = 2;
/// Flag of replies that contain the times of the request in the fields `trace`, `user`,
/// `user_group` and `job` ([`Header::set_times`]).
pub const FLAG_TIMES: u16 = 4;
const KNOWN_FLAGS: u16 = FLAG_REPLY | FLAG_DURABLE | FLAG_TIMES;
/// Number of stages whose times a reply contains.
pub const TIMES: usize = 7;

skep_types::record! {
    /// The header of a frame.
    pub struct Header {
        /// Protocol version negotiated for the connection.
        pub protocol: u16,
        /// Message number from the catalog. A reply has the number of its request.
        pub message: u16,
        /// Version of the message's layout.
        pub message_version: u16,
        /// Bit 0: the frame is a reply. Bit 1: the effect of the request must be durable on the
        /// device before the reply. Bit 2, only in replies: the reply has the times of the request.
        /// All other bits must be zero.
        pub flags: u16,
        /// Length of the body, in bytes.
        pub body_bytes: u32,
        /// Length of the bulk data after the body, in bytes.
        pub data_bytes: u32,
        /// Identifies the request on its connection. The requester chooses a tag that no other
        /// request in flight on the connection has. The reply has the tag of its request.
        pub tag: u64,
        /// Session of the requester. Zero means no session. In requests to management, this field
        /// is the random id that the sender drew when it started.
        pub session: SessionId,
        /// Slot of the session in which a modifying request runs.
        pub slot: u32,
        /// Zero in requests. In replies, zero for success, otherwise an error code.
        /// The body of an error reply is the context of the error.
        pub status: u16,
        /// Priority of the request: 0 interactive, 1 normal, 2 background.
        pub priority: u8,
        /// Must be zero.
        pub reserved: u8,
        /// Sequence number of the request within its slot, from 1. Zero for requests without a
        /// slot. In a reply of a metadata target to a change: the number of the change, counted
        /// since the start of the target. Zero in such a reply means that the change is durable.
        pub sequence: u64,
        /// The group to which the request is addressed. Zero addresses the node itself.
        pub group: GroupId,
        /// Time for which the requester waits, in milliseconds from sending. Zero means no limit.
        pub time_left_ms: u32,
        /// Epoch of the group in the sender's cluster map.
        pub epoch: Epoch,
        /// Minimum version of the cluster map. In a request: the receiver must have at least this
        /// version. In a reply: the requester must put at least this version into its later
        /// requests.
        pub lowest_map: MapVersion,
        /// Trace id. All requests of one operation have the same trace id. In replies with bit 2 of
        /// `flags`: time in the stages `waiting`, `processing`, `disk` and `log sync`, in
        /// microseconds. Each time has 32 bits, and the first time is in the lowest bits.
        pub trace: u128,
        /// In requests of a metadata or storage target: the group that the sender leads as
        /// primary. Zero in requests of clients, tools and nodes.
        pub sender_group: GroupId,
        /// Epoch of `sender_group` in the sender's cluster map. If a client requests a change from
        /// a metadata target, this field is a start number of the target. It is the number of the
        /// start in which the client opened its session or last compared its acknowledged changes.
        pub sender_epoch: Epoch,
        /// User id of the program that caused the request, plus one. Zero means that no program
        /// caused the request. In replies with bit 2 of `flags`: time in the stage `others`, in
        /// microseconds.
        pub user: u32,
        /// Group id of the program that caused the request, plus one. Zero means that no program
        /// caused the request. In replies with bit 2 of `flags`: time in the stage `network`, in
        /// microseconds.
        pub user_group: u32,
        /// Id of the job of the program that caused the request. Zero means no job. In replies with
        /// bit 2 of `flags`: time in the stage `copies`, in microseconds.
        pub job: u32,
    }
}

impl Default for Header {
    fn default() -> Self {
        Self {
            protocol: NEWEST_PROTOCOL,
            message: 0,
            message_version: 1,
            flags: 0,
            body_bytes: 0,
            data_bytes: 0,
            tag: 0,
            session: SessionId::default(),
            slot: 0,
            status: 0,
            priority: 1,
            reserved: 0,
            sequence: 0,
            group: GroupId::default(),
            time_left_ms: 0,
            epoch: Epoch::default(),
            lowest_map: MapVersion::default(),
            trace: 0,
            sender_group: GroupId::default(),
            sender_epoch: Epoch::default(),
            user: 0,
            user_group: 0,
            job: 0,
        }
    }
}

const FIELD_BYTES: usize = 112;
/// Offset of the field `body_bytes` in a frame. The field `data_bytes` follows `body_bytes`.
const LENGTHS_AT: usize = 16;
const BODY_CRC_AT: usize = HEADER_BYTES - 8;
const HEADER_CRC_AT: usize = HEADER_BYTES - 4;

impl Header {
    /// Whether the frame is a reply.
    pub fn is_reply(&self) -> bool {
        self.flags & FLAG_REPLY != 0
    }

    /// Whether the effect of the request must be durable on the device before the reply.
    pub fn is_durable(&self) -> bool {
        self.flags & FLAG_DURABLE != 0
    }

    /// Returns the start number that a client's request to a metadata target contains. This number
    /// is the number of the target's start in which the client opened its session or last compared
    /// its acknowledged changes. Zero means no start.
    pub fn start(&self) -> u64 {
        if self.sender_group.raw() == 0 { self.sender_epoch.raw() } else { 0 }
    }

    /// Sets the start number that a client's request contains ([`Self::start`]).
    pub fn set_start(&mut self, start: u64) {
        self.sender_epoch = Epoch::new(start);
    }

    /// Sets the times that the request spent in each stage, in microseconds, in the header of its
    /// reply. The order of the stages is: waiting, processing, disk, log sync, others, network,
    /// copies.
    pub fn set_times(&mut self, times: [u32; TIMES]) {
        let [waiting, processing, disk, log_sync, others, network, copies] = times;
        let in_trace = [waiting, processing, disk, log_sync].into_iter().rev();
        self.trace = in_trace.fold(0, |sum, time| sum << 32 | u128::from(time));
        (self.user, self.user_group, self.job) = (others, network, copies);
        self.flags |= FLAG_TIMES;
    }

    /// Returns the times in a reply ([`Self::set_times`]). `None` if the reply has no times.
    pub fn times(&self) -> Option<[u32; TIMES]> {
        let of_trace = |place: u32| (self.trace >> (32 * place)) as u32;
        let [waiting, processing, disk, log_sync] = [0, 1, 2, 3].map(of_trace);
        let times = [waiting, processing, disk, log_sync, self.user, self.user_group, self.job];
        (self.flags & (FLAG_REPLY | FLAG_TIMES) == FLAG_REPLY | FLAG_TIMES).then_some(times)
    }

    /// Returns the header of the reply to this request.
    pub fn reply(&self) -> Self {
        Self {
            flags: FLAG_REPLY | self.flags & FLAG_TIMES,
            body_bytes: 0,
            data_bytes: 0,
            status: 0,
            ..self.clone()
        }
    }

    /// Encodes header and body into one buffer. The caller must send `data_bytes` of bulk data
    /// after this buffer.
    ///
    /// # Panics
    /// Panics if `body` is longer than [`MAX_BODY_BYTES`]. Senders must limit the size of their
    /// messages.
    pub fn frame(&self, body: &impl Codec, data_bytes: u32) -> Vec<u8> {
        let mut w = self.begin_frame(160);
        body.encode(&mut w);
        seal(w.finish(), data_bytes)
    }

    /// Like [`Self::frame`], but for a body that is already encoded.
    pub fn frame_raw(&self, body: &[u8], data_bytes: u32) -> Vec<u8> {
        let mut w = self.begin_frame(body.len());
        w.raw(body);
        seal(w.finish(), data_bytes)
    }

    /// Returns a buffer that begins with this header, and has space for a body of `body_bytes`.
    /// [`seal`] sets the lengths and the checksums.
    fn begin_frame(&self, body_bytes: usize) -> Writer {
        let mut w = Writer::over(Vec::with_capacity(HEADER_BYTES + body_bytes));
        w.raw(&MAGIC);
        (HEADER_BYTES as u16).encode(&mut w);
        0_u16.encode(&mut w);
        self.encode(&mut w);
        w.raw(&[0; HEADER_BYTES - BODY_CRC_AT]);
        w
    }

    /// Parses a header. Returns the header and the checksum of the body (see [`check_body`]).
    ///
    /// # Errors
    /// Returns `Protocol` if the bytes are not a valid header. Reasons are a wrong magic, header
    /// length or checksum, unknown flags, non-zero reserved bytes, and lengths above the limits.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<(Self, u32)> {
        let wrong =
            |what: String| Error::new(ErrorCode::Protocol, format!("invalid frame header: {what}"));
        if bytes[..4] != MAGIC {
            return Err(wrong(format!(
                "the magic number of the header is {:02x?}, not \"SKEP\"",
                &bytes[..4]
            )));
        }
        let mut tail = Reader::new(&bytes[BODY_CRC_AT..]);
        let (body_crc, header_crc) = (u32::decode(&mut tail)?, u32::decode(&mut tail)?);
        if crc32c(&bytes[..HEADER_CRC_AT]) != header_crc {
            return Err(wrong("the checksum of the header does not match".into()));
        }
        let mut r = Reader::new(&bytes[4..BODY_CRC_AT]);
        let (length, zero) = (u16::decode(&mut r)?, u16::decode(&mut r)?);
        let header = Self::decode(&mut r)?;
        if usize::from(length) != HEADER_BYTES {
            return Err(wrong(format!("the length of the header is {length}, not {HEADER_BYTES}")));
        }
        if zero != 0 || header.reserved != 0 {
            return Err(wrong("the reserved bytes of the header are not zero".into()));
        }
        if header.flags & !KNOWN_FLAGS != 0 {
            return Err(wrong(format!("the header has unknown flags {:#x}", header.flags)));
        }
        if header.flags & FLAG_TIMES != 0 && !header.is_reply() {
            return Err(wrong("a request has the flag for times of replies".into()));
        }
        if header.body_bytes as usize > MAX_BODY_BYTES
            || header.data_bytes as usize > MAX_DATA_BYTES
        {
            return Err(wrong(format!(
                "a body of {} bytes or data of {} bytes exceeds the limit",
                header.body_bytes, header.data_bytes
            )));
        }
        Ok((header, body_crc))
    }
}

/// Sets the lengths and the checksums in the header of a frame. `bytes` are the header and the
/// body.
fn seal(mut bytes: Vec<u8>, data_bytes: u32) -> Vec<u8> {
    let body_bytes = bytes.len() - HEADER_BYTES;
    assert!(body_bytes <= MAX_BODY_BYTES, "senders limit the length of message bodies");
    let lengths = u64::from(data_bytes) << 32 | body_bytes as u64;
    bytes[LENGTHS_AT..LENGTHS_AT + 8].copy_from_slice(&lengths.to_le_bytes());
    let body_crc = crc32c(&bytes[HEADER_BYTES..]);
    bytes[BODY_CRC_AT..HEADER_CRC_AT].copy_from_slice(&body_crc.to_le_bytes());
    let header_crc = crc32c(&bytes[..HEADER_CRC_AT]);
    bytes[HEADER_CRC_AT..HEADER_BYTES].copy_from_slice(&header_crc.to_le_bytes());
    bytes
}

const _: () = assert!(
    8 + FIELD_BYTES == BODY_CRC_AT,
    "the fields of the header end where its checksums begin"
);

/// Checks a body against the checksum in the frame header.
///
/// # Errors
/// Returns `Protocol` if the checksums differ.
pub fn check_body(body: &[u8], expected: u32) -> Result<()> {
    if crc32c(body) == expected {
        Ok(())
    } else {
        Err(Error::new(
            ErrorCode::Protocol,
            "invalid frame body: the checksum of the body does not match",
        ))
    }
}

/// Description of the header's fields, for the generated reference.
pub const HEADER_FIELDS: &[FieldDoc] = <Header as Described>::FIELDS;

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        Header { message: 7, tag: 9, ..Header::default() }.frame(&0xABCD_u16, 0)
    }

    fn parse(bytes: &[u8]) -> Result<(Header, u32)> {
        Header::parse(bytes[..HEADER_BYTES].try_into().unwrap())
    }

    #[test]
    fn frame_header_survives_a_round_trip() {
        let bytes = sample();
        let (header, crc) = parse(&bytes).unwrap();
        assert_eq!((header.message, header.tag, header.body_bytes), (7, 9, 2));
        check_body(&bytes[HEADER_BYTES..], crc).unwrap();
        // A frame has the lengths of its own body and data, whatever the header contained before.
        let frame = Header { data_bytes: 3, ..header.clone() }.frame_raw(&[5; 300], 70_000);
        let (again, crc) = parse(&frame).unwrap();
        check_body(&frame[HEADER_BYTES..], crc).unwrap();
        assert_eq!(again, Header { body_bytes: 300, data_bytes: 70_000, ..header });
    }

    #[test]
    fn flipped_bit_of_a_header_is_detected() {
        for bit in 0..HEADER_BYTES * 8 {
            let mut bytes = sample();
            bytes[bit / 8] ^= 1 << (bit % 8);
            // The header contains the body's checksum, so the header's checksum also protects the
            // body's checksum.
            assert!(parse(&bytes).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn reply_header_has_the_times_set_by_the_receiver() {
        let mut request = Header { trace: 77, user: 3, ..Header::default() };
        assert_eq!(request.reply().times(), None);
        let times = [1, 2, u32::MAX, 4, 5, 6, 7];
        request.set_times(times);
        let bytes = request.reply().frame(&0_u8, 0);
        assert_eq!(parse(&bytes).unwrap().0.times(), Some(times));
        // Only a reply may contain times.
        let error = parse(&request.frame(&0_u8, 0)).unwrap_err();
        assert!(error.to_string().contains("flag for times of replies"), "{error}");
    }

    #[test]
    fn header_fields_have_the_documented_length() {
        assert_eq!(Header::default().to_bytes().len(), FIELD_BYTES);
    }

    proptest::proptest! {
        #[test]
        fn frame_parser_never_panics(bytes in proptest::collection::vec(0_u8.., HEADER_BYTES)) {
            let _ = parse(&bytes);
        }
    }
}
