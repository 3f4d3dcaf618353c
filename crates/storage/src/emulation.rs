//! Emulation of slower devices, for experiments.
//!
//! A target with an emulated rate replies like a device that serves one request after the other at
//! this rate. Each reply waits until the device would have completed this request and all earlier
//! requests. The target does the work immediately and delays only the reply, so its thread can
//! serve other requests during the delay. So a client's throughput does not grow with the number of
//! its requests in flight. A sync waits for all earlier requests.
//!
//! [`RequestQueue`] computes the completion times and uses no clock. [`Device`] delays the replies
//! until these times.

use crate::settings::EmulationSettings;
use skep_rpc::Incoming;
use skep_types::TargetId;
use skep_types::codec::Codec;
use skep_types::random::mix;
use skep_wire::Request;
use skep_wire::storage as messages;
use std::cell::RefCell;
use std::time::Duration;

/// Time for which a target keeps the same rate.
const INTERVAL: Duration = Duration::from_secs(1);
/// Number of uniform random numbers that are added up for one random deviation. The sum is nearly
/// normally distributed, with a standard deviation of 1.
const UNIFORM_NUMBERS: u64 = 12;
/// Largest deviation from the configured rate, as a fraction of this rate. The limit is the same in
/// both directions, so that the mean over a long time is the configured rate.
const FURTHEST: f64 = 0.9;

/// The rate of an emulated device over time.
///
/// Each second of the clock has its own rate, drawn from a normal distribution that is clamped to
/// 0.1 and 1.9 times the configured rate. The rate depends only on the seed and the second.
#[derive(Debug, Clone, Copy)]
struct Speed {
    bytes_per_second: f64,
    /// Standard deviation, as a fraction of the configured rate.
    deviation: f64,
    seed: u64,
}

impl Speed {
    /// Returns the rate in bytes per second during an interval.
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

/// The queue of a device that serves one request at a time.
#[derive(Debug)]
struct RequestQueue {
    speed: Speed,
    /// Time at which the device completes the last accepted request.
    free_at: Duration,
}

impl RequestQueue {
    /// Accepts a request that arrived at `arrival` and moves `bytes`. Returns the time at which the
    /// device completes the request. All times come from the same monotonic clock.
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

    /// Returns the time at which the device completes a request that arrived at `arrival` and moves
    /// no data.
    fn drained(&self, arrival: Duration) -> Duration {
        self.free_at.max(arrival)
    }
}

/// An emulated device.
#[derive(Debug)]
pub(crate) struct Device(RefCell<RequestQueue>);

/// A request that the emulated device has accepted.
#[derive(Debug)]
pub(crate) enum EmulatedRequest {
    /// The time at which the device completes the request.
    Until(Duration),
    /// The arrival time of a request whose size is known only after the target has executed it.
    Since(Duration),
}

impl Device {
    /// Creates the emulated device of a target, or returns `None` if the settings emulate no
    /// device. Each target has its own sequence of rates.
    pub(crate) fn of(settings: &EmulationSettings, target: TargetId) -> Option<Self> {
        let speed = Speed {
            bytes_per_second: settings.rate.0 as f64,
            deviation: f64::from(settings.variability) / 100.0,
            seed: mix(settings.seed) ^ u64::from(target.raw()),
        };
        let queue = RequestQueue { speed, free_at: Duration::ZERO };
        (settings.rate.0 > 0).then(|| Self(RefCell::new(queue)))
    }

    /// Accepts a request. Returns `None` for a request that does not use the device.
    pub(crate) fn begin(&self, incoming: &Incoming) -> Option<EmulatedRequest> {
        let now = skep_env::now();
        let accept = |bytes| Some(EmulatedRequest::Until(self.0.borrow_mut().accept(now, bytes)));
        match incoming.header.message {
            messages::WriteChunk::ID => accept(incoming.data.as_ref().map_or(0, |it| it.len())),
            messages::ReadChunk::ID => Some(EmulatedRequest::Since(now)),
            messages::SyncChunk::ID => Some(EmulatedRequest::Until(self.0.borrow().drained(now))),
            // Each byte of a copy counts twice, because the device reads and writes the byte. A
            // request that cannot be decoded moves no bytes, because the handler refuses it.
            messages::CopyChunk::ID => match messages::CopyChunk::from_bytes(&incoming.body) {
                Ok(copy) => accept(copy.length as usize * 2),
                Err(_) => None,
            },
            _ => None,
        }
    }

