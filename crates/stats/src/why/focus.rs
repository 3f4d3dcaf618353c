//! The client, user or job that is the subject of a report.
//!
//! The evidence about the focus is in `evidence`.

/// The client, user or job whose requests are the subject of a report. The evidence always has an
/// entry for it, even if others cause more load.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Focus {
    /// Node id of the client.
    pub client: Option<u32>,
    /// User id.
    pub user: Option<u32>,
    /// The job id.
    pub job: Option<u32>,
}

impl Focus {
    /// Whether the report covers all requests.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
