//! Tests of a shipper and a backup member over a network that loses, duplicates, delays and
//! reorders messages. The backup member restarts, and its log may end with records of earlier
//! primaries.

use super::*;
use crate::limits::{KEPT_FOR_ABSENT_BYTES, SHIP_AGAIN_AFTER, SHIPPED_REQUESTS};

/// A message in the simulated network.
enum Message {
    Request(u64, MemberMessage),
    Reply(u64, Result<LogHeld>),
}

/// The primary with its log, and the network to one backup member.
struct Pair {
    shipper: Shipper,
    log: Vec<Record>,
    epoch: u64,
    known: Progress,
    sync_wanted: Lsn,
    member: Member,
    network: Vec<(Duration, Message)>,
    now: Duration,
}

impl Pair {
    /// Begins in epoch 4. The logs of both members begin with the same `common` records of epoch 1.
    /// After these records, the backup member has `of_backup` records of epoch 2, and the primary
    /// has `of_primary` records of epoch 3.
    fn begin(common: u64, of_backup: u64, of_primary: u64) -> Self {
        let both = (1..=common).map(|lsn| record(lsn, 1));
        let extra = |count, epoch| (common + 1..=common + count).map(move |lsn| record(lsn, epoch));
        let log: Vec<_> = both.clone().chain(extra(of_primary, 3)).collect();
        let mut window = RecordWindow::after(Lsn::default());
        log.iter().for_each(|record| window.push(record.clone()));
        let mut shipper = Shipper::new(Epoch::new(4), window);
        shipper.set_members(&[BACKUP], &[]);
        let of_member = both.chain(extra(of_backup, 2)).collect();
        let member = Member::open(MemoryEngine::default(), of_member, 4, Duration::ZERO);
        Self {
            shipper,
            log,
            epoch: 4,
            known: Progress::default(),
            sync_wanted: Lsn::default(),
            member,
            network: Vec::new(),
            now: Duration::ZERO,
        }
    }

    fn last(&self) -> Lsn {
        Lsn::new(self.log.len() as u64)
    }

    fn append(&mut self) {
        let record = record(self.log.len() as u64 + 1, self.epoch);
        self.shipper.append(record.epoch, record.lsn, record.synced, &record.payload);
        self.log.push(record);
    }

    /// Sends the requests that the shipper returns. Returns the number of requests.
    fn ship(&mut self, delay: Duration) -> usize {
        self.shipper.release(self.known.synced, KEPT_FOR_ABSENT_BYTES);
        let log = GroupLog {
            wait_ms: 0,
            epoch: Epoch::new(self.epoch),
            held: self.known.appended,
            safe: self.known.synced,
            synced: self.last(),
            sync_wanted: self.sync_wanted,
        };
        let requests = self.shipper.requests(&log, self.now);
        self.shipper.check_invariants(self.known.synced, self.last());
        let count = requests.len();
        for MemberRequest { number, message, .. } in requests {
            self.network.push((self.now + delay, Message::Request(number, message)));
        }
        count
    }

    fn deliver(&mut self, message: Message, delay: Duration) {
        match message {
            Message::Request(number, message) => {
                let event = match &message {
                    MemberMessage::Ship(ship) => arrival(number, ship.epoch.raw(), ship),
                    MemberMessage::AwaitSync(wait) => arrival(number, wait.epoch.raw(), wait),
                    MemberMessage::Copy(part) => panic!("all records are kept: {part:?}"),
                };
                self.member.handle(vec![event], self.now);
            }
            Message::Reply(number, result) => {
                let progress = self.shipper.on_reply(BACKUP, number, &result, self.now);
                if let Some(progress) = progress {
                    self.check(progress);
                    self.known = self.known.max(progress);
                }
            }
        }
        self.send_replies(delay);
    }

    /// Sends all replies of the backup member, including replies after a tick.
    fn send_replies(&mut self, delay: Duration) {
        let replies = std::mem::take(&mut self.member.replies);
        let replies = replies.into_iter().map(|(number, it)| Message::Reply(number, it));
        self.network.extend(replies.map(|it| (self.now + delay, it)));
    }

