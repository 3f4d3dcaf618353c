//! Converts results of `skep bench io` and `skep bench metadata` to measured points of a table.

use crate::invalid;
use crate::system::{Operation, Spread, System, Workload};
use crate::table::{Point, Table};
use serde::Deserialize;
use skep_types::Result;
use std::collections::BTreeSet;

/// The fields of a result that are used for the calibration.
#[derive(Debug, Deserialize)]
struct Results {
    plan: Plan,
    processes: u32,
    phases: Vec<Phase>,
    is_valid: bool,
}

#[derive(Debug, Deserialize)]
struct Plan {
    transfer_bytes: u64,
    #[serde(default)]
    random: bool,
    file_per_process: bool,
}

#[derive(Debug, Deserialize)]
struct Phase {
    phase: String,
    bandwidth_mib_per_s: f64,
    operations_per_s: f64,
    hosts: Vec<Host>,
}

#[derive(Debug, Deserialize)]
struct Host {
    name: String,
}

/// Reads a result of `skep bench io --output json`. The benchmark ran on `system`, with clients
/// whose links have a rate of `client_gbit_s`.
///
/// # Errors
/// `InvalidArgument` if the text is not a result of `skep bench io`, or if the benchmark marked the
/// result as invalid.
pub fn read(file: &str, text: &str, system: &System, client_gbit_s: f64) -> Result<Table> {
    let cannot = |fact: String| invalid(format!("cannot calibrate with {file}: {fact}"));
    let results: Results = serde_json::from_str(text).map_err(|error| {
        cannot(format!("{error}; expected the output of `skep bench io --output json`"))
    })?;
    if !results.is_valid {
        return Err(cannot(
            "the CPU of a host was the limit, so the result is invalid; repeat the benchmark with \
             more client hosts"
                .to_owned(),
        ));
    }
    let mut points = Vec::new();
    for phase in &results.phases {
        let operation = match (phase.phase.as_str(), results.plan.random) {
            ("write", false) => Operation::Write,
            ("read", false) => Operation::Read,
            ("write", true) => Operation::RandomWrite,
            ("read", true) => Operation::RandomRead,
            _ => continue,
        };
        let hosts: BTreeSet<&str> = phase.hosts.iter().map(|it| it.name.as_str()).collect();
        let clients = u32::try_from(hosts.len()).unwrap_or(u32::MAX).max(1);
        let measured = match operation.is_sequential() {
            true => phase.bandwidth_mib_per_s * 1.048_576,
            false => phase.operations_per_s,
        };
        if !measured.is_finite() || measured <= 0.0 {
            return Err(cannot(format!("phase {} of the result has no rate", phase.phase)));
        }
        let all = system.servers.saturating_mul(system.disks.count);
        let spread = match results.plan.file_per_process {
            true => Spread::Files { targets: None },
            false => Spread::Shared { targets: all },
        };
        let workload = Workload {
            operation,
            clients,
            processes: results.processes.div_ceil(clients).max(1),
            client_gbit_s,
            transfer_bytes: results.plan.transfer_bytes.max(1),
            spread,
        };
        points.push(Point { system: system.clone(), workload, measured });
    }
    match points.is_empty() {
        true => Err(cannot("the result has no phase that writes or reads".to_owned())),
        false => Ok(Table { name: file.to_owned(), study: file.to_owned(), points }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Catalogue;

    fn system() -> System {
        System::of(&Catalogue::built_in(), "twelve-nvme-100g", 2, None).unwrap()
    }

    fn result(phases: &str, is_valid: bool) -> String {
        format!(
            "{{\"plan\":{{\"transfer_bytes\":1048576,\"file_per_process\":true,\"random\":false}},\
             \"processes\":8,\"is_valid\":{is_valid},\"phases\":[{phases}]}}"
        )
    }

    const WRITE: &str = "{\"phase\":\"write\",\"bandwidth_mib_per_s\":1000.0,\
                         \"operations_per_s\":1000.0,\"hosts\":[{\"name\":\"a\"},{\"name\":\"b\"}]}";

    #[test]
    fn bench_phases_become_measured_points() {
        let table = read("r.json", &result(WRITE, true), &system(), 100.0).unwrap();
        let point = &table.points[0];
        assert_eq!((point.workload.clients, point.workload.processes), (2, 4));
        assert!((point.measured - 1048.576).abs() < 1e-9);
    }

    #[test]
    fn unusable_bench_results_are_refused() {
        for (text, expected) in [
            (result(WRITE, false), "invalid"),
            (result("", true), "no phase"),
            ("x".to_owned(), "skep bench io"),
            (result(&WRITE.replace("1000.0", "0.0"), true), "no rate"),
        ] {
            let error = read("r.json", &text, &system(), 100.0).unwrap_err();
            assert!(error.context().contains(expected), "{}", error.context());
        }
    }
}
