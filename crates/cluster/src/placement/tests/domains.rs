//! Tests failure domains: files are distributed over domains as evenly as the evenness over servers
//! allows.

use super::allocations::products;
use super::*;

/// The servers of a cluster: for each server the index of its domain and the number of its targets.
/// Domain zero means that the server has no domain.
type Shape<'a> = &'a [(usize, usize)];

fn with_domains(shape: Shape<'_>) -> ClusterMap {
    let targets: Vec<usize> = shape.iter().map(|(_, targets)| *targets).collect();
    let mut map = map(&targets);
    let storage = map.nodes.iter_mut().filter(|node| node.kind == NodeKind::Storage);
    for (node, (domain, _)) in storage.zip(shape).filter(|(_, (domain, _))| *domain > 0) {
        node.domain = format!("rack-{domain}");
    }
    map
}

/// Returns a shape with `domains` equal domains. Each domain has `servers` servers, and each server
/// has `targets` targets. The domains alternate from server to server.
fn regular(domains: usize, servers: usize, targets: usize) -> Vec<(usize, usize)> {
    (0..domains * servers).map(|server| (1 + server % domains, targets)).collect()
}

/// Returns the number of chosen targets per server, in the order of the shape.
fn servers_of(map: &ClusterMap, shape: Shape<'_>, chosen: &[GroupId]) -> Vec<usize> {
    let counts = per_server(map, chosen);
    let storage = map.nodes.iter().filter(|node| node.kind == NodeKind::Storage);
    storage.take(shape.len()).map(|node| counts.get(&node.id).copied().unwrap_or(0)).collect()
}

/// Returns the number of chosen targets per domain.
fn domains_of(shape: Shape<'_>, per_server: &[usize]) -> Vec<usize> {
    let mut counts: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    for (server, ((domain, _), count)) in shape.iter().zip(per_server).enumerate() {
        let key = if *domain == 0 { (0, server) } else { (*domain, 0) };
        *counts.entry(key).or_default() += count;
    }
    counts.into_values().collect()
}

/// Whether all servers have the same count to within one, except servers that have given all their
/// targets.
fn is_even(shape: Shape<'_>, per_server: &[usize]) -> bool {
    let most = per_server.iter().copied().max().unwrap_or(0);
    shape.iter().zip(per_server).all(|((_, has), count)| count + 1 >= most || count == has)
}

/// Sum of squares, as a measure for numbers with the same sum: a smaller sum means more even
/// numbers. The choice with the minimum is the most even one by any measure.
fn unevenness(counts: &[usize]) -> usize {
    counts.iter().map(|count| count * count).sum()
}

/// Returns the minimum unevenness over domains, by trying all choices that are even over servers.
fn least_unevenness(shape: Shape<'_>, count: usize) -> usize {
    let sizes: Vec<usize> = shape.iter().map(|(_, targets)| targets + 1).collect();
    let all = products(&sizes).into_iter();
    let possible =
        all.filter(|counts| counts.iter().sum::<usize>() == count && is_even(shape, counts));
    possible
        .map(|counts| unevenness(&domains_of(shape, &counts)))
        .min()
        .expect("at least one choice is even over servers")
}

#[test]
fn files_are_spread_evenly_over_two_domains() {
    let shape = regular(2, 2, 4);
    let map = with_domains(&shape);
    let candidates = Candidates::new(&map);
    let mut pairs = BTreeMap::<Vec<usize>, usize>::new();
    for seed in 0..4_000 {
        let servers = |count| servers_of(&map, &shape, &balanced(&candidates, count, seed));
        assert_eq!(domains_of(&shape, &servers(2)), [1, 1]);
        assert_eq!(domains_of(&shape, &servers(6)), [3, 3]);
        assert_eq!(servers(4), [1, 1, 1, 1]);
        assert_eq!(servers(8), [2, 2, 2, 2]);
        *pairs.entry(servers(2)).or_default() += 1;
    }
    // Each server of one domain is combined with each server of the other domain, about equally
    // often.
    assert_eq!(pairs.len(), 4, "{pairs:?}");
    assert!(pairs.values().all(|times| (800..1_200).contains(times)), "{pairs:?}");
}

