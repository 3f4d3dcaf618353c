//! The trace of a run: a hash over all events and, on request, a printed line for each event. Two
//! runs of the same seed must have the same hash.

use crate::world::SimEvent;
use skep_metadata::shipping::MemberMessage;
use std::time::Duration;

/// The hash over all events of a run.
#[derive(Debug)]
pub(crate) struct Trace {
    hash: u64,
    events: u64,
    is_shown: bool,
}

impl Trace {
    pub(crate) fn new(is_shown: bool) -> Self {
        Self { hash: 0xCBF2_9CE4_8422_2325, events: 0, is_shown }
    }

    fn add(&mut self, text: &str) {
        for byte in text.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3);
        }
    }

    /// Adds an event of the queue to the hash.
    pub(crate) fn event(&mut self, time: Duration, event: &SimEvent) {
        self.events += 1;
        let line = format!("{:>14?} {}", time, describe(event));
        self.add(&line);
        if self.is_shown {
            println!("{line}");
        }
    }

    /// Prints a consequence of an event. The text is not part of the hash.
    pub(crate) fn note(&self, time: Duration, text: impl FnOnce() -> String) {
        if self.is_shown {
            println!("{:>14?}     {}", time, text());
        }
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) fn events(&self) -> u64 {
        self.events
    }
}

fn name(message: u16) -> &'static str {
    skep_wire::catalog::message(message).map_or("?", |line| line.name)
}

fn describe(event: &SimEvent) -> String {
    match event {
        SimEvent::Deliver { connection, header, body, was_late } => format!(
            "arrives on {connection}: {} tag {} {} slot {} sequence {} {}{}",
            name(header.message),
            header.tag,
            header.session,
            header.slot,
            header.sequence,
            show(body),
            if *was_late { " (late)" } else { "" }
        ),
        SimEvent::Return { connection, tag, result } => match result {
            Ok(body) => format!("reply on {connection}: tag {tag} {}", show(body)),
            Err(error) => format!("reply on {connection}: tag {tag} {error}"),
        },
        SimEvent::Synced { target, life, lsn, .. } => {
            format!("target {target} life {life} synced up to {lsn}")
        }
        SimEvent::BackupSynced { target, life, lsn, .. } => {
            format!("backup {target} life {life} synced up to {lsn}")
        }
        SimEvent::ToMember { target, from, request } => {
            let member = request.member;
            match &request.message {
                MemberMessage::Ship(ship) => format!(
                    "target {target}: {from:?} ships {} records from {} to {member}, {} after {}",
                    ship.records.len(),
                    ship.first,
                    ship.epoch,
                    ship.previous_epoch
                ),
                MemberMessage::AwaitSync(wait) => format!("target {target}: {member}, {wait:?}"),
            }
        }
        other => format!("{other:?}"),
    }
}

/// Returns bytes in hexadecimal.
fn show(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}
