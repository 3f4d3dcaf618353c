//! A client for single HTTP requests. It sends alerts to a webhook, data points to InfluxDB and
//! Prometheus, traces to a collector, and the queries of `skep stats --history` to a monitor.
//!
//! The client limits the length of a reply, and the time until the reply has arrived. With `https`,
//! the client trusts the certificates of the authorities that the system trusts.

use crate::limits::{MAX_REPLY_BYTES, SEND_PATIENCE};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use skep_env::TcpStream;
use skep_exporter::tls::{Stream, TlsStream, provider};
use std::io::ErrorKind;
use std::sync::{Arc, OnceLock};

/// The settings of TLS, which the first request with `https` reads from the system.
static CLIENT_TLS: OnceLock<Arc<ClientConfig>> = OnceLock::new();
/// Maximum number of headers of a reply.
const MAX_HEADERS: usize = 64;
/// Maximum length of the head of a reply. The head is parsed again after each received part.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Maximum number of bytes that [`post`] reads of the body of a reply. These bytes contain the
/// reason of a failure.
const START_BYTES: usize = 1 << 10;

/// A URL of the form `http://host:port/path` or `https://host:port/path`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    /// Host and port, as `host:port`.
    pub address: String,
    /// The path with its query. It begins with `/`.
    pub path: String,
    /// Whether the connection is encrypted (`https`).
    pub is_encrypted: bool,
}

impl Url {
    /// Parses a URL. The default port is 80, or 443 with `https`.
    ///
    /// # Errors
    /// A description of the problem as text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("invalid address '{text}': expected http://host:port/path or https://...");
        let encrypted = text.strip_prefix("https://");
        let is_encrypted = encrypted.is_some();
        let rest = encrypted.or_else(|| text.strip_prefix("http://")).ok_or_else(wrong)?;
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
        let port = if is_encrypted { 443 } else { 80 };
        let address = if has_port { host.to_owned() } else { format!("{host}:{port}") };
        Ok(Self { address, path: path.to_owned(), is_encrypted })
    }
}

/// A request.
#[derive(Debug)]
pub struct HttpRequest<'a> {
    /// `GET` or `POST`.
    pub method: &'static str,
    /// The address to which the client sends the request.
    pub url: &'a Url,
    /// The value of the header `Authorization`. If the text is empty, the request has no such
    /// header.
    pub authorization: &'a str,
    /// The media type of the body, such as `application/json`.
    pub content_type: &'static str,
    /// Further headers, as pairs of name and value.
    pub headers: &'static [(&'static str, &'static str)],
    /// The body of the request.
    pub body: &'a [u8],
}

impl<'a> HttpRequest<'a> {
    /// Returns a `POST` of JSON without authorization.
    pub(crate) fn of_json(url: &'a Url, json: &'a str) -> Self {
        Self {
            method: "POST",
            url,
            authorization: "",
            content_type: "application/json",
            headers: &[],
            body: json.as_bytes(),
        }
    }
}

/// The reason why another program did not accept a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// A later attempt may succeed.
    Later(String),
    /// A later attempt would fail for the same reason.
    Refused(String),
}

/// Sends a request, and returns the status code and the body of the reply.
///
/// # Errors
/// A description of the problem as text: no connection, no reply in time, or a reply that is not
/// HTTP.
pub async fn send(request: &HttpRequest<'_>) -> Result<(u16, Vec<u8>), String> {
    send_and_read(request, usize::MAX).await
}

/// Sends a request for which only the status of the reply matters. Reads only the start of the
/// body, because the other program may send a long page.
///
/// # Errors
/// The reason why the other program did not accept the request.
pub(crate) async fn post(request: &HttpRequest<'_>) -> Result<(), Failure> {
    let (code, body) = send_and_read(request, START_BYTES).await.map_err(Failure::Later)?;
    outcome(code, &body)
}

/// Returns the outcome of a request, from the status code and the body of the reply.
pub(crate) fn outcome(code: u16, body: &[u8]) -> Result<(), Failure> {
    let reason = || {
        let reason: String = String::from_utf8_lossy(body).chars().take(200).collect();
        format!("the server replied {code}: {}", reason.trim_end().escape_debug())
    };
    match code {
        200..=299 => Ok(()),
        // The server has waited too long (408), gets too many requests (429), or has failed (500
        // and above). A later attempt may succeed.
        408 | 429 | 500.. => Err(Failure::Later(reason())),
        _ => Err(Failure::Refused(reason())),
    }
}

