//! Options that several subcommands of `skep plan` share: the catalogue and the measured tables,
//! and the description of one system.

use clap::Args;
use skep_plan::calibration::Prediction;
use skep_plan::system::{Operation, Redundancy, Spread, System, Workload};
use skep_plan::table::{self, Table};
use skep_plan::{Calibration, Catalogue, bench};
use skep_types::{Error, ErrorCode, Result};
use std::path::{Path, PathBuf};

/// The options for the data from which predictions are made.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Data")]
pub(crate) struct DataArgs {
    /// Add the servers, disks and prices of this file to the catalogue
    #[arg(long = "catalogue", value_name = "FILE")]
    catalogues: Vec<PathBuf>,
    /// Also calibrate with the measured tables that this file describes
    #[arg(long = "tables", value_name = "FILE")]
    pub(super) tables: Vec<PathBuf>,
}

/// Returns the built-in catalogue, with the entries of `files` added.
///
/// # Errors
/// Returns an error if a file cannot be read, or if a file contradicts itself or the catalogue.
pub(in crate::cmd) fn catalogue_with(files: &[PathBuf]) -> Result<Catalogue> {
    let mut catalogue = Catalogue::built_in();
    for path in files {
        catalogue.add(&path.display().to_string(), &read(path)?)?;
    }
    Ok(catalogue)
}

impl DataArgs {
    /// Returns the built-in catalogue, with the entries of the user's files added.
    pub(super) fn catalogue(&self) -> Result<Catalogue> {
        catalogue_with(&self.catalogues)
    }

    /// Returns the built-in tables of measurements, followed by the user's tables.
    pub(super) fn all_tables(&self, catalogue: &Catalogue) -> Result<Vec<Table>> {
        let mut tables = table::built_in(catalogue);
        tables.extend(self.own_tables(catalogue)?);
        Ok(tables)
    }

    /// Returns the tables of measurements that the user's files describe.
    pub(super) fn own_tables(&self, catalogue: &Catalogue) -> Result<Vec<Table>> {
        let mut tables = Vec::new();
        for path in &self.tables {
            let directory = path.parent().unwrap_or(Path::new("")).to_owned();
            let text = read(path)?;
            let file = path.display().to_string();
            tables.extend(table::parse(&file, &text, catalogue, |csv| read(&directory.join(csv)))?);
        }
        Ok(tables)
    }
}

/// The options that describe one system and its workload.
#[derive(Debug, Clone, Args)]
pub(crate) struct SystemArgs {
    /// Type of the storage servers (`skep plan catalogue`)
    #[arg(long, value_name = "NAME")]
    pub(super) server: String,
    /// Number of storage servers
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    servers: u32,
    /// Type of the attached disks [default: the built-in disks]
    #[arg(long, value_name = "NAME", requires = "disks")]
    disk: Option<String>,
    /// Number of attached disks of each server
    #[arg(long, value_name = "NUMBER", requires = "disk")]
    disks: Option<u32>,
    /// Limit that the provider sets for the rate of all disks of a server together, instead of the
    /// limit in the catalogue
    #[arg(long, value_name = "MB/s")]
    vm_limit_mb_s: Option<f64>,
    /// Limit that the provider sets for the operations per second of a server, instead of the limit
    /// in the catalogue
    #[arg(long, value_name = "NUMBER")]
    vm_limit_iops: Option<f64>,
    /// Redundancy of the disks below a target: none, raid1 or raid6 (8+2)
    #[arg(long, default_value = "none", value_name = "KIND")]
    redundancy: String,
    /// Type of the clients [default: the type of the servers]
    #[arg(long, value_name = "NAME")]
    client: Option<String>,
    /// Processes on each client
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    processes: u32,
    /// The operation: write, read, random-write, random-read, create or stat
    #[arg(long, default_value = "write", value_name = "NAME")]
    operation: String,
    /// Bytes of a transfer [default: 1MiB, and 4KiB for random operations]
    #[arg(long, value_name = "SIZE")]
    transfer: Option<String>,
    /// Size of the largest packet in the network
    #[arg(long, default_value_t = 1500, value_name = "BYTES")]
    mtu: u32,
    /// Number of targets over which each process's file is striped [default: all]
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["shared_targets", "allocation"])]
    file_targets: Option<u32>,
    /// All processes use one file, which is striped over this number of targets, equally many of
    /// each server
    #[arg(long, value_name = "NUMBER", conflicts_with = "allocation")]
    shared_targets: Option<u32>,
    /// All processes use one file with these numbers of targets on two servers, as in 1,3
    #[arg(long, value_name = "MIN,MAX")]
    allocation: Option<String>,
    /// Also calibrate with this result of `skep bench io --output json`, measured on this system
    #[arg(long, value_name = "FILE")]
    bench: Option<PathBuf>,
}

