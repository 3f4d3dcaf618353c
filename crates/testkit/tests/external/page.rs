//! The page of a monitor of a real cluster under load, in headless Chromium, by
//! `tools/page-audit.mjs`: accessibility, hostile texts and the time to load the page.

use crate::prometheus::under_load;
use crate::text;
use skep_testkit::files;
use skep_testkit::program::{finish, run_in};
use skep_testkit::{Cluster, Scratch, Shape, Transport};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Time limit for the whole audit, which pauses in each view until the view has its metrics.
const LONG: Duration = Duration::from_secs(900);

/// Returns the directory of the packages of npm. The directory stays after the test if the suite
/// has a directory for results. So further runs download nothing.
fn packages(scratch: &Scratch) -> PathBuf {
    let results = std::env::var_os("SKEP_EXTERNAL_RESULTS").map(PathBuf::from);
    let packages = results.unwrap_or_else(|| scratch.path().to_owned()).join("packages");
    files::create_dir_all(&packages);
    packages
}

pub(crate) fn monitor_page_passes_the_audit_under_load(_: &()) {
    let scratch = Scratch::new();
    let packages = packages(&scratch);
    run_in(
        &packages,
        "npm",
        ["install", "--prefix", text(&packages), "axe-core", "puppeteer-core"],
    );
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let top = here.ancestors().nth(2).expect("two directories below the top");
    let mut cluster = Cluster::start(Shape { monitor: true, ..Shape::default() });
    let mount = cluster.mount_with(Transport::Device, "job_accounting");
    let monitor = files::read_to_string(cluster.data().join("monitor/address"));
    under_load(mount.path(), || {
        let mut audit = Command::new("node");
        audit.current_dir(top).arg("tools/page-audit.mjs").arg(&packages);
        audit.arg(format!("http://{}/", monitor.trim()));
        let printed = finish(&mut audit, LONG).expect_success();
        println!("{printed}");
        assert!(printed.contains("20 loads: ") && printed.contains("no problem in 52 views"));
    });
    mount.unmount();
    cluster.stop();
}