/// Sends a request, and reads at most the first `most` bytes of the body of the reply.
async fn send_and_read(request: &HttpRequest<'_>, most: usize) -> Result<(u16, Vec<u8>), String> {
    let address = &request.url.address;
    let sending = skep_env::timeout(SEND_PATIENCE, exchange(request, most));
    let late = || Err(format!("no reply within {SEND_PATIENCE:?}"));
    sending.await.unwrap_or_else(late).map_err(|problem| format!("{address}: {problem}"))
}

async fn exchange(request: &HttpRequest<'_>, most: usize) -> Result<(u16, Vec<u8>), String> {
    let HttpRequest { method, url, authorization, content_type, headers, body } = request;
    // A line break in a file with a token would begin another header.
    if authorization.contains(|c: char| c.is_ascii_control()) {
        return Err("the token or the password contains a control character".into());
    }
    let mut stream = connect(url).await?;
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
    let mut message = (head + "\r\n").into_bytes();
    message.extend_from_slice(body);
    stream.send(vec![message]).await.map_err(|error| error.to_string())?;
    let mut received = Vec::new();
    loop {
        let count = match stream.receive(&mut received).await {
            // Some servers do not end the stream of TLS. If the caller needs the whole body, a
            // missing end of the stream is an error, because the end of a body without a length may
            // be missing.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof && most < usize::MAX => 0,
            count => count.map_err(|error| error.to_string())?,
        };
        if received.len() > MAX_REPLY_BYTES {
            return Err("the reply is too long".into());
        }
        if let Some(reply) = parse(&received, count == 0, most)? {
            return Ok(reply);
        }
    }
}

/// Connects to the server, and does the handshake of TLS if the address has `https`.
async fn connect(url: &Url) -> Result<Stream, String> {
    let socket = TcpStream::connect(&url.address).await.map_err(|error| error.to_string())?;
    if !url.is_encrypted {
        return Ok(Stream::Plain(socket));
    }
    let host = url.address.rsplit_once(':').map_or(url.address.as_str(), |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let name = ServerName::try_from(host).map_err(|error| error.to_string())?;
    let connection =
        ClientConnection::new(client_tls()?, name).map_err(|error| error.to_string())?;
    let mut stream = TlsStream::new(socket, connection.into());
    stream.handshake().await.map_err(|error| format!("TLS: {error}"))?;
    Ok(Stream::Encrypted(Box::new(stream)))
}

/// Returns the settings of TLS, which trust the authorities of the system.
fn client_tls() -> Result<Arc<ClientConfig>, String> {
    if let Some(known) = CLIENT_TLS.get() {
        return Ok(Arc::clone(known));
    }
    let mut roots = RootCertStore::empty();
    let (added, _) =
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if added == 0 {
        return Err("this system has no certificates of trusted authorities; install the package \
                    ca-certificates"
            .into());
    }
    let provider = provider().map_err(|error| error.context().to_owned())?;
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::clone(CLIENT_TLS.get_or_init(|| Arc::new(config))))
}