#[test]
fn balanced_chooser_is_even_over_servers_of_unequal_domains() {
    let shape = [(1, 4), (2, 4), (2, 4), (2, 4)];
    let map = with_domains(&shape);
    let candidates = Candidates::new(&map);
    for (count, expected) in
        [(2, [1, 1]), (3, [1, 2]), (4, [1, 3]), (5, [2, 3]), (6, [2, 4]), (8, [2, 6])]
    {
        for seed in 0..200 {
            let servers = servers_of(&map, &shape, &balanced(&candidates, count, seed));
            assert_eq!(domains_of(&shape, &servers), expected, "{count}: {servers:?}");
        }
    }
}

#[test]
fn targets_of_equal_domains_are_used_equally_often() {
    for (domains, servers, targets) in [(2, 2, 2), (2, 3, 4), (3, 2, 2), (4, 4, 1), (5, 2, 3)] {
        let map = with_domains(&regular(domains, servers, targets));
        for count in (1..=domains * servers + 3).chain([domains * servers * targets]) {
            let what = format!("{domains} x {servers} x {targets}, {count}");
            let [all, first] = uses(&map, count, 1 << 40..(1 << 40) + 8_000);
            assert_even(&all, 0.15, &what);
            assert_even(&first, 0.3, &format!("{what}, first"));
        }
    }
}

#[test]
fn domains_and_their_servers_are_chosen_by_free_space() {
    let shape = [(1, 1), (1, 1), (2, 1), (2, 1)];
    let mut map = with_domains(&shape);
    map.targets[0].capacity.free_bytes = 50 << 30;
    let [one, _] = uses(&map, 1, 0..14_000);
    assert_even(&[one[0] * 2.0, one[1], one[2], one[3]], 0.1, "one target");
    let [two, _] = uses(&map, 2, 0..12_000);
    assert_even(&[two[0] * 3.0, two[1] * 1.5, two[2] * 2.0, two[3] * 2.0], 0.1, "two targets");
    // The first server provides its only target. Domains and free space determine which of the
    // other servers provide two targets.
    let shape = [(1, 1), (1, 2), (2, 2), (2, 2)];
    let mut map = with_domains(&shape);
    map.targets[5].capacity.free_bytes = 50 << 30;
    map.targets[6].capacity.free_bytes = 50 << 30;
    let candidates = Candidates::new(&map);
    let mut gives = [0.0; 4];
    for seed in 0..12_000 {
        let servers = servers_of(&map, &shape, &balanced(&candidates, 6, seed));
        assert_eq!(domains_of(&shape, &servers), [3, 3], "{servers:?}");
        gives.iter_mut().zip(&servers).for_each(|(sum, count)| *sum += f64::from(*count == 2));
    }
    assert_eq!((gives[0], gives[1]), (0.0, 12_000.0));
    assert_even(&[gives[2] * 1.0, gives[3] * 2.0], 0.1, "a server with half the space");
}

#[test]
fn domains_of_one_server_or_all_servers_change_no_placement() {
    let plain = Candidates::new(&with_domains(&[(0, 3), (0, 3), (0, 3), (0, 3)]));
    for shape in [[(1, 3), (2, 3), (3, 3), (0, 3)], [(1, 3), (1, 3), (1, 3), (1, 3)]] {
        let candidates = Candidates::new(&with_domains(&shape));
        for (count, seed) in (1..=12).flat_map(|count| (0..50).map(move |seed| (count, seed))) {
            assert_eq!(balanced(&candidates, count, seed), balanced(&plain, count, seed));
        }
    }
}

