//! The client, user or job that is the subject of a report.
//!
//! The evidence about the focus is in `evidence`.

/// The client, user or job whose requests are the subject of a report. If a target has more entries
/// than its evidence may hold, the entry of this client, user or job stays in the evidence.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Focus {
    /// Node id of the client.
    pub client: Option<u32>,
    /// User id.
    pub user: Option<u32>,
    /// The job id of the requests.
    pub job: Option<u32>,
}

impl Focus {
    /// Whether the report covers all requests.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
