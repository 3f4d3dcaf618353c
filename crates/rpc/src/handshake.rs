//! The handshake: before the first request, each side proves that it has the cluster's secret.
//!
//! `docs/protocol/handshake.md` describes the messages and the refusals. The modules
//! [`crate::refusal`] and [`crate::admission`] decide how the connecting side reacts to a refusal,
//! and how many handshakes run concurrently.

use crate::access::{Channel, Identity, Peer};
use crate::limits::{
    HANDSHAKE_BUFFER_BYTES, HANDSHAKE_TIMEOUT, MAX_HANDSHAKE_BODY_BYTES, MAX_PEER_TEXT,
};
use crate::secret::{HeldSecret, MAX_SECRETS};
use crate::stream::FrameReader;
use skep_env::{MessagePart, TcpStream, random_u128};
use skep_types::codec::Codec;
use skep_types::text::shown;
use skep_types::{ClusterId, Error, ErrorCode, NodeId, Result, TargetId};
use skep_wire::Request;
use skep_wire::frame::{Header, NEWEST_PROTOCOL, OLDEST_PROTOCOL};
use skep_wire::session::{Challenge, Hello, Proof, Welcome};

const SERVER_LABEL: &[u8] = b"skep server";
const CLIENT_LABEL: &[u8] = b"skep client";

async fn send<M: Codec>(stream: &TcpStream, header: &Header, message: &M) -> Result<()> {
    let bytes = header.frame(message, 0);
    stream.send(vec![MessagePart::Bytes(bytes)]).await.map_err(|error| {
        Error::new(ErrorCode::Disconnected, format!("the handshake failed: {error}"))
    })
}

async fn refuse(stream: &TcpStream, request: &Header, error: &Error) {
    let header = Header { status: error.code() as u16, ..request.reply() };
    // Ignore errors: the peer may have disconnected, and this process refuses it in any case.
    let _ = send(stream, &header, &error.context().to_owned()).await;
}

fn unexpected(problem: impl std::fmt::Display) -> Error {
    Error::new(ErrorCode::Protocol, format!("the handshake failed: {problem}"))
}

async fn receive_frame(reader: &mut FrameReader) -> Result<(Header, Vec<u8>)> {
    let Some((header, crc)) = reader.header().await? else {
        return Err(Error::new(
            ErrorCode::Disconnected,
            "the peer closed the connection during the handshake",
        ));
    };
    if header.body_bytes > MAX_HANDSHAKE_BODY_BYTES || header.data_bytes != 0 {
        return Err(unexpected("a message of the handshake is too long"));
    }
    let body = reader.body(&header, crc).await?;
    Ok((header, body))
}

fn decode<M: Codec>(header: &Header, body: &[u8], message: u16) -> Result<M> {
    if header.message != message {
        return Err(unexpected(format_args!(
            "received message number {} instead of number {message}",
            header.message
        )));
    }
    M::from_bytes(body)
}

/// Receives a frame from the connecting side. A request has no status. For a frame with a status,
/// the returned error does not quote the text of the frame. An unauthenticated peer could otherwise
/// forge log lines with this text.
async fn receive_request<M: Codec>(reader: &mut FrameReader, message: u16) -> Result<(Header, M)> {
    let (header, body) = receive_frame(reader).await?;
    if header.status != 0 {
        return Err(unexpected("the request has the status of a reply"));
    }
    let request = decode(&header, &body, message)?;
    Ok((header, request))
}

/// Receives a frame from the accepting side. If the frame is a refusal, returns its error.
async fn receive_reply<M: Codec>(reader: &mut FrameReader, message: u16) -> Result<M> {
    let (header, body) = receive_frame(reader).await?;
    if header.status != 0 {
        let code = ErrorCode::from_number(header.status).unwrap_or(ErrorCode::Protocol);
        let text = String::from_bytes(&body).unwrap_or_default();
        return Err(Error::new(code, shown(&text, MAX_PEER_TEXT)));
    }
    decode(&header, &body, message)
}

