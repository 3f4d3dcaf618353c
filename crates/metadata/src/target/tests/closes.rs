//! Tests of the requests that close files, with the extents that clients report in them.

use super::*;
use skep_types::MAX_FILE_BYTES;

fn close_many(inodes: &[InodeId]) -> md::CloseMany {
    let files = inodes.iter().map(|inode| md::ClosedFile {
        inode: *inode,
        open: md::OpenMode::Write,
        ends_inline: None,
    });
    md::CloseMany { files: files.collect() }
}

fn is_open(story: &Story, inode: InodeId) -> bool {
    story.target.table.get(&Key::Opens(inode).to_bytes()).unwrap().is_some()
}

#[test]
fn closing_many_files_skips_files_that_are_not_open() {
    let mut story = Story::begin();
    let of_another = story.create_as("a", 2, (0, 1));
    let unlinked = story.create_as("b", 1, (0, 1));
    let open = story.create_as("c", 1, (0, 2));
    let unlink = md::Unlink { directory: InodeId::ROOT, name: b"b"[..].into() };
    story.ask(1, 1, (0, 3), &unlink).unwrap();
    let gone = InodeId::from_parts(open.shard(), 1 << 40);
    let request = close_many(&[gone, of_another, unlinked, unlinked, open]);
    story.ask(1, 1, (0, 4), &request).unwrap();
    assert!(!is_open(&story, open) && !is_open(&story, unlinked));
    assert!(is_open(&story, of_another), "the open of another session stays");
    let get = md::GetAttributes { inode: unlinked };
    let error = story.ask(1, 1, (0, 0), &get).unwrap_err();
    assert_eq!(error.code(), ErrorCode::Stale, "the last close removes the unlinked file");
}

/// Regression test: the target treated every error about a single file like the error about a
/// removed file, and so hid damage.
#[test]
fn close_of_many_files_with_a_damaged_inode_closes_no_file() {
    let mut story = Story::begin();
    let (sound, damaged) = (story.create_as("a", 1, (0, 1)), story.create_as("b", 1, (0, 2)));
    story.target.table.write(Key::Inode(damaged).to_bytes(), Some(vec![1]));
    let error = story.ask(1, 1, (0, 3), &close_many(&[sound, damaged])).unwrap_err();
    assert_eq!(error.code(), ErrorCode::Corrupt);
    assert!(is_open(&story, sound));
}

/// Regression test: a reported write beyond the maximum file size set the file's size to its end.
#[test]
fn reported_size_beyond_the_maximum_is_refused() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    let up_to = |end| md::WrittenExtent { may_leave_holes: true, ..written_up_to(end) };
    let report = |end| super::report(inode, up_to(end));
    let error = story.ask(1, 1, (0, 2), &report(MAX_FILE_BYTES + 1)).unwrap_err();
    assert_eq!(error.code(), ErrorCode::FileTooLarge);
    let close = |end| close_with(inode, up_to(end));
    let error = story.ask(1, 1, (0, 3), &close(u64::MAX)).unwrap_err();
    assert_eq!(error.code(), ErrorCode::FileTooLarge);
    assert_eq!(story.size(inode), 0);
    story.ask(1, 1, (0, 4), &report(MAX_FILE_BYTES)).unwrap();
    assert_eq!(story.size(inode), MAX_FILE_BYTES);
}
