//! The catalogue: types of servers and disks with their limits and prices, which are read from data
//! files.
//!
//! The program contains the files in `data/catalogue`. Users can add their own files. An entry
//! replaces an earlier entry with the same name.

use crate::invalid;
use serde::{Deserialize, Serialize};
use skep_types::Result;

/// The catalogue files that are compiled into the program: name and content of each.
const BUILT_IN: [(&str, &str); 4] = [
    ("aws.toml", include_str!("../data/catalogue/aws.toml")),
    ("aws-2024.toml", include_str!("../data/catalogue/aws-2024.toml")),
    ("azure.toml", include_str!("../data/catalogue/azure.toml")),
    ("own.toml", include_str!("../data/catalogue/own.toml")),
];

/// The types of servers and disks that plans can use.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Catalogue {
    /// Types of servers and clients.
    pub servers: Vec<ServerType>,
    /// Types of disks.
    pub disks: Vec<DiskType>,
}

/// The content of a catalogue file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    provider: String,
    place: String,
    as_of: String,
    source: String,
    #[serde(default)]
    server: Vec<ServerType>,
    #[serde(default)]
    disk: Vec<DiskType>,
}

/// Where the numbers of an entry in the catalogue come from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Origin {
    /// Provider, such as `aws`, `azure` or `own`.
    pub provider: String,
    /// Region for which the price is valid.
    pub place: String,
    /// Date on which the price was valid.
    pub as_of: String,
}

/// A type of server: an instance type of a cloud provider, or a machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerType {
    /// Name of the server type.
    pub name: String,
    /// Number of processor cores, as the operating system counts them.
    pub cores: u32,
    /// Memory of the server, in GiB.
    pub memory_gib: f64,
    /// Rate of all network interfaces of the server together.
    pub network_gbit_s: f64,
    /// Name of the type of the built-in disks. `None` means that the server has no built-in disks.
    pub disk: Option<String>,
    /// Number of built-in disks.
    #[serde(default)]
    pub disks: u32,
    /// Maximum number of disks that can be attached to the server.
    #[serde(default)]
    pub max_data_disks: u32,
    /// Limit that the provider sets for the data rate of all disks of a server together.
    pub disk_limit_mb_s: Option<f64>,
    /// Limit that the provider sets for the operations per second of all disks of a server
    /// together.
    pub disk_limit_iops: Option<f64>,
    /// Price of the server, including its built-in disks. `None` means that the price is unknown.
    pub usd_per_hour: Option<f64>,
    /// Source of the numbers. Empty means the source of the whole file.
    #[serde(default)]
    pub source: String,
    /// Provider, place and date, which the head of the file names.
    #[serde(skip_deserializing)]
    pub origin: Origin,
}

/// A type of disk, or of a disk array that the server uses as one disk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskType {
    /// Name of the disk type.
    pub name: String,
    /// Kind of the disk.
    pub kind: DiskKind,
    /// Capacity of the disk. For an array, the capacity that its redundancy leaves.
    pub capacity_gb: f64,
    /// Rate of sequential reads.
    pub read_mb_s: f64,
    /// Rate of sequential writes.
    pub write_mb_s: f64,
    /// Number of random reads of 4 KiB per second.
    pub read_iops: f64,
    /// Number of random writes of 4 KiB per second.
    pub write_iops: f64,
    /// Price of a disk that is attached. `None` means that the price is unknown, or that the price
    /// of the server includes it.
    pub usd_per_hour: Option<f64>,
    /// Source of the numbers. Empty means the source of the whole file.
    #[serde(default)]
    pub source: String,
    /// Provider, place and date, which the head of the file names.
    #[serde(skip_deserializing)]
    pub origin: Origin,
}

/// The kinds of disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskKind {
    /// One hard disk.
    Hdd,
    /// A SATA or SAS SSD.
    Ssd,
    /// An NVMe SSD.
    Nvme,
    /// A network disk of a cloud provider.
    Network,
    /// An array with its own redundancy.
    Array,
}

impl Catalogue {
    /// Returns the catalogue that is compiled into the program.
    ///
    /// # Panics
    /// Panics if a built-in file is invalid. A test ensures that all built-in files are valid.
    pub fn built_in() -> Self {
        let mut catalogue = Self::default();
        for (name, text) in BUILT_IN {
            catalogue.add(name, text).expect("a test parses the built-in files");
        }
        catalogue
    }

    /// Adds the entries of a file. The entries of the file replace earlier entries with the same
    /// names.
    ///
    /// # Errors
    /// `InvalidArgument`, with the name of the file, the entry and the reason. The catalogue is
    /// then unchanged.
    pub fn add(&mut self, file: &str, text: &str) -> Result<()> {
        let read: File = toml::from_str(text).map_err(|error| {
            invalid(format!(
                "cannot read catalogue {file}: {}; compare this file with the example that `skep \
                 plan catalogue --print-file own.toml` writes",
                error.to_string().trim()
            ))
        })?;
        let origin = Origin { provider: read.provider, place: read.place, as_of: read.as_of };
        let mut next = self.clone();
        for disk in read.disk {
            let source = if disk.source.is_empty() { read.source.clone() } else { disk.source };
            next.disks.retain(|it| it.name != disk.name);
            next.disks.push(DiskType { source, origin: origin.clone(), ..disk });
        }
        for server in read.server {
            let source = if server.source.is_empty() { read.source.clone() } else { server.source };
            next.servers.retain(|it| it.name != server.name);
            next.servers.push(ServerType { source, origin: origin.clone(), ..server });
        }
        let faults = next.faults();
        if let Some(first) = faults.first() {
            let more = match faults.len() {
                1 => String::new(),
                count => format!(" (and {} more)", count - 1),
            };
            return Err(invalid(format!("cannot use catalogue {file}: {first}{more}")));
        }
        *self = next;
        Ok(())
    }

