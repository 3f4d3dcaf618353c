//! Tests of requests that change the stripe pattern of an existing file or directory.

use super::*;
use skep_types::{
    Chooser, ComponentRequest, PatternOrigin, PatternRequest, Placement, StripePattern,
};

/// Returns a pattern request with one component.
fn asked(component: ComponentRequest) -> PatternRequest {
    let (origin, components) = (PatternOrigin::Asked, vec![component]);
    PatternRequest { origin, inline_bytes: None, components }
}

/// Returns a pattern request for three targets and chunks of 1 MiB.
fn three() -> PatternRequest {
    let (width, chunk_bytes) = (Some(3), Some(1 << 20));
    asked(ComponentRequest { width, chunk_bytes, ..ComponentRequest::default() })
}

fn set(inode: InodeId, uid: u32) -> md::SetPattern {
    md::SetPattern { inode, pattern: Some(three()), uid }
}

impl Story {
    fn pattern(&mut self, inode: InodeId) -> StripePattern {
        let info = self.ask(1, 2, (0, 0), &md::GetEntryInfo { inode }).unwrap();
        info.pattern.expect("a pattern")
    }

    fn close(&mut self, inode: InodeId, at: (u32, u64), end: Option<u64>) {
        let report =
            |end| md::ClosingReport { extent: written_up_to(end), pattern_generation: None };
        let written = end.map(report);
        let close = md::Close { inode, open: md::OpenMode::Write, written };
        self.ask(1, 1, at, &close).unwrap();
    }
}

/// A client continues to use the pattern from the reply to its open, so the pattern of an open file
/// must not change.
#[test]
fn pattern_can_be_set_only_while_the_file_is_not_open() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    let before = story.pattern(inode);
    assert_eq!((before.generation, before.components[0].wanted), (1, 32));
    let refused = story.ask(1, 2, (0, 1), &set(inode, 0)).unwrap_err();
    assert_eq!((refused.code(), story.pattern(inode)), (ErrorCode::InUse, before));
    story.close(inode, (0, 2), None);
    let open = open_of(inode, md::OpenMode::Read);
    story.ask(1, 1, (0, 3), &open).unwrap();
    let refused = story.ask(1, 2, (1, 1), &set(inode, 0)).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::InUse, "a file that is open for reading is in use too");
    let close = md::Close { inode, open: md::OpenMode::Read, written: None };
    story.ask(1, 1, (0, 4), &close).unwrap();
    story.ask(1, 2, (0, 2), &set(inode, 0)).unwrap();
    // The retry gets the same reply, and changes nothing.
    story.ask(1, 2, (0, 2), &set(inode, 0)).unwrap();
    let after = story.pattern(inode);
    let part = &after.components[0];
    assert_eq!((after.generation, after.origin), (2, PatternOrigin::Asked));
    assert_eq!((part.wanted, part.chunk_bytes, part.chooser), (3, 1 << 20, Chooser::Balanced));
    assert_eq!(part.groups, [GroupId::new(2)], "there is only one storage group");
    story.restart();
    assert_eq!(story.pattern(inode), after);
}

/// Without this wait, a power loss could revert the pattern and the open. The next pattern of the
/// file would then have the same generation, and therefore the same names of chunk files.
#[test]
fn open_waits_until_a_new_pattern_is_safe() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    story.close(inode, (0, 2), None);
    let open = open_of(inode, md::OpenMode::Write);
    story.now += Duration::from_millis(11);
    let events = vec![arrival(1, 2, (0, 1), &set(inode, 0)), arrival(1, 1, (0, 3), &open)];
    let next = story.run(events);
    assert_eq!(story.replies.len(), 1, "a power loss may still revert the new pattern");
    story.happen_together(next);
    let (_, opened) = story.replies.pop().expect("the reply to the open");
    let opened = md::OpenReply::from_bytes(&opened.unwrap()).unwrap();
    assert_eq!(opened.pattern.unwrap().generation, 2);
}

/// docs/semantics.md 3.5: a client reports writes, but a power loss has reverted its open.
#[test]
fn report_of_writes_with_an_older_pattern_is_refused() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    let before = story.pattern(inode).generation;
    story.close(inode, (0, 2), None);
    story.ask(1, 2, (0, 1), &set(inode, 0)).unwrap();
    let report = |pattern_generation| {
        let written = Some(written_up_to(300));
        let chunk_files = skep_types::ChunkFileSet::default();
        let synced = Some(md::SyncedChunkFiles { pattern_generation, chunk_files });
        md::ReportWritten { inode, written, synced }
    };
    let error = story.ask(1, 1, (0, 3), &report(before)).unwrap_err();
    assert_eq!((error.code(), story.size(inode)), (ErrorCode::Stale, 0));
    let close = |pattern_generation| {
        let extent = report(pattern_generation).written.expect("a report of writes");
        let written = md::ClosingReport { extent, pattern_generation: Some(pattern_generation) };
        md::Close { inode, open: md::OpenMode::Write, written: Some(written) }
    };
    let error = story.ask(1, 1, (0, 4), &close(before)).unwrap_err();
    assert_eq!((error.code(), story.size(inode)), (ErrorCode::Stale, 0));
    story.ask(1, 1, (0, 5), &report(before + 1)).unwrap();
    assert_eq!(story.size(inode), 300);
    story.ask(1, 1, (0, 6), &close(before + 1)).unwrap();
}

