//! Tests of directories with a large number of entries.

use super::*;

/// Creates more than 65,000 subdirectories. Above this number, ext4 stops counting links.
#[test]
fn link_count_of_a_directory_counts_all_subdirectories() {
    const COUNT: u32 = 66_000;
    let mut story = Story::begin();
    let directory = InodeId::ROOT;
    let new = md::NewInode { permissions: 0o700, umask: 0, uid: 0, gid: 0 };
    let name = |number: u32| number.to_string().as_bytes().into();
    let mut sequence = 0;
    let mut at = || {
        sequence += 1;
        (0, sequence)
    };
    for number in 0..COUNT {
        let make = md::MakeDirectory { directory, name: name(number), new };
        story.ask(1, 1, at(), &make).unwrap();
    }
    let look = md::GetAttributes { inode: directory };
    let found = story.ask(1, 1, (0, 0), &look).unwrap().attributes;
    assert_eq!((found.links, found.size), (COUNT + 2, u64::from(COUNT)));
    for number in [0, 65_000, COUNT - 1] {
        let remove = md::RemoveDirectory { directory, name: name(number) };
        story.ask(1, 1, at(), &remove).unwrap();
    }
    let found = story.ask(1, 1, (0, 0), &look).unwrap().attributes;
    assert_eq!((found.links, found.size), (COUNT - 1, u64::from(COUNT) - 3));
}
