//! Parses the configuration files of the AWS CLI, `credentials` and `config`. This module does no
//! I/O.

use std::collections::BTreeMap;

/// The settings of each profile, by the name of the profile.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Profiles(BTreeMap<String, BTreeMap<String, String>>);

impl Profiles {
    /// Parses a file. In `config`, a section has a name such as `profile NAME`.
    pub(crate) fn parse(text: &str) -> Self {
        let mut all = BTreeMap::<String, BTreeMap<String, String>>::new();
        let mut section = None;
        for line in text.lines() {
            let trimmed = line.trim();
            // An indented line belongs to a nested value, and Skep uses no nested values.
            if trimmed.is_empty()
                || trimmed.starts_with(['#', ';'])
                || line.starts_with([' ', '\t'])
            {
                continue;
            }
            if let Some(name) = trimmed.strip_prefix('[') {
                let name = name.split(']').next().unwrap_or_default().trim();
                section = Some(name.strip_prefix("profile ").unwrap_or(name).trim().to_owned());
            } else if let (Some(name), Some((key, value))) = (&section, trimmed.split_once('=')) {
                let settings = all.entry(name.clone()).or_default();
                settings.insert(key.trim().to_ascii_lowercase(), value.trim().to_owned());
            }
        }
        Self(all)
    }

    /// Returns a setting of a profile. An empty value counts as missing.
    pub(crate) fn get(&self, profile: &str, name: &str) -> Option<&str> {
        let value = self.0.get(profile)?.get(name)?;
        Some(value.as_str()).filter(|it| !it.is_empty())
    }

    /// Whether the file contains a profile.
    pub(crate) fn has(&self, profile: &str) -> bool {
        self.0.contains_key(profile)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_a_profile_are_parsed() {
        let text = "# keys\n[default]\naws_access_key_id = A=\n; x\n[profile work]\nregion=eu-west-1\n\
                    s3 =\n    addressing_style = path\nAWS_Secret_Access_Key= b c \n[empty]\n";
        let found = Profiles::parse(text);
        assert_eq!(found.get("default", "aws_access_key_id"), Some("A="));
        assert_eq!(found.get("work", "region"), Some("eu-west-1"));
        assert_eq!(found.get("work", "aws_secret_access_key"), Some("b c"));
        assert_eq!(found.get("work", "addressing_style"), None);
        assert_eq!(found.get("work", "s3"), None);
        assert!(found.has("work") && !found.has("empty") && !found.has("profile work"));
    }
}
