//! A small HTTP server that replies to `GET /metrics` with the metrics of the process.
//!
//! The server runs on the event loop of a thread that serves no clients of the file system. The
//! server uses the parser of `hyper` for request heads. The server supports only the features that
//! readers of metrics need: requests without a body, and several requests on one connection. A
//! server library would require a second event loop, because each such library depends on the
//! reactor of an async runtime.
//!
//! The server has limits for the number of connections, the length of a request, the time to
//! receive a request, and the time to write a reply. No request can change any state.

use crate::failed_accepts::FailedAccepts;
use crate::tls::{ServerTls, Stream};
use skep_env::TcpListener;
use skep_env::local::{Permit, Semaphore};
use skep_metrics::{Registry, text};
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of simultaneous connections. Further connections wait in the kernel until another
/// connection ends.
const MAX_CONNECTIONS: usize = 16;
/// Maximum length of a request's head.
const MAX_HEAD_BYTES: usize = 8 << 10;
/// Maximum number of headers of a request.
const MAX_HEADERS: usize = 64;
/// Time after which the server closes a connection if no complete request has arrived, or if the
/// peer has not read the reply.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum number of requests on one connection.
const MAX_REQUESTS: usize = 10_000;
/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves `GET /metrics` until the future is dropped.
pub async fn serve(listener: TcpListener, registry: Arc<Registry>) {
    let handler = move |request: &Request| Answer::Now(reply_to(request, &registry));
    serve_pages(listener, MAX_CONNECTIONS, None, Rc::new(handler)).await;
}

/// Function that answers a request.
pub type Handler = dyn Fn(&Request) -> Answer;

/// The answer of a handler.
pub enum Answer {
    /// The reply is ready.
    Now(Reply),
    /// The reply needs work that may block, such as reading a file. The future must have its own
    /// time limit.
    Later(Pin<Box<dyn Future<Output = HeldReply>>>),
}

/// A reply, and a permit that the server drops when the reply is written to the socket, or after 10
/// s without success. So a handler can limit the memory of large replies.
pub type HeldReply = (Reply, Option<Permit>);

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Now(reply) => f.debug_tuple("Now").field(reply).finish(),
            Self::Later(_) => f.write_str("Later"),
        }
    }
}

