//! Named sets of options of `skep bench io` and `skep bench metadata`. Each set repeats a published
//! measurement, or a method that several publications use. Options that the user gives replace
//! options of the set.
//!
//! The sources are Alces Flight, "BeeGFS on AWS" (2016); Dell's high-capacity
//! solution with BeeGFS; AzureCAT, "Parallel Virtual File Systems on Microsoft
//! Azure" (2017). docs/operations/benchmarks-built-in.md lists the sets for users.

use clap::builder::{PossibleValue, PossibleValuesParser};
use skep_types::size;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The number of bytes that each process transfers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Block {
    /// Each process transfers this number of bytes, for any number of processes.
    Each(u64),
    /// Each process transfers an equal share of `total` bytes. If there are fewer than `below`
    /// processes, each process transfers `each` bytes instead.
    Share { total: u64, below: u64, each: u64 },
}

/// An option without a value that a set turns on: the letter and the long name of the option.
pub(super) type Switch = (char, &'static str);

const FILE_PER_PROCESS: Switch = ('F', "file-per-process");
const RANDOM: Switch = ('z', "random");
const REORDER: Switch = ('C', "reorder");
const FSYNC: Switch = ('e', "fsync");
const DIRECT: Switch = ('B', "direct");

/// All switches that a set of `skep bench io` can turn on.
const SWITCHES: [Switch; 5] = [FILE_PER_PROCESS, RANDOM, REORDER, FSYNC, DIRECT];

/// A named set of options of `skep bench io`.
#[derive(Debug)]
pub(super) struct IoPreset {
    pub(super) name: &'static str,
    /// The measurement that the set repeats, in one sentence without a full stop.
    about: &'static str,
    pub(super) transfer_bytes: u64,
    pub(super) block: Block,
    pub(super) switches: &'static [Switch],
    pub(super) repetitions: u32,
    pub(super) processes_per_host: u32,
}

/// All sets of `skep bench io`.
static IO: [IoPreset; 8] = [
    IoPreset {
        name: "iops",
        about: "operations per second of random transfers, as in AzureCAT's tables of IOPS, with \
                one process on each host",
        transfer_bytes: 4 * KIB,
        block: Block::Each(320 * MIB),
        switches: &[FILE_PER_PROCESS, RANDOM],
        repetitions: 1,
        processes_per_host: 1,
    },
    IoPreset {
        name: "throughput",
        about: "sequential throughput past the page cache, as in AzureCAT's tables of throughput, \
                with one process on each host",
        transfer_bytes: 32 * MIB,
        block: Block::Each(4 * GIB),
        switches: &[FILE_PER_PROCESS, REORDER, DIRECT],
        repetitions: 1,
        processes_per_host: 1,
    },
    IoPreset {
        name: "nfs-baseline",
        about: "`throughput` through the page cache, with a sync in the measured time; it runs on \
                any directory, such as a mount of NFS, so that file systems can be compared",
        transfer_bytes: 32 * MIB,
        block: Block::Each(4 * GIB),
        switches: &[FILE_PER_PROCESS, REORDER, FSYNC],
        repetitions: 1,
        processes_per_host: 1,
    },
    IoPreset {
        name: "alces",
        about: "Alces Flight 2016: one file of 10 GiB on each client in records of 1 MiB, caches \
                dropped before writing and before reading",
        transfer_bytes: MIB,
        block: Block::Each(10 * GIB),
        switches: &[FILE_PER_PROCESS, REORDER],
        repetitions: 1,
        processes_per_host: 1,
    },
    IoPreset {
        name: "dell",
        about: "Dell, sequential: 8 TiB over all processes in records of 1 MiB, and 768 GiB \
                for each process if there are fewer than 16",
        transfer_bytes: MIB,
        block: Block::Share { total: 8 << 40, below: 16, each: 768 * GIB },
        switches: &[FILE_PER_PROCESS, REORDER, FSYNC],
        repetitions: 1,
        processes_per_host: 1,
    },
    IoPreset {
        name: "dell-random",
        about: "Dell, random: O_DIRECT in records of 4 KiB; the published size of the files \
                depends on the system, and is 1 GiB here",
        transfer_bytes: 4 * KIB,
        block: Block::Each(GIB),
        switches: &[FILE_PER_PROCESS, RANDOM, DIRECT],
        repetitions: 1,
        processes_per_host: 1,
    },
    IoPreset {
        name: "azure-throughput",
        about: "AzureCAT 2017, table 8: 4 GiB for each of 32 processes on each client, four times",
        transfer_bytes: 32 * MIB,
        block: Block::Each(4 * GIB),
        switches: &[FILE_PER_PROCESS, REORDER, DIRECT],
        repetitions: 4,
        processes_per_host: 32,
    },
    IoPreset {
        name: "azure-iops",
        about: "AzureCAT 2017, table 10: 320 MiB for each of 32 processes on each client",
        transfer_bytes: 4 * KIB,
        block: Block::Each(320 * MIB),
        switches: &[FILE_PER_PROCESS, RANDOM],
        repetitions: 1,
        processes_per_host: 32,
    },
];

/// A named set of options of `skep bench metadata`. A set has the phases creation, `stat` and
/// removal. Each process uses files in the leaves of its own tree.
#[derive(Debug)]
pub(super) struct MetadataPreset {
    pub(super) name: &'static str,
    about: &'static str,
    pub(super) items_per_directory: u64,
    pub(super) depth: u32,
    pub(super) branching: u64,
    pub(super) repetitions: u32,
    pub(super) processes_per_host: u32,
}

/// All sets of `skep bench metadata`.
static METADATA: [MetadataPreset; 1] = [MetadataPreset {
    name: "azure-mdtest",
    about: "AzureCAT 2017, mdtest with 320 processes on 16 clients; the published command removes \
            nothing, and this one also removes the files (-r), because repetitions need that",
    items_per_directory: 2000,
    depth: 2,
    branching: 4,
    repetitions: 4,
    processes_per_host: 20,
}];

impl Block {
    /// Returns the number of bytes for each process, if there are `processes` processes. This
    /// number is a multiple of `transfer_bytes`.
    pub(super) fn bytes(self, processes: u64, transfer_bytes: u64) -> u64 {
        match self {
            Self::Each(bytes) => bytes,
            Self::Share { below, each, .. } if processes < below => each,
            Self::Share { total, .. } => {
                let transfer_bytes = transfer_bytes.max(1);
                let share = total / processes.max(1);
                (share - share % transfer_bytes).max(transfer_bytes)
            }
        }
    }
}

impl IoPreset {
    /// Returns the set with the name `name`.
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        IO.iter().find(|it| it.name == name)
    }

    /// Whether the set turns on the switch with the letter `letter`, and `without` does not name
    /// this switch.
    pub(super) fn turns_on(&self, letter: char, without: &[String]) -> bool {
        let is_left_out = |name: &str| without.iter().any(|it| it == name);
        self.switches.iter().any(|(it, name)| *it == letter && !is_left_out(name))
    }

    /// Returns the options of the set in the form of a command line.
    fn options(&self) -> String {
        let mut words = vec![format!("-t {}", short(self.transfer_bytes))];
        if let Block::Each(bytes) = self.block {
            words.push(format!("-b {}", short(bytes)));
        }
        words.extend(self.switches.iter().map(|(letter, _)| format!("-{letter}")));
        with_counts(words, self.repetitions, self.processes_per_host)
    }
}

