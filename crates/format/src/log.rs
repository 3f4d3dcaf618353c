//! Framing of a log: segments of records. Each record is written by one append.
//!
//! Metadata targets and management use this framing. This module is responsible for the layout of a
//! record, and for the rule that distinguishes a torn tail from damage. It is not responsible for
//! files, or for the meaning of a record. `docs/format/metadata-log.md` shows the layout.
//!
//! # Crash rule
//! A record is valid if its checksum matches, its LSN is one more than the previous LSN, and its
//! group epoch is not lower than the previous epoch. After a power loss, any unsynced part of the
//! log may be missing, even if later parts are present. Each record therefore also contains the LSN
//! of the log's last synced record at the time of the write. If a record at or below the highest of
//! these LSNs is missing or invalid, synced data is damaged, and the reader returns an error. If
//! the first missing or invalid record has a higher LSN, the log ends before that record.

use skep_types::codec::{Codec, Reader, Writer, crc32c};
use skep_types::{ClusterId, Epoch, Error, ErrorCode, Lsn, Result, TargetId};

/// Number of bytes before the payload of a record.
pub const RECORD_HEADER_BYTES: usize = 40;
/// Maximum length of a payload. Writers must not exceed this length, because a reader treats a
/// record with a longer payload as invalid. A record of this length fits into the body of one frame
/// of the protocol. So the members of a group can send their records to each other.
pub const MAX_PAYLOAD_BYTES: usize = 15 << 20;
/// The first bytes of each record. The last of these bytes is the version of the layout.
const MAGIC: u32 = u32::from_le_bytes(*b"SKL2");
/// The first bytes of each record of version 1, which had no epoch.
const MAGIC_OF_VERSION_1: [u8; 4] = *b"SKLG";

/// The owner of a log. A reader treats the records of another owner as invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogOwner {
    /// The cluster to which the log belongs.
    pub cluster: ClusterId,
    /// The target to which the log belongs. Target zero means management.
    pub target: TargetId,
}

/// One record of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Epoch of the group in which the group's primary created this record. Zero in the log of
    /// management, which has no group.
    pub epoch: Epoch,
    /// Log sequence number of this record.
    pub lsn: Lsn,
    /// LSN of the last synced record of this log at the time of the write of this record. Each
    /// member of a group writes the LSN of its own last synced record to this field.
    pub synced: Lsn,
    /// Content of the record, encoded by the service that writes the log.
    pub payload: Vec<u8>,
}

/// Returns a checksum of `bytes` that also covers the owner, so that records of a different owner
/// are invalid.
fn checksum(owner: LogOwner, bytes: &[u8]) -> u32 {
    let mut w = Writer::over(Vec::with_capacity(24));
    owner.cluster.encode(&mut w);
    owner.target.encode(&mut w);
    crc32c(bytes).encode(&mut w);
    crc32c(&w.finish())
}

/// Encodes a record: magic, checksum of all bytes after the checksum, length of the payload, four
/// zero bytes, epoch, LSN, LSN of the last synced record, payload.
///
/// # Errors
/// Returns `TooLarge` if the payload is longer than [`MAX_PAYLOAD_BYTES`], because no reader would
/// find this record or the records after it.
pub fn encode_record(
    owner: LogOwner,
    epoch: Epoch,
    lsn: Lsn,
    synced: Lsn,
    payload: &[u8],
) -> Result<Vec<u8>> {
    if payload.len() > MAX_PAYLOAD_BYTES {
        let what = format!(
            "cannot log record {lsn}: the payload of this record has {} bytes; the limit is \
             {MAX_PAYLOAD_BYTES}",
            payload.len()
        );
        return Err(Error::new(ErrorCode::TooLarge, what));
    }
    let mut w = Writer::over(Vec::with_capacity(RECORD_HEADER_BYTES + payload.len()));
    MAGIC.encode(&mut w);
    0_u32.encode(&mut w);
    (payload.len() as u32).encode(&mut w);
    0_u32.encode(&mut w);
    epoch.encode(&mut w);
    lsn.encode(&mut w);
    synced.encode(&mut w);
    w.raw(payload);
    let mut bytes = w.finish();
    let crc = checksum(owner, &bytes[8..]);
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    Ok(bytes)
}

/// Decodes the record at the start of `bytes`, and returns it with its length. `None` means that
/// `bytes` does not start with a complete, valid record.
fn decode_record(owner: LogOwner, bytes: &[u8]) -> Option<(Record, usize)> {
    let mut r = Reader::new(bytes.get(..RECORD_HEADER_BYTES)?);
    let (magic, crc) = (u32::decode(&mut r).ok()?, u32::decode(&mut r).ok()?);
    let (len, zero) = (u32::decode(&mut r).ok()? as usize, u32::decode(&mut r).ok()?);
    let epoch = Epoch::decode(&mut r).ok()?;
    let (lsn, synced) = (Lsn::decode(&mut r).ok()?, Lsn::decode(&mut r).ok()?);
    if magic != MAGIC || zero != 0 || len > MAX_PAYLOAD_BYTES {
        return None;
    }
    let end = RECORD_HEADER_BYTES + len;
    let whole = bytes.get(..end)?;
    if checksum(owner, &whole[8..]) != crc {
        return None;
    }
    Some((Record { epoch, lsn, synced, payload: whole[RECORD_HEADER_BYTES..].to_vec() }, end))
}

