//! Who may ask for which pattern, and whose word counts.

use super::*;
use crate::state::tests::{cluster, server};
use skep_types::GroupId;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn map() -> ClusterMap {
    let mut state = cluster();
    state.apply(&server(TargetKind::Metadata, 9_000, &[9_001])).unwrap();
    state.apply(&server(TargetKind::Storage, 1_000, &[1, 2])).unwrap();
    state.apply(&server(TargetKind::Storage, 2_000, &[3, 4])).unwrap();
    state.map().clone()
}

fn groups(map: &ClusterMap, kind: TargetKind) -> Vec<GroupId> {
    map.groups.iter().filter(|group| group.kind == kind).map(|group| group.id).collect()
}

fn component(start: u64, chunk_bytes: u64, wanted: u16) -> Component {
    Component { start, chunk_bytes, wanted, ..open_component() }
}

fn listed(groups: &[GroupId]) -> Component {
    let (wanted, groups) = (groups.len() as u16, groups.to_vec());
    Component { wanted, groups, chooser: Chooser::Listed, ..open_component() }
}

fn pattern(components: &[Component]) -> StripePattern {
    let components = components.to_vec();
    StripePattern { generation: 0, origin: PatternOrigin::Asked, components }
}

#[test]
fn what_is_wrong_is_refused_by_name() {
    let map = map();
    let storage = groups(&map, TargetKind::Storage);
    let check = |components: &[Component]| {
        check_asked(&map, &pattern(components), 0)
            .map_err(|error| (error.code(), error.context().to_owned()))
    };
    let refused = |components: &[Component], code: ErrorCode, words: &str| {
        let (found, context) = check(components).unwrap_err();
        assert!(found == code && context.contains(words), "{found}: {context}");
    };
    assert_eq!(check(&[component(0, 0, 0)]), Ok(()));
    assert_eq!(check(&[component(0, 64 * KIB, 256), component(16 * MIB, 0, 4)]), Ok(()));
    assert_eq!(check(&[listed(&storage)]), Ok(()));
    let invalid = ErrorCode::InvalidArgument;
    refused(&[], invalid, "1 to 16 components");
    refused(&[component(0, 100_000, 1)], invalid, "100000 is not a power of two");
    refused(&[component(0, 32 * KIB, 1)], invalid, "64 KiB");
    refused(&[component(0, 0, 257)], invalid, "256");
    refused(&[component(4 * MIB, 0, 1)], invalid, "starts at byte 0");
    refused(&[component(0, 0, 1), component(100_000, 0, 1)], invalid, "multiple of 65536");
    refused(&[component(0, 0, 1), component(MIB, 2 * MIB, 1)], invalid, "multiple of 2097152");
    let twice = [storage[0], storage[0]];
    refused(&[listed(&twice)], invalid, "twice");
    refused(&[Component { wanted: 3, ..listed(&storage) }], invalid, "as many as are wanted");
    refused(&[Component { chooser: Chooser::Listed, ..open_component() }], invalid, "either");
    let absent = GroupId::new(99);
    refused(&[listed(&[storage[0], absent])], ErrorCode::NotFound, "no storage group g99");
    let of_metadata = groups(&map, TargetKind::Metadata);
    refused(&[listed(&of_metadata)], ErrorCode::NotFound, "skep target list");
}

