//! Copies of the store over a network that loses, duplicates, delays and reorders messages.
//! Meanwhile, the member restarts and loses power, the primary restarts, and new epochs begin.

use super::copy_network::{Message, Source, copy, waiting_map};
use super::*;
use skep_wire::log_shipping::{CopyStep, CopyStore};

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(200))]

    #[test]
    fn copy_equals_the_store_after_any_faults(
        start in (0_u64..90, 0_u64..30, 1_u64..100),
        steps in proptest::collection::vec((0_u8..24, 0_u16..=u16::MAX), 0..300),
    ) {
        let mut source = Source::begin(start.0, start.1);
        source.log_begins = start.2;
        for (step, value) in steps {
            let delay = Duration::from_micros(u64::from(value) * 3);
            let value = usize::from(value);
            match step {
                0..=2 => source.append(value as u64),
                3 | 4 => source.store(source.stored + value as u64 % 6),
                5 => source.member.end_sync(source.now),
                6 if !source.network.is_empty() => {
                    source.lose(value % source.network.len());
                }
                7 if !source.network.is_empty() => {
                    let twin = copy(&source.network[value % source.network.len()].1);
                    source.network.push((source.now + delay, twin));
                }
                8 if value % 4 == 0 => {
                    let engine = source.member.engine().clone();
                    source.member.open(engine, source.now);
                }
                9 if value % 4 == 0 && source.member.is_copying() => {
                    let engine = source.member.engine();
                    let survivors = value % (engine.batches_since_checkpoint() + 1);
                    let engine = engine.after_power_loss(survivors);
                    source.member.open(engine, source.now);
                }
                10 if value % 8 == 0 => {
                    let lost = value as u64 % 9;
                    source.restart(source.stored.saturating_sub(lost));
                }
                11 if value % 8 == 0 => source.begin_epoch(),
                12 => source.is_without_pairs = value % 2 == 0,
                13 => source.member.end_checkpoint(source.now),
                15 => source.log_begins += value as u64 % 4,
                14 if value % 16 == 0 => source.now += Duration::from_secs(1),
                _ => {
                    source.ship(delay);
                    source.advance(Duration::from_micros(value as u64), delay);
                }
            }
        }
        source.settle();
    }
}

#[test]
fn copy_continues_after_a_restart_of_either_side() {
    let mut source = Source::begin(80, 0);
    source.send_parts(4);
    let engine = source.member.engine().clone();
    source.member.open(engine, source.now);
    source.append(3);
    source.send_parts(6);
    source.restart(source.stored);
    source.append(5);
    source.store(u64::MAX);
    source.begin_epoch();
    source.settle();
    assert_eq!(source.member.discards, 1, "the copy did not begin anew");
}

#[test]
fn copy_restarts_if_the_log_lacks_the_next_record() {
    let mut source = Source::begin(80, 0);
    source.send_parts(4);
    let engine = source.member.engine().clone();
    source.network.clear();
    for seed in 0..10 {
        source.append(seed);
    }
    source.store(u64::MAX);
    source.restart(source.stored);
    source.member.open(engine, source.now);
    source.settle();
    assert_eq!(source.member.discards, 2);
}

#[test]
fn member_catches_up_from_the_log_on_disk_without_a_copy() {
    let mut source = Source::begin(80, 20);
    source.log_begins = 1;
    source.settle();
    assert_eq!((source.member.discards, source.parts), (0, 0));
    assert!(source.log_reads >= 60 / 3, "{} reads", source.log_reads);
}

/// When the copy is complete, the primary no longer has the record after the copy in memory.
#[test]
fn member_catches_up_from_the_log_on_disk_after_a_copy() {
    let mut source = Source::begin(80, 0);
    while !source.member.is_whole() {
        source.send_parts(source.parts + 1);
        source.advance(Duration::from_millis(5), Duration::from_millis(1));
    }
    (0..10).for_each(|seed| source.append(seed));
    source.store(u64::MAX);
    source.log_begins = 80;
    source.restart(source.stored);
    source.settle();
    assert!(source.log_reads > 0);
    assert_eq!(source.member.discards, 1, "the copy did not begin anew");
}

#[test]
fn member_gets_a_copy_if_the_primary_removed_needed_records() {
    let mut source = Source::begin(80, 20);
    source.log_begins = 1;
    while source.log_reads < 5 {
        source.ship(Duration::from_millis(1));
        source.advance(Duration::from_millis(5), Duration::from_millis(1));
    }
    source.log_begins = 70;
    source.settle();
    assert_eq!(source.member.discards, 1);
}

#[test]
fn copy_ends_only_when_its_last_part_is_on_the_device() {
    let mut source = Source::begin(80, 0);
    source.send_parts(3);
    let is_marked =
        |source: &Source| source.member.engine().get(&Key::StoreCopy.to_bytes()).unwrap().is_some();
    while is_marked(&source) {
        source.send_parts(source.parts + 1);
        source.advance(Duration::from_millis(5), Duration::from_millis(1));
    }
    source.member.end_checkpoint(source.now);
    assert!(source.member.is_copying(), "the last part may not be on the device");
    source.member.end_checkpoint(source.now);
    assert!(!source.member.is_copying());
    source.settle();
}

