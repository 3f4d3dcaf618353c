//! `AskBenchmark`: returns the progress of a benchmark.

use super::Call;
use crate::benchmark::Benchmark;
use skep_env::Buf;
use skep_types::Result;
use skep_wire::benchmark::{AskBenchmark, BenchmarkProgress};
use std::rc::Rc;

pub(super) async fn handle(
    benchmark: &Rc<Benchmark>,
    call: Call<AskBenchmark>,
) -> Result<(BenchmarkProgress, Option<Buf>)> {
    Ok((benchmark.ask(call.request.run)?, None))
}
