//! The rules in the file `data/rules.toml`, and their parts.

use crate::invalid;
use serde::{Deserialize, Serialize};
use skep_types::Result;

/// Text of the file with the rules, which is part of the program.
const BUILT_IN: &str = include_str!("../data/rules.toml");

/// All rules, in the order of the file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    /// Rules about the values in kernel files.
    pub rule: Vec<Rule>,
    /// Rules about the options of mounts.
    pub mount: Vec<MountRule>,
    /// Rules that recommend commands that create file systems.
    pub make: Vec<MakeRule>,
}

/// A rule about the value in a kernel file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Unique name of the rule.
    pub id: String,
    /// Ids of the published settings that the rule covers, such as `A059`. The letter stands for
    /// the publication: A for Alces 2016, C for Dell 2020, D for AzureCAT 2017.
    pub rows: Vec<String>,
    /// The roles to which the rule applies. A host needs at least one of them.
    pub roles: Vec<Role>,
    /// The kinds of block devices to which the rule applies, if the path of the file contains
    /// `{device}`.
    #[serde(default)]
    pub devices: Vec<DeviceKind>,
    /// Path of the kernel file. `{device}` stands for each block device of a target, `{interface}`
    /// for each network interface, and `*` for any text within a file name.
    pub file: String,
    /// Where the value is in the text of the file.
    #[serde(default)]
    pub form: Form,
    /// How the current value is compared with the wanted value.
    #[serde(default)]
    pub test: Test,
    /// The wanted value.
    pub want: String,
    /// Path of the kernel file that lists the values that the kernel supports. The rule applies
    /// only if the list contains the wanted value. `None` means that the rule needs no such list.
    pub available_in: Option<String>,
    /// If this list is not empty, the rule applies only if the current value is in the list, or is
    /// the wanted value.
    #[serde(default)]
    pub only_if: Vec<String>,
    /// The rule applies only to hosts with at least this number of GiB of memory. Zero means any
    /// host.
    #[serde(default)]
    pub min_memory_gib: u64,
    /// How the wanted value is set again after a reboot.
    pub keep: Keep,
    /// The risk of the change. Empty means no risk. `apply` changes a value with a risk only if the
    /// user names the rule.
    #[serde(default)]
    pub risk: String,
    /// The reason for the wanted value.
    pub why: String,
    /// The publications on which the wanted value is based.
    pub source: String,
}

/// A rule about the mount options for the file systems of targets.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MountRule {
    /// Unique name of the rule.
    pub id: String,
    /// Ids of the published settings that the rule covers, such as `A068`. The letters are as in
    /// [`Rule::rows`].
    pub rows: Vec<String>,
    /// The roles to which the rule applies. A host needs at least one of them.
    pub roles: Vec<Role>,
    /// The types of file systems to which the rule applies, such as `xfs`.
    pub types: Vec<String>,
    /// Options that the mount must have.
    #[serde(default)]
    pub needs: Vec<String>,
    /// Options that the mount must not have.
    #[serde(default)]
    pub forbids: Vec<String>,
    /// The reason for the options in `needs` and `forbids`.
    pub why: String,
    /// The publications on which the options in `needs` and `forbids` are based.
    pub source: String,
}

/// A rule that recommends a command that creates a file system for targets.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MakeRule {
    /// Unique name of the rule.
    pub id: String,
    /// Ids of the published settings that the rule covers, such as `A066`. The letters are as in
    /// [`Rule::rows`].
    pub rows: Vec<String>,
    /// The roles to which the rule applies. A host needs at least one of them.
    pub roles: Vec<Role>,
    /// The recommended command.
    pub command: String,
    /// The reason for the command's options.
    pub why: String,
    /// The publications on which the options are based.
    pub source: String,
}

/// The role of a host in the cluster. A host may have several roles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The host runs the management service.
    Management,
    /// The host has metadata targets.
    Metadata,
    /// The host has storage targets.
    Storage,
    /// The host mounts the cluster's file system.
    Client,
}

impl Role {
    /// All roles, each with its name on the command line.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Management, "management"),
        (Self::Metadata, "metadata"),
        (Self::Storage, "storage"),
        (Self::Client, "client"),
    ];

    /// Returns the role with the name `word`.
    ///
    /// # Errors
    /// Returns `InvalidArgument` with the names of all roles if no role has this name.
    pub fn named(word: &str) -> Result<Self> {
        let found = Self::ALL.iter().find(|(_, name)| *name == word).map(|(role, _)| *role);
        found.ok_or_else(|| {
            invalid(format!(
                "invalid role '{word}': expected management, metadata, storage or client"
            ))
        })
    }
}

/// The kind of a block device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// A rotating disk, or a disk array that the kernel reports as rotating.
    Hdd,
    /// An SSD that is attached by SATA or SAS.
    Ssd,
    /// An NVMe SSD.
    Nvme,
    /// A virtual disk that a hypervisor provides.
    Virtual,
    /// A device that is made of other block devices, such as a RAID of Linux or a logical volume.
    /// Such a device has no scheduler and no queue of requests, so the kernel refuses values for
    /// both. The read-ahead of such a device counts, and not that of the disks below it.
    Stacked,
}

/// Where the value is in the text of a kernel file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// The value is the whole text of the file.
    #[default]
    Value,
    /// The file lists all possible words. The current word is in brackets. If the text has no
    /// brackets, the whole text is the value.
    Choice,
    /// The value is the last of the three numbers in the file.
    Triple,
}

