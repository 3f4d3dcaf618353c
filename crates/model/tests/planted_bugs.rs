//! The checker finds each error that a test plants into the protocol.

use skep_model::bounds::{Bounds, Faults};
use skep_model::bugs::PlantedBug;
use skep_model::checks::{NO_FAULTS, leases, moved, records, violation};
use skep_model::properties::{
    COMPLETE_PRIMARY, DURABLE_ON_DEVICES, MEMBERS_HAVE_RECORDS, NO_LATE_REPLY, ONE_REPLIES,
    PRIMARY_HAS_RECORDS,
};

/// Two members, one record and one power loss.
const ONE_LOSS: Bounds = records(2, 4, Faults { writes: 1, power_losses: 1, ..NO_FAULTS });

#[track_caller]
fn check(bug: PlantedBug, bounds: Bounds, property: &'static str) {
    assert!(violation(bug, bounds, property).is_some(), "{property}");
}

#[test]
fn reply_before_held_is_found() {
    check(PlantedBug::ReplyBeforeHeld, ONE_LOSS, MEMBERS_HAVE_RECORDS);
}

#[test]
fn durable_reply_before_safe_is_found() {
    check(PlantedBug::ReplyDurableBeforeSafe, ONE_LOSS, DURABLE_ON_DEVICES);
}

#[test]
fn service_before_the_sync_of_safe_records_is_found() {
    check(PlantedBug::ServeAfterAppend, ONE_LOSS, DURABLE_ON_DEVICES);
}

#[test]
fn service_without_records_of_the_begin_is_found() {
    let bounds = records(3, 3, Faults { writes: 1, kills: 1, ..NO_FAULTS });
    check(PlantedBug::ForgetBegin, bounds, MEMBERS_HAVE_RECORDS);
}

#[test]
fn acceptance_of_an_older_epoch_is_found() {
    check(PlantedBug::AcceptOlderEpoch, ONE_LOSS, MEMBERS_HAVE_RECORDS);
}

#[test]
fn promotion_after_a_power_loss_is_found() {
    check(PlantedBug::PromoteAfterPowerLoss, ONE_LOSS, PRIMARY_HAS_RECORDS);
    check(PlantedBug::PromoteAfterPowerLoss, ONE_LOSS, COMPLETE_PRIMARY);
}

#[test]
fn primary_that_leads_after_its_power_loss_is_found() {
    check(PlantedBug::LeadAfterPowerLoss, ONE_LOSS, COMPLETE_PRIMARY);
}

#[test]
fn trust_in_requests_to_earlier_processes_is_found() {
    let faults = Faults { writes: 1, power_losses: 1, late_messages: 1, ..NO_FAULTS };
    check(PlantedBug::TrustLateRequest, records(2, 3, faults), MEMBERS_HAVE_RECORDS);
}

#[test]
fn recovery_with_a_shorter_log_is_found() {
    let bounds = records(2, 3, Faults { writes: 1, power_losses: 2, ..NO_FAULTS });
    check(PlantedBug::FirstLogWins, bounds, PRIMARY_HAS_RECORDS);
}

#[test]
fn unsynced_records_at_absent_members_are_found() {
    check(PlantedBug::ShipUnsynced, ONE_LOSS, MEMBERS_HAVE_RECORDS);
}

#[test]
fn reply_without_a_lease_is_found() {
    check(PlantedBug::ReplyWithoutLease, leases(2, 3, NO_FAULTS), ONE_REPLIES);
}

#[test]
fn reply_before_the_end_of_a_promise_is_found() {
    check(PlantedBug::ForgetPromise, leases(2, 3, NO_FAULTS), NO_LATE_REPLY);
}

#[test]
fn uncounted_member_that_may_serve_is_found() {
    check(PlantedBug::StopCountingAsked, ONE_LOSS, MEMBERS_HAVE_RECORDS);
}

#[test]
fn restart_that_forgets_counted_members_is_found() {
    let bounds = records(2, 3, Faults { old_maps: 2, ..NO_FAULTS });
    check(PlantedBug::ForgetCounted, bounds, MEMBERS_HAVE_RECORDS);
}

#[test]
fn deposed_primary_that_continues_is_found() {
    check(PlantedBug::GoOnDeposed, leases(2, 3, NO_FAULTS), PRIMARY_HAS_RECORDS);
}

#[test]
fn map_that_is_older_than_the_log_is_found() {
    let bounds = records(2, 3, Faults { old_maps: 2, ..NO_FAULTS });
    check(PlantedBug::IgnoreNewerLog, bounds, MEMBERS_HAVE_RECORDS);
}

#[test]
fn release_of_leases_of_a_third_member_is_found() {
    check(PlantedBug::ReleaseAll, leases(3, 3, NO_FAULTS), ONE_REPLIES);
}

#[test]
fn primary_that_leads_alone_despite_counted_members_is_found() {
    let bounds = records(2, 4, Faults { writes: 1, power_losses: 1, old_maps: 1, ..NO_FAULTS });
    check(PlantedBug::LeadDespiteCounted, bounds, PRIMARY_HAS_RECORDS);
}

#[test]
fn start_that_forgets_the_term_of_the_primary_is_found() {
    let bounds = moved(2, 4, Faults { power_losses: 1, old_maps: 1, ..NO_FAULTS });
    check(PlantedBug::ForgetTerm, bounds, DURABLE_ON_DEVICES);
}

#[test]
fn start_that_forgets_confirmed_epochs_is_found() {
    let bounds = records(3, 2, Faults { power_losses: 1, old_maps: 1, ..NO_FAULTS });
    check(PlantedBug::ForgetConfirmed, bounds, MEMBERS_HAVE_RECORDS);
}