    /// Checks that the backup member has the same records as the primary, up to the last record in
    /// its report `progress`.
    fn check(&self, progress: Progress) {
        let count = progress.appended.raw() as usize;
        let is_equal = |(own, other): (&Record, &Record)| {
            (own.epoch, own.lsn, &own.payload) == (other.epoch, other.lsn, &other.payload)
        };
        assert!(
            self.member.log.len() >= count,
            "the backup member has the records that it reports"
        );
        let pairs = self.log[..count].iter().zip(&self.member.log);
        assert!(pairs.clone().all(is_equal), "the backup member has the records of the primary");
        assert!(self.member.stored() <= self.known.synced.raw(), "the store has safe records");
    }

    /// Moves the clock forward by `pause`, and delivers the messages that arrive until then.
    /// Replies take the time `delay`.
    fn advance(&mut self, pause: Duration, delay: Duration) {
        self.now += pause;
        let now = self.now;
        let (due, later) =
            std::mem::take(&mut self.network).into_iter().partition(|it| it.0 <= now);
        self.network = later;
        let due: Vec<(Duration, Message)> = due;
        due.into_iter().for_each(|(_, message)| self.deliver(message, delay));
        self.send_replies(delay);
    }

    /// Lets all messages arrive, until the backup member has all records in its log and its store.
    fn settle(&mut self) {
        // A backup member removes records of an earlier primary only when it receives a record with
        // the same LSN.
        while self.log.len() < self.member.log.len() {
            self.append();
        }
        for _ in 0..3000 {
            self.ship(Duration::from_millis(1));
            self.member.end_sync(self.now);
            self.member.handle(vec![Event::Tick], self.now);
            self.advance(Duration::from_millis(2), Duration::from_millis(1));
        }
        let last = self.last();
        assert_eq!(self.known, Progress { appended: last, synced: last });
        assert_eq!(self.member.stored(), last.raw(), "the report of safe records arrives too");
        assert_eq!(self.member.log.len(), self.log.len(), "nothing of an earlier primary is left");
        self.check(self.known);
    }
}

fn copy(message: &Message) -> Message {
    match message {
        Message::Request(number, message) => Message::Request(*number, message.clone()),
        Message::Reply(number, result) => Message::Reply(*number, result.clone()),
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(200))]

    #[test]
    fn backup_member_gets_every_record_over_an_unreliable_network(
        start in (0_u64..6, 0_u64..6, 0_u64..6),
        steps in proptest::collection::vec((0_u8..12, 0_u16..=u16::MAX), 0..200),
    ) {
        let mut pair = Pair::begin(start.0, start.1, start.2);
        for (step, value) in steps {
            let delay = Duration::from_micros(u64::from(value) * 10);
            match step {
                0..=2 => pair.append(),
                3 => pair.member.end_sync(pair.now),
                4 if !pair.network.is_empty() => {
                    let index = usize::from(value) % pair.network.len();
                    pair.network.remove(index);
                }
                5 if !pair.network.is_empty() => {
                    let index = usize::from(value) % pair.network.len();
                    let twin = copy(&pair.network[index].1);
                    pair.network.push((pair.now + delay, twin));
                }
                6 => pair.member.restart(pair.now),
                7 => pair.sync_wanted = pair.last(),
                8 => {
                    pair.epoch += 1;
                    let epoch = Epoch::new(pair.epoch);
                    pair.shipper.begin_epoch(epoch);
                    pair.member.epoch = pair.epoch;
                    pair.member.handle(vec![Event::Map(map(pair.epoch))], pair.now);
                }
                _ => {
                    pair.ship(delay);
                    pair.member.handle(vec![Event::Tick], pair.now);
                    pair.advance(Duration::from_micros(u64::from(value) * 4), delay);
                }
            }
        }
        pair.settle();
    }
}

#[test]
fn number_of_shipping_requests_in_flight_is_bounded() {
    let mut pair = Pair::begin(0, 0, 0);
    assert_eq!(pair.ship(Duration::ZERO), 1, "one request asks where to begin");
    pair.append();
    assert_eq!(pair.ship(Duration::ZERO), 0, "nothing is shipped before the reply");
    pair.advance(Duration::ZERO, Duration::ZERO);
    pair.advance(Duration::ZERO, Duration::ZERO);
    let mut ships = 0;
    for _ in 0..2 * SHIPPED_REQUESTS {
        pair.append();
        pair.ship(Duration::from_secs(60));
        ships = pair.network.len();
    }
    // The requests that ship records, and one request that waits for a sync.
    assert_eq!(ships, SHIPPED_REQUESTS + 1);
}

