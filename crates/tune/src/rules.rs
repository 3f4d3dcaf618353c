//! The rules, as `data/rules.toml` has them.

use crate::invalid;
use serde::{Deserialize, Serialize};
use skep_types::Result;

/// The rules that are part of the program.
const BUILT_IN: &str = include_str!("../data/rules.toml");

/// All rules.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    /// Rules for the values of files.
    pub rule: Vec<Rule>,
    /// Rules for the options of mounts.
    pub mount: Vec<MountRule>,
    /// Commands that make file systems.
    pub make: Vec<MakeRule>,
}

/// A value that a file of the kernel should have.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Name of the rule.
    pub id: String,
    /// Rows of the acceptance list.
    pub rows: Vec<String>,
    /// The roles to which the rule applies.
    pub roles: Vec<Role>,
    /// The kinds of devices to which the rule applies, if the file belongs to a device.
    #[serde(default)]
    pub devices: Vec<DeviceKind>,
    /// Path of the file. The path may contain `{device}`, `{interface}` and `*`.
    pub file: String,
    /// The form of the value in the file.
    #[serde(default)]
    pub form: Form,
    /// How the value is compared.
    #[serde(default)]
    pub test: Test,
    /// The wanted value.
    pub want: String,
    /// The file that lists the values that this kernel supports.
    pub available_in: Option<String>,
    /// The rule applies only if the current value is in this list. An empty list means any value.
    #[serde(default)]
    pub only_if: Vec<String>,
    /// The rule applies only to hosts with at least this memory.
    #[serde(default)]
    pub min_memory_gib: u64,
    /// How the value survives a reboot.
    pub keep: Keep,
    /// The risk of a change. A rule with a risk is applied only on request. Empty means no risk.
    #[serde(default)]
    pub risk: String,
    /// The reason for the rule.
    pub why: String,
    /// The source of the value.
    pub source: String,
}

/// Options that a mount of a target should have.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MountRule {
    /// Name of the rule.
    pub id: String,
    /// Rows of the acceptance list.
    pub rows: Vec<String>,
    /// The roles to which the rule applies.
    pub roles: Vec<Role>,
    /// The types of file systems to which the rule applies.
    pub types: Vec<String>,
    /// Options that the mount needs.
    #[serde(default)]
    pub needs: Vec<String>,
    /// Options that the mount must not have.
    #[serde(default)]
    pub forbids: Vec<String>,
    /// The reason for the rule.
    pub why: String,
    /// The source of the options.
    pub source: String,
}

/// A command that makes a file system.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MakeRule {
    /// Name of the rule.
    pub id: String,
    /// Rows of the acceptance list.
    pub rows: Vec<String>,
    /// The roles to which the rule applies.
    pub roles: Vec<Role>,
    /// The command.
    pub command: String,
    /// The reason for the rule.
    pub why: String,
    /// The source of the options.
    pub source: String,
}

/// Roles of hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The host runs management.
    Management,
    /// The host has metadata targets.
    Metadata,
    /// The host has storage targets.
    Storage,
    /// The host mounts the file system.
    Client,
}

impl Role {
    /// All roles with their names.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Management, "management"),
        (Self::Metadata, "metadata"),
        (Self::Storage, "storage"),
        (Self::Client, "client"),
    ];

    /// Returns the role with this name.
    ///
    /// # Errors
    /// `InvalidArgument` with the names of all roles.
    pub fn named(word: &str) -> Result<Self> {
        let found = Self::ALL.iter().find(|(_, name)| *name == word).map(|(role, _)| *role);
        found.ok_or_else(|| {
            invalid(format!(
                "invalid role '{word}': expected management, metadata, storage or client"
            ))
        })
    }
}

/// Kinds of block devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// A rotating disk, or an array that the kernel takes for a rotating disk.
    Hdd,
    /// An SSD behind SATA or SAS.
    Ssd,
    /// An NVMe SSD.
    Nvme,
    /// A disk of a hypervisor.
    Virtual,
}

/// The form of a value in its file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// The value is the whole file.
    #[default]
    Value,
    /// The file lists all choices, with the chosen word in brackets, or it has only one word.
    Choice,
    /// The value is the last of three numbers in the file.
    Triple,
}

/// How a value is compared with the wanted value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Test {
    /// The value must be equal to the wanted value.
    #[default]
    Equal,
    /// The value must not be smaller than the wanted value.
    AtLeast,
    /// The value must not be larger than the wanted value.
    AtMost,
}

/// How a value survives a reboot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Keep {
    /// A file in `sysctl.d` sets the value at boot.
    Sysctl,
    /// A file in `tmpfiles.d` writes the value at boot.
    Tmpfiles,
    /// A rule of udev for block devices sets the value.
    UdevBlock,
    /// A rule of udev for network interfaces sets the value.
    UdevNet,
}

impl Rules {
    /// Returns the rules that are part of the program.
    ///
    /// # Panics
    /// Panics if the file is invalid, which a test prevents.
    pub fn built_in() -> Self {
        toml::from_str(BUILT_IN).expect("a test parses the built-in rules")
    }

    /// Checks that rules with these names exist.
    ///
    /// # Errors
    /// `NotFound` with the first unknown name, and the names of all rules.
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
    /// Returns the value in the text of a file.
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

    /// Returns the text that sets a value, in a file that has the text `before`.
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

    /// Whether a kernel with this file supports a value. Only choices list all values.
    pub(crate) fn supports(self, text: &str, value: &str) -> bool {
        let is_list = self == Self::Choice && text.contains('[');
        !is_list || text.split_whitespace().any(|word| word.trim_matches(['[', ']']) == value)
    }
}

impl Test {
    /// Whether a value is as wanted.
    pub(crate) fn passes(self, value: &str, want: &str) -> bool {
        let numbers = value.parse::<u64>().ok().zip(want.parse::<u64>().ok());
        match (self, numbers) {
            (Self::Equal, _) | (_, None) => value == want,
            (Self::AtLeast, Some((value, want))) => value >= want,
            (Self::AtMost, Some((value, want))) => value <= want,
        }
    }

    /// Returns the words that stand before the wanted value in messages.
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
    fn every_rule_has_reason_source_and_role() {
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
