//! `skep plan size`: sizes disks, memory and processors of metadata and storage hosts.

use super::args::invalid;
use crate::help::{Example, examples};
use crate::output::{count, print, render, size as bytes, table};
use clap::Args;
use serde::Serialize;
use skep_plan::sizing::{ClusterSize, HostSize, Hosts, Needs, size};
use skep_types::map::Policy;
use skep_types::{Result, size as size_text};
use std::fmt::Write;

const EXAMPLES: &[Example] = &[
    (
        "size two metadata hosts and four storage hosts for 200 million files of 2 MiB",
        "skep plan size --files 200M --mean-size 2MiB --metadata 2x2 --storage 4x12 --clients 500",
    ),
    (
        "size a cluster with two copies of metadata, and small files in metadata",
        "skep plan size --files 1G --mean-size 3KiB --inline-bytes 4KiB --metadata 4x2 --copies 2",
    ),
];

/// Size the disks, memory and processors of metadata and storage hosts
///
/// The sizes follow from the formats and the limits of the programs. docs/operations/sizing.md
/// explains each of them. `skep plan propose` finds servers for a rate, a capacity and a budget.
#[derive(Debug, Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct SizeArgs {
    #[command(flatten)]
    files: FilesArgs,
    #[command(flatten)]
    hosts: HostsArgs,
}

/// The options that describe the files.
#[derive(Debug, Args)]
#[command(next_help_heading = "Files")]
struct FilesArgs {
    /// Number of files, also with K, M or G for thousands, millions or billions
    #[arg(long, value_name = "NUMBER", value_parser = number)]
    files: u64,
    /// Mean size of a file
    #[arg(long, default_value = "1MiB", value_name = "SIZE", value_parser = size_of)]
    mean_size: u64,
    /// Number of files in use at a time, whose metadata should be in memory [default: a tenth of
    /// all]
    #[arg(long, value_name = "NUMBER", value_parser = number)]
    files_in_use: Option<u64>,
    /// Mean length of a name
    #[arg(long, default_value_t = 20, value_name = "BYTES")]
    name_length: u64,
    /// Number of targets over which a large file is striped [default: all storage targets, at most
    /// 32]
    #[arg(long, value_name = "NUMBER")]
    stripe_width: Option<u64>,
    /// Number of first bytes of each file that metadata stores; 0: the setting `inline-bytes` of
    /// the cluster is 0 [default: 16KiB if --mean-size is at most 16KiB, otherwise none]
    #[arg(long, value_name = "SIZE", value_parser = size_of)]
    inline_bytes: Option<u64>,
}

/// The options that describe the hosts.
#[derive(Debug, Args)]
#[command(next_help_heading = "Hosts")]
struct HostsArgs {
    /// Number of metadata hosts, and of targets on each
    #[arg(long, default_value = "1x1", value_name = "HOSTSxTARGETS", value_parser = hosts)]
    metadata: Hosts,
    /// Copies of metadata
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    copies: u64,
    /// Number of storage hosts, and of targets on each
    #[arg(long, default_value = "2x8", value_name = "HOSTSxTARGETS", value_parser = hosts)]
    storage: Hosts,
    /// Number of clients
    #[arg(long, default_value_t = 16, value_name = "NUMBER")]
    clients: u64,
    /// Processors of each client
    #[arg(long, default_value_t = 64, value_name = "NUMBER")]
    client_cpus: u64,
}

/// The JSON output: the needs and the size of the cluster.
#[derive(Debug, Serialize)]
struct SizeReport {
    needs: Needs,
    size: ClusterSize,
}

pub(crate) fn run(args: &SizeArgs) -> Result<()> {
    let SizeArgs { files, hosts } = args;
    let storage_targets = hosts.storage.hosts.saturating_mul(hosts.storage.targets);
    let Policy { default_width, .. } = Policy::default();
    let needs = Needs {
        files: files.files,
        mean_bytes: files.mean_size,
        files_in_use: files.files_in_use.unwrap_or(files.files / 10),
        name_bytes: files.name_length,
        stripe_width: files.stripe_width.unwrap_or(storage_targets.min(default_width.into())),
        inline_bytes: match files.inline_bytes {
            None => usual_inline_bytes(files.mean_size),
            Some(bytes) => Some(bytes).filter(|bytes| *bytes > 0),
        },
        copies: hosts.copies,
        metadata: hosts.metadata,
        storage: hosts.storage,
        clients: hosts.clients,
        client_cpus: hosts.client_cpus,
    };
    if needs.stripe_width > storage_targets {
        return Err(invalid(format!(
            "invalid --stripe-width {}: the storage hosts have {storage_targets} targets",
            needs.stripe_width
        )));
    }
    print(&SizeReport { needs, size: size(&needs)? }, as_text)
}

