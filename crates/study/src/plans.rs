//! The predefined plans: the plans of the published study of target allocation, a short plan for
//! tests, a plan for a first study of a new system, and plans of other published measurements.

use crate::plan::Plan;
use skep_types::{Error, ErrorCode, Result};
use std::path::Path;

/// The predefined plans: the name and the text of each.
const READY: &[(&str, &str)] = &[
    ("scenario1", include_str!("../plans/scenario1.toml")),
    ("scenario2", include_str!("../plans/scenario2.toml")),
    ("concurrent", include_str!("../plans/concurrent.toml")),
    ("reads", include_str!("../plans/reads.toml")),
    ("data-sizes", include_str!("../plans/data-sizes.toml")),
    ("small", include_str!("../plans/small.toml")),
    ("site", include_str!("../plans/site.toml")),
    ("alces", include_str!("../plans/alces.toml")),
    ("dell", include_str!("../plans/dell.toml")),
    ("dell-random", include_str!("../plans/dell-random.toml")),
    ("azure-throughput", include_str!("../plans/azure-throughput.toml")),
    ("azure-iops", include_str!("../plans/azure-iops.toml")),
    ("azure-metadata", include_str!("../plans/azure-metadata.toml")),
    ("azure-scale", include_str!("../plans/azure-scale.toml")),
    ("azure-iops-scale", include_str!("../plans/azure-iops-scale.toml")),
];

/// Returns all predefined plans.
///
/// # Panics
/// This function never panics, because a test parses each predefined plan.
pub fn all() -> Vec<Plan> {
    READY.iter().map(|(_, text)| Plan::parse(text).expect("each built-in plan is valid")).collect()
}

/// Returns the names of all predefined plans.
pub fn names() -> impl Iterator<Item = &'static str> {
    READY.iter().map(|(name, _)| *name)
}

/// Returns the text of a predefined plan.
///
/// # Errors
/// `NotFound`. The error lists the names of all predefined plans.
pub fn text(name: &str) -> Result<&'static str> {
    let found = READY.iter().find(|(ready, _)| *ready == name);
    found.map(|(_, text)| *text).ok_or_else(|| {
        let names: Vec<&str> = names().collect();
        Error::new(
            ErrorCode::NotFound,
            format!(
                "cannot find the predefined plan '{name}'; the predefined plans are {}",
                names.join(", ")
            ),
        )
    })
}

