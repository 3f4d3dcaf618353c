//! Queries of the history. The first kind of query returns the load of one object, or of all
//! objects together, over time. The second kind returns the total load of each object in a time
//! span.

use crate::frame::{Dimension, Frame, Key, Load, Measure};
use crate::history::{History, Resolution};
use crate::late_replies::late_groups;
use crate::limits::{MAX_LOADS, MAX_POINTS};
use crate::names::Names;
use crate::quantile::{heat, quantile_ns};
use serde_json::{Value, json};
use skep_types::ClusterMap;
use std::collections::BTreeMap;

/// Length of a point, in milliseconds, at which the point can show the load of a single round.
const SECOND_MS: u64 = 1000;
/// Longest time span of a query: the time for which the history keeps its hourly frames.
const LONGEST_SPAN_MS: u64 = 731 * 24 * 3600 * 1000;

/// A query for the course of the load over time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SeriesQuery {
    pub(crate) dimension: Dimension,
    /// The id of the object. `None` means the sum of all objects.
    pub(crate) id: Option<String>,
    /// The service. `None` means all services.
    pub(crate) service: Option<String>,
    pub(crate) window: Window,
    pub(crate) points: usize,
    pub(crate) has_heat: bool,
    /// The node id of the service that has all the load of the object. `None` means that several
    /// services may have load of the object.
    pub(crate) node: Option<u32>,
}

/// The time span of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    span_ms: u64,
    /// The end of the span, in milliseconds since 1970. `None` means now.
    until_ms: Option<u64>,
}

impl Window {
    /// Returns the time span in the parameters `span` and `until`.
    pub(crate) fn of(parameters: &Parameters, default_s: u64) -> Result<Self, String> {
        let until = parameters.get("until").map(|text| {
            let wrong = || format!("invalid until '{text}': expected a time in seconds since 1970");
            let seconds: u64 = text.parse().map_err(|_| wrong())?;
            seconds.checked_mul(1000).ok_or_else(wrong)
        });
        Ok(Self { span_ms: span_of(parameters, default_s)?, until_ms: until.transpose()? })
    }

    /// Returns the end of the span at the time `now_ms`. The history has no frames of the future.
    fn end_ms(&self, now_ms: u64) -> u64 {
        self.until_ms.map_or(now_ms, |until| until.min(now_ms))
    }

    fn begin_ms(&self, now_ms: u64) -> u64 {
        self.end_ms(now_ms).saturating_sub(self.span_ms)
    }

    fn resolution(&self, now_ms: u64) -> Resolution {
        Resolution::of(self.span_ms, now_ms.saturating_sub(self.begin_ms(now_ms)))
    }
}

/// The decoded parameters of a request's query.
pub(crate) type Parameters = BTreeMap<String, String>;

/// Returns a parameter that is a number of seconds, converted to milliseconds.
pub(crate) fn span_of(parameters: &Parameters, default_s: u64) -> Result<u64, String> {
    let Some(text) = parameters.get("span") else { return Ok(default_s * 1000) };
    let wrong = || format!("invalid span '{text}': expected a number of seconds up to two years");
    let seconds: u64 = text.parse().map_err(|_| wrong())?;
    let span = seconds.checked_mul(1000).filter(|span| (1..=LONGEST_SPAN_MS).contains(span));
    span.ok_or_else(wrong)
}

/// Returns the dimension in the parameter `by`.
pub(crate) fn dimension_of(parameters: &Parameters) -> Result<Dimension, String> {
    let name = parameters.get("by").map_or("node", String::as_str);
    let names = Dimension::ALL.map(|(_, name)| name).join(", ");
    Dimension::named(name)
        .ok_or_else(|| format!("invalid parameter by='{name}': expected one of {names}"))
}

impl SeriesQuery {
    pub(crate) fn of(parameters: &Parameters) -> Result<Self, String> {
        let text = parameters.get("points").map_or("300", String::as_str);
        let points = text.parse().ok().filter(|points| (1..=MAX_POINTS).contains(points));
        let wrong = || format!("invalid points '{text}': expected a number from 1 to {MAX_POINTS}");
        let (dimension, id) = (dimension_of(parameters)?, parameters.get("id").cloned());
        let of_node = id.as_ref().filter(|_| dimension == Dimension::Node);
        Ok(Self {
            dimension,
            node: of_node.and_then(|id| id.parse().ok()),
            id,
            service: parameters.get("service").cloned(),
            window: Window::of(parameters, 3600)?,
            points: points.ok_or_else(wrong)?,
            has_heat: parameters.get("heat").is_some_and(|value| value == "1"),
        })
    }

