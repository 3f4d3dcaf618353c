//! Examples of messages about inline bytes.

use super::{a_file, attributes};
use crate::vectors::{Example, example};
use skep_types::codec::{Bytes, crc32c};
use skep_types::{FileKind, Lsn};
use skep_wire::inline::{
    InlineMark, ReadInline, ReadInlineReply, RemoveInline, RemoveInlineReply, SyncInline,
    SyncInlineReply, WriteInline, WriteInlineReply,
};

pub(super) fn examples() -> Vec<Example> {
    let bytes = Bytes::from(&b"#!/bin/sh\n"[..]);
    let checksum = crc32c(&bytes);
    let whole = WriteInline {
        inode: a_file(),
        generation: 1,
        offset: 0,
        bytes: bytes.clone(),
        checksum,
        extends: true,
        truncate_generation: 2,
        appends: true,
    };
    let part = WriteInline { offset: 4086, extends: false, appends: false, ..whole.clone() };
    let mark = InlineMark { start: 3, record: Lsn::new(0x0102_0304_0506_0708) };
    let attributes = attributes(a_file(), FileKind::Regular);
    let read = ReadInline { inode: a_file(), generation: 1, offset: 512, length: 4096 };
    let nothing = ReadInlineReply { truncate_generation: 2, bytes: Bytes::default(), checksum: 0 };
    let older = InlineMark { start: 2, record: Lsn::new(77) };
    let removal = RemoveInline {
        inode: a_file(),
        generation: 1,
        truncate_generation: 2,
        checksum,
        written: vec![mark],
    };
    vec![
        example(&whole, &WriteInlineReply { mark, attributes: attributes.clone() }).request(&part),
        example(&read, &ReadInlineReply { truncate_generation: 1, bytes, checksum })
            .reply::<ReadInline>(&nothing),
        example(
            &SyncInline { inode: a_file(), written: vec![older, mark] },
            &SyncInlineReply { is_lost: false, attributes: Some(attributes) },
        )
        .reply::<SyncInline>(&SyncInlineReply { is_lost: true, attributes: None }),
        example(&removal, &RemoveInlineReply { is_removed: true, is_lost: false, mark }),
    ]
}
