//! The description of a lab. A description comes from a file, is a predefined shape, or is built
//! from the options of the command.

use crate::limits::{
    MAX_DELAY, MAX_HOSTS, MAX_METADATA_SERVERS, MAX_METADATA_TARGETS, MAX_NAME, MAX_TARGETS,
};
use crate::rate::Rate;
use serde::{Deserialize, Serialize};
use skep_types::Chooser;
use skep_types::{Error, ErrorCode, Result};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Default name of a lab, which is used if the user chooses none.
pub const DEFAULT_NAME: &str = "lab";
/// Maximum standard deviation of a target's rate, in percent. With a higher value, a target could
/// have a tenth of its rate for seconds, like a broken target.
const MAX_VARIABILITY: u32 = 50;

/// A percentage, written as `10%`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Percent(pub u32);

impl From<Percent> for String {
    fn from(percent: Percent) -> Self {
        format!("{}%", percent.0)
    }
}

impl TryFrom<String> for Percent {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl std::str::FromStr for Percent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.trim().strip_suffix('%').map(|number| number.trim().parse::<u32>());
        match number {
            Some(Ok(number)) => Ok(Self(number)),
            _ => Err(format!("invalid share '{text}': expected a number of percent, as in 10%")),
        }
    }
}

/// A duration, written as `1ms` or `250us`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Delay(pub Duration);

impl From<Delay> for String {
    fn from(delay: Delay) -> Self {
        format!("{}us", delay.0.as_micros())
    }
}

impl TryFrom<String> for Delay {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl std::str::FromStr for Delay {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let factor = match text[end..].trim() {
            "us" => Some(1),
            "ms" => Some(1_000),
            _ => None,
        };
        let number = text[..end].parse::<u64>().ok();
        number
            .zip(factor)
            .and_then(|(number, factor)| number.checked_mul(factor))
            .map(|micros| Self(Duration::from_micros(micros)))
            .ok_or_else(|| {
                format!(
                    "invalid delay '{text}': expected a number with ms or us, as in \
                                    1ms or 250us"
                )
            })
    }
}

/// The numbers of hosts and targets of a lab, the rates of links and targets, and the other
/// properties of the lab.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Description {
    /// Number of server hosts, each with one storage service.
    pub servers: u16,
    /// Number of storage targets on each server.
    pub targets: u16,
    /// Number of client hosts, each with one mount of the cluster.
    pub clients: u16,
    /// Number of metadata hosts, each with one metadata service. The first metadata host also runs
    /// the management service.
    pub metadata_servers: u16,
    /// Number of metadata targets on each metadata host.
    pub metadata_targets: u16,
    /// Maximum rate of each metadata host's link, in each direction. `None` means no limit.
    pub metadata_link: Option<Rate>,
    /// Maximum rate of each server's link, in each direction. `None` means no limit.
    pub link: Option<Rate>,
    /// Maximum rate of each client's link, in each direction. `None` means no limit.
    pub client_link: Option<Rate>,
    /// Maximum rate of each storage target, for reads and writes together. `None` means no limit.
    pub target_rate: Option<Rate>,
    /// Standard deviation of the rate of a storage target over time, in percent of the rate.
    pub target_variability: Option<Percent>,
    /// Seed of the random numbers for the variation of the targets' rates.
    pub seed: u64,
    /// Delay of a packet from one host to another host. `None` means that no delay is added.
    pub delay: Option<Delay>,
    /// Name of the policy that chooses the storage targets of new files. `None` means Skep's
    /// default policy.
    pub chooser: Option<String>,
    /// Whether the data of the targets is in memory. With targets in memory, the disk of this
    /// machine cannot be the bottleneck.
    pub in_memory: bool,
    /// Directory for the data of the lab. `None` means a directory below /var/tmp/skep-lab.
    pub directory: Option<PathBuf>,
}

impl Default for Description {
    fn default() -> Self {
        Self {
            servers: 2,
            targets: 2,
            clients: 2,
            metadata_servers: 1,
            metadata_targets: 1,
            metadata_link: None,
            link: None,
            client_link: None,
            target_rate: None,
            target_variability: None,
            seed: 0,
            delay: None,
            chooser: None,
            in_memory: false,
            directory: None,
        }
    }
}

impl Description {
    /// Parses a description in TOML format.
    ///
    /// # Errors
    /// Returns `Configuration` with the invalid line of the text.
    pub fn parse(text: &str) -> Result<Self> {
        toml::from_str(text)
            .map_err(|error| Error::new(ErrorCode::Configuration, error.to_string()))
    }

