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
fn omitted_plan_keys_have_their_default_values() {
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

#[test]
fn each_pair_of_hosts_and_processes_is_one_condition() {
    let plan = with("data-size = '1MiB'\ndata-per = 'process'\nclients = ['1x1', '2x1', '2x8']")
        .expect("a plan");
    let found: Vec<_> = plan.conditions().map(|(_, it)| (it.hosts, it.processes)).collect();
    assert_eq!(found, [(1, 1), (2, 1), (2, 8)].map(|(hosts, each)| (Level::Fixed(hosts), each)));
    assert!(plan.conditions().all(|(_, it)| it.data_per == DataPer::Process));
    assert!(!plan.needs_calibration());
    let text = format!(
        "{START}[factors]\ndata-size = '8MiB'\nclients = '2x2'\n{EXPERIMENT}\
         [[experiment]]\nname = 'two'\ntitle = 't'\nfactors = {{ hosts = 1, processes = 4 }}\n"
    );
    let plan = Plan::parse(&text).expect("a plan");
    let found: Vec<_> = plan.conditions().map(|(_, it)| (it.hosts, it.processes)).collect();
    assert_eq!(found, [(Level::Fixed(2), 2), (Level::Fixed(1), 4)], "hosts replace pairs");
}

#[test]
fn total_number_of_processes_is_divided_among_the_hosts() {
    let plan =
        with("data-size = '16MiB'\nclients = { hosts = 4, total-processes = [1, 2, 4, 8, 16] }")
            .expect("a plan");
    let found: Vec<_> = plan.conditions().map(|(_, it)| (it.hosts, it.processes)).collect();
    let wanted = [(1, 1), (2, 1), (4, 1), (4, 2), (4, 4)];
    assert_eq!(found, wanted.map(|(hosts, each)| (Level::Fixed(hosts), each)));
}

#[test]
fn metadata_operations_need_no_data_size() {
    let plan = with("operation = ['create', 'stat']\nhosts = 2\nfiles = [10, 20]").expect("plan");
    assert_eq!(plan.conditions().count(), 4);
    assert!(!plan.needs_calibration());
    assert_eq!(Operation::Stat.quantity(), Quantity::Names);
    for (word, operation) in Operation::ALL {
        assert_eq!(operation.word(), *word);
        assert!(
            with(&format!("operation = '{word}'\nhosts = 1\ndata-size = '8MiB'")).is_ok()
                != operation.is_on_names()
        );
    }
}

#[test]
fn hardware_limits_are_parsed_as_rates_per_second() {
    let text = format!(
        "{START}[limit]\nserver = '768MB/s'\nclient = '10Gbit'\nserver-iops = 22560\n{EXPERIMENT}"
    );
    let limit = Plan::parse(&text).expect("a plan").limit;
    assert_eq!(limit.server_bytes_per_second, Some(768_000_000));
    assert_eq!(limit.client_bytes_per_second, Some(1_250_000_000));
    assert_eq!(limit.server_operations_per_second, Some(22_560));
    let wrong = format!("{START}[limit]\nserver = 'much'\n{EXPERIMENT}");
    refused(Plan::parse(&wrong), &["`limit.server`", "much"]);
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
        ("clients = '8'", &["`clients`", "8x4"]),
        ("clients = ['2x0']", &["`clients`", "2x0"]),
        ("clients = { hosts = 4 }", &["`clients`", "total-processes"]),
        ("clients = { hosts = 0, total-processes = 1 }", &["`clients`", "from 1"]),
        ("clients = { hosts = 4, total-processes = 6 }", &["6 processes", "a multiple of 4"]),
        ("clients = { hosts = 1, total-processes = 1025 }", &["`clients`", "from 1 to 1024"]),
        ("data-per = 'file'", &["`data-per`", "application", "process"]),
        ("cache = 'hot'", &["`cache`", "dropped", "kept"]),
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
        // The calibration may find any of the sizes that it tries, so `parse` checks each size.
        ("hosts = 3", &["`data-size`", "256MiB", "`hosts` 3"]),
        (
            "targets = 'shared'\napplications = 2\ncount = 4\nchooser = 'balanced'",
            &["`targets` \"shared\"", "`chooser`", "remove one of the two keys"],
        ),
        ("targets = 'separate'\napplications = 2", &["needs `count`"]),
        ("targets = 'separate'\ncount = 2", &["`applications` 1", "no other application"]),
        ("clients = '2x2'\nhosts = 2", &["`clients`", "remove `hosts`"]),
        ("servers = 1\nchooser = 'balanced'", &["`servers` 1", "`chooser`", "remove one"]),
        ("operation = ['write', 'stat']", &["\"write\"", "\"stat\"", "an experiment for each"]),
        ("operation = 'stat'", &["\"stat\"", "needs `hosts`"]),
        ("operation = 'stat'\nhosts = 1\ncache = 'bypassed'", &["bypassed", "no effect"]),
        ("hosts = 1\ndata-size = 8000\ntransfer = 1000\ncache = 'bypassed'", &["multiple of 512"]),
        ("operation = 'stat'\nhosts = 1\ncount = 2", &["`count` has no effect", "\"stat\""]),
        ("operation = 'stat'\nhosts = 1\ndata-size = 1024", &["`data-size`", "`files`"]),
        (
            "data-size = '100KiB'\ndata-per = 'process'\nhosts = 3",
            &["`data-size` 100KiB", "multiple of 1MiB"],
        ),
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
    check(&system, &format!("{fixed}1\nservers = [1, 2]"), &[]);
    check(&system, &format!("{fixed}1\nservers = 3"), &["`servers` 3", "2 servers"]);
    check(&system, &format!("{fixed}1\nservers = 1\ncount = 5"), &["`count` 5", "4 targets"]);
    check(&other, &format!("{fixed}1\nservers = 1"), &["`servers`", "mount of Skep"]);
}