#[test]
fn users_stay_within_limits_and_root_does_not() {
    let mut map = map();
    let of_two = listed(&groups(&map, TargetKind::Storage)[..2]);
    map.policy = Policy {
        user_max_width: 8,
        user_min_chunk_bytes: 128 * KIB,
        user_max_chunk_bytes: MIB,
        ..Policy::default()
    };
    let check = |map: &ClusterMap, component: &Component| {
        let asked = pattern(std::slice::from_ref(component));
        check_asked(map, &asked, 0).unwrap();
        check_asked(map, &asked, 1_000)
    };
    let refused = |map: &ClusterMap, component: &Component, words: &str| {
        let error = check(map, component).unwrap_err();
        assert_eq!(error.code(), ErrorCode::PermissionDenied);
        assert!(error.context().contains(words), "{error}");
    };
    check(&map, &component(0, MIB, 8)).unwrap();
    check(&map, &component(0, 0, 0)).unwrap();
    refused(&map, &component(0, 0, 9), "more than 8 targets");
    refused(&map, &component(0, 64 * KIB, 1), "less than 131072");
    refused(&map, &component(0, 2 * MIB, 1), "skep config get user-chunk-size-max");
    refused(&map, &of_two, "only root lists targets");
    map.policy.user_patterns = UserPatterns::Targets;
    check(&map, &of_two).unwrap();
    map.policy.user_patterns = UserPatterns::No;
    refused(&map, &component(0, 0, 0), "only root sets stripe patterns");
}

fn all_online(map: &ClusterMap) -> Candidates {
    let mut map = map.clone();
    for target in &mut map.targets {
        target.reachability = skep_types::map::Reachability::Online;
    }
    Candidates::new(&map)
}

#[test]
fn whoever_is_nearer_to_the_file_has_the_word() {
    let map = map();
    let storage = groups(&map, TargetKind::Storage);
    let policy = Policy { default_width: 3, stripe_from: 0, ..Policy::default() };
    let (mut cursor, candidates) = (Cursor::default(), all_online(&map));
    let mut make = |asked: Option<&[Component]>, directory: Option<&[Component]>| {
        let (asked, directory) = (asked.map(pattern), directory.map(pattern));
        let merged = merged(asked.as_ref(), directory.as_ref());
        let made = with_groups(&merged, &policy, &candidates, 7, &mut cursor).unwrap();
        made.check().unwrap();
        made
    };
    let first = |made: &StripePattern| {
        let it = &made.components[0];
        assert_eq!(it.groups.len(), usize::from(it.wanted).min(4));
        (made.origin, it.chunk_bytes, it.wanted, it.chooser)
    };
    let (of_cluster, of_directory, of_file) =
        (PatternOrigin::Cluster, PatternOrigin::Directory, PatternOrigin::Asked);
    let balanced = Chooser::Balanced;
    assert_eq!(first(&make(None, None)), (of_cluster, 512 * KIB, 3, balanced));
    let directory = [Component { chooser: Chooser::RoundRobin, ..component(0, MIB, 0) }];
    let made = make(None, Some(&directory));
    assert_eq!(first(&made), (of_directory, MIB, 3, Chooser::RoundRobin));
    let asked = [component(0, 0, 2)];
    let made = make(Some(&asked), Some(&directory));
    assert_eq!(first(&made), (of_file, MIB, 2, Chooser::RoundRobin));
    // A directory's list counts unless count or chooser are asked for.
    let directory = [listed(&storage[1..3])];
    let made = make(Some(&[component(0, MIB, 0)]), Some(&directory));
    assert_eq!(first(&made), (of_file, MIB, 2, Chooser::Listed));
    assert_eq!(made.components[0].groups, storage[1..3]);
    assert_eq!(first(&make(Some(&asked), Some(&directory))), (of_file, 512 * KIB, 2, balanced));
    // More than there are: all of them.
    assert_eq!(first(&make(Some(&[component(0, 0, 200)]), None)).2, 200);
}