    /// Returns a description for each entry of the catalogue that is invalid.
    fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let mut check = |is_valid: bool, name: &str, what: &str| {
            if !is_valid {
                faults.push(format!("{name}: {what}"));
            }
        };
        for it in &self.disks {
            let rates = [it.read_mb_s, it.write_mb_s, it.read_iops, it.write_iops];
            let is_valid = rates.iter().all(|rate| rate.is_finite() && *rate > 0.0);
            check(is_valid, &it.name, "each rate of a disk must be greater than 0");
            check(it.capacity_gb > 0.0, &it.name, "capacity_gb must be greater than 0");
            check(is_price(it.usd_per_hour), &it.name, "usd_per_hour must not be negative");
        }
        for it in &self.servers {
            check(it.network_gbit_s > 0.0, &it.name, "network_gbit_s must be greater than 0");
            check(it.cores > 0, &it.name, "cores must be greater than 0");
            check(is_price(it.usd_per_hour), &it.name, "usd_per_hour must not be negative");
            check(is_limit(it.disk_limit_mb_s), &it.name, "disk_limit_mb_s must be greater than 0");
            check(is_limit(it.disk_limit_iops), &it.name, "disk_limit_iops must be greater than 0");
            check(
                it.disks == 0 || it.disk.is_some(),
                &it.name,
                "the server has disks, so `disk` must name their type",
            );
            if let Some(disk) = &it.disk {
                check(it.disks > 0, &it.name, "disks must be greater than 0");
                let is_known = self.disks.iter().any(|known| known.name == *disk);
                check(is_known, &it.name, &format!("there is no disk type '{disk}'"));
            }
        }
        faults
    }

    /// Returns the server type with the name `name`.
    ///
    /// # Errors
    /// `NotFound`. The error lists the names of all server types.
    pub fn server(&self, name: &str) -> Result<&ServerType> {
        let found = self.servers.iter().find(|it| it.name == name);
        found.ok_or_else(|| unknown("server", name, self.servers.iter().map(|it| &*it.name)))
    }

    /// Returns the disk type with the name `name`.
    ///
    /// # Errors
    /// `NotFound`. The error lists the names of all disk types.
    pub fn disk(&self, name: &str) -> Result<&DiskType> {
        let found = self.disks.iter().find(|it| it.name == name);
        found.ok_or_else(|| unknown("disk", name, self.disks.iter().map(|it| &*it.name)))
    }
}

/// Returns the text of a built-in catalogue file.
///
/// # Errors
/// `NotFound`. The error lists the names of all built-in files.
pub fn built_in_file(name: &str) -> Result<&'static str> {
    let found = BUILT_IN.iter().find(|(file, _)| *file == name);
    let found = found.map(|(_, text)| *text);
    found.ok_or_else(|| unknown("catalogue file", name, BUILT_IN.iter().map(|(file, _)| *file)))
}

fn unknown<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a str>) -> skep_types::Error {
    let known: Vec<_> = known.collect();
    skep_types::Error::new(
        skep_types::ErrorCode::NotFound,
        format!(
            "cannot find {what} '{name}': the catalogue has {}; add your own types with --catalogue",
            known.join(", ")
        ),
    )
}

fn is_price(price: Option<f64>) -> bool {
    price.is_none_or(|it| it.is_finite() && it >= 0.0)
}

fn is_limit(limit: Option<f64>) -> bool {
    limit.is_none_or(|it| it.is_finite() && it > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "provider='own'\nplace='x'\nas_of='2026'\nsource='me'\n";

    #[test]
    fn built_in_files_are_valid_and_name_their_source() {
        let catalogue = Catalogue::built_in();
        assert!(catalogue.servers.len() > 15 && catalogue.disks.len() > 8);
        assert!(catalogue.servers.iter().all(|it| !it.source.is_empty()));
        for provider in ["aws", "azure", "own"] {
            assert!(catalogue.servers.iter().any(|it| it.origin.provider == provider));
        }
    }

    #[test]
    fn a_later_entry_replaces_an_entry_with_the_same_name() {
        let mut catalogue = Catalogue::built_in();
        let count = catalogue.servers.len();
        let text = "[[server]]\nname='c3.large'\ncores=1\nmemory_gib=1\nnetwork_gbit_s=1\n";
        catalogue.add("mine.toml", &format!("{HEAD}{text}")).unwrap();
        assert_eq!(
            (catalogue.server("c3.large").unwrap().cores, catalogue.servers.len()),
            (1, count)
        );
    }

    #[test]
    fn invalid_catalogue_file_is_refused_and_changes_nothing() {
        let server = "[[server]]\nname='a'\ncores=1\nmemory_gib=1\n";
        for (text, expected) in [
            ("provider='x'", "missing field"),
            (&format!("{HEAD}{server}network_gbit_s=0"), "a: network_gbit_s"),
            (&format!("{HEAD}{server}network_gbit_s=1\ndisk='none'\ndisks=1"), "disk type 'none'"),
            (&format!("{HEAD}{server}network_gbit_s=1\nusd_per_hour=-1"), "negative"),
            (&format!("{HEAD}{server}network_gbit_s=1\ncolour='red'"), "colour"),
        ] {
            let mut catalogue = Catalogue::built_in();
            let error = catalogue.add("mine.toml", text).unwrap_err();
            assert!(error.context().contains(expected), "{}", error.context());
            assert!(error.context().contains("mine.toml"));
            assert_eq!(catalogue, Catalogue::built_in());
        }
        let error = Catalogue::built_in().server("c9.huge").unwrap_err();
        assert!(error.context().contains("i2.8xlarge"), "{}", error.context());
    }
}
