//! Converts a TOML document to a [`Plan`]. This module owns the keys, their defaults, and the
//! values that experiments inherit from the top level of the document.

use super::values::{bytes, list, name, number, span, word, wrong};
use super::{
    Access, Cache, Calibration, Clients, DataPer, Experiment, Factors, Lab, Level, Limit,
    Operation, Plan, Targets,
};
use crate::limits::{
    BLOCK_RUNS, DEFAULT_FILES, MAX_APPLICATIONS, MAX_COUNT, MAX_FILES, MAX_PROCESSES, MAX_RUNS,
};
use serde::Deserialize;
use skep_types::{Chooser, Result};
use std::time::Duration;
use toml::Value;

/// The keys at the top level of the document.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Document {
    name: String,
    title: String,
    #[serde(default)]
    about: String,
    seed: Option<u64>,
    repetitions: Option<Value>,
    block: Option<Value>,
    wait: Option<Vec<String>>,
    lab: Option<Lab>,
    #[serde(default)]
    limit: LimitKeys,
    #[serde(default)]
    calibration: CalibrationKeys,
    #[serde(default)]
    factors: FactorKeys,
    #[serde(default)]
    experiment: Vec<ExperimentKeys>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct LimitKeys {
    server: Option<String>,
    client: Option<String>,
    server_iops: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct CalibrationKeys {
    data_size: Option<Value>,
    hosts: Option<Value>,
    repetitions: Option<Value>,
    tolerance: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct ExperimentKeys {
    name: String,
    title: String,
    repetitions: Option<Value>,
    #[serde(default)]
    factors: FactorKeys,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct FactorKeys {
    data_size: Option<Value>,
    hosts: Option<Value>,
    processes: Option<Value>,
    count: Option<Value>,
    chooser: Option<Value>,
    transfer: Option<Value>,
    access: Option<Value>,
    operation: Option<Value>,
    applications: Option<Value>,
    targets: Option<Value>,
    clients: Option<Value>,
    data_per: Option<Value>,
    servers: Option<Value>,
    cache: Option<Value>,
    files: Option<Value>,
}

/// The keys of `clients` as a table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct SpreadKeys {
    hosts: Value,
    total_processes: Value,
}

pub(super) fn plan(text: &str) -> Result<Plan> {
    let document: Document =
        toml::from_str(text).map_err(|error| wrong(error.to_string().trim_end().to_owned()))?;
    let count = |key: &str, value: &Option<Value>, default, most| match value {
        Some(value) => number(value, 1, most).map_err(|what| wrong(format!("`{key}`: {what}"))),
        None => Ok(default),
    };
    let most = MAX_RUNS as u32;
    let repetitions = count("repetitions", &document.repetitions, 10, most)?;
    let mut experiments = Vec::new();
    for keys in &document.experiment {
        let of = |error: skep_types::Error| error.within(format!("experiment \"{}\"", keys.name));
        experiments.push(Experiment {
            name: name("name", &keys.name).map_err(of)?,
            title: keys.title.clone(),
            repetitions: count("repetitions", &keys.repetitions, repetitions, most).map_err(of)?,
            factors: factors(&keys.factors, &document.factors).map_err(of)?,
        });
    }
    Ok(Plan {
        name: name("name", &document.name)?,
        title: document.title.clone(),
        about: document.about.trim().to_owned(),
        seed: document.seed.unwrap_or(1),
        block: count("block", &document.block, BLOCK_RUNS, most)?,
        wait: document.wait.as_deref().map(wait).transpose()?,
        lab: document.lab,
        limit: limit(&document.limit)?,
        calibration: calibration(&document.calibration)?,
        experiments,
    })
}

fn wait(texts: &[String]) -> Result<(Duration, Duration)> {
    let spans: Vec<Duration> = texts.iter().filter_map(|text| span(text)).collect();
    match (texts.len(), spans[..].first(), spans[..].get(1)) {
        (2, Some(least), Some(most)) if least <= most => Ok((*least, *most)),
        _ => Err(wrong(
            "invalid `wait`: expected the shortest and the longest time between blocks, as in \
            [\"1min\", \"30min\"]",
        )),
    }
}

/// Returns the values of all factors of an experiment. If the experiment does not set a factor, the
/// value at the top level of the plan applies. A factor that the plan also omits has its default.
fn factors(own: &FactorKeys, plan: &FactorKeys) -> Result<Factors> {
    macro_rules! values {
        ($field:ident, $key:literal, $default:expr, $one:expr) => {
            match own.$field.as_ref().or(plan.$field.as_ref()) {
                Some(value) => list($key, value, $one)?,
                None => vec![$default],
            }
        };
    }
    let operation =
        values!(operation, "operation", Operation::Write, |value| { word(value, Operation::ALL) });
    let has_no_data = operation.iter().all(|it| it.is_on_names());
    if let (true, Some(_)) = (has_no_data, &own.data_size) {
        return Err(wrong(
            "`data-size` has no effect on operations on names: remove this key; `files` is the \
             number of files of each process",
        ));
    }
    let data_bytes = match has_no_data {
        true => vec![Level::Fixed(0)],
        false => {
            values!(data_size, "data-size", Level::Calibrated, |value| level(value, bytes))
        }
    };
    Ok(Factors {
        data_bytes,
        hosts: values!(hosts, "hosts", Level::Calibrated, |value| level(value, hosts)),
        processes: values!(processes, "processes", 8, |value| number(value, 1, MAX_PROCESSES)),
        count: values!(count, "count", None, |value| number(value, 1, MAX_COUNT).map(Some)),
        chooser: values!(chooser, "chooser", None, |value| chooser(value).map(Some)),
        transfer_bytes: values!(transfer, "transfer", 1 << 20, bytes),
        access: values!(access, "access", Access::SharedFile, |value| word(value, Access::ALL)),
        operation,
        applications: values!(applications, "applications", 1, |value| {
            number(value, 1, MAX_APPLICATIONS)
        }),
        targets: values!(targets, "targets", Targets::Chosen, |value| word(value, Targets::ALL)),
        clients: pairs(own, plan)?,
        data_per: match own.data_per.as_ref().or(plan.data_per.as_ref()) {
            Some(value) => {
                word(value, DataPer::ALL).map_err(|what| wrong(format!("`data-per`: {what}")))?
            }
            None => DataPer::default(),
        },
        servers: values!(servers, "servers", None, |value| {
            number(value, 1, u32::from(u16::MAX)).map(Some)
        }),
        cache: values!(cache, "cache", Cache::Dropped, |value| word(value, Cache::ALL)),
        files: values!(files, "files", DEFAULT_FILES, |value| number(value, 1, MAX_FILES)),
    })
}

/// Returns the (hosts, processes) pairs of the key `clients`, which replaces the keys `hosts` and
/// `processes`. The list is empty if the experiment has no pairs. An experiment that sets `hosts`
/// or `processes` itself does not inherit the pairs of the plan.
fn pairs(own: &FactorKeys, plan: &FactorKeys) -> Result<Vec<Clients>> {
    for keys in [own, plan] {
        let is_set = keys.hosts.is_some() || keys.processes.is_some();
        match &keys.clients {
            Some(_) if is_set => {
                return Err(wrong(
                    "`clients` contains the numbers of hosts and of processes: remove `hosts` and \
                     `processes` beside `clients`",
                ));
            }
            Some(keys @ Value::Table(_)) => return spread(keys),
            Some(value) => return list("clients", value, clients),
            None if is_set => return Ok(Vec::new()),
            None => {}
        }
    }
    Ok(Vec::new())
}

/// Returns a pair for each total number of processes in the table `keys`. Up to the number of hosts
/// in the table, each process has its own host. Larger totals use all these hosts.
fn spread(keys: &Value) -> Result<Vec<Clients>> {
    let of = |what: String| wrong(format!("`clients`: {what}"));
    let keys: SpreadKeys =
        keys.clone().try_into().map_err(|error| of(error.to_string().trim_end().to_owned()))?;
    let available = hosts(&keys.hosts).map_err(of)?;
    list("clients", &keys.total_processes, |value| {
        let total = number(value, 1, available.saturating_mul(MAX_PROCESSES))?;
        let hosts = total.min(available);
        match total.is_multiple_of(hosts) {
            true => Ok(Clients { hosts, processes: total / hosts }),
            false => Err(format!(
                "cannot spread {total} processes evenly over {hosts} hosts: expected at most \
                 {hosts} processes, or a multiple of {hosts}"
            )),
        }
    })
}

/// Parses a pair such as `8x4`: 8 client hosts with 4 processes on each.
fn clients(value: &Value) -> Result<Clients, String> {
    let parsed = value.as_str().and_then(|text| {
        let (hosts, processes) = text.split_once('x')?;
        let (hosts, processes) = (hosts.parse::<u16>().ok()?, processes.parse().ok()?);
        Some(Clients { hosts: u32::from(hosts), processes })
    });
    let is_possible = |it: &Clients| it.hosts > 0 && (1..=MAX_PROCESSES).contains(&it.processes);
    parsed.filter(is_possible).ok_or_else(|| {
        format!(
            "invalid clients {value}: expected hosts x processes on each, as in \"8x4\", with up \
             to {MAX_PROCESSES} processes"
        )
    })
}

fn limit(keys: &LimitKeys) -> Result<Limit> {
    let rate = |key: &str, text: &Option<String>| -> Result<Option<u64>> {
        let parsed = text.as_ref().map(|text| text.parse::<skep_lab::Rate>()).transpose();
        let rate = parsed.map_err(|what| wrong(format!("`limit.{key}`: {what}")))?;
        Ok(rate.map(skep_lab::Rate::bytes_per_second))
    };
    let operations = keys.server_iops.as_ref().map(|value| number(value, 1, u32::MAX)).transpose();
    Ok(Limit {
        server_bytes_per_second: rate("server", &keys.server)?,
        client_bytes_per_second: rate("client", &keys.client)?,
        server_operations_per_second: operations
            .map_err(|what| wrong(format!("`limit.server-iops`: {what}")))?
            .map(u64::from),
    })
}

fn level<T>(
    value: &Value,
    fixed: impl FnOnce(&Value) -> Result<T, String>,
) -> Result<Level<T>, String> {
    match value.as_str() {
        Some("calibrated") => Ok(Level::Calibrated),
        _ => fixed(value).map(Level::Fixed).map_err(|what| {
            format!("{what}, or \"calibrated\" for the value that the calibration finds")
        }),
    }
}

fn hosts(value: &Value) -> Result<u32, String> {
    number(value, 1, u32::from(u16::MAX))
}

/// Parses the name of a placement policy.
fn chooser(value: &Value) -> Result<String, String> {
    let words = Chooser::ALL.map(|(_, word)| (word, word));
    word(value, &words).map(str::to_owned)
}

fn calibration(keys: &CalibrationKeys) -> Result<Calibration> {
    let ascending = |key: &str, is_ascending: bool| match is_ascending {
        true => Ok(()),
        false => Err(wrong(format!(
            "`calibration.{key}`: each value must be larger than the value before it"
        ))),
    };
    let data_bytes = match &keys.data_size {
        Some(value) => list("calibration.data-size", value, bytes)?,
        None => (0..8).map(|step| (256 << 20) << step).collect(),
    };
    ascending("data-size", data_bytes.is_sorted())?;
    let hosts = match &keys.hosts {
        Some(value) => list("calibration.hosts", value, hosts)?,
        None => vec![1, 2, 4, 8, 16, 32],
    };
    ascending("hosts", hosts.is_sorted())?;
    let repetitions = match &keys.repetitions {
        Some(value) => number(value, 1, 100)
            .map_err(|what| wrong(format!("`calibration.repetitions`: {what}")))?,
        None => 3,
    };
    let tolerance = keys.tolerance.unwrap_or(0.05);
    match (0.001..=0.5).contains(&tolerance) {
        true => Ok(Calibration { data_bytes, hosts, repetitions, tolerance }),
        false => Err(wrong(format!(
            "`calibration.tolerance`: invalid share {tolerance}: expected 0.001 to 0.5"
        ))),
    }
}