/// Returns the text of a plan. A name that contains a dot or a slash is the path of a file. Any
/// other name is the name of a predefined plan.
///
/// # Errors
/// - `NotFound` if there is no predefined plan with this name.
/// - The error of the file system if the file cannot be read.
pub fn find(name: &str) -> Result<String> {
    if !name.contains(['.', '/']) {
        return text(name).map(str::to_owned).map_err(|error| {
            let what = format!("{}; write ./{name} for a plan file of your own", error.context());
            Error::new(error.code(), what)
        });
    }
    std::fs::read_to_string(Path::new(name)).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            Error::new(ErrorCode::NotFound, format!("cannot find plan file {name}: no such file"))
        }
        _ => Error::from(error).within(name),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab;
    use crate::order;
    use crate::plan::{Level, System};
    use crate::record::Settings;

    #[test]
    fn built_in_plans_are_valid_and_fit_their_labs() {
        for ((name, _), plan) in READY.iter().zip(all()) {
            assert_eq!(plan.name, *name);
            if let Some(lab) = &plan.lab {
                let shape = lab::description(lab).expect("a shape of the lab");
                let targets = vec![u32::from(shape.targets); usize::from(shape.servers)];
                let hosts = u32::from(shape.clients);
                let published =
                    ["scenario1", "scenario2", "concurrent", "reads", "data-sizes", "small"];
                if published.contains(name) {
                    assert_eq!(targets, [4, 4], "the published cluster has this size");
                }
                let system = System { hosts, targets_per_server: Some(targets) };
                plan.check_system(&system).unwrap_or_else(|error| panic!("{name}: {error}"));
            }
            if !["azure-scale", "azure-iops-scale"].contains(name) {
                let system = System { hosts: 16, targets_per_server: Some(vec![4; 4]) };
                plan.check_system(&system).unwrap_or_else(|error| panic!("{name}: {error}"));
            }
            assert_eq!(plan.lab.is_none(), *name == "site", "{name}");
            assert!(
                order::list(&plan).len() <= 400,
                "the runs of {name} take at most an afternoon"
            );
        }
    }

    /// docs/operations/studies.md has a table with the run times of the plans on a small host. The
    /// table omits `small`, and `site`, which needs a real system.
    #[test]
    fn table_of_run_times_has_the_number_of_runs_of_each_plan() {
        let page = include_str!("../../../docs/operations/studies.md");
        for plan in all().iter().filter(|plan| !["site", "small"].contains(&plan.name.as_str())) {
            let row = format!("| `{}` | {} | ", plan.name, order::list(plan).len());
            assert!(page.contains(&row), "docs/operations/studies.md lacks: {row}");
        }
    }

    #[test]
    fn plan_azure_scale_has_the_published_numbers_of_hosts() {
        let plan = Plan::parse(text("azure-scale").expect("a plan")).expect("valid");
        let lab = lab::description(plan.lab.as_ref().expect("a lab")).expect("a shape");
        assert_eq!((lab.servers, lab.clients), (20, 46));
        let hosts = Level::Fixed(46);
        assert!(plan.conditions().all(|(_, condition)| condition.hosts == hosts));
        let servers: Vec<_> = plan.conditions().map(|(_, it)| it.servers).collect();
        assert_eq!(servers[..11], [1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20].map(Some));
        assert_eq!(servers[11..], [1, 4, 10, 20].map(Some), "the reads");
    }

    #[test]
    fn plan_azure_iops_scale_has_the_published_numbers_of_servers() {
        let plan = Plan::parse(text("azure-iops-scale").expect("a plan")).expect("valid");
        let lab = lab::description(plan.lab.as_ref().expect("a lab")).expect("a shape");
        assert_eq!((lab.servers, lab.targets, lab.clients), (20, 1, 36));
        let servers: Vec<_> = plan.conditions().map(|(_, it)| it.servers).collect();
        assert_eq!(servers, [1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20].map(Some));
        // The limit in the plan is the rate of one target in transfers.
        let rate = lab.target_rate.expect("a rate of targets").bytes_per_second();
        assert_eq!(plan.limit.server_operations_per_second, Some(rate / 4096));
    }

    #[test]
    fn plan_azure_throughput_varies_processes_of_one_server() {
        let plan = Plan::parse(text("azure-throughput").expect("a plan")).expect("valid");
        let conditions = plan.conditions().filter(|(it, _)| it.name == "total-processes");
        let all = conditions.map(|(_, it)| Settings::new(&it, None).expect("no calibration"));
        let all: Vec<Settings> = all.collect();
        assert!(all.iter().all(|it| it.servers == Some(1) && it.data_bytes == 64 << 20));
        let mut processes: Vec<u64> = all.iter().map(Settings::processes_of_application).collect();
        processes.sort_unstable();
        processes.dedup();
        assert_eq!((all.len(), processes), (10, vec![1, 2, 4, 8, 16]));
    }

    #[test]
    fn plan_data_sizes_varies_size_alone_around_half_stripes() {
        let plan = Plan::parse(text("data-sizes").expect("a plan")).expect("valid");
        let of = |name: &str| -> Vec<(u64, u64)> {
            let conditions = plan.conditions().filter(|(experiment, _)| experiment.name == name);
            let all = conditions.map(|(_, it)| Settings::new(&it, None).expect("no calibration"));
            all.map(|it| (it.processes_of_application(), it.data_bytes)).collect()
        };
        let rise = of("rise");
        assert!(rise.iter().all(|(processes, _)| *processes == 32), "{rise:?}");
        assert!(rise.windows(2).all(|two| two[0].1 < two[1].1), "{rise:?}");
        // 1 to 8 MiB for each process: multiples of half a stripe of 4 MiB, and amounts between.
        let holes: Vec<u64> =
            of("holes").iter().map(|(processes, data)| data / processes).collect();
        assert_eq!(holes, [1, 2, 3, 4, 5, 6, 7, 8].map(|it: u64| it << 20));
    }

    #[test]
    fn plans_for_a_lab_need_no_calibration() {
        for plan in all().iter().filter(|plan| plan.lab.is_some()) {
            assert!(!plan.needs_calibration(), "{}", plan.name);
            let is_fixed = |hosts| matches!(hosts, Level::Fixed(_));
            assert!(plan.conditions().all(|(_, it)| is_fixed(it.hosts)), "{}", plan.name);
        }
    }

    #[test]
    fn error_for_an_unknown_plan_lists_plan_names() {
        let error = find("scenario9").expect_err("none");
        assert_eq!(error.code(), ErrorCode::NotFound);
        assert!(error.context().contains("scenario1, scenario2"), "{error}");
        assert!(error.context().contains("./scenario9"), "{error}");
        assert_eq!(find("./none.toml").expect_err("none").code(), ErrorCode::NotFound);
        assert!(find("small").expect("a plan").contains("name = \"small\""));
    }
}
