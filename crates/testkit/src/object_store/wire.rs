//! Reads and writes HTTP/1.1 for the test's object store, and checks signatures. This code follows
//! Amazon's documents, and shares no code with the client.

use super::{ACCESS, SECRET, TOKEN, hex};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::ops::Range;

/// A received request.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// Path and query of the request, as the client sent them.
    pub(crate) target: String,
    pub(crate) query: BTreeMap<String, String>,
    /// The headers. The names of the headers are in lower case.
    headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

/// A reply.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// Whether the reply contains only the length of the body, and not the body.
    pub(crate) is_head: bool,
    /// `Some(None)`: the store closes the connection instead of sending the reply. `Some(Some(n))`:
    /// the store closes the connection after `n` bytes of the body.
    pub(crate) cut_after: Option<Option<usize>>,
}

impl Reply {
    pub(crate) fn empty(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Vec::new(), is_head: false, cut_after: None }
    }

    pub(crate) fn xml(text: &str) -> Self {
        Self { body: text.as_bytes().to_vec(), ..Self::empty(200) }
    }

    pub(crate) fn error(status: u16, code: &str) -> Self {
        let text = format!("<Error><Code>{code}</Code><Message>of the test</Message></Error>");
        Self { body: text.into_bytes(), ..Self::empty(status) }
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Writes the reply. Returns whether the connection stays open.
    fn write(&self, stream: &mut impl Write, is_head: bool) -> bool {
        if self.cut_after == Some(None) {
            return false;
        }
        let mut head = format!("HTTP/1.1 {} X\r\n", self.status);
        for (name, value) in &self.headers {
            let _ = write!(head, "{name}: {value}\r\n");
        }
        let _ = write!(head, "content-length: {}\r\n\r\n", self.body.len());
        let end = self.cut_after.flatten().unwrap_or(usize::MAX).min(self.body.len());
        let body = if is_head || self.is_head { &[][..] } else { &self.body[..end] };
        let sent = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
        let sent = sent.and_then(|()| stream.flush());
        sent.is_ok() && self.cut_after.is_none()
    }
}

/// Serves a connection until its end.
pub(crate) fn serve(stream: impl Read + Write, answer: impl Fn(Request) -> Reply) {
    let mut stream = BufReader::new(stream);
    while let Some(request) = Request::read(&mut stream) {
        let is_head = request.method == "HEAD";
        if !answer(request).write(stream.get_mut(), is_head) {
            return;
        }
    }
}

