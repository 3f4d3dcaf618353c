//! The built-in plans of studies.

use crate::{checked, skep};
use serde_json::json;
use skep_testkit::Scratch;
use skep_testkit::view::Typed;
use std::collections::BTreeSet;

/// Command: skep study plans, skep study plan.
#[test]
fn built_in_study_plans_are_listed_and_printed() {
    let scratch = Scratch::new();
    let list = checked(scratch.path(), &["study", "plans"], "study-plans");
    for plan in list.list() {
        let name = plan["name"].text();
        let text = skep(scratch.path(), &["study", "plan", name]).expect_success();
        assert!(text.contains(&format!("name = \"{name}\"")), "{text}");
        let value = checked(scratch.path(), &["study", "plan", name], "study-plan");
        assert_eq!((&value["name"], &value["title"]), (&plan["name"], &plan["title"]));
        assert_eq!(value["lab"]["shape"], plan["lab"], "{value}");
        let experiments = value["experiments"].list();
        assert_eq!(experiments.len(), plan["experiments"].list().len());
    }
    let site = checked(scratch.path(), &["study", "plan", "site"], "study-plan");
    assert_eq!(
        (&site["shortest_wait_ms"], &site["longest_wait_ms"]),
        (&json!(60_000), &json!(1_800_000))
    );
    let factors = &site["experiments"][0]["factors"];
    assert_eq!(factors["data_bytes"], json!([null]), "the calibration determines the data size");
    assert_eq!(factors["transfer_bytes"], json!([1 << 20]));
    assert_eq!(factors["count"], json!([1, 2, 4, 8]));
    assert_eq!(factors["chooser"], json!(["balanced", "roundrobin"]));
    assert_eq!(factors["access"], json!(["shared-file"]), "the plan shows defaults, too");
    let unknown = skep(scratch.path(), &["study", "plan", "scenario9"]);
    assert_eq!(unknown.status.code(), Some(4));
    assert!(unknown.expect_failure().contains("scenario1, scenario2"));
}

/// Command: skep study run.
#[test]
fn azure_study_of_the_published_size_has_15_runs() {
    let scratch = Scratch::new();
    let dry = ["study", "run", "azure-scale", "--dry-run"];
    let planned = checked(scratch.path(), &dry, "study-run-dry");
    assert_eq!((&planned["runs"], &planned["needs_calibration"]), (&json!(15), &json!(false)));
    assert_eq!(planned["blocks"].list().len(), 15, "each run is a block");
    let conditions: BTreeSet<String> = planned["blocks"]
        .list()
        .iter()
        .flat_map(|block| block.list())
        .map(|run| run["condition"].text().to_owned())
        .collect();
    assert!(conditions.iter().any(|it| it.contains("20 servers")), "{conditions:?}");
}
