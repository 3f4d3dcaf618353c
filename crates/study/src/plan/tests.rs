//! Tests that valid plans are read, and that invalid plans are refused.

use super::*;
use skep_types::ErrorCode;

const START: &str = "name = 'x'\ntitle = 'a title'\n";
const EXPERIMENT: &str = "[[experiment]]\nname = 'one'\ntitle = 'asks'\n";

/// Parses a plan with one experiment, whose factors are `factors`.
fn with(factors: &str) -> Result<Plan> {
    Plan::parse(&format!("{START}{EXPERIMENT}[experiment.factors]\n{factors}"))
}

#[test]
fn omitted_keys_have_defaults() {
    let plan = with("").expect("a plan");
    assert_eq!((plan.seed, plan.block, plan.wait), (1, 10, None));
    assert_eq!(plan.experiments[0].repetitions, 10);
    let conditions: Vec<_> = plan.conditions().collect();
    assert_eq!(conditions.len(), 1);
    let condition = &conditions[0].1;
    assert_eq!((condition.data_bytes, condition.hosts), (Level::Calibrated, Level::Calibrated));
    assert_eq!((condition.transfer_bytes, condition.processes), (1 << 20, 8));
    assert_eq!((condition.access, condition.operation), (Access::SharedFile, Operation::Write));
    assert!(plan.needs_calibration());
}

#[test]
fn experiments_inherit_omitted_factors_from_the_plan() {
    let text = format!(
        "{START}repetitions = 3\nwait = ['1min', '30min']\nlab = {{ shape = 'scenario1' }}\n\
         [factors]\ndata-size = '64MiB'\nhosts = 2\nprocesses = 4\n\
         {EXPERIMENT}repetitions = 5\nfactors = {{ count = [1, 2], chooser = 'balanced' }}\n\
         [[experiment]]\nname = 'two'\ntitle = 't'\nfactors = {{ hosts = [1, 2, 4] }}\n"
    );
    let plan = Plan::parse(&text).expect("a plan");
    assert_eq!(plan.wait, Some((Duration::from_secs(60), Duration::from_secs(1800))));
    let [one, two] = &plan.experiments[..] else { panic!("two experiments") };
    assert_eq!((one.repetitions, two.repetitions), (5, 3));
    assert_eq!(one.factors.conditions().len(), 2);
    let hosts: Vec<_> = two.factors.conditions().iter().map(|it| it.hosts).collect();
    assert_eq!(hosts, [Level::Fixed(1), Level::Fixed(2), Level::Fixed(4)]);
    assert_eq!(two.factors.chooser, [None]);
    assert!(!plan.needs_calibration());
}

#[test]
fn conditions_are_all_combinations_of_the_factor_values() {
    let plan = with(
        "data-size = ['64MiB', '128MiB']\nhosts = [1, 2]\ncount = [1, 2, 3]\n\
         access = ['shared-file', 'file-per-process']\noperation = ['write', 'read']",
    )
    .expect("a plan");
    let mut conditions: Vec<Condition> = plan.conditions().map(|(_, it)| it).collect();
    assert_eq!(conditions.len(), 2 * 2 * 3 * 2 * 2);
    conditions.sort();
    conditions.dedup();
    assert_eq!(conditions.len(), 48, "no two conditions are equal");
}

/// Checks that a plan is refused, and that the error contains all `words`.
fn refused(plan: Result<Plan>, words: &[&str]) {
    let error = plan.expect_err("the plan is invalid");
    assert_eq!(error.code(), ErrorCode::Configuration);
    for word in words {
        assert!(error.context().contains(word), "{word}: {error}");
    }
}

#[test]
fn error_for_an_invalid_value_names_its_key() {
    for (factors, words) in [
        ("count = 0", &["experiment \"one\"", "`count`", "from 1 to 256"][..]),
        ("count = 257", &["`count`", "from 1 to 256"]),
        ("count = []", &["`count`", "empty"]),
        ("count = [1, 2, 1]", &["`count`", "twice", "repetitions"]),
        ("chooser = 'best'", &["`chooser`", "balanced", "randomintranode"]),
        ("data-size = 'much'", &["`data-size`", "256MiB", "calibrated"]),
        ("transfer = 0", &["`transfer`"]),
        ("hosts = 'many'", &["`hosts`", "calibrated"]),
        ("access = 'n-1'", &["`access`", "shared-file", "file-per-process"]),
        ("operation = 'append'", &["`operation`", "write", "read"]),
        ("stripes = 3", &["stripes", "unknown field", "chooser"]),
    ] {
        refused(with(factors), words);
    }
}

