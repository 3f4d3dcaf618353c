//! The operation that caused the requests of a future. Services account for load by the user, the
//! group and the job of the program that started the operation. The id of the operation is a
//! part of the trace id.
//!
//! A mount runs each operation in [`with_origin`]. The operation and all futures that the operation
//! spawns then carry the origin, and a connection writes the origin into the header of each
//! request. So the layers between the mount and the connection need not pass the origin on.
//!
//! # Trace ids
//! The lowest 32 bits of a trace id are the id of the operation in its process. The highest 64 bits
//! are a random id of the process. `docs/design/0023-traces.md` describes the use of trace ids.

use skep_types::codec::crc32c;
use skep_wire::frame::Header;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bit that is set in the id of a job whose name does not begin with a number.
const NAMED_JOB: u32 = 1 << 31;

/// The random number in the trace ids of this process.
static PROCESS: LazyLock<u64> = LazyLock::new(skep_env::random_u64);
/// Number of operations to which this process has given an id.
static OPERATIONS: AtomicU32 = AtomicU32::new(0);

/// The operation that caused a request, as in the header of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Origin {
    /// User id plus one; zero means that no program caused the request.
    user: u32,
    /// Group id plus one; zero means that no program caused the request.
    user_group: u32,
    /// Id of the job; zero means no job.
    job: u32,
    /// Id of the operation; zero means that the operation has no id.
    operation: u32,
}

impl Origin {
    /// Returns the origin of a program with a user id and a group id. `job` is the id of its job
    /// ([`job_number`]), or zero.
    pub fn of_program(uid: u32, gid: u32, job: u32) -> Self {
        // The highest id is invalid, so its successor, which wraps around to zero, can mean "no
        // program".
        Self { user: uid.wrapping_add(1), user_group: gid.wrapping_add(1), job, operation: 0 }
    }

    /// Gives the origin the next operation id of this process.
    #[must_use]
    pub fn of_next_operation(self) -> Self {
        let operation = OPERATIONS.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1);
        Self { operation, ..self }
    }

    /// Returns the origin of an operation that no program has caused.
    #[cfg(test)]
    pub(crate) fn of_operation(operation: u32) -> Self {
        Self { operation, ..Self::default() }
    }

    /// Returns the trace id of the operation. Zero means that the operation has no id.
    pub fn trace(self) -> u128 {
        match self.operation {
            0 => 0,
            operation => u128::from(*PROCESS) << 64 | u128::from(operation),
        }
    }

    /// Returns the id of the operation. Zero means that the operation has no id.
    pub(crate) fn operation(self) -> u32 {
        self.operation
    }

    /// Returns the user, the group and the job, for the records of operations.
    pub fn cause(self) -> skep_metrics::Origin {
        skep_metrics::Origin {
            user: self.user.checked_sub(1),
            group: self.user_group.checked_sub(1),
            job: Some(self.job).filter(|job| *job != 0),
            ..skep_metrics::Origin::default()
        }
    }

    /// Returns the origin of the running future.
    pub(crate) fn current() -> Self {
        let context = skep_env::task_context();
        let part = |shift: u32| (context >> shift) as u32;
        Self { user: part(0), user_group: part(32), job: part(64), operation: part(96) }
    }

    fn to_context(self) -> u128 {
        let parts = [self.user, self.user_group, self.job, self.operation];
        parts.into_iter().rev().fold(0, |sum, part| sum << 32 | u128::from(part))
    }

    /// Writes the origin into a header. The trace id of the operation replaces the trace id that
    /// the sender has chosen for this request alone.
    pub(crate) fn write_to(self, header: &mut Header) {
        (header.user, header.user_group, header.job) = (self.user, self.user_group, self.job);
        if self.operation != 0 {
            header.trace = self.trace();
        }
    }
}

/// Returns the cause of a request from the client `client`, for load accounting.
pub fn cause_of(header: &Header, client: skep_types::NodeId) -> skep_metrics::Origin {
    skep_metrics::Origin {
        client: Some(client.raw()).filter(|client| *client != 0),
        user: header.user.checked_sub(1),
        group: header.user_group.checked_sub(1),
        job: Some(header.job).filter(|job| *job != 0),
        directory: None,
    }
}

