//! A snapshot: the values of all series of a process at one moment.

use crate::definition::Definition;
use crate::histogram::HistogramValue;
use std::collections::BTreeMap;

/// The labels of a series: names and values, in the order of the definition.
pub type Labels = Vec<(&'static str, String)>;

/// The value of a series.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// The value of a counter or a gauge, in the integer form of the definition's unit.
    Number(i64),
    /// The value of a histogram.
    Histogram(Box<HistogramValue>),
}

/// A series: one metric with one combination of labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Series {
    /// The definition of the metric.
    pub definition: &'static Definition,
    /// The labels of the series.
    pub labels: Labels,
    /// The value of the series.
    pub value: Value,
}

/// The values of all series. If several instances have the same metric and labels, the snapshot
/// contains their sum.
#[derive(Debug, Default)]
pub struct Snapshot {
    series: BTreeMap<(&'static str, Labels), (&'static Definition, Value)>,
}

impl Snapshot {
    /// Adds a number to a series.
    pub fn number(&mut self, definition: &'static Definition, labels: Labels, number: i64) {
        self.add(definition, labels, Value::Number(number));
    }

    /// Adds the value of a counter to a series.
    pub fn count(&mut self, definition: &'static Definition, labels: Labels, count: u64) {
        self.number(definition, labels, i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Adds a histogram to a series.
    pub fn histogram(
        &mut self,
        definition: &'static Definition,
        labels: Labels,
        value: HistogramValue,
    ) {
        self.add(definition, labels, Value::Histogram(Box::new(value)));
    }

    fn add(&mut self, definition: &'static Definition, labels: Labels, value: Value) {
        debug_assert!(
            labels.iter().map(|(name, _)| name).eq(definition.labels),
            "a series of {} has the labels of its definition: {labels:?}",
            definition.name
        );
        match self.series.entry((definition.name, labels)) {
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert((definition, value));
            }
            std::collections::btree_map::Entry::Occupied(mut entry) => {
                match (&mut entry.get_mut().1, value) {
                    (Value::Number(sum), Value::Number(number)) => {
                        *sum = sum.saturating_add(number);
                    }
                    (Value::Histogram(sum), Value::Histogram(value)) => sum.add(&value),
                    _ => debug_assert!(false, "a metric has one kind of value"),
                }
            }
        }
    }

    /// Iterates over all series, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = Series> + '_ {
        self.series.iter().map(|((_, labels), (definition, value))| Series {
            definition,
            labels: labels.clone(),
            value: value.clone(),
        })
    }
}
