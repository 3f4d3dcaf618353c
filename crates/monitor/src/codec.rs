//! The encoding of a frame in the files of the history. A number is encoded with 7 bits in each
//! byte, so that the many small numbers take little space.
//!
//! A record consists of a marker (8 bytes), the length of the payload (4 bytes, little-endian), the
//! CRC-32C of the payload (4 bytes), and the payload. The last byte of the marker is the version of
//! this form. A reader skips damaged bytes up to the next marker, so a damaged record hides no
//! other record.
//!
//! Earlier programs wrote records of version 1, which have no marker. Readers accept both versions
//! in one file. A damaged record of version 1 hides the records of this version that follow it.

use crate::frame::{Dimension, Frame, Key, Level, Load, Measure};
use crate::limits::MAX_FRAME_BYTES;
use skep_types::codec::crc32c;

/// The marker at the beginning of each record of version 2. No text in a payload contains the
/// marker, because the first byte of the marker is not valid in UTF-8.
const MARKER: [u8; 8] = [0xfb, b's', b'k', b'e', b'p', b'f', b'r', 2];
/// Version of the payload. The version is the payload's first byte.
const VERSION: u8 = 1;
/// Number of numbers in a load that precede its buckets.
const NUMBERS_OF_LOAD: usize = 9;
/// Length of the part of a record between its marker and its payload.
const HEAD_BYTES: usize = 8;

/// The lengths of the readable and of the damaged parts of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileSummary {
    /// End of the last complete record, in bytes from the beginning of the file.
    pub end: usize,
    /// Number of damaged bytes before this end.
    pub damaged_bytes: usize,
}

/// Returns the record of a frame.
pub fn record(frame: &Frame) -> Vec<u8> {
    let mut payload = Writer(vec![VERSION]);
    payload.number(frame.start_ms);
    payload.number(frame.span_ms);
    payload.number(frame.samples);
    payload.number(frame.loads.len() as u64);
    for (key, load) in &frame.loads {
        payload.number(key.dimension as u64);
        payload.text(&key.id);
        payload.text(&key.service);
        payload.load(load);
    }
    payload.number(frame.readings.len() as u64);
    for ((measure, id), level) in &frame.readings {
        payload.number(*measure as u64);
        payload.number(u64::from(*id));
        payload.level(*level);
    }
    let payload = payload.0;
    let mut record = Vec::with_capacity(MARKER.len() + HEAD_BYTES + payload.len());
    record.extend_from_slice(&MARKER);
    record.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    record.extend_from_slice(&crc32c(&payload).to_le_bytes());
    record.extend_from_slice(&payload);
    record
}

/// Calls `visit` with the payload of each complete record in `bytes`, which is the content of a
/// file. Skips damaged bytes.
pub fn records(bytes: &[u8], mut visit: impl FnMut(&[u8])) -> FileSummary {
    let mut summary = FileSummary::default();
    let mut at = 0;
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        if let Some((payload, len)) = record_at(rest) {
            visit(payload);
            summary.damaged_bytes += at - summary.end;
            at += len;
            summary.end = at;
            continue;
        }
        let Some(offset) = next_marker(&rest[1..]) else { break };
        at += 1 + offset;
    }
    summary
}

/// Returns the payload and the length of the record at the beginning of `bytes`. `None` means that
/// this record is incomplete or damaged.
fn record_at(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let body = bytes.strip_prefix(&MARKER).unwrap_or(bytes);
    let payload = payload_at(body)?;
    Some((payload, bytes.len() - body.len() + HEAD_BYTES + payload.len()))
}

fn next_marker(bytes: &[u8]) -> Option<usize> {
    bytes.windows(MARKER.len()).position(|window| window == MARKER)
}

fn payload_at(bytes: &[u8]) -> Option<&[u8]> {
    let number = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let len = number(0)? as usize;
    let checksum = number(4)?;
    if len == 0 || len > MAX_FRAME_BYTES {
        return None;
    }
    let payload = bytes.get(HEAD_BYTES..HEAD_BYTES + len)?;
    (crc32c(payload) == checksum).then_some(payload)
}

