//! The command line of IOR, and the parser of its results.

use super::{Report, number, refused, words};
use crate::io::plan::Plan;
use serde_json::Value;

/// Returns the options of the plan that IOR does not support.
pub(super) fn problems(plan: &Plan) -> Vec<String> {
    refused(&[
        (
            plan.verify_write || plan.verify_read,
            "the comparison of data (-W, -R), because the JSON output of IOR does not contain the \
             number of wrong transfers",
        ),
        (plan.seed != 0, "--seed, because IOR itself chooses the seed of its random orders"),
        (plan.mpi_io && plan.direct, "O_DIRECT (-B) together with MPI-IO (--mpi-io)"),
        (file_name(plan).is_none(), "{host} in the name of the file (-o)"),
    ])
}

/// Returns the name of the file. `None` if the name depends on the host.
fn file_name(plan: &Plan) -> Option<&str> {
    let (_, name) = plan.path.rsplit_once('/')?;
    (!name.contains("{host}")).then_some(name)
}

/// Returns the command line that makes IOR do one phase. IOR writes its results to the file
/// `summary`. IOR does not remove the data files in this phase.
pub(super) fn command(plan: &Plan, is_write: bool, summary: &str) -> Vec<String> {
    let mut all = words(["ior", "-a", if plan.mpi_io { "MPIIO" } else { "POSIX" }, "-k"]);
    let name = file_name(plan).unwrap_or_default();
    all.extend(words(["-o", name, if is_write { "-w" } else { "-r" }]));
    let sizes = [("-t", plan.transfer_bytes), ("-b", plan.block_bytes), ("-s", plan.segments)];
    for (letter, value) in sizes {
        all.extend([letter.to_owned(), value.to_string()]);
    }
    for (letter, is_wanted) in [
        ("-c", plan.collective),
        ("-F", plan.file_per_process),
        ("-z", plan.random),
        ("-C", plan.reorder && !is_write),
        ("-e", plan.fsync && is_write),
        ("-E", plan.use_existing && is_write),
        ("--posix.odirect", plan.direct),
    ] {
        if is_wanted {
            all.push(letter.to_owned());
        }
    }
    if let Some(signature) = plan.signature {
        all.extend(["-G".to_owned(), signature.to_string()]);
    }
    all.extend(["-O".to_owned(), format!("summaryFile={summary}")]);
    all.extend(words(["-O", "summaryFormat=JSON"]));
    all
}

/// Parses IOR's JSON summary.
pub(super) fn parse(text: &str, is_write: bool, total_bytes: u64) -> Result<Report, String> {
    let value: Value = serde_json::from_str(text)
        .map_err(|error| format!("cannot read the results of IOR: {error}"))?;
    let access = if is_write { "write" } else { "read" };
    let results = &value["tests"][0]["Results"];
    let found = results.as_array().into_iter().flatten().find(|it| it["access"] == access);
    let found = found
        .ok_or_else(|| format!("the results of IOR have no rate for the operation {access}"))?;
    Ok(Report {
        bytes: total_bytes,
        operations: 0,
        // IOR prints times with four digits, and rates with more than four digits. For this reason,
        // this function computes the time from the rate.
        seconds: total_bytes as f64 / f64::from(1 << 20) / number(found, "bwMiB")?,
        open_s: number(found, "openTime")?,
        close_s: number(found, "closeTime")?,
        said: serde_json::json!({ "version": value["Version"], "result": found }),
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
    fn plan_becomes_the_command_line_of_ior() {
        let line = |plan: &Plan, is_write| command(plan, is_write, "s").join(" ");
        let end = "-O summaryFile=s -O summaryFormat=JSON";
        assert_eq!(
            line(&plan(), true),
            format!("ior -a POSIX -k -o x -w -t 65536 -b 1048576 -s 1 -e {end}")
        );
        let all = Plan {
            file_per_process: true,
            random: true,
            reorder: true,
            direct: true,
            use_existing: true,
            signature: Some(7),
            segments: 3,
            ..plan()
        };
        let sizes = "-t 65536 -b 1048576 -s 3";
        assert_eq!(
            line(&all, false),
            format!("ior -a POSIX -k -o x -r {sizes} -F -z -C --posix.odirect -G 7 {end}")
        );
        assert!(line(&all, true).contains("-F -z -e -E --posix.odirect"));
        assert_eq!(problems(&all), Vec::<String>::new());
        let wrong = Plan { path: "/mnt/{host}".into(), verify_read: true, seed: 1, ..plan() };
        assert_eq!(problems(&wrong).len(), 3);
        let mpi = Plan { mpi_io: true, collective: true, ..plan() };
        let sizes = "-t 65536 -b 1048576 -s 1";
        assert_eq!(line(&mpi, false), format!("ior -a MPIIO -k -o x -r {sizes} -c {end}"));
        assert_eq!(problems(&Plan { direct: true, ..mpi }).len(), 1);
    }

    #[test]
    fn ior_report_is_parsed() {
        let text = include_str!("recorded/ior-4.1.0-write.json");
        let written = parse(text, true, 2 << 20).unwrap();
        let said = written.said["result"]["bwMiB"].as_f64().unwrap();
        assert!((2.0 / written.seconds - said).abs() < 1e-6 * said, "{written:?}");
        assert_eq!(written.said["version"], "4.1.0+dev");
        assert_eq!(written.said["result"]["openTime"], written.open_s);
        let read = parse(include_str!("recorded/ior-4.1.0-read.json"), false, 2 << 20).unwrap();
        assert!(read.seconds > 0.0 && read.said["result"]["access"] == "read");
        assert!(parse(text, false, 1).unwrap_err().contains("no rate for the operation read"));
        assert!(parse("", false, 1).unwrap_err().contains("cannot read"));
    }
}