    /// Reads a description from a file in TOML format.
    ///
    /// # Errors
    /// Returns `Configuration` with the name of the file. If the file can be read, the error also
    /// has the invalid line.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            Error::new(ErrorCode::Configuration, error.to_string()).within(path.display())
        })?;
        Self::parse(&text).map_err(|error| error.within(path.display()))
    }

    /// Returns texts about all problems of the description. The list is empty if the description is
    /// valid.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let counts = [
            ("servers", self.servers, MAX_HOSTS),
            ("targets", self.targets, MAX_TARGETS),
            ("clients", self.clients, MAX_HOSTS),
            ("metadata servers", self.metadata_servers, MAX_METADATA_SERVERS),
            ("metadata targets", self.metadata_targets, MAX_METADATA_TARGETS),
        ];
        for (what, count, most) in counts {
            if count == 0 || count > most {
                problems.push(format!("invalid number of {what} {count}: expected 1 to {most}"));
            }
        }
        match self.target_variability {
            Some(Percent(percent)) if percent > MAX_VARIABILITY => {
                problems.push(format!("invalid variability {percent}%: expected 0% to 50%"));
            }
            Some(_) if self.target_rate.is_none() => problems.push(
                "--target-variability has no effect without a rate: also use --target-rate".into(),
            ),
            _ => {}
        }
        if let Some(Delay(delay)) = self.delay.filter(|delay| delay.0 > MAX_DELAY) {
            problems.push(format!("invalid delay {delay:?}: expected at most {MAX_DELAY:?}"));
        }
        if let Some(word) = &self.chooser
            && Chooser::named(word).is_none()
        {
            let known = Chooser::ALL.map(|(_, word)| word).join(", ");
            problems.push(format!("unknown chooser '{word}': expected one of {known}"));
        }
        if let Some(directory) = &self.directory
            && !directory.is_absolute()
        {
            problems.push(format!(
                "invalid directory {}: expected an absolute path",
                directory.display()
            ));
        }
        problems
    }

    /// Returns the maximum number of bytes per second that all clients and servers can transfer
    /// together. The total rate is the smallest of three sums: the rates of all servers' links, of
    /// all storage targets, and of all clients' links. `None` means that none of these rates has a
    /// limit.
    pub fn total_rate(&self) -> Option<u64> {
        let of = |rate: Option<Rate>, count: u64| {
            rate.map(|rate| rate.bytes_per_second().saturating_mul(count))
        };
        let servers = u64::from(self.servers);
        let rates = [
            of(self.link, servers),
            of(self.target_rate, servers * u64::from(self.targets)),
            of(self.client_link, u64::from(self.clients)),
        ];
        rates.into_iter().flatten().min()
    }
}

/// Checks the name of a lab. A name must not contain dashes, because longer names contain the name
/// of the lab and use dashes as separators.
///
/// # Errors
/// Returns `Configuration` if the name is invalid. The error contains the rules for names.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let is_good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(is_good) {
        let what = format!(
            "invalid name of a lab '{name}': expected up to {MAX_NAME} letters a to z and digits"
        );
        return Err(Error::new(ErrorCode::Configuration, what));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lab_file_overrides_defaults() {
        let text = "servers = 3\nlink = \"400Mbit\"\ntarget_rate = \"30MB/s\"\n\
                    target_variability = \"10%\"\ndelay = \"1ms\"\n";
        let read = Description::parse(text).unwrap();
        assert_eq!((read.servers, read.targets, read.clients), (3, 2, 2));
        assert_eq!(read.link.unwrap().bytes_per_second(), 50_000_000);
        assert_eq!(read.target_variability, Some(Percent(10)));
        assert_eq!(read.delay, Some(Delay(Duration::from_millis(1))));
        assert_eq!(read.problems(), Vec::<String>::new());
        let again = toml::to_string(&read).unwrap();
        assert_eq!(Description::parse(&again).unwrap(), read);
    }

    #[test]
    fn error_for_an_invalid_lab_value_names_valid_values() {
        let wrong = |text: &str| Description::parse(text).unwrap_err().context().to_owned();
        assert!(wrong("sevrers = 2").contains("unknown field `sevrers`"));
        assert!(wrong("link = \"fast\"").contains("400Mbit"));
        assert!(wrong("target_variability = \"10\"").contains("10%"));
        assert!(wrong("delay = \"1\"").contains("250us"));
        let problems = |change: fn(&mut Description)| {
            let mut description = Description::default();
            change(&mut description);
            description.problems().join("\n")
        };
        assert!(problems(|it| it.servers = 0).contains("number of servers 0: expected 1 to 250"));
        assert!(problems(|it| it.clients = 300).contains("clients 300"));
        assert!(problems(|it| it.metadata_servers = 65).contains("servers 65: expected 1 to 64"));
        assert!(problems(|it| it.target_variability = Some(Percent(5))).contains("--target-rate"));
        assert!(problems(|it| it.chooser = Some("best".into())).contains("balanced, randomized"));
        assert!(problems(|it| it.directory = Some("data".into())).contains("an absolute path"));
        assert!(
            problems(|it| {
                it.target_rate = Some("30MB/s".parse().unwrap());
                it.target_variability = Some(Percent(60));
                it.targets = 0;
                it.delay = Some(Delay(Duration::from_secs(1)));
            })
            .lines()
            .count()
                == 3
        );
    }

    #[test]
    fn total_rate_is_set_by_the_lowest_limit() {
        let rate = |text: &str| Some(text.parse().unwrap());
        let mut lab = Description { servers: 2, targets: 4, clients: 8, ..Description::default() };
        assert_eq!(lab.total_rate(), None);
        lab.link = rate("400Mbit");
        assert_eq!(lab.total_rate(), Some(100_000_000));
        lab.target_rate = rate("10MB/s");
        assert_eq!(lab.total_rate(), Some(80_000_000));
        lab.client_link = rate("40Mbit");
        assert_eq!(lab.total_rate(), Some(40_000_000));
    }

    #[test]
    fn lab_names_with_dashes_are_refused() {
        for name in ["lab", "a", "run7", "0123456789abcdef"] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        for name in ["", "a-b", "A", "../x", "0123456789abcdefg", "a b"] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
