//! TLS for the test's object store, with a certificate authority of its own. The program `openssl`
//! creates the certificates, and rustls encrypts the connections.

use crate::program::run;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Arguments of `openssl` that create a key and a certificate for two days.
const CREATE: &str = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2";

/// A certificate authority.
#[derive(Debug)]
pub struct Authority {
    directory: PathBuf,
}

/// The certificate and the key of a server.
#[derive(Debug, Clone)]
pub(super) struct TlsServer {
    config: Arc<ServerConfig>,
}

fn text(path: &Path) -> &str {
    path.to_str().expect("test directories have ASCII names")
}

impl Authority {
    /// Creates an authority. The authority's files are in `directory`, which must exist.
    pub fn create(directory: &Path) -> Self {
        let authority = Self { directory: directory.to_owned() };
        let [key, certificate] = [authority.file("authority.key"), authority.certificate()];
        let files = ["-keyout", text(&key), "-out", text(&certificate)];
        let subject = ["-subj", "/CN=authority of the tests"];
        run("openssl", CREATE.split(' ').chain(files).chain(subject));
        authority
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Returns the file with the authority's certificate.
    pub fn certificate(&self) -> PathBuf {
        self.file("authority.pem")
    }

    /// Creates the certificate of a server for the names in `names`, such as `DNS:localhost`.
    /// Returns the files with the certificate and with its key.
    pub fn issue(&self, names: &str) -> (PathBuf, PathBuf) {
        let [certificate, key] = [self.file("server.pem"), self.file("server.key")];
        let (signer, signing_key) = (self.certificate(), self.file("authority.key"));
        let signed = ["-CA", text(&signer), "-CAkey", text(&signing_key), "-subj", "/CN=server"];
        let names = format!("subjectAltName={names}");
        let more = ["-addext", &names, "-addext", "basicConstraints=critical,CA:FALSE"];
        let files = ["-keyout", text(&key), "-out", text(&certificate)];
        run("openssl", CREATE.split(' ').chain(signed).chain(more).chain(files));
        (certificate, key)
    }

    pub(super) fn server(&self, names: &str) -> TlsServer {
        let (certificate, key) = self.issue(names);
        let certificate = CertificateDer::from_pem_file(certificate).expect("a certificate");
        let key = PrivateKeyDer::from_pem_file(key).expect("a key");
        let provider = Arc::new(rustls_graviola::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider supports TLS 1.3")
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .expect("the key belongs to the certificate");
        TlsServer { config: Arc::new(config) }
    }
}

impl TlsServer {
    /// Encrypts a connection of a client. The first read of the result performs the TLS handshake.
    pub(super) fn accept(&self, stream: TcpStream) -> StreamOwned<ServerConnection, TcpStream> {
        let connection = ServerConnection::new(self.config.clone());
        StreamOwned::new(connection.expect("the settings of the server are valid"), stream)
    }
}
