//! A client for single HTTP requests. It sends alerts to a webhook, data points to InfluxDB and
//! Prometheus, traces to a collector, and the queries of `skep stats --history` to a monitor.
//!
//! The client supports only `http`. It limits the length of a reply, and the time until the reply
//! has arrived.

use crate::limits::{MAX_REPLY_BYTES, SEND_PATIENCE};
use skep_env::{Buf, MessagePart, TcpStream};

/// Length of the receive buffer for a reply.
const BUFFER_BYTES: usize = 64 << 10;
/// Maximum number of headers of a reply.
const MAX_HEADERS: usize = 64;

/// A URL of the form `http://host:port/path`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    /// Host and port, as `host:port`.
    pub address: String,
    /// The path with its query. It begins with `/`.
    pub path: String,
}

impl Url {
    /// Parses a URL. The default port is 80.
    ///
    /// # Errors
    /// A description of the problem as text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("invalid address '{text}': expected http://host:port/path");
        let rest = text.strip_prefix("http://").ok_or_else(wrong)?;
        let (host, path) = match rest.find('/') {
            Some(slash) => rest.split_at(slash),
            None => (rest, "/"),
        };
        let is_plain = |c: char| c.is_ascii_graphic();
        if host.is_empty() || !host.chars().chain(path.chars()).all(is_plain) || host.contains('@')
        {
            return Err(wrong());
        }
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let address = if has_port { host.to_owned() } else { format!("{host}:80") };
        Ok(Self { address, path: path.to_owned() })
    }
}

/// A request.
#[derive(Debug)]
pub struct HttpRequest<'a> {
    /// `GET` or `POST`.
    pub method: &'static str,
    /// The address.
    pub url: &'a Url,
    /// The value of the header `Authorization`. If the text is empty, the request has no such
    /// header.
    pub authorization: &'a str,
    /// The type of the body.
    pub content_type: &'static str,
    /// Further headers, as pairs of name and value.
    pub headers: &'static [(&'static str, &'static str)],
    /// The body.
    pub body: &'a [u8],
}

/// Sends a request, and returns the status code and the body of the reply.
///
/// # Errors
/// A description of the problem as text: no connection, no reply in time, or a reply that is not
/// HTTP.
pub async fn send(request: &HttpRequest<'_>) -> Result<(u16, Vec<u8>), String> {
    let address = &request.url.address;
    let sending = skep_env::timeout(SEND_PATIENCE, exchange(request));
    let late = || Err(format!("no reply within {SEND_PATIENCE:?}"));
    sending.await.unwrap_or_else(late).map_err(|problem| format!("{address}: {problem}"))
}

async fn exchange(request: &HttpRequest<'_>) -> Result<(u16, Vec<u8>), String> {
    let HttpRequest { method, url, authorization, content_type, headers, body } = request;
    let stream = TcpStream::connect(&url.address).await.map_err(|error| error.to_string())?;
    let mut head = format!(
        "{method} {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nUser-Agent: skep\r\n",
        url.path, url.address
    );
    if !authorization.is_empty() {
        head += &format!("Authorization: {authorization}\r\n");
    }
    for (name, value) in *headers {
        head += &format!("{name}: {value}\r\n");
    }
    if !body.is_empty() {
        head += &format!("Content-Type: {content_type}\r\nContent-Length: {}\r\n", body.len());
    }
    let parts =
        vec![MessagePart::Bytes((head + "\r\n").into_bytes()), MessagePart::Bytes(body.to_vec())];
    stream.send(parts).await.map_err(|error| error.to_string())?;
    let buffer = Buf::new(BUFFER_BYTES);
    let mut received = Vec::new();
    loop {
        let count = stream.receive(buffer.clone()).await.map_err(|error| error.to_string())?;
        received.extend_from_slice(&buffer.bytes()[..count]);
        if received.len() > MAX_REPLY_BYTES {
            return Err("the reply is too long".into());
        }
        if let Some(reply) = parse(&received, count == 0)? {
            return Ok(reply);
        }
    }
}

/// Parses a reply. `None` means that the reply is not complete yet.
fn parse(received: &[u8], has_ended: bool) -> Result<Option<(u16, Vec<u8>)>, String> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut head = httparse::Response::new(&mut headers);
    let start = match head.parse(received) {
        Ok(httparse::Status::Complete(start)) => start,
        Ok(httparse::Status::Partial) if has_ended => {
            return Err("the connection ended before the reply".into());
        }
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(error) => return Err(format!("the reply is not HTTP: {error}")),
    };
    let code = head.code.unwrap_or_default();
    let length = head.headers.iter().find(|it| it.name.eq_ignore_ascii_case("content-length"));
    let length = length.and_then(|it| std::str::from_utf8(it.value).ok()?.trim().parse().ok());
    let body = &received[start..];
    match length {
        Some(length) if body.len() >= length => Ok(Some((code, body[..length].to_vec()))),
        Some(_) if has_ended => Err("the connection ended within the reply".into()),
        None if has_ended => Ok(Some((code, body.to_vec()))),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_is_split_into_address_and_path() {
        let url = |text| Url::parse(text).map(|url| (url.address, url.path));
        assert_eq!(url("http://a:9/b?c=d"), Ok(("a:9".into(), "/b?c=d".into())));
        assert_eq!(url("http://a"), Ok(("a:80".into(), "/".into())));
        assert_eq!(url("http://[::1]:9/"), Ok(("[::1]:9".into(), "/".into())));
        for wrong in [
            "",
            "a:9",
            "https://a/",
            "http:///b",
            "http://a/b c",
            "http://u@a/",
            "http://a/\r\nX: y",
        ] {
            assert!(url(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn reply_ends_at_its_length_or_with_the_connection() {
        let reply = b"HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\nok";
        assert_eq!(parse(reply, false), Ok(Some((204, b"ok".to_vec()))));
        assert_eq!(parse(&reply[..reply.len() - 1], false), Ok(None));
        assert!(parse(&reply[..reply.len() - 1], true).is_err());
        let open = b"HTTP/1.0 200 OK\r\n\r\nall";
        assert_eq!(
            (parse(open, false), parse(open, true)),
            (Ok(None), Ok(Some((200, b"all".to_vec()))))
        );
        assert!(parse(b"SSH-2.0-x\r\n", false).is_err());
    }
}