#[test]
fn contradictions_between_keys_are_refused_with_a_fix() {
    for (factors, words) in [
        (
            "data-size = '100MiB'\nhosts = 3\nprocesses = 8",
            &["`data-size`", "100MiB", "`hosts` 3", "`processes` 8", "multiple of 24MiB"][..],
        ),
        ("data-size = '4MiB'\nhosts = 8", &["`data-size`", "multiple of 64MiB"]),
        // The calibration may find any of the sizes that it tries, so each of them is checked.
        ("hosts = 3", &["`data-size`", "256MiB", "`hosts` 3"]),
        (
            "targets = 'shared'\napplications = 2\ncount = 4\nchooser = 'balanced'",
            &["`targets` \"shared\"", "`chooser`", "remove one of the two keys"],
        ),
        ("targets = 'separate'\napplications = 2", &["needs `count`"]),
        ("targets = 'separate'\ncount = 2", &["`applications` 1", "no other application"]),
    ] {
        refused(with(factors), words);
    }
    refused(Plan::parse(START), &["[[experiment]]"]);
    let twice = format!("{START}{EXPERIMENT}{EXPERIMENT}");
    refused(Plan::parse(&twice), &["two experiments", "\"one\""]);
    let named = "name = 'A b'\ntitle = 't'\n".to_owned() + EXPERIMENT;
    refused(Plan::parse(&named), &["`name`", "A b"]);
    refused(Plan::parse(&format!("{START}wait = ['2min', '1min']\n{EXPERIMENT}")), &["`wait`"]);
    refused(Plan::parse(&format!("{START}wait = ['2min']\n{EXPERIMENT}")), &["`wait`"]);
    refused(Plan::parse(&format!("{START}block = 0\n{EXPERIMENT}")), &["`block`"]);
    refused(Plan::parse("name = 'x'\n"), &["title"]);
    refused(Plan::parse("name 'x'\n"), &["line 1"]);
    let long: Vec<String> = (1..=200).map(|it| it.to_string()).collect();
    let many = format!(
        "{START}repetitions = 1000\n{EXPERIMENT}factors = {{ count = [{}] }}\n",
        long.join(",")
    );
    refused(Plan::parse(&many), &["more than 100000 runs", "repetitions"]);
    let down = format!("{START}calibration = {{ hosts = [2, 1] }}\n{EXPERIMENT}");
    refused(Plan::parse(&down), &["`calibration.hosts`", "each value must be larger"]);
    let all = format!("{START}calibration = {{ tolerance = 3.0 }}\n{EXPERIMENT}");
    refused(Plan::parse(&all), &["`calibration.tolerance`"]);
}

#[test]
fn plan_larger_than_the_system_is_refused() {
    let system = System { hosts: 4, targets_per_server: Some(vec![4, 4]) };
    let other = System { hosts: 4, targets_per_server: None };
    let fixed = "data-size = '256MiB'\nhosts = ";
    let check = |system: &System, factors: &str, words: &[&str]| {
        let plan = with(factors).expect("the plan itself is valid");
        match (plan.check_system(system), words) {
            (Ok(()), []) => {}
            (Err(error), [_, ..]) => {
                assert_eq!(error.code(), ErrorCode::Configuration);
                for word in words {
                    assert!(error.context().contains(word), "{factors}: {word}: {error}");
                }
            }
            (result, _) => panic!("{factors}: {result:?}"),
        }
    };
    check(&system, &format!("{fixed}4\ncount = 8"), &[]);
    check(&system, &format!("{fixed}8"), &["experiment \"one\"", "`hosts` 8", "the system has 4"]);
    check(&system, &format!("{fixed}2\napplications = 4"), &["`applications` 4", "8 client hosts"]);
    check(&system, &format!("{fixed}4\ncount = 9"), &["`count` 9", "8 targets"]);
    let chooser = |word: &str, count: u32| format!("{fixed}1\nchooser = '{word}'\ncount = {count}");
    check(&system, &chooser("randominternode", 2), &[]);
    check(&system, &chooser("randominternode", 3), &["`count` 3", "2 servers"]);
    check(&system, &chooser("randomintranode", 5), &["`count` 5", "4 targets on the smallest"]);
    let apart = format!("{fixed}1\napplications = 2\ntargets = 'separate'\ncount = ");
    check(&system, &format!("{apart}4"), &[]);
    check(&system, &format!("{apart}5"), &["`count` 5", "4 targets for each application"]);
    check(&other, &format!("{fixed}4"), &[]);
    check(&other, &format!("{fixed}4\ncount = 2"), &["`count`", "mount of Skep"]);
    check(&other, &format!("{fixed}4\nchooser = 'balanced'"), &["`chooser`", "mount of Skep"]);
    check(&system, "hosts = 'calibrated'", &[]);
}