#[test]
fn files_of_which_nobody_says_how_wide_are_narrow_at_first() {
    let map = map();
    let policy = Policy { stripe_from: 4 * MIB, ..Policy::default() };
    let made = |asked: Option<&[Component]>, policy: &Policy| {
        let merged = merged(asked.map(pattern).as_ref(), None);
        let (mut cursor, candidates) = (Cursor::default(), all_online(&map));
        let made = with_groups(&merged, policy, &candidates, 7, &mut cursor).unwrap();
        made.check().unwrap();
        let part = |it: &Component| (it.start, it.chunk_bytes, it.groups.len());
        made.components.iter().map(part).collect::<Vec<_>>()
    };
    let chunk = 512 * KIB;
    assert_eq!(made(None, &policy), [(0, chunk, 1), (4 * MIB, chunk, 4)]);
    // Asked for is a chunk size alone: the border is where one ends.
    let large_chunks = made(Some(&[component(0, 16 * MIB, 0)]), &policy);
    assert_eq!(large_chunks, [(0, 16 * MIB, 1), (16 * MIB, 16 * MIB, 4)]);
    let odd = Policy { stripe_from: 700_000, default_width: 2, ..policy.clone() };
    assert_eq!(made(None, &odd), [(0, chunk, 1), (MIB, chunk, 2)]);
    // Whoever says how wide, or by which components, has said it for the whole file.
    assert_eq!(made(Some(&[component(0, 0, 4)]), &policy), [(0, chunk, 4)]);
    let two = [component(0, 0, 0), component(64 * MIB, 0, 1)];
    assert_eq!(made(Some(&two), &policy), [(0, chunk, 4), (64 * MIB, chunk, 1)]);
    let of_all = Policy { stripe_from: 0, ..policy.clone() };
    assert_eq!(made(None, &of_all), [(0, chunk, 4)]);
    // What would be as narrow further on needs no second component.
    let narrow = Policy { default_width: 1, ..policy.clone() };
    assert_eq!(made(None, &narrow), [(0, chunk, 1)]);
    let mut one = map.clone();
    one.targets.retain(|target| target.kind != TargetKind::Storage || target.id.raw() == 2);
    let merged = merged(None, None);
    let (mut cursor, candidates) = (Cursor::default(), all_online(&one));
    let made = with_groups(&merged, &policy, &candidates, 7, &mut cursor).unwrap();
    assert_eq!((made.components.len(), made.components[0].start), (1, 0));
    assert_eq!((made.components[0].wanted, made.components[0].groups.len()), (32, 1));
}

#[test]
fn later_components_start_at_multiples_of_their_chunk_size_whatever_the_clusters_is() {
    let asked = pattern(&[component(0, 0, 1), component(MIB, 0, 2), component(64 * MIB, 0, 4)]);
    asked.check_asked().unwrap();
    let policy = Policy { default_chunk_bytes: 16 * MIB, ..Policy::default() };
    let sizes: Vec<u64> =
        resolved(&asked, &policy).components.iter().map(|it| it.chunk_bytes).collect();
    assert_eq!(sizes, [16 * MIB, MIB, 16 * MIB]);
}

#[test]
fn without_a_storage_target_there_is_no_room() {
    let nothing = merged(None, None);
    let made = with_groups(
        &nothing,
        &Policy::default(),
        &Candidates::default(),
        1,
        &mut Cursor::default(),
    );
    assert_eq!(made.unwrap_err().code(), ErrorCode::NoSpace);
}

/// A file that has its components already, since nobody said how wide it is to be.
#[test]
fn who_asks_for_a_chunk_size_alone_leaves_files_narrow_at_first() {
    let of_file = pattern(&[component(0, 512 * KIB, 1), component(4 * MIB, 512 * KIB, 32)]);
    let asked = |chunk_bytes| {
        let merged = merged(Some(&pattern(&[component(0, chunk_bytes, 0)])), Some(&of_file));
        merged.check_asked().unwrap();
        let parts = merged.components.iter().map(|it| (it.start, it.chunk_bytes, it.wanted));
        parts.collect::<Vec<_>>()
    };
    assert_eq!(asked(MIB), [(0, MIB, 1), (4 * MIB, MIB, 32)]);
    assert_eq!(asked(16 * MIB), [(0, 16 * MIB, 1), (16 * MIB, 16 * MIB, 32)]);
    assert_eq!(asked(0), [(0, 512 * KIB, 1), (4 * MIB, 512 * KIB, 32)]);
    let three = [component(0, 64 * KIB, 1), component(MIB, 64 * KIB, 4), component(2 * MIB, 0, 8)];
    assert_eq!(with_chunks_of(&three, 4 * MIB).len(), 2);
    assert_eq!(with_chunks_of(&three, 4 * MIB)[1].wanted, 8);
}

