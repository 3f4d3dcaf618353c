//! Tests of the balance values with artificial clusters.

use super::*;
use crate::why::tests::map;
use proptest::prelude::*;
use skep_types::{Group, GroupId};

const SECOND: u64 = 1_000_000_000;

/// Returns the map of the tests, with a group for each metadata target.
fn grouped() -> ClusterMap {
    let mut map = map();
    map.groups = [1, 2]
        .map(|id| Group::of_one(GroupId::new(id), TargetKind::Metadata, TargetId::new(id)))
        .into();
    map
}

fn work(requests: &[u64], busy_percent: u64) -> WorkByTarget {
    let of = |(index, requests): (usize, &u64)| {
        let working_ns = 60 * SECOND / 100 * busy_percent;
        let work = Work { requests: *requests, working_ns, span_ns: 60 * SECOND };
        (index as u32 + 1, work)
    };
    requests.iter().enumerate().map(of).collect()
}

/// Evaluates the rule about work. The thread of target 1 has worked `busy_now` percent of the
/// newest second.
fn uneven(work: &WorkByTarget, busy_now: u64, found: &[Cause]) -> Option<Cause> {
    let mut newest = Evidence::default();
    let target = newest.targets.entry(1).or_default();
    (target.span_ns, target.working_ns) = (SECOND, SECOND / 100 * busy_now);
    uneven_work((work, &newest), &grouped(), found)
}

/// Returns a map in which storage target `3 + index` has a file system with 1000 GiB. `used[index]`
/// percent of it are used.
fn filled(used: &[u64]) -> ClusterMap {
    const GIB: u64 = 1 << 30;
    let mut map = map();
    for (id, used) in (3..).zip(used) {
        let target = map.targets.iter_mut().find(|it| it.id == TargetId::new(id)).unwrap();
        target.capacity = Capacity {
            total_bytes: 1000 * GIB,
            free_bytes: 10 * GIB * (100 - used),
            file_system: u128::from(id),
            ..Capacity::default()
        };
        target.capacity_pool = CapacityPool::Normal;
    }
    map
}

#[test]
fn work_balance_is_mean_work_divided_by_the_highest_work() {
    let even = of_metadata_work(&work(&[5_000, 5_000], 90), &grouped());
    assert_eq!((even.percent, even.targets), (Some(100.0), 2));
    let uneven = of_metadata_work(&work(&[3_000, 1_000], 90), &grouped());
    assert_eq!(uneven.percent, Some(66.7));
    assert_eq!(uneven.highest, Some(Highest { target: 1, percent: 75.0 }));
    let one_sided = of_metadata_work(&work(&[0, 1_000], 90), &grouped());
    assert_eq!((one_sided.percent, one_sided.in_words().as_str()), (Some(50.0), "50 %"));
}

#[test]
fn balance_of_little_work_is_not_judged() {
    let little = of_metadata_work(&work(&[199, 0], 90), &grouped());
    assert_eq!(little.percent, None);
    assert_eq!(little.in_words(), "not enough work to judge (199 requests)");
    let alone = of_metadata_work(&work(&[5_000], 90), &grouped());
    assert_eq!((alone.targets, alone.percent), (1, None));
    assert_eq!(uneven(&work(&[199, 0], 90), 90, &[]), None);
}

#[test]
fn balance_of_work_includes_only_primaries_that_answer() {
    let compared = |map: &ClusterMap| of_metadata_work(&work(&[5_000, 10], 90), map).targets;
    assert_eq!(compared(&grouped()), 2);
    let mut alone = grouped();
    alone.groups.truncate(1);
    assert_eq!(compared(&alone), 1);
    let mut offline = grouped();
    offline.targets[1].reachability = Reachability::Offline;
    assert_eq!(compared(&offline), 1);
}

#[test]
fn busy_target_with_far_more_work_is_a_finding() {
    let found = uneven(&work(&[9_000, 1_000], 80), 90, &[]).unwrap();
    assert_eq!((found.rule, found.object.as_str()), ("work-uneven", "t1"));
    let words = "metadata target t1 on metadata-1 gets 90 % of the requests to 2 metadata targets \
                 and works 80 % of the time; the balance of work is 56 %";
    assert_eq!(found.what, words);
    assert_eq!(uneven(&work(&[9_000, 1_000], 20), 90, &[]), None, "an idle thread");
    assert_eq!(uneven(&work(&[9_000, 1_000], 80), 20, &[]), None, "the work has ended");
    assert_eq!(uneven(&work(&[7_000, 3_000], 80), 90, &[]), None, "little more than its share");
    let mut short = work(&[9_000, 1_000], 80);
    short.values_mut().for_each(|it| it.span_ns /= 10);
    assert_eq!(uneven(&short, 90, &[]), None, "six seconds");
    let storm = Cause { rule: "user-storm", ..found };
    assert_eq!(uneven(&work(&[9_000, 1_000], 80), 90, &[storm]), None, "the user is named");
}