/// Runs a future on behalf of a program. Requests of the future, and requests of all futures that
/// this future spawns, carry the origin.
pub fn with_origin<F: Future>(origin: Origin, future: F) -> impl Future<Output = F::Output> {
    skep_env::with_task_context(origin.to_context(), future)
}

/// Returns the id of a job from its name. Job names of Slurm and PBS begin with a number. A number
/// between 1 and 2^31 - 1 is the id of the job. Any other name gives an id from 2^31 on, computed
/// as a checksum of the name.
pub fn job_number(name: &[u8]) -> u32 {
    let digits = name.iter().take_while(|byte| byte.is_ascii_digit());
    let number = digits.take(11).fold(0_u64, |sum, digit| sum * 10 + u64::from(digit - b'0'));
    match u32::try_from(number) {
        Ok(number) if number > 0 && number < NAMED_JOB => number,
        _ => NAMED_JOB | crc32c(name),
    }
}

/// Returns the id of a job as text: the number in its name, or `#` and the checksum of its name in
/// hexadecimal.
pub fn job_text(number: u32) -> String {
    match number & NAMED_JOB {
        0 => number.to_string(),
        _ => format!("#{:08x}", number & !NAMED_JOB),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numeric_job_names_are_ids_and_other_names_give_checksums() {
        for (name, number) in [("4711", 4711), ("123.server-1", 123), ("77[5].pbs", 77)] {
            assert_eq!(job_number(name.as_bytes()), number, "{name}");
        }
        for name in ["", "0", "f2oLkTLb", "2147483648", "99999999999999999999"] {
            let number = job_number(name.as_bytes());
            assert!(number >= NAMED_JOB, "{name}: {number}");
            assert!(job_text(number).starts_with('#'));
        }
        assert_ne!(job_number(b"a"), job_number(b"b"));
        assert_eq!(job_text(4711), "4711");
    }

    #[test]
    fn operations_have_different_trace_ids_in_all_their_requests() {
        let trace = |origin: Origin| {
            let sent = skep_env::block_on(with_origin(origin, async {
                skep_env::spawn(async { Origin::current() }).await
            }));
            let mut header = Header::default();
            sent.unwrap().write_to(&mut header);
            header.trace
        };
        let program = Origin::of_program(1000, 100, 7);
        let (first, second) = (program.of_next_operation(), program.of_next_operation());
        assert_eq!((trace(first), trace(second)), (first.trace(), second.trace()));
        assert!(first.trace() != second.trace() && first.trace() != 0);
        assert_eq!(
            first.trace() >> 64,
            second.trace() >> 64,
            "both ids have the number of the process"
        );
        assert_eq!(trace(program), 0, "the request is not part of an operation of a mount");
        let mut header = Header { trace: 5, ..Header::default() };
        program.write_to(&mut header);
        assert_eq!(header.trace, 5, "the request keeps its own trace id");
        first.write_to(&mut header);
        assert_eq!(header.trace, first.trace(), "all requests of an operation have its trace id");
    }

    #[test]
    fn user_group_and_job_of_a_request_reach_its_receiver() {
        let of = |uid, gid, job| {
            let sent = skep_env::block_on(with_origin(Origin::of_program(uid, gid, job), async {
                skep_env::spawn(async { Origin::current() }).await
            }));
            let mut header = Header::default();
            sent.unwrap().write_to(&mut header);
            cause_of(&header, skep_types::NodeId::new(9))
        };
        let expected = skep_metrics::Origin {
            client: Some(9),
            user: Some(0),
            group: Some(100),
            job: Some(u32::MAX),
            directory: None,
        };
        assert_eq!(of(0, 100, u32::MAX), expected);
        let none = skep_metrics::Origin { client: None, ..skep_metrics::Origin::default() };
        assert_eq!(cause_of(&Header::default(), skep_types::NodeId::default()), none);
    }
}
