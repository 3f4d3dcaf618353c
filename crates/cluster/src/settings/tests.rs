//! Tests of the settings: their ranges, and changes by commands.

use super::*;
use crate::ClusterState;
use crate::limits::{
    MAX_LEASE_MS, MAX_TAKE_OVER_AFTER_MS, MIN_HEARTBEAT_MS, MIN_METADATA_LEASE_MS,
};
use skep_types::pattern::MIN_CHUNK_BYTES;

fn change(state: &mut ClusterState, name: &str, value: u64) -> Result<()> {
    let command = Setting::named(name)?.change(value)?;
    state.apply(&command).map(|_| ())
}

#[test]
fn stripe_width_setting_is_also_found_by_its_option_names() {
    for name in ["stripe-width", "num-targets", "count"] {
        assert_eq!(Setting::named(name).unwrap().name, "stripe-width");
    }
}

#[test]
fn setting_accepts_only_values_in_its_range() {
    for setting in SETTINGS {
        let mut state = ClusterState::new(ClusterId::new([1; 16]));
        assert_eq!(setting.value(state.map()), setting.default());
        // The ranges of some settings depend on each other, so the test must change the other
        // setting first.
        if setting.name == "heartbeat" {
            change(&mut state, "lease", u64::from(MAX_LEASE_MS)).unwrap();
        } else {
            change(&mut state, "heartbeat", u64::from(MIN_HEARTBEAT_MS)).unwrap();
        }
        if setting.name == "metadata-lease" {
            let longest = u64::from(MAX_TAKE_OVER_AFTER_MS);
            change(&mut state, "metadata-take-over-after", longest).unwrap();
        } else {
            change(&mut state, "metadata-lease", u64::from(MIN_METADATA_LEASE_MS)).unwrap();
        }
        if setting.name == "user-chunk-size-max" {
            change(&mut state, "user-chunk-size-min", MIN_CHUNK_BYTES).unwrap();
        }
        for (low, emergency) in
            [("low-percent", "emergency-percent"), ("low-free", "emergency-free")]
        {
            if setting.name == emergency {
                change(&mut state, low, Setting::named(low).unwrap().max).unwrap();
            } else {
                change(&mut state, emergency, 0).unwrap();
            }
        }
        for value in [setting.min, setting.max] {
            change(&mut state, setting.name, value).unwrap();
            assert_eq!(setting.value(state.map()), value, "{}", setting.name);
        }
        for value in setting.min.checked_sub(1).into_iter().chain([setting.max + 1]) {
            let what = change(&mut state, setting.name, value).unwrap_err();
            assert!(what.context().starts_with(setting.name), "{what}");
            let last = setting.word(setting.max).map(str::to_owned);
            let last = last.unwrap_or_else(|| setting.max.to_string());
            assert!(what.context().contains(&last), "{what}");
            assert_eq!(setting.value(state.map()), setting.max);
        }
    }
}

/// If each command contained the values of all settings, the second command would revert the first
/// one.
#[test]
fn simultaneous_changes_of_two_settings_both_take_effect() {
    let mut state = ClusterState::new(ClusterId::new([1; 16]));
    let commands = [("lease", 9_000), ("stripe-width", 7)]
        .map(|(name, value)| Setting::named(name).unwrap().change(value).unwrap());
    let before = commands.each_ref().map(|command| state.apply(command).unwrap().before);
    assert_eq!(before, [5_000, Setting::named("stripe-width").unwrap().default()]);
    assert_eq!((state.map().policy.lease_ms, state.map().policy.default_width), (9_000, 7));
}

/// The log may contain a change that another version of the program has checked and proposed.
#[test]
fn unknown_setting_or_value_is_refused_when_applied() {
    let mut state = ClusterState::new(ClusterId::new([1; 16]));
    let before = state.clone();
    for (name, value) in [("colour", 1), ("lease", 1), ("stripe-width", u64::MAX)] {
        let command = Command::ChangeSetting { name: name.into(), value };
        assert_eq!(state.apply(&command).unwrap_err().code(), ErrorCode::InvalidArgument);
    }
    assert_eq!(state, before);
}

#[test]
fn contradictory_settings_are_refused_with_a_remedy() {
    let mut state = ClusterState::new(ClusterId::new([1; 16]));
    let mut refused =
        |name, value| change(&mut state, name, value).unwrap_err().context().to_owned();
    assert!(refused("heartbeat", 3_000).contains("half a lease of 5000 ms"));
    assert!(refused("lease", 1_500).contains("change the other"));
    assert!(refused("chunk-size", 100_000).contains("65536 and 131072"));
    assert!(refused("inline-bytes", 5_000).contains("4096 and 8192"));
    assert!(refused("metadata-lease", 2_244).contains("of at most 2243 ms, and not of 2244 ms"));
    assert!(refused("metadata-take-over-after", 2_000).contains("change the other"));
    assert!(refused("colour", 1).contains("cleanup-interval"));
    assert!(refused("chooser", 7).contains("balanced, randomized, roundrobin"));
    assert!(refused("low-percent", 1).contains("emergency-percent of 2 % is more"));
    let remedy = "raise low-free or lower emergency-free first";
    assert!(refused("emergency-free", 1 << 40).contains(remedy));
    change(&mut state, "user-chunk-size-max", 1 << 20).unwrap();
    let mut refused =
        |name, value| change(&mut state, name, value).unwrap_err().context().to_owned();
    let remedy = "raise user-chunk-size-max or lower user-chunk-size-min first";
    assert!(refused("user-chunk-size-min", 2 << 20).contains(remedy));
}