#[test]
fn primary_ships_records_again_if_no_reply_arrives() {
    let mut pair = Pair::begin(0, 0, 0);
    pair.ship(Duration::ZERO);
    pair.advance(Duration::ZERO, Duration::ZERO);
    pair.advance(Duration::ZERO, Duration::ZERO);
    pair.append();
    assert!(pair.ship(Duration::ZERO) > 0);
    pair.network.clear();
    pair.now += SHIP_AGAIN_AFTER - Duration::from_millis(1);
    assert_eq!(pair.ship(Duration::ZERO), 0);
    assert_eq!(pair.shipper.next_due(Lsn::default()), Some(pair.now + Duration::from_millis(1)));
    pair.now += Duration::from_millis(1);
    assert_eq!(pair.ship(Duration::ZERO), 1);
    pair.settle();
}

#[test]
fn sync_request_is_sent_to_the_member_immediately() {
    let mut pair = Pair::begin(3, 0, 0);
    pair.ship(Duration::ZERO);
    pair.advance(Duration::ZERO, Duration::ZERO);
    pair.advance(Duration::ZERO, Duration::ZERO);
    assert_eq!(pair.known.appended, Lsn::new(3), "the comparison of one record is enough");
    pair.append();
    pair.sync_wanted = pair.last();
    pair.ship(Duration::ZERO);
    pair.advance(Duration::ZERO, Duration::ZERO);
    assert_eq!(pair.member.syncing, Some(Lsn::new(4)));
}

#[test]
fn late_report_of_an_earlier_epoch_is_ignored() {
    let mut pair = Pair::begin(3, 0, 0);
    pair.settle();
    pair.shipper.begin_epoch(Epoch::new(5));
    let late = LogHeld {
        epoch: Epoch::new(4),
        appended: Lsn::new(3),
        synced: Lsn::new(3),
        ship_after: Lsn::new(3),
        is_behind: false,
        needs_copy: false,
        process: 0,
        lease_ms: 0,
    };
    assert_eq!(pair.shipper.on_reply(BACKUP, 1, &Ok(late), pair.now), None);
}

/// Regression test: each reply to `AwaitLogSync` counted as the reply to the lost `ShipLog`. So the
/// primary never sent the records again.
#[test]
fn records_are_shipped_again_despite_replies_to_sync_requests() {
    let mut pair = Pair::begin(0, 0, 0);
    pair.ship(Duration::ZERO);
    pair.advance(Duration::ZERO, Duration::ZERO);
    pair.advance(Duration::ZERO, Duration::ZERO);
    pair.append();
    pair.ship(Duration::ZERO);
    let is_wait =
        |message: &Message| matches!(message, Message::Request(_, MemberMessage::AwaitSync(_)));
    pair.network.retain(|(_, message)| is_wait(message));
    assert_eq!(pair.network.len(), 1, "only the request for the record is lost");
    pair.settle();
}

/// A restarted backup member compares its records only when a `ShipLog` arrives. Regression test: a
/// primary without a new record sent no `ShipLog`, so the restarted member never confirmed the last
/// record.
#[test]
fn restarted_member_confirms_its_log_without_a_new_record() {
    let mut pair = Pair::begin(0, 0, 0);
    pair.ship(Duration::ZERO);
    pair.advance(Duration::ZERO, Duration::ZERO);
    pair.advance(Duration::ZERO, Duration::ZERO);
    pair.append();
    pair.ship(Duration::ZERO);
    pair.advance(Duration::ZERO, Duration::ZERO);
    pair.advance(Duration::ZERO, Duration::ZERO);
    let appended = Lsn::new(1);
    assert_eq!(pair.known, Progress { appended, synced: Lsn::default() });
    pair.member.restart(pair.now);
    pair.settle();
}

#[test]
fn new_serving_member_gets_records_that_are_not_synced_yet() {
    let mut pair = Pair::begin(0, 0, 0);
    pair.shipper.set_members(&[], &[]);
    for _ in 0..3 {
        pair.append();
    }
    pair.shipper.set_members(&[BACKUP], &[]);
    pair.settle();
}
