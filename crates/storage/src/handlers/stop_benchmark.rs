//! `StopBenchmark`: stops a benchmark and removes its files.

use super::Call;
use crate::benchmark::Benchmark;
use skep_env::Buf;
use skep_types::Result;
use skep_wire::benchmark::StopBenchmark;
use skep_wire::management::EmptyReply;
use std::rc::Rc;

pub(super) async fn handle(
    benchmark: &Rc<Benchmark>,
    call: Call<StopBenchmark>,
) -> Result<(EmptyReply, Option<Buf>)> {
    benchmark.stop(call.request.run).await?;
    Ok((EmptyReply {}, None))
}
