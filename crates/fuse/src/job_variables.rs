//! The names of the environment variables in which a mount looks for the id of a batch job.

use crate::limits::{MAX_JOB_VARIABLE_BYTES, MAX_JOB_VARIABLES};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The variables of the usual batch systems. Slurm sets the first, and PBS and its descendants set
/// the second.
const USUAL: [&str; 2] = ["SLURM_JOB_ID", "PBS_JOBID"];
/// Character between two names in an option.
const SEPARATOR: char = ':';

/// Names of environment variables that contain the id of a batch job, in the order of preference.
///
/// The text form has the names in this order, separated by colons. A list has one to eight names of
/// at most 64 letters, digits and underscores, and no name begins with a digit. Clones share one
/// list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobVariables(Arc<[String]>);

impl JobVariables {
    /// Returns the value of the first variable that an environment has and that is not empty. The
    /// environment has the form of `/proc/PID/environ`.
    pub(crate) fn value_in<'a>(&self, environment: &'a [u8]) -> Option<&'a [u8]> {
        self.0.iter().find_map(|name| {
            let mut variables = environment.split(|byte| *byte == 0);
            let value =
                variables.find_map(|it| it.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
            value.filter(|value| !value.is_empty())
        })
    }
}

impl Default for JobVariables {
    /// Returns the variables of Slurm and PBS.
    fn default() -> Self {
        Self(USUAL.map(str::to_owned).into())
    }
}

impl fmt::Display for JobVariables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, name) in self.0.iter().enumerate() {
            if at > 0 {
                write!(f, "{SEPARATOR}")?;
            }
            f.write_str(name)?;
        }
        Ok(())
    }
}

impl FromStr for JobVariables {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names: Vec<_> = text.split(SEPARATOR).map(str::to_owned).collect();
        if names.len() > MAX_JOB_VARIABLES {
            return Err(format!(
                "cannot use {} names of environment variables: the limit is {MAX_JOB_VARIABLES}",
                names.len()
            ));
        }
        match names.iter().find(|name| !is_name(name)) {
            None => Ok(Self(names.into())),
            Some(name) => Err(format!(
                "invalid name of an environment variable '{}': expected letters, digits and \
                 underscores, at most {MAX_JOB_VARIABLE_BYTES}, no digit first, and colons \
                 between names, such as LSB_JOBID:SLURM_JOB_ID",
                name.escape_debug()
            )),
        }
    }
}

fn is_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let begins_with_digit = name.starts_with(|first: char| first.is_ascii_digit());
    (1..=MAX_JOB_VARIABLE_BYTES).contains(&name.len())
        && !begins_with_digit
        && name.bytes().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_is_read_from_the_first_variable_that_is_set() {
        let usual = JobVariables::default();
        let own: JobVariables = "MY_JOB:SLURM_JOB_ID".parse().unwrap();
        let cases = [
            (&usual, "A=1\0SLURM_JOB_ID=4711\0B=2\0", Some("4711")),
            (&usual, "PBS_JOBID=12.server\0SLURM_JOB_ID=\0", Some("12.server")),
            (&usual, "MY_SLURM_JOB_ID=1\0SLURM_JOB_IDS=2\0MY_JOB=3\0", None),
            (&usual, "", None),
            (&own, "SLURM_JOB_ID=4711\0MY_JOB=render-7\0", Some("render-7")),
            (&own, "SLURM_JOB_ID=4711\0MY_JOB=\0", Some("4711")),
            (&own, "PBS_JOBID=12\0", None),
        ];
        for (names, environment, value) in cases {
            let found = names.value_in(environment.as_bytes());
            assert_eq!(found, value.map(str::as_bytes), "{environment:?}");
        }
    }

    #[test]
    fn job_variables_are_unchanged_after_formatting_and_parsing() {
        let longest = "x".repeat(MAX_JOB_VARIABLE_BYTES);
        for text in ["SLURM_JOB_ID:PBS_JOBID", "_a1", "a:b:c:d:e:f:g:h", &longest] {
            assert_eq!(text.parse::<JobVariables>().unwrap().to_string(), text);
        }
        let usual = JobVariables::default();
        assert_eq!(usual.to_string().parse::<JobVariables>(), Ok(usual));
    }

    #[test]
    fn error_quotes_the_invalid_variable_name_or_counts_the_names() {
        let too_long = "x".repeat(MAX_JOB_VARIABLE_BYTES + 1);
        for wrong in ["", "7A", "A=B", "JOB ID", "J\u{f6}b", "A\n", &too_long] {
            for text in [wrong.to_owned(), format!("A:{wrong}"), format!("{wrong}:A")] {
                let error = text.parse::<JobVariables>().unwrap_err();
                assert!(error.contains(&format!("'{}'", wrong.escape_debug())), "{text}: {error}");
            }
        }
        let error = "a:b:c:d:e:f:g:h:i".parse::<JobVariables>().unwrap_err();
        assert!(error.contains("9 names") && error.contains("the limit is 8"), "{error}");
    }
}