impl SystemArgs {
    /// Returns the system that the options describe.
    pub(super) fn system(&self, catalogue: &Catalogue) -> Result<System> {
        let disk = self.disk.as_deref().zip(self.disks);
        let mut system = System::of(catalogue, &self.server, self.servers, disk)?;
        let limits = [
            ("--vm-limit-mb-s", self.vm_limit_mb_s, &mut system.limit_mb_s),
            ("--vm-limit-iops", self.vm_limit_iops, &mut system.limit_iops),
        ];
        for (name, given, limit) in limits {
            let Some(given) = given else { continue };
            if !given.is_finite() || given <= 0.0 {
                return Err(invalid(format!("invalid {name} '{given}': expected more than 0")));
            }
            *limit = Some(given);
        }
        system.mtu = mtu(self.mtu)?;
        system.disks.redundancy = redundancy(&self.redundancy)?;
        Ok(system)
    }

    /// Returns the workload that the options describe, for `clients` client hosts.
    pub(super) fn workload(&self, catalogue: &Catalogue, clients: u32) -> Result<Workload> {
        let operation = Operation::named(&self.operation)?;
        let transfer_bytes = match &self.transfer {
            Some(text) => skep_types::size::parse(text).filter(|it| *it > 0).ok_or_else(|| {
                invalid(format!("invalid --transfer '{text}': expected a size such as 1MiB"))
            })?,
            None if operation.is_sequential() => 1 << 20,
            None => 4096,
        };
        if clients == 0 || self.processes == 0 {
            return Err(invalid("invalid number of clients or processes 0: expected at least 1"));
        }
        let client = self.client.as_ref().unwrap_or(&self.server);
        let spread = match (&self.allocation, self.shared_targets) {
            (Some(text), _) => table::allocation(text).ok_or_else(|| {
                invalid(format!("invalid --allocation '{text}': expected MIN,MAX, as in 1,3"))
            })?,
            (None, Some(targets)) => Spread::Shared { targets },
            (None, None) => Spread::Files { targets: self.file_targets },
        };
        Ok(Workload {
            operation,
            clients,
            processes: self.processes,
            client_gbit_s: catalogue.server(client)?.network_gbit_s,
            transfer_bytes,
            spread,
        })
    }

    /// Returns the calibration of the model by all measured tables, and by the benchmark result of
    /// this system if the user has named one.
    pub(super) fn calibration(
        &self,
        data: &DataArgs,
        catalogue: &Catalogue,
    ) -> Result<Calibration> {
        let mut tables = data.all_tables(catalogue)?;
        if let Some(path) = &self.bench {
            let workload = self.workload(catalogue, 1)?;
            let system = self.system(catalogue)?;
            let file = path.display().to_string();
            tables.push(bench::read(&file, &read(path)?, &system, workload.client_gbit_s)?);
        }
        Ok(Calibration::fit(&tables))
    }
}

/// Parses the name of a kind of redundancy.
pub(super) fn redundancy(word: &str) -> Result<Redundancy> {
    Redundancy::named(word).ok_or_else(|| {
        invalid(format!("invalid --redundancy '{word}': expected none, raid1 or raid6"))
    })
}

/// Returns the size of a network packet, or an error if the size is out of range.
pub(super) fn mtu(bytes: u32) -> Result<u32> {
    match bytes {
        576..=65_535 => Ok(bytes),
        _ => Err(invalid(format!("invalid --mtu {bytes}: expected 576 to 65535"))),
    }
}

/// Returns the error for an argument that is invalid.
pub(super) fn invalid(context: impl Into<String>) -> Error {
    Error::new(ErrorCode::InvalidArgument, context)
}

/// Returns the content of a text file. The error names the file.
pub(super) fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path)
        .map_err(|error| Error::from(error).within(format!("cannot read {}", path.display())))
}

/// Writes a text file. The error names the file.
pub(super) fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text)
        .map_err(|error| Error::from(error).within(format!("cannot write {}", path.display())))
}

/// Formats a rate in MB/s or operations per second. Only a rate below 100 has a decimal.
pub(super) fn rate(value: f64) -> String {
    if value < 100.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}

/// Formats the lower and the upper bound of a predicted rate.
pub(super) fn interval(prediction: &Prediction) -> String {
    format!("{} to {}", rate(prediction.low), rate(prediction.high))
}
