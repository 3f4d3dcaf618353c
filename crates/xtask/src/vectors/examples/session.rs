//! Examples of the handshake.

use crate::vectors::{Example, example};
use skep_types::{ClusterId, NodeId, NodeKind, TargetId};
use skep_wire::session::{Challenge, Hello, Proof, Welcome};

fn cluster() -> ClusterId {
    ClusterId::new(*b"\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f")
}

pub(super) fn examples() -> Vec<Example> {
    let hello = Hello {
        cluster: cluster(),
        oldest: 1,
        newest: 2,
        kind: NodeKind::Client,
        node: NodeId::new(9),
        target: TargetId::new(3),
        channel: 0xc0c1_c2c3_c4c5_c6c7,
        nonce: 0xa0a1_a2a3_a4a5_a6a7_a8a9_aaab_acad_aeaf,
        secrets: vec![0xd0d1_d2d3_d4d5_d6d7, 1],
    };
    // A node that joins with a token has no id yet. In this example, the `Hello` of such a node
    // addresses a node, and not a target.
    let joining = Hello {
        kind: NodeKind::Storage,
        node: NodeId::default(),
        target: TargetId::default(),
        ..hello.clone()
    };
    let challenge = Challenge {
        cluster: cluster(),
        protocol: 1,
        nonce: 0xb0b1_b2b3_b4b5_b6b7_b8b9_babb_bcbd_bebf,
        secret: 0xd0d1_d2d3_d4d5_d6d7,
        proof_low: 1,
        proof_high: u128::MAX,
    };
    let proof = Proof { proof_low: 1 << 127, proof_high: 2 };
    let welcome = Welcome { node: NodeId::new(2), incarnation: 0xdead_beef_0000_0001 };
    vec![example(&hello, &challenge).request(&joining), example(&proof, &welcome)]
}
