//! Judges whether packets of the MTU of this host's interface arrive at another host.
//!
//! This module does no I/O: the caller sends the packets. `skep tune apply` cannot change the MTU
//! of a path, because the MTU depends on other hosts and on switches.

use crate::check::Finding;
use crate::rules::Test;

/// The result of a probe of the path to another host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbedPath {
    /// Name or address of the other host.
    pub peer: String,
    /// MTU of the interface through which this host sends to the other host, in bytes.
    pub interface: u32,
    /// Size of the largest packet that arrives at the other host, in bytes.
    pub arriving: u32,
    /// Whether a router reports larger packets as too large. `false` means that larger packets are
    /// lost without a report.
    pub is_reported: bool,
}

/// Returns the finding about a path.
pub fn finding(path: &ProbedPath) -> Finding {
    let effect = match path.is_reported {
        true => "TCP adapts to the reports of the router, and sends smaller packets than the MTU",
        false => "larger packets are lost without a report, so connections to the host hang",
    };
    Finding {
        rule: "path-mtu".into(),
        file: format!("path to {}", path.peer),
        is: path.arriving.to_string(),
        test: Test::AtLeast,
        should_be: path.interface.to_string(),
        passes: path.arriving >= path.interface,
        can_apply: false,
        risk: String::new(),
        why: format!("{effect}; give all hosts and switches on the path the same MTU"),
        source: "Alces 2016 (9001); RFC 2923, problems of TCP with the MTU of paths".into(),
        setting: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_passes_if_packets_of_the_interface_mtu_arrive() {
        let of = |arriving: u32, is_reported: bool| {
            let peer = "10.0.0.2".to_owned();
            finding(&ProbedPath { peer, interface: 9000, arriving, is_reported })
        };
        assert!(of(9000, false).passes);
        let lost = of(1500, false);
        assert_eq!((lost.passes, lost.can_apply, lost.is.as_str()), (false, false, "1500"));
        assert!(lost.why.contains("lost without a report"), "{}", lost.why);
        let reported = of(1500, true);
        assert!(!reported.passes && reported.why.contains("the router"), "{}", reported.why);
    }
}