/// Returns the start of the frame in the payload of a record, in milliseconds since 1970. The
/// function does not decode the frame, so a reader can skip frames of other times at little cost.
/// `None` means that the payload is damaged or has an unknown version.
pub fn start_ms(payload: &[u8]) -> Option<u64> {
    let (version, rest) = payload.split_first()?;
    if *version != VERSION {
        return None;
    }
    Reader(rest).number()
}

/// Decodes the payload of a record. `None` means that the payload is damaged or has an unknown
/// version.
pub fn decode(payload: &[u8]) -> Option<Frame> {
    decode_some(payload, |_| true)
}

/// Like [`decode`], but leaves out the loads of the dimensions for which `is_wanted` returns
/// `false`. A chart of an hour needs one dimension of 3,600 frames. [`decode`] would spend most of
/// its time on the keys and buckets of the other dimensions.
pub fn decode_some(payload: &[u8], is_wanted: impl Fn(Dimension) -> bool) -> Option<Frame> {
    let (version, rest) = payload.split_first()?;
    if *version != VERSION {
        return None;
    }
    let mut reader = Reader(rest);
    let mut frame = Frame {
        start_ms: reader.number()?,
        span_ms: reader.number()?,
        samples: reader.number()?,
        ..Frame::default()
    };
    for _ in 0..reader.number()? {
        let dimension = Dimension::numbered(reader.number()?)?;
        if !is_wanted(dimension) {
            reader.skip_text()?;
            reader.skip_text()?;
            reader.skip_load()?;
            continue;
        }
        let key = Key { dimension, id: reader.text()?, service: reader.text()? };
        frame.loads.insert(key, reader.load()?);
    }
    for _ in 0..reader.number()? {
        let measure = Measure::numbered(reader.number()?)?;
        let id = u32::try_from(reader.number()?).ok()?;
        frame.readings.insert((measure, id), reader.level()?);
    }
    reader.0.is_empty().then_some(frame)
}

struct Writer(Vec<u8>);

