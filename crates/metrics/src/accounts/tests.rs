//! Tests the accounts of load: which causes keep their accounts, and the exactness of sums.

use super::*;

fn load(operations: u64) -> Load {
    Load { operations, read_bytes: 10 * operations, busy_ns: 1, ..Load::default() }
}

fn sum(accounts: &[(u64, Load)]) -> Load {
    let mut sum = Load::default();
    accounts.iter().for_each(|(_, load)| sum.add(load));
    sum
}

#[test]
fn load_of_few_users_or_jobs_is_counted_exactly() {
    let mut accounts = Accounts::default();
    for round in 1..=10 {
        accounts.record(1000, &load(round));
        accounts.record(0, &load(1));
    }
    let mut read = accounts.published().read();
    read.sort_by_key(|(id, _)| *id);
    let ten = Load { operations: 10, read_bytes: 100, busy_ns: 10, ..Load::default() };
    assert_eq!(read[0], (0, ten));
    assert_eq!(read[1].1.operations, 55);
}

#[test]
fn users_with_high_load_stay_listed_among_many_light_users() {
    let mut accounts = Accounts::default();
    let mut expected = Load::default();
    let mut record = |accounts: &mut Accounts, id, operations| {
        accounts.record(id, &load(operations));
        expected.add(&load(operations));
    };
    for light in 0..20_000_u64 {
        record(&mut accounts, 1_000_000 + light, 1);
        for heavy in 1..=5 {
            record(&mut accounts, heavy, 1);
        }
    }
    let read = accounts.published().read();
    assert_eq!(sum(&read), expected);
    for heavy in 1..=5 {
        let found = read.iter().find(|(id, _)| *id == heavy).unwrap();
        assert_eq!(found.1.operations, 20_000, "a heavy id was never replaced");
    }
    assert_eq!(read.len(), MAX_ACCOUNTS + 1);
    assert_eq!(read.last().unwrap().0, LEFT_OUT);
}

#[test]
fn users_with_new_load_replace_users_without_new_load() {
    let mut accounts = Accounts::default();
    for id in 0..MAX_ACCOUNTS as u64 {
        accounts.record(id, &load(100_000));
    }
    for round in 0..2_000_000_u64 {
        accounts.record(5_000 + round % 64, &load(1));
    }
    let read = accounts.published().read();
    let newcomers = read.iter().filter(|(id, _)| (5_000..5_064).contains(id));
    assert!(newcomers.count() > 60, "{read:?}");
}

#[test]
fn directories_with_little_load_are_counted_only_in_the_sum() {
    let mut accounts = Accounts::of(Dimension::Directory);
    let mut ids = std::collections::BTreeSet::new();
    for directory in 0..100_000_u64 {
        accounts.record(1_000_000 + directory, &load(1));
        if directory % 1_000 == 0 {
            ids.extend(accounts.published().read().into_iter().map(|(id, _)| id));
        }
    }
    assert_eq!(Vec::from_iter(ids), [LEFT_OUT], "a walk over many directories adds no series");
    let sum_of_all = sum(&accounts.published().read());
    assert_eq!(sum_of_all.operations, 100_000);
}

#[test]
fn busy_directories_get_and_keep_load_counters() {
    let mut accounts = Accounts::of(Dimension::Directory);
    let record_all = |accounts: &mut Accounts, heavy: std::ops::Range<u64>| {
        for round in 0..50_000_u64 {
            accounts.record(1_000_000 + round, &load(1));
            heavy.clone().for_each(|id| accounts.record(id, &load(1)));
        }
    };
    let operations = |accounts: &Accounts, id: u64| {
        let read = accounts.published().read();
        read.iter().find(|(it, _)| *it == id).map(|(_, load)| load.operations)
    };
    record_all(&mut accounts, 1..5);
    for heavy in 1..5 {
        let counted = operations(&accounts, heavy);
        assert!(counted.is_some_and(|it| it > 49_000), "{heavy}: {counted:?}");
    }
    // Record much load for other directories. Each directory gets an account as long as there are
    // free accounts.
    record_all(&mut accounts, 5..18);
    let read = accounts.published().read();
    assert_eq!(read.len(), MAX_HEAVY_ACCOUNTS + 1);
    assert_eq!(sum(&read).operations, 50_000 * (1 + 4) + 50_000 * (1 + 13));
    // Record most of the load for one directory, which must replace one of the directories with an
    // account.
    (0..400_000).for_each(|_| accounts.record(99, &load(1)));
    assert!(operations(&accounts, 99).is_some(), "{:?}", accounts.published().read());
}

#[test]
fn reader_never_mixes_the_loads_of_two_users() {
    let mut accounts = Accounts::default();
    let published = accounts.published();
    let is_done = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let done = Arc::clone(&is_done);
    let reader = std::thread::spawn(move || {
        while !done.load(Ordering::Relaxed) {
            for (id, load) in published.read().into_iter().filter(|(id, _)| *id != LEFT_OUT) {
                // Each operation of an account has written as many bytes as the id of the account.
                let bytes = load.written_bytes;
                assert!(bytes.is_multiple_of(id), "{bytes} bytes of {id}");
            }
        }
    });
    for round in 0..300_000_u64 {
        let id = 7 + round % 1_000;
        accounts.record(id, &Load { operations: 0, written_bytes: id, ..Load::default() });
    }
    is_done.store(true, Ordering::Relaxed);
    reader.join().unwrap();
}
