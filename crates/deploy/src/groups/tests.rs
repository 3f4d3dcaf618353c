//! Tests of the division of metadata targets into groups.

use super::*;
use crate::cluster::tests::group;
use std::fmt::Write as _;

/// Returns a hosts file with `copies` copies. `hosts` has the name, the number of metadata targets
/// and the failure domain of each host.
fn file(copies: u32, hosts: &[(&str, usize, &str)]) -> String {
    let mut text = format!("copies = {copies}\n");
    for (index, (name, targets, domain)) in hosts.iter().enumerate() {
        let role = if index == 0 { "\"management\", " } else { "" };
        let paths: Vec<_> = (1..=*targets).map(|number| format!("\"/disk{number}/t\"")).collect();
        let _ = write!(
            text,
            "[[host]]\nname = \"{name}\"\nroles = [{role}\"metadata\", \"storage\"]\n\
             domain = \"{domain}\"\nmetadata_directories = [{}]\n\
             storage_directories = [\"/data\"]\n",
            paths.join(", ")
        );
    }
    text
}

/// Returns the new groups, each as one text.
fn groups_of(text: &str) -> Vec<String> {
    let deployment = Deployment::parse(text).unwrap();
    let plan = divide(&deployment).unwrap();
    let text = |group: &Vec<Place>| {
        let members: Vec<_> = group.iter().map(Place::to_string).collect();
        members.join(" ")
    };
    plan.new.iter().map(text).collect()
}

#[test]
fn members_of_a_group_lie_on_different_hosts() {
    assert_eq!(groups_of(&file(2, &[("a", 1, ""), ("b", 1, "")])), ["a:/disk1/t b:/disk1/t"]);
    let three = groups_of(&file(2, &[("a", 2, ""), ("b", 2, ""), ("c", 2, "")]));
    assert_eq!(
        three,
        ["a:/disk1/t b:/disk1/t", "c:/disk1/t a:/disk2/t", "b:/disk2/t c:/disk2/t"],
        "each host has one primary"
    );
    let larger = groups_of(&file(2, &[("a", 1, ""), ("b", 1, ""), ("c", 2, "")]));
    assert_eq!(larger, ["c:/disk1/t a:/disk1/t", "b:/disk1/t c:/disk2/t"]);
    let three_copies = groups_of(&file(3, &[("a", 1, ""), ("b", 1, ""), ("c", 1, "")]));
    assert_eq!(three_copies, ["a:/disk1/t b:/disk1/t c:/disk1/t"]);
}

#[test]
fn members_of_a_group_lie_in_different_failure_domains() {
    let hosts = [("a", 1, "rack-1"), ("b", 1, "rack-1"), ("c", 1, "rack-2"), ("d", 1, "rack-2")];
    assert_eq!(groups_of(&file(2, &hosts)), ["a:/disk1/t c:/disk1/t", "b:/disk1/t d:/disk1/t"]);
    // The domain of host a has the name of host b, which has no domain.
    assert_eq!(groups_of(&file(2, &[("a", 1, "b"), ("b", 1, "")])), ["a:/disk1/t b:/disk1/t"]);
}

#[test]
fn targets_that_would_remain_without_a_group_are_refused() {
    let check = |copies, hosts: &[(&str, usize, &str)], words: &[&str]| {
        let error = Deployment::parse(&file(copies, hosts)).unwrap_err();
        for word in words {
            assert!(error.context().contains(word), "{word}: {error}");
        }
    };
    check(2, &[("a", 2, "")], &["on 2 hosts", "a has 2", "lower `copies`"]);
    check(2, &[("a", 1, "r"), ("b", 1, "r")], &["on 2 hosts", "failure domains"]);
    check(2, &[("a", 1, ""), ("b", 1, ""), ("c", 1, "")], &["a multiple of 2", "c has 1"]);
    check(2, &[("a", 3, ""), ("b", 1, "")], &["a has 3, b has 1", "same number"]);
    check(4, &[("a", 1, "")], &["invalid copies 4", "from 1 to 3"]);
    check(0, &[("a", 1, "")], &["invalid copies 0"]);
}

#[test]
fn formatted_cluster_keeps_its_groups_and_gets_copies() {
    let deployment = Deployment::parse(&file(2, &[("a", 2, ""), ("b", 2, "")])).unwrap();
    let existing = [group(7, &[("a", "/disk1/t")]), group(8, &[("a", "/disk2/t")])];
    let found = plan(&deployment, &existing, true).unwrap();
    let added: Vec<_> = found.added.iter().map(|(id, place)| format!("{id} {place}")).collect();
    assert_eq!(added, ["7 b:/disk1/t", "8 b:/disk2/t"]);
    assert!(found.new.is_empty() && found.waiting.is_empty(), "{found:?}");
    let complete = [
        group(7, &[("a", "/disk1/t"), ("b", "/disk1/t")]),
        group(8, &[("a", "/disk2/t"), ("b", "/disk2/t")]),
    ];
    assert_eq!(plan(&deployment, &complete, true).unwrap(), GroupPlan::default());
}

#[test]
fn group_without_a_target_on_another_host_is_reported() {
    let deployment = Deployment::parse(&file(2, &[("a", 1, ""), ("b", 1, "")])).unwrap();
    let existing = [group(7, &[("a", "/disk1/t")]), group(8, &[("b", "/disk1/t")])];
    let error = plan(&deployment, &existing, true).unwrap_err();
    assert!(error.contains("metadata group 7 (a:/disk1/t) has 1 of 2 copies"), "{error}");
    assert!(error.contains("give another host the role metadata"), "{error}");
}

/// An interrupted deployment may have created some of the groups.
#[test]
fn plan_reuses_the_groups_of_an_interrupted_deployment() {
    let text = file(2, &[("a", 2, ""), ("b", 2, "")]);
    let deployment = Deployment::parse(&text).unwrap();
    let first = [group(7, &[("b", "/disk2/t"), ("a", "/disk1/t")])];
    let found = plan(&deployment, &first, false).unwrap();
    let members: Vec<_> = found.new.iter().flatten().map(Place::to_string).collect();
    assert_eq!(members, ["a:/disk2/t", "b:/disk1/t"]);
    assert!(found.added.is_empty(), "{found:?}");
}
