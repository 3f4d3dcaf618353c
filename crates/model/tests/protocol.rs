//! Tests that check all states of the protocol within small bounds.

use skep_model::checks::{SMALL, run};

fn check(name: &str) {
    let check = SMALL.iter().find(|it| it.name == name).expect("the check exists");
    let states = run(&check.model, 1).unwrap_or_else(|problems| panic!("{problems}"));
    println!("{name}: {states} states");
}

#[test]
fn power_losses_lose_no_acknowledged_record() {
    check("power losses");
}

#[test]
fn late_messages_cause_no_wrong_reply() {
    check("a late message and a power loss");
}

#[test]
fn late_messages_after_a_kill_lose_no_acknowledged_record() {
    check("a late message, a kill and a power loss");
}

#[test]
fn late_management_requests_lose_no_acknowledged_record() {
    check("a late request to management and a power loss");
    check("a late request to management, a kill and a power loss");
    check("three members, a late request to management and a power loss");
}

#[test]
fn restarts_with_old_maps_lose_no_acknowledged_record() {
    check("old maps and a power loss");
    check("an old map, a power loss, moves");
}

#[test]
fn groups_of_three_lose_no_acknowledged_record() {
    check("three members and a power loss");
    check("three members, an old map and a power loss");
}

#[test]
fn late_acknowledgements_extend_no_lease() {
    check("leases with a late message");
}

#[test]
fn three_members_never_have_two_replying_primaries() {
    check("leases of three members after a take-over");
}
