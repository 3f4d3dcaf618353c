//! Sends requests to one bucket, with signatures, retries and checksums. `operations` has the
//! operations on the bucket.

mod operations;

use crate::checksum::Crc;
use crate::credentials::{Credentials, Provider, now};
use crate::location::Location;
use crate::retry::{Attempts, Reaction, reaction};
use crate::settings::{DEFAULT_REGION, Endpoint, Settings};
use crate::sign::{self, UNSIGNED, Unsigned};
use crate::store::{Content, Head};
use crate::text::{checksum, hex, parse_checksum};
use crate::time::{basic, parse_http};
use crate::transport;
use crate::xml::{self, Malformed, Refusal};
use md5::Md5;
use sha2::{Digest, Sha256};
use skep_types::text::shown;
use skep_types::{Error, ErrorCode, Result};
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use ureq::http::{HeaderMap, Request as HttpRequest, Response};
use ureq::{Agent, Body, SendBody};

/// Number of bytes that are read from a body at a time.
const BUFFER: usize = 256 << 10;
/// Maximum length of a reply that is not an object. The longest reply is a page of a listing, with
/// 1000 escaped keys of 1024 bytes.
const MOST_REPLY: u64 = 16 << 20;
/// Maximum number of entries in a page of a listing, as the value of a query parameter.
const PAGE: &str = "1000";
/// Maximum length of a text that an error message quotes from the service or from the network
/// library.
const MOST_TEXT: usize = 300;
/// Prefix of the headers that contain metadata of an object.
const METADATA: &str = "x-amz-meta-";
/// The header that contains the CRC-32C of a body.
const CRC: &str = "x-amz-checksum-crc32c";

/// A client of one bucket. All threads of a copy share one client.
#[derive(Debug)]
pub struct Client {
    bucket: String,
    endpoint: Endpoint,
    region: String,
    provider: Arc<Provider>,
    agent: Agent,
    /// Whether the service has answered any request of this client.
    has_answered: AtomicBool,
}

/// A request before it is signed.
#[derive(Debug)]
struct Request<'a> {
    method: &'static str,
    /// The key of the object. `None` means that the request is for the bucket.
    key: Option<&'a str>,
    query: Vec<(String, String)>,
    headers: Vec<(String, String)>,
}

/// The checksums of the body of a request.
#[derive(Debug, Clone, Default)]
struct Digests {
    crc: u32,
    /// The value for the header `x-amz-content-sha256`.
    sha256: String,
}

/// A reply that refuses the request.
#[derive(Debug)]
struct Refused {
    status: u16,
    refusal: Refusal,
    /// The pause before a retry that the service asks for.
    pause: Option<Duration>,
    /// The credentials that the signature of the request uses.
    used: Option<Credentials>,
}

/// The reason why an attempt to send a request has failed.
#[derive(Debug)]
enum Failed {
    /// The service has refused the request.
    Refused(Box<Refused>),
    /// The connection could not be opened, or was lost.
    Cut(String),
    /// The bytes of the body could not be read.
    Local(io::Error),
    /// No credentials exist, the request cannot be expressed in HTTP, or the certificate of the
    /// service is not trusted.
    Own(Error),
}

impl Client {
    /// Creates a client for a bucket. Sends no request yet.
    ///
    /// # Errors
    /// Returns `InvalidArgument` if the endpoint is not valid. Returns an error if the certificates
    /// cannot be used.
    pub fn new(settings: &Settings, location: &Location, provider: Arc<Provider>) -> Result<Self> {
        let region = settings.region.clone().unwrap_or_else(|| DEFAULT_REGION.to_owned());
        let endpoint = Endpoint::new(settings, &region, location)?;
        let agent = transport::agent(endpoint.is_secure(), settings.ca.as_deref())?;
        let bucket = location.bucket.clone();
        let has_answered = AtomicBool::new(false);
        Ok(Self { bucket, endpoint, region, provider, agent, has_answered })
    }