impl Request {
    /// Reads a request. `None` means that the connection has ended.
    fn read(input: &mut impl BufRead) -> Option<Self> {
        let mut line = String::new();
        if input.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let mut words = line.split_whitespace();
        let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
        let mut headers = BTreeMap::new();
        loop {
            let mut line = String::new();
            input.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let len = headers.get("content-length").and_then(|it| it.parse().ok()).unwrap_or(0);
        let mut body = vec![0; len];
        input.read_exact(&mut body).ok()?;
        let query = target.split_once('?').map_or("", |it| it.1);
        let pair = |it: &str| {
            let (name, value) = it.split_once('=').unwrap_or((it, ""));
            (unescape(name), unescape(value))
        };
        let query = query.split('&').filter(|it| !it.is_empty()).map(pair).collect();
        Some(Self { method, target, query, headers, body })
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    pub(crate) fn metadata(&self) -> BTreeMap<String, String> {
        let of = |(name, value): (&String, &String)| {
            Some((name.strip_prefix("x-amz-meta-")?.to_owned(), value.clone()))
        };
        self.headers.iter().filter_map(of).collect()
    }

    fn path(&self) -> &str {
        self.target.split_once('?').map_or(self.target.as_str(), |it| it.0)
    }

    pub(crate) fn bucket(&self) -> String {
        unescape(self.path().trim_start_matches('/').split('/').next().unwrap_or_default())
    }

    pub(crate) fn key(&self) -> Option<String> {
        let (_, key) = self.path().trim_start_matches('/').split_once('/')?;
        Some(unescape(key)).filter(|it| !it.is_empty())
    }

    /// Changes one bit in the body of the reply.
    pub(crate) fn damage(&mut self) {
        let middle = self.body.len() / 2;
        if let Some(byte) = self.body.get_mut(middle) {
            *byte ^= 1;
        }
    }

    /// Checks the version 4 signature of the request.
    pub(crate) fn check_signature(&self) -> Result<(), &'static str> {
        let value = self.header("authorization").ok_or("AccessDenied")?;
        let value = value.strip_prefix("AWS4-HMAC-SHA256 ").ok_or("InvalidRequest")?;
        let field = |name: &str| {
            let mut fields = value.split(',').filter_map(|it| it.trim().split_once('='));
            fields.find(|it| it.0 == name).map(|it| it.1).ok_or("InvalidRequest")
        };
        let (names, signature) = (field("SignedHeaders")?, field("Signature")?);
        let scope = field("Credential")?.strip_prefix(ACCESS).ok_or("InvalidAccessKeyId")?;
        let scope = scope.trim_start_matches('/');
        let all_amazon = self.headers.keys().filter(|it| it.starts_with("x-amz-"));
        let signed: Vec<_> = names.split(';').collect();
        if !signed.contains(&"host")
            || !all_amazon.into_iter().all(|it| signed.contains(&it.as_str()))
        {
            return Err("AccessDenied");
        }
        if self.header("x-amz-security-token") != Some(TOKEN) {
            return Err("InvalidToken");
        }
        let mut canonical = format!("{}\n{}\n", self.method, self.path());
        let mut query: Vec<_> =
            self.query.iter().map(|(name, value)| (escape(name), escape(value))).collect();
        query.sort();
        let query: Vec<_> = query.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let _ = writeln!(canonical, "{}", query.join("&"));
        for name in &signed {
            let _ = writeln!(canonical, "{name}:{}", self.header(name).ok_or("AccessDenied")?);
        }
        let body = self.header("x-amz-content-sha256").ok_or("AccessDenied")?;
        let _ = write!(canonical, "\n{names}\n{body}");
        let date = self.header("x-amz-date").ok_or("AccessDenied")?;
        let digest = hex(&Sha256::digest(canonical.as_bytes()));
        let text = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{digest}");
        let mut key = format!("AWS4{SECRET}").into_bytes();
        for part in scope.split('/') {
            key = code(&key, part.as_bytes());
        }
        let is_equal =
            scope.starts_with(&date[..8]) && hex(&code(&key, text.as_bytes())) == signature;
        if is_equal { Ok(()) } else { Err("SignatureDoesNotMatch") }
    }
}

/// Returns the HMAC-SHA-256 of a text (RFC 2104).
fn code(key: &[u8], text: &[u8]) -> Vec<u8> {
    let mut block = [0_u8; 64];
    match key.len() > 64 {
        true => block[..32].copy_from_slice(&Sha256::digest(key)),
        false => block[..key.len()].copy_from_slice(key),
    }
    let padded = |byte: u8| block.iter().map(|it| it ^ byte).collect::<Vec<u8>>();
    let inner = Sha256::digest([&padded(0x36), text].concat());
    Sha256::digest([&padded(0x5c)[..], &inner].concat()).to_vec()
}

/// Escapes all bytes except letters, digits and `-._~`.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

/// Replaces each escape sequence by the byte that the sequence represents.
pub(crate) fn unescape(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut found, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let digits = (bytes[at] == b'%').then(|| text.get(at + 1..at + 3)).flatten();
        if let Some(byte) = digits.and_then(|it| u8::from_str_radix(it, 16).ok()) {
            found.push(byte);
            at += 3;
        } else {
            found.push(bytes[at]);
            at += 1;
        }
    }
    String::from_utf8_lossy(&found).into_owned()
}

/// Parses the range `bytes=A-B` or `bytes=A-` of an object of `len` bytes.
pub(crate) fn range(text: &str, len: usize) -> Range<usize> {
    let (start, end) = text.trim_start_matches("bytes=").split_once('-').unwrap_or(("0", ""));
    let start = start.parse().unwrap_or(0);
    let end = end.parse::<usize>().map_or(len, |it| (it + 1).min(len));
    start..end.max(start)
}