    /// Accepts a request that arrives now and moves `bytes`, and waits until the device would have
    /// completed it.
    pub(crate) async fn pass(&self, bytes: usize) {
        self.end(EmulatedRequest::Since(skep_env::now()), bytes).await;
    }

    /// Waits until the device would have completed a request. `bytes` is the size of a request
    /// whose size was not known when the device accepted it.
    pub(crate) async fn end(&self, begun: EmulatedRequest, bytes: usize) {
        let until = match begun {
            EmulatedRequest::Until(until) => until,
            EmulatedRequest::Since(arrival) => self.0.borrow_mut().accept(arrival, bytes),
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

    fn queue(deviation: f64, seed: u64) -> RequestQueue {
        let speed = Speed { bytes_per_second: 10e6, deviation, seed };
        RequestQueue { speed, free_at: Duration::ZERO }
    }

    fn seconds(time: Duration) -> f64 {
        time.as_secs_f64()
    }

    #[test]
    fn emulated_requests_run_one_at_a_time_at_configured_rate() {
        let mut queue = queue(0.0, 0);
        let at = |milliseconds| Duration::from_millis(milliseconds);
        assert_eq!(queue.accept(at(500), MB), at(600));
        // The second request arrives at the same time, and the device serves it after the first
        // request.
        assert_eq!(queue.accept(at(500), 2 * MB), at(800));
        assert_eq!(queue.drained(at(550)), at(800));
        assert_eq!(queue.drained(at(900)), at(900));
        // An idle time does not shorten the time of the next request.
        assert_eq!(queue.accept(at(5_000), MB), at(5_100));
        assert_eq!(queue.accept(at(5_000), 0), at(5_100));
        // This request takes longer than one `INTERVAL`, so the queue draws several rates for it.
        assert_eq!(queue.accept(at(5_100), 30 * MB), at(8_100));
    }

    #[test]
    fn emulated_rates_vary_around_the_configured_rate() {
        let speed = queue(0.1, 7).speed;
        let rates: Vec<f64> = (0..10_000).map(|interval| speed.during(interval) / 10e6).collect();
        let mean = rates.iter().sum::<f64>() / rates.len() as f64;
        let variance = rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>();
        let deviation = (variance / rates.len() as f64).sqrt();
        assert!((mean - 1.0).abs() < 0.005, "{mean}");
        assert!((deviation - 0.1).abs() < 0.005, "{deviation}");
        let within = rates.iter().filter(|rate| (*rate - 1.0).abs() < 0.1).count();
        assert!((6_500..7_200).contains(&within), "two thirds of a normal distribution: {within}");
        // The same seed gives the same rates, and a different seed gives different rates.
        assert_eq!(speed.during(3), queue(0.1, 7).speed.during(3));
        assert_ne!(speed.during(3), queue(0.1, 8).speed.during(3));
    }

    #[test]
    fn emulated_throughput_over_a_long_time_matches_the_rates() {
        let mut queue = queue(0.3, 1);
        let mut done = Duration::ZERO;
        for _ in 0..1_000 {
            done = queue.accept(Duration::ZERO, MB);
        }
        let speed = queue.speed;
        let whole: f64 = (0..done.as_secs()).map(|interval| speed.during(interval)).sum();
        let rest = (seconds(done) - done.as_secs() as f64) * speed.during(done.as_secs());
        assert!((whole + rest - 1e9).abs() < 1e4, "{}", whole + rest);
        assert!((90.0..110.0).contains(&seconds(done)), "{done:?}");
    }

    proptest! {
        #[test]
        fn emulated_requests_end_in_order_and_after_their_arrival(
            requests in prop::collection::vec((0_u64..3_000, 0_usize..4_000_000), 1..50),
            deviation in 0.0_f64..0.5,
        ) {
            let mut queue = queue(deviation, 3);
            let (mut arrival, mut before) = (Duration::ZERO, Duration::ZERO);
            for (pause, bytes) in requests {
                arrival += Duration::from_millis(pause);
                let done = queue.accept(arrival, bytes);
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
