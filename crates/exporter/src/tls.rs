//! TLS for the HTTP server of a page and for its clients, by rustls on the event loop of the
//! thread.
//!
//! rustls does no I/O: rustls decrypts received bytes, and encrypts bytes to send. [`TlsStream`]
//! moves these bytes between rustls and the socket. [`ServerTls`] holds the certificate and the
//! key, and reads both files again when a file changes. Skep builds rustls only for TLS 1.3.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{Connection, ServerConfig, ServerConnection};
use skep_env::{Buf, Mailbox, MessagePart, TcpStream};
use skep_types::{Error, ErrorCode, Result};
use std::cell::RefCell;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Length of the receive buffer of a connection.
const BUFFER_BYTES: usize = 16 << 10;
/// Maximum length of a file with a certificate chain or a key. Usual files have some KiB.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Interval at which the server checks whether its files have changed.
const EVERY: Duration = Duration::from_secs(10);
/// Time limit for sending the message that ends a TLS connection (`close_notify`).
const END_PATIENCE: Duration = Duration::from_secs(1);
/// First byte of each record of a TLS handshake.
const HANDSHAKE: u8 = 0x16;
/// Reply to a client that does not use TLS.
const NOT_TLS: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n\
    Content-Length: 45\r\nConnection: close\r\n\r\nThis page is encrypted: open it as https://.\n";

/// Returns the cryptography for TLS.
///
/// # Errors
/// `Unsupported` if the processor lacks instructions that this cryptography needs.
pub fn provider() -> Result<Arc<rustls::crypto::CryptoProvider>> {
    if !graviola::util::is_cpu_supported() {
        let what = "cannot use TLS on this host: the processor lacks AES, AVX2, ADX, BMI or \
                    PCLMULQDQ (on ARM: AES, SHA-2 or PMULL); leave TLS to a proxy on another host";
        return Err(Error::new(ErrorCode::Unsupported, what));
    }
    Ok(Arc::new(rustls_graviola::default_provider()))
}

/// The identity of a file's contents: device, inode, size and time of the last change.
type FileMark = (u64, u64, u64, i64, i64);

/// The identities of the certificate and of the key. `None` for a file that cannot be read.
type FileMarks = [Option<FileMark>; 2];

/// The new identities of changed files, and the settings that use the new files, or the error of
/// reading the files.
type Changed = (FileMarks, Result<Arc<ServerConfig>>);

fn mark(metadata: &Metadata) -> FileMark {
    let changed = (metadata.ctime(), metadata.ctime_nsec());
    (metadata.dev(), metadata.ino(), metadata.size(), changed.0, changed.1)
}

/// The certificate and the key of a server.
#[derive(Debug)]
pub struct ServerTls {
    certificate: PathBuf,
    key: PathBuf,
    config: RefCell<Arc<ServerConfig>>,
    /// The identities of the certificate file and of the key file at the last attempt to read these
    /// files.
    read: RefCell<FileMarks>,
}

impl ServerTls {
    /// Reads the files with the certificate chain and the key, in PEM.
    ///
    /// # Errors
    /// - `Configuration` if a file cannot be read, is no PEM, or does not match the other file. The
    ///   same error if all users of the host can access the key.
    /// - `Unsupported` if the processor lacks instructions.
    pub fn open(certificate: &Path, key: &Path) -> Result<Rc<Self>> {
        let marks = marks(certificate, key);
        let config = RefCell::new(load(certificate, key)?);
        let (certificate, key) = (certificate.to_owned(), key.to_owned());
        Ok(Rc::new(Self { certificate, key, config, read: RefCell::new(marks) }))
    }

    /// Encrypts a connection of a client. The first receive does the handshake.
    ///
    /// # Errors
    /// Errors of rustls. No error is known for settings that [`Self::open`] has accepted.
    pub(crate) fn accept(&self, socket: TcpStream) -> io::Result<TlsStream> {
        let config = Arc::clone(&self.config.borrow());
        let connection = ServerConnection::new(config).map_err(io::Error::other)?;
        Ok(TlsStream::new(socket, connection.into()))
    }

    /// Reads the certificate and the key again after each change of their files, until this future
    /// is dropped. If the new files are invalid, the server keeps the previous certificate.
    pub async fn follow(self: Rc<Self>) {
        // Retry: the task checks the files for changes every ten seconds, without limit.
        loop {
            skep_env::sleep(EVERY).await;
            if let Err(error) = self.read_changed().await {
                tracing::warn!("cannot look for a renewed certificate of the page: {error}");
            }
        }
    }