/// The valid records of a segment.
#[derive(Debug, PartialEq, Eq)]
pub struct Scan {
    /// The records in ascending order of their LSNs.
    pub records: Vec<Record>,
    /// End of the last record, in bytes from the start of the scanned bytes. A caller that appends
    /// to the segment must first truncate the segment to this length.
    pub end: usize,
}

/// Reads consecutive complete records from the start of `bytes`. `first` is the LSN of the first
/// record. Stops before the first record that is missing, incomplete or invalid, and does not
/// search for a later record. So the caller must keep track of the records in the log.
pub fn complete_records(owner: LogOwner, first: Lsn, bytes: &[u8]) -> Scan {
    let mut records: Vec<Record> = Vec::new();
    let mut end = 0;
    let mut next = first;
    let mut epoch = Epoch::default();
    while let Some((record, len)) = decode_record(owner, &bytes[end..]) {
        if record.lsn != next || record.epoch < epoch {
            break;
        }
        next = Lsn::new(next.raw() + 1);
        epoch = record.epoch;
        end += len;
        records.push(record);
    }
    Scan { records, end }
}

/// Reads the records of a segment. `first` is the LSN of the segment's first record.
///
/// # Errors
/// - `Corrupt`, which names the offset, if a record is damaged although a later record shows that
///   it was synced.
/// - `Unsupported` if the segment has records of version 1.
pub fn scan(owner: LogOwner, first: Lsn, bytes: &[u8]) -> Result<Scan> {
    if bytes.starts_with(&MAGIC_OF_VERSION_1) {
        let what = "cannot read the log: the records have version 1, and this program reads \
                    version 2; copy the files into a new cluster, with the program that wrote the \
                    log";
        return Err(Error::new(ErrorCode::Unsupported, what));
    }
    let Scan { records, end } = complete_records(owner, first, bytes);
    let next = Lsn::new(first.raw() + records.len() as u64);
    if let Some(witness) = later_record(owner, next, &bytes[end..])
        && witness.synced >= next
    {
        return Err(Error::new(
            ErrorCode::Corrupt,
            format!(
                "record {next} at byte {end} is damaged, although record {} confirms that record \
                 {next} was synced; restore this target from a copy of its directory",
                witness.lsn
            ),
        ));
    }
    Ok(Scan { records, end })
}

