//! The definition of a metric: its name, kind, unit, labels and meaning.

/// The kind of a metric, as in OpenMetrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A number that only grows while the process runs.
    Counter,
    /// A number that rises and falls.
    Gauge,
    /// A distribution of durations in buckets.
    Histogram,
}

/// The unit of a metric's value. The unit also determines the factor between the stored integer and
/// the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A count without a unit.
    Count,
    /// Bytes.
    Bytes,
    /// Seconds. The stored integer is a number of nanoseconds.
    Seconds,
    /// A number with decimal places. The stored integer is a number of millionths.
    Decimal,
}

impl Unit {
    /// Returns the suffix that the name of a metric with this unit must have. Empty if no suffix is
    /// needed.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Count | Self::Decimal => "",
            Self::Bytes => "bytes",
            Self::Seconds => "seconds",
        }
    }

    /// Returns the number of decimal digits of the stored integer that are behind the decimal
    /// point.
    pub fn decimals(self) -> usize {
        match self {
            Self::Count | Self::Bytes => 0,
            Self::Seconds => 9,
            Self::Decimal => 6,
        }
    }
}

/// The definition of a metric.
#[derive(Debug, PartialEq, Eq)]
pub struct Definition {
    /// Name without the suffix `_total` that the text form appends to counters.
    pub name: &'static str,
    /// Kind of the metric.
    pub kind: Kind,
    /// Unit of the metric's value.
    pub unit: Unit,
    /// Names of the labels that each series of the metric has.
    pub labels: &'static [&'static str],
    /// A description of the metric, in one or two sentences.
    pub help: &'static str,
}

impl Definition {
    /// Defines a counter.
    pub const fn counter(
        name: &'static str,
        unit: Unit,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        Self { name, kind: Kind::Counter, unit, labels, help }
    }

    /// Defines a gauge.
    pub const fn gauge(
        name: &'static str,
        unit: Unit,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        Self { name, kind: Kind::Gauge, unit, labels, help }
    }

    /// Defines a histogram of durations.
    pub const fn histogram(
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        Self { name, kind: Kind::Histogram, unit: Unit::Seconds, labels, help }
    }

    /// Returns the name of the metric in the text form.
    pub fn exposed_name(&self) -> String {
        match self.kind {
            Kind::Counter => format!("{}_total", self.name),
            Kind::Gauge | Kind::Histogram => self.name.to_owned(),
        }
    }
}
