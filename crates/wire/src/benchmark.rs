//! Messages for benchmarks that run inside services. Such a benchmark uses its own files and never
//! touches chunk files.

use skep_types::codec::record;
use skep_types::{NodeId, TargetId};

record! {
    /// Starts a benchmark that measures a storage target without the network. The target writes
    /// benchmark files, or reads the files that it wrote in the same run. Idempotent. The target
    /// refuses to start a second run until the first run has stopped. If no client asks for the
    /// progress of the run for 30 seconds, the target stops the run.
    #[derive(Copy)]
    pub struct StartBenchmark {
        /// Id of the run, not zero.
        pub run: u64,
        /// Whether the target reads. If this field is not set, the target writes and syncs.
        pub is_read: bool,
        /// Number of files that the target reads or writes concurrently.
        pub streams: u16,
        /// Size of each file in bytes, a multiple of `block_bytes`.
        pub stream_bytes: u64,
        /// Size of each read or write in bytes, a multiple of 4,096.
        pub block_bytes: u32,
    }
}

record! {
    /// Asks for the progress of a benchmark.
    #[derive(Copy)]
    pub struct AskBenchmark {
        /// Id of the run.
        pub run: u64,
    }
}

record! {
    /// Reply to [`AskBenchmark`].
    pub struct BenchmarkProgress {
        /// Whether the benchmark has ended.
        pub is_over: bool,
        /// Whether the target bypasses the page cache. `false` means that the target's file system
        /// does not support direct I/O.
        pub is_direct: bool,
        /// Bytes written or read so far.
        pub bytes: u64,
        /// For each finished file, the times at which its I/O began and ended, in nanoseconds since
        /// the start of the benchmark.
        pub streams: Vec<(u64, u64)>,
        /// Reason why the benchmark failed. `None` if it did not fail.
        pub failure: Option<String>,
    }
}

record! {
    /// Stops a benchmark and removes its files. Succeeds if the benchmark does not exist.
    #[derive(Copy)]
    pub struct StopBenchmark {
        /// Id of the run.
        pub run: u64,
    }
}

record! {
    /// Carries bulk data. The receiver checks the checksums of the data, as for a write, and then
    /// discards the data. A request without bulk data measures a round trip.
    pub struct DiscardData {
        /// CRC-32C of each 4,096 bytes of the bulk data.
        pub checksums: Vec<u32>,
    }
}

record! {
    /// Asks the receiver to send meaningless bulk data.
    #[derive(Copy)]
    pub struct GiveData {
        /// Number of bytes to send.
        pub bytes: u32,
    }
}

record! {
    /// Reply to [`GiveData`]. The data is the bulk data of the frame.
    pub struct GiveDataReply {
        /// CRC-32C of each 4,096 bytes of the bulk data.
        pub checksums: Vec<u32>,
    }
}

record! {
    /// Asks a service to measure the network to another service, by [`DiscardData`] or
    /// [`GiveData`]. The service replies after the measurement. The measurement stops at the
    /// deadline of this request, and at the latest after ten minutes. A service measures one link
    /// at a time.
    #[derive(Copy)]
    pub struct MeasureLink {
        /// Node id of the other service.
        pub node: NodeId,
        /// A target of the other service. The thread of this target replies to the messages. Zero
        /// means that the other node itself replies.
        pub target: TargetId,
        /// Number of connections. Each connection has at most one message in flight.
        pub streams: u16,
        /// Number of messages on each connection.
        pub messages: u32,
        /// Bytes of bulk data in each message. Zero measures round trips instead of bandwidth.
        pub message_bytes: u32,
        /// Whether the measuring service receives the bulk data. If this field is not set, the
        /// service sends the bulk data.
        pub is_receiving: bool,
    }
}

record! {
    /// Reply to [`MeasureLink`].
    pub struct MeasureLinkReply {
        /// Address at which the other service was measured.
        pub address: String,
        /// Bytes of bulk data transferred in total.
        pub bytes: u64,
        /// For each connection, the times at which its first message began and its last message
        /// ended, in nanoseconds since the first message of all connections began.
        pub streams: Vec<(u64, u64)>,
        /// Duration of each measured round trip, in nanoseconds.
        pub round_trips_ns: Vec<u64>,
    }
}
