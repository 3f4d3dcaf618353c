//! `skep fsck`: checks the stores of a stopped cluster for records that contradict each other.

use crate::help::{Example, examples};
use crate::output::print;
use serde::Serialize;
use skep_fsck::{Finding, Report};
use skep_types::Result;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &[Example] = &[
    (
        "check the stopped cluster in ./skep-data; the exit code is 1 if there are findings",
        "skep fsck",
    ),
    (
        "check a cluster whose disks are all visible on this host",
        "skep fsck /srv/skep/metadata /mnt/*/storage --output json",
    ),
];

/// Check the stores of a stopped cluster: names, link counts, opens and chunk files
///
/// Compares the records of all metadata targets with each other, and with the chunk files of the
/// storage targets. The command repairs nothing. All services must be stopped, and all metadata
/// targets must be visible on this host; storage targets that are not visible are skipped. File
/// data is not read, because each read of a file checks its checksums.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct FsckArgs {
    /// Data directory of `skep up`, or the directories of all services and targets
    #[arg(default_value = "./skep-data")]
    directories: Vec<PathBuf>,
    /// Data directory of `skep up`, as for `skep down`
    #[arg(long, conflicts_with = "directories")]
    data_dir: Option<PathBuf>,
}

impl FsckArgs {
    /// Returns the directories that the command checks.
    fn chosen(&self) -> &[PathBuf] {
        self.data_dir.as_ref().map_or(&self.directories[..], std::slice::from_ref)
    }
}

/// The JSON output: the result of the check.
#[derive(Debug, Serialize)]
struct FsckReport {
    healthy: bool,
    inodes: u64,
    entries: u64,
    opens: u64,
    chunk_files: u64,
    /// Number of chunk files that metadata targets have recorded for removal.
    removals: u64,
    /// Number of transactions that metadata groups have prepared, and have not committed or aborted
    /// yet.
    prepared: u64,
    /// Number of log records that metadata targets will apply at their next start.
    log_records: u64,
    findings: Vec<FindingReport>,
    /// Number of findings that the output leaves out.
    omitted: u64,
    /// Targets that were not checked.
    skipped: Vec<String>,
}

#[derive(Debug, Serialize)]
struct FindingReport {
    kind: &'static str,
    what: String,
}

pub(super) fn run(args: &FsckArgs) -> Result<ExitCode> {
    let report = json(&skep_fsck::check(args.chosen())?);
    print(&report, as_text)?;
    Ok(if report.healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn json(report: &Report) -> FsckReport {
    let counts = report.counts;
    let finding = |it: &Finding| FindingReport { kind: it.word(), what: it.to_string() };
    let findings: Vec<_> = report.findings.list().iter().map(finding).collect();
    FsckReport {
        healthy: findings.is_empty(),
        inodes: counts.inodes,
        entries: counts.entries,
        opens: counts.opens,
        chunk_files: counts.chunk_files,
        removals: counts.removals,
        prepared: counts.prepared,
        log_records: counts.log_records,
        findings,
        omitted: report.findings.omitted(),
        skipped: report.skipped.clone(),
    }
}

fn as_text(report: &FsckReport) -> String {
    let mut text = format!(
        "Checked {} inodes, {} entries, {} opens and {} chunk files.\n",
        report.inodes, report.entries, report.opens, report.chunk_files
    );
    let left = [
        (report.removals, "chunk files of removed files, which metadata has not removed yet"),
        (
            report.prepared,
            "transactions between metadata targets whose decision has not reached all of these \
             targets",
        ),
        (
            report.log_records,
            "log records of metadata targets, which their stores do not contain yet",
        ),
    ];
    for (count, what) in left.into_iter().filter(|(count, _)| *count > 0) {
        let _ = writeln!(text, "Left for the next start: {count} {what}.");
    }
    for what in &report.skipped {
        let _ = writeln!(text, "Not checked: {what}.");
    }
    if report.healthy {
        return text + "No findings.\n";
    }
    let _ = writeln!(text, "\nFindings\n==========");
    for finding in &report.findings {
        let _ = writeln!(text, "- {}: {}", finding.kind, finding.what);
    }
    if report.omitted > 0 {
        let _ = writeln!(text, "- and {} more", report.omitted);
    }
    text + "\nFor the meaning of a finding, and for what to do, see docs/operations/fsck.md.\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: FsckArgs,
    }

    #[test]
    fn fsck_accepts_the_data_directory_as_an_option() {
        let chosen = |words: &[&str]| {
            let line = Line::try_parse_from([&["fsck"][..], words].concat());
            line.map(|line| line.args.chosen().to_vec()).map_err(|error| error.kind())
        };
        assert_eq!(chosen(&[]), Ok(vec![PathBuf::from("./skep-data")]));
        assert_eq!(chosen(&["a", "b"]), Ok(vec![PathBuf::from("a"), PathBuf::from("b")]));
        assert_eq!(chosen(&["--data-dir", "a"]), Ok(vec![PathBuf::from("a")]));
        let conflict = clap::error::ErrorKind::ArgumentConflict;
        assert_eq!(chosen(&["--data-dir", "a", "b"]), Err(conflict));
    }
}