    /// Returns the measured values that the objects of the query have besides their load.
    fn measures(&self) -> Vec<(Measure, &'static str)> {
        let is_meant = |measure: Measure| match self.dimension {
            Dimension::Node => measure.is_of_host(),
            Dimension::Target => !measure.is_of_host(),
            _ => false,
        };
        Measure::ALL.into_iter().filter(|(measure, _)| is_meant(*measure)).collect()
    }

    fn is_meant(&self, key: &Key) -> bool {
        key.dimension == self.dimension
            && self.id.as_ref().is_none_or(|id| *id == key.id)
            && self.service.as_ref().is_none_or(|service| *service == key.service)
    }
}

/// One point of the result: the sum of the frames in the time of the point.
#[derive(Debug, Default)]
struct Point {
    load: Load,
    span_ms: u64,
    samples: u64,
    /// For each measure, the sum of the values of all samples, and the number of these samples.
    levels: BTreeMap<Measure, (u64, u64)>,
    /// The node ids of the services that have replied in the time of the point.
    replied: Vec<u32>,
}

impl Point {
    /// Adds the values of a measure in a frame, summed over the objects with the ids `ids`.
    fn add_level(&mut self, measure: Measure, ids: &[u32], frame: &Frame) {
        let found = ids.iter().filter_map(|id| frame.readings.get(&(measure, *id)));
        if let Some(sum) = found.map(|level| level.sum).reduce(u64::saturating_add) {
            let level = self.levels.entry(measure).or_default();
            level.0 = level.0.saturating_add(sum);
            level.1 += frame.samples;
        }
    }

    /// Returns the mean of a measure. `None` means that no frame has a value of the measure.
    fn level(&self, measure: Measure) -> Option<f64> {
        let (sum, samples) = self.levels.get(&measure)?;
        (*samples > 0).then(|| *sum as f64 / *samples as f64)
    }
}

/// Returns the points of a query at the time `now_ms`, as columns. A point without a frame is
/// `null` in each column of metrics. Each value in the columns about space, CPU time and memory is
/// the sum over the objects with the ids `measured`.
pub(crate) fn series(
    history: &History,
    query: &SeriesQuery,
    now_ms: u64,
    measured: &[u32],
) -> Value {
    let measures = query.measures();
    let (window, end_ms) = (query.window, query.window.end_ms(now_ms));
    let resolution = window.resolution(now_ms);
    let step = step_of(query, resolution);
    let first = window.begin_ms(now_ms) / step;
    let count = (end_ms / step - first) as usize + 1;
    let mut points: Vec<Point> = Vec::new();
    points.resize_with(count, Point::default);
    let is_wanted = |dimension: Dimension| dimension == query.dimension;
    history.read(resolution, first * step..end_ms + 1, is_wanted, |frame: &Frame| {
        let index = (frame.start_ms / step).saturating_sub(first) as usize;
        let Some(point) = points.get_mut(index) else { return };
        point.span_ms += frame.span_ms;
        point.samples += frame.samples;
        measures.iter().for_each(|(measure, _)| point.add_level(*measure, measured, frame));
        if step == SECOND_MS {
            let is_asked = |node: &u32| query.node.is_none_or(|only| only == *node);
            point.replied.extend(frame.replied().filter(is_asked));
        }
        let loads = frame.loads.iter().filter(|(key, _)| query.is_meant(key));
        loads.for_each(|(_, load)| point.load.add(load));
    });
    spread_late_loads(&mut points);
    let rate = |of: fn(&Load) -> u64| column(&points, |point| per_second(of(&point.load), point));
    let quantile = |share| {
        column(&points, |point| quantile_ns(&point.load.buckets, share).map(|ns| ns as f64 / 1e3))
    };
    let mean_of = |sum: u64, count: u64| (count > 0).then(|| sum as f64 / count as f64);
    let timed = |load: &Load| match load.buckets.iter().map(|(_, count)| count).sum::<u64>() {
        0 => load.operations,
        count => count,
    };
    let mut result = json!({
        "step_ms": step,
        "at": (0..count as u64).map(|index| (first + index) * step).collect::<Vec<_>>(),
        "operations": rate(|load| load.operations),
        "errors": rate(|load| load.errors),
        "read_bytes": rate(|load| load.read_bytes),
        "written_bytes": rate(|load| load.written_bytes),
        "mean_us": column(&points, |point| {
            mean_of(point.load.busy_ns / 1000, timed(&point.load))
        }),
        "p50_us": quantile(0.5),
        "p95_us": quantile(0.95),
        "p99_us": quantile(0.99),
        "queued": column(&points, |point| mean_of(point.load.queued.sum, point.samples)),
        "busy": column(&points, |point| mean_of(point.load.busy.sum, point.samples)),
    });
    for (measure, name) in measures.into_iter().filter(|_| !measured.is_empty()) {
        result[name] = column(&points, |point| point.level(measure));
    }
    if query.has_heat {
        let rows: Vec<Value> = points
            .iter()
            .map(|point| match point.samples {
                0 => Value::Null,
                _ => json!(heat(&point.load.buckets)),
            })
            .collect();
        result["heat"] = Value::Array(rows);
    }
    result
}