#[test]
fn choosers_other_than_balanced_ignore_domains() {
    let shape = regular(2, 3, 2);
    let without: Vec<_> = shape.iter().map(|(_, targets)| (0, *targets)).collect();
    let maps = [&shape, &without].map(|shape| Candidates::new(&with_domains(shape)));
    for (chooser, word) in Chooser::ALL.iter().filter(|(it, _)| *it != Chooser::Balanced) {
        let mut cursors = [Cursor::default(); 2];
        for seed in 0..100 {
            let mut choose =
                |index: usize| maps[index].choose(*chooser, 4, seed, &mut cursors[index]);
            assert_eq!(choose(0), choose(1), "{word}");
        }
    }
}

proptest! {
    #[test]
    fn evenness_over_servers_has_priority_over_domains(
        shape in prop::collection::vec((0_usize..4, 1_usize..5), 1..7), seeds: [u64; 4],
    ) {
        let map = with_domains(&shape);
        let candidates = Candidates::new(&map);
        for count in 1..=shape.iter().map(|(_, targets)| targets).sum() {
            let least = least_unevenness(&shape, count);
            for seed in seeds {
                let chosen = balanced(&candidates, count, seed);
                prop_assert_eq!(&chosen, &balanced(&candidates, count, seed));
                prop_assert_eq!(chosen.iter().collect::<BTreeSet<_>>().len(), count);
                let servers = servers_of(&map, &shape, &chosen);
                prop_assert!(is_even(&shape, &servers), "{:?} x {}: {:?}", shape, count, servers);
                let domains = domains_of(&shape, &servers);
                prop_assert_eq!(unevenness(&domains), least, "{:?} x {}", shape, count);
            }
        }
    }

    #[test]
    fn every_target_is_chosen_for_some_seed(
        shape in prop::collection::vec((0_usize..4, 1_usize..5), 1..9), count in 1_usize..12,
    ) {
        let [all, first] = uses(&with_domains(&shape), count, 0..1_500);
        prop_assert!(all.iter().all(|times| *times > 0.0), "{:?}", all);
        prop_assert!(first.iter().all(|times| *times > 0.0), "{:?}", first);
    }

    #[test]
    fn placement_is_even_over_many_domains_and_servers(
        shape in prop::collection::vec((0_usize..40, 1_usize..9), 1..150),
        count in 1_usize..300, seed: u64,
    ) {
        let map = with_domains(&shape);
        let chosen = balanced(&Candidates::new(&map), count, seed);
        let targets: usize = shape.iter().map(|(_, targets)| targets).sum();
        prop_assert_eq!(chosen.len(), count.min(targets).min(MAX_STRIPE_WIDTH));
        prop_assert_eq!(chosen.iter().collect::<BTreeSet<_>>().len(), chosen.len());
        let servers = servers_of(&map, &shape, &chosen);
        prop_assert!(is_even(&shape, &servers));
        // Take a domain that provides additional targets. Without its last additional target, it
        // has at most as many targets as any domain that could have provided this target instead.
        let most = servers.iter().copied().max().unwrap_or(0);
        let has: Vec<usize> = shape.iter().map(|(_, targets)| *targets).collect();
        let more = |server: usize| has[server] >= most && servers[server] < most;
        let given = |server: usize| servers[server] == most;
        let domain = |server: usize| (shape[server].0, usize::from(shape[server].0 == 0) * server);
        let mut counts: HashMap<(usize, usize), usize> = HashMap::new();
        (0..shape.len()).for_each(|it| *counts.entry(domain(it)).or_default() += servers[it]);
        let fewest = (0..shape.len()).filter(|it| more(*it)).map(|it| counts[&domain(it)]).min();
        let largest = (0..shape.len()).filter(|it| given(*it)).map(|it| counts[&domain(it)]).max();
        if let (Some(fewest), Some(largest)) = (fewest, largest) {
            prop_assert!(largest <= fewest + 1, "{} and {}", fewest, largest);
        }
    }
}
