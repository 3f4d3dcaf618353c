//! Messages of benchmarks that run inside of services. What they make is theirs alone: no chunk
//! file is touched.

use skep_types::codec::record;

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