    /// Sends a request with the body `content`. Retries as long as another attempt may succeed.
    fn send(
        &self,
        request: &Request<'_>,
        content: &dyn Content,
        digests: &Digests,
    ) -> Result<Response<Body>> {
        let mut attempts = Attempts::new(self.has_answered.load(Ordering::Relaxed));
        loop {
            let failed = match self.attempt(request, content, digests) {
                Ok(reply) => {
                    self.has_answered.store(true, Ordering::Relaxed);
                    return Ok(reply);
                }
                Err(failed) => failed,
            };
            match failed {
                Failed::Own(error) => return Err(error),
                Failed::Local(error) => return Err(Error::from(error)),
                Failed::Cut(reason) => {
                    if !attempts.again(None) {
                        let what = format!(
                            "{} does not answer: {}; {} attempts have failed",
                            self.endpoint.authority,
                            shown(&reason, MOST_TEXT),
                            attempts.made()
                        );
                        return Err(Error::new(ErrorCode::Disconnected, what));
                    }
                }
                Failed::Refused(refused) => {
                    let Refused { status, refusal, pause, used } = *refused;
                    attempts.note_answer();
                    self.has_answered.store(true, Ordering::Relaxed);
                    let reaction = reaction(status, &refusal.code);
                    let is_repeated = match reaction {
                        Reaction::Give => false,
                        Reaction::Repeat => attempts.again(pause),
                        Reaction::Renew => {
                            used.is_some_and(|it| self.provider.forget(&it)) && attempts.renew()
                        }
                    };
                    if !is_repeated {
                        let error = self.refused(request, status, &refusal);
                        return Err(match reaction {
                            Reaction::Repeat => Error::new(
                                ErrorCode::Disconnected,
                                format!(
                                    "{}; {} attempts have failed",
                                    error.context(),
                                    attempts.made()
                                ),
                            ),
                            _ => error,
                        });
                    }
                }
            }
        }
    }

    /// Sends a request once, without a retry.
    fn attempt(
        &self,
        request: &Request<'_>,
        content: &dyn Content,
        digests: &Digests,
    ) -> std::result::Result<Response<Body>, Failed> {
        let used = self.provider.get().map_err(Failed::Own)?;
        let path = self.endpoint.path(request.key);
        let seconds = now();
        let mut headers = request.headers.clone();
        let mut add = |name: &str, value: &str| headers.push((name.to_owned(), value.to_owned()));
        add("host", &self.endpoint.authority);
        add("x-amz-date", &basic(seconds));
        add("x-amz-content-sha256", &digests.sha256);
        if let Some(credentials) = &used {
            if let Some(token) = &credentials.session_token {
                add("x-amz-security-token", token);
            }
            let unsigned = Unsigned {
                method: request.method,
                path: &path,
                query: &request.query,
                headers: &headers,
                body: &digests.sha256,
            };
            let value = sign::authorization(&unsigned, credentials, &self.region, seconds);
            headers.push(("authorization".to_owned(), value));
        }
        let query = sign::query(&request.query);
        let separator = if query.is_empty() { "" } else { "?" };
        let (scheme, authority) = (&self.endpoint.scheme, &self.endpoint.authority);
        let url = format!("{scheme}://{authority}{path}{separator}{query}");
        let mut builder = HttpRequest::builder().method(request.method).uri(url);
        for (name, value) in &headers {
            builder = builder.header(name, value);
        }
        let has_body = matches!(request.method, "PUT" | "POST");
        if has_body {
            builder = builder.header("content-length", content.size());
        }
        let invalid = |error: ureq::http::Error| {
            Failed::Own(Error::new(ErrorCode::InvalidArgument, error.to_string()))
        };
        let mut watched = Watched { reader: None, error: None };
        let result = if has_body {
            watched.reader = Some(content.reader(true).map_err(Failed::Local)?);
            let body = SendBody::from_reader(&mut watched);
            self.agent.run(builder.body(body).map_err(invalid)?)
        } else {
            self.agent.run(builder.body(()).map_err(invalid)?)
        };
        if let Some(error) = watched.error {
            return Err(Failed::Local(error));
        }
        let reply = result.map_err(|error| match transport::tls_problem(&error, authority) {
            Some(problem) => Failed::Own(problem),
            None => Failed::Cut(error.to_string()),
        })?;
        match reply.status().as_u16() {
            200..=299 => Ok(reply),
            status => Err(refusal_of(status, reply, used)),
        }
    }

    /// Sends a request without a body, and returns the text of its reply.
    fn ask(&self, request: &Request<'_>) -> Result<String> {
        self.ask_with(request, b"")
    }

    /// Sends a request with a body, and returns the text of its reply.
    fn ask_with(&self, request: &Request<'_>, body: &[u8]) -> Result<String> {
        let digests = Digests { crc: 0, sha256: hex(&Sha256::digest(body)) };
        let mut attempts = Attempts::new(true);
        loop {
            let mut reply = self.send(request, &body, &digests)?;
            match reply.body_mut().with_config().limit(MOST_REPLY).read_to_string() {
                Ok(text) => return Ok(text),
                Err(error) if !attempts.again(None) => {
                    return Err(Error::new(ErrorCode::Disconnected, error.to_string()));
                }
                Err(_) => {}
            }
        }
    }

