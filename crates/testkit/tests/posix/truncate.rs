//! Changing a file's length.

use crate::{Test, refused};
use rustix::io::Errno;
use skep_testkit::files;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

pub(crate) const CASES: &[Test] = skep_testkit::cases![truncate:
    truncation_beyond_the_end_adds_zeros,
    truncation_below_the_end_shrinks_the_file,
    truncated_bytes_do_not_reappear,
    truncations_at_chunk_boundaries_match_a_model,
    ftruncate_needs_a_handle_for_writing,
    truncation_on_one_handle_is_visible_on_another,
    truncation_accepts_huge_lengths,
];

fn open(path: &Path) -> File {
    files::open_with(OpenOptions::new().read(true).write(true).create(true).truncate(false), path)
}

fn truncation_beyond_the_end_adds_zeros(root: &Path) {
    let path = root.join("file");
    files::write(&path, "abc");
    files::set_len(&open(&path), 1_000_000);
    let bytes = files::read(&path);
    assert_eq!(bytes.len(), 1_000_000);
    assert_eq!(&bytes[..3], b"abc");
    assert!(bytes[3..].iter().all(|byte| *byte == 0));
}

fn truncation_below_the_end_shrinks_the_file(root: &Path) {
    let path = root.join("file");
    files::write(&path, vec![9; 3_000_000]);
    files::set_len(&open(&path), 1_234_567);
    assert_eq!(files::metadata(&path).len(), 1_234_567);
    assert_eq!(files::read(&path), vec![9; 1_234_567]);
    files::set_len(&open(&path), 0);
    assert!(files::read(&path).is_empty());
}

/// docs/semantics.md 2.6.
fn truncated_bytes_do_not_reappear(root: &Path) {
    for (len, cut) in [(10_000, 5), (700_000, 4097), (5_000_000, 524_288), (5_000_000, 524_289)] {
        // In Skep, the first write of a file decides whether metadata has its first bytes.
        let path = root.join(format!("file-{len}-{cut}"));
        files::write(&path, vec![8; len]);
        let file = open(&path);
        files::set_len(&file, cut);
        files::set_len(&file, len as u64);
        drop(file);
        let bytes = files::read(&path);
        assert_eq!(bytes.len(), len);
        let cut = cut as usize;
        assert!(bytes[..cut].iter().all(|byte| *byte == 8), "{len} {cut}");
        assert!(bytes[cut..].iter().all(|byte| *byte == 0), "{len} {cut}");
        // A write far beyond the end of the file leaves zeros between the old end and the written
        // bytes.
        let file = open(&path);
        files::set_len(&file, cut as u64);
        files::write_all_at(&file, b"end", len as u64);
        drop(file);
        let bytes = files::read(&path);
        assert!(bytes[cut..len].iter().all(|byte| *byte == 0), "{len} {cut}");
    }
}

fn truncations_at_chunk_boundaries_match_a_model(root: &Path) {
    let path = root.join("file");
    let mut model = vec![0_u8; 0];
    let mut random = skep_testkit::Random::new(7);
    let file = open(&path);
    for round in 0..60 {
        let boundary = (1 + random.below(8)) << 19;
        let len = (boundary + random.below(3)).saturating_sub(1);
        if round % 2 == 0 {
            files::set_len(&file, len as u64);
            model.resize(len, 0);
        } else {
            let bytes = random.bytes(random.clone().below(10_000));
            files::write_all_at(&file, &bytes, len as u64);
            if !bytes.is_empty() {
                model.resize(model.len().max(len + bytes.len()), 0);
                model[len..len + bytes.len()].copy_from_slice(&bytes);
            }
        }
        assert_eq!(files::metadata_of(&file).len(), model.len() as u64, "round {round}");
    }
    drop(file);
    assert!(files::read(&path) == model);
}

fn ftruncate_needs_a_handle_for_writing(root: &Path) {
    let path = root.join("file");
    files::write(&path, "abc");
    refused(files::open(&path).set_len(0), Errno::INVAL);
    assert_eq!(files::read(&path), b"abc");
}

fn truncation_on_one_handle_is_visible_on_another(root: &Path) {
    let path = root.join("file");
    let (first, second) = (open(&path), open(&path));
    files::write_all_at(&first, &[1; 100_000], 0);
    files::set_len(&second, 10);
    files::write_all_at(&first, &[2; 5], 20);
    let mut bytes = [9; 25];
    files::read_exact_at(&second, &mut bytes, 0);
    let expected = [&[1; 10][..], &[0; 10], &[2; 5]].concat();
    assert_eq!(bytes[..], expected);
    assert_eq!(files::metadata_of(&second).len(), 25);
}

/// docs/semantics.md 2.10.
fn truncation_accepts_huge_lengths(root: &Path) {
    let path = root.join("file");
    let file = open(&path);
    // The maximum file size of the local file system in this test is 16 TiB (ext4).
    let len = 1_u64 << 43;
    files::set_len(&file, len);
    assert_eq!(files::metadata(&path).len(), len);
    files::write_all_at(&file, b"end", len - 3);
    let mut bytes = [0; 5];
    files::read_exact_at(&file, &mut bytes, len - 5);
    assert_eq!(&bytes, b"\0\0end");
    assert!(file.write_all_at(b"x", u64::MAX / 2).is_err());
    // A write far beyond the capacity of the targets' disks must fail, but other writes must still
    // succeed.
    let mut is_refused = false;
    let mut size = len;
    for shift in 44..62 {
        let offset = 1_u64 << shift;
        match file.write_all_at(b"x", offset) {
            Ok(()) => {
                assert!(!is_refused, "2^{shift}: a write at a smaller offset was refused");
                size = offset + 1;
                let mut found = [0; 2];
                files::read_exact_at(&file, &mut found, offset - 1);
                assert_eq!(&found, b"\0x", "2^{shift}");
            }
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(Errno::FBIG.raw_os_error()), "2^{shift}");
                is_refused = true;
            }
        }
        assert_eq!(files::metadata_of(&file).len(), size, "2^{shift}");
    }
    // Setting a size allocates no space. So each size that the local file system supports must
    // succeed.
    files::write_all_at(&file, b"x", 0);
    for size in [1 << 43, (1 << 43) + 1, 1 << 42, 700_000, 1 << 43] {
        files::set_len(&file, size);
        assert_eq!(files::metadata_of(&file).len(), size);
    }
    files::write(root.join("other"), "still served");
    files::write_all_at(&file, b"end", len - 3);
    files::sync_all(&file);
}