    /// Reads the certificate and the key again if one of the two files has changed. A separate
    /// thread reads the files, because the event loop must serve the page even if the file system
    /// of the files hangs. At most one thread waits for the file system, because the next attempt
    /// begins after the end of the previous attempt.
    ///
    /// # Errors
    /// The error of starting the thread.
    async fn read_changed(&self) -> io::Result<()> {
        let (certificate, key) = (self.certificate.clone(), self.key.clone());
        let known = *self.read.borrow();
        let (sender, done) = Mailbox::new(1)?;
        skep_env::spawn_thread("skep-tls".into(), None, move || {
            // If the server has ended, the receiver does not exist any more.
            let _ = sender.send(changed(&certificate, &key, known));
        })?;
        if let Some((marks, loaded)) = done.receive().await? {
            *self.read.borrow_mut() = marks;
            self.renew(loaded);
        }
        Ok(())
    }

    /// Uses the new certificate and key for the next connections, unless the new files are invalid.
    fn renew(&self, loaded: Result<Arc<ServerConfig>>) {
        match loaded {
            Ok(config) => {
                *self.config.borrow_mut() = config;
                tracing::info!("new connections use the new certificate of {}", self.shown());
            }
            Err(error) => {
                tracing::error!(
                    "the page keeps its former certificate: {error}; replace the files of the \
                     certificate"
                )
            }
        }
    }

    fn shown(&self) -> impl std::fmt::Display + '_ {
        self.certificate.display()
    }
}

/// Reads the certificate and the key if the identities of their files differ from `known`. Returns
/// the new identities, and the settings with the new files. `None` means that the files have not
/// changed.
fn changed(certificate: &Path, key: &Path, known: FileMarks) -> Option<Changed> {
    let marks = marks(certificate, key);
    (marks != known).then(|| (marks, load(certificate, key)))
}

fn marks(certificate: &Path, key: &Path) -> FileMarks {
    [certificate, key].map(|path| std::fs::metadata(path).ok().as_ref().map(mark))
}

fn load(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>> {
    let wrong = |file: &Path, why: String| {
        let what = format!("cannot use {}: {why}", file.display());
        Error::new(ErrorCode::Configuration, what)
    };
    let provider = provider()?;
    let (bytes, _) = read(certificate).map_err(|error| wrong(certificate, error.to_string()))?;
    let chain: std::result::Result<Vec<CertificateDer<'static>>, _> =
        CertificateDer::pem_slice_iter(&bytes).collect();
    let chain = chain.map_err(|error| wrong(certificate, error.to_string()))?;
    if chain.is_empty() {
        let why = "the file has no certificate: expected lines with BEGIN CERTIFICATE (PEM)";
        return Err(wrong(certificate, why.into()));
    }
    let (bytes, mode) = read(key).map_err(|error| wrong(key, error.to_string()))?;
    if mode & 0o007 != 0 {
        let why = format!(
            "all users of this host can access this private key (mode {:o}); run `chmod 600 {}`",
            mode & 0o777,
            key.display()
        );
        return Err(wrong(key, why));
    }
    let private = PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| {
        wrong(key, format!("{error}: expected a private key without a password (PEM)"))
    })?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(certificate, error.to_string()))?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(|error| {
            wrong(
                certificate,
                format!(
                    "{error}; check that {} has the private key of this certificate",
                    key.display()
                ),
            )
        })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Reads a small file. Returns its bytes and its permissions.
fn read(path: &Path) -> io::Result<(Vec<u8>, u32)> {
    let file = File::open(path)?;
    let mode = file.metadata()?.mode();
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(io::Error::other("the file is larger than 1 MiB"));
    }
    Ok((bytes, mode))
}

/// A connection, encrypted or not.
#[derive(Debug)]
pub enum Stream {
    /// A connection without TLS.
    Plain(TcpStream),
    /// A connection with TLS.
    Encrypted(Box<TlsStream>),
}

impl Stream {
    /// Returns the connection of a client of the server. With `tls`, the connection uses TLS.
    pub(crate) fn of_client(stream: TcpStream, tls: Option<&ServerTls>) -> io::Result<Self> {
        Ok(match tls {
            Some(tls) => Self::Encrypted(Box::new(tls.accept(stream)?)),
            None => Self::Plain(stream),
        })
    }

    /// Appends received bytes to `received`, and returns their number. Zero means the end of the
    /// stream.
    ///
    /// # Errors
    /// As [`TlsStream::receive`].
    pub async fn receive(&mut self, received: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => {
                let buffer = Buf::new(BUFFER_BYTES);
                let count = stream.receive(buffer.clone()).await?;
                received.extend_from_slice(&buffer.bytes()[..count]);
                Ok(count)
            }
            Self::Encrypted(stream) => stream.receive(received).await,
        }
    }

    /// Sends all parts, in order.
    ///
    /// # Errors
    /// As [`TlsStream::send`].
    pub async fn send(&mut self, parts: Vec<Vec<u8>>) -> io::Result<()> {
        match self {
            Self::Plain(stream) => {
                stream.send(parts.into_iter().map(MessagePart::Bytes).collect()).await
            }
            Self::Encrypted(stream) => {
                for part in &parts {
                    stream.send(part).await?;
                }
                Ok(())
            }
        }
    }

    /// Ends the connection.
    pub async fn close(&mut self) {
        match self {
            Self::Plain(stream) => stream.shutdown(),
            Self::Encrypted(stream) => stream.close().await,
        }
    }
}

