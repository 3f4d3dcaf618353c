//! The result of `skep health check`, as JSON and as text.

use super::balances::Balances;
use super::problem::Problem;
use super::services::NodeReport;
use super::waits::WaitReport;
use crate::view;
use serde::Serialize;
use skep_cluster::state::kind_word;
use skep_types::NodeKind;
use std::fmt::Write;

/// The JSON output: the result of the check.
#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    pub(super) healthy: bool,
    pub(super) nodes: Vec<NodeReport>,
    pub(super) problems: Vec<Problem>,
    /// Facts that do not make the cluster unhealthy: permanent damage, such as lost targets, and
    /// clients that were evicted in the last hour.
    pub(super) notes: Vec<Problem>,
    /// The nodes that have requests without a reply for more than 5 seconds.
    pub(super) waits: Vec<WaitReport>,
    /// The balance of work and of space. `None` means that management does not answer.
    pub(super) balance: Option<Balances>,
    /// The rules that were not evaluated, with the reason. `None` means that all were evaluated.
    pub(super) unchecked: Option<String>,
}

/// Returns the report as text.
pub(super) fn as_text(report: &Report) -> String {
    let mut text = String::new();
    for kind in [NodeKind::Management, NodeKind::Metadata, NodeKind::Storage] {
        let _ = writeln!(text, "{}\n==========", view::class_title(kind));
        for node in report.nodes.iter().filter(|node| node.kind == kind_word(kind)) {
            let state = match (&node.address, &node.error) {
                (Some(address), _) => format!("reachable at {address} (protocol: TCP)"),
                (None, _) if node.is_needless => {
                    "not running, and not needed: all its targets are marked as lost".into()
                }
                (None, error) => {
                    format!("UNREACHABLE: {}", error.as_deref().unwrap_or("no answer"))
                }
            };
            let _ = writeln!(text, "{} [ID: {}]: {state}", node.name, node.id);
        }
        text.push('\n');
    }
    text.extend(report.balance.as_ref().map(Balances::as_text));
    let notes = report.notes.iter().map(|note| format!("Note: {}\n  {}\n", note.what, note.remedy));
    let unchecked = report.unchecked.iter().map(|what| format!("Not checked: {what}\n"));
    let end: String = notes.chain(unchecked).collect();
    if report.problems.is_empty() {
        return text + "The cluster is healthy.\n" + &end;
    }
    let title =
        if report.healthy { "The cluster is healthy, but needs attention" } else { "Problems" };
    let _ = writeln!(text, "{title}\n==========");
    for problem in &report.problems {
        let _ = writeln!(text, "- {}\n  {}", problem.what_and_since(), problem.remedy);
    }
    text + &end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_of_a_healthy_cluster_still_names_a_lost_target() {
        let note = Problem {
            key: String::new(),
            rule: "target-given-up",
            what: "storage target t7 was marked as lost".into(),
            remedy: "restore the files".into(),
            ..Problem::default()
        };
        let report = Report { healthy: true, notes: vec![note], ..Report::default() };
        let text = as_text(&report);
        let end = "The cluster is healthy.\nNote: storage target t7 was marked as lost\n  \
                   restore the files\n";
        assert!(text.ends_with(end), "{text}");
    }

    #[test]
    fn rules_that_were_not_evaluated_are_listed_in_one_line() {
        let unchecked = Some("growing queues: no monitor".to_owned());
        let report = Report { healthy: true, unchecked, ..Report::default() };
        let text = as_text(&report);
        let end = "The cluster is healthy.\nNot checked: growing queues: no monitor\n";
        assert!(text.ends_with(end), "{text}");
    }
}
