//! Messages of benchmarks that run inside of services. What they make is theirs alone: no chunk
//! file is touched.

use skep_types::codec::record;
use skep_types::{NodeId, TargetId};

record! {
    /// Lets a storage target write files of a benchmark, or read those that the same run wrote,
    /// with nothing of the network in between. Asked again while it does so, it goes on. Another
    /// run is refused as long as this one isn't stopped; one that nobody asks about stops by
    /// itself.
    #[derive(Copy)]
    pub struct StartBenchmark {
        /// Tells the run from others; not zero.
        pub run: u64,
        /// Reads; else writes, and syncs.
        pub is_read: bool,
        /// Files, written or read at the same time.
        pub streams: u16,
        /// Bytes of each, a multiple of `block_bytes`.
        pub stream_bytes: u64,
        /// Bytes moved at once: a multiple of 4,096.
        pub block_bytes: u32,
    }
}

record! {
    /// Asks how far a benchmark is.
    #[derive(Copy)]
    pub struct AskBenchmark {
        /// The run.
        pub run: u64,
    }
}

record! {
    /// Answer to [`AskBenchmark`].
    pub struct BenchmarkProgress {
        /// Nothing is moved any more.
        pub is_over: bool,
        /// Whether data went past the page cache, as it does where the file system can.
        pub is_direct: bool,
        /// Bytes moved until now.
        pub bytes: u64,
        /// Begin and end of each file that is done, in nanoseconds from the start.
        pub streams: Vec<(u64, u64)>,
        /// Why it ended before all was moved.
        pub failure: Option<String>,
    }
}

record! {
    /// Ends a benchmark, and removes its files. One that isn't there is over.
    #[derive(Copy)]
    pub struct StopBenchmark {
        /// The run.
        pub run: u64,
    }
}

record! {
    /// Brings bulk data that is compared with its checksums, as that of a write is, and then thrown
    /// away. Without data: a round trip.
    pub struct DiscardData {
        /// CRC-32C of each 4,096 bytes of the data.
        pub checksums: Vec<u32>,
    }
}

record! {
    /// Asks for bulk data that means nothing.
    #[derive(Copy)]
    pub struct GiveData {
        /// So much.
        pub bytes: u32,
    }
}

record! {
    /// Answer to [`GiveData`], with the bulk data.
    pub struct GiveDataReply {
        /// CRC-32C of each 4,096 bytes of the data.
        pub checksums: Vec<u32>,
    }
}

record! {
    /// Lets a service measure the network between itself and another service of its cluster map, by
    /// [`DiscardData`] or [`GiveData`]. Answered when that is done, and given up when the requester
    /// waits no longer, after ten minutes at the latest. One at a time.
    #[derive(Copy)]
    pub struct MeasureLink {
        /// The other service.
        pub node: NodeId,
        /// The target of that service whose thread is to answer; zero: the service itself.
        pub target: TargetId,
        /// Connections, each with one message under way.
        pub streams: u16,
        /// Messages of each.
        pub messages: u32,
        /// Bytes of bulk data in each; zero: round trips are timed one by one.
        pub message_bytes: u32,
        /// Data come from the other service; else they go there.
        pub is_receiving: bool,
    }
}

record! {
    /// Answer to [`MeasureLink`].
    pub struct MeasureLinkReply {
        /// The address at which the other service answered.
        pub address: String,
        /// Bytes of bulk data that were moved.
        pub bytes: u64,
        /// Begin and end of each connection's messages, in nanoseconds from the first begin.
        pub streams: Vec<(u64, u64)>,
        /// Each round trip, if they were timed, in nanoseconds.
        pub round_trips_ns: Vec<u64>,
    }
}
