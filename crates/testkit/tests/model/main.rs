//! Random operations from two mounts, including renames between metadata targets, while services
//! are killed. The test makes the same calls on a reference tree on the local file system. Each
//! call must have the same result in both trees, and the trees must be equal.
//!
//! There are two tests. In `calls_on_any_mount_match_the_model`, each call uses a random mount. The
//! mounts cache no names and attributes (`attribute_timeout=0`), so each result must be exact. In
//! `calls_on_alternating_mounts_match_the_model`, the mounts use their caches. Whenever the test
//! changes the mount, it waits until the cached entries have expired. The coherence tests check the
//! results in the second before the expiry, and the simulator checks concurrent operations.
//!
//! If a run fails, the test prints its seed and the command that runs it again. Then the test
//! removes steps as long as the remaining steps still fail, and prints the shortest failing
//! sequence.
//!
//! `SKEP_TEST_OPERATIONS` sets the number of calls of each test. The calls run in rounds of at most
//! 5,000 calls. Each round has its own seed: the seed of the previous round plus one. For a long
//! run:
//!
//! ```text
//! SKEP_TEST_OPERATIONS=100000 cargo test --release -p skep-testkit --test model
//! ```

mod kills;
mod operation;
mod shrink;
mod trial;
mod view;
mod watch;

use skep_testkit::{Cluster, Random, Shape, Transport, wait_for};
use std::time::{Duration, Instant};
use trial::{Plan, Trial};

/// Maximum number of calls with one seed.
const ROUND: usize = 5000;
/// Maximum age of cached names and attributes.
const STALENESS: Duration = Duration::from_millis(1050);
/// Time limit for the cluster to remove the chunk files of removed files.
const CLEAN_UP: Duration = Duration::from_secs(60);

fn calls(unless_set: usize) -> usize {
    match std::env::var("SKEP_TEST_OPERATIONS") {
        Ok(text) => text.parse().expect("SKEP_TEST_OPERATIONS is a number"),
        Err(_) => unless_set,
    }
}

fn round(trial: &mut Trial, plan: Plan, seed: u64, test: &str) {
    println!(
        "{} calls: SKEP_TEST_SEED={seed} cargo test -p skep-testkit --test model {test}",
        plan.calls
    );
    let start = Instant::now();
    let steps = plan.steps(&mut Random::new(seed));
    let Err((last, what)) = trial.run(&steps) else {
        println!("    done in {:?}", start.elapsed());
        return;
    };
    println!("{what}");
    assert!(!trial.stood_still(), "seed {seed}: {what}");
    let Some((shortest, last)) = shrink::shrink(trial, &steps[..=last]) else {
        panic!("seed {seed}: {what}\nthe second run did not fail");
    };
    println!("the shortest list of steps that fails:");
    shortest.iter().for_each(|step| println!("    {step:?}"));
    panic!("seed {seed}: {what}\nthe shortest list of steps: {last}");
}

/// Waits until the cluster has no lock and no chunk file any more. The caller must have removed and
/// closed all files.
fn nothing_is_left(cluster: &Cluster) {
    wait_for("no lock and no chunk file is left", CLEAN_UP, || {
        // Retry, because the last killed service may not have restarted yet.
        let listed = cluster.try_skep(&["lock", "list", "--output", "json"]);
        let is_free = listed.status.success() && listed.stdout.trim() == "[]";
        (is_free && cluster.chunk_files().is_empty()).then_some(())
    });
}

fn rounds(mut trial: Trial, plan: Plan, test: &str) -> Trial {
    let seed = Random::seed_of_run();
    let mut left = calls(plan.calls);
    for number in 0.. {
        if left == 0 {
            break;
        }
        let plan = Plan { calls: left.min(ROUND), ..plan };
        left -= plan.calls;
        round(&mut trial, plan, seed.wrapping_add(number), test);
    }
    nothing_is_left(trial.cluster());
    trial
}

/// Starts a cluster with three metadata targets, so that renames have up to three participants.
fn cluster() -> Cluster {
    Cluster::start(Shape { metadata_targets: 3, ..Shape::default() })
}

/// docs/semantics.md 1.1 and 1.2.
#[test]
fn calls_on_any_mount_match_the_model() {
    let mut cluster = cluster();
    let first = cluster.mount_with(Transport::Uring, "attribute_timeout=0");
    let second = cluster.mount_with(Transport::Device, "attribute_timeout=0");
    let mounts = [first.path().to_owned(), second.path().to_owned()];
    let plan = Plan { calls: 4000, between_comparisons: 250, kill_every: 400, in_turns: false };
    let trial = rounds(
        Trial::new(cluster, mounts, Duration::ZERO),
        plan,
        "calls_on_any_mount_match_the_model",
    );
    first.unmount();
    second.unmount();
    trial.cluster().stop();
}

/// docs/semantics.md 1.1 and 1.2.
#[test]
fn calls_on_alternating_mounts_match_the_model() {
    let mut cluster = cluster();
    let second = cluster.mount(Transport::Device);
    let mounts = [cluster.path().to_owned(), second.path().to_owned()];
    let plan = Plan { calls: 2000, between_comparisons: 150, kill_every: 400, in_turns: true };
    let trial = rounds(
        Trial::new(cluster, mounts, STALENESS),
        plan,
        "calls_on_alternating_mounts_match_the_model",
    );
    second.unmount();
    trial.cluster().stop();
}