/// Searches `bytes` for valid records with LSNs from `next` on. Of these records, returns the
/// record with the highest `synced`.
fn later_record(owner: LogOwner, next: Lsn, bytes: &[u8]) -> Option<Record> {
    let magic = MAGIC.to_le_bytes();
    let mut best: Option<Record> = None;
    let mut at = 0;
    while at + RECORD_HEADER_BYTES <= bytes.len() {
        if bytes[at..at + 4] != magic {
            at += 1;
            continue;
        }
        match decode_record(owner, &bytes[at..]) {
            Some((record, len)) if record.lsn >= next => {
                if best.as_ref().is_none_or(|it| it.synced < record.synced) {
                    best = Some(record);
                }
                at += len;
            }
            _ => at += 1,
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: LogOwner = LogOwner { cluster: ClusterId::new([7; 16]), target: TargetId::new(3) };
    const EPOCH: Epoch = Epoch::new(2);

    fn segment(synced: impl Fn(u64) -> u64) -> (Vec<u8>, Vec<usize>) {
        let mut bytes = Vec::new();
        let mut starts = Vec::new();
        for lsn in 1..=5 {
            starts.push(bytes.len());
            let payload = vec![lsn as u8; 100 * lsn as usize];
            let synced = Lsn::new(synced(lsn));
            bytes.extend(encode_record(OWNER, EPOCH, Lsn::new(lsn), synced, &payload).unwrap());
        }
        (bytes, starts)
    }

    fn lsns(scan: &Scan) -> Vec<u64> {
        scan.records.iter().map(|record| record.lsn.raw()).collect()
    }

    #[test]
    fn complete_log_segment_is_read_back() {
        let (bytes, _) = segment(|lsn| lsn - 1);
        let scan = scan(OWNER, Lsn::new(1), &bytes).unwrap();
        assert_eq!((lsns(&scan), scan.end), (vec![1, 2, 3, 4, 5], bytes.len()));
    }

    #[test]
    fn torn_tail_ends_the_log_at_the_last_complete_record() {
        let (bytes, starts) = segment(|lsn| lsn - 1);
        for cut in 0..bytes.len() {
            let scan = scan(OWNER, Lsn::new(1), &bytes[..cut]).unwrap();
            let whole = starts.iter().skip(1).filter(|start| **start <= cut).count();
            assert_eq!(scan.records.len(), whole, "cut at {cut}");
            assert_eq!(scan.end, starts[whole], "cut at {cut}");
        }
    }

    #[test]
    fn log_ends_before_a_last_record_with_a_flipped_bit() {
        let (bytes, starts) = segment(|lsn| lsn - 1);
        for bit in starts[4] * 8..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(lsns(&scan(OWNER, Lsn::new(1), &bytes).unwrap()), [1, 2, 3, 4]);
        }
    }

    #[test]
    fn a_flipped_bit_in_a_synced_record_is_an_error() {
        let (mut bytes, starts) = segment(|lsn| lsn - 1);
        bytes[starts[2] + 50] ^= 4;
        let error = scan(OWNER, Lsn::new(1), &bytes).unwrap_err();
        assert_eq!(error.code(), ErrorCode::Corrupt);
        assert!(error.context().contains(&format!("at byte {}", starts[2])), "{error}");
    }

    #[test]
    fn gap_in_unsynced_records_ends_the_log() {
        let (mut bytes, starts) = segment(|lsn| lsn.min(3) - 1);
        bytes[starts[3] + 50] ^= 4;
        assert_eq!(lsns(&scan(OWNER, Lsn::new(1), &bytes).unwrap()), [1, 2, 3]);
    }

    #[test]
    fn log_records_of_another_target_are_ignored() {
        let (bytes, _) = segment(|lsn| lsn - 1);
        let of_other_target = LogOwner { target: TargetId::new(4), ..OWNER };
        let of_other_cluster = LogOwner { cluster: ClusterId::new([8; 16]), ..OWNER };
        for other in [of_other_target, of_other_cluster] {
            assert_eq!(lsns(&scan(other, Lsn::new(1), &bytes).unwrap()), [0; 0]);
        }
    }

    fn with_epochs(epochs: &[u64]) -> Vec<u8> {
        let records = (1..).zip(epochs).map(|(lsn, epoch)| {
            let (epoch, synced) = (Epoch::new(*epoch), Lsn::new(0));
            encode_record(OWNER, epoch, Lsn::new(lsn), synced, b"some bytes").unwrap()
        });
        records.flatten().collect()
    }

    #[test]
    fn log_records_are_read_back_with_their_epochs() {
        let found = scan(OWNER, Lsn::new(1), &with_epochs(&[1, 1, 4, u64::MAX])).unwrap();
        let epochs: Vec<_> = found.records.iter().map(|it| it.epoch.raw()).collect();
        assert_eq!(epochs, [1, 1, 4, u64::MAX]);
    }

    #[test]
    fn log_ends_before_a_record_of_an_older_epoch() {
        let bytes = with_epochs(&[2, 3, 2]);
        let found = scan(OWNER, Lsn::new(1), &bytes).unwrap();
        assert_eq!((lsns(&found), found.end), (vec![1, 2], bytes.len() / 3 * 2));
    }

    /// A log of version 1 must not be mistaken for a log whose records a power loss has destroyed.
    #[test]
    fn log_of_version_1_is_refused() {
        // A record in the layout of version 1: target 3, record 1, payload "one".
        let mut bytes = b"SKLG".to_vec();
        bytes.extend([0; 4]);
        bytes.extend(3_u32.to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(1_u64.to_le_bytes());
        bytes.extend([0; 8]);
        bytes.extend(b"one");
        let mut covered = 3_u32.to_le_bytes().to_vec();
        covered.extend(crc32c(&bytes[8..]).to_le_bytes());
        bytes[4..8].copy_from_slice(&crc32c(&covered).to_le_bytes());
        let error = scan(OWNER, Lsn::new(1), &bytes).unwrap_err();
        assert_eq!(error.code(), ErrorCode::Unsupported);
        assert!(error.context().contains("version 1"), "{error}");
    }

    #[test]
    fn payload_over_the_limit_is_not_written() {
        let lsn = Lsn::new(1);
        let mut payload = vec![7; MAX_PAYLOAD_BYTES];
        let bytes = encode_record(OWNER, EPOCH, lsn, Lsn::new(0), &payload).unwrap();
        assert_eq!(lsns(&scan(OWNER, lsn, &bytes).unwrap()), [1]);
        payload.push(7);
        let error = encode_record(OWNER, EPOCH, lsn, Lsn::new(0), &payload).unwrap_err();
        assert_eq!(error.code(), ErrorCode::TooLarge);
    }

    proptest::proptest! {
        #[test]
        fn scan_of_arbitrary_log_bytes_never_panics(bytes: Vec<u8>) {
            let _ = scan(OWNER, Lsn::new(1), &bytes);
        }
    }
}
