//! Tests of the pages on tuning in `docs/operations`.

use skep_tune::Rules;
use std::fs;

/// The options that the published installations of BeeGFS have set.
#[test]
fn beegfs_page_has_each_published_option() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operations/from-beegfs.md");
    let page = fs::read_to_string(page).expect("the page");
    for option in [
        "connMaxInternodeNum",
        "connBufSize",
        "tuneBindToNumaZone",
        "tuneFileReadAheadSize",
        "tuneFileReadAheadTriggerSize",
        "tuneFileReadSize",
        "tuneFileWriteSize",
        "tuneNumWorkers",
        "tuneTargetChooser",
        "tuneUsePerTargetWorkers",
        "tuneUsePerUserMsgQueues",
        "tuneWorkerBufSize",
    ] {
        let is_row = |line: &str| line.starts_with('|') && line.contains(&format!("`{option}`"));
        assert!(page.lines().any(is_row), "{option} has no row");
    }
}

#[test]
fn tuning_page_lists_every_rule_with_its_value() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operations/tuning.md");
    let page = fs::read_to_string(page).expect("the page");
    let rules = Rules::built_in();
    for it in &rules.rule {
        let row = page.lines().find(|line| line.starts_with(&format!("| `{}` |", it.id)));
        let row = row.unwrap_or_else(|| panic!("{} has no row", it.id));
        assert!(row.contains(&it.want) && row.contains(&it.why) && row.contains(&it.risk), "{row}");
    }
    let others = rules.mount.iter().map(|it| &it.id).chain(rules.make.iter().map(|it| &it.id));
    for id in others {
        assert!(page.contains(&format!("| `{id}` |")), "{id} has no row");
    }
}
