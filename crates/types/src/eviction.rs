//! The eviction of a client, as management records and lists it.

use crate::byte_enum;
use crate::codec::record;
use crate::{GroupId, NodeId, Timestamp};

byte_enum! {
    /// The reason why management removed a client that had not left.
    pub enum EvictionCause {
        /// A metadata group received no request of the client for the time of one lease.
        LeaseExpired = 1,
        /// An administrator called `skep client evict`.
        Administrator = 2,
        /// For the time of many leases, management received no heartbeat of the client.
        Silent = 3,
    }
}

record! {
    /// The eviction of a client.
    pub struct Eviction {
        /// The client.
        pub client: NodeId,
        /// Name of the client: its host and mount point.
        pub name: String,
        /// Time of the eviction, by management's clock.
        pub time: Timestamp,
        /// The reason for the eviction.
        pub cause: EvictionCause,
        /// The metadata group that asked for the eviction. Zero means that no group asked for the
        /// eviction.
        pub group: GroupId,
        /// Time between the last heartbeat of the client and the eviction, in milliseconds.
        pub silent_ms: u64,
    }
}

impl Eviction {
    /// Returns the reason for the eviction as text for people.
    pub fn reason(&self) -> String {
        let seconds = self.silent_ms as f64 / 1000.0;
        match self.cause {
            EvictionCause::Administrator => "`skep client evict` was called".to_owned(),
            EvictionCause::LeaseExpired => format!(
                "metadata group {} received nothing from this mount for the time of a lease; \
                 management received its last heartbeat {seconds:.1} s before the eviction",
                self.group
            ),
            EvictionCause::Silent => format!("the client sent no heartbeat for {seconds:.1} s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eviction_reason_names_the_evicting_party() {
        let reason = |cause| {
            let eviction = Eviction {
                client: NodeId::new(9),
                name: "cl2:/mnt".into(),
                time: Timestamp::default(),
                cause,
                group: GroupId::new(3),
                silent_ms: 5_300,
            };
            eviction.reason()
        };
        let lost = reason(EvictionCause::LeaseExpired);
        assert!(lost.contains("metadata group g3") && lost.contains("5.3 s before"), "{lost}");
        let asked = reason(EvictionCause::Administrator);
        assert!(asked.contains("skep client evict") && !asked.contains("lease"), "{asked}");
        assert_eq!(reason(EvictionCause::Silent), "the client sent no heartbeat for 5.3 s");
    }
}
