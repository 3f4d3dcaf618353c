//! The factors of a plan, with their names in reports.

use crate::plan::DataPer;
use crate::record::Settings;
use serde::Serialize;
use skep_types::size;

/// A factor that a plan can vary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "as plan::Condition")]
pub enum Factor {
    Servers,
    Count,
    /// Client hosts together with the processes on each host, in plans that list such pairs.
    Clients,
    Hosts,
    Applications,
    DataSize,
    Processes,
    Transfer,
    Files,
    Chooser,
    Targets,
    Access,
    Operation,
    Cache,
}

impl Factor {
    /// All factors. The axis of the figures is the first factor in this list that is a number and
    /// varies. If no number varies, the axis is the first factor that varies.
    pub const ALL: [Self; 14] = [
        Self::Servers,
        Self::Count,
        Self::Clients,
        Self::Hosts,
        Self::Applications,
        Self::DataSize,
        Self::Processes,
        Self::Transfer,
        Self::Files,
        Self::Chooser,
        Self::Targets,
        Self::Access,
        Self::Operation,
        Self::Cache,
    ];

    /// Returns the key of the factor in plans.
    pub fn word(self) -> &'static str {
        match self {
            Self::Servers => "servers",
            Self::Count => "count",
            Self::Clients => "clients",
            Self::Hosts => "hosts",
            Self::Applications => "applications",
            Self::DataSize => "data-size",
            Self::Processes => "processes",
            Self::Transfer => "transfer",
            Self::Files => "files",
            Self::Chooser => "chooser",
            Self::Targets => "targets",
            Self::Access => "access",
            Self::Operation => "operation",
            Self::Cache => "cache",
        }
    }

    /// Returns the label of an axis with the values of the factor.
    pub fn axis(self) -> &'static str {
        match self {
            Self::Servers => "servers",
            Self::Count => "targets of each file",
            Self::Clients => "client hosts x processes on each",
            Self::Hosts => "client hosts of each application",
            Self::Applications => "applications at the same time",
            Self::DataSize => "data size",
            Self::Processes => "processes on each host",
            Self::Transfer => "transfer size",
            Self::Files => "files of each process",
            Self::Chooser => "chooser",
            Self::Targets => "targets of the applications",
            Self::Access => "access",
            Self::Operation => "operation",
            Self::Cache => "page caches",
        }
    }

    /// Whether the values of the factor are numbers.
    pub fn is_number(self) -> bool {
        !matches!(
            self,
            Self::Chooser | Self::Targets | Self::Access | Self::Operation | Self::Cache
        )
    }

    /// Returns the value that the factor has in a condition, as text for people.
    pub fn text(self, settings: &Settings) -> String {
        let bytes = |bytes| {
            let (number, unit) = size::whole(bytes);
            format!("{number}{unit}")
        };
        let unsaid = || "default".to_owned();
        match self {
            Self::Servers => settings.servers.map_or("all".to_owned(), |it| it.to_string()),
            Self::Count => settings.count.map_or_else(unsaid, |count| count.to_string()),
            Self::Clients => format!("{}x{}", settings.hosts, settings.processes),
            Self::Hosts => settings.hosts.to_string(),
            Self::Applications => settings.applications.to_string(),
            Self::DataSize => match settings.data_per {
                DataPer::Application => bytes(settings.data_bytes),
                per => format!("{} per {}", bytes(settings.data_bytes), per.word()),
            },
            Self::Processes => settings.processes.to_string(),
            Self::Transfer => bytes(settings.transfer_bytes),
            Self::Files => settings.files.map_or_else(unsaid, |files| files.to_string()),
            Self::Chooser => settings.chooser.clone().unwrap_or_else(unsaid),
            Self::Targets => settings.targets.word().to_owned(),
            Self::Access => settings.access.word().to_owned(),
            Self::Operation => settings.operation.word().to_owned(),
            Self::Cache => settings.cache.word().to_owned(),
        }
    }

    /// Returns the value that the factor has in a condition, as a number for sorting. 0 if the
    /// value is not a number.
    pub fn number(self, settings: &Settings) -> u64 {
        match self {
            // `None` means all servers. Sort this value after each number of servers.
            Self::Servers => u64::from(settings.servers.unwrap_or(u32::MAX)),
            Self::Count => u64::from(settings.count.unwrap_or(0)),
            // Sort pairs by their total number of processes, and then by their number of hosts.
            Self::Clients => {
                (settings.processes_of_application() << 16) | u64::from(settings.hosts)
            }
            Self::Hosts => u64::from(settings.hosts),
            Self::Applications => u64::from(settings.applications),
            Self::DataSize => settings.data_bytes,
            Self::Processes => u64::from(settings.processes),
            Self::Transfer => settings.transfer_bytes,
            Self::Files => u64::from(settings.files.unwrap_or(0)),
            Self::Chooser | Self::Targets | Self::Access | Self::Operation | Self::Cache => 0,
        }
    }
}
