//! Each test adds one error to the protocol, and asserts that the model checker finds this error.

use skep_model::bounds::{Bounds, Faults};
use skep_model::bugs::PlantedBug;
use skep_model::checks::{
    COUNTED_DURING_WAIT, NO_FAULTS, leases, moved, records, violation, violation_after,
};
use skep_model::properties::{
    COMPLETE_PRIMARY, DURABLE_ON_DEVICES, MEMBERS_HAVE_RECORDS, NO_LATE_REPLY, ONE_REPLIES,
    PRIMARY_HAS_RECORDS,
};

/// Two members, one record and one power loss.
const ONE_LOSS: Bounds = records(2, 4, Faults { writes: 1, power_losses: 1, ..NO_FAULTS });

/// Two members, one record, one power loss, and one late request to management.
const LATE_REQUEST: Bounds =
    records(2, 2, Faults { writes: 1, power_losses: 1, late_changes: 1, ..NO_FAULTS });

#[track_caller]
fn check(bug: PlantedBug, bounds: Bounds, property: &'static str) {
    assert!(violation(bug, bounds, property).is_some(), "{property}");
}

#[test]
fn checker_finds_a_reply_before_the_record_is_held() {
    check(PlantedBug::ReplyBeforeHeld, ONE_LOSS, MEMBERS_HAVE_RECORDS);
}

#[test]
fn checker_finds_a_durable_reply_before_the_record_is_safe() {
    check(PlantedBug::ReplyDurableBeforeSafe, ONE_LOSS, DURABLE_ON_DEVICES);
}

#[test]
fn checker_finds_a_member_that_serves_before_its_sync() {
    check(PlantedBug::ServeAfterAppend, ONE_LOSS, DURABLE_ON_DEVICES);
}

#[test]
fn checker_finds_a_member_that_serves_without_old_records() {
    let bounds = records(3, 3, Faults { writes: 1, kills: 1, ..NO_FAULTS });
    check(PlantedBug::ForgetBegin, bounds, MEMBERS_HAVE_RECORDS);
}

#[test]
fn checker_finds_a_member_that_accepts_an_older_epoch() {
    check(PlantedBug::AcceptOlderEpoch, ONE_LOSS, MEMBERS_HAVE_RECORDS);
}

#[test]
fn checker_finds_a_take_over_by_a_member_after_a_power_loss() {
    check(PlantedBug::PromoteAfterPowerLoss, ONE_LOSS, PRIMARY_HAS_RECORDS);
    check(PlantedBug::PromoteAfterPowerLoss, ONE_LOSS, COMPLETE_PRIMARY);
}

#[test]
fn checker_finds_a_primary_that_leads_after_its_power_loss() {
    check(PlantedBug::LeadAfterPowerLoss, ONE_LOSS, COMPLETE_PRIMARY);
}

#[test]
fn checker_finds_a_member_that_trusts_a_late_request() {
    let faults = Faults { writes: 1, power_losses: 1, late_messages: 1, ..NO_FAULTS };
    check(PlantedBug::TrustLateRequest, records(2, 3, faults), MEMBERS_HAVE_RECORDS);
}

#[test]
fn checker_finds_a_recovery_with_the_shorter_log() {
    let bounds = records(2, 3, Faults { writes: 1, power_losses: 2, ..NO_FAULTS });
    check(PlantedBug::FirstLogWins, bounds, PRIMARY_HAS_RECORDS);
}

#[test]
fn checker_finds_unsynced_records_sent_to_absent_members() {
    check(PlantedBug::ShipUnsynced, ONE_LOSS, MEMBERS_HAVE_RECORDS);
}

#[test]
fn checker_finds_a_reply_without_a_lease() {
    check(PlantedBug::ReplyWithoutLease, leases(2, 3, NO_FAULTS), ONE_REPLIES);
}

#[test]
fn checker_finds_a_reply_before_the_end_of_a_promise() {
    check(PlantedBug::ForgetPromise, leases(2, 3, NO_FAULTS), NO_LATE_REPLY);
}