/// If a service did not reply in the time of some points, spreads the load of its next reply evenly
/// over these points. The lengths of queues are no counts, so these points get the lengths in the
/// next reply.
fn spread_late_loads(points: &mut [Point]) {
    let present: Vec<usize> = (0..points.len()).filter(|at| points[*at].samples > 0).collect();
    let replied = |at: &usize| {
        let mut nodes = std::mem::take(&mut points[*at].replied);
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    };
    let rounds: Vec<Vec<u32>> = present.iter().map(replied).collect();
    for group in late_groups(&rounds) {
        let places = &present[group];
        let (mut sum, mut span_ms) = (Load::default(), 0);
        for at in places {
            sum.add(&points[*at].load);
            span_ms += points[*at].span_ms;
        }
        let Some(last) = places.last() else { continue };
        let Point { load: Load { queued, busy, .. }, samples, .. } = &points[*last];
        let (queued, busy, samples) = (*queued, *busy, *samples);
        let mut begin_ms = 0;
        for at in places {
            let point = &mut points[*at];
            let end_ms = begin_ms + point.span_ms;
            point.load = Load {
                queued: queued.scaled(samples, point.samples),
                busy: busy.scaled(samples, point.samples),
                ..sum.part(begin_ms..end_ms, span_ms)
            };
            begin_ms = end_ms;
        }
    }
}

/// Returns the duration of one point in milliseconds. The duration is a multiple of the length of
/// the frames.
fn step_of(query: &SeriesQuery, resolution: Resolution) -> u64 {
    let frame = resolution.step_ms();
    let wanted = query.window.span_ms / query.points as u64;
    wanted.div_ceil(frame).max(1) * frame
}

fn per_second(count: u64, point: &Point) -> Option<f64> {
    (point.span_ms > 0).then(|| count as f64 * 1000.0 / point.span_ms as f64)
}

fn column(points: &[Point], of: impl Fn(&Point) -> Option<f64>) -> Value {
    let values = points.iter().map(|point| of(point).filter(|_| point.samples > 0));
    values.map(|value| value.map(rounded)).collect::<Vec<_>>().into()
}

/// Rounds a value to thousandths, which makes replies shorter.
pub(crate) fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// Returns the load of each object of a dimension in a time span, at the time `now_ms`, the objects
/// with the most load first. Of clients, users, groups and jobs, at most [`MAX_LOADS`] have an
/// entry of their own.
pub(crate) fn loads(
    history: &History,
    dimension: Dimension,
    window: Window,
    now_ms: u64,
    (names, map): (&Names, Option<&ClusterMap>),
) -> Value {
    let mut sum = Frame::default();
    let (begin_ms, end_ms) = (window.begin_ms(now_ms), window.end_ms(now_ms));
    let is_wanted = |it: Dimension| it == dimension;
    history.read(window.resolution(now_ms), begin_ms..end_ms + 1, is_wanted, |frame| {
        let of_dimension = frame.loads.iter().filter(|(key, _)| key.dimension == dimension);
        let loads = of_dimension.map(|(key, load)| (key.clone(), load.clone())).collect();
        sum.add(&Frame { loads, readings: BTreeMap::new(), ..*frame });
        if sum.loads.len() > 2 * MAX_LOADS {
            sum.bound_to(MAX_LOADS);
        }
    });
    sum.bound_to(MAX_LOADS);
    let rows = heaviest_first(&sum, dimension).into_iter().map(|(key, load)| {
        let mut row = named_row((key, load), &sum, (names, map));
        row["buckets"] = json!(load.buckets);
        row
    });
    json!({ "span_ms": sum.span_ms, "rows": rows.collect::<Vec<_>>() })
}

