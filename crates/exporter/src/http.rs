//! A small HTTP server that answers `GET /metrics` with the figures of the process.
//!
//! It runs on the event loop of a thread that serves no requests of clients. It uses the parser of
//! request heads that `hyper` uses, and supports just what readers of metrics need: requests
//! without a body, several requests on one connection. A server library would bring a second event
//! loop, since the libraries build on the reactor of one async runtime.
//!
//! Everything is bounded: the number of connections, the length and time of a request, the time to
//! receive a reply. A request can change nothing.

use skep_env::local::Semaphore;
use skep_env::{Buf, MessagePart, TcpListener, TcpStream};
use skep_metrics::{Registry, text};
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of connections at a time. Further connections wait to be accepted.
const MAX_CONNECTIONS: usize = 16;
/// Maximum length of a request's head.
const MAX_HEAD_BYTES: usize = 8 << 10;
/// Maximum number of headers of a request.
const MAX_HEADERS: usize = 64;
/// Time after which a connection without a complete request is closed, and after which a reply that
/// the peer does not read is dropped.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum number of requests on one connection.
const MAX_REQUESTS: usize = 10_000;
/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves `GET /metrics` until the future is dropped.
pub async fn serve(listener: TcpListener, registry: Arc<Registry>) {
    let permits = Semaphore::new(MAX_CONNECTIONS);
    // Retry: accept after an error, such as no free file descriptor. Every `ACCEPT_PAUSE`, without
    // limit.
    loop {
        let permit = permits.acquire().await;
        match listener.accept().await {
            Ok(stream) => {
                let registry = Arc::clone(&registry);
                let serving = async move {
                    serve_connection(stream, &registry).await;
                    drop(permit);
                };
                skep_env::spawn(serving).detach();
            }
            Err(error) => {
                tracing::warn!("cannot accept a connection to the metrics page: {error}");
                skep_env::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// A request, as far as the server looks at it.
#[derive(Debug, PartialEq, Eq)]
struct Request {
    method: String,
    path: String,
    is_last: bool,
    /// Bytes of the head. The next request begins behind it.
    head_bytes: usize,
}

/// A reply.
#[derive(Debug)]
struct Reply {
    status: &'static str,
    content_type: &'static str,
    body: String,
}

fn plain(status: &'static str, body: &str) -> Reply {
    Reply { status, content_type: "text/plain; charset=utf-8", body: body.to_owned() }
}

async fn serve_connection(stream: TcpStream, registry: &Registry) {
    let mut received = Vec::new();
    for _ in 0..MAX_REQUESTS {
        let request = skep_env::timeout(PATIENCE, next_request(&stream, &mut received)).await;
        let (reply, is_last, has_body) = match request {
            None | Some(Ok(None)) => break,
            Some(Ok(Some(request))) => {
                received.drain(..request.head_bytes);
                let has_body = request.method != "HEAD";
                (reply_to(&request, registry), request.is_last, has_body)
            }
            Some(Err(problem)) => (plain("400 Bad Request", &problem), true, true),
        };
        let bytes = to_bytes(&reply, is_last, has_body);
        let sending = stream.send(vec![MessagePart::Bytes(bytes)]);
        if !matches!(skep_env::timeout(PATIENCE, sending).await, Some(Ok(()))) || is_last {
            break;
        }
    }
    stream.shutdown();
}

/// Receives until `received` begins with a complete head. Returns `None` at the end of the stream.
async fn next_request(
    stream: &TcpStream,
    received: &mut Vec<u8>,
) -> Result<Option<Request>, String> {
    let buffer = Buf::new(MAX_HEAD_BYTES);
    loop {
        if let Some(request) = parse(received)? {
            return Ok(Some(request));
        }
        if received.len() >= MAX_HEAD_BYTES {
            return Err(format!("the head of the request is longer than {MAX_HEAD_BYTES} bytes\n"));
        }
        match stream.receive(buffer.clone()).await {
            Ok(count @ 1..) => received.extend_from_slice(&buffer.bytes()[..count]),
            _ => return Ok(None),
        }
    }
}

/// Parses the head of a request. `None` means that it is not complete.
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
        found.map(|it| String::from_utf8_lossy(it.value).to_ascii_lowercase())
    };
    let has_body = header("content-length").is_some_and(|length| length.trim() != "0")
        || header("transfer-encoding").is_some();
    if has_body {
        return Err("requests to this page have no body\n".into());
    }
    let closes = header("connection").is_some_and(|value| value.contains("close"));
    Ok(Some(Request {
        method: head.method.unwrap_or_default().into(),
        path: head.path.unwrap_or_default().into(),
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
            body: text::encode(&registry.snapshot()),
        },
        ("GET" | "HEAD", "/") => plain("200 OK", "The figures of this process: /metrics\n"),
        ("GET" | "HEAD", _) => plain("404 Not Found", "The only page here is /metrics.\n"),
        _ => plain("405 Method Not Allowed", "This page can only be read: use GET.\n"),
    }
}

fn to_bytes(reply: &Reply, is_last: bool, has_body: bool) -> Vec<u8> {
    let Reply { status, content_type, body } = reply;
    let connection = if is_last { "close" } else { "keep-alive" };
    let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
    let mut bytes = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\
         Connection: {connection}\r\nX-Content-Type-Options: nosniff\r\n{allow}\r\n",
        body.len()
    )
    .into_bytes();
    if has_body {
        bytes.extend_from_slice(body.as_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests;
