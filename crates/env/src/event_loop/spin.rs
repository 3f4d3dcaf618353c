//! Decides when a loop polls its completion queue before it sleeps, and for how long.
//!
//! A loop polls only if the next message is likely to arrive soon. All these conditions must hold:
//! - The loop is in a conversation with a peer. A moment ago the loop sent data, or the loop
//!   received data while prompt replies are outstanding ([`super::expect_reply`]). A loop that
//!   waits for a disk, for a timer, or for the next request after a pause sleeps immediately, so an
//!   idle process costs nothing.
//! - The average duration of its recent polling rounds is below the limit. While the average is
//!   above the limit, the loop polls only once after every [`PROBE_INTERVAL`] waits, to find out
//!   whether polling has become useful again. The loop keeps a separate average of the rounds in
//!   which only replies after a sync were outstanding. A sync takes longer than a round. So with a
//!   common average, a program that calls `fsync` would end the polling for all its other requests.
//! - The host has a processor to spare ([`host_load`]), and no other thread has just taken the
//!   processor from the polling loop. A long time between two polls alone does not prove that
//!   another thread ran. In that time the kernel may have copied received data for the loop, or
//!   handled an interrupt. So after a long time the loop also compares the thread's number of
//!   involuntary context switches.
//!
//! # Hazard: `sched_yield`
//! A polling loop must not call `sched_yield(2)`. Since Linux 6.18, a thread that yields gives up
//! the rest of its time slice, even if the thread has used little of this time slice. Next to one
//! busy thread, a polling loop would wait 1.4 ms at each call and get 2 % of the processor.
//!
//! This module is not responsible for the polling itself. The loop calls [`Spin::begin`], polls
//! until [`Round::ends`], and calls [`Spin::end`].

use super::Traffic;
use crate::{clock, host_load};
use std::time::Duration;

/// When the reply to a request is likely to arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyTime {
    /// As soon as the peer has processed the request.
    Prompt,
    /// After a sync of the peer's disk. Most disks take longer than a round of polling.
    AfterSync,
}

/// Number of values of [`ReplyTime`].
const REPLY_TIMES: usize = 2;

/// A conversation of the loop with a peer ends when the loop has not sent or received data for
/// this time.
const CONVERSATION_PAUSE: Duration = Duration::from_micros(500);
/// While polling seems useless, the loop polls once after each series of this number of waits
/// without polling.
const PROBE_INTERVAL: u32 = 32;
/// Weight of the earlier rounds of polling in the average duration. The newest round has the weight
/// 1.
const AVERAGE_WEIGHT: u32 = 3;
/// If more time than this passes between two polls of one round of polling, another thread may have
/// used the processor.
const PREEMPTED: Duration = Duration::from_micros(20);
/// Time for which a loop does not poll after another thread has taken the loop's processor.
const BUSY_PAUSE: Duration = Duration::from_millis(5);

/// The state of a loop from which it decides whether to poll.
#[derive(Debug)]
pub(super) struct Spin {
    /// Maximum duration of a round of polling; zero means that the loop never polls.
    limit: Duration,
    /// The kind of the last completion on a socket.
    last_traffic: Traffic,
    last_traffic_time: Duration,
    /// Number of outstanding replies for each [`ReplyTime`].
    expected: [usize; REPLY_TIMES],
    /// The recent rounds of polling for each [`ReplyTime`].
    histories: [History; REPLY_TIMES],
    /// Time until which the loop does not poll.
    busy_until: Duration,
    is_host_busy: fn(Duration) -> bool,
    preemptions: fn() -> i64,
    /// Number of finished rounds of polling.
    #[cfg(test)]
    rounds: u64,
}

/// The recent rounds of polling for replies of one kind.
#[derive(Debug, Default)]
struct History {
    /// Average duration of the rounds. A round without a completion counts as twice the limit.
    average: Duration,
    /// Number of waits without polling since the last round.
    skipped: u32,
}

/// One round of polling.
#[derive(Debug)]
pub(super) struct Round {
    awaited: ReplyTime,
    start: Duration,
    last_poll: Duration,
    limit: Duration,
    has_succeeded: bool,
    is_preempted: bool,
    preemptions: fn() -> i64,
    /// The thread's number of preemptions when the round began.
    preemptions_before: i64,
}