/// Returns the loads of at most `most` objects of one dimension in a frame, the objects with the
/// most load first.
pub(crate) fn rows(
    frame: &Frame,
    dimension: Dimension,
    most: usize,
    names: (&Names, Option<&ClusterMap>),
) -> Vec<Value> {
    let loads = heaviest_first(frame, dimension).into_iter().take(most);
    loads.map(|load| named_row(load, frame, names)).collect()
}

fn heaviest_first(frame: &Frame, dimension: Dimension) -> Vec<(&Key, &Load)> {
    let mut loads: Vec<(&Key, &Load)> =
        frame.loads.iter().filter(|(key, _)| key.dimension == dimension).collect();
    loads.sort_by_key(|(key, load)| (std::cmp::Reverse((load.weight(), load.busy_ns)), *key));
    loads
}

/// Returns the numbers of an object's load in a frame, with the id and the name of the object.
fn named_row(
    (key, load): (&Key, &Load),
    frame: &Frame,
    (names, map): (&Names, Option<&ClusterMap>),
) -> Value {
    let mut row = row(load, frame);
    row["id"] = key.id.clone().into();
    row["service"] = key.service.clone().into();
    row["name"] = names.name(key.dimension, &key.id, map).into();
    row
}

/// Returns the numbers of an object's load in a frame: counts, and rates per second.
pub(crate) fn row(load: &Load, frame: &Frame) -> Value {
    let per_second = |count: u64| match frame.span_ms {
        0 => 0.0,
        span => rounded(count as f64 * 1000.0 / span as f64),
    };
    let mean = |sum: u64| match frame.samples {
        0 => 0.0,
        samples => rounded(sum as f64 / samples as f64),
    };
    let measured = load.buckets.iter().map(|(_, count)| count).sum::<u64>();
    let measured = if measured == 0 { load.operations } else { measured };
    let quantile = |share| quantile_ns(&load.buckets, share).map(|ns| ns as f64 / 1e3);
    json!({
        "operations": load.operations,
        "errors": load.errors,
        "read_bytes": load.read_bytes,
        "written_bytes": load.written_bytes,
        "busy_ns": load.busy_ns,
        "operations_per_second": per_second(load.operations),
        "errors_per_second": per_second(load.errors),
        "read_bytes_per_second": per_second(load.read_bytes),
        "written_bytes_per_second": per_second(load.written_bytes),
        "mean_us": (load.busy_ns / 1000).checked_div(measured).unwrap_or(0),
        "p50_us": quantile(0.5),
        "p99_us": quantile(0.99),
        "queued": mean(load.queued.sum),
        "busy": mean(load.busy.sum),
    })
}

/// Returns the mean of a measure over the samples of a frame. `id` is the id of the target or node.
/// `None` means that the frame has no value of this measure for the target or node.
pub(crate) fn reading(frame: &Frame, measure: Measure, id: u32) -> Option<u64> {
    let level = frame.readings.get(&(measure, id))?;
    level.sum.checked_div(frame.samples)
}

