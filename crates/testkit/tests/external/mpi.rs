//! MPI-IO through ROMIO (`mpich`). The ranks of one MPI program run on two mounts, and together
//! write a single file.

use crate::text;
use skep_testkit::files;
use skep_testkit::program::{finish, run};
use skep_testkit::{Cluster, Scratch, Shape, Transport};
use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/external/collective.c");
const RANKS: usize = 4;
/// Time limit for the program. The program ends within this limit even if all ranks run on one
/// core.
const PATIENCE: Duration = Duration::from_secs(300);

/// The MPI program checks every byte that it reads.
pub(crate) fn ranks_of_two_mounts_write_one_file(_: &()) {
    let mut cluster = Cluster::start(Shape::default());
    let second = cluster.mount(Transport::Device);
    let scratch = Scratch::new();
    let program = scratch.join("collective");
    run("mpicc.mpich", ["-O1", "-Wall", "-Werror", "-o", text(&program), SOURCE]);
    let mut command = Command::new("mpirun.mpich");
    command.args(["-n", &RANKS.to_string()]).arg(&program);
    command.arg(cluster.path()).arg(second.path());
    let printed = finish(&mut command, PATIENCE).expect_success();
    assert_eq!(printed, format!("{RANKS} ranks\n"));
    let lines = files::read_to_string(cluster.path().join("shared"));
    assert_eq!(lines.lines().count(), RANKS * 40);
    assert_eq!(
        lines.lines().collect::<BTreeSet<_>>().len(),
        RANKS * 40,
        "the file has each line once"
    );
    second.unmount();
    cluster.stop();
}
