//! Tests of the parts in which a target stores inline bytes: the parts together equal one list of
//! bytes, a write logs only the parts that it changes, and the target reads the single record of
//! earlier versions.

use super::*;
use proptest::prelude::*;
use skep_format::metadata::INLINE_PART_BYTES;

const PART: u64 = INLINE_PART_BYTES;

#[derive(Debug, Clone)]
enum Step {
    Write { offset: u64, length: u64, byte: u8 },
    Truncate { size: u64 },
    Restart,
}

/// Generates offsets and lengths, many of them near the border of a part.
fn near_a_border() -> impl Strategy<Value = u64> {
    prop_oneof![
        (0..=INLINE / PART, 0..3_u64).prop_map(|(part, by)| (part * PART + by).saturating_sub(1)),
        0..INLINE,
    ]
}

fn step() -> impl Strategy<Value = Step> {
    // Many writes contain only zeros, because a part of only zeros has no record.
    let byte = prop_oneof![Just(0), any::<u8>()];
    prop_oneof![
        6 => (near_a_border(), near_a_border(), byte).prop_map(|(offset, length, byte)| {
            let offset = offset.min(INLINE - 1);
            Step::Write { offset, length: length.clamp(1, INLINE - offset), byte }
        }),
        3 => near_a_border().prop_map(|size| Step::Truncate { size }),
        1 => Just(Step::Restart),
    ]
}

fn without_zeros(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    &bytes[..end]
}

impl Story {
    /// Truncates or extends a file, and waits until storage has changed the chunk files.
    pub(super) fn truncate_to(&mut self, inode: InodeId, sequence: u64, size: u64) {
        self.send(1, 1, (0, sequence), &md::SetAttributes { size: Some(size), ..truncate(inode) });
        // Besides truncations, the target may sync the chunk file of an earlier truncation.
        self.calls.retain(|(_, call)| call.message == st::TruncateChunk::ID);
        self.answer::<st::TruncateChunk>(&truncated(1));
        self.replies.clear();
    }

    /// Stores all `bytes` of a file in one record, as earlier versions of the program did.
    fn store_in_one_record(&mut self, inode: InodeId, bytes: &[u8]) {
        for part in self.stored(inode) {
            self.target.table.write(Key::Inline(inode, part).to_bytes(), None);
        }
        let record = InlineRecord::new(bytes.to_vec()).unwrap();
        let key = Key::Inline(inode, 0).to_bytes();
        self.target.table.write(key, Some(record.to_bytes()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn inline_parts_equal_one_flat_list_of_bytes(
        steps in proptest::collection::vec((step(), near_a_border(), near_a_border()), 1..25),
    ) {
        let mut story = Story::begin();
        let inode = story.inline_file();
        let mut model = vec![0; INLINE as usize];
        let (mut writes, mut truncations) = (0, 1);
        for (step, start, length) in steps {
            match step {
                Step::Write { offset, length, byte } => {
                    writes += 1;
                    let bytes = vec![byte; length as usize];
                    story.written(writes, &write(inode, offset, &bytes));
                    model[offset as usize..(offset + length) as usize].copy_from_slice(&bytes);
                }
                Step::Truncate { size } => {
                    truncations += 1;
                    story.truncate_to(inode, truncations, size);
                    model[size.min(INLINE) as usize..].fill(0);
                }
                Step::Restart => story.restart(),
            }
            let start = start.min(INLINE);
            let range = start..start + length.min(INLINE - start);
            let read = story.read(inode, start, (range.end - start) as u32).unwrap();
            prop_assert_eq!(&read, without_zeros(&model[start as usize..range.end as usize]));
            let parts = model.chunks(PART as usize);
            let with_bytes = (0..).zip(parts).filter(|(_, part)| !without_zeros(part).is_empty());
            let with_bytes: Vec<u16> = with_bytes.map(|(number, _)| number).collect();
            prop_assert_eq!(story.stored(inode), with_bytes);
        }
    }
}

#[test]
fn write_logs_only_the_parts_that_it_changes() {
    let mut story = Story::begin();
    let inode = story.inline_file();
    story.written(1, &write(inode, 0, &[7; INLINE as usize]));
    for (sequence, offset, parts) in [(2, PART + 100, 1), (3, 2 * PART - 50, 2)] {
        let before = story.log.len();
        story.written(sequence, &write(inode, offset, &[8; 100]));
        let logged = (story.log.len() - before) as u64;
        assert!((parts * PART..(parts + 1) * PART).contains(&logged), "{logged} bytes");
    }
}

#[test]
fn old_format_inline_record_is_split_at_the_first_change() {
    let mut story = Story::begin();
    let inode = story.inline_file();
    let mut bytes = [vec![0; 1100], vec![7; 1900]].concat();
    story.written(1, &write(inode, 2999, b"x"));
    story.store_in_one_record(inode, &bytes);
    assert_eq!(story.read(inode, 0, 4096).unwrap(), bytes);
    assert_eq!(story.read(inode, 1000, 1500).unwrap(), bytes[1000..2500]);
    assert_eq!(story.read(inode, 3000, 1096).unwrap(), []);
    assert_eq!(story.stored(inode), [0]);
    story.written(2, &write(inode, 2040, &[8; 16]));
    bytes[2040..2056].fill(8);
    assert_eq!(story.stored(inode), [1, 2]);
    story.restart();
    assert_eq!(story.read(inode, 0, 4096).unwrap(), bytes);

    story.store_in_one_record(inode, &bytes);
    story.truncate_to(inode, 2, 2048);
    assert_eq!(story.stored(inode), [1]);
    assert_eq!(story.read(inode, 0, 4096).unwrap(), bytes[..2048]);

    story.store_in_one_record(inode, &bytes);
    story.truncate_to(inode, 3, 0);
    assert_eq!(story.stored(inode), []);
}

#[test]
fn damaged_part_does_not_damage_the_other_parts() {
    let mut story = Story::begin();
    let inode = story.inline_file();
    story.written(1, &write(inode, 0, &[7; INLINE as usize]));
    let damaged = InlineRecord { checksum: 1, bytes: b"0123456789".as_slice().into() };
    let key = Key::Inline(inode, 1).to_bytes();
    story.target.table.write(key, Some(damaged.to_bytes()));
    assert_eq!(story.read(inode, 0, 1024).unwrap(), [7; 1024]);
    assert_eq!(story.read(inode, 0, 1025).unwrap_err().code(), ErrorCode::Corrupt);
    assert_eq!(story.refused(1, &write(inode, 1023, b"ab")), ErrorCode::Corrupt);
    story.written(2, &write(inode, 2048, b"ab"));
    story.truncate_to(inode, 2, 1024);
    assert_eq!(story.stored(inode), [0]);
    assert_eq!(story.read(inode, 0, 4096).unwrap(), [7; 1024]);
}
