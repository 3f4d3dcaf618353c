//! The results of a network benchmark: every measurement, and the hosts and services that took
//! part.

use super::plan::{Measured, Plan, Server};
use crate::launcher::{HostRecord, LinkMeasure, ProbedPath};
use crate::statistics::median;
use crate::storage::outliers::{Compared, Rules, Verdict, compare};
use serde::{Deserialize, Serialize};

/// The two ends of a link that is measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// Name of the host or service that opens the connection.
    pub from: String,
    /// Node id of the service that opens the connection. `None` if a host opens the connection.
    pub from_node: Option<u32>,
    /// Kind of the end that opens the connection: `host`, or the kind of the service.
    pub from_kind: String,
    /// Name of the service that accepts the connection.
    pub to: String,
    /// Node id of the accepting service.
    pub to_node: u32,
    /// Kind of the accepting service.
    pub to_kind: String,
}

/// One measurement of the link between a pair of ends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Index of the pair in [`Outcome::pairs`].
    pub pair: usize,
    /// The quantity that was measured.
    pub measured: Measured,
    /// The repetition, counted from 1.
    pub repetition: u32,
    /// Address of the service that accepted the connection.
    pub address: String,
    /// Number of bytes that all streams transferred. Zero if round trips were measured.
    pub bytes: u64,
    /// Time from the start of the first stream to the end of the last stream.
    pub seconds: f64,
    /// `bytes` divided by `seconds`, in MiB/s. `None` if round trips were measured.
    pub bandwidth_mib_per_s: Option<f64>,
    /// Start and end of each stream, in seconds since the first stream began.
    pub streams: Vec<(f64, f64)>,
    /// Median of the round trips in microseconds. `None` if no round trips were measured.
    pub round_trip_us: Option<f64>,
    /// Durations of the single round trips, in microseconds.
    pub round_trips_us: Vec<f64>,
    /// Share of the measured time in which the CPUs of the connecting host were busy with any work,
    /// from 0 to 1. `None` if a service opened the connection, or if the time was too short to
    /// measure.
    pub from_cpu_busy: Option<f64>,
}

impl Sample {
    /// Creates one measurement of a pair from the measurements of one or more processes.
    pub(super) fn new(
        pair: usize,
        measured: Measured,
        repetition: u32,
        parts: &[LinkMeasure],
    ) -> Self {
        let all = || parts.iter().flat_map(|part| &part.streams);
        let begin = all().map(|(begin, _)| *begin).fold(f64::INFINITY, f64::min);
        let end = all().map(|(_, end)| *end).fold(f64::NEG_INFINITY, f64::max);
        // Clocks have a resolution of one nanosecond. This minimum also prevents a division by
        // zero.
        let seconds = (end - begin).max(1e-9);
        let bytes: u64 = parts.iter().map(|part| part.bytes).sum();
        let trips: Vec<f64> = parts.iter().flat_map(|it| it.round_trips_us.clone()).collect();
        let bandwidth = bytes as f64 / f64::from(1 << 20) / seconds;
        Self {
            pair,
            measured,
            repetition,
            address: parts.first().map(|part| part.address.clone()).unwrap_or_default(),
            bytes,
            seconds,
            bandwidth_mib_per_s: (measured != Measured::RoundTrip).then_some(bandwidth),
            streams: all().map(|(from, to)| (from - begin, to - begin)).collect(),
            round_trip_us: median(&trips),
            round_trips_us: trips,
            from_cpu_busy: None,
        }
    }

    /// Returns the bandwidth, or the number of round trips per second. The report compares pairs by
    /// this rate.
    fn rate(&self) -> f64 {
        let trips = self.round_trip_us.map(|trip| 1e6 / trip);
        self.bandwidth_mib_per_s.or(trips).unwrap_or(0.0)
    }
}

/// A measurement in which all hosts sent to all services at the same time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Total {
    /// The quantity that was measured.
    pub measured: Measured,
    /// The repetition, counted from 1.
    pub repetition: u32,
    /// Number of bytes that were transferred between all pairs.
    pub bytes: u64,
    /// Time from the start of the first stream to the end of the last stream.
    pub seconds: f64,
    /// `bytes` divided by `seconds`, in MiB/s.
    pub bandwidth_mib_per_s: f64,
    /// Time from the start of the first process to the start of the last process, in seconds.
    pub start_skew_s: f64,
}

