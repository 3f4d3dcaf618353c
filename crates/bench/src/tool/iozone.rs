//! The command line of IOzone, and the parser of its results. Each execution has one process, in
//! the throughput mode of IOzone.

use super::{Report, refused, words};
use crate::io::plan::Plan;

/// Number of bytes in a KiB. All sizes must be multiples of this number.
const KIBIBYTE: u64 = 1024;

/// Returns the options of the plan that IOzone does not support.
pub(super) fn problems(plan: &Plan) -> Vec<String> {
    refused(&[
        (!plan.file_per_process, "one file for all processes; use one file per process (-F)"),
        (
            plan.random,
            "random order (-z), because the random test of IOzone mixes reads and writes",
        ),
        (plan.verify_write || plan.verify_read, "the comparison of data (-W, -R) as in IOR"),
        (plan.signature.is_some(), "a signature (-G)"),
        (plan.mpi_io, "MPI-IO (--mpi-io)"),
        (
            !plan.transfer_bytes.is_multiple_of(KIBIBYTE),
            "transfers (-t) other than multiples of 1 KiB",
        ),
    ])
}

/// Returns the command line that makes IOzone write or read one file. IOzone does not remove the
/// file.
pub(super) fn command(plan: &Plan, is_write: bool, file: &str) -> Vec<String> {
    let test = if is_write { "0" } else { "1" };
    // `-+n` leaves out the retests, which write or read the same file a second time. `-w` leaves
    // the file in place. `-c` includes the close in the measured time.
    let mut all = words(["iozone", "-i", test, "-t", "1", "-+n", "-w", "-c"]);
    let kibibytes = |bytes: u64| format!("{}k", bytes / KIBIBYTE);
    all.extend(["-r".to_owned(), kibibytes(plan.transfer_bytes)]);
    all.extend(["-s".to_owned(), kibibytes(plan.bytes_per_process().unwrap_or(0))]);
    if plan.fsync {
        all.push("-e".to_owned());
    }
    if plan.direct {
        all.push("-I".to_owned());
    }
    all.extend(["-F".to_owned(), file.to_owned()]);
    all
}

/// Parses the text that IOzone prints for people. IOzone has no JSON output.
pub(super) fn parse(text: &str, plan: &Plan, is_write: bool) -> Result<Report, String> {
    let title = if is_write { "initial writers" } else { "readers" };
    let is_line = |line: &&str| {
        let line = line.trim_start();
        line.starts_with("Children see throughput for") && line.contains(title)
    };
    let line = text.lines().find(is_line);
    let line = line.ok_or_else(|| format!("IOzone's output has no throughput of {title}"))?;
    let rate = line.split_once('=').and_then(|(_, rest)| rest.split_whitespace().next());
    let rate: Option<f64> = rate.and_then(|rate| rate.parse().ok()).filter(|rate| *rate > 0.0);
    let rate = rate.ok_or_else(|| format!("cannot read IOzone's throughput: {line}"))?;
    let bytes = plan.bytes_per_process().unwrap_or(0);
    let version = text.lines().find_map(|line| line.trim().strip_prefix("Version $Revision:"));
    let version = version.unwrap_or_default().trim_end_matches('$').trim();
    Ok(Report {
        bytes,
        operations: bytes / plan.transfer_bytes.max(1),
        seconds: bytes as f64 / KIBIBYTE as f64 / rate,
        open_s: 0.0,
        close_s: 0.0,
        said: serde_json::json!({ "version": version, "kibibytes_per_second": rate }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan {
            transfer_bytes: 64 << 10,
            block_bytes: 4 << 20,
            file_per_process: true,
            fsync: true,
            ..Plan::default()
        }
    }

    #[test]
    fn plan_becomes_the_command_line_of_iozone() {
        let line = |plan: &Plan, is_write| command(plan, is_write, "/m/f").join(" ");
        let sizes = "-r 64k -s 4096k";
        assert_eq!(line(&plan(), true), format!("iozone -i 0 -t 1 -+n -w -c {sizes} -e -F /m/f"));
        let direct = Plan { direct: true, fsync: false, ..plan() };
        assert_eq!(line(&direct, false), format!("iozone -i 1 -t 1 -+n -w -c {sizes} -I -F /m/f"));
        assert_eq!(problems(&direct), Vec::<String>::new());
        let wrong = Plan { file_per_process: false, random: true, transfer_bytes: 512, ..plan() };
        assert_eq!(problems(&wrong).len(), 3);
    }

    #[test]
    fn iozone_output_is_parsed() {
        let rate = |report: &Report| report.bytes as f64 / 1024.0 / report.seconds;
        let text = include_str!("recorded/iozone-3.471-write.txt");
        let written = parse(text, &plan(), true).unwrap();
        assert_eq!((written.bytes, written.operations), (4 << 20, 64));
        let said = written.said["kibibytes_per_second"].as_f64().unwrap();
        assert!((rate(&written) - said).abs() < 1e-6 * said);
        assert!(text.contains(&format!("{said:.2} kB/sec")), "{said}");
        assert_eq!(written.said["version"], "3.471");
        let text = include_str!("recorded/iozone-3.471-read.txt");
        assert!(parse(text, &plan(), false).unwrap().seconds > 0.0);
        assert!(parse(text, &plan(), true).unwrap_err().contains("initial writers"));
    }
}
