//! Messages to a service of any kind. The connection names no target.

use skep_types::codec::record;

record! {
    /// Changes the log level of a service until it ends, or only asks for it.
    pub struct SetLogLevel {
        /// `error`, `warn`, `info`, `debug` or `trace`, or a filter as in `node.log`. An empty text
        /// restores the level of the settings. `None` changes nothing.
        pub level: Option<String>,
    }
}

record! {
    /// The log level of a process.
    pub struct LogLevel {
        /// The current level.
        pub current: String,
        /// The level of the settings, which applies at the next start.
        pub configured: String,
    }
}
