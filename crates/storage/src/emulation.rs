//! Targets that are slower than they are: for trying out what slower devices would do.
//!
//! A target with an emulated rate answers as a device would that serves one request after the
//! other at that rate: each reply waits until the device would be done with all requests that came
//! before, and with this one. The work itself is done at once; only the reply waits, so other
//! requests of the target's thread go on, and a client gains nothing by having many requests under
//! way. A sync waits for what came before it.
//!
//! [`Line`] has the arithmetic, without a clock; [`Device`] holds back replies by it.

use crate::settings::EmulationSettings;
use skep_rpc::Incoming;
use skep_types::TargetId;
use skep_types::codec::Codec;
use skep_types::random::mix;
use skep_wire::Request;
use skep_wire::storage as messages;
use std::cell::RefCell;
use std::time::Duration;

/// How long a target keeps one rate.
const INTERVAL: Duration = Duration::from_secs(1);
/// Uniform numbers whose sum is nearly normal, of standard deviation 1.
const UNIFORM_NUMBERS: u64 = 12;
/// How far a rate may lie from the middle, as a share of it. The same in both directions, so that
/// the mean over a long time is the rate that was asked for.
const FURTHEST: f64 = 0.9;

/// The rate of a device over time.
///
/// Each second of the clock has a rate of its own, drawn from a normal distribution that is cut off
/// at a tenth of the rate and at 1.9 times of it. It follows from the seed and the second alone.
#[derive(Debug, Clone, Copy)]
struct Speed {
    bytes_per_second: f64,
    /// Standard deviation, as a share of the rate.
    deviation: f64,
    seed: u64,
}

impl Speed {
    /// Bytes in a second, during an interval.
    fn during(&self, interval: u64) -> f64 {
        if self.deviation == 0.0 {
            return self.bytes_per_second;
        }
        let start = mix(self.seed ^ mix(interval));
        let uniform = |number: u64| mix(start ^ number) as f64 / u64::MAX as f64;
        let normal = (0..UNIFORM_NUMBERS).map(uniform).sum::<f64>() - UNIFORM_NUMBERS as f64 / 2.0;
        self.bytes_per_second * (1.0 + (normal * self.deviation).clamp(-FURTHEST, FURTHEST))
    }
}

/// What a device has accepted: it serves one request after the other.
#[derive(Debug)]
struct Line {
    speed: Speed,
    /// When it is done with all of it.
    free_at: Duration,
}

impl Line {
    /// Accepts a request that came at `arrival` and moves `bytes`; gives when it is done. Times are
    /// those of one clock that doesn't go back.
    fn accept(&mut self, arrival: Duration, bytes: usize) -> Duration {
        let mut time = self.free_at.max(arrival);
        let mut left = bytes as f64;
        while left > 0.0 {
            let interval = time.as_nanos() / INTERVAL.as_nanos();
            let interval = u64::try_from(interval).expect("clocks count from boot");
            let end = INTERVAL * u32::try_from(interval + 1).expect("a host runs under 100 years");
            let rate = self.speed.during(interval);
            let needed = Duration::from_secs_f64(left / rate);
            if time + needed <= end {
                time += needed;
                break;
            }
            left -= (end - time).as_secs_f64() * rate;
            time = end;
        }
        self.free_at = time;
        time
    }

    /// When a request that came at `arrival` and moves nothing is done.
    fn drained(&self, arrival: Duration) -> Duration {
        self.free_at.max(arrival)
    }
}

/// A device of the emulated rate.
#[derive(Debug)]
pub(crate) struct Device(RefCell<Line>);

/// A request that a device has begun.
#[derive(Debug)]
pub(crate) enum Begun {
    /// It ends at a time that is known.
    Until(Duration),
    /// It came at this time; how much it moves is known afterwards.
    Since(Duration),
}

impl Device {
    /// The device of a target, if one is emulated. Targets vary each in its own way.
    pub(crate) fn of(settings: &EmulationSettings, target: TargetId) -> Option<Self> {
        let speed = Speed {
            bytes_per_second: settings.rate.0 as f64,
            deviation: f64::from(settings.variability) / 100.0,
            seed: mix(settings.seed) ^ u64::from(target.raw()),
        };
        let line = Line { speed, free_at: Duration::ZERO };
        (settings.rate.0 > 0).then(|| Self(RefCell::new(line)))
    }

