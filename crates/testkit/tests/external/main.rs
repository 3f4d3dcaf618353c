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
    Case { name: "ansible", body: ansible::collection_deploys_and_removes_a_cluster },
    Case { name: "container", body: container::image_is_built_and_runs_a_cluster },
    Case { name: "postgres", body: postgres::runs_and_recovers },
    Case { name: "dbench", body: dbench::runs_on_two_mounts },
    Case { name: "prometheus", body: prometheus::shows_a_cluster_on_every_panel },
    Case {
        name: "copies::alerts_by_prometheus",
        body: copies::alerts::begin_and_end_by_prometheus,
    },
    Case { name: "copies::alerts_by_monitor", body: copies::alerts::begin_and_end_by_the_monitor },
    Case { name: "copies::ganglia", body: copies::ganglia::programs_read_each_server },
    Case { name: "copies::influx", body: copies::influx::has_every_point },
    Case { name: "copies::prometheus", body: copies::arrive_in_prometheus },
    Case { name: "mpi", body: mpi::ranks_of_two_mounts_write_one_file },
    Case { name: "page", body: page::has_no_problem_under_load },
    Case { name: "s3", body: object_stores::copies_to_another_implementation_and_back },
    Case { name: "slurm", body: slurm::jobs_get_a_file_system_on_demand },
    Case { name: "static", body: static_program::runs_without_libraries_of_the_host },
    Case { name: "templates", body: templates::pass_the_linters_of_their_vendors },
    Case { name: "xfstests", body: xfstests::fails_only_the_listed_tests },
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
