//! A frame: the load of a cluster in one time interval, in the form that the history stores.
//!
//! The module owns the data types, and the addition of frames. The frame of a minute is the sum of
//! the frames of its seconds. The frame of an hour is the sum of the frames of its minutes.
//! [`crate::codec`] encodes frames for the disk.

use crate::limits::MAX_CAUSES;
use std::collections::BTreeMap;
use std::ops::Range;

/// The kinds of objects that have a load. The files of the history contain the discriminants of
/// these variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Dimension {
    /// Services, by node id.
    Node = 0,
    /// Targets, by target id.
    Target = 1,
    /// Mounts, by node id.
    Client = 2,
    /// Users, by user id.
    User = 3,
    /// Groups of users, by group id.
    Group = 4,
    /// Jobs of batch systems, by job id.
    Job = 5,
    /// Kinds of requests, by name.
    Operation = 6,
    /// Syncs of the logs of metadata targets, by target id.
    LogSync = 7,
}

impl Dimension {
    /// All dimensions, with their names in the monitor's interface for programs.
    pub const ALL: [(Self, &'static str); 8] = [
        (Self::Node, "node"),
        (Self::Target, "target"),
        (Self::Client, "client"),
        (Self::User, "user"),
        (Self::Group, "group"),
        (Self::Job, "job"),
        (Self::Operation, "operation"),
        (Self::LogSync, "log-sync"),
    ];

    /// Returns the dimension that is called `name`.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(dimension, _)| *dimension)
    }

    /// Returns the dimension that is represented by `number` in the files of the history.
    pub fn numbered(number: u64) -> Option<Self> {
        let index = usize::try_from(number).ok()?;
        Self::ALL.get(index).map(|(dimension, _)| *dimension)
    }

    /// Whether the objects of this dimension cause load, as clients and users do. For such a
    /// dimension, the history stores only the objects with the most load.
    pub fn is_cause(self) -> bool {
        matches!(self, Self::Client | Self::User | Self::Group | Self::Job)
    }
}

/// Identifies the load of an object. The key consists of the dimension, the id, and the service
/// that had the load.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The dimension.
    pub dimension: Dimension,
    /// The id of the object.
    pub id: String,
    /// The service that had the load: `metadata`, `storage` or `management`. Empty for causes of
    /// load.
    pub service: String,
}

/// The values of a gauge, combined over the samples of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Level {
    /// Sum of the values of all samples.
    pub sum: u64,
    /// The highest value in any sample.
    pub max: u64,
}

impl Level {
    /// Returns the level for the value of one sample.
    pub fn of(value: i64) -> Self {
        let value = u64::try_from(value).unwrap_or(0);
        Self { sum: value, max: value }
    }

    fn add(&mut self, other: Self) {
        self.sum = self.sum.saturating_add(other.sum);
        self.max = self.max.max(other.max);
    }

    /// Returns the level of `from` samples as the level of `to` samples with the same mean.
    pub(crate) fn scaled(self, from: u64, to: u64) -> Self {
        let sum = u128::from(self.sum) * u128::from(to) / u128::from(from.max(1));
        Self { sum: u64::try_from(sum).unwrap_or(u64::MAX), max: self.max }
    }
}

/// The load of one object.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Load {
    /// Number of completed operations.
    pub operations: u64,
    /// Number of failed operations.
    pub errors: u64,
    /// Number of bytes of file data that were read.
    pub read_bytes: u64,
    /// Number of bytes of file data that were written.
    pub written_bytes: u64,
    /// Sum of the durations of the operations in nanoseconds.
    pub busy_ns: u64,
    /// Number of requests that waited for their turn.
    pub queued: Level,
    /// Number of requests that were being executed.
    pub busy: Level,
    /// Number of operations in each bucket of durations, in ascending order of buckets. Empty
    /// buckets are omitted.
    pub buckets: Vec<(u16, u64)>,
}

impl Load {
    /// Adds another load to this load.
    pub fn add(&mut self, other: &Self) {
        self.operations = self.operations.saturating_add(other.operations);
        self.errors = self.errors.saturating_add(other.errors);
        self.read_bytes = self.read_bytes.saturating_add(other.read_bytes);
        self.written_bytes = self.written_bytes.saturating_add(other.written_bytes);
        self.busy_ns = self.busy_ns.saturating_add(other.busy_ns);
        self.queued.add(other.queued);
        self.busy.add(other.busy);
        for (bucket, count) in &other.buckets {
            match self.buckets.binary_search_by_key(bucket, |(bucket, _)| *bucket) {
                Ok(index) => {
                    let sum = &mut self.buckets[index].1;
                    *sum = sum.saturating_add(*count);
                }
                Err(index) => self.buckets.insert(index, (*bucket, *count)),
            }
        }
    }

