//! The command lines of mdtest, and the parser of its results.

use super::{Report, refused, words};
use crate::metadata::plan::{OPERATIONS, Plan};
use std::collections::BTreeMap;

/// A part of a test that one execution of mdtest does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Create,
    Stat,
    Read,
    Remove,
}

impl Part {
    /// Returns the part of the test that contains the phase `phase`.
    pub(super) fn of(phase: &str) -> Option<Self> {
        let (_, act) = phase.rsplit_once('_')?;
        Some(match act {
            "creation" => Self::Create,
            "stat" => Self::Stat,
            "read" => Self::Read,
            "removal" => Self::Remove,
            _ => return None,
        })
    }

    fn letter(self) -> &'static str {
        match self {
            Self::Create => "-C",
            Self::Stat => "-T",
            Self::Read => "-E",
            Self::Remove => "-r",
        }
    }
}

/// Returns the options of the plan that mdtest does not support.
pub(super) fn problems(plan: &Plan) -> Vec<String> {
    refused(&[(
        plan.separate_trees,
        "--separate-trees, because mdtest has one directory for all trees",
    )])
}

/// Returns the command line for a part of the test. mdtest must run in the directory that contains
/// `name`.
pub(super) fn command(plan: &Plan, part: Part, name: &str) -> Vec<String> {
    let mut all = words(["mdtest", part.letter(), "-d", name]);
    let values = [
        ("-n", plan.items),
        ("-I", plan.items_per_directory),
        ("-z", Some(u64::from(plan.depth))),
        ("-b", Some(plan.branching)),
        ("-N", Some(u64::from(plan.stride)).filter(|stride| *stride > 0)),
        ("-w", Some(plan.write_bytes).filter(|bytes| *bytes > 0 && part == Part::Create)),
        ("-e", Some(plan.read_bytes).filter(|bytes| *bytes > 0 && part == Part::Read)),
    ];
    for (letter, value) in values {
        all.extend(value.into_iter().flat_map(|value| [letter.to_owned(), value.to_string()]));
    }
    for (letter, is_wanted) in [
        ("-L", plan.leaves_only),
        ("-u", plan.unique_trees),
        ("-F", plan.files_only),
        ("-D", plan.directories_only),
        ("-y", plan.sync && part == Part::Create),
    ] {
        if is_wanted {
            all.push(letter.to_owned());
        }
    }
    all
}

/// Parses the table that mdtest prints. `counts` contains the phases, each with its number of
/// operations.
pub(super) fn parse(
    text: &str,
    counts: &[(&'static str, u64)],
) -> Result<BTreeMap<&'static str, Report>, String> {
    let table = text.split_once("SUMMARY rate").map(|(_, table)| table);
    let table = table.ok_or("mdtest's output has no summary")?;
    let version = text.lines().find_map(|line| line.trim().strip_prefix("mdtest-"));
    let version = version.and_then(|rest| rest.split_whitespace().next()).unwrap_or_default();
    let mut reports = BTreeMap::new();
    for (phase, count) in counts {
        let Some((_, title)) = OPERATIONS.iter().find(|(name, _)| name == phase) else { continue };
        let row = table.lines().find_map(|line| line.trim().strip_prefix(title));
        let row = row.ok_or_else(|| format!("mdtest's summary has no line '{title}'"))?;
        let numbers: Vec<f64> = row.split_whitespace().flat_map(str::parse).collect();
        let [max, min, mean, deviation] = numbers[..] else {
            return Err(format!(
                "line '{title}' of mdtest's summary does not have four numbers: {row}"
            ));
        };
        if mean <= 0.0 {
            return Err(format!("line '{title}' of mdtest's summary reports no operations"));
        }
        let said = serde_json::json!({
            "version": version, "max": max, "min": min, "mean": mean, "std_dev": deviation,
        });
        let (operations, seconds) = (*count, *count as f64 / mean);
        let report = Report { bytes: 0, operations, seconds, open_s: 0.0, close_s: 0.0, said };
        reports.insert(*phase, report);
    }
    Ok(reports)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan {
            directory: "/mnt/{host}".into(),
            items: Some(10),
            depth: 1,
            branching: 3,
            unique_trees: true,
            write_bytes: 100,
            read_bytes: 100,
            run: Some(5),
            ..Plan::default()
        }
    }

    #[test]
    fn plan_becomes_the_command_line_of_mdtest() {
        let line = |plan: &Plan, part| command(plan, part, "t").join(" ");
        assert_eq!(line(&plan(), Part::Create), "mdtest -C -d t -n 10 -z 1 -b 3 -w 100 -u");
        let other = Plan {
            items: None,
            items_per_directory: Some(4),
            stride: 2,
            leaves_only: true,
            files_only: true,
            unique_trees: false,
            sync: true,
            ..plan()
        };
        assert_eq!(line(&other, Part::Read), "mdtest -E -d t -I 4 -z 1 -b 3 -N 2 -e 100 -L -F");
        assert!(line(&other, Part::Create).ends_with("-w 100 -L -F -y"));
        assert_eq!(line(&plan(), Part::Stat), "mdtest -T -d t -n 10 -z 1 -b 3 -u");
        assert_eq!(problems(&plan()), Vec::<String>::new());
        let separate = Plan { separate_trees: true, ..plan() };
        assert!(problems(&separate)[0].contains("--separate-trees"));
    }

    #[test]
    fn mdtest_output_is_parsed() {
        let counts = |part| {
            let mut counts = plan().phases(2);
            counts.retain(|(phase, _)| Part::of(phase) == Some(part));
            counts
        };
        let text = include_str!("recorded/mdtest-4.1.0-create.txt");
        let found = parse(text, &counts(Part::Create)).unwrap();
        let names: Vec<_> = found.keys().copied().collect();
        assert_eq!(names, ["directory_creation", "file_creation", "tree_creation"]);
        for report in found.values() {
            let rate = report.operations as f64 / report.seconds;
            let said = report.said["mean"].as_f64().unwrap();
            assert!((rate - said).abs() < 1e-6 * said, "{report:?}");
        }
        assert_eq!(found["file_creation"].said["version"], "4.1.0+dev");
        let missing = parse(text, &counts(Part::Stat)).unwrap_err();
        assert!(missing.contains("no operations"), "{missing}");
        let text = include_str!("recorded/mdtest-4.1.0-remove.txt");
        assert_eq!(parse(text, &counts(Part::Remove)).unwrap().len(), 3);
        assert!(parse("", &counts(Part::Stat)).unwrap_err().contains("no summary"));
    }
}