/// Parses a reply, and returns its status code and at most the first `most` bytes of its body.
/// `None` means that these bytes are not complete yet.
fn parse(received: &[u8], has_ended: bool, most: usize) -> Result<Option<(u16, Vec<u8>)>, String> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut head = httparse::Response::new(&mut headers);
    let start = match head.parse(received) {
        Ok(httparse::Status::Complete(start)) => start,
        Ok(httparse::Status::Partial) if has_ended => {
            return Err("the connection ended before the reply".into());
        }
        Ok(httparse::Status::Partial) if received.len() > MAX_HEAD_BYTES => {
            return Err("the header of the reply is too long".into());
        }
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(error) => return Err(format!("the reply is not HTTP: {error}")),
    };
    let code = head.code.unwrap_or_default();
    let length = head.headers.iter().find(|it| it.name.eq_ignore_ascii_case("content-length"));
    let length: Option<usize> =
        length.and_then(|it| std::str::from_utf8(it.value).ok()?.trim().parse().ok());
    let body = &received[start..];
    let wanted = length.unwrap_or(usize::MAX).min(most);
    match length {
        _ if body.len() >= wanted => Ok(Some((code, body[..wanted].to_vec()))),
        Some(_) if has_ended => Err("the connection ended within the reply".into()),
        None if has_ended => Ok(Some((code, body.to_vec()))),
        _ => Ok(None),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use skep_env::{Buf, MessagePart, TcpListener};

    /// Receives a request with a body, and sends a reply. Returns the body.
    pub(crate) async fn answer(listener: &TcpListener, status: &str) -> Vec<u8> {
        let stream = listener.accept().await.unwrap();
        let (buffer, mut received) = (Buf::new(4096), Vec::new());
        let body = loop {
            let count = stream.receive(buffer.clone()).await.unwrap();
            assert!(count > 0, "the request is whole");
            received.extend_from_slice(&buffer.bytes()[..count]);
            if let Some(body) = body_of(&received) {
                break body;
            }
        };
        let reply = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
        stream.send(vec![MessagePart::Bytes(reply.into_bytes())]).await.unwrap();
        body
    }

    /// Returns the body of a request. `None` means that the request is not complete.
    fn body_of(received: &[u8]) -> Option<Vec<u8>> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut head = httparse::Request::new(&mut headers);
        let httparse::Status::Complete(start) = head.parse(received).unwrap() else { return None };
        let length = head.headers.iter().find(|it| it.name == "Content-Length").unwrap();
        let length: usize = std::str::from_utf8(length.value).unwrap().parse().unwrap();
        let body = received.get(start..start + length)?;
        Some(body.to_vec())
    }

    #[test]
    fn url_is_split_into_address_and_path() {
        let url = |text| Url::parse(text).map(|url| (url.address, url.path));
        assert!(Url::parse("https://a/").is_ok_and(|it| it.is_encrypted && it.address == "a:443"));
        assert!(Url::parse("http://a:443/").is_ok_and(|it| !it.is_encrypted));
        assert_eq!(url("http://a:9/b?c=d"), Ok(("a:9".into(), "/b?c=d".into())));
        assert_eq!(url("http://a"), Ok(("a:80".into(), "/".into())));
        assert_eq!(url("http://[::1]:9/"), Ok(("[::1]:9".into(), "/".into())));
        for wrong in [
            "",
            "a:9",
            "ftp://a/",
            "https://",
            "http:///b",
            "http://a/b c",
            "http://u@a/",
            "http://a/\r\nX: y",
        ] {
            assert!(url(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn http_reply_ends_at_its_length_or_with_the_connection() {
        let whole = |received, has_ended| parse(received, has_ended, usize::MAX);
        let reply = b"HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\nok";
        assert_eq!(whole(&reply[..], false), Ok(Some((204, b"ok".to_vec()))));
        assert_eq!(whole(&reply[..reply.len() - 1], false), Ok(None));
        assert!(whole(&reply[..reply.len() - 1], true).is_err());
        let open = b"HTTP/1.0 200 OK\r\n\r\nall";
        assert_eq!(
            (whole(&open[..], false), whole(&open[..], true)),
            (Ok(None), Ok(Some((200, b"all".to_vec()))))
        );
        assert!(whole(b"SSH-2.0-x\r\n", false).is_err());
    }

    #[test]
    fn status_is_read_from_the_start_of_a_long_reply() {
        let endless = b"HTTP/1.1 500 No\r\n\r\nbusy and more";
        assert_eq!(parse(endless, false, 4), Ok(Some((500, b"busy".to_vec()))));
        let long = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\nstart";
        assert_eq!(parse(long, false, 5), Ok(Some((200, b"start".to_vec()))));
        assert_eq!(parse(long, false, 6), Ok(None));
        let mut head = b"HTTP/1.1 200 OK\r\nX: ".to_vec();
        head.resize(MAX_HEAD_BYTES + 1, b'x');
        let error = parse(&head, false, usize::MAX).unwrap_err();
        assert!(error.contains("header of the reply is too long"), "{error}");
    }

    #[test]
    fn token_with_control_characters_cannot_add_a_header() {
        let url = Url::parse("http://127.0.0.1:1/").unwrap();
        let sent = skep_env::block_on(async move {
            let request = HttpRequest {
                method: "GET",
                url: &url,
                authorization: "Bearer a\rX: y",
                content_type: "",
                headers: &[],
                body: &[],
            };
            send(&request).await
        });
        assert!(sent.unwrap().unwrap_err().contains("control character"));
    }

    #[test]
    fn only_temporary_failures_are_retried() {
        assert_eq!(outcome(204, b""), Ok(()));
        for code in [408, 429, 500, 503] {
            assert!(matches!(outcome(code, b"busy"), Err(Failure::Later(_))), "{code}");
        }
        for code in [302, 400, 401, 404] {
            assert!(matches!(outcome(code, b"no"), Err(Failure::Refused(_))), "{code}");
        }
        let wrong = Failure::Refused("the server replied 400: a\\nb".into());
        assert_eq!(outcome(400, b"a\nb\n"), Err(wrong));
    }
}