impl Writer {
    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
    }

    fn level(&mut self, level: Level) {
        self.number(level.sum);
        self.number(level.max);
    }

    fn load(&mut self, load: &Load) {
        for number in
            [load.operations, load.errors, load.read_bytes, load.written_bytes, load.busy_ns]
        {
            self.number(number);
        }
        self.level(load.queued);
        self.level(load.busy);
        self.number(load.buckets.len() as u64);
        for (bucket, count) in &load.buckets {
            self.number(u64::from(*bucket));
            self.number(*count);
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn number(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 {
                return None;
            }
            number |= part << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn text(&mut self) -> Option<String> {
        let len = usize::try_from(self.number()?).ok()?;
        let (text, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).ok()
    }

    fn skip_text(&mut self) -> Option<()> {
        let len = usize::try_from(self.number()?).ok()?;
        self.0 = self.0.split_at_checked(len)?.1;
        Some(())
    }

    fn level(&mut self) -> Option<Level> {
        Some(Level { sum: self.number()?, max: self.number()? })
    }

    fn skip_load(&mut self) -> Option<()> {
        for _ in 0..NUMBERS_OF_LOAD {
            self.number()?;
        }
        for _ in 0..self.number()? {
            self.number()?;
            self.number()?;
        }
        Some(())
    }

    fn load(&mut self) -> Option<Load> {
        let mut load = Load {
            operations: self.number()?,
            errors: self.number()?,
            read_bytes: self.number()?,
            written_bytes: self.number()?,
            busy_ns: self.number()?,
            queued: self.level()?,
            busy: self.level()?,
            buckets: Vec::new(),
        };
        for _ in 0..self.number()? {
            let bucket = u16::try_from(self.number()?).ok()?;
            load.buckets.push((bucket, self.number()?));
        }
        Some(load)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::tests::frame;

    fn all(bytes: &[u8]) -> Vec<Frame> {
        let mut frames = Vec::new();
        records(bytes, |payload| frames.push(decode(payload).unwrap()));
        frames
    }

    fn payload_of(frame: &Frame) -> Vec<u8> {
        record(frame)[MARKER.len() + HEAD_BYTES..].to_vec()
    }

    /// Returns the record of a frame in version 1.
    fn first_version(frame: &Frame) -> Vec<u8> {
        record(frame)[MARKER.len()..].to_vec()
    }

    #[test]
    fn decoded_frames_equal_the_encoded_frames() {
        let mut first = frame(1_800_000_000, u64::MAX / 2_000_000);
        first.loads.values_mut().for_each(|load| load.errors = u64::MAX);
        let frames = [first, frame(1_800_000_001, 0), Frame::default()];
        let bytes: Vec<u8> = frames.iter().flat_map(record).collect();
        assert_eq!(all(&bytes), frames);
        let mut starts = Vec::new();
        records(&bytes, |payload| starts.push(start_ms(payload).unwrap()));
        assert_eq!(starts, frames.map(|frame| frame.start_ms));
    }

    #[test]
    fn frame_can_be_decoded_without_the_loads_of_other_dimensions() {
        let mut whole = frame(1_800_000_000, u64::MAX / 2_000_000);
        whole.loads.values_mut().for_each(|load| load.buckets.push((90, 1 << 60)));
        let payload = payload_of(&whole);
        for (wanted, _) in Dimension::ALL {
            let mut expected = whole.clone();
            expected.loads.retain(|key, _| key.dimension == wanted);
            assert_eq!(decode_some(&payload, |it| it == wanted), Some(expected), "{wanted:?}");
        }
        for end in 0..payload.len() {
            assert_eq!(decode_some(&payload[..end], |_| false), None, "{end}");
        }
    }

    #[test]
    fn torn_or_damaged_record_hides_no_other_record() {
        let [first, second, third] = [1, 2, 3].map(|number| record(&frame(number, 10 * number)));
        let whole = [first.clone(), second.clone(), third.clone()].concat();
        let end = whole.len();
        assert_eq!(records(&whole, |_| ()), FileSummary { end, damaged_bytes: 0 });
        for at in first.len()..first.len() + second.len() {
            for bit in [0x01, 0x10, 0x80] {
                let mut damaged = whole.clone();
                damaged[at] ^= bit;
                assert_eq!(all(&damaged), [frame(1, 10), frame(3, 30)], "{bit:x} at {at}");
                let summary = records(&damaged, |_| ());
                assert_eq!(summary, FileSummary { end, damaged_bytes: second.len() }, "{at}");
            }
        }
        for cut in 0..second.len() {
            let torn = &whole[..first.len() + cut];
            assert_eq!(all(torn), [frame(1, 10)], "cut at {cut}");
            assert_eq!(records(torn, |_| ()).end, first.len());
            // The next process has continued the file after the incomplete record.
            let continued = [torn, &third].concat();
            assert_eq!(all(&continued), [frame(1, 10), frame(3, 30)], "cut at {cut}");
        }
    }

    #[test]
    fn records_of_both_versions_are_read_from_one_file() {
        let frames = [1, 2, 3].map(|number| frame(number, 10 * number));
        let old = first_version(&frames[0]);
        let mut file = [old.clone(), first_version(&frames[1]), record(&frames[2])].concat();
        assert_eq!(all(&file), frames);
        assert_eq!(records(&file, |_| ()).damaged_bytes, 0);
        for cut in 0..old.len() {
            assert_eq!(all(&old[..cut]), [], "cut at {cut}");
        }
        // Without markers, the damage hides the second record too.
        file[old.len() / 2] ^= 0x10;
        assert_eq!(all(&file), &frames[2..]);
    }

    /// Wherever a marker begins, the reader examines the bytes after the marker.
    #[test]
    fn many_markers_without_records_are_skipped() {
        let last = record(&frame(1, 10));
        let mut file = MARKER.repeat(100_000);
        let garbage = file.len();
        file.extend_from_slice(&last);
        assert_eq!(all(&file), [frame(1, 10)]);
        let end = file.len();
        assert_eq!(records(&file, |_| ()), FileSummary { end, damaged_bytes: garbage });
    }

    #[test]
    fn decoding_changed_frame_bytes_never_panics() {
        let payload = payload_of(&frame(5, 9));
        for at in 0..payload.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut changed = payload.clone();
                changed[at] = value;
                // The result is a different frame or an error. An error and a wrong frame are both
                // acceptable, but a panic is not.
                let _ = decode(&changed);
            }
            assert_eq!(decode(&payload[..at]), None);
        }
    }
}