/// Replies to requests by calling `handler`, until this future is dropped. Serves at most
/// `max_connections` connections at a time. `handler` runs on the event loop, so `handler` must not
/// block. If `tls` is given, the connections are encrypted.
pub async fn serve_pages(
    listener: TcpListener,
    max_connections: usize,
    tls: Option<Rc<ServerTls>>,
    handler: Rc<Handler>,
) {
    let permits = Semaphore::new(max_connections);
    // Read the address before the loop. The read needs a free file descriptor, and later no
    // descriptor may be free.
    let page = listener.local_address().map_or_else(|_| "?".into(), |it| it.to_string());
    let failed = FailedAccepts::new(format!("the page at {page}"));
    // Retry: after a failed accept, for example because no file descriptor is free, the thread
    // accepts again after `ACCEPT_PAUSE`, without limit.
    loop {
        let permit = permits.acquire().await;
        match listener.accept().await {
            Ok(stream) => {
                let (handler, peer) = (Rc::clone(&handler), stream.peer_address());
                let stream = Stream::of_client(stream, tls.as_deref()).inspect_err(|error| {
                    let peer = peer.map_or_else(|| "?".into(), |it| it.to_string());
                    tracing::warn!(
                        "the page at {page} closed a connection from {peer}, since the page cannot \
                         encrypt this connection: {error}"
                    );
                });
                let serving = async move {
                    if let Ok(stream) = stream {
                        serve_connection(stream, peer.map(|it| it.ip()), &*handler).await;
                    }
                    drop(permit);
                };
                skep_env::spawn(serving).detach();
            }
            Err(error) => {
                failed.note(&error);
                skep_env::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// The parts of a request that the server uses.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The method, such as `GET`.
    pub method: String,
    /// The path with its query.
    pub path: String,
    /// The value of the header `Host`, or an empty text if the header is missing.
    pub host: String,
    /// The value of the header `Authorization`, or an empty text if the header is missing.
    pub authorization: String,
    /// The address of the client. `None` means that the address is unknown, because the connection
    /// has already ended.
    pub peer: Option<IpAddr>,
    /// Whether the client has requested that the connection ends after the reply.
    pub is_last: bool,
    /// Length of the head in bytes. The next request on the connection begins after the head,
    /// because requests have no body.
    pub head_bytes: usize,
}

/// A reply.
#[derive(Debug)]
pub struct Reply {
    /// Status code and reason, such as `200 OK`.
    pub status: &'static str,
    /// The media type of the body, such as `application/json`.
    pub content_type: &'static str,
    /// Additional headers, as names and values.
    pub headers: &'static [(&'static str, &'static str)],
    /// The body of the reply.
    pub body: Vec<u8>,
}

/// Returns a reply of plain text.
pub fn plain(status: &'static str, body: &str) -> Reply {
    let content_type = "text/plain; charset=utf-8";
    Reply { status, content_type, headers: &[], body: body.into() }
}

async fn serve_connection(mut stream: Stream, peer: Option<IpAddr>, handler: &Handler) {
    let mut received = Vec::new();
    for _ in 0..MAX_REQUESTS {
        let request = skep_env::timeout(PATIENCE, next_request(&mut stream, &mut received)).await;
        let ((reply, permit), is_last, has_body) = match request {
            None | Some(Ok(None)) => break,
            Some(Ok(Some(request))) => {
                received.drain(..request.head_bytes);
                let request = Request { peer, ..request };
                let has_body = request.method != "HEAD";
                let reply = match handler(&request) {
                    Answer::Now(reply) => (reply, None),
                    Answer::Later(reply) => reply.await,
                };
                (reply, request.is_last, has_body)
            }
            Some(Err(problem)) => ((plain("400 Bad Request", &problem), None), true, true),
        };
        let sending = stream.send(to_parts(reply, is_last, has_body));
        let sent = skep_env::timeout(PATIENCE, sending).await;
        drop(permit);
        if !matches!(sent, Some(Ok(()))) || is_last {
            break;
        }
    }
    stream.close().await;
}

/// Receives bytes until `received` begins with a complete request head. Returns `None` at the end
/// of the stream.
async fn next_request(
    stream: &mut Stream,
    received: &mut Vec<u8>,
) -> Result<Option<Request>, String> {
    loop {
        if let Some(request) = parse(received)? {
            return Ok(Some(request));
        }
        if received.len() >= MAX_HEAD_BYTES {
            return Err(format!("the head of the request is longer than {MAX_HEAD_BYTES} bytes\n"));
        }
        if !matches!(stream.receive(received).await, Ok(1..)) {
            return Ok(None);
        }
    }
}

/// Parses the head of a request. `None` means that the head is not complete yet.
fn parse(received: &[u8]) -> Result<Option<Request>, String> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut head = httparse::Request::new(&mut headers);
    let head_bytes = match head.parse(received) {
        Ok(httparse::Status::Complete(bytes)) => bytes,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(error) => return Err(format!("cannot parse the request: {error}\n")),
    };
    let header = |name: &str| {
        let found = head.headers.iter().find(|it| it.name.eq_ignore_ascii_case(name));
        found.map(|it| String::from_utf8_lossy(it.value).trim().to_owned())
    };
    let has_body = header("content-length").is_some_and(|length| length != "0")
        || header("transfer-encoding").is_some();
    if has_body {
        return Err("requests to this page must not have a body\n".into());
    }
    let connection = header("connection").unwrap_or_default().to_ascii_lowercase();
    let closes = connection.contains("close");
    Ok(Some(Request {
        method: head.method.unwrap_or_default().into(),
        path: head.path.unwrap_or_default().into(),
        host: header("host").unwrap_or_default(),
        authorization: header("authorization").unwrap_or_default(),
        peer: None,
        is_last: closes || head.version == Some(0),
        head_bytes,
    }))
}

fn reply_to(request: &Request, registry: &Registry) -> Reply {
    let path = request.path.split_once('?').map_or(request.path.as_str(), |(path, _)| path);
    match (request.method.as_str(), path) {
        ("GET" | "HEAD", "/metrics") => Reply {
            status: "200 OK",
            content_type: text::CONTENT_TYPE,
            headers: &[],
            body: text::encode(&registry.snapshot()).into(),
        },
        ("GET" | "HEAD", "/") => plain("200 OK", "The metrics of this process: /metrics\n"),
        ("GET" | "HEAD", _) => plain("404 Not Found", "This address has only the page /metrics.\n"),
        _ => plain("405 Method Not Allowed", "This page can only be read: use GET.\n"),
    }
}

/// Returns the head and the body of a reply. The body may be large, so this function does not copy
/// the body.
fn to_parts(reply: Reply, is_last: bool, has_body: bool) -> Vec<Vec<u8>> {
    let Reply { status, content_type, headers, body } = reply;
    let connection = if is_last { "close" } else { "keep-alive" };
    let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
    let mut head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\
         Connection: {connection}\r\nX-Content-Type-Options: nosniff\r\n{allow}",
        body.len()
    );
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    let mut parts = vec![(head + "\r\n").into_bytes()];
    parts.extend(has_body.then_some(body));
    parts
}

#[cfg(test)]
pub(crate) mod tests;