#[test]
fn bytes_in_metadata_go_with_whatever_comes_behind_them() {
    let map = map();
    let made = |asked: Option<&[Component]>, directory: Option<&[Component]>, policy: &Policy| {
        let (asked, directory) = (asked.map(pattern), directory.map(pattern));
        let merged = merged(asked.as_ref(), directory.as_ref());
        merged.check_asked().unwrap();
        let (mut cursor, candidates) = (Cursor::default(), all_online(&map));
        let made = with_groups(&merged, policy, &candidates, 7, &mut cursor).unwrap();
        let part = |it: &Component| (it.start, it.chunk_bytes, it.groups.len());
        made.components.iter().map(part).collect::<Vec<_>>()
    };
    let (plain, chunk) = (Policy::default(), 512 * KIB);
    let inline = |bytes| [Component::inline(), component(bytes, 0, 0)];
    let of_four = [(0, 0, 0), (4 * KIB, chunk, 1), (4 * MIB, chunk, 4)];
    // Whoever says no more than that leaves the rest to others.
    assert_eq!(made(None, Some(&inline(4 * KIB)), &plain), of_four);
    assert_eq!(made(Some(&inline(4 * KIB)), None, &plain), of_four);
    let wide = [component(0, MIB, 1), component(8 * MIB, MIB, 3)];
    let over_wide = made(Some(&inline(8 * KIB)), Some(&wide), &plain);
    assert_eq!(over_wide, [(0, 0, 0), (8 * KIB, MIB, 1), (8 * MIB, MIB, 3)]);
    // Who says nothing of it leaves it as it is; who says how many targets has said all.
    let whole = [Component::inline(), component(4 * KIB, 0, 1), component(4 * MIB, 0, 3)];
    let larger_chunks = made(Some(&[component(0, 16 * MIB, 0)]), Some(&whole), &plain);
    assert_eq!(larger_chunks, [(0, 0, 0), (4 * KIB, 16 * MIB, 1), (16 * MIB, 16 * MIB, 3)]);
    assert_eq!(made(Some(&[component(0, 0, 2)]), Some(&whole), &plain), [(0, chunk, 2)]);
    let replaced = made(Some(&inline(64 * KIB)), Some(&whole), &plain);
    assert_eq!(replaced, [(0, 0, 0), (64 * KIB, chunk, 1), (4 * MIB, chunk, 3)]);
    // A component that has no bytes of its own any more goes.
    let early = [component(0, 64 * KIB, 1), component(64 * KIB, 64 * KIB, 4)];
    let pushed = made(Some(&inline(64 * KIB)), Some(&early), &plain);
    assert_eq!(pushed, [(0, 0, 0), (64 * KIB, 64 * KIB, 4)]);
    // The cluster's word, where nobody else has one.
    let of_cluster = Policy { inline_bytes: 4 * KIB, ..plain.clone() };
    assert_eq!(made(None, None, &of_cluster), of_four);
    assert_eq!(made(Some(&[component(0, 0, 4)]), None, &of_cluster), [(0, chunk, 4)]);
    let narrow = Policy { default_width: 1, ..of_cluster };
    assert_eq!(made(None, None, &narrow), [(0, 0, 0), (4 * KIB, chunk, 1)]);
    // All words together may be too many.
    let sixteen: Vec<_> = (0..16).map(|it| component(it * MIB, 0, 1)).collect();
    let merged = merged(Some(&pattern(&inline(4 * KIB))), Some(&pattern(&sixteen)));
    let (mut cursor, candidates) = (Cursor::default(), all_online(&map));
    let error = with_groups(&merged, &plain, &candidates, 7, &mut cursor).unwrap_err();
    assert!(error.context().contains("1 to 16 components"), "{error}");
}
