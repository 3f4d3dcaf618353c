//! Messages of benchmarks that run inside of services. They use files of their own and touch no
//! chunk file.

use skep_types::codec::record;
use skep_types::{NodeId, TargetId};

record! {
    /// Starts a benchmark of a storage target without the network: the target writes benchmark
    /// files, or reads the files of the same run. A repeated request changes nothing. The target
    /// refuses another run until this one is stopped, and stops a run that no client asks about.
    #[derive(Copy)]
    pub struct StartBenchmark {
        /// Number of the run, not zero.
        pub run: u64,
        /// Whether to read. If not set, the target writes and syncs.
        pub is_read: bool,
        /// Number of files, written or read at the same time.
        pub streams: u16,
        /// Bytes of each file, a multiple of `block_bytes`.
        pub stream_bytes: u64,
        /// Bytes of each read or write, a multiple of 4,096.
        pub block_bytes: u32,
    }
}

record! {
    /// Asks for the progress of a benchmark.
    #[derive(Copy)]
    pub struct AskBenchmark {
        /// The run.
        pub run: u64,
    }
}

record! {
    /// Reply to [`AskBenchmark`].
    pub struct BenchmarkProgress {
        /// Whether the benchmark has ended.
        pub is_over: bool,
        /// Whether the target bypasses the page cache. It does if the file system can.
        pub is_direct: bool,
        /// Bytes written or read until now.
        pub bytes: u64,
        /// Begin and end of each finished file, in nanoseconds from the start.
        pub streams: Vec<(u64, u64)>,
        /// Reason of an early end.
        pub failure: Option<String>,
    }
}

record! {
    /// Ends a benchmark and removes its files. Succeeds if there is no such benchmark.
    #[derive(Copy)]
    pub struct StopBenchmark {
        /// The run.
        pub run: u64,
    }
}

record! {
    /// Sends bulk data. The receiver checks its checksums, as for a write, and discards it. Without
    /// data the request measures a round trip.
    pub struct DiscardData {
        /// CRC-32C of each 4,096 bytes of the data.
        pub checksums: Vec<u32>,
    }
}

record! {
    /// Asks for meaningless bulk data.
    #[derive(Copy)]
    pub struct GiveData {
        /// Number of bytes.
        pub bytes: u32,
    }
}

record! {
    /// Reply to [`GiveData`]. The bulk data follows in the frame.
    pub struct GiveDataReply {
        /// CRC-32C of each 4,096 bytes of the data.
        pub checksums: Vec<u32>,
    }
}

record! {
    /// Makes a service measure the network between itself and another service, by [`DiscardData`]
    /// or [`GiveData`]. The service replies at the end. It stops when the sender waits no longer,
    /// at the latest after ten minutes. It measures one link at a time.
    #[derive(Copy)]
    pub struct MeasureLink {
        /// The other service.
        pub node: NodeId,
        /// The target of that service whose thread replies. Zero stands for the service itself.
        pub target: TargetId,
        /// Number of connections. Each has one message under way.
        pub streams: u16,
        /// Number of messages on each connection.
        pub messages: u32,
        /// Bytes of bulk data in each message. Zero measures each round trip.
        pub message_bytes: u32,
        /// Whether the other service sends the data. If not set, it receives them.
        pub is_receiving: bool,
    }
}

record! {
    /// Reply to [`MeasureLink`].
    pub struct MeasureLinkReply {
        /// The address of the other service.
        pub address: String,
        /// Bytes of bulk data that were sent.
        pub bytes: u64,
        /// Begin and end of each connection's messages, in nanoseconds from the first begin.
        pub streams: Vec<(u64, u64)>,
        /// Each measured round trip, in nanoseconds.
        pub round_trips_ns: Vec<u64>,
    }
}