    /// Begins a request, if it is one that a device would have to do with.
    pub(crate) fn begin(&self, incoming: &Incoming) -> Option<Begun> {
        let now = skep_env::now();
        let accept = |bytes| Some(Begun::Until(self.0.borrow_mut().accept(now, bytes)));
        match incoming.header.message {
            messages::WriteChunk::ID => accept(incoming.data.as_ref().map_or(0, |it| it.len())),
            messages::ReadChunk::ID => Some(Begun::Since(now)),
            messages::SyncChunk::ID => Some(Begun::Until(self.0.borrow().drained(now))),
            // It is read and written. One that can't be decoded is refused.
            messages::CopyChunk::ID => match messages::CopyChunk::from_bytes(&incoming.body) {
                Ok(copy) => accept(copy.length as usize * 2),
                Err(_) => None,
            },
            _ => None,
        }
    }

    /// Waits as long as the device would take for something that moves `bytes`.
    pub(crate) async fn pass(&self, bytes: usize) {
        self.end(Begun::Since(skep_env::now()), bytes).await;
    }

    /// Waits until the device would be done with a request that was begun and has read `bytes`.
    pub(crate) async fn end(&self, begun: Begun, bytes: usize) {
        let until = match begun {
            Begun::Until(until) => until,
            Begun::Since(arrival) => self.0.borrow_mut().accept(arrival, bytes),
        };
        let now = skep_env::now();
        if until > now {
            skep_env::sleep(until - now).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MB: usize = 1_000_000;

    fn line(deviation: f64, seed: u64) -> Line {
        let speed = Speed { bytes_per_second: 10e6, deviation, seed };
        Line { speed, free_at: Duration::ZERO }
    }

    fn seconds(time: Duration) -> f64 {
        time.as_secs_f64()
    }

    #[test]
    fn requests_are_done_one_after_the_other_at_the_rate() {
        let mut line = line(0.0, 0);
        let at = |milliseconds| Duration::from_millis(milliseconds);
        assert_eq!(line.accept(at(500), MB), at(600));
        // At once, and yet in line.
        assert_eq!(line.accept(at(500), 2 * MB), at(800));
        assert_eq!(line.drained(at(550)), at(800));
        assert_eq!(line.drained(at(900)), at(900));
        // A pause is not made up for.
        assert_eq!(line.accept(at(5_000), MB), at(5_100));
        assert_eq!(line.accept(at(5_000), 0), at(5_100));
        // Over several intervals.
        assert_eq!(line.accept(at(5_100), 30 * MB), at(8_100));
    }

    #[test]
    fn rates_vary_around_the_one_that_was_asked_for() {
        let speed = line(0.1, 7).speed;
        let rates: Vec<f64> = (0..10_000).map(|interval| speed.during(interval) / 10e6).collect();
        let mean = rates.iter().sum::<f64>() / rates.len() as f64;
        let variance = rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>();
        let deviation = (variance / rates.len() as f64).sqrt();
        assert!((mean - 1.0).abs() < 0.005, "{mean}");
        assert!((deviation - 0.1).abs() < 0.005, "{deviation}");
        let within = rates.iter().filter(|rate| (*rate - 1.0).abs() < 0.1).count();
        assert!((6_500..7_200).contains(&within), "two thirds of a normal distribution: {within}");
        // The same again, and another with another seed.
        assert_eq!(speed.during(3), line(0.1, 7).speed.during(3));
        assert_ne!(speed.during(3), line(0.1, 8).speed.during(3));
    }

    #[test]
    fn what_is_done_in_a_long_time_is_as_much_as_the_rates_allow() {
        let mut line = line(0.3, 1);
        let mut done = Duration::ZERO;
        for _ in 0..1_000 {
            done = line.accept(Duration::ZERO, MB);
        }
        let speed = line.speed;
        let whole: f64 = (0..done.as_secs()).map(|interval| speed.during(interval)).sum();
        let rest = (seconds(done) - done.as_secs() as f64) * speed.during(done.as_secs());
        assert!((whole + rest - 1e9).abs() < 1e4, "{}", whole + rest);
        assert!((90.0..110.0).contains(&seconds(done)), "{done:?}");
    }

    proptest! {
        #[test]
        fn nothing_is_done_before_it_came_nor_out_of_turn(
            requests in prop::collection::vec((0_u64..3_000, 0_usize..4_000_000), 1..50),
            deviation in 0.0_f64..0.5,
        ) {
            let mut line = line(deviation, 3);
            let (mut arrival, mut before) = (Duration::ZERO, Duration::ZERO);
            for (pause, bytes) in requests {
                arrival += Duration::from_millis(pause);
                let done = line.accept(arrival, bytes);
                prop_assert!(done >= before.max(arrival));
                let fastest = 10e6 * (1.0 + FURTHEST);
                let span = seconds(done - before.max(arrival));
                prop_assert!(span + 1e-6 >= bytes as f64 / fastest);
                prop_assert!(span <= bytes as f64 / (10e6 * (1.0 - FURTHEST)) + 1e-6);
                before = done;
            }
        }
    }
}