/// Returns the number of times that the kernel has given the processor of this thread to another
/// thread although this thread could have continued.
fn preemptions_of_thread() -> i64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` has the type that the call fills. All bytes were initialised before the call,
    // and every bit pattern is a valid value.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    usage.ru_nivcsw
}

impl Default for Spin {
    fn default() -> Self {
        Self {
            limit: Duration::ZERO,
            last_traffic: Traffic::None,
            last_traffic_time: Duration::ZERO,
            expected: [0; REPLY_TIMES],
            histories: Default::default(),
            busy_until: Duration::ZERO,
            is_host_busy: host_load::is_busy,
            preemptions: preemptions_of_thread,
            #[cfg(test)]
            rounds: 0,
        }
    }
}

impl Spin {
    pub(super) fn set_limit(&mut self, limit: Duration) {
        self.limit = limit;
    }

    pub(super) fn is_enabled(&self) -> bool {
        !self.limit.is_zero()
    }

    /// Records the kind of the completions that the loop has just seen.
    pub(super) fn note_traffic(&mut self, seen: Traffic) {
        if seen != Traffic::None && self.is_enabled() {
            self.last_traffic = seen;
            self.last_traffic_time = clock::now();
        }
    }

    /// Counts an outstanding reply.
    pub(super) fn expect(&mut self, time: ReplyTime) {
        self.expected[time as usize] += 1;
    }

    /// Ends the wait for a reply that [`Self::expect`] has counted.
    pub(super) fn end_expected(&mut self, time: ReplyTime) {
        let count = &mut self.expected[time as usize];
        *count = count.saturating_sub(1);
    }

    /// Returns when the next message of a peer is likely to arrive. After the loop has sent a reply
    /// and while the loop expects no reply, the next message is the next request. `None` means that
    /// the loop is in no conversation.
    fn awaited(&self, now: Duration) -> Option<ReplyTime> {
        if !self.is_enabled() || now.saturating_sub(self.last_traffic_time) >= CONVERSATION_PAUSE {
            return None;
        }
        let has_sent = self.last_traffic == Traffic::Sent;
        match self.expected {
            [0, 0] => has_sent.then_some(ReplyTime::Prompt),
            [0, _] => has_sent.then_some(ReplyTime::AfterSync),
            _ => Some(ReplyTime::Prompt),
        }
    }

    /// Begins a round of polling, which ends at the latest when the next timer is due. `None` means
    /// that the loop must sleep.
    pub(super) fn begin(&mut self, now: Duration, next_timer: Option<Duration>) -> Option<Round> {
        let awaited = self.awaited(now)?;
        if now < self.busy_until {
            return None;
        }
        let history = &mut self.histories[awaited as usize];
        if history.average > self.limit && history.skipped < PROBE_INTERVAL {
            history.skipped += 1;
            return None;
        }
        if (self.is_host_busy)(now) {
            return None;
        }
        history.skipped = 0;
        let limit = next_timer.map_or(self.limit, |left| left.min(self.limit));
        Some(Round {
            awaited,
            start: now,
            last_poll: now,
            limit,
            has_succeeded: false,
            is_preempted: false,
            preemptions: self.preemptions,
            preemptions_before: (self.preemptions)(),
        })
    }

    /// Ends a round of polling, and records its result for the decisions about later rounds.
    pub(super) fn end(&mut self, round: &Round) {
        #[cfg(test)]
        {
            self.rounds += 1;
        }
        if round.is_preempted {
            self.busy_until = round.last_poll + BUSY_PAUSE;
        }
        let took = if round.has_succeeded && !round.is_preempted {
            round.last_poll.saturating_sub(round.start)
        } else if round.limit < self.limit && !round.is_preempted {
            // A timer has ended the round early, so the missing completion does not show that
            // polling is useless.
            return;
        } else {
            self.limit * 2
        };
        let average = &mut self.histories[round.awaited as usize].average;
        *average = (*average * AVERAGE_WEIGHT + took) / (AVERAGE_WEIGHT + 1);
    }
}

impl Round {
    /// Whether a poll at the time `now` ends the round of polling.
    pub(super) fn ends(&mut self, now: Duration, has_completion: bool) -> bool {
        self.has_succeeded = has_completion;
        self.is_preempted = now.saturating_sub(self.last_poll) > PREEMPTED
            && (self.preemptions)() != self.preemptions_before;
        self.last_poll = now;
        has_completion || self.is_preempted || now.saturating_sub(self.start) >= self.limit
    }
}

#[cfg(test)]
impl Spin {
    /// Makes the loop ignore the host's load and preemptions, and sets the kind and the time of the
    /// last traffic.
    pub(super) fn set_conversation(&mut self, last: Traffic, time: Duration) {
        (self.last_traffic, self.last_traffic_time) = (last, time);
        self.is_host_busy = |_| false;
        self.preemptions = || 0;
    }

    pub(super) fn rounds(&self) -> u64 {
        self.rounds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_micros(50);
    const MICRO: Duration = Duration::from_micros(1);

    thread_local! {
        /// The number of preemptions that a test has chosen.
        static PREEMPTIONS: std::cell::Cell<i64> = const { std::cell::Cell::new(0) };
    }

    /// Returns the state of a loop on an idle host. The loop is in a conversation with a peer, and
    /// its last traffic was at `now`.
    fn talking(now: Duration) -> Spin {
        let mut spin = Spin::default();
        spin.set_limit(LIMIT);
        spin.set_conversation(Traffic::Sent, now);
        spin
    }

    /// Simulates `count` waits. In each wait, a message arrives after `gap`. Returns the number of
    /// rounds of polling.
    fn rounds(spin: &mut Spin, now: &mut Duration, count: u32, gap: Duration) -> u64 {
        let before = spin.rounds();
        for _ in 0..count {
            spin.last_traffic_time = *now;
            if let Some(mut round) = spin.begin(*now, None) {
                let start = *now;
                loop {
                    *now += MICRO;
                    if round.ends(*now, *now >= start + gap) {
                        break;
                    }
                }
                spin.end(&round);
            } else {
                *now += gap;
            }
        }
        spin.rounds() - before
    }

    #[test]
    fn event_loop_polls_only_if_messages_usually_arrive_soon() {
        let mut now = Duration::from_secs(1);
        let mut spin = talking(now);
        assert_eq!(rounds(&mut spin, &mut now, 100, MICRO * 6), 100);
        // After polls that find nothing, the loop stops polling, except for one probe in 33 waits.
        let useless = rounds(&mut spin, &mut now, 330, MICRO * 200);
        assert!((10..=14).contains(&useless), "{useless} rounds polled in vain");
        // The loop resumes polling after a few probes that find messages.
        let back = rounds(&mut spin, &mut now, 300, MICRO * 6);
        assert!(back > 150, "{back} rounds polled again");
    }

    /// A program that creates one file after the other leaves gaps of about 30 and 80 us in turn
    /// between its requests to metadata. With a limit of 50 us, each second round finds nothing,
    /// and the loop also stops polling in the short gaps.
    #[test]
    fn loop_polls_in_all_gaps_only_if_its_limit_covers_them() {
        let polled_in_gaps = |limit: Duration| {
            let mut now = Duration::from_secs(1);
            let mut spin = talking(now);
            spin.set_limit(limit);
            let gaps = [30, 80].into_iter().cycle().take(200);
            gaps.map(|gap| rounds(&mut spin, &mut now, 1, MICRO * gap)).sum::<u64>()
        };
        assert_eq!(polled_in_gaps(LIMIT * 2), 200);
        let few = polled_in_gaps(LIMIT);
        assert!(few < 40, "{few} rounds");
    }

    /// Before the fix, a loop that waited for many syncs in a row stopped polling for all replies.
    #[test]
    fn waits_for_syncs_do_not_stop_polling_for_prompt_replies() {
        let mut now = Duration::from_secs(1);
        let mut spin = talking(now);
        let (mut prompt, mut after_sync) = (0, 0);
        for _ in 0..100 {
            spin.expect(ReplyTime::Prompt);
            prompt += rounds(&mut spin, &mut now, 1, MICRO * 20);
            spin.end_expected(ReplyTime::Prompt);
            spin.expect(ReplyTime::AfterSync);
            after_sync += rounds(&mut spin, &mut now, 2, MICRO * 200);
            spin.end_expected(ReplyTime::AfterSync);
        }
        assert_eq!(prompt, 100);
        assert!((5..=12).contains(&after_sync), "{after_sync} rounds polled for a sync in vain");
    }

    #[test]
    fn loop_polls_for_replies_after_fast_syncs() {
        let mut now = Duration::from_secs(1);
        let mut spin = talking(now);
        spin.expect(ReplyTime::AfterSync);
        assert_eq!(rounds(&mut spin, &mut now, 100, MICRO * 30), 100);
    }

    #[test]
    fn a_loop_does_not_poll_on_a_busy_host() {
        let mut now = Duration::from_secs(1);
        let mut spin = talking(now);
        spin.is_host_busy = |_| true;
        assert_eq!(rounds(&mut spin, &mut now, 100, MICRO * 6), 0);
    }

    #[test]
    fn a_preempted_loop_does_not_poll_again_immediately() {
        let now = Duration::from_secs(1);
        let mut spin = talking(now);
        PREEMPTIONS.set(7);
        spin.preemptions = || PREEMPTIONS.get();
        let mut round = spin.begin(now, None).unwrap();
        assert!(!round.ends(now + MICRO, false));
        let back = now + PREEMPTED * 2;
        PREEMPTIONS.set(8);
        assert!(round.ends(back, false), "another thread has used the processor");
        spin.end(&round);
        spin.last_traffic_time = back;
        assert!(spin.begin(back, None).is_none());
        let later = back + BUSY_PAUSE;
        spin.last_traffic_time = later;
        assert!(spin.begin(later, None).is_some());
    }

    /// Before the fix, the loop stopped polling for 5 ms after the kernel had copied received data
    /// for it.
    #[test]
    fn delay_by_the_loop_itself_does_not_count_as_preemption() {
        let now = Duration::from_secs(1);
        let mut spin = talking(now);
        let mut round = spin.begin(now, None).unwrap();
        let later = now + PREEMPTED * 2;
        assert!(round.ends(later, true), "a message has arrived");
        spin.end(&round);
        spin.last_traffic_time = later;
        assert!(spin.begin(later, None).is_some());
    }

    #[test]
    fn preemptions_are_counted_for_each_thread() {
        let start = std::time::Instant::now();
        // There are more threads than processors, so the threads take turns and each thread is
        // preempted at some time.
        let count = std::thread::available_parallelism().map_or(1, usize::from) * 2;
        let is_preempted = || {
            let before = preemptions_of_thread();
            while start.elapsed() < Duration::from_secs(20) && preemptions_of_thread() == before {
                std::hint::spin_loop();
            }
            preemptions_of_thread() > before
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..count).map(|_| scope.spawn(is_preempted)).collect();
            assert!(threads.into_iter().any(|it| it.join().unwrap()));
        });
    }

    #[test]
    fn polling_that_ends_at_a_timer_does_not_count_as_a_failure() {
        let now = Duration::from_secs(1);
        let mut spin = talking(now);
        let mut round = spin.begin(now, Some(MICRO * 3)).unwrap();
        assert!(!round.ends(now + MICRO, false));
        assert!(round.ends(now + MICRO * 3, false));
        spin.end(&round);
        assert_eq!(spin.histories[ReplyTime::Prompt as usize].average, Duration::ZERO);
    }

    #[test]
    fn event_loop_polls_only_shortly_after_traffic() {
        let begins = |traffic, age: Duration, expected: Option<ReplyTime>| {
            let now = Duration::from_secs(1);
            let mut spin = talking(now);
            spin.set_conversation(traffic, now.saturating_sub(age));
            expected.into_iter().for_each(|time| spin.expect(time));
            spin.begin(now, None).is_some()
        };
        let (fresh, old) = (Duration::ZERO, CONVERSATION_PAUSE * 2);
        let (prompt, after_sync) = (Some(ReplyTime::Prompt), Some(ReplyTime::AfterSync));
        assert!(begins(Traffic::Sent, fresh, None));
        assert!(begins(Traffic::Received, fresh, prompt));
        assert!(begins(Traffic::Sent, fresh, after_sync));
        assert!(
            !begins(Traffic::Received, fresh, after_sync),
            "the time until the end of a sync is unknown"
        );
        assert!(!begins(Traffic::Received, fresh, None));
        assert!(!begins(Traffic::Sent, old, None));
        assert!(!begins(Traffic::Received, old, prompt));
    }
}