/// The old pattern determines which chunk files have the bytes of the file. Even if the file is
/// empty, storage may still have truncated bytes.
#[test]
fn pattern_of_a_file_cannot_be_set_after_the_first_write() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    story.close(inode, (0, 2), Some(100));
    let before = story.pattern(inode);
    let mut sequence = 0;
    let mut refused = |story: &mut Story| {
        sequence += 1;
        let error = story.ask(1, 2, (1, sequence), &set(inode, 0)).unwrap_err();
        assert_eq!((error.code(), story.pattern(inode)), (ErrorCode::InUse, before.clone()));
    };
    refused(&mut story);
    story.send(1, 1, (0, 3), &truncate(inode));
    story.answer::<st::TruncateChunk>(&truncated(1));
    assert_eq!(story.size(inode), 0);
    refused(&mut story);
}

/// After the death of a writer, the file size is unknown until the size recovery.
#[test]
fn pattern_of_a_dead_writers_file_cannot_be_set() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    story.ask(1, 1, (0, 0), &md::CloseSession {}).unwrap();
    let error = story.ask(1, 2, (0, 1), &set(inode, 0)).unwrap_err();
    assert_eq!(error.code(), ErrorCode::InUse);
    story.answer::<st::StatChunk>(&stat(0));
    story.ask(1, 2, (0, 2), &set(inode, 0)).unwrap();
    assert_eq!(story.pattern(inode).generation, 2);
}

#[test]
fn patterns_are_set_by_owners_and_unset_only_on_directories() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    story.close(inode, (0, 2), None);
    for (of, sequence) in [(inode, 1), (InodeId::ROOT, 2)] {
        let error = story.ask(1, 2, (0, sequence), &set(of, 1_000)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::NotPermitted);
    }
    let nothing = |inode| md::SetPattern { inode, pattern: None, uid: 0 };
    let error = story.ask(1, 2, (0, 3), &nothing(inode)).unwrap_err();
    assert_eq!(error.code(), ErrorCode::NotPermitted);
    story.ask(1, 2, (0, 4), &set(InodeId::ROOT, 0)).unwrap();
    let inherits = story.create_as("b", 1, (0, 3));
    let pattern = story.pattern(inherits);
    assert_eq!((pattern.origin, pattern.components[0].wanted), (PatternOrigin::Directory, 3));
    story.ask(1, 2, (0, 5), &nothing(InodeId::ROOT)).unwrap();
    let plain = story.create_as("c", 1, (0, 4));
    assert_eq!(story.pattern(plain).origin, PatternOrigin::Cluster);
    let placement = Some(Placement::Groups(vec![GroupId::new(9)]));
    let absent = asked(ComponentRequest { placement, ..ComponentRequest::default() });
    let listed = md::SetPattern { inode: InodeId::ROOT, pattern: Some(absent), uid: 0 };
    assert_eq!(story.ask(1, 2, (0, 6), &listed).unwrap_err().code(), ErrorCode::NotFound);
}

#[test]
fn files_and_directories_of_a_group_are_listed() {
    let mut story = Story::begin();
    let list = |story: &mut Story, group: u32, after: InodeId| {
        let request = md::ListGroupFiles { group: GroupId::new(group), after };
        story.ask(1, 2, (0, 0), &request).unwrap()
    };
    let all = |story: &mut Story, group: u32| {
        let (mut files, mut after) = (Vec::new(), InodeId::default());
        loop {
            let page = list(story, group, after);
            files.extend(page.files.into_iter().map(|file| (file.inode, file.kind)));
            match page.next {
                Some(next) => after = next,
                None => return files,
            }
        }
    };
    assert_eq!(all(&mut story, 2), []);
    let file = story.create(1, (0, 1));
    assert_eq!(all(&mut story, 2), [(file, FileKind::Regular)]);
    assert_eq!(all(&mut story, 3), []);
    // The file is listed although its size is zero, because its writer may have written bytes to
    // this group without a report yet.
    let page = list(&mut story, 2, InodeId::default());
    assert!(page.files[0].is_written && page.files[0].bytes == 0, "{page:?}");
    // A directory is listed if its default pattern contains the group.
    let groups = vec![GroupId::new(2)];
    let listed =
        ComponentRequest { placement: Some(Placement::Groups(groups)), ..Default::default() };
    let root = md::SetPattern { inode: InodeId::ROOT, pattern: Some(asked(listed)), uid: 0 };
    story.ask(1, 1, (0, 2), &root).unwrap();
    let mut found = all(&mut story, 2);
    found.sort_unstable_by_key(|(inode, _)| *inode);
    assert!(found.contains(&(InodeId::ROOT, FileKind::Directory)), "{found:?}");
    assert_eq!(found.len(), 2);
    // The reply has only inodes with higher numbers than the inode in the request.
    let page = list(&mut story, 2, found[1].0);
    assert!(page.files.is_empty() && page.prepared == 0, "{page:?}");
}
