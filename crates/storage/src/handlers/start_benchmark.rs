//! `StartBenchmark`: starts the write phase or a read phase of a benchmark.

use super::Call;
use crate::benchmark::Benchmark;
use crate::chunk_store::ChunkStore;
use skep_env::Buf;
use skep_types::Result;
use skep_wire::benchmark::StartBenchmark;
use skep_wire::management::EmptyReply;
use std::rc::Rc;

pub(super) async fn handle(
    benchmark: &Rc<Benchmark>,
    store: &Rc<ChunkStore>,
    call: Call<StartBenchmark>,
) -> Result<(EmptyReply, Option<Buf>)> {
    benchmark.retry_removal().await?;
    benchmark.start(call.request, store.free_bytes())?;
    Ok((EmptyReply {}, None))
}
