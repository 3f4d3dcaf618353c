//! `dbench`: several clients replay the recorded calls of office programs on a file server.

use crate::text;
use skep_testkit::files;
use skep_testkit::program::finish;
use skep_testkit::{Cluster, Shape, Transport};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Time limit for dbench. A whole run of dbench ends within this limit.
const PATIENCE: Duration = Duration::from_secs(300);

fn dbench(directory: &Path) -> String {
    let mut command = Command::new("dbench");
    command.args(["-D", text(directory), "-t", "30", "4"]);
    finish(&mut command, PATIENCE).expect_success()
}

/// Runs dbench on two mounts at the same time. The clients of each mount work in a separate
/// directory.
pub(crate) fn dbench_runs_on_two_mounts_at_the_same_time(_: &()) {
    let mut cluster = Cluster::start(Shape::default());
    let second = cluster.mount(Transport::Device);
    let directories = ["one", "other"];
    for name in directories {
        files::create_dir(cluster.path().join(name));
    }
    std::thread::scope(|scope| {
        let places = [cluster.path().join(directories[0]), second.path().join(directories[1])];
        let runs = places.map(|place| scope.spawn(move || dbench(&place)));
        for run in runs {
            let printed = run.join().expect("dbench ran");
            let result = printed.lines().find(|line| line.starts_with("Throughput"));
            println!("{}", result.unwrap_or_else(|| panic!("no result:\n{printed}")));
        }
    });
    second.unmount();
    cluster.stop();
}
