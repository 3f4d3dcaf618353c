//! Systems and workloads in the form that the model uses. The numbers of a system come from the
//! catalogue.

use crate::catalogue::{Catalogue, DiskType};
use crate::invalid;
use serde::Serialize;
use skep_types::Result;

/// Number of bytes of an Ethernet frame besides the IP packet: preamble, header, checksum and gap.
const FRAME_BYTES: f64 = 38.0;
/// Number of bytes of the IP and TCP headers in each packet, including TCP time stamps.
const HEADER_BYTES: f64 = 52.0;

/// A system: a number of equal storage servers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct System {
    /// Name of the server type.
    pub server: String,
    /// Number of servers.
    pub servers: u32,
    /// Processor cores of a server.
    pub cores: u32,
    /// Rate of a server's network.
    pub network_gbit_s: f64,
    /// Size of the largest IP packet in the network, in bytes.
    pub mtu: u32,
    /// The disks of a server.
    pub disks: Disks,
    /// Limit for the data rate of all disks of a server together. `None` means that there is no
    /// limit.
    pub limit_mb_s: Option<f64>,
    /// Limit for the operations per second of all disks of a server together. `None` means that
    /// there is no limit.
    pub limit_iops: Option<f64>,
}

/// The disks of one server.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Disks {
    /// Number of disks in a server.
    pub count: u32,
    /// Type of the disks.
    pub of: DiskType,
    /// Whether the disks are attached to the server and paid for separately. `false` means that the
    /// disks are built into the server.
    pub are_attached: bool,
    /// Redundancy of the disks that form one target.
    pub redundancy: Redundancy,
}

/// Redundancy of the disks that form one target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Redundancy {
    /// No redundancy: the loss of a disk is a loss of data.
    None,
    /// Two disks store the same data.
    Raid1,
    /// Eight disks with data, and two disks with redundancy.
    Raid6,
}

impl Redundancy {
    /// Returns the share of the raw capacity that the redundancy leaves for data.
    pub fn capacity_share(self) -> f64 {
        match self {
            Self::None => 1.0,
            Self::Raid1 => 0.5,
            Self::Raid6 => 0.8,
        }
    }

    /// Returns the number of disk operations that one random write causes.
    fn operations_per_write(self) -> f64 {
        match self {
            Self::None => 1.0,
            Self::Raid1 => 2.0,
            Self::Raid6 => 6.0,
        }
    }

    /// All kinds of redundancy, with their names.
    pub const ALL: [(Self, &'static str); 3] =
        [(Self::None, "none"), (Self::Raid1, "raid1"), (Self::Raid6, "raid6")];

    /// Returns the kind of redundancy with the name `word`. `None` means that no kind has this
    /// name.
    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, name)| *name == word).map(|(kind, _)| *kind)
    }
}

/// The operation that all processes do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// Sequential writes.
    Write,
    /// Sequential reads.
    Read,
    /// Writes at random offsets.
    RandomWrite,
    /// Reads at random offsets.
    RandomRead,
    /// Creating empty files.
    Create,
    /// Requests for the attributes of files.
    Stat,
}

impl Operation {
    /// All operations with their names.
    pub const ALL: [(Self, &'static str); 6] = [
        (Self::Write, "write"),
        (Self::Read, "read"),
        (Self::RandomWrite, "random-write"),
        (Self::RandomRead, "random-read"),
        (Self::Create, "create"),
        (Self::Stat, "stat"),
    ];

    /// Returns the operation with the name `word`.
    ///
    /// # Errors
    /// `InvalidArgument`. The error lists the names of all operations.
    pub fn named(word: &str) -> Result<Self> {
        let found = Self::ALL.iter().find(|(_, name)| *name == word).map(|(kind, _)| *kind);
        found.ok_or_else(|| {
            let names = Self::ALL.map(|(_, name)| name).join(", ");
            invalid(format!("invalid operation '{word}': expected one of {names}"))
        })
    }

    /// Returns the name of the operation.
    pub fn word(self) -> &'static str {
        Self::ALL.iter().find(|(kind, _)| *kind == self).map_or("", |(_, name)| name)
    }

    /// Returns the unit of the operation's rate: MB/s for sequential transfers, otherwise
    /// operations per second.
    pub fn unit(self) -> &'static str {
        if self.is_sequential() { "MB/s" } else { "1/s" }
    }

    /// Whether the rate of the operation is a data rate.
    pub fn is_sequential(self) -> bool {
        matches!(self, Self::Write | Self::Read)
    }
}

/// A workload in which all clients are equal.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Workload {
    /// The operation that the processes do.
    pub operation: Operation,
    /// Number of client hosts.
    pub clients: u32,
    /// Processes on each client host.
    pub processes: u32,
    /// Rate of a client's network.
    pub client_gbit_s: f64,
    /// Number of bytes that a program transfers with one system call.
    pub transfer_bytes: u64,
    /// The distribution of the files of the workload over servers and targets.
    pub spread: Spread,
}

