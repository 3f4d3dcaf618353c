//! Measures the cost of counting, in nanoseconds for each count. The results are in
//! docs/design/0012-metrics.md.
//!
//! Run: `cargo run --release -p skep-exporter --example cost`

use skep_metrics::{
    Completed, Counter, Histogram, OperationTable, Origin, Registry, Stage, catalog, text,
};
use std::hint::black_box;
use std::time::Duration;

const COUNTS: u32 = 2_000_000;

fn measure(what: &str, mut count: impl FnMut(u32)) {
    (0..COUNTS / 10).for_each(&mut count);
    let begin = skep_env::now();
    (0..COUNTS).for_each(&mut count);
    let took = skep_env::now() - begin;
    println!("{what:<60} {:>8.1} ns", took.as_nanos() as f64 / f64::from(COUNTS));
}

fn completed(round: u32) -> Completed {
    let completed = Completed {
        operation: 96 + round % 4,
        received_bytes: 65_536,
        duration: Duration::from_nanos(50_000 + u64::from(round % 1000) * 100),
        ..Completed::default()
    };
    completed
        .with(Stage::Waiting, Duration::from_nanos(900))
        .with(Stage::Processing, Duration::from_nanos(20_000))
        .with(Stage::Disk, Duration::from_nanos(30_000))
        .with(Stage::Network, Duration::from_nanos(9_000))
}

fn main() {
    let (counter, histogram) = (Counter::default(), Histogram::default());
    measure("add to a counter", |round| black_box(&counter).add(u64::from(round)));
    measure("record a duration in a histogram", |round| {
        black_box(&histogram).record(Duration::from_nanos(u64::from(round)));
    });
    let registry = Registry::new();
    let labels = vec![("target", "7".to_owned())];
    let table = OperationTable::new(&registry, &catalog::STORAGE, labels, |_| None);
    let one = Origin {
        client: Some(1),
        user: Some(1000),
        group: Some(100),
        job: Some(7),
        directory: Some(1),
    };
    measure("record an operation, the same cause each time", |round| {
        table.record(black_box(&completed(round)), &one);
    });
    let other = |causes: u32, round: u32| {
        let cause = Some(round.wrapping_mul(7_919) % causes);
        let directory = cause.map(u64::from);
        Origin { client: cause, user: cause, group: cause, job: cause, directory }
    };
    measure("record an operation, 100 causes in turn", |round| {
        table.record(black_box(&completed(round)), &other(100, round));
    });
    measure("record an operation, 100,000 causes (accounts are replaced)", |round| {
        table.record(black_box(&completed(round)), &other(100_000, round));
    });
    measure("read the clock", |_| {
        black_box(skep_env::now());
    });
    skep_env::block_on(async {
        let begin = skep_env::now();
        for _ in 0..COUNTS {
            black_box(skep_env::timed(async {}).await);
        }
        let took = skep_env::now() - begin;
        println!(
            "{:<60} {:>8.1} ns",
            "time a future that is ready",
            took.as_nanos() as f64 / f64::from(COUNTS)
        );
    })
    .expect("the event loop runs");
    let begin = skep_env::now();
    let page = text::encode(&registry.snapshot());
    println!("encode a page of {} bytes: {:?}", page.len(), skep_env::now() - begin);
}