/// Returns the number of inline bytes of files with this mean size on a cluster with the default
/// settings. Larger files usually have no inline bytes. If the first write to a file is larger than
/// the inline component of the file, this component stays empty.
fn usual_inline_bytes(mean_bytes: u64) -> Option<u64> {
    let Policy { inline_bytes, .. } = Policy::default();
    let used = if mean_bytes <= inline_bytes { inline_bytes } else { 0 };
    (inline_bytes > 0).then_some(used)
}

fn as_text(report: &SizeReport) -> String {
    let SizeReport { needs, size } = report;
    let share = size.metadata_share.map(|share| format!(", {:.3} % of the data", share * 100.0));
    let mut text = format!(
        "{} files of {}: {} bytes of metadata each, {} together{}\n",
        count(needs.files),
        bytes(needs.mean_bytes),
        size.metadata_bytes_of_file,
        bytes(size.metadata_bytes),
        share.unwrap_or_default()
    );
    let _ = writeln!(
        text,
        "Data, including its checksums: {}; chunk files per file: {}\n",
        bytes(size.data_bytes),
        size.chunk_files_of_file
    );
    let mut shown = table(&[
        "Role",
        ">Hosts",
        ">Targets of each",
        ">Disk of a target",
        ">Memory of a host",
        ">Cores of a host",
        ">Connections",
    ]);
    for (role, it) in [("metadata", &size.metadata), ("storage", &size.storage)] {
        shown.add_row(row(role, it));
    }
    let _ = writeln!(text, "{}\n", render(&shown).trim_end());
    let cache = size.cache_bytes_of_target.div_ceil(1 << 20);
    let _ = writeln!(text, "Setting of the metadata services: metadata.cache = \"{cache} MiB\"");
    for problem in &size.problems {
        let _ = writeln!(text, "Problem: {problem}");
    }
    text
}

fn row(role: &str, it: &HostSize) -> [String; 7] {
    [
        role.to_owned(),
        it.hosts.to_string(),
        it.targets.to_string(),
        bytes(it.disk_bytes_of_target),
        bytes(it.memory_bytes),
        it.cores.to_string(),
        it.connections.to_string(),
    ]
}

/// Parses a number, such as `200M`.
fn number(text: &str) -> std::result::Result<u64, String> {
    let (digits, factor) = match text.char_indices().next_back() {
        Some((end, 'k' | 'K')) => (&text[..end], 1000),
        Some((end, 'm' | 'M')) => (&text[..end], 1_000_000),
        Some((end, 'g' | 'G')) => (&text[..end], 1_000_000_000),
        _ => (text, 1),
    };
    let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
    number.ok_or_else(|| "expected a whole number, such as 5000, 200M or 1G".to_owned())
}

/// Parses a size in bytes.
fn size_of(text: &str) -> std::result::Result<u64, String> {
    let expected = || format!("expected a size such as 3KiB or 2MiB, with {}", size_text::SUFFIXES);
    size_text::parse(text).ok_or_else(expected)
}

/// Parses the number of hosts and the number of targets on each host, such as `4x12`.
fn hosts(text: &str) -> std::result::Result<Hosts, String> {
    let parsed = text.split_once('x').and_then(|(hosts, targets)| {
        Some(Hosts { hosts: hosts.parse().ok()?, targets: targets.parse().ok()? })
    });
    parsed.ok_or_else(|| "expected hosts x targets on each, such as 4x12".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_size_assumes_inline_bytes_only_for_small_files() {
        // The help text of `--inline-bytes` contains this number.
        let most = 16 << 10;
        for (mean_bytes, expected) in [(0, most), (3000, most), (most, most), (most + 1, 0)] {
            assert_eq!(usual_inline_bytes(mean_bytes), Some(expected), "{mean_bytes}");
        }
    }

    #[test]
    fn plan_size_parses_number_suffixes_and_host_counts() {
        for (text, expected) in
            [("5000", 5000), ("200M", 200_000_000), ("1g", 1_000_000_000), ("3k", 3000)]
        {
            assert_eq!(number(text), Ok(expected), "{text}");
        }
        for text in ["", "M", "1.5M", "-1", "1T", "99999999999G"] {
            assert!(number(text).is_err(), "{text}");
        }
        assert_eq!(hosts("4x12"), Ok(Hosts { hosts: 4, targets: 12 }));
        for text in ["4", "x", "4x", "axb"] {
            assert!(hosts(text).is_err(), "{text}");
        }
        assert_eq!(size_of("3KiB"), Ok(3072));
        assert!(size_of("much").is_err());
    }
}