fn negotiate(hello: &Hello, oldest: u16, newest: u16) -> Result<u16> {
    let common = hello.newest.min(newest);
    if common < hello.oldest || common < oldest {
        return Err(Error::new(
            ErrorCode::VersionMismatch,
            format!(
                "the two sides have no common protocol version: the connecting side supports \
                 versions {} to {}, and this side {oldest} to {newest}; upgrade the older side by \
                 one release at a time",
                hello.oldest, hello.newest
            ),
        ));
    }
    Ok(common)
}

fn without_proof(challenge: &Challenge) -> Vec<u8> {
    Challenge { proof_low: 0, proof_high: 0, ..challenge.clone() }.to_bytes()
}

/// Runs the client's side of the handshake on `stream`, as `identity`. A `target` of zero addresses
/// the node itself.
pub(crate) async fn connect(
    stream: &TcpStream,
    reader: &mut FrameReader,
    identity: &Identity,
    target: TargetId,
    channel: Channel,
) -> Result<Welcome> {
    let hello = Hello {
        cluster: identity.cluster,
        oldest: OLDEST_PROTOCOL,
        newest: NEWEST_PROTOCOL,
        kind: identity.kind,
        node: identity.node,
        target,
        channel: channel.0,
        nonce: random_u128(),
        secrets: identity.secrets.offered(),
    };
    let exchange = async {
        send(stream, &Header { message: Hello::ID, ..Header::default() }, &hello).await?;
        let challenge: Challenge = receive_reply(reader, Hello::ID).await?;
        let (hello_bytes, challenge_bytes) = (hello.to_bytes(), without_proof(&challenge));
        let proof = (challenge.proof_low, challenge.proof_high);
        if challenge.cluster != identity.cluster {
            return Err(other_cluster(challenge.cluster, identity.cluster));
        }
        let chosen = identity.secrets.with_id(challenge.secret);
        let signed: [&[u8]; 3] = [SERVER_LABEL, &hello_bytes, &challenge_bytes];
        let Some(secret) = chosen.filter(|secret| secret.verify(&signed, proof)) else {
            return Err(Error::new(
                ErrorCode::AuthenticationFailed,
                "the server does not have this cluster's secret: the token is wrong or not of this \
                 cluster; `skep cluster token --cluster DIRECTORY` on the management host prints \
                 the right one",
            ));
        };
        let (proof_low, proof_high) = secret.proof(&[CLIENT_LABEL, &hello_bytes, &challenge_bytes]);
        let header = Header { message: Proof::ID, ..Header::default() };
        send(stream, &header, &Proof { proof_low, proof_high }).await?;
        receive_reply(reader, Proof::ID).await
    };
    skep_env::timeout(HANDSHAKE_TIMEOUT, exchange).await.unwrap_or_else(|| {
        Err(Error::new(ErrorCode::Disconnected, "the server does not answer the handshake"))
    })
}

/// Returns the error for a token of another cluster. Each side shows this text, so the text names
/// each side by its role.
fn other_cluster(of_service: ClusterId, of_token: ClusterId) -> Error {
    Error::new(
        ErrorCode::AuthenticationFailed,
        format!(
            "the service at this address belongs to cluster {of_service}, and the token of the \
             connecting side is of cluster {of_token}: check the address and the token"
        ),
    )
}

/// Chooses the secret for the proofs among the secrets that the connecting side offers.
fn choose_secret(hello: &Hello, identity: &Identity) -> Result<HeldSecret> {
    if hello.secrets.len() > MAX_SECRETS {
        let count = hello.secrets.len();
        return Err(unexpected(format_args!(
            "the connecting side offers {count} secrets, and the limit is {MAX_SECRETS}"
        )));
    }
    identity.secrets.choose(&hello.secrets, hello.node != NodeId::default())
}