/// An encrypted connection.
#[derive(Debug)]
pub struct TlsStream {
    socket: TcpStream,
    tls: Connection,
    buffer: Buf,
    /// Decrypted bytes that [`Self::receive`] has not passed to a caller yet.
    plain: Vec<u8>,
    /// Whether the peer has sent bytes.
    has_begun: bool,
    /// Whether the peer has sent the message that ends the connection.
    has_ended: bool,
}

impl TlsStream {
    /// Creates the TLS stream of the connection `socket`. `tls` is the state of the connection in
    /// rustls.
    pub fn new(socket: TcpStream, tls: Connection) -> Self {
        let (buffer, plain) = (Buf::new(BUFFER_BYTES), Vec::new());
        Self { socket, tls, buffer, plain, has_begun: false, has_ended: false }
    }

    /// Appends received plain bytes to `received`, and returns their number. Zero means the end of
    /// the stream.
    ///
    /// # Errors
    /// - Errors of the socket.
    /// - `UnexpectedEof` if the connection ends without the message of TLS that ends the stream. So
    ///   the caller detects a stream that a third party has truncated.
    /// - `InvalidData` if the peer violates the protocol or its certificate is not trusted.
    pub async fn receive(&mut self, received: &mut Vec<u8>) -> io::Result<usize> {
        loop {
            if !self.plain.is_empty() {
                let count = self.plain.len();
                received.append(&mut self.plain);
                return Ok(count);
            }
            if self.has_ended || !self.exchange().await? {
                return Ok(0);
            }
        }
    }

    /// Sends the bytes that rustls has encrypted, and then receives once from the socket. Returns
    /// `false` after the reply to a client that does not use TLS.
    async fn exchange(&mut self) -> io::Result<bool> {
        self.flush().await?;
        let count = self.socket.receive(self.buffer.clone()).await?;
        if count == 0 {
            let what = "the peer closed the connection without a close_notify of TLS";
            return Err(io::Error::new(ErrorKind::UnexpectedEof, what));
        }
        match self.take(count) {
            Ok(true) => Ok(true),
            Ok(false) => {
                let reply = vec![MessagePart::Bytes(NOT_TLS.to_vec())];
                self.socket.send(reply).await?;
                Ok(false)
            }
            Err(error) => {
                // Send the TLS alert that reports the error to the peer.
                let _ = self.flush().await;
                Err(error)
            }
        }
    }

    /// Passes `count` received bytes to rustls. Returns `false` if these bytes are the beginning of
    /// a connection without TLS.
    fn take(&mut self, count: usize) -> io::Result<bool> {
        let bytes = self.buffer.bytes();
        let mut rest = &bytes[..count];
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        if is_first && matches!(self.tls, Connection::Server(_)) && rest[0] != HANDSHAKE {
            return Ok(false);
        }
        // Bytes after the end of the stream have no meaning.
        while !rest.is_empty() && !self.has_ended {
            if self.tls.read_tls(&mut rest)? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let processed = self.tls.process_new_packets();
            let state = processed.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
            let start = self.plain.len();
            self.plain.resize(start + state.plaintext_bytes_to_read(), 0);
            self.tls.reader().read_exact(&mut self.plain[start..])?;
            self.has_ended |= state.peer_has_closed();
        }
        Ok(true)
    }

    /// Sends plain bytes.
    ///
    /// # Errors
    /// Errors of the socket, and `InvalidData` as in [`Self::receive`].
    pub async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            // rustls accepts only a limited number of unsent bytes.
            let taken = self.tls.writer().write(rest)?;
            if taken == 0 {
                return Err(ErrorKind::WriteZero.into());
            }
            rest = &rest[taken..];
            self.flush().await?;
        }
        Ok(())
    }

    /// Completes the handshake, if the handshake is not complete yet.
    ///
    /// # Errors
    /// As [`Self::receive`], and `UnexpectedEof` if the peer closes the connection.
    pub async fn handshake(&mut self) -> io::Result<()> {
        while self.tls.is_handshaking() {
            if self.has_ended || !self.exchange().await? {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        self.flush().await
    }

    /// Sends the bytes that rustls has encrypted.
    async fn flush(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            let mut encrypted = Vec::new();
            self.tls.write_tls(&mut encrypted)?;
            self.socket.send(vec![MessagePart::Bytes(encrypted)]).await?;
        }
        Ok(())
    }

    /// Ends the connection.
    pub async fn close(&mut self) {
        // Sends the message that ends the stream only after a complete handshake. A client without
        // TLS would read this message as a part of the reply.
        if !self.tls.is_handshaking() {
            self.tls.send_close_notify();
            // A peer that no longer reads needs no message.
            let _ = skep_env::timeout(END_PATIENCE, self.flush()).await;
        }
        self.socket.shutdown();
    }
}

#[cfg(test)]
mod tests;
