//! Checks the templates in `deploy/`. Each template contains the user-data script unchanged or
//! reads the file of the script. The two templates for Azure Resource Manager have the same
//! parameters.

use super::Problems;
use crate::repository::{Outcome, read};
use serde_json::Value;
use std::path::Path;

/// The script that makes a host a member of a cluster.
const SCRIPT: &str = "deploy/user-data/skep-node.sh";
/// Maximum length of the script in bytes. AWS permits 16 KiB of user data, and the settings in
/// front of the script need up to 2 KiB.
const LIMIT: usize = 14 << 10;

/// How a template contains the script.
enum Form {
    /// The template contains the script as a block of YAML, indented by this number of spaces.
    Block(usize),
    /// The template contains the script as the JSON variable `nodeScript`.
    Json,
    /// The template reads the script from the file with this name.
    Reads(&'static str),
}

const TEMPLATES: [(&str, Form); 6] = [
    ("deploy/cloudformation/cluster.yaml", Form::Block(8)),
    ("deploy/cloudformation/attach.yaml", Form::Block(8)),
    ("deploy/cloud-init/node.yaml", Form::Block(6)),
    (ARM, Form::Json),
    (BICEP, Form::Reads("../user-data/skep-node.sh")),
    ("deploy/terraform/node/main.tf", Form::Reads("../../user-data/skep-node.sh")),
];
const ARM: &str = "deploy/azure/cluster.json";
const BICEP: &str = "deploy/azure/cluster.bicep";

/// Checks all templates.
///
/// # Errors
/// Fails if a template cannot be read.
pub(super) fn check() -> Outcome<Problems> {
    let script = read(Path::new(SCRIPT))?;
    let mut problems = Problems::new();
    if script.len() > LIMIT {
        problems.push(format!("{SCRIPT} has {} bytes: shorten it to {LIMIT}", script.len()));
    }
    for (name, form) in &TEMPLATES {
        let text = read(Path::new(name))?;
        if !has_script(&text, form, &script) {
            problems.push(format!("{name}: copy the current text of {SCRIPT} into it"));
        }
    }
    problems.extend(differences(&read(Path::new(ARM))?, &read(Path::new(BICEP))?));
    Ok(problems)
}

fn has_script(text: &str, form: &Form, script: &str) -> bool {
    match form {
        Form::Block(indent) => {
            let indent = *indent;
            let line = |line: &str| match line {
                "" => "\n".to_owned(),
                _ => format!("{:indent$}{line}\n", ""),
            };
            text.contains(&script.lines().map(line).collect::<String>())
        }
        Form::Json => {
            let template: Value = serde_json::from_str(text).unwrap_or_default();
            template["variables"]["nodeScript"] == script
        }
        Form::Reads(name) => text.contains(name),
    }
}

/// Returns the differences between the parameters of the two templates: each parameter that only
/// one template has, and each parameter whose defaults differ.
fn differences(arm: &str, bicep: &str) -> Problems {
    let template: Value = serde_json::from_str(arm).unwrap_or_default();
    let Some(parameters) = template["parameters"].as_object() else {
        return vec![format!("{ARM}: expected JSON with parameters")];
    };
    let count = bicep.lines().filter(|line| line.starts_with("param ")).count();
    let mut problems = Problems::new();
    if count != parameters.len() {
        let have = parameters.len();
        problems.push(format!("{BICEP}: it has {count} parameters, but {ARM} has {have}"));
    }
    for (name, parameter) in parameters {
        let start = format!("param {name} ");
        let Some(line) = bicep.lines().find(|line| line.starts_with(&start)) else {
            problems.push(format!("{BICEP}: add the parameter {name} of {ARM}"));
            continue;
        };
        let default = match &parameter["defaultValue"] {
            // Functions are written differently in the languages of the two templates, so a default
            // that is a function is not compared.
            Value::String(text) if !text.starts_with('[') => format!("= '{text}'"),
            value @ (Value::Number(_) | Value::Bool(_)) => format!("= {value}"),
            _ => continue,
        };
        if !line.ends_with(&default) {
            problems.push(format!("{BICEP}: {name} must end with {default}, as in {ARM}"));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_script_in_a_template_is_found() {
        let script = "a\n\n b\n";
        assert!(has_script("x:\n  a\n\n   b\ny", &Form::Block(2), script));
        assert!(!has_script("x:\n  a\n\n  b\ny", &Form::Block(2), script));
        assert!(has_script(r#"{"variables": {"nodeScript": "a\n\n b\n"}}"#, &Form::Json, script));
        assert!(!has_script(r#"{"variables": {"nodeScript": "a\n"}}"#, &Form::Json, script));
        assert!(!has_script("file('other.sh')", &Form::Reads("node.sh"), script));
    }

    #[test]
    fn defaults_that_differ_between_templates_are_found() {
        let arm =
            r#"{"parameters": {"disks": {"defaultValue": 10}, "size": {"defaultValue": "A"}}}"#;
        assert_eq!(differences(arm, "param disks int = 10\nparam size string = 'A'"), [""; 0]);
        let found = differences(arm, "param disks int = 1\nparam size string = 'A'");
        assert!(found.len() == 1 && found[0].contains("disks must end with = 10"), "{found:?}");
        assert_eq!(differences(arm, "param disks int = 10").len(), 2);
    }
}
