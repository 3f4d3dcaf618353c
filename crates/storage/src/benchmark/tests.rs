//! Tests of a target's benchmarks without the network.

use super::*;
use skep_types::Result;

const TARGET: TargetId = TargetId::new(1);

const PLAN: StartBenchmark = StartBenchmark {
    run: 7,
    is_read: false,
    streams: 3,
    stream_bytes: 64 << 10,
    block_bytes: 16 << 10,
};

fn on_loop(test: impl AsyncFnOnce(&Path) -> Result<()> + 'static) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().to_owned();
    skep_env::block_on(async move { test(&path).await }).unwrap().unwrap();
}

async fn until_over(benchmark: &Benchmark, run: u64) -> Result<BenchmarkProgress> {
    loop {
        let progress = benchmark.ask(run)?;
        if progress.is_over {
            return Ok(progress);
        }
        skep_env::yield_now().await;
    }
}

#[test]
fn benchmark_writes_reads_and_removes_its_files() {
    on_loop(async |place| {
        let benchmark = Benchmark::new(TARGET, place, None);
        for is_read in [false, true] {
            benchmark.start(StartBenchmark { is_read, ..PLAN }, 1 << 30)?;
            let progress = until_over(&benchmark, 7).await?;
            assert_eq!(progress.failure, None);
            assert_eq!((progress.bytes, progress.streams.len()), (3 * PLAN.stream_bytes, 3));
            assert!(progress.streams.iter().all(|(begin, end)| begin < end));
        }
        let files: Vec<u64> = std::fs::read_dir(place.join(DIRECTORY))?
            .map(|entry| entry?.metadata().map(|it| it.len()))
            .collect::<io::Result<_>>()?;
        assert_eq!(files, [64 << 10; 3]);
        benchmark.stop(7).await?;
        benchmark.stop(7).await?;
        assert!(!place.join(DIRECTORY).exists());
        assert_eq!(benchmark.ask(7).unwrap_err().code(), ErrorCode::NotFound);
        Ok(())
    });
}

#[test]
fn invalid_benchmark_plans_are_refused() {
    on_loop(async |place| {
        let benchmark = Benchmark::new(TARGET, place, None);
        let refused = |plan, free| benchmark.start(plan, free).unwrap_err().code();
        let invalid = ErrorCode::InvalidArgument;
        assert_eq!(refused(StartBenchmark { streams: 0, ..PLAN }, 1 << 30), invalid);
        assert_eq!(refused(StartBenchmark { streams: 1000, ..PLAN }, 1 << 30), invalid);
        assert_eq!(refused(StartBenchmark { block_bytes: 0, ..PLAN }, 1 << 30), invalid);
        assert_eq!(refused(StartBenchmark { block_bytes: 5000, ..PLAN }, 1 << 30), invalid);
        assert_eq!(refused(StartBenchmark { stream_bytes: 5000, ..PLAN }, 1 << 30), invalid);
        assert_eq!(refused(StartBenchmark { stream_bytes: 0, ..PLAN }, 1 << 30), invalid);
        assert_eq!(refused(StartBenchmark { is_read: true, ..PLAN }, 1 << 30), invalid);
        assert_eq!(refused(PLAN, 1000), ErrorCode::NoSpace);
        assert!(!place.join(DIRECTORY).exists());
        benchmark.start(PLAN, 1 << 30)?;
        assert_eq!(refused(StartBenchmark { run: 8, ..PLAN }, 1 << 30), ErrorCode::InUse);
        // A repeated request must not start the phase a second time.
        benchmark.start(PLAN, 1 << 30)?;
        assert_eq!(until_over(&benchmark, 7).await?.failure, None);
        benchmark.stop(8).await?;
        benchmark.ask(7)?;
        Ok(())
    });
}

#[test]
fn stop_ends_a_running_benchmark_and_removes_its_files() {
    on_loop(async |place| {
        let benchmark = Benchmark::new(TARGET, place, None);
        let long = StartBenchmark { stream_bytes: 1 << 40, ..PLAN };
        benchmark.start(long, u64::MAX)?;
        while benchmark.ask(7)?.bytes == 0 {
            skep_env::yield_now().await;
        }
        benchmark.stop(7).await?;
        assert!(!place.join(DIRECTORY).exists());
        benchmark.start(StartBenchmark { run: 8, ..PLAN }, 1 << 30)?;
        assert_eq!(until_over(&benchmark, 8).await?.failure, None);
        Ok(())
    });
}

#[test]
fn next_start_removes_benchmark_files_of_a_killed_service() {
    on_loop(async |place| {
        std::fs::create_dir(place.join(DIRECTORY))?;
        std::fs::write(place.join(DIRECTORY).join("0"), "left")?;
        std::fs::write(place.join("other"), "stays")?;
        Benchmark::remove_leftovers(place)?;
        assert!(!place.join(DIRECTORY).exists() && place.join("other").exists());
        let benchmark = Benchmark::new(TARGET, place, None);
        benchmark.start(PLAN, 1 << 30)?;
        benchmark.end().await;
        assert!(!place.join(DIRECTORY).exists());
        Ok(())
    });
}

#[test]
fn next_benchmark_retries_a_failed_removal_of_files() {
    on_loop(async |place| {
        let benchmark = Benchmark::new(TARGET, place, None);
        benchmark.start(PLAN, 1 << 30)?;
        until_over(&benchmark, 7).await?;
        // A directory at the path of a benchmark file makes the removal of the file fail.
        let obstacle = place.join(DIRECTORY).join("5");
        std::fs::create_dir(&obstacle)?;
        benchmark.stop(7).await.unwrap_err();
        let refused = benchmark.retry_removal().await.unwrap_err();
        for part in ["benchmark 7", "cannot be removed", obstacle.to_str().unwrap()] {
            assert!(refused.context().contains(part), "{refused}");
        }
        std::fs::remove_dir(&obstacle)?;
        benchmark.retry_removal().await?;
        assert!(!place.join(DIRECTORY).exists());
        let next = StartBenchmark { run: 8, ..PLAN };
        benchmark.start(next, 1 << 30)?;
        // `retry_removal` keeps the files of a running benchmark.
        benchmark.retry_removal().await?;
        assert_eq!(until_over(&benchmark, 8).await?.failure, None);
        assert!(place.join(DIRECTORY).exists());
        Ok(())
    });
}

#[test]
fn repeated_stop_keeps_the_files_of_the_next_benchmark() {
    on_loop(async |place| {
        let benchmark = Benchmark::new(TARGET, place, None);
        benchmark.start(PLAN, 1 << 30)?;
        until_over(&benchmark, 7).await?;
        let stop = || {
            let benchmark = Rc::clone(&benchmark);
            skep_env::spawn(async move { benchmark.stop(7).await })
        };
        let (first, second) = (stop(), stop());
        first.await?;
        benchmark.start(StartBenchmark { run: 8, ..PLAN }, 1 << 30)?;
        second.await?;
        assert_eq!(until_over(&benchmark, 8).await?.failure, None);
        assert_eq!(std::fs::read_dir(place.join(DIRECTORY))?.count(), 3);
        Ok(())
    });
}