    /// Stores the bytes of an object or of a part. Returns the entity tag and the CRC-32C of these
    /// bytes.
    fn store(&self, request: &mut Request<'_>, content: &dyn Content) -> Result<(String, u32)> {
        let digests = self.digests(content)?;
        request.headers.push((CRC.to_owned(), checksum(digests.crc)));
        let reply = self.send(request, content, &digests)?;
        let headers = reply.headers();
        let etag = header(headers, "etag").unwrap_or_default().to_owned();
        let is_checked = header(headers, CRC).and_then(parse_checksum) == Some(digests.crc);
        if let Some(expected) = md5_of(headers, &etag).filter(|_| !is_checked) {
            let mut md5 = Md5::new();
            each(content, false, |bytes| md5.update(bytes))?;
            if hex(&md5.finalize()) != expected {
                return Err(damaged(
                    "the bytes that the service has stored differ from the bytes of the file",
                ));
            }
        }
        Ok((etag, digests.crc))
    }

    /// Computes the checksums of a body.
    fn digests(&self, content: &dyn Content) -> Result<Digests> {
        let mut crc = Crc::default();
        let mut sha256 = (!self.endpoint.is_secure()).then(Sha256::new);
        each(content, false, |bytes| {
            crc.update(bytes);
            if let Some(it) = &mut sha256 {
                it.update(bytes);
            }
        })?;
        let sha256 = sha256.map_or_else(|| UNSIGNED.to_owned(), |it| hex(&it.finalize()));
        Ok(Digests { crc: crc.value(), sha256 })
    }

    /// Returns the error for a reply that refuses a request.
    fn refused(&self, request: &Request<'_>, status: u16, refusal: &Refusal) -> Error {
        let (bucket, host) = (&self.bucket, &self.endpoint.authority);
        let reason = match (refusal.code.as_str(), refusal.message.as_str()) {
            ("", _) => format!("status {status}"),
            (code, message) => format!("{code}: {}", shown(message, MOST_TEXT)),
        };
        let (code, what) = match (status, refusal.code.as_str()) {
            (_, "NoSuchBucket") => (
                ErrorCode::NotFound,
                format!(
                    "{host} has no bucket {bucket}; check the name of the bucket and --s3-endpoint"
                ),
            ),
            (412, _) | (_, "InvalidRange") => {
                (ErrorCode::Stale, "a program changed the object during the copy".to_owned())
            }
            (404, _) => {
                (ErrorCode::NotFound, format!("{host} does not have this object ({reason})"))
            }
            (_, "RequestTimeTooSkewed") => (
                ErrorCode::AuthenticationFailed,
                format!(
                    "the clocks of this host and of {host} differ too much ({reason}); start a \
                     time service on this host"
                ),
            ),
            (301 | 307 | 400, _) if refusal.region.is_some() => {
                let region = refusal.region.as_deref().unwrap_or_default();
                let what = format!(
                    "bucket {bucket} is in the region {region}, and not in {}; use --s3-region \
                     {region}",
                    self.region
                );
                (ErrorCode::InvalidArgument, what)
            }
            (_, "ExpiredToken") => (
                ErrorCode::AuthenticationFailed,
                format!("the credentials have expired; get new ones ({reason})"),
            ),
            (401 | 403, _) => (
                ErrorCode::PermissionDenied,
                format!(
                    "{host} does not allow {} with these credentials ({reason})",
                    request.verb()
                ),
            ),
            (507, _) | (_, "QuotaExceeded" | "XMinioStorageFull") => {
                (ErrorCode::NoSpace, format!("{host} has no space left ({reason})"))
            }
            _ => (ErrorCode::Io, format!("{host} refuses the request ({reason})")),
        };
        Error::new(code, what)
    }

    fn malformed(&self, error: &Malformed) -> Error {
        let what = format!(
            "{} does not answer as S3 does: {}; check --s3-endpoint",
            self.endpoint.authority,
            shown(&error.0, MOST_TEXT)
        );
        Error::new(ErrorCode::Protocol, what)
    }
}

impl<'a> Request<'a> {
    fn new(method: &'static str, key: Option<&'a str>, query: &[(&str, &str)]) -> Self {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Self { method, key, query: query.iter().map(own).collect(), headers: Vec::new() }
    }

    fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    fn metadata(mut self, metadata: &BTreeMap<String, String>) -> Self {
        for (name, value) in metadata {
            self.headers.push((format!("{METADATA}{name}"), value.clone()));
        }
        self
    }

    /// Describes the operation, for messages about missing permissions.
    fn verb(&self) -> &'static str {
        match (self.method, self.key) {
            ("GET", None) => "to list the bucket",
            ("GET" | "HEAD", _) => "to read objects",
            ("DELETE", _) => "to remove objects",
            _ => "to write objects",
        }
    }
}

/// Reads the bytes of a body, and stores a read error, because the HTTP library would return it as
/// an error of the connection.
struct Watched<'a> {
    reader: Option<Box<dyn Read + 'a>>,
    error: Option<io::Error>,
}

impl Read for Watched<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(reader) = &mut self.reader else { return Ok(0) };
        reader.read(buffer).map_err(|error| {
            let kind = error.kind();
            self.error = Some(error);
            kind.into()
        })
    }
}

/// Calls `take` for all bytes of a body.
fn each(content: &dyn Content, is_sent: bool, mut take: impl FnMut(&[u8])) -> Result<()> {
    let mut reader = content.reader(is_sent)?;
    let mut buffer = vec![0; usize::try_from(content.size()).unwrap_or(BUFFER).clamp(1, BUFFER)];
    let mut left = content.size();
    while left > 0 {
        let count = reader.read(&mut buffer)?;
        if count == 0 {
            return Err(Error::new(
                ErrorCode::Stale,
                "a program shortened the file during the copy",
            ));
        }
        take(&buffer[..count]);
        left = left.saturating_sub(count as u64);
    }
    Ok(())
}

fn damaged(what: &str) -> Error {
    Error::new(ErrorCode::Corrupt, format!("{what}: repeat the copy of this object"))
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Returns the MD5 that an entity tag contains. The entity tags of multipart uploads, and of
/// objects that the service encrypts with keys of the user, contain no MD5.
fn md5_of(headers: &HeaderMap, etag: &str) -> Option<String> {
    let encryption = header(headers, "x-amz-server-side-encryption");
    let is_other = encryption.is_some_and(|it| it.contains("kms"))
        || headers.contains_key("x-amz-server-side-encryption-customer-algorithm");
    let digits = etag.trim_matches('"');
    let is_md5 = digits.len() == 32 && digits.bytes().all(|it| it.is_ascii_hexdigit());
    (is_md5 && !is_other).then(|| digits.to_ascii_lowercase())
}

/// Reads the reason of the refusal from a reply.
fn refusal_of(status: u16, mut reply: Response<Body>, used: Option<Credentials>) -> Failed {
    let pause = header(reply.headers(), "retry-after").and_then(|it| it.parse().ok());
    let region = header(reply.headers(), "x-amz-bucket-region").map(str::to_owned);
    let text = reply.body_mut().with_config().limit(MOST_REPLY).read_to_string();
    let refusal = text.ok().and_then(|it| xml::refusal(&it)).unwrap_or_default();
    let refusal = Refusal { region: refusal.region.or(region), ..refusal };
    let pause = pause.map(Duration::from_secs);
    Failed::Refused(Box::new(Refused { status, refusal, pause, used }))
}

/// Returns the attributes of an object from the headers of a reply.
fn head_of(headers: &HeaderMap) -> Option<Head> {
    let whole = header(headers, "content-range").and_then(|it| it.rsplit_once('/'));
    let size = whole.map(|it| it.1).or_else(|| header(headers, "content-length"))?;
    let metadata = headers.iter().filter_map(|(name, value)| {
        let name = name.as_str().strip_prefix(METADATA)?;
        Some((name.to_owned(), value.to_str().ok()?.to_owned()))
    });
    let etag = header(headers, "etag").unwrap_or_default().to_owned();
    let kind = header(headers, "x-amz-checksum-type");
    // If the reply contains only a range of the object, the checksum in it is not the checksum of
    // the object. For an object of a multipart upload, the checksum in the reply may be the
    // checksum of the parts' checksums. Some services do not mark this case.
    let is_whole = whole.is_none() && kind != Some("COMPOSITE");
    let is_whole = is_whole && (kind == Some("FULL_OBJECT") || !etag.contains('-'));
    let crc = header(headers, CRC).filter(|_| is_whole).and_then(parse_checksum);
    Some(Head {
        size: size.parse().ok()?,
        etag,
        modified: header(headers, "last-modified").and_then(parse_http).unwrap_or(0),
        metadata: metadata.collect(),
        crc,
    })
}