/// The distribution of the files of a workload over the targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Spread {
    /// One file for each process. Each file is on `targets` targets.
    Files {
        /// Number of targets of a file. `None` means all targets.
        targets: Option<u32>,
    },
    /// One file for all processes. The file is on `targets` targets. Each server has the same
    /// number of these targets.
    Shared {
        /// Number of targets of the file.
        targets: u32,
    },
    /// One file for all processes, on two servers: `min` targets on one server and `max` targets on
    /// the other server.
    Allocation {
        /// Number of targets on the server with fewer targets.
        min: u32,
        /// Number of targets on the server with more targets.
        max: u32,
    },
}

/// The servers and disks of a system that a workload uses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Load {
    /// Number of servers that store data of the workload.
    pub(crate) servers: u32,
    /// Share of the data on the server that stores the most data.
    pub(crate) largest_share: f64,
    /// Number of disks that store data of the workload.
    pub(crate) disks: u32,
}

impl System {
    /// Returns a system of `servers` servers of the type `server`.
    ///
    /// `disk` is the type and the number of the attached disks of a server. `None` means the
    /// built-in disks.
    ///
    /// # Errors
    /// `NotFound` if the catalogue lacks the server or the disk. `InvalidArgument` if the server
    /// cannot have these disks.
    pub fn of(
        catalogue: &Catalogue,
        server: &str,
        servers: u32,
        disk: Option<(&str, u32)>,
    ) -> Result<Self> {
        let kind = catalogue.server(server)?;
        if servers == 0 {
            return Err(invalid("invalid number of servers 0: expected at least 1"));
        }
        let disks = match (disk, &kind.disk) {
            (Some((name, count)), _) => {
                if count == 0 || count > kind.max_data_disks {
                    return Err(invalid(format!(
                        "cannot attach {count} disks to {server}: this server can have 1 to {} \
                         disks; choose another number of disks, or another server",
                        kind.max_data_disks
                    )));
                }
                Disks {
                    count,
                    of: catalogue.disk(name)?.clone(),
                    are_attached: true,
                    redundancy: Redundancy::None,
                }
            }
            (None, Some(name)) => Disks {
                count: kind.disks,
                of: catalogue.disk(name)?.clone(),
                are_attached: false,
                redundancy: Redundancy::None,
            },
            (None, None) => {
                return Err(invalid(format!(
                    "cannot use {server} for storage: this server has no disks; name a disk type \
                     with --disk"
                )));
            }
        };
        Ok(Self {
            server: kind.name.clone(),
            servers,
            cores: kind.cores,
            network_gbit_s: kind.network_gbit_s,
            mtu: 1500,
            limit_mb_s: kind.disk_limit_mb_s.filter(|_| disks.are_attached),
            limit_iops: kind.disk_limit_iops.filter(|_| disks.are_attached),
            disks,
        })
    }

    /// Returns the capacity that the redundancy leaves for data, in TB.
    pub fn capacity_tb(&self) -> f64 {
        let of_server = f64::from(self.disks.count) * self.disks.of.capacity_gb / 1000.0;
        f64::from(self.servers) * of_server * self.disks.redundancy.capacity_share()
    }

    /// Returns the rate of TCP payload over a link of `gbit_s`, in MB/s. This rate depends on the
    /// packet size of the system.
    pub(crate) fn payload_mb_s(&self, gbit_s: f64) -> f64 {
        let mtu = f64::from(self.mtu);
        gbit_s * 125.0 * (mtu - HEADER_BYTES) / (mtu + FRAME_BYTES)
    }

    /// Returns the rate of one disk, in MB/s or operations per second. The rate includes the cost
    /// of the redundancy.
    pub(crate) fn disk_rate(&self, operation: Operation) -> f64 {
        let (disk, redundancy) = (&self.disks.of, self.disks.redundancy);
        match operation {
            Operation::Write => disk.write_mb_s * redundancy.capacity_share(),
            Operation::Read => disk.read_mb_s,
            Operation::RandomWrite => disk.write_iops / redundancy.operations_per_write(),
            _ => disk.read_iops,
        }
    }

    /// Returns which part of the system a workload uses.
    pub(crate) fn load(&self, workload: &Workload) -> Load {
        let all = self.servers.saturating_mul(self.disks.count).max(1);
        let even = |servers: u32, disks: u32| Load {
            servers,
            largest_share: 1.0 / f64::from(servers),
            disks,
        };
        match workload.spread {
            Spread::Files { targets: None } => even(self.servers, all),
            Spread::Files { targets: Some(targets) } => {
                let files = workload.clients.saturating_mul(workload.processes);
                let used = files.saturating_mul(targets).clamp(1, all);
                even(used.min(self.servers), used)
            }
            Spread::Shared { targets } => {
                let targets = targets.clamp(1, all);
                let largest = targets.div_ceil(self.servers);
                Load {
                    servers: targets.min(self.servers),
                    largest_share: f64::from(largest) / f64::from(targets),
                    disks: targets,
                }
            }
            Spread::Allocation { min, max } => Load {
                servers: if min == 0 { 1 } else { 2 },
                largest_share: f64::from(max) / f64::from((min + max).max(1)),
                disks: (min + max).clamp(1, all),
            },
        }
    }
}