#[test]
fn member_gets_no_copy_if_log_records_suffice() {
    let mut source = Source::begin(20, 20);
    for seed in 0..10 {
        source.append(seed);
    }
    source.settle();
    assert_eq!((source.member.discards, source.parts), (0, 0));
}

#[test]
fn serving_member_refuses_a_copy_that_would_replace_its_store() {
    let mut member = Member::begin(3);
    let begin = CopyStore {
        epoch: Epoch::new(3),
        step: CopyStep::Begin,
        after: Bytes(vec![]),
        first: Lsn::new(100),
        previous_epoch: Epoch::default(),
        records: vec![],
        pairs: vec![],
        through: Bytes(vec![]),
        is_last: false,
        pair_count: 0,
        pair_bytes: 0,
        checksum: 0,
    };
    let now = Duration::from_secs(1);
    let actions = member.backup.handle([arrival(1, 3, &begin)], now).unwrap();
    assert_eq!(actions.len(), 1, "the only action is a reply");
    assert!(!member.backup.discards());
    member.backup.handle([Event::Map(waiting_map(4)), arrival(2, 3, &begin)], now).unwrap();
    assert!(!member.backup.discards(), "the request has an earlier epoch");
    let begin = CopyStore { epoch: Epoch::new(4), ..begin };
    let kept = CopyStore { first: Lsn::new(1), ..begin.clone() };
    member.backup.handle([arrival(3, 4, &kept)], now).unwrap();
    assert!(!member.backup.discards(), "the primary keeps all records that the member lacks");
    member.backup.handle([arrival(4, 4, &begin)], now).unwrap();
    assert!(member.backup.discards());
}

#[test]
fn copy_waits_for_space_on_a_full_disk() {
    let mut source = Source::begin(80, 0);
    source.send_parts(3);
    let shortage = Some("the disk is full".to_owned());
    source.member.handle(vec![Event::FreeSpace { shortage }], source.now);
    for _ in 0..1000 {
        source.ship(Duration::ZERO);
        source.advance(Duration::from_millis(5), Duration::ZERO);
    }
    assert!(source.member.is_copying());
    let progress = source.shipper.members(40, source.now).remove(0).copy.expect("a copy");
    assert_eq!(progress.problem, "the disk is full");
    source.member.handle(vec![Event::FreeSpace { shortage: None }], source.now);
    source.settle();
    assert_eq!(source.member.discards, 1);
}

#[test]
fn damaged_part_of_a_copy_is_refused() {
    let mut source = Source::begin(80, 0);
    source.send_parts(3);
    while !source.network.iter().any(|(_, message)| is_part(message)) {
        source.advance(Duration::from_millis(5), Duration::ZERO);
        source.ship(Duration::ZERO);
    }
    for (_, message) in &mut source.network {
        if let Message::Request(_, MemberMessage::Copy(part)) = message {
            part.pairs[0].value.0[0] ^= 1;
        }
    }
    source.advance(Duration::from_millis(1), Duration::ZERO);
    let refused = |(_, message): &(Duration, Message)| match message {
        Message::Reply(_, CopyStore::ID, Err(error)) => error.context().contains("checksum"),
        _ => false,
    };
    assert!(source.network.iter().any(refused));
    source.settle();
}

fn is_part(message: &Message) -> bool {
    matches!(message, Message::Request(_, MemberMessage::Copy(part)) if !part.pairs.is_empty())
}

#[test]
fn copy_does_not_exceed_its_configured_rate() {
    let mut source = Source::begin(80, 0);
    source.send_parts(1);
    let part_bytes = 12;
    let began = source.now;
    let mut parts = 0;
    while parts < 6 {
        assert!(source.now < began + Duration::from_secs(60), "{parts} parts in a minute");
        let stored = Lsn::new(source.stored);
        for (member, wanted) in source.shipper.wanted_parts(stored, source.now) {
            let page = source.page(&wanted.after);
            source.shipper.put_part(member, (stored, page), part_bytes, source.now);
            parts += 1;
        }
        source.ship(Duration::ZERO);
        source.advance(Duration::from_millis(10), Duration::ZERO);
    }
    let seconds = (source.now - began).as_secs_f64();
    assert!(seconds > 4.0, "six parts of about a second each took {seconds} s");
}

#[test]
fn copy_pauses_after_a_part_for_as_long_as_its_transfer() {
    let mut source = Source::begin(80, 0);
    source.send_parts(1);
    let (began, parts_before) = (source.now, source.parts);
    let delay = Duration::from_millis(200);
    while source.parts < parts_before + 5 {
        assert!(source.now < began + Duration::from_secs(60), "the copy makes progress");
        source.ship(delay);
        source.advance(Duration::from_millis(10), delay);
    }
    let seconds = (source.now - began).as_secs_f64();
    assert!(seconds > 2.8, "five parts took only {seconds} s");
}
