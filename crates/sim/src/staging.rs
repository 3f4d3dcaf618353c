//! The messages of staged transactions: late duplicates of `BeginPrepare`, and the planted bug
//! `ForgetRefusal`. The witness checks the transactions (`witness::staged`).
//!
//! A real connection ends with the process of its target, so no duplicate reaches the next process.
//! The protocol does not rely on the end of the connection, so in the simulation a duplicate may
//! arrive at any later process.

use crate::knobs::PlantedBug;
use crate::world::{Phase, SimEvent, World};
use skep_types::codec::Codec;
use skep_wire::Request;
use skep_wire::frame::Header;
use skep_wire::metadata::{BeginPrepare, ConfirmPrepared, ConfirmPreparedReply};

/// Maximum delay of a duplicate, in microseconds.
const LATE_MICROS: u64 = 2_500_000;

impl World {
    /// Lets some requests to prepare a staged transaction arrive a second time.
    pub(crate) fn duplicate_later(&mut self, target: usize, header: &Header, body: &[u8]) {
        let is_faulty = self.knobs.faults.breaks && self.phase == Phase::Busy;
        let is_planted = self.knobs.plant == Some(PlantedBug::ForgetRefusal);
        if header.message != BeginPrepare::ID || !(is_faulty || is_planted) {
            return;
        }
        if is_planted || self.random.percent(20) {
            let pause = self.random.micros(0, LATE_MICROS);
            let (header, body) = (header.clone(), body.to_vec());
            self.after(pause, SimEvent::Duplicate { target, header, body });
        }
    }

    /// Delivers a duplicate of a request. Its reply has no receiver.
    pub(crate) fn deliver_duplicate(&mut self, target: usize, header: Header, body: Vec<u8>) {
        if self.targets[target].running.is_some() {
            // No connection has the number zero.
            self.deliver_request(target, 0, header, body);
        }
    }

    /// With the planted bug `ForgetRefusal`, replies in place of a target that has not prepared a
    /// transaction, so that the target does not record the reply. Returns `false` if the target
    /// itself must handle the request.
    pub(crate) fn refuses_unrecorded(
        &mut self,
        target: usize,
        connection: u64,
        header: &Header,
        body: &[u8],
    ) -> bool {
        if self.knobs.plant != Some(PlantedBug::ForgetRefusal)
            || header.message != ConfirmPrepared::ID
        {
            return false;
        }
        let Ok(ConfirmPrepared { transaction, since }) = ConfirmPrepared::from_bytes(body) else {
            return false;
        };
        if self.witness.has_prepared(target, transaction, since) {
            return false;
        }
        self.witness.refused_to_prepare(target, transaction);
        let reply = ConfirmPreparedReply { is_prepared: false }.to_bytes();
        self.reply(connection, header.tag, Ok(reply));
        true
    }

    /// Records the reply of a target to a `ConfirmPrepared` request.
    pub(crate) fn note_confirmed(&mut self, target: usize, tag: u64, reply: &[u8]) {
        let request = self.network.calls.get(&tag).map(|call| call.body.as_slice());
        let request = request.and_then(|body| ConfirmPrepared::from_bytes(body).ok());
        let reply = ConfirmPreparedReply::from_bytes(reply);
        if let (Some(request), Ok(ConfirmPreparedReply { is_prepared: false })) = (request, reply) {
            self.witness.refused_to_prepare(target, request.transaction);
        }
    }
}