/// How the current value is compared with the wanted value. Values that are not numbers must be
/// equal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Test {
    /// The current value must be equal to the wanted value.
    #[default]
    Equal,
    /// The current value must be at least the wanted value.
    AtLeast,
    /// The current value must be at most the wanted value.
    AtMost,
}

/// How a value is set again after a reboot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Keep {
    /// A line in a file of `sysctl.d` sets the value at boot.
    Sysctl,
    /// A line in a file of `tmpfiles.d` sets the value at boot.
    Tmpfiles,
    /// A udev rule sets the value when the block device appears.
    UdevBlock,
    /// A udev rule sets the value when the network interface appears.
    UdevNet,
}

impl Rules {
    /// Returns the rules that are part of the program.
    ///
    /// # Panics
    /// Panics if the text of the rules is invalid. A test ensures that it is valid.
    pub fn built_in() -> Self {
        toml::from_str(BUILT_IN).expect("a test parses the built-in rules")
    }

    /// Checks that each of these names is the name of a rule about a kernel file.
    ///
    /// # Errors
    /// Returns `NotFound` with the first unknown name and the names of all these rules.
    pub fn check_names(&self, names: &[String]) -> Result<()> {
        let Some(unknown) = names.iter().find(|name| self.rule.iter().all(|it| it.id != **name))
        else {
            return Ok(());
        };
        let known: Vec<&str> = self.rule.iter().map(|it| it.id.as_str()).collect();
        Err(skep_types::Error::new(
            skep_types::ErrorCode::NotFound,
            format!("cannot find rule '{unknown}': the rules are {}", known.join(", ")),
        ))
    }
}

impl Form {
    /// Returns the value that the text of a file contains.
    pub(crate) fn value(self, text: &str) -> String {
        let text = text.trim();
        match self {
            Self::Value => text.to_owned(),
            Self::Choice => {
                let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
                chosen.map_or(text, |(word, _)| word).to_owned()
            }
            Self::Triple => text.split_whitespace().last().unwrap_or_default().to_owned(),
        }
    }

    /// Returns the text to write to a file so that its value becomes `value`. `before` is the
    /// current text of the file.
    pub(crate) fn text(self, before: &str, value: &str) -> String {
        match self {
            Self::Value | Self::Choice => value.to_owned(),
            Self::Triple => {
                let mut numbers: Vec<&str> = before.split_whitespace().collect();
                numbers.pop();
                numbers.push(value);
                numbers.join(" ")
            }
        }
    }

    /// Whether the kernel supports a value, according to the text of the value's file. Only files
    /// of the form [`Self::Choice`] list the supported values. For files of other forms, the result
    /// is true.
    pub(crate) fn supports(self, text: &str, value: &str) -> bool {
        let is_list = self == Self::Choice && text.contains('[');
        !is_list || text.split_whitespace().any(|word| word.trim_matches(['[', ']']) == value)
    }
}

impl Test {
    /// Whether the current value satisfies a rule with the recommended value `want`.
    pub(crate) fn passes(self, value: &str, want: &str) -> bool {
        let numbers = value.parse::<u64>().ok().zip(want.parse::<u64>().ok());
        match (self, numbers) {
            (Self::Equal, _) | (_, None) => value == want,
            (Self::AtLeast, Some((value, want))) => value >= want,
            (Self::AtMost, Some((value, want))) => value <= want,
        }
    }

    /// Returns the words that messages put before the wanted value, such as `at least`.
    pub fn words(self) -> &'static str {
        match self {
            Self::Equal => "",
            Self::AtLeast => "at least ",
            Self::AtMost => "at most ",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tuning_rule_has_a_reason_a_source_and_a_role() {
        let rules = Rules::built_in();
        assert!(rules.rule.len() > 20);
        for it in &rules.rule {
            assert!(
                !it.why.is_empty() && !it.source.is_empty() && !it.roles.is_empty(),
                "{}",
                it.id
            );
            assert_eq!(it.file.contains("{device}"), !it.devices.is_empty(), "{}", it.id);
        }
        let rows: Vec<&String> = rules
            .rule
            .iter()
            .flat_map(|it| &it.rows)
            .chain(rules.mount.iter().flat_map(|it| &it.rows))
            .chain(rules.make.iter().flat_map(|it| &it.rows))
            .collect();
        for row in [
            "A059", "A060", "A062", "A064", "A066", "A067", "A068", "A069", "A070", "C042", "C043",
            "C044", "C049", "C051", "D062", "D063", "D140", "D148",
        ] {
            assert!(rows.iter().any(|it| *it == row), "{row}");
        }
    }

    #[test]
    fn kernel_values_are_parsed_and_formatted_in_each_form() {
        assert_eq!(Form::Choice.value("always [madvise] never\n"), "madvise");
        assert_eq!(Form::Triple.value("4096\t131072\t6291456\n"), "6291456");
        assert_eq!(Form::Triple.text("4096\t131072\t6291456\n", "9"), "4096 131072 9");
        assert!(!Form::Choice.supports("[none] mq-deadline", "bfq"));
        assert!(Form::Choice.supports("[none] mq-deadline", "none"));
        assert!(Test::AtLeast.passes("10", "9") && !Test::AtMost.passes("10", "9"));
        assert!(Test::Equal.passes("a", "a") && !Test::AtLeast.passes("a", "9"));
    }
}