/// The packets that arrive on the path from a host to a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairPath {
    /// Index of the pair in [`Outcome::pairs`].
    pub pair: usize,
    /// The result of the probe.
    #[serde(flatten)]
    pub probed: ProbedPath,
}

impl PairPath {
    /// Whether packets of the MTU of the host's interface do not arrive, although smaller packets
    /// do.
    pub fn is_too_small(&self) -> bool {
        self.probed.arriving_bytes.is_some_and(|bytes| bytes < self.probed.interface_mtu)
    }
}

/// The results of one pair of ends, compared with the results of all other pairs of the same kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// Index of the pair in [`Outcome::pairs`].
    pub pair: usize,
    /// The quantity that the comparison uses.
    pub measured: Measured,
    /// The result of the comparison. Round trips are compared by their number per second.
    #[serde(flatten)]
    pub compared: Compared,
}

/// The results of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Outcome {
    /// The plan that was run.
    pub plan: Plan,
    /// Start of the run, in seconds since 1970.
    pub started_unix_s: i64,
    /// All client hosts, with their environments.
    pub hosts: Vec<HostRecord>,
    /// Number of processes over all hosts.
    pub processes: u32,
    /// All services that were measured.
    pub servers: Vec<Server>,
    /// All pairs that were measured.
    pub pairs: Vec<Pair>,
    /// The paths from hosts to services that were probed. Services probe no paths.
    #[serde(default)]
    pub paths: Vec<PairPath>,
    /// All measurements, in the order of their times.
    pub samples: Vec<Sample>,
    /// The totals of all pairs, if all pairs were measured at the same time.
    pub totals: Vec<Total>,
    /// The comparison of each pair with all other pairs of the same kind.
    pub judged: Vec<Judged>,
    /// Why the run ended before the plan was complete. `None` if the run completed the plan.
    pub failure: Option<String>,
}

impl Outcome {
    pub(super) fn new(plan: Plan, servers: Vec<Server>) -> Self {
        Self {
            plan,
            started_unix_s: skep_env::wall_time().seconds,
            hosts: Vec::new(),
            processes: 0,
            servers,
            pairs: Vec::new(),
            paths: Vec::new(),
            samples: Vec::new(),
            totals: Vec::new(),
            judged: Vec::new(),
            failure: None,
        }
    }

    /// Returns the index of a pair in `pairs`. Adds the pair if the outcome does not have the pair
    /// yet.
    pub(super) fn place_of(&mut self, pair: Pair) -> usize {
        let found = self.pairs.iter().position(|it| *it == pair);
        found.unwrap_or_else(|| {
            self.pairs.push(pair);
            self.pairs.len() - 1
        })
    }

    /// Returns all measured values of a pair: bandwidths in MiB/s, or medians of round trips in
    /// microseconds.
    pub fn values(&self, pair: usize, measured: Measured) -> Vec<f64> {
        let found = self.samples.iter().filter(|it| it.pair == pair && it.measured == measured);
        found.filter_map(|it| it.bandwidth_mib_per_s.or(it.round_trip_us)).collect()
    }

