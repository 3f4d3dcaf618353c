//! Locks of programs on two mounts of one cluster. The mounts have different transports.

mod between_mounts;
mod deaths;
mod program;

use skep_testkit::files;
use skep_testkit::suite::{Case, Suite};
use skep_testkit::{Cluster, Shape, Transport};
use std::path::PathBuf;
use std::process::ExitCode;

/// The paths of a single file on several mounts.
pub(crate) struct Mounts {
    pub(crate) one: PathBuf,
    pub(crate) other: PathBuf,
}

impl Mounts {
    /// Runs the test `story` twice. For the second run, the two mounts exchange their roles, so
    /// that each transport has each role.
    pub(crate) fn both_ways(&self, story: impl Fn(&PathBuf, &PathBuf)) {
        story(&self.one, &self.other);
        story(&self.other, &self.one);
    }
}

fn main() -> ExitCode {
    let mut suite = Suite::from_arguments();
    let place = "uring-and-device";
    let cases = between_mounts::CASES;
    if suite.starts(place, &[cases]) {
        let mut cluster = Cluster::start(Shape::default());
        let second = cluster.mount(Transport::Device);
        for case in cases {
            let name = case.name.replace("::", "-");
            let mounts =
                Mounts { one: cluster.path().join(&name), other: second.path().join(&name) };
            suite.check("a file for each test", || {
                files::write(&mounts.one, "00000000");
            });
            suite.run(place, &[&[Case { name: case.name, body: case.body }]], &mounts);
        }
        suite.check("the second mount ends", || second.unmount());
        suite.check("the cluster stops", || cluster.stop_checked(&[]));
    }
    let place = "deaths";
    if suite.starts(place, &[deaths::CASES]) {
        suite.run(place, &[deaths::CASES], &());
    }
    suite.end()
}
