//! Opens the connections to an object store, by HTTP or TLS.

use skep_types::{Error, ErrorCode, Result};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use ureq::Agent;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, TlsProvider, parse_pem};

/// Time limit for resolving a name, and for opening a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// Time limit for the service to accept or send the next bytes. A slow connection that makes
/// progress stays open.
const PROGRESS: Duration = Duration::from_secs(60);
/// Time limit for a request to a metadata service. It is short, because this service is near or
/// does not exist.
const NEARBY: Duration = Duration::from_secs(2);
/// Maximum number of connections without a current request. It allows one for each thread of a
/// copy.
const MOST_IDLE: usize = 256;

/// Creates the HTTP client for an object store. `ca` is the file with the certificates of trusted
/// authorities.
///
/// # Errors
/// Returns `Unsupported` if the processor lacks instructions that the cryptography needs. Returns
/// `Configuration` if no certificates are found.
pub(crate) fn agent(is_secure: bool, ca: Option<&Path>) -> Result<Agent> {
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .user_agent(concat!("skep/", env!("CARGO_PKG_VERSION")))
        .accept("*/*")
        .max_idle_connections(MOST_IDLE)
        .max_idle_connections_per_host(MOST_IDLE)
        .timeout_resolve(Some(CONNECT))
        .timeout_connect(Some(CONNECT))
        .timeout_per_read(Some(PROGRESS))
        .timeout_per_write(Some(PROGRESS))
        .timeout_recv_response(Some(PROGRESS));
    let config = match is_secure {
        true => config.tls_config(tls(ca)?),
        false => config,
    };
    Ok(config.build().new_agent())
}

/// Creates the HTTP client for a metadata service. This client uses no proxy.
pub(crate) fn nearby() -> Agent {
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .proxy(None)
        .timeout_global(Some(NEARBY));
    config.build().new_agent()
}

fn tls(ca: Option<&Path>) -> Result<TlsConfig> {
    if !graviola::util::is_cpu_supported() {
        let what = "cannot use https on this processor: it lacks AES, AVX2, ADX, BMI or PCLMULQDQ \
                    (on ARM: AES, SHA-2 or PMULL); copy on another host, or use an endpoint with \
                    http:// in a trusted network";
        return Err(Error::new(ErrorCode::Unsupported, what));
    }
    let roots = match ca {
        Some(file) => in_file(file)?,
        None => of_system()?,
    };
    Ok(TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .unversioned_rustls_crypto_provider(Arc::new(rustls_graviola::default_provider()))
        .root_certs(RootCerts::from(roots))
        .build())
}

/// Reads the certificates that a file contains.
fn in_file(file: &Path) -> Result<Vec<Certificate<'static>>> {
    let shown = file.display();
    let bytes = std::fs::read(file)
        .map_err(|error| Error::from(error).within(format!("cannot read {shown}")))?;
    let certificates: Vec<_> = parse_pem(&bytes)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(found)) => Some(found),
            _ => None,
        })
        .collect();
    match certificates.is_empty() {
        true => {
            let what =
                format!("{shown} has no certificates: expected lines with BEGIN CERTIFICATE (PEM)");
            Err(Error::new(ErrorCode::Configuration, what))
        }
        false => Ok(certificates),
    }
}

/// Returns the certificates of the authorities that the system trusts.
fn of_system() -> Result<Vec<Certificate<'static>>> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        let what = "this system has no certificates of trusted authorities; install the package \
                    ca-certificates, or name a file with --s3-ca";
        return Err(Error::new(ErrorCode::Configuration, what));
    }
    Ok(found.certs.iter().map(|it| Certificate::from_der(it.as_ref()).to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_without_certificates_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = in_file(file.path()).unwrap_err();
        assert!(error.context().contains("BEGIN CERTIFICATE"), "{error}");
        assert!(in_file(Path::new("/missing")).unwrap_err().context().contains("/missing"));
    }
}
