//! Tests which requests are refused, and whether the request, the directory or the cluster sets
//! each field of a pattern.

use super::*;
use crate::state::tests::{cluster, server};
use skep_types::GroupId;
use skep_types::codec::Codec;

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

/// Creates a component of a request. Zero means that chunk size or width is unset.
fn component(start: u64, chunk_bytes: u64, width: u16) -> ComponentRequest {
    let chunk_bytes = Some(chunk_bytes).filter(|bytes| *bytes != 0);
    let width = Some(width).filter(|width| *width != 0);
    ComponentRequest { start, chunk_bytes, width, placement: None }
}

fn listed(groups: &[GroupId]) -> ComponentRequest {
    let placement = Some(Placement::Groups(groups.to_vec()));
    ComponentRequest { placement, ..ComponentRequest::default() }
}

fn request(components: &[ComponentRequest]) -> PatternRequest {
    let components = components.to_vec();
    PatternRequest { origin: PatternOrigin::Asked, inline_bytes: None, components }
}

/// Returns the default policy, but without inline bytes.
fn without_inline_bytes() -> Policy {
    Policy { inline_bytes: 0, ..Policy::default() }
}

/// Creates a request with `bytes` inline bytes.
fn inline(bytes: u64, components: &[ComponentRequest]) -> PatternRequest {
    PatternRequest { inline_bytes: Some(bytes), ..request(components) }
}

/// Resolves a merged request and chooses the groups.
fn new_pattern(
    merged: &PatternRequest,
    policy: &Policy,
    candidates: &Candidates,
    cursor: &mut Cursor,
) -> Result<StripePattern> {
    place(resolve(merged, policy), candidates, 7, cursor)
}

#[test]
fn error_for_an_invalid_pattern_request_names_the_broken_rule() {
    let map = map();
    let storage = groups(&map, TargetKind::Storage);
    let check = |components: &[ComponentRequest]| {
        check_request(&map, &request(components), 0)
            .map_err(|error| (error.code(), error.context().to_owned()))
    };
    let refused = |components: &[ComponentRequest], code: ErrorCode, words: &str| {
        let (found, context) = check(components).unwrap_err();
        assert!(found == code && context.contains(words), "{found}: {context}");
    };
    assert_eq!(check(&[component(0, 0, 0)]), Ok(()));
    assert_eq!(check(&[component(0, 64 * KIB, 256), component(16 * MIB, 0, 4)]), Ok(()));
    assert_eq!(check(&[listed(&storage)]), Ok(()));
    let invalid = ErrorCode::InvalidArgument;
    refused(&[], invalid, "expected 1 to 16");
    refused(&[component(0, 100_000, 1)], invalid, "the nearest ones are 64KiB and 128KiB");
    refused(&[component(0, 32 * KIB, 1)], invalid, "64 KiB");
    refused(&[component(0, 0, 257)], invalid, "256");
    refused(&[component(4 * MIB, 0, 1)], invalid, "must start at byte 0");
    refused(&[component(0, 0, 1), component(100_000, 0, 1)], invalid, "multiple of 65536");
    refused(&[component(0, 0, 1), component(MIB, 2 * MIB, 1)], invalid, "multiple of 2097152");
    let twice = [storage[0], storage[0]];
    refused(&[listed(&twice)], invalid, "twice");
    let of_three = ComponentRequest { width: Some(3), ..listed(&storage) };
    refused(&[of_three], invalid, "list the groups, or set a count");
    refused(&[listed(&[])], invalid, "but not both");
    let absent = GroupId::new(99);
    refused(&[listed(&[storage[0], absent])], ErrorCode::NotFound, "no storage group g99");
    let of_metadata = groups(&map, TargetKind::Metadata);
    refused(&[listed(&of_metadata)], ErrorCode::NotFound, "skep target list");
}

#[test]
fn pattern_limits_apply_to_users_and_not_to_root() {
    let mut map = map();
    let of_two = listed(&groups(&map, TargetKind::Storage)[..2]);
    map.policy = Policy {
        user_max_width: 8,
        user_min_chunk_bytes: 128 * KIB,
        user_max_chunk_bytes: MIB,
        ..Policy::default()
    };
    let check = |map: &ClusterMap, component: &ComponentRequest| {
        let request = request(std::slice::from_ref(component));
        check_request(map, &request, 0).unwrap();
        check_request(map, &request, 1_000)
    };
    let refused = |map: &ClusterMap, component: &ComponentRequest, words: &str| {
        let error = check(map, component).unwrap_err();
        assert_eq!(error.code(), ErrorCode::PermissionDenied);
        assert!(error.context().contains(words), "{error}");
    };
    check(&map, &component(0, MIB, 8)).unwrap();
    check(&map, &component(0, 0, 0)).unwrap();
    refused(&map, &component(0, 0, 9), "more than 8 targets");
    refused(&map, &component(0, 64 * KIB, 1), "less than 131072");
    refused(&map, &component(0, 2 * MIB, 1), "change the setting user-chunk-size-max");
    refused(&map, &of_two, "only root may list targets");
    map.policy.user_patterns = UserPatterns::Targets;
    check(&map, &of_two).unwrap();
    map.policy.user_patterns = UserPatterns::No;
    refused(&map, &component(0, 0, 0), "only root may set stripe patterns");
}