#[test]
fn balance_of_space_compares_used_shares_of_file_systems() {
    let even = of_storage_space(&filled(&[40, 40, 40, 40]));
    assert_eq!((even.percent, even.targets), (Some(100.0), 4));
    let uneven = of_storage_space(&filled(&[80, 40, 40, 40]));
    assert_eq!(uneven.percent, Some(62.5));
    assert_eq!(uneven.highest, Some(Highest { target: 3, percent: 80.0 }));
    let empty = of_storage_space(&filled(&[0, 0, 0, 0]));
    assert_eq!(empty.in_words(), "not enough data to judge");
    let mut shared = filled(&[40, 40, 40, 40]);
    shared.targets.iter_mut().for_each(|target| target.capacity.file_system = 7);
    assert_eq!(of_storage_space(&shared).targets, 1);
}

#[test]
fn file_balance_is_mean_count_divided_by_the_highest_count() {
    let of = |files: [u64; 4]| {
        let map = filled(&[40, 40, 40, 40]);
        let counted = |target: &Target| {
            let index = usize::try_from(target.id.raw() - 3).unwrap();
            let free_inodes = 1_000_000 - files[index];
            Capacity { total_inodes: 1_000_000, free_inodes, ..target.capacity }
        };
        of_files(&file_systems(&map, TargetKind::Storage, counted), TargetKind::Storage)
    };
    let even = of([500, 500, 500, 500]);
    assert_eq!((even.percent, even.targets), (Some(100.0), 4));
    let uneven = of([1_000, 3_000, 2_000, 2_000]);
    assert_eq!(uneven.percent, Some(66.7));
    assert_eq!(uneven.highest, Some(Highest { target: 4, percent: 37.5 }));
    assert_eq!(of([399, 0, 0, 0]).in_words(), "not enough files to judge (399 files)");
    let map = filled(&[40, 40, 40, 40]);
    let uncounted = file_systems(&map, TargetKind::Storage, |target| target.capacity);
    let found = of_files(&uncounted, TargetKind::Storage);
    assert_eq!((found.targets, found.percent), (0, None), "no file system counts inodes");
}

#[test]
fn targets_on_one_file_system_count_once_in_the_space_balance() {
    let mut map = filled(&[40, 60, 20, 30]);
    map.targets.iter_mut().for_each(|target| target.capacity.file_system %= 2);
    map.targets.iter_mut().find(|it| it.id == TargetId::new(6)).unwrap().capacity.total_bytes = 0;
    let found = file_systems(&map, TargetKind::Storage, |target| target.capacity);
    let figures = found.iter().map(|it| (it.target.id.raw(), it.targets, it.used_percent()));
    let found: Vec<_> = figures.collect();
    // Target 4 has no known file system, and target 6 has no known size.
    assert_eq!(found, [(3, 2, 40.0), (4, 1, 60.0)]);
}

#[test]
fn target_that_is_far_fuller_than_other_targets_is_a_finding() {
    let found = uneven_space(&filled(&[20, 20, 70, 20])).unwrap();
    assert_eq!((found.rule, found.object.as_str()), ("space-uneven", "t5"));
    let words = "storage target t5 on storage-2 is 70 % full, but the other storage targets are \
                 20 % full; the balance of used space is 46 %";
    assert_eq!(found.what, words);
    assert_eq!(uneven_space(&filled(&[10, 10, 45, 10])), None, "half of its space is free");
    assert_eq!(uneven_space(&filled(&[50, 50, 70, 50])), None, "less than twice the others");
    let mut low = filled(&[20, 20, 90, 20]);
    low.targets[4].capacity_pool = CapacityPool::Low;
    assert_eq!(uneven_space(&low), None, "the finding about low space reports it");
}

proptest! {
    #[test]
    fn balance_is_between_an_equal_share_and_100_percent(
        requests in proptest::collection::vec(0_u64..1_000_000, 2),
        used in proptest::collection::vec(0_u64..=100, 4),
    ) {
        let work = of_metadata_work(&work(&requests, 90), &grouped());
        let space = of_storage_space(&filled(&used));
        for balance in [work, space] {
            match balance.percent {
                Some(percent) => {
                    // The percentage is rounded to one decimal place, so it may be slightly below
                    // the exact minimum.
                    let least = 100.0 / balance.targets as f64 - 0.1;
                    prop_assert!((least..=100.0).contains(&percent), "{balance:?}");
                    prop_assert!(balance.highest.is_some() && balance.reason.is_none());
                }
                None => prop_assert!(balance.reason.is_some() && balance.highest.is_none()),
            }
        }
    }

    #[test]
    fn balance_does_not_depend_on_the_unit_of_the_work(
        requests in proptest::collection::vec(100_u64..1_000_000, 2),
        factor in 1_u64..1_000,
    ) {
        let scaled: Vec<u64> = requests.iter().map(|it| it * factor).collect();
        let [one, other] =
            [requests, scaled].map(|it| of_metadata_work(&work(&it, 90), &grouped()).percent);
        prop_assert!((one.unwrap() - other.unwrap()).abs() <= 0.11);
    }
}
