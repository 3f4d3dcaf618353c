//! The points of the load for InfluxDB, in line protocol over HTTP, for versions 1 and 2.
//! [`crate::copies`] sends the points.

use crate::frame::{Dimension, Frame, Measure};
use crate::http_client::Url;
use crate::names::Names;
use skep_types::ClusterMap;
use std::fmt::Write;

/// Returns the data points of a frame, one line for each point.
pub(crate) fn lines(frame: &Frame, names: &Names, map: Option<&ClusterMap>) -> String {
    let cluster = map.map_or_else(String::new, |map| map.cluster.to_string());
    let at_ms = frame.start_ms + frame.span_ms;
    let mut text = String::new();
    for (key, load) in &frame.loads {
        let by = Dimension::ALL.iter().find(|(it, _)| *it == key.dimension).map_or("", |it| it.1);
        let mut tags = format!("cluster={},by={by}", escaped(&cluster));
        let name = names.name(key.dimension, &key.id, map);
        for (tag, value) in [("id", &key.id), ("service", &key.service), ("name", &name)] {
            // Omit empty tags, because a tag with an empty value is invalid.
            if !value.is_empty() {
                let _ = write!(tags, ",{tag}={}", escaped(value));
            }
        }
        let samples = frame.samples.max(1);
        let _ = writeln!(
            text,
            "skep_load,{tags} operations={}i,errors={}i,read_bytes={}i,written_bytes={}i,\
             busy_ns={}i,queued={}i,busy={}i,span_ms={}i {at_ms}",
            signed(load.operations),
            signed(load.errors),
            signed(load.read_bytes),
            signed(load.written_bytes),
            signed(load.busy_ns),
            signed(load.queued.sum / samples),
            signed(load.busy.sum / samples),
            signed(frame.span_ms)
        );
    }
    for ((measure, id), level) in &frame.readings {
        let name = Measure::ALL.iter().find(|(it, _)| it == measure).map_or("", |it| it.1);
        let value = signed(level.sum / frame.samples.max(1));
        let cluster = escaped(&cluster);
        let _ = writeln!(text, "skep_{name},cluster={cluster},id={id} value={value}i {at_ms}");
    }
    text
}

/// Converts a number to a signed integer, because integers in InfluxDB are signed.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Escapes the value of a tag. Line breaks and other control characters are replaced by `?`,
/// because tags in the line protocol cannot contain them. A backslash at the end of a value would
/// escape the following comma, so backslashes are replaced by slashes.
fn escaped(value: &str) -> String {
    let mut escaped = String::with_capacity(value.len());
    for c in value.chars() {
        match c {
            ',' | '=' | ' ' => escaped.extend(['\\', c]),
            '\\' => escaped.push('/'),
            c if c.is_control() => escaped.push('?'),
            c => escaped.push(c),
        }
    }
    if escaped.is_empty() { "none".into() } else { escaped }
}

/// Returns the address of a write whose points have times in milliseconds.
pub(crate) fn write_url(url: &Url) -> Url {
    let joint = if url.path.contains('?') { '&' } else { '?' };
    Url { path: format!("{}{joint}precision=ms", url.path), ..url.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Key;
    use crate::frame::tests::frame;

    #[test]
    fn influx_points_are_valid_even_with_hostile_names() {
        let mut hostile = frame(1_800_000_000, 10);
        let load = hostile.loads.values().next().unwrap().clone();
        let id = "a b,c=d\ninjected,x=1 y=2\\".to_owned();
        let key = Key { dimension: Dimension::Operation, id, service: String::new() };
        hostile.loads.insert(key, load);
        let names = Names::read();
        let text = lines(&hostile, &names, None);
        assert_eq!(text.lines().count(), 5, "{text}");
        for line in text.lines() {
            // A space that is not escaped separates tags, fields and time.
            let parts: Vec<&str> = line.split(' ').collect();
            let joined = parts.iter().filter(|part| !part.ends_with('\\')).count();
            assert_eq!(joined, 3, "{line}");
            assert!(line.ends_with(" 1800000001000"), "{line}");
        }
        assert!(text.contains(r"id=a\ b\,c\=d?injected\,x\=1\ y\=2/ "), "{text}");
        assert!(text.contains("skep_free_bytes,cluster=none,id=7 value=99i "), "{text}");
    }
}
