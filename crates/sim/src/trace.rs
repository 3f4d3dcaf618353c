//! The trace of a run: a hash of all events and, on request, a printed line for each event. Two
//! runs of the same seed must have the same hash.

use crate::random::Random;
use crate::world::SimEvent;
use skep_metadata::shipping::MemberMessage;
use std::time::Duration;

/// The hash of all events of a run.
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

    /// Adds a word to the hash.
    pub(crate) fn add(&mut self, word: u64) {
        self.hash = (self.hash ^ word).wrapping_mul(0x100_0000_01B3).rotate_left(23);
    }

    fn add_bytes(&mut self, bytes: &[u8]) {
        self.add(bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.add(u64::from_le_bytes(word));
        }
    }

    /// Begins an event of the queue. The state of `random` depends on all earlier events. So apart
    /// from `time` and this state, the hash needs only the contents of messages.
    pub(crate) fn begin(&mut self, time: Duration, random: &Random) {
        self.events += 1;
        self.add(time.as_nanos() as u64);
        self.add(random.clone().bits());
    }

    /// Adds an event to the hash, and prints the event.
    pub(crate) fn event(&mut self, time: Duration, random: &Random, event: &SimEvent) {
        self.begin(time, random);
        match event {
            SimEvent::Deliver { header, body, .. } => {
                self.add(header.tag);
                self.add_bytes(body);
            }
            SimEvent::Return { tag, result, .. } => {
                self.add(*tag);
                match result {
                    Ok(body) => self.add_bytes(body),
                    Err(error) => self.add_bytes(error.context().as_bytes()),
                }
            }
            SimEvent::Synced { lsn, .. } | SimEvent::BackupSynced { lsn, .. } => {
                self.add(lsn.raw());
            }
            _ => {}
        }
        self.show(time, || describe(event));
    }

    /// Prints the text of an event. The text does not change the hash.
    pub(crate) fn show(&self, time: Duration, text: impl FnOnce() -> String) {
        if self.is_shown {
            println!("{time:>14?} {}", text());
        }
    }

    /// Prints the text of a consequence of an event. The text does not change the hash.
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
                MemberMessage::Copy(part) => format!("target {target}: {member}, {part:?}"),
            }
        }
        other => format!("{other:?}"),
    }
}

/// Formats bytes as hexadecimal digits.
fn show(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}
