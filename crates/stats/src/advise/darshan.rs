//! Parses the text that `darshan-parser` prints for Darshan's log of a program. The text consists
//! of a header and one line for each counter of a file. The parser reads only the counters of POSIX
//! calls that the rules need.

use serde::Serialize;
use skep_types::{Error, ErrorCode, Result};
use std::collections::{BTreeMap, BTreeSet};

/// The rank (number of a process) in the records of files that all processes have used.
const ALL_PROCESSES: &str = "-1";
/// Names of the counters of the four most frequent access lengths. Each pair contains the counter
/// with the length and the counter with the number of accesses of this length.
const LENGTHS: [(&str, &str); 4] = [
    ("POSIX_ACCESS1_ACCESS", "POSIX_ACCESS1_COUNT"),
    ("POSIX_ACCESS2_ACCESS", "POSIX_ACCESS2_COUNT"),
    ("POSIX_ACCESS3_ACCESS", "POSIX_ACCESS3_COUNT"),
    ("POSIX_ACCESS4_ACCESS", "POSIX_ACCESS4_COUNT"),
];

/// The file accesses of a program.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Accesses {
    /// Number of processes.
    pub processes: u64,
    /// Duration of the program in seconds.
    pub seconds: f64,
    /// Number of files that several processes have used.
    pub shared_files: u64,
    /// Number of files that only one process has used.
    pub own_files: u64,
    /// Bytes that the processes have read or written in shared files.
    pub shared_bytes: u64,
    /// Bytes that the processes have read or written in all files.
    pub bytes: u64,
    /// Number of read calls and write calls.
    pub calls: u64,
    /// The most frequent length of an access, and the share of the accesses with this length.
    pub usual_length: Option<(u64, f64)>,
    /// Share of the accesses that begin at or behind the end of the previous access.
    pub sequential: f64,
}

/// Parses the output of `darshan-parser` for one log.
///
/// # Errors
/// `InvalidArgument` if the text has no header of Darshan, or no record of POSIX calls.
pub fn parse(text: &str) -> Result<Accesses> {
    let refuse = |what: &str| Err(Error::new(ErrorCode::InvalidArgument, what));
    let header = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name));
        value.and_then(|value| value.trim().parse::<f64>().ok())
    };
    let Some(processes) = header("# nprocs:") else {
        return refuse(
            "the text is not from darshan-parser: the line '# nprocs:' is missing; run \
             `darshan-parser LOG >FILE`, and pass FILE to this command",
        );
    };
    // The values of the counters, by file and rank (number of the process).
    let mut records: BTreeMap<(&str, &str), BTreeMap<&str, u64>> = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("POSIX\t")) {
        let fields: Vec<&str> = line.split('\t').collect();
        let [_, rank, record, counter, value, ..] = fields[..] else { continue };
        if let Ok(value) = value.parse() {
            records.entry((record, rank)).or_default().insert(counter, value);
        }
    }
    if records.is_empty() {
        return refuse("the output of darshan-parser has no record of POSIX reads and writes");
    }
    let mut accesses = Accesses {
        processes: processes as u64,
        seconds: header("# run time:").unwrap_or(0.0),
        ..Accesses::default()
    };
    let (mut lengths, mut in_order) = (BTreeMap::new(), 0);
    let mut ranks: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (file, rank) in records.keys() {
        ranks.entry(file).or_default().insert(rank);
    }
    let is_shared = |file: &str| {
        ranks.get(file).is_some_and(|ranks| ranks.len() > 1 || ranks.contains(ALL_PROCESSES))
    };
    for ((file, _), counters) in &records {
        let sum = |names: [&str; 2]| -> u64 {
            names.iter().filter_map(|name| counters.get(name)).fold(0, |a, b| a.saturating_add(*b))
        };
        let bytes = sum(["POSIX_BYTES_READ", "POSIX_BYTES_WRITTEN"]);
        accesses.bytes = accesses.bytes.saturating_add(bytes);
        if is_shared(file) {
            accesses.shared_bytes = accesses.shared_bytes.saturating_add(bytes);
        }
        accesses.calls = accesses.calls.saturating_add(sum(["POSIX_READS", "POSIX_WRITES"]));
        in_order = sum(["POSIX_SEQ_READS", "POSIX_SEQ_WRITES"]).saturating_add(in_order);
        for (length, count) in LENGTHS {
            let value = |name| counters.get(name).copied().unwrap_or(0);
            let times = lengths.entry(value(length)).or_insert(0_u64);
            *times = times.saturating_add(value(count));
        }
    }
    accesses.shared_files = ranks.keys().filter(|file| is_shared(file)).count() as u64;
    accesses.own_files = ranks.len() as u64 - accesses.shared_files;
    let calls = accesses.calls.max(1) as f64;
    accesses.sequential = (in_order as f64 / calls).min(1.0);
    let usual = lengths.into_iter().filter(|(length, count)| *length > 0 && *count > 0);
    let usual = usual.max_by_key(|(_, count)| *count);
    accesses.usual_length = usual.map(|(length, count)| (length, (count as f64 / calls).min(1.0)));
    Ok(accesses)
}