fn all_online(map: &ClusterMap) -> Candidates {
    let mut map = map.clone();
    for target in &mut map.targets {
        target.reachability = skep_types::map::Reachability::Online;
    }
    Candidates::new(&map)
}

#[test]
fn request_overrides_directory_and_directory_overrides_cluster() {
    let map = map();
    let storage = groups(&map, TargetKind::Storage);
    let policy = Policy { default_width: 3, stripe_from: 0, ..without_inline_bytes() };
    let (mut cursor, candidates) = (Cursor::default(), all_online(&map));
    let mut make = |asked: Option<&[ComponentRequest]>, directory: Option<&[ComponentRequest]>| {
        let (asked, directory) = (asked.map(request), directory.map(request));
        let merged = merge(asked.as_ref(), directory.as_ref());
        let made = new_pattern(&merged, &policy, &candidates, &mut cursor).unwrap();
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
    let placement = Some(Placement::Policy(Chooser::RoundRobin));
    let directory = [ComponentRequest { placement, ..component(0, MIB, 0) }];
    let made = make(None, Some(&directory));
    assert_eq!(first(&made), (of_directory, MIB, 3, Chooser::RoundRobin));
    let asked = [component(0, 0, 2)];
    let made = make(Some(&asked), Some(&directory));
    assert_eq!(first(&made), (of_file, MIB, 2, Chooser::RoundRobin));
    // A list of groups in the directory's default pattern applies unless the request sets width or
    // placement.
    let directory = [listed(&storage[1..3])];
    let made = make(Some(&[component(0, MIB, 0)]), Some(&directory));
    assert_eq!(first(&made), (of_file, MIB, 2, Chooser::Listed));
    assert_eq!(made.components[0].groups, storage[1..3]);
    assert_eq!(first(&make(Some(&asked), Some(&directory))), (of_file, 512 * KIB, 2, balanced));
    // The pattern keeps the requested width, even if the cluster has fewer groups.
    assert_eq!(first(&make(Some(&[component(0, 0, 200)]), None)).2, 200);
}

#[test]
fn file_with_the_default_pattern_begins_on_one_target() {
    let map = map();
    let policy = Policy { stripe_from: 4 * MIB, ..without_inline_bytes() };
    let made = |asked: Option<&[ComponentRequest]>, policy: &Policy| {
        let merged = merge(asked.map(request).as_ref(), None);
        let (mut cursor, candidates) = (Cursor::default(), all_online(&map));
        let made = new_pattern(&merged, policy, &candidates, &mut cursor).unwrap();
        made.check().unwrap();
        let part = |it: &Component| (it.start, it.chunk_bytes, it.groups.len());
        made.components.iter().map(part).collect::<Vec<_>>()
    };
    let chunk = 512 * KIB;
    assert_eq!(made(None, &policy), [(0, chunk, 1), (4 * MIB, chunk, 4)]);
    // If the request sets only the chunk size, the end of the narrow component is rounded up to a
    // whole chunk.
    let large_chunks = made(Some(&[component(0, 16 * MIB, 0)]), &policy);
    assert_eq!(large_chunks, [(0, 16 * MIB, 1), (16 * MIB, 16 * MIB, 4)]);
    let odd = Policy { stripe_from: 700_000, default_width: 2, ..policy.clone() };
    assert_eq!(made(None, &odd), [(0, chunk, 1), (MIB, chunk, 2)]);
    // If the request sets a width or has several components, the file has no narrow component.
    assert_eq!(made(Some(&[component(0, 0, 4)]), &policy), [(0, chunk, 4)]);
    let two = [component(0, 0, 0), component(64 * MIB, 0, 1)];
    assert_eq!(made(Some(&two), &policy), [(0, chunk, 4), (64 * MIB, chunk, 1)]);
    let of_all = Policy { stripe_from: 0, ..policy.clone() };
    assert_eq!(made(None, &of_all), [(0, chunk, 4)]);
    // If the second component would also have a single group, the file has only one component.
    let narrow = Policy { default_width: 1, ..policy.clone() };
    assert_eq!(made(None, &narrow), [(0, chunk, 1)]);
    let mut one = map.clone();
    one.targets.retain(|target| target.kind != TargetKind::Storage || target.id.raw() == 2);
    let merged = merge(None, None);
    let (mut cursor, candidates) = (Cursor::default(), all_online(&one));
    let made = new_pattern(&merged, &policy, &candidates, &mut cursor).unwrap();
    assert_eq!((made.components.len(), made.components[0].start), (1, 0));
    assert_eq!((made.components[0].wanted, made.components[0].groups.len()), (32, 1));
}

#[test]
fn default_chunk_size_divides_the_start_of_each_component() {
    let asked = request(&[component(0, 0, 1), component(MIB, 0, 2), component(64 * MIB, 0, 4)]);
    asked.check().unwrap();
    let policy = Policy { default_chunk_bytes: 16 * MIB, ..Policy::default() };
    let sizes: Vec<u64> =
        resolve(&asked, &policy).components.iter().map(|it| it.chunk_bytes).collect();
    assert_eq!(sizes, [16 * MIB, MIB, 16 * MIB]);
}

#[test]
fn placement_without_a_storage_target_fails_with_no_space() {
    let (unset, policy) = (PatternRequest::unset(), Policy::default());
    let made = new_pattern(&unset, &policy, &Candidates::default(), &mut Cursor::default());
    assert_eq!(made.unwrap_err().code(), ErrorCode::NoSpace);
}

#[test]
fn placement_error_names_the_lost_target_and_the_remedy() {
    let group = GroupId::new(6);
    let lost = ClosedGroup { group, target: skep_types::TargetId::new(7), is_lost: true };
    let refused = refusal(&lost, PatternOrigin::Directory);
    assert_eq!(refused.code(), ErrorCode::NoSpace);
    let text = refused.context();
    assert!(text.starts_with("cannot place a file on target t7, which was marked"), "{text}");
    assert!(text.contains("`skep entry set --inherit DIRECTORY`"), "{text}");
    let closed = ClosedGroup { is_lost: false, ..lost };
    let text = refusal(&closed, PatternOrigin::Asked).context().to_owned();
    assert!(text.contains("`skep target set-state 7 open`"), "{text}");
}

/// The directory's default is the pattern of a file for which no width was requested, so the
/// default has two components.
#[test]
fn request_for_a_chunk_size_keeps_all_components() {
    let of_file = request(&[component(0, 512 * KIB, 1), component(4 * MIB, 512 * KIB, 32)]);
    let asked = |chunk_bytes| {
        let merged = merge(Some(&request(&[component(0, chunk_bytes, 0)])), Some(&of_file));
        merged.check().unwrap();
        merged.components
    };
    let two = |chunk, border| [component(0, chunk, 1), component(border, chunk, 32)];
    assert_eq!(asked(MIB), two(MIB, 4 * MIB));
    assert_eq!(asked(16 * MIB), two(16 * MIB, 16 * MIB));
    assert_eq!(asked(0), two(512 * KIB, 4 * MIB));
    let three = [component(0, 64 * KIB, 1), component(MIB, 64 * KIB, 4), component(2 * MIB, 0, 8)];
    assert_eq!(with_chunks_of(&three, Some(4 * MIB)).len(), 2);
    assert_eq!(with_chunks_of(&three, Some(4 * MIB))[1].width, Some(8));
}

#[test]
fn pattern_may_have_inline_bytes_and_further_components() {
    let map = map();
    let made =
        |asked: Option<PatternRequest>, directory: Option<PatternRequest>, policy: &Policy| {
            let merged = merge(asked.as_ref(), directory.as_ref());
            merged.check().unwrap();
            let (mut cursor, candidates) = (Cursor::default(), all_online(&map));
            let made = new_pattern(&merged, policy, &candidates, &mut cursor).unwrap();
            let part = |it: &Component| (it.start, it.chunk_bytes, it.groups.len());
            made.components.iter().map(part).collect::<Vec<_>>()
        };
    let (plain, chunk) = (Policy::default(), 512 * KIB);
    let only_inline = |bytes| Some(inline(bytes, &[component(0, 0, 0)]));
    let of_four = [(0, 0, 0), (4 * KIB, chunk, 1), (4 * MIB, chunk, 4)];
    // A directory that sets only the number of inline bytes takes the other fields from the
    // cluster's settings. A request that sets only this number takes the other fields from the
    // directory's pattern, or from the cluster's settings if the directory has no pattern.
    assert_eq!(made(None, only_inline(4 * KIB), &plain), of_four);
    assert_eq!(made(only_inline(4 * KIB), None, &plain), of_four);
    let wide = request(&[component(0, MIB, 1), component(8 * MIB, MIB, 3)]);
    let over_wide = made(only_inline(8 * KIB), Some(wide), &plain);
    assert_eq!(over_wide, [(0, 0, 0), (8 * KIB, MIB, 1), (8 * MIB, MIB, 3)]);
    // A request without a width keeps the inline bytes of the directory. A request with a width
    // replaces the whole default pattern.
    let whole = || Some(inline(4 * KIB, &[component(0, 0, 1), component(4 * MIB, 0, 3)]));
    let only = |component| Some(request(&[component]));
    let larger_chunks = made(only(component(0, 16 * MIB, 0)), whole(), &plain);
    assert_eq!(larger_chunks, [(0, 0, 0), (4 * KIB, 16 * MIB, 1), (16 * MIB, 16 * MIB, 3)]);
    assert_eq!(made(only(component(0, 0, 2)), whole(), &plain), [(0, chunk, 2)]);
    let replaced = made(only_inline(64 * KIB), whole(), &plain);
    assert_eq!(replaced, [(0, 0, 0), (64 * KIB, chunk, 1), (4 * MIB, chunk, 3)]);
    // A component whose bytes are all inline is dropped.
    let early = request(&[component(0, 64 * KIB, 1), component(64 * KIB, 64 * KIB, 4)]);
    let pushed = made(only_inline(64 * KIB), Some(early), &plain);
    assert_eq!(pushed, [(0, 0, 0), (64 * KIB, 64 * KIB, 4)]);
    // The cluster's settings apply if neither request nor directory sets a width.
    let of_cluster = Policy { inline_bytes: 4 * KIB, ..plain.clone() };
    assert_eq!(made(None, None, &of_cluster), of_four);
    assert_eq!(made(only(component(0, 0, 4)), None, &of_cluster), [(0, chunk, 4)]);
    let narrow = Policy { default_width: 1, ..of_cluster };
    assert_eq!(made(None, None, &narrow), [(0, 0, 0), (4 * KIB, chunk, 1)]);
    // The pattern that results from request, directory and cluster may have too many components.
    let sixteen: Vec<_> = (0..16).map(|it| component(it * MIB, 0, 1)).collect();
    let merged = merge(only_inline(4 * KIB).as_ref(), Some(&request(&sixteen)));
    let (mut cursor, candidates) = (Cursor::default(), all_online(&map));
    let error = new_pattern(&merged, &plain, &candidates, &mut cursor).unwrap_err();
    assert!(error.context().contains("expected 1 to 16"), "{error}");
}

/// The encoding of unset fields must stay stable, because it is used on disk and on the wire.
#[test]
fn decoded_pattern_requests_equal_the_encoded_requests() {
    let map = map();
    let policy = Some(Placement::Policy(Chooser::RoundRobin));
    let by_policy = ComponentRequest { placement: policy, ..component(4 * MIB, 0, 0) };
    let of_list = listed(&groups(&map, TargetKind::Storage));
    for request in [
        PatternRequest::unset(),
        request(&[component(0, MIB, 4), by_policy.clone()]),
        inline(4 * KIB, &[of_list.clone(), by_policy]),
    ] {
        assert_eq!(PatternRequest::from_bytes(&request.to_bytes()).unwrap(), request);
        assert_eq!(request.to_bytes(), request.to_record().to_bytes());
    }
    let open = Component {
        start: 0,
        chunk_bytes: 0,
        wanted: 0,
        redundancy: Redundancy::Stripe,
        chooser: Chooser::Cluster,
        groups: Vec::new(),
    };
    let record = inline(4 * KIB, &[of_list]).to_record();
    let (chooser, groups) = (Chooser::Listed, groups(&map, TargetKind::Storage));
    let of_list = Component { start: 4 * KIB, wanted: 4, chooser, groups, ..open.clone() };
    assert_eq!(record.components, [Component::inline(), of_list.clone()]);
    assert_eq!((record.generation, record.origin), (0, PatternOrigin::Asked));
    let refused = |components: &[Component], what: &str| {
        let components = components.to_vec();
        let error = PatternRequest::from_record(&StripePattern { components, ..record.clone() });
        let error = error.unwrap_err();
        assert!(error.context().contains(what), "{error}");
    };
    refused(&[Component { wanted: 3, ..of_list.clone() }], "list the groups, or set a count");
    let with_policy = Component { chooser: Chooser::Balanced, ..of_list };
    refused(&[with_policy], "but not both");
    refused(&[open.clone(), Component { start: MIB, ..Component::inline() }], "only the first");
    refused(&[Component { wanted: 1, ..Component::inline() }, open], "no count");
    refused(&[Component::inline()], "inline/from=4KiB");
}
