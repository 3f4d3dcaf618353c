//! Random operations from two mounts while services are killed. The test makes the same calls on a
//! reference tree on the local file system. Each call must have the same result in both trees, and
//! the trees must be equal.
//!
//! Two tests make one call at a time. In `calls_on_any_mount_match_the_model`, each call uses a
//! random mount. The mounts cache no names and attributes (`attribute_timeout=0`), so each result
//! must be exact. In `calls_on_alternating_mounts_match_the_model`, the mounts use their caches.
//! Whenever the test changes the mount, it waits until the cached entries have expired. The
//! coherence tests check the results in the second before the expiry. The first directories of a
//! tree are on different metadata groups. The cluster of the second test has feature level 2, so
//! that metadata stages changes of two groups (docs/design/0028-staged-transactions.md).
//!
//! In `concurrent_calls_match_the_model`, two threads of each mount make calls at the same time.
//! The mounts cache no names and attributes. `concurrent_staged_calls_match_the_model` is the same
//! on feature level 2. The shared names are in the root directory, so most of the new directories
//! are on another metadata group than the root directory. The tests check these statements of
//! docs/semantics.md:
//! - While other threads make calls, a thread's calls in its own directory have the same results as
//!   on the local file system.
//! - Bursts of calls on shared names are linearizable (1.1, 1.2, 1.4, 1.5): some order of the calls
//!   explains all results and the final tree with its names, link counts and bytes. So creates with
//!   `O_EXCL`, `mkdir`, `link`, `unlink`, `rmdir` and each kind of `rename` are atomic, also if the
//!   call concerns several metadata targets.
//! - Skep executes each call exactly once, although the test kills services (4.1, 4.3), and no two
//!   files have the same inode number (1.8).
//! - A listing has the names that exist all the time (1.6). A read returns bytes of one moment
//!   since its open, or of a write or truncation at the same time (2.2, 2.5, 2.7).
//!
//! The concurrent tests do not check times, permissions, symbolic links, locks and handles that
//! stay open on shared files. The tests also do not check moves of directories to other directories
//! (1.7), and removals of directories while other calls exchange directories. The tests repeat
//! calls that fail with `ESTALE`, so they do not check when calls may fail with this error (1.4).
//!
//! If a run fails, the test prints its seed and the command that repeats the run. A test with one
//! call at a time then removes steps until no shorter sequence fails, and prints the shortest
//! failing sequence. A concurrent test prints the calls of the burst. The seed of a concurrent test
//! determines the calls, but not which calls run at the same time.
//!
//! `SKEP_TEST_OPERATIONS` sets the number of calls of each test. The calls run in rounds of at most
//! 5,000 calls. Each round has its own seed: the seed of the previous round plus one. For a long
//! run:
//!
//! ```text
//! SKEP_TEST_OPERATIONS=100000 cargo test --release -p skep-testkit --test model
//! ```

mod call_steps;
mod concurrent;
mod kills;
mod operation;
mod order;
mod own_tree;
mod shared_call;
mod shared_tree;
mod shrink;
mod trial;
mod view;
mod watch;

use concurrent::ConcurrentTrial;
use skep_testkit::feature_level::STAGING;
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

/// Returns the number of calls and the seed of each round.
fn calls_and_seeds(unless_set: usize) -> impl Iterator<Item = (usize, u64)> {
    let (calls, seed) = (calls(unless_set), Random::seed_of_run());
    (0..calls.div_ceil(ROUND))
        .map(move |number| ((calls - number * ROUND).min(ROUND), seed.wrapping_add(number as u64)))
}

fn rounds(mut trial: Trial, plan: Plan, test: &str) -> Trial {
    for (calls, seed) in calls_and_seeds(plan.calls) {
        round(&mut trial, Plan { calls, ..plan }, seed, test);
    }
    nothing_is_left(trial.cluster());
    trial
}

/// Starts a cluster with three metadata targets, so that renames have up to three participants.
fn cluster(feature_level: u32) -> Cluster {
    Cluster::start(Shape { metadata_targets: 3, feature_level, ..Shape::default() })
}

/// docs/semantics.md 1.1 and 1.2.
#[test]
fn calls_on_any_mount_match_the_model() {
    let mut cluster = cluster(1);
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
    let mut cluster = cluster(STAGING);
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

/// Makes concurrent calls on a cluster with this feature level. `test` is the name of the test.
fn concurrent_calls(feature_level: u32, test: &str) {
    let mut cluster = cluster(feature_level);
    let first = cluster.mount_with(Transport::Uring, "attribute_timeout=0");
    let second = cluster.mount_with(Transport::Device, "attribute_timeout=0");
    let mounts = [first.path().to_owned(), second.path().to_owned()];
    let mut trial = ConcurrentTrial::new(cluster, mounts);
    for (calls, seed) in calls_and_seeds(2000) {
        println!(
            "{calls} calls: SKEP_TEST_SEED={seed} cargo test -p skep-testkit --test model {test}"
        );
        let start = Instant::now();
        let figures = trial.run(calls, seed).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        println!("    {figures}, done in {:?}", start.elapsed());
        assert_ne!(figures.concurrent, 0, "no call ran at the same time as another call");
    }
    nothing_is_left(trial.cluster());
    first.unmount();
    second.unmount();
    trial.cluster().stop();
}

/// docs/semantics.md 1.1, 1.2, 1.4 to 1.6, 1.8, 1.12, 2.2, 2.5, 2.7, 3.1, 4.1 and 4.3.
#[test]
fn concurrent_calls_match_the_model() {
    concurrent_calls(1, "concurrent_calls_match_the_model");
}

/// The same statements, for staged changes of two metadata groups.
#[test]
fn concurrent_staged_calls_match_the_model() {
    concurrent_calls(STAGING, "concurrent_staged_calls_match_the_model");
}