/// Runs the server's side of the handshake. `check_target` returns an error for a target that this
/// process does not serve.
pub(crate) async fn accept(
    stream: &TcpStream,
    identity: &Identity,
    incarnation: u64,
    check_target: impl Fn(TargetId) -> Result<()>,
) -> Result<Peer> {
    let mut reader = FrameReader::with_buffer(stream.clone(), HANDSHAKE_BUFFER_BYTES);
    let exchange = async {
        let (header, hello): (_, Hello) = receive_request(&mut reader, Hello::ID).await?;
        let checked = async {
            if hello.cluster != identity.cluster {
                return Err(other_cluster(identity.cluster, hello.cluster));
            }
            let protocol = negotiate(&hello, OLDEST_PROTOCOL, NEWEST_PROTOCOL)?;
            let chosen = choose_secret(&hello, identity)?;
            check_target(hello.target)?;
            Ok((protocol, chosen))
        };
        let (protocol, HeldSecret { secret, is_closed }) = match checked.await {
            Ok(checked) => checked,
            Err(error) => {
                refuse(stream, &header, &error).await;
                return Err(error);
            }
        };
        let mut challenge = Challenge {
            cluster: identity.cluster,
            protocol,
            nonce: random_u128(),
            secret: secret.id().raw(),
            proof_low: 0,
            proof_high: 0,
        };
        let (hello_bytes, challenge_bytes) = (hello.to_bytes(), challenge.to_bytes());
        (challenge.proof_low, challenge.proof_high) =
            secret.proof(&[SERVER_LABEL, &hello_bytes, &challenge_bytes]);
        send(stream, &header.reply(), &challenge).await?;
        let (header, proof): (_, Proof) = receive_request(&mut reader, Proof::ID).await?;
        let signed: [&[u8]; 3] = [CLIENT_LABEL, &hello_bytes, &challenge_bytes];
        if !secret.verify(&signed, (proof.proof_low, proof.proof_high)) {
            let error = Error::new(
                ErrorCode::AuthenticationFailed,
                format!("node {} does not prove the secret of this cluster", hello.node),
            );
            refuse(stream, &header, &error).await;
            return Err(error);
        }
        let welcome = Welcome { node: identity.node, incarnation };
        send(stream, &header.reply(), &welcome).await?;
        let channel = Channel(hello.channel);
        Ok(Peer {
            node: hello.node,
            kind: hello.kind,
            target: hello.target,
            channel,
            has_closed_secret: is_closed,
            secret: secret.id(),
        })
    };
    skep_env::timeout(HANDSHAKE_TIMEOUT, exchange).await.unwrap_or_else(|| {
        Err(Error::new(ErrorCode::Disconnected, "the peer does not answer the handshake"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::NodeKind;

    fn hello(oldest: u16, newest: u16) -> Hello {
        Hello {
            cluster: ClusterId::default(),
            oldest,
            newest,
            kind: NodeKind::Client,
            node: NodeId::new(1),
            target: TargetId::new(0),
            channel: 0,
            nonce: 1,
            secrets: vec![1],
        }
    }

    #[test]
    fn negotiation_chooses_the_highest_common_version() {
        // Simulates a future version 2 next to version 1.
        assert_eq!(negotiate(&hello(1, 2), 1, 1).unwrap(), 1);
        assert_eq!(negotiate(&hello(1, 1), 1, 2).unwrap(), 1);
        assert_eq!(negotiate(&hello(1, 2), 1, 2).unwrap(), 2);
        assert_eq!(negotiate(&hello(2, 3), 1, 2).unwrap(), 2);
    }

    #[test]
    fn versions_without_overlap_are_refused_with_both_ranges() {
        for (client, server) in [((2, 3), (1, 1)), ((1, 1), (2, 3))] {
            let error = negotiate(&hello(client.0, client.1), server.0, server.1).unwrap_err();
            assert_eq!(error.code(), ErrorCode::VersionMismatch);
            for (oldest, newest) in [client, server] {
                assert!(error.context().contains(&format!("{oldest} to {newest}")), "{error}");
            }
        }
    }
}