/// Converts the columns of [`series`] to CSV.
pub(crate) fn as_csv(series: &Value) -> String {
    let columns: Vec<(&String, &Vec<Value>)> = series
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(name, _)| *name != "heat")
        .filter_map(|(name, values)| Some((name, values.as_array()?)))
        .collect();
    let titles: Vec<&str> = columns.iter().map(|(name, _)| name.as_str()).collect();
    let mut text = titles.join(",") + "\n";
    let count = columns.first().map_or(0, |(_, values)| values.len());
    for index in 0..count {
        let cells = columns.iter().map(|(_, values)| match &values[index] {
            Value::Null => String::new(),
            value => value.to_string(),
        });
        text += &(cells.collect::<Vec<_>>().join(",") + "\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Level;
    use crate::frame::tests::frame;

    const START: u64 = 1_800_000_000;

    fn parameters(text: &[(&str, &str)]) -> Parameters {
        text.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    }

    fn history(seconds: u64) -> (tempfile::TempDir, History) {
        let directory = tempfile::tempdir().unwrap();
        let mut history = History::open(directory.path(), 1 << 30).unwrap();
        (0..seconds).for_each(|second| history.add(frame(START + second, 10)));
        (directory, history)
    }

    #[test]
    fn points_show_rates_latencies_and_missing_seconds() {
        let (_directory, mut history) = history(50);
        history.add(frame(START + 59, 10));
        let query = SeriesQuery::of(&parameters(&[
            ("by", "target"),
            ("id", "7"),
            ("span", "60"),
            ("points", "60"),
            ("heat", "1"),
        ]));
        let found = series(&history, &query.unwrap(), (START + 60) * 1000, &[7]);
        assert_eq!(found["step_ms"], 1000);
        let operations = found["operations"].as_array().unwrap();
        assert_eq!(
            (&operations[49], &operations[50], &operations[59]),
            (&10.0.into(), &Value::Null, &10.0.into())
        );
        assert_eq!(found["written_bytes"][0], 40_960.0);
        assert_eq!(found["mean_us"][0], 1000.0);
        assert_eq!(found["queued"][0], 3.0);
        assert_eq!(
            (&found["free_bytes"][0], &found["free_bytes"][50]),
            (&99.0.into(), &Value::Null)
        );
        assert_eq!((&found["size_bytes"][0], &found["memory_bytes"]), (&Value::Null, &Value::Null));
        assert_eq!(found["heat"][0].as_array().unwrap().iter().filter(|it| **it == 10).count(), 1);
        let csv = as_csv(&found);
        assert!(csv.starts_with("at,") && csv.lines().count() == operations.len() + 1, "{csv}");
        let other = SeriesQuery::of(&parameters(&[("by", "target"), ("id", "8"), ("span", "60")]));
        let other = series(&history, &other.unwrap(), (START + 60) * 1000, &[]);
        assert_eq!(other["operations"][0], 0.0, "an idle object has a load of zero");
    }

    #[test]
    fn missed_round_shows_no_dip_and_no_peak_in_a_chart() {
        let directory = tempfile::tempdir().unwrap();
        let mut history = History::open(directory.path(), 1 << 30).unwrap();
        for second in 0..20 {
            // Service 3 does not reply in three rounds, and its next reply has the load of these
            // rounds.
            let is_missed = (5..8).contains(&second);
            let of_third = if second == 8 { 400 } else { 100 };
            let (mut loads, mut readings) = (BTreeMap::new(), BTreeMap::new());
            for (node, operations) in [(2, second), (3, of_third)] {
                if node == 3 && is_missed {
                    continue;
                }
                let (dimension, service) = (Dimension::Node, "storage".to_owned());
                let key = Key { dimension, id: node.to_string(), service };
                loads.insert(key, Load { operations, queued: Level::of(6), ..Load::default() });
                readings.insert((Measure::Memory, node), Level::of(16));
            }
            history.add(Frame { loads, readings, ..frame(START + second, 1) });
        }
        let column = |more: &[(&str, &str)], name: &str| -> Vec<f64> {
            let query = SeriesQuery::of(&parameters(&[&[("span", "20")][..], more].concat()));
            let found = series(&history, &query.unwrap(), (START + 19) * 1000, &[]);
            found[name].as_array().unwrap().iter().filter_map(Value::as_f64).collect()
        };
        let third = [("by", "node"), ("id", "3")];
        assert_eq!(column(&third, "operations"), [100.0; 20]);
        assert_eq!(column(&third, "queued"), [6.0; 20]);
        let second: Vec<f64> = (0..20).map(f64::from).collect();
        assert_eq!(column(&[("by", "node"), ("id", "2")], "operations"), second);
        let all = column(&[("by", "node")], "operations");
        assert_eq!(all.iter().sum::<f64>(), 2190.0, "no operation is lost: {all:?}");
        assert!(all.iter().all(|rate| (100.0..120.0).contains(rate)), "{all:?}");
        assert_eq!(column(&[("by", "node")], "queued"), [12.0; 20]);
    }

    #[test]
    fn long_time_spans_have_a_bounded_number_of_points() {
        let (_directory, history) = history(3 * 3600);
        for (span, step) in [("3600", 12_000), ("10800", 60_000), ("604800", 3_600_000)] {
            let query = SeriesQuery::of(&parameters(&[("span", span)])).unwrap();
            let found = series(&history, &query, (START + 3 * 3600) * 1000, &[]);
            assert_eq!(found["step_ms"], step, "{span}");
            assert!(found["at"].as_array().unwrap().len() <= 302);
            let newest = found["operations"].as_array().unwrap();
            assert!(newest.iter().rev().take(3).any(|it| *it == 10.0), "{span}: {newest:?}");
        }
    }

    #[test]
    fn wrong_query_parameters_of_a_graph_are_refused() {
        for wrong in [
            ("by", "moon"),
            ("span", "-1"),
            ("span", "0"),
            ("span", "99999999999999999999"),
            ("points", "0"),
            ("points", "100000"),
            ("until", "yesterday"),
            ("until", "99999999999999999999"),
            ("until", "18446744073709552"),
        ] {
            let error = SeriesQuery::of(&parameters(&[wrong])).unwrap_err();
            assert!(error.starts_with("invalid ") && error.contains(wrong.0), "{error}");
        }
    }

    #[test]
    fn load_of_a_time_span_is_the_sum_of_its_frames() {
        let (_directory, history) = history(100);
        let names = Names::read();
        let window = Window { span_ms: 50_000, until_ms: None };
        let found = loads(&history, Dimension::User, window, (START + 100) * 1000, (&names, None));
        assert_eq!(found["rows"][0]["operations"], 500);
        assert_eq!(found["rows"][0]["operations_per_second"], 10.0);
        assert_eq!(found["rows"][0]["id"], "1000");
    }

    #[test]
    fn load_of_many_jobs_is_bounded_and_its_sum_is_exact() {
        let directory = tempfile::tempdir().unwrap();
        let mut history = History::open(directory.path(), 1 << 30).unwrap();
        let load = |operations| Load { operations, ..Load::default() };
        let key =
            |id: u64| Key { dimension: Dimension::Job, id: id.to_string(), service: String::new() };
        let seconds = 4 * MAX_LOADS as u64 / 5;
        for second in 0..seconds {
            // Each second has five jobs that end in this second, and one job that runs in all
            // seconds.
            let jobs = (0..5).map(|job| (key(1_000_000 + second * 5 + job), load(3)));
            let loads = jobs.chain([(key(7), load(100))]).collect();
            history.add(Frame { loads, ..frame(START + second, 1) });
        }
        let (names, window) = (Names::read(), Window { span_ms: 3_600_000, until_ms: None });
        let now_ms = (START + seconds) * 1000;
        let found = loads(&history, Dimension::Job, window, now_ms, (&names, None));
        let rows = found["rows"].as_array().unwrap();
        assert_eq!(rows.len(), MAX_LOADS + 1);
        let sum: u64 = rows.iter().map(|row| row["operations"].as_u64().unwrap()).sum();
        assert_eq!(sum, seconds * 115);
        let lasting = rows.iter().find(|row| row["id"] == "7").unwrap();
        assert_eq!(lasting["operations"], seconds * 100);
    }

    #[test]
    fn load_is_exact_if_its_span_begins_in_the_middle_of_a_minute() {
        let (_directory, history) = history(3700);
        let names = Names::read();
        let now_ms = (START + 3700) * 1000;
        let window = Window { span_ms: 3_600_000, until_ms: None };
        let found = loads(&history, Dimension::User, window, now_ms, (&names, None));
        assert_eq!(found["rows"][0]["operations"], 36_000);
    }

    #[test]
    fn past_time_span_has_only_the_load_of_that_time() {
        let (_directory, mut history) = history(600);
        (600..7200).for_each(|second| history.add(frame(START + second, 1)));
        let now_ms = (START + 7200) * 1000;
        let until = (START + 540).to_string();
        let past = parameters(&[("by", "target"), ("span", "300"), ("until", &until)]);
        let found = series(&history, &SeriesQuery::of(&past).unwrap(), now_ms, &[7]);
        // The frames of seconds may have been removed for that time, so each point covers a minute.
        assert_eq!(found["step_ms"], 60_000);
        let operations = found["operations"].as_array().unwrap();
        assert!(operations.len() <= 7, "{operations:?}");
        assert!(operations.iter().all(|it| *it == 10.0), "{operations:?}");
        let free = found["free_bytes"].as_array().unwrap();
        assert!(free.iter().all(|it| *it == 99.0), "the mean over a minute: {free:?}");
        let names = Names::read();
        let window = Window::of(&past, 60).unwrap();
        let found = loads(&history, Dimension::User, window, now_ms, (&names, None));
        assert_eq!(found["rows"][0]["operations_per_second"], 10.0);
        let future = parameters(&[("until", "9999999999"), ("span", "60")]);
        let found = series(&history, &SeriesQuery::of(&future).unwrap(), now_ms, &[]);
        let newest = found["at"].as_array().unwrap().last().unwrap().as_u64();
        assert!(newest.is_some_and(|at| at <= now_ms), "{found}");
    }
}
