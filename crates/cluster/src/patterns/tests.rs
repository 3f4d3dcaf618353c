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

#[test]
fn whoever_is_nearer_to_the_file_has_the_word() {
    let map = map();
    let storage = groups(&map, TargetKind::Storage);
    let policy = Policy { default_width: 3, ..Policy::default() };
    let mut cursor = Cursor::default();
    let mut candidates = map.clone();
    for target in &mut candidates.targets {
        target.reachability = skep_types::map::Reachability::Online;
    }
    let candidates = Candidates::new(&candidates);
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
