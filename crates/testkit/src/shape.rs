//! The size and the options of a test's own cluster.

/// How the kernel passes requests to the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// FUSE requests over io_uring.
    Uring,
    /// FUSE requests by reads from and writes to /dev/fuse.
    Device,
}

impl Transport {
    /// The two transports.
    pub const ALL: [Self; 2] = [Self::Uring, Self::Device];

    /// Returns the name of the transport, as in the option of the mount and in the attribute of the
    /// mount's root directory.
    pub fn name(self) -> &'static str {
        match self {
            Self::Uring => "uring",
            Self::Device => "device",
        }
    }
}

/// How many services and targets a cluster has, and the options of its start.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Number of metadata targets.
    pub metadata_targets: usize,
    /// Number of storage services.
    pub storage_services: usize,
    /// Number of storage targets of each storage service.
    pub targets_per_service: usize,
    /// Transport of the mount that `skep up` creates.
    pub transport: Transport,
    /// Whether a monitor runs. Most tests need no monitor, and would run longer with a monitor than
    /// without one.
    pub monitor: bool,
    /// Feature level of the cluster ([`crate::feature_level`]). A new cluster has level 1.
    pub feature_level: u32,
    /// Additional arguments for `skep up`.
    pub more: Vec<String>,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            metadata_targets: 2,
            storage_services: 2,
            targets_per_service: 4,
            transport: Transport::Uring,
            monitor: false,
            feature_level: 1,
            more: Vec::new(),
        }
    }
}

impl Shape {
    /// Returns a shape with one service of each kind and two storage targets. This shape is for
    /// tests that do not need a larger cluster.
    pub fn small() -> Self {
        Self { metadata_targets: 1, storage_services: 1, targets_per_service: 2, ..Self::default() }
    }

    /// Returns the feature level to which a test raises the cluster: the level of the shape, or
    /// `SKEP_TEST_FEATURE_LEVEL` if this value is higher. With this variable, a developer can run
    /// any test on a higher level.
    ///
    /// # Panics
    /// Panics if the value of the variable is not a number.
    pub(crate) fn level_of_run(&self) -> u32 {
        let of_run = match std::env::var("SKEP_TEST_FEATURE_LEVEL") {
            Ok(text) => text.parse().expect("SKEP_TEST_FEATURE_LEVEL is a number"),
            Err(_) => 1,
        };
        self.feature_level.max(of_run)
    }
}