    /// Returns the counts of a part of the time of this load. The time has `whole` equal units, and
    /// the part has the units `units`. The parts of a time add up to the whole load. The lengths of
    /// queues are no counts, so each part has the same lengths as the whole load.
    pub fn part(&self, units: Range<u64>, whole: u64) -> Self {
        let until = |count: u64, unit: u64| {
            let part = u128::from(count) * u128::from(unit.min(whole)) / u128::from(whole.max(1));
            u64::try_from(part).unwrap_or(u64::MAX)
        };
        let of = |count: u64| until(count, units.end).saturating_sub(until(count, units.start));
        let buckets = self.buckets.iter().map(|(bucket, count)| (*bucket, of(*count)));
        Self {
            operations: of(self.operations),
            errors: of(self.errors),
            read_bytes: of(self.read_bytes),
            written_bytes: of(self.written_bytes),
            busy_ns: of(self.busy_ns),
            queued: self.queued,
            busy: self.busy,
            buckets: buckets.filter(|(_, count)| *count > 0).collect(),
        }
    }

    /// Whether all numbers are zero, so that there was no load.
    pub fn is_idle(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the weight of a load. Causes of load are sorted by their weights. `skep stats` uses
    /// the same formula.
    pub fn weight(&self) -> u64 {
        self.operations.saturating_add((self.read_bytes / 2 + self.written_bytes / 2) / (32 << 10))
    }
}

/// Measured values of targets and hosts other than their load. The files of the history contain the
/// discriminants of these variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Measure {
    /// Number of bytes that can still be stored on a target.
    FreeBytes = 0,
    /// Size of the file system of a target in bytes.
    SizeBytes = 1,
    /// Used share of the CPU time of a node's host, in thousandths.
    CpuPermille = 2,
    /// Memory of the host of a node that is available to programs, in bytes.
    MemoryFree = 3,
    /// Total memory of the host of a node in bytes.
    Memory = 4,
}

impl Measure {
    /// All measures, with their names in the monitor's interface for programs.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::FreeBytes, "free_bytes"),
        (Self::SizeBytes, "size_bytes"),
        (Self::CpuPermille, "cpu_permille"),
        (Self::MemoryFree, "memory_free_bytes"),
        (Self::Memory, "memory_bytes"),
    ];

    /// Whether this is a measure of a node's host. All other measures are measures of targets.
    pub fn is_of_host(self) -> bool {
        matches!(self, Self::CpuPermille | Self::MemoryFree | Self::Memory)
    }

    /// Returns the measure that is called `name`.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(measure, _)| *measure)
    }

    /// Returns the measure that is represented by `number` in the files of the history.
    pub fn numbered(number: u64) -> Option<Self> {
        let index = usize::try_from(number).ok()?;
        Self::ALL.get(index).map(|(measure, _)| *measure)
    }
}

/// The load of a cluster in one interval.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Frame {
    /// Start of the interval, in milliseconds since 1970.
    pub start_ms: u64,
    /// Length of the interval in milliseconds.
    pub span_ms: u64,
    /// Number of rounds of requests to the services. The frame was computed from the replies of
    /// these rounds.
    pub samples: u64,
    /// The load of each object.
    pub loads: BTreeMap<Key, Load>,
    /// Other measured values, by measure and by id of the target or node.
    pub readings: BTreeMap<(Measure, u32), Level>,
}

impl Frame {
    /// Adds a later frame to this frame.
    ///
    /// A service that has not replied in a round has no readings in the frame of the round. So if
    /// one of the two frames lacks a reading, this frame counts with the mean reading of the other
    /// frame. Otherwise, a host whose service was down for half a minute would seem to have half of
    /// its memory in this minute.
    pub fn add(&mut self, later: &Self) {
        if self.samples == 0 {
            self.start_ms = later.start_ms;
        }
        let own = self.samples;
        let all = own.saturating_add(later.samples);
        self.span_ms = self.span_ms.saturating_add(later.span_ms);
        self.samples = all;
        for (key, load) in &later.loads {
            match self.loads.get_mut(key) {
                Some(sum) => sum.add(load),
                None => {
                    self.loads.insert(key.clone(), load.clone());
                }
            }
        }
        for (_, level) in self.readings.iter_mut().filter(|(key, _)| !later.has_reading(key)) {
            *level = level.scaled(own, all);
        }
        for (key, level) in &later.readings {
            match self.readings.get_mut(key) {
                Some(sum) => sum.add(*level),
                None => {
                    self.readings.insert(*key, level.scaled(later.samples, all));
                }
            }
        }
    }