#[test]
fn checker_finds_a_serving_member_that_the_primary_ignores() {
    check(PlantedBug::StopCountingAsked, ONE_LOSS, MEMBERS_HAVE_RECORDS);
}

#[test]
fn checker_finds_a_restart_that_forgets_counted_members() {
    let bounds = records(2, 3, Faults { old_maps: 2, ..NO_FAULTS });
    check(PlantedBug::ForgetCounted, bounds, MEMBERS_HAVE_RECORDS);
}

#[test]
fn checker_finds_a_deposed_primary_that_continues() {
    check(PlantedBug::GoOnDeposed, leases(2, 3, NO_FAULTS), PRIMARY_HAS_RECORDS);
}

#[test]
fn checker_finds_a_member_with_a_map_older_than_its_log() {
    let bounds = records(2, 3, Faults { old_maps: 2, ..NO_FAULTS });
    check(PlantedBug::IgnoreNewerLog, bounds, MEMBERS_HAVE_RECORDS);
}

#[test]
fn checker_finds_a_release_of_leases_of_a_third_member() {
    check(PlantedBug::ReleaseAll, leases(3, 3, NO_FAULTS), ONE_REPLIES);
}

#[test]
fn checker_finds_a_primary_that_ignores_counted_members() {
    let bounds = records(2, 4, Faults { writes: 1, power_losses: 1, old_maps: 1, ..NO_FAULTS });
    check(PlantedBug::LeadDespiteCounted, bounds, PRIMARY_HAS_RECORDS);
}

#[test]
fn checker_finds_a_restart_that_forgets_its_term() {
    let bounds = moved(2, 4, Faults { power_losses: 1, old_maps: 1, ..NO_FAULTS });
    check(PlantedBug::ForgetTerm, bounds, DURABLE_ON_DEVICES);
}

#[test]
fn checker_finds_a_restart_that_forgets_confirmed_epochs() {
    let bounds = records(3, 2, Faults { power_losses: 1, old_maps: 1, ..NO_FAULTS });
    check(PlantedBug::ForgetConfirmed, bounds, MEMBERS_HAVE_RECORDS);
}

#[test]
fn checker_finds_a_take_over_request_with_an_unsynced_log() {
    check(PlantedBug::AskUnsynced, LATE_REQUEST, PRIMARY_HAS_RECORDS);
}

#[test]
fn checker_finds_a_drop_by_a_primary_with_an_unsynced_log() {
    check(PlantedBug::DropUnsynced, LATE_REQUEST, PRIMARY_HAS_RECORDS);
}

#[test]
fn checker_finds_unsynced_confirmations_after_take_over_request() {
    check(PlantedBug::ConfirmAfterAsking, LATE_REQUEST, PRIMARY_HAS_RECORDS);
}

#[test]
fn checker_finds_a_reply_before_a_sync_after_a_drop_request() {
    check(PlantedBug::ReplyAfterAsking, LATE_REQUEST, PRIMARY_HAS_RECORDS);
}

#[test]
fn checker_finds_a_restart_that_forgets_a_take_over_request() {
    let faults = Faults { kills: 1, ..LATE_REQUEST.faults };
    check(PlantedBug::ForgetAsked, Bounds { faults, ..LATE_REQUEST }, COMPLETE_PRIMARY);
}

#[test]
fn checker_finds_an_old_request_that_drops_counted_members() {
    let bounds = records(2, 3, Faults { old_maps: 1, ..NO_FAULTS });
    check(PlantedBug::ForgetLaterEpoch, bounds, MEMBERS_HAVE_RECORDS);
}

#[test]
fn checker_finds_a_member_marked_during_a_lease_wait() {
    let bounds = leases(3, 5, NO_FAULTS);
    let begin = COUNTED_DURING_WAIT;
    let steps = violation_after(begin, PlantedBug::MarkDuringWait, bounds, ONE_REPLIES);
    assert!(steps.is_some(), "{ONE_REPLIES}");
}
