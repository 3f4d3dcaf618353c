//! Conversions of the errors of the Raft library into the errors of a member.

use super::ProposeError;
use crate::raft_types::Addresses;
use openraft::error::{ClientWriteError, Fatal, ForwardToLeader, RaftError};
use skep_types::{Error, ErrorCode};

pub(super) fn ended(error: &Fatal<u64>) -> Error {
    let what =
        format!("this member of the replicated log has stopped: {error}; start the member again");
    Error::new(ErrorCode::DeviceFailed, what)
}

pub(super) fn not_leader(forward: ForwardToLeader<u64, Addresses>) -> ProposeError {
    let addresses = forward.leader_node.unwrap_or_default().0;
    ProposeError::NotLeader { leader: forward.leader_id, addresses }
}

pub(super) fn propose_error(
    error: RaftError<u64, ClientWriteError<u64, Addresses>>,
) -> ProposeError {
    match error {
        RaftError::APIError(ClientWriteError::ForwardToLeader(forward)) => not_leader(forward),
        RaftError::APIError(ClientWriteError::ChangeMembershipError(error)) => {
            let what = format!("cannot change the members of management: {error}");
            ProposeError::Refused(Error::new(ErrorCode::InvalidArgument, what))
        }
        RaftError::Fatal(error) => ProposeError::Unknown(ended(&error)),
    }
}

pub(super) fn remote_error(error: &RaftError<u64>) -> Error {
    Error::new(ErrorCode::NotReady, error.to_string())
}