    /// Compares each pair with all other pairs of the same kind, and stores the results.
    pub(super) fn judge(&mut self, rules: Rules) {
        self.judged.clear();
        let mut kinds: Vec<(String, String)> = Vec::new();
        for pair in &self.pairs {
            let kind = (pair.from_kind.clone(), pair.to_kind.clone());
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        for (from, to) in kinds {
            for measured in Measured::ALL {
                self.judge_kind(&from, &to, measured, rules);
            }
        }
    }

    fn judge_kind(&mut self, from: &str, to: &str, measured: Measured, rules: Rules) {
        let rates = |pair: usize| -> Vec<f64> {
            let of = self.samples.iter().filter(|it| it.pair == pair && it.measured == measured);
            of.map(Sample::rate).collect()
        };
        let is_one = |(_, pair): &(usize, &Pair)| pair.from_kind == from && pair.to_kind == to;
        let (places, all): (Vec<usize>, Vec<Vec<f64>>) = (self.pairs.iter().enumerate())
            .filter(is_one)
            .map(|(place, _)| (place, rates(place)))
            .filter(|(_, rates)| !rates.is_empty())
            .unzip();
        for (index, pair) in places.into_iter().enumerate() {
            let compared = compare(&all, index, rules);
            self.judged.extend(compared.map(|compared| Judged { pair, measured, compared }));
        }
    }

    /// Returns the pairs that are slower than the other pairs of the same kind. The result includes
    /// pairs for which the confidence is too low.
    pub fn outliers(&self) -> impl Iterator<Item = &Judged> {
        self.judged.iter().filter(|judged| judged.compared.verdict != Verdict::Fine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(begin: f64, end: f64, bytes: u64) -> LinkMeasure {
        LinkMeasure {
            node: 1,
            address: "a:1".into(),
            bytes,
            streams: vec![(begin, end), (begin + 0.5, end)],
            round_trips_us: Vec::new(),
            path: None,
        }
    }

    #[test]
    fn path_mtu_is_too_small_if_only_smaller_packets_arrive() {
        let check = |arriving_bytes, expected| {
            let address = "a:1".into();
            let probed =
                ProbedPath { address, interface_mtu: 1500, arriving_bytes, is_reported: false };
            assert_eq!(PairPath { pair: 0, probed }.is_too_small(), expected, "{arriving_bytes:?}");
        };
        check(Some(1500), false);
        check(Some(1400), true);
        // No host has answered a packet, so nothing is known about the path.
        check(None, false);
    }

    #[test]
    fn sample_covers_time_and_bytes_of_all_processes_of_a_host() {
        let parts = [part(10.0, 12.0, 6 << 20), part(10.25, 13.0, 6 << 20)];
        let sample = Sample::new(3, Measured::Send, 1, &parts);
        assert_eq!((sample.seconds, sample.bandwidth_mib_per_s), (3.0, Some(4.0)));
        assert_eq!(sample.streams[..2], [(0.0, 2.0), (0.5, 2.0)]);
        assert_eq!((sample.streams.len(), sample.round_trip_us), (4, None));
        let trips = LinkMeasure { round_trips_us: vec![50.0, 40.0, 90.0], ..part(1.0, 2.0, 0) };
        let sample = Sample::new(3, Measured::RoundTrip, 1, &[trips]);
        assert_eq!((sample.round_trip_us, sample.bandwidth_mib_per_s), (Some(50.0), None));
        assert_eq!(sample.rate(), 20_000.0);
    }

    #[test]
    fn pair_is_compared_only_with_pairs_of_the_same_kinds_of_nodes() {
        let mut outcome = Outcome::new(Plan::default(), Vec::new());
        let mut add = |from: &str, from_kind: &str, to: &str, rate: f64, trip_us: f64| {
            let pair = Pair {
                from: from.into(),
                from_node: None,
                from_kind: from_kind.into(),
                to: to.into(),
                to_node: 1,
                to_kind: "storage".into(),
            };
            let pair = outcome.place_of(pair);
            for repetition in 1..=5 {
                let noise = f64::from(repetition) / 100.0;
                let mut send = Sample::new(pair, Measured::Send, repetition, &[]);
                send.bandwidth_mib_per_s = Some(rate + noise);
                let mut trip = Sample::new(pair, Measured::RoundTrip, repetition, &[]);
                trip.round_trip_us = Some(trip_us + noise);
                outcome.samples.extend([send, trip]);
            }
        };
        add("h1", "host", "s1", 100.0, 50.0);
        add("h1", "host", "s2", 101.0, 51.0);
        add("h2", "host", "s1", 60.0, 50.0);
        add("h2", "host", "s2", 99.0, 120.0);
        // This pair is slow, but it is the only pair of its kind.
        add("s1", "storage", "s2", 1.0, 9000.0);
        outcome.judge(Rules::default());
        let named: Vec<_> = outcome.outliers().map(|it| (it.pair, it.measured)).collect();
        assert_eq!(named, [(2, Measured::Send), (3, Measured::RoundTrip)]);
        assert_eq!(outcome.values(3, Measured::RoundTrip)[0], 120.01);
    }
}
