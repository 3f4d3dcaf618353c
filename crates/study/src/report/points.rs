//! All results as CSV, for other programs. Each run is one line.

use crate::journal::Contents;
use crate::record::{Record, RunRecord};
use skep_bench::latency::Latency;
use std::fmt::Write;

const COLUMNS: &str = "kind,run,block,experiment,repetition,started_at,is_valid,data_bytes,hosts,\
                       processes,count,chooser,transfer_bytes,access,operation,applications,\
                       targets,bytes_per_second,min,max,targets_used,skew_seconds,\
                       bytes_per_second_of_each_application,caches_dropped";
/// Columns of factors and results that only newer journals have.
const MORE_COLUMNS: &str = "data_per,servers,cache,files,operations_per_second,latency_p50_us,\
                            latency_p99_us";

pub(super) fn csv(contents: &Contents) -> String {
    let has_more = contents.study.limit.is_some();
    let more = if has_more { format!("{MORE_COLUMNS},") } else { String::new() };
    let mut text = format!("{COLUMNS},{more}invalid_because\n");
    for record in &contents.records {
        match record {
            Record::Trial(run) => line(&mut text, "trial", run, has_more),
            Record::Run(run) => line(&mut text, "run", run, has_more),
            Record::Study(_) | Record::Environment(_) | Record::Calibrated(_) => {}
        }
    }
    text
}

/// Appends the line of a run. Only the last value can contain a comma or a quotation mark. Names in
/// plans cannot contain these characters, and all other values are numbers and fixed words.
fn line(text: &mut String, kind: &str, run: &RunRecord, has_more: bool) {
    let it = &run.settings;
    let min_max = run.allocation();
    let place = |number: Option<u32>| number.map(|it| it.to_string()).unwrap_or_default();
    let joined = |words: Vec<String>| words.join(" ");
    let targets = run.applications.iter().filter_map(|it| it.allocation.as_ref());
    let targets = targets.flat_map(|it| it.targets.iter().map(u32::to_string)).collect();
    let begins = || run.applications.iter().flat_map(|it| &it.processes).map(|it| it.begin_seconds);
    let skew = begins().fold(f64::NEG_INFINITY, f64::max) - begins().fold(f64::INFINITY, f64::min);
    let each = run.applications.iter().map(|it| format!("{:.0}", it.bytes_per_second)).collect();
    let mut fields = vec![
        kind.to_owned(),
        run.run.to_string(),
        run.block.to_string(),
        run.experiment.clone(),
        run.repetition.to_string(),
        run.started_at.clone(),
        run.is_valid.to_string(),
        it.data_bytes.to_string(),
        it.hosts.to_string(),
        it.processes.to_string(),
        place(it.count),
        it.chooser.clone().unwrap_or_default(),
        it.transfer_bytes.to_string(),
        it.access.word().to_owned(),
        it.operation.word().to_owned(),
        it.applications.to_string(),
        it.targets.word().to_owned(),
        format!("{:.0}", run.bytes_per_second),
        place(min_max.map(|it| it.0)),
        place(min_max.map(|it| it.1)),
        joined(targets),
        format!("{skew:.6}"),
        joined(each),
        run.caches_dropped.to_string(),
    ];
    if has_more {
        let latency = |of: fn(&Latency) -> f64| {
            run.latency_us(of).map(|it| format!("{it:.1}")).unwrap_or_default()
        };
        fields.extend([
            it.data_per.word().to_owned(),
            place(it.servers),
            it.cache.word().to_owned(),
            place(it.files),
            run.operations_per_second.map(|it| format!("{it:.2}")).unwrap_or_default(),
            latency(|it| it.p50_us),
            latency(|it| it.p99_us),
        ]);
    }
    fields.push(run.invalid_because.as_deref().map(quoted).unwrap_or_default());
    let _ = writeln!(text, "{}", fields.join(","));
}

/// Quotes a value by the rules of RFC 4180.
pub(super) fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\"").replace(['\r', '\n'], " "))
}
