//! Published series, read from a TOML document and checked.

use crate::report::Factor;
use serde::Deserialize;
use skep_types::{Error, ErrorCode, Result};
use std::collections::BTreeMap;
use toml::Value;

/// A series: points that were measured on one system, and published.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Name of the series. The name is unique in its document.
    pub name: String,
    /// Name of the plan whose studies the report compares with the series.
    pub plan: String,
    /// The publication that contains the series.
    pub source: String,
    /// Unit of the rates. The comparison only prints the unit.
    pub unit: String,
    /// Selects the runs that belong to the series.
    pub at: Runs,
    /// The points. The list has at least two points, because one point has no shape.
    pub points: Vec<Point>,
}

/// A published point.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// The published condition, in words.
    pub label: String,
    /// The published rate.
    pub rate: f64,
    /// The rate that the hardware of the published system can reach. `None` if the publication has
    /// no such rate.
    pub limit: Option<f64>,
    /// Selects the runs that belong to the point, among the runs of the series.
    pub at: Runs,
}

/// Selects runs of a study. A run must match all parts that are set.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Runs {
    /// Name of the experiment.
    pub experiment: Option<String>,
    /// The smallest and the largest number of the file's targets on one server, such as `(1,3)`.
    pub allocation: Option<String>,
    /// Values of factors, as reports show them.
    pub factors: Vec<(Factor, String)>,
}

impl Runs {
    /// Describes the selected runs, such as `servers 4, operation write`. Empty if all runs are
    /// selected.
    pub fn in_words(&self) -> String {
        let named = |key: &str, value: &Option<String>| {
            value.as_ref().map(|value| format!("{key} {value}"))
        };
        let factors = self.factors.iter();
        let factors = factors.map(|(factor, text)| format!("{} {text}", factor.word()));
        let mut words: Vec<String> = named("experiment", &self.experiment).into_iter().collect();
        words.extend(factors);
        words.extend(named("allocation", &self.allocation));
        words.join(", ")
    }
}

/// The keys of a document.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    series: Vec<SeriesKeys>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SeriesKeys {
    name: String,
    plan: String,
    source: String,
    unit: String,
    #[serde(default)]
    at: BTreeMap<String, Value>,
    points: Vec<PointKeys>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PointKeys {
    label: String,
    rate: f64,
    limit: Option<f64>,
    #[serde(default)]
    at: BTreeMap<String, Value>,
}

/// Reads a document with published series.
///
/// # Errors
/// `Configuration`. The error names the series and the invalid key.
pub fn parse(text: &str) -> Result<Vec<Series>> {
    let document: Document =
        toml::from_str(text).map_err(|error| wrong(error.to_string().trim_end()))?;
    if document.series.is_empty() {
        return Err(wrong("the document has no series: add a table [[series]]"));
    }
    let mut all: Vec<Series> = Vec::new();
    for keys in document.series {
        let name = keys.name.clone();
        let of = |error: Error| error.within(format!("series \"{name}\""));
        if all.iter().any(|it| it.name == name) {
            return Err(of(wrong("another series has the same name")));
        }
        all.push(series(keys).map_err(of)?);
    }
    Ok(all)
}

fn wrong(what: &str) -> Error {
    Error::new(ErrorCode::Configuration, what)
}

fn series(keys: SeriesKeys) -> Result<Series> {
    if keys.points.len() < 2 {
        return Err(wrong("`points` needs at least two points, because one point has no shape"));
    }
    let mut points = Vec::new();
    for point in keys.points {
        for (key, rate) in [("rate", Some(point.rate)), ("limit", point.limit)] {
            if let Some(rate) = rate.filter(|it| !it.is_finite() || *it <= 0.0) {
                return Err(wrong(&format!(
                    "invalid `{key}` {rate} of point \"{}\": expected a number above 0",
                    point.label
                )));
            }
        }
        let at = runs(&point.at)?;
        points.push(Point { at, label: point.label, rate: point.rate, limit: point.limit });
    }
    Ok(Series {
        at: runs(&keys.at)?,
        name: keys.name,
        plan: keys.plan,
        source: keys.source,
        unit: keys.unit,
        points,
    })
}

fn runs(keys: &BTreeMap<String, Value>) -> Result<Runs> {
    let mut runs = Runs::default();
    for (key, value) in keys {
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Integer(number) => number.to_string(),
            _ => return Err(wrong(&format!("`at.{key}`: expected a text or a whole number"))),
        };
        let factor = Factor::ALL.into_iter().find(|it| it.word() == key);
        match (key.as_str(), factor) {
            ("experiment", _) => runs.experiment = Some(text),
            ("allocation", _) => runs.allocation = Some(text),
            (_, Some(factor)) => runs.factors.push((factor, text)),
            (_, None) => {
                let words = Factor::ALL.map(Factor::word).join(", ");
                return Err(wrong(&format!(
                    "`at.{key}`: unknown key; expected experiment, allocation, or a factor of \
                     plans: {words}"
                )));
            }
        }
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "[[series]]\nname = 'a'\nplan = 'p'\nsource = 's'\nunit = 'MB/s'\n\
        at = { experiment = 'e', servers = 4 }\n\
        points = [{ label = '1', rate = 5, limit = 8, at = { clients = '1x1' } }, \
        { label = '2', rate = 9.5, at = { allocation = '(1,3)' } }]\n";

    #[test]
    fn points_select_runs_by_factors_and_allocation() {
        let all = parse(TWO).expect("a series");
        assert_eq!(all.len(), 1);
        let series = &all[0];
        assert_eq!(series.at.experiment.as_deref(), Some("e"));
        assert_eq!(series.at.factors, [(Factor::Servers, "4".to_owned())]);
        assert_eq!(series.points[0].at.factors, [(Factor::Clients, "1x1".to_owned())]);
        assert_eq!(series.points[1].at.allocation.as_deref(), Some("(1,3)"));
        assert_eq!((series.points[0].rate, series.points[1].rate), (5.0, 9.5));
        assert_eq!((series.points[0].limit, series.points[1].limit), (Some(8.0), None));
        assert_eq!(series.at.in_words(), "experiment e, servers 4");
        assert_eq!(series.points[1].at.in_words(), "allocation (1,3)");
        assert_eq!(Runs::default().in_words(), "");
    }

    #[test]
    fn error_for_an_invalid_series_names_the_series() {
        for (old, new, words) in [
            ("servers = 4", "server = 4", &["series \"a\"", "`at.server`", "servers, count"][..]),
            ("servers = 4", "servers = [4]", &["series \"a\"", "whole number"]),
            ("rate = 5", "rate = 0", &["series \"a\"", "`rate`", "point \"1\"", "above 0"]),
            ("limit = 8", "limit = -8", &["series \"a\"", "`limit`", "point \"1\"", "above 0"]),
            ("unit = 'MB/s'", "units = 'MB/s'", &["units"]),
        ] {
            let text = TWO.replace(old, new);
            let error = parse(&text).expect_err("refused");
            assert_eq!(error.code(), ErrorCode::Configuration);
            assert!(words.iter().all(|word| error.context().contains(word)), "{error}");
        }
        let twice = parse(&[TWO, TWO].concat()).expect_err("refused");
        assert!(twice.context().contains("same name"), "{twice}");
        assert!(parse("").expect_err("refused").context().contains("[[series]]"));
        let one = TWO.split("points").next().expect("a part").to_owned()
            + "points = [{ label = '1', rate = 5 }]\n";
        assert!(parse(&one).expect_err("refused").context().contains("at least two"));
    }
}
