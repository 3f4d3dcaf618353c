//! Longer runs of external programs and test suites. `cargo xtask external` lists these runs with
//! their requirements, and starts this program with the names of the selected runs.
//!
//! CI does not start these runs. CI runs shorter tests with external programs, in `applications`
//! and `programs`.

mod ansible;
mod container;
mod copies;
mod dbench;
mod mpi;
mod object_stores;
mod page;
mod postgres;
mod prometheus;
mod slurm;
mod static_program;
mod templates;
mod xfstests;

use skep_testkit::suite::{Case, Suite};
use std::path::Path;
use std::process::ExitCode;

/// Each test starts its own cluster.
const CASES: &[Case<()>] = &[
    Case { name: "ansible", body: ansible::ansible_collection_deploys_and_removes_a_cluster },
    Case { name: "container", body: container::container_image_is_built_and_runs_a_cluster },
    Case { name: "postgres", body: postgres::postgres_loses_no_committed_row_after_kills },
    Case { name: "dbench", body: dbench::dbench_runs_on_two_mounts_at_the_same_time },
    Case { name: "prometheus", body: prometheus::each_dashboard_query_has_a_result_in_prometheus },
    Case {
        name: "copies::alerts_by_prometheus",
        body: copies::alerts::alertmanager_gets_alerts_and_their_end_from_prometheus,
    },
    Case {
        name: "copies::alerts_by_monitor",
        body: copies::alerts::alertmanager_gets_alerts_and_their_end_from_the_monitor,
    },
    Case {
        name: "copies::ganglia",
        body: copies::ganglia::ganglia_stores_the_metrics_of_each_server,
    },
    Case {
        name: "copies::influx",
        body: copies::influx::influxdb_has_every_point_that_the_monitor_writes,
    },
    Case {
        name: "copies::prometheus",
        body: copies::prometheus_has_the_metrics_that_the_monitor_writes,
    },
    Case { name: "mpi", body: mpi::ranks_of_two_mounts_write_one_file },
    Case { name: "page", body: page::monitor_page_passes_the_audit_under_load },
    Case { name: "s3", body: object_stores::tree_is_copied_to_a_third_party_store_and_back },
    Case { name: "slurm", body: slurm::slurm_jobs_get_an_on_demand_file_system },
    Case { name: "static", body: static_program::static_program_needs_no_libraries_of_the_host },
    Case { name: "templates", body: templates::templates_pass_the_linters_of_their_vendors },
    Case { name: "xfstests", body: xfstests::xfstests_fails_only_tests_with_a_listed_reason },
];

fn text(path: &Path) -> &str {
    path.to_str().expect("test directories have ASCII names")
}

fn main() -> ExitCode {
    let mut suite = Suite::from_arguments();
    let place = "external";
    if suite.starts(place, &[CASES]) {
        suite.run(place, &[CASES], &());
    }
    suite.end()
}
