//! The command line of fio, and the parser of its results. fio runs one job for each process.

use super::{Report, number, refused, words};
use crate::io::plan::Plan;
use serde_json::Value;

/// Returns the options of the plan that fio does not support.
pub(super) fn problems(plan: &Plan) -> Vec<String> {
    refused(&[
        (plan.verify_write || plan.verify_read, "the comparison of data (-W, -R) as in IOR"),
        (plan.signature.is_some(), "a signature (-G)"),
        (plan.mpi_io, "MPI-IO (--mpi-io)"),
        (plan.segments > 1 && !plan.file_per_process, "segments (-s) in one file of all processes"),
    ])
}

/// Returns the command line that makes fio write or read the data of the process `rank` in
/// `file`.
pub(super) fn command(plan: &Plan, is_write: bool, file: &str, rank: u32) -> Vec<String> {
    let order = match (is_write, plan.random) {
        (true, false) => "write",
        (true, true) => "randwrite",
        (false, false) => "read",
        (false, true) => "randread",
    };
    let offset = match plan.file_per_process {
        true => 0,
        false => plan.block_bytes * u64::from(rank),
    };
    let mut all = words(["fio", "--name=skep", "--output-format=json", "--ioengine=psync"]);
    all.extend(words(["--thread", "--fallocate=none"]));
    all.extend([
        // fio splits its list of file names at colons, so colons in a name must be escaped.
        format!("--filename={}", file.replace(':', "\\:")),
        format!("--rw={order}"),
        format!("--bs={}", plan.transfer_bytes),
        format!("--size={}", plan.bytes_per_process().unwrap_or(0)),
        format!("--offset={offset}"),
        format!("--direct={}", u8::from(plan.direct)),
        format!("--end_fsync={}", u8::from(plan.fsync && is_write)),
        format!("--invalidate={}", u8::from(!plan.keep_caches)),
        format!("--randseed={}", plan.seed.saturating_add(u64::from(rank)).saturating_add(1)),
    ]);
    all
}

/// Parses fio's JSON report.
pub(super) fn parse(text: &str, is_write: bool) -> Result<Report, String> {
    // fio may print other messages before the report.
    let begin = text.find('{').ok_or("fio printed no result")?;
    let mut values = serde_json::Deserializer::from_str(&text[begin..]).into_iter::<Value>();
    let value = match values.next() {
        Some(Ok(value)) => value,
        Some(Err(error)) => return Err(format!("cannot read the result of fio: {error}")),
        None => return Err("fio printed no result".into()),
    };
    let job = &value["jobs"][0];
    if job["error"].as_u64() != Some(0) {
        return Err(format!("the job of fio failed with error {}", job["error"]));
    }
    let found = &job[if is_write { "write" } else { "read" }];
    let seconds = number(found, "runtime")? / 1e3;
    Ok(Report {
        bytes: found["io_bytes"].as_u64().ok_or("fio's output has no number 'io_bytes'")?,
        operations: found["total_ios"].as_u64().ok_or("fio's output has no number 'total_ios'")?,
        seconds: seconds.max(1e-3),
        open_s: 0.0,
        close_s: 0.0,
        said: serde_json::json!({ "version": value["fio version"], "result": found }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan {
            path: "/mnt/{host}/x".into(),
            transfer_bytes: 65_536,
            block_bytes: 1 << 20,
            fsync: true,
            ..Plan::default()
        }
    }

    #[test]
    fn plan_becomes_the_command_line_of_fio() {
        let line = |plan: &Plan, is_write| command(plan, is_write, "/m/a:b", 3).join(" ");
        let same = "fio --name=skep --output-format=json --ioengine=psync --thread \
                    --fallocate=none --filename=/m/a\\:b";
        assert_eq!(
            line(&plan(), true),
            format!(
                "{same} --rw=write --bs=65536 --size=1048576 --offset=3145728 --direct=0 \
                 --end_fsync=1 --invalidate=1 --randseed=4"
            )
        );
        let all = Plan {
            file_per_process: true,
            random: true,
            direct: true,
            keep_caches: true,
            segments: 2,
            seed: 10,
            ..plan()
        };
        assert_eq!(
            line(&all, false),
            format!(
                "{same} --rw=randread --bs=65536 --size=2097152 --offset=0 --direct=1 \
                 --end_fsync=0 --invalidate=0 --randseed=14"
            )
        );
        assert_eq!(problems(&all), Vec::<String>::new());
        let wrong = Plan { segments: 2, verify_read: true, signature: Some(1), ..plan() };
        assert_eq!(problems(&wrong).len(), 3);
    }

    #[test]
    fn fio_report_is_parsed() {
        let text = include_str!("recorded/fio-3.33-write.json");
        let written = parse(text, true).unwrap();
        assert_eq!((written.bytes, written.operations), (1 << 20, 16));
        assert_eq!(written.said["version"], "fio-3.33");
        let milliseconds = written.said["result"]["runtime"].as_f64().unwrap();
        assert!((written.seconds * 1e3 - milliseconds).abs() < 1e-9);
        assert_eq!(parse(&format!("note: something\n{text}"), true), parse(text, true));
        assert!(parse("fio: failed", true).unwrap_err().contains("no result"));
        let failed = text.replace("\"error\" : 0", "\"error\" : 28");
        assert!(parse(&failed, true).unwrap_err().contains("28"));
    }
}
