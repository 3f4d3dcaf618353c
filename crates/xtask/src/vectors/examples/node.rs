//! Examples of messages to a running process.

use crate::vectors::{Example, example};
use skep_types::codec::crc32c;
use skep_types::{NodeId, TargetId};
use skep_wire::benchmark::{DiscardData, GiveData, GiveDataReply, MeasureLink, MeasureLinkReply};
use skep_wire::management::EmptyReply;
use skep_wire::node::{LogLevel, SetLogLevel};

pub(super) fn examples() -> Vec<Example> {
    let set = SetLogLevel { level: Some("info,skep_storage=debug".into()) };
    let level = LogLevel { current: "info,skep_storage=debug".into(), configured: "info".into() };
    let mut all = vec![example(&set, &level).request(&SetLogLevel { level: None })];
    all.extend(network_messages());
    all
}

fn network_messages() -> Vec<Example> {
    let data: Vec<u8> = (b'A'..b'A' + 50).collect();
    let checksums = vec![crc32c(&data)];
    let discard = DiscardData { checksums: checksums.clone() };
    let given = GiveDataReply { checksums };
    let measure = MeasureLink {
        node: NodeId::new(7),
        target: TargetId::new(12),
        streams: 4,
        messages: 32,
        message_bytes: 1 << 20,
        is_receiving: true,
    };
    let moved = MeasureLinkReply {
        address: "10.0.0.7:7410".into(),
        bytes: 128 << 20,
        streams: vec![(0, 1_100_000_000), (12_345, 1_150_000_000)],
        round_trips_ns: Vec::new(),
    };
    let trips = MeasureLinkReply {
        bytes: 0,
        streams: vec![(0, 151_000)],
        round_trips_ns: vec![51_000, 49_500, 50_500],
        ..moved.clone()
    };
    vec![
        example(&discard, &EmptyReply {})
            .data(false, &data)
            .request(&DiscardData { checksums: Vec::new() }),
        example(&GiveData { bytes: 50 }, &given).data(true, &data),
        example(&measure, &moved).reply::<MeasureLink>(&trips),
    ]
}