impl MetadataPreset {
    /// Returns the set with the name `name`.
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        METADATA.iter().find(|it| it.name == name)
    }

    fn options(&self) -> String {
        let words = vec![
            "-C -T -r -L -u -F".to_owned(),
            format!("-I {} -z {} -b {}", self.items_per_directory, self.depth, self.branching),
        ];
        with_counts(words, self.repetitions, self.processes_per_host)
    }
}

/// Returns the options `words`, followed by the numbers of repetitions and processes that differ
/// from the defaults of the command.
fn with_counts(mut words: Vec<String>, repetitions: u32, processes_per_host: u32) -> String {
    if repetitions != 1 {
        words.push(format!("-i {repetitions}"));
    }
    if processes_per_host != 1 {
        words.push(format!("--processes-per-host {processes_per_host}"));
    }
    words.join(" ")
}

/// Formats a size in the form that options accept: `4k`, `32m`, `10g`.
fn short(bytes: u64) -> String {
    let (number, unit) = size::whole(bytes);
    format!("{number}{}", unit.to_lowercase().chars().next().unwrap_or('b'))
}

fn value(name: &'static str, options: &str, about: &str) -> PossibleValue {
    PossibleValue::new(name).help(format!("{options} ({about})"))
}

/// Returns the parser of `skep bench io --preset`. The help of the command lists all sets.
pub(super) fn of_io() -> PossibleValuesParser {
    IO.iter().map(|it| value(it.name, &it.options(), it.about)).collect::<Vec<_>>().into()
}

/// Returns the parser of `skep bench metadata --preset`.
pub(super) fn of_metadata() -> PossibleValuesParser {
    METADATA.iter().map(|it| value(it.name, &it.options(), it.about)).collect::<Vec<_>>().into()
}

/// Returns the parser of `skep bench io --without`, which accepts the long names of switches.
pub(super) fn switches() -> PossibleValuesParser {
    SWITCHES.iter().map(|(_, name)| PossibleValue::new(*name)).collect::<Vec<_>>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_have_the_options_of_the_published_benchmarks() {
        let options = |name: &str| IoPreset::named(name).expect("a preset").options();
        assert_eq!(options("iops"), "-t 4k -b 320m -F -z");
        assert_eq!(options("throughput"), "-t 32m -b 4g -F -C -B");
        assert_eq!(options("alces"), "-t 1m -b 10g -F -C");
        assert_eq!(options("dell"), "-t 1m -F -C -e");
        let azure = options("azure-throughput");
        assert_eq!(azure, "-t 32m -b 4g -F -C -B -i 4 --processes-per-host 32");
        assert_eq!(options("azure-iops"), "-t 4k -b 320m -F -z --processes-per-host 32");
        let mdtest = MetadataPreset::named("azure-mdtest").expect("a preset").options();
        assert_eq!(mdtest, "-C -T -r -L -u -F -I 2000 -z 2 -b 4 -i 4 --processes-per-host 20");
        assert!(IoPreset::named("azure-mdtest").is_none());
    }

    #[test]
    fn dell_preset_divides_its_data_among_many_processes() {
        let block = IoPreset::named("dell").expect("a preset").block;
        assert_eq!(block.bytes(1, MIB), 768 * GIB);
        assert_eq!(block.bytes(15, MIB), 768 * GIB);
        assert_eq!(block.bytes(16, MIB), 512 * GIB);
        assert_eq!(block.bytes(512, MIB), 16 * GIB);
        assert!(block.bytes(48, MIB).is_multiple_of(MIB));
        assert_eq!(Block::Each(5).bytes(48, MIB), 5);
    }

    #[test]
    fn single_switches_of_a_preset_can_be_turned_off() {
        let preset = IoPreset::named("throughput").expect("a preset");
        assert!(preset.turns_on('B', &[]) && preset.turns_on('F', &[]));
        assert!(!preset.turns_on('z', &[]));
        let without = ["direct".to_owned()];
        assert!(!preset.turns_on('B', &without) && preset.turns_on('F', &without));
    }
}
