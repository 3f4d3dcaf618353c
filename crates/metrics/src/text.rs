//! The text form of a snapshot: OpenMetrics 1.0, which Prometheus and compatible programs read.

use crate::definition::{Definition, Kind, Unit};
use crate::histogram::HistogramValue;
use crate::snapshot::{Labels, Snapshot, Value};
use std::fmt::Write;

/// Content type of the text form.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Number of octaves between two bucket bounds of a histogram in the text form. The text form
/// contains only some of the bounds, because each bound is one more series that the reader stores.
const OCTAVES_PER_BOUND: usize = 2;

/// Returns the text form of a snapshot.
pub fn encode(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    let mut last: Option<&Definition> = None;
    for series in snapshot.iter() {
        if last != Some(series.definition) {
            describe(&mut text, series.definition);
            last = Some(series.definition);
        }
        match &series.value {
            Value::Number(number) => {
                let name = series.definition.exposed_name();
                sample(&mut text, &name, &series.labels, None);
                let _ = writeln!(text, "{}", decimal(*number, series.definition.unit));
            }
            Value::Histogram(value) => {
                histogram(&mut text, series.definition.name, &series.labels, value);
            }
        }
    }
    text + "# EOF\n"
}

fn describe(text: &mut String, definition: &Definition) {
    let Definition { name, kind, unit, help, .. } = definition;
    let kind = match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
    };
    let _ = writeln!(text, "# TYPE {name} {kind}");
    if !unit.suffix().is_empty() {
        let _ = writeln!(text, "# UNIT {name} {}", unit.suffix());
    }
    let _ = writeln!(text, "# HELP {name} {}", escaped(help));
}

fn histogram(text: &mut String, name: &str, labels: &Labels, value: &HistogramValue) {
    let bucket = format!("{name}_bucket");
    for (bound_ns, count) in value.cumulative(OCTAVES_PER_BOUND) {
        let bound = decimal(bound_ns as i64, Unit::Seconds);
        sample(text, &bucket, labels, Some(&bound));
        let _ = writeln!(text, "{count}");
    }
    let count = value.count();
    sample(text, &bucket, labels, Some("+Inf"));
    let _ = writeln!(text, "{count}");
    sample(text, &format!("{name}_count"), labels, None);
    let _ = writeln!(text, "{count}");
    sample(text, &format!("{name}_sum"), labels, None);
    let sum_ns = i64::try_from(value.sum_ns).unwrap_or(i64::MAX);
    let _ = writeln!(text, "{}", decimal(sum_ns, Unit::Seconds));
}

/// Writes the name and the labels of a sample, and the space that precedes its value.
fn sample(text: &mut String, name: &str, labels: &Labels, bound: Option<&str>) {
    text.push_str(name);
    let bound = bound.map(|bound| ("le", bound));
    let all = labels.iter().map(|(name, value)| (*name, value.as_str())).chain(bound);
    for (index, (name, value)) in all.enumerate() {
        let before = if index == 0 { '{' } else { ',' };
        let _ = write!(text, "{before}{name}=\"{}\"", escaped(value));
    }
    text.push_str(if labels.is_empty() && bound.is_none() { " " } else { "} " });
}

/// Escapes a label value or a help text. So a user cannot choose a name that adds a label or a line
/// to the text.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Writes an integer as a decimal number, without rounding. `unit` determines what the integer
/// counts: ones, nanoseconds or millionths.
fn decimal(number: i64, unit: Unit) -> String {
    let decimals = unit.decimals();
    if decimals == 0 {
        return number.to_string();
    }
    let scale = 10_u64.pow(decimals as u32);
    let sign = if number < 0 { "-" } else { "" };
    let number = number.unsigned_abs();
    let text = format!("{sign}{}.{:0decimals$}", number / scale, number % scale);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog;
    use std::time::Duration;

    #[test]
    fn numbers_are_printed_as_exact_decimals() {
        let check = |number, unit, expected| assert_eq!(decimal(number, unit), expected);
        check(0, Unit::Seconds, "0");
        check(1_500_000_000, Unit::Seconds, "1.5");
        check(1, Unit::Seconds, "0.000000001");
        check(-2_500_000, Unit::Decimal, "-2.5");
        check(100, Unit::Bytes, "100");
        check(i64::MAX, Unit::Seconds, "9223372036.854775807");
    }

    #[test]
    fn openmetrics_text_has_types_units_values_and_an_end() {
        let mut snapshot = Snapshot::default();
        let target = || vec![("target", "7".to_owned())];
        snapshot.count(&catalog::LOG_BYTES, target(), 512);
        let durations = crate::Histogram::default();
        durations.record(Duration::from_millis(2));
        snapshot.histogram(&catalog::LOG_SYNC, target(), durations.value());
        let text = encode(&snapshot);
        for line in [
            "# TYPE skep_metadata_log_bytes counter",
            "# UNIT skep_metadata_log_bytes bytes",
            "skep_metadata_log_bytes_total{target=\"7\"} 512",
            "# TYPE skep_metadata_log_sync_seconds histogram",
            "skep_metadata_log_sync_seconds_bucket{target=\"7\",le=\"0.000001024\"} 0",
            "skep_metadata_log_sync_seconds_bucket{target=\"7\",le=\"+Inf\"} 1",
            "skep_metadata_log_sync_seconds_sum{target=\"7\"} 0.002",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}: {text}");
        }
        assert!(text.ends_with("\n# EOF\n"));
    }

    #[test]
    fn hostile_labels_stay_within_their_quotes() {
        let mut snapshot = Snapshot::default();
        let name = "a\"} 1\nskep_forged 2 \\".to_owned();
        snapshot.number(
            &catalog::NODE_INFO,
            vec![("kind", String::new()), ("name", name), ("version", String::new())],
            1,
        );
        let text = encode(&snapshot);
        assert!(!text.lines().any(|line| line.starts_with("skep_forged")), "{text}");
        assert!(text.contains(r#"name="a\"} 1\nskep_forged 2 \\""#), "{text}");
    }
}