    fn has_reading(&self, key: &(Measure, u32)) -> bool {
        self.readings.contains_key(key)
    }

    /// Returns the node ids of the services that have replied in the time of the frame. All
    /// services report the memory of their host.
    pub fn replied(&self) -> impl Iterator<Item = u32> {
        let all = (Measure::Memory, 0)..=(Measure::Memory, u32::MAX);
        self.readings.range(all).map(|((_, node), _)| *node)
    }

    /// Returns the loads of one object, one for each kind of service that had load of this object.
    pub fn loads_of(&self, dimension: Dimension, id: &str) -> impl Iterator<Item = &Load> {
        let first = Key { dimension, id: id.to_owned(), service: String::new() };
        let is_same = move |key: &Key| key.dimension == dimension && key.id == id;
        let from_first = self.loads.range(first..);
        from_first.take_while(move |(key, _)| is_same(key)).map(|(_, load)| load)
    }

    /// Returns the sum of the loads of frames, the oldest first. For each reading, the sum contains
    /// only the newest value, as if all samples had this value. Other programs show the newest
    /// value as the current value.
    pub fn sum_with_newest_readings<'a>(frames: impl IntoIterator<Item = &'a Self>) -> Self {
        let (mut sum, mut newest) = (Self::default(), BTreeMap::new());
        for frame in frames {
            sum.add(frame);
            let samples = frame.samples.max(1);
            newest.extend(frame.readings.iter().map(|(key, level)| (*key, level.sum / samples)));
        }
        let of_all =
            |value: u64| Level { sum: value.saturating_mul(sum.samples.max(1)), max: value };
        sum.readings = newest.into_iter().map(|(key, value)| (key, of_all(value))).collect();
        sum
    }

    /// Calls [`Self::bound_to`] with the maximum number of causes in a frame.
    pub fn bound(&mut self) {
        self.bound_to(MAX_CAUSES);
    }

    /// For each dimension of causes, keeps the `most` objects with the most load. Adds the load of
    /// all other objects to the entry `other`, so that totals stay exact.
    pub fn bound_to(&mut self, most: usize) {
        for (dimension, _) in Dimension::ALL.iter().filter(|(dimension, _)| dimension.is_cause()) {
            let of_dimension = self.loads.iter().filter(|(key, _)| key.dimension == *dimension);
            let mut ranked: Vec<(u64, Key)> = of_dimension
                .filter(|(key, _)| key.id != skep_stats::LEFT_OUT)
                .map(|(key, load)| (load.weight(), key.clone()))
                .collect();
            if ranked.len() <= most {
                continue;
            }
            ranked.sort_by(|a, b| b.cmp(a));
            let id = skep_stats::LEFT_OUT.to_owned();
            let rest = Key { dimension: *dimension, id, service: String::new() };
            let mut sum = self.loads.remove(&rest).unwrap_or_default();
            for (_, key) in ranked.drain(most..) {
                sum.add(&self.loads.remove(&key).unwrap_or_default());
            }
            self.loads.insert(rest, sum);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a frame of one second with the loads of a node, of a target and of a user.
    pub(crate) fn frame(second: u64, operations: u64) -> Frame {
        let load = Load {
            operations,
            written_bytes: operations * 4096,
            busy_ns: operations * 1_000_000,
            queued: Level::of(3),
            buckets: vec![(40, operations)],
            ..Load::default()
        };
        let key = |dimension, id: &str, service: &str| Key {
            dimension,
            id: id.into(),
            service: service.into(),
        };
        let loads = [
            (key(Dimension::Node, "2", "storage"), load.clone()),
            (key(Dimension::Target, "7", "storage"), load.clone()),
            (key(Dimension::User, "1000", ""), load),
        ];
        Frame {
            start_ms: second * 1000,
            span_ms: 1000,
            samples: 1,
            loads: loads.into(),
            readings: [((Measure::FreeBytes, 7), Level::of(99))].into(),
        }
    }

    #[test]
    fn second_without_a_reading_uses_the_last_reading() {
        let mut silent = frame(61, 5);
        silent.readings.clear();
        let sum = Frame::sum_with_newest_readings([&frame(60, 5), &silent]);
        let level = sum.readings[&(Measure::FreeBytes, 7)];
        assert_eq!((sum.samples, level.sum / sum.samples), (2, 99));
        assert_eq!(sum.loads.values().next().unwrap().operations, 10);
    }

    #[test]
    fn missing_readings_count_as_the_mean_of_other_rounds() {
        let silent = |second| Frame { readings: BTreeMap::new(), ..frame(second, 1) };
        let with = |second, value| {
            let readings = [((Measure::Memory, 2), Level { sum: value, max: value })].into();
            Frame { readings, ..frame(second, 1) }
        };
        for order in [[0, 1, 2], [1, 0, 2], [2, 1, 0]] {
            let frames = [silent(60), with(61, 100), with(62, 300)];
            let mut sum = Frame::default();
            order.into_iter().for_each(|index: usize| sum.add(&frames[index]));
            let level = sum.readings[&(Measure::Memory, 2)];
            assert_eq!((sum.samples, level.max), (3, 300));
            let mean = level.sum / sum.samples;
            assert!((166..=234).contains(&mean), "{order:?}: {mean}");
        }
        // Half of the minutes of this hour have the reading.
        let mut hour = Frame::default();
        for minute in 0..60 {
            let mut sum = Frame::default();
            (0..60).for_each(|second| match minute % 2 {
                0 => sum.add(&with(60 * minute + second, 1 << 40)),
                _ => sum.add(&silent(60 * minute + second)),
            });
            hour.add(&sum);
        }
        let level = hour.readings[&(Measure::Memory, 2)];
        assert_eq!((hour.samples, level.sum / hour.samples), (3600, 1 << 40));
    }

    #[test]
    fn parts_of_a_load_add_up_to_the_whole_load() {
        let whole = Load {
            operations: 10,
            errors: 1,
            read_bytes: u64::MAX,
            buckets: vec![(3, 7), (40, 1)],
            queued: Level::of(5),
            ..Load::default()
        };
        let mut sum = Load::default();
        for units in [0..1000, 1000..1900, 1900..3000] {
            let part = whole.part(units, 3000);
            assert!((3..=4).contains(&part.operations), "{part:?}");
            assert_eq!(part.queued, whole.queued);
            sum.add(&part);
        }
        assert_eq!(Load { queued: whole.queued, ..sum }, whole);
        assert_eq!(whole.part(0..5, 0).operations, 0);
    }

    #[test]
    fn load_of_an_object_is_its_load_at_all_services() {
        let mut mixed = Frame::default();
        for (dimension, id, service, operations) in [
            (Dimension::Node, "2", "storage", 1),
            (Dimension::Target, "2", "metadata", 2),
            (Dimension::Target, "2", "storage", 4),
            (Dimension::Target, "20", "storage", 8),
            (Dimension::Client, "2", "", 16),
        ] {
            let key = Key { dimension, id: id.into(), service: service.into() };
            mixed.loads.insert(key, Load { operations, ..Load::default() });
        }
        let of = |id: &str| -> u64 {
            mixed.loads_of(Dimension::Target, id).map(|load| load.operations).sum()
        };
        assert_eq!((of("2"), of("20"), of("1"), of("3")), (6, 8, 0, 0));
    }

    #[test]
    fn sum_of_frames_adds_counts_and_keeps_the_longest_queue() {
        let mut sum = Frame::default();
        for second in 60..120 {
            sum.add(&frame(second, second));
        }
        assert_eq!((sum.start_ms, sum.span_ms, sum.samples), (60_000, 60_000, 60));
        let target = sum.loads.values().nth(1).unwrap();
        let operations: u64 = (60..120).sum();
        assert_eq!((target.operations, target.queued.sum, target.queued.max), (operations, 180, 3));
        assert_eq!(target.buckets, [(40, operations)]);
    }

    #[test]
    fn smallest_loads_are_merged_and_the_sum_is_unchanged() {
        let mut many = frame(1, 5);
        for user in 0..5000_u64 {
            let key = Key { dimension: Dimension::User, id: user.to_string(), ..key_of_user() };
            many.loads.insert(key, Load { operations: user, ..Load::default() });
        }
        let sum = |frame: &Frame| -> u64 {
            let users = frame.loads.iter().filter(|(key, _)| key.dimension == Dimension::User);
            users.map(|(_, load)| load.operations).sum()
        };
        let before = sum(&many);
        many.bound();
        assert_eq!(sum(&many), before);
        let users = many.loads.keys().filter(|key| key.dimension == Dimension::User);
        assert_eq!(users.clone().count(), MAX_CAUSES + 1);
        assert!(users.clone().any(|key| key.id == "4999"));
        assert!(!users.clone().any(|key| key.id == "0"));
        assert!(many.loads.keys().any(|key| key.dimension == Dimension::Target), "targets stay");
    }

    fn key_of_user() -> Key {
        Key { dimension: Dimension::User, id: String::new(), service: String::new() }
    }
}
