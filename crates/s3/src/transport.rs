//! Opens the connections to an object store, by HTTP or TLS.

use rustls::CertificateError;
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
/// Time limit for a request to a metadata service. The limit is short, because this service is near
/// or does not exist.
const NEARBY: Duration = Duration::from_secs(2);
/// Maximum number of connections without a current request. The number allows one connection for
/// each thread of a copy.
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
        let what = "cannot use https on this host: the processor lacks AES, AVX2, ADX, BMI or \
                    PCLMULQDQ (on ARM: AES, SHA-2 or PMULL); copy on another host, or use an \
                    endpoint with http:// in a trusted network";
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

/// Explains an error of TLS that a retry cannot solve, because the service has the wrong
/// certificate or does not use TLS. `None` means that the connection has failed for another reason.
pub(crate) fn tls_problem(error: &ureq::Error, authority: &str) -> Option<Error> {
    let ureq::Error::Io(error) = error else { return None };
    let error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    let certificate = format!("cannot trust the certificate of {authority}");
    let what = match error {
        // `BadSignature` means that a trusted authority has the same name as the issuer of the
        // certificate, but another key.
        rustls::Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        ) => format!(
            "{certificate}: no trusted authority has signed it; name a file with the certificate \
             of its authority with --s3-ca"
        ),
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => format!(
            "{certificate}: the certificate belongs to another host ({error}); use a name from the \
             certificate in --s3-endpoint"
        ),
        rustls::Error::InvalidCertificate(
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. },
        ) => format!(
            "{certificate}: {error}; renew the certificate, or correct the clock of this host"
        ),
        rustls::Error::InvalidCertificate(_) => {
            format!(
                "{certificate}: {error}; ask the administrator of the service for another \
                 certificate"
            )
        }
        rustls::Error::InvalidMessage(_) => format!(
            "cannot use https with {authority}: the replies of this server are not TLS; check the \
             port in --s3-endpoint, or use http:// in a trusted network"
        ),
        _ => return None,
    };
    Some(Error::new(ErrorCode::AuthenticationFailed, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_connections_are_retried_but_not_certificate_errors() {
        let problem = |error: rustls::Error| {
            let error = std::io::Error::new(std::io::ErrorKind::InvalidData, error);
            tls_problem(&ureq::Error::Io(error), "store:9000").map(|it| it.context().to_owned())
        };
        let certificate = |it: CertificateError| problem(it.into()).expect("a final error");
        for (error, words) in [
            (CertificateError::UnknownIssuer, "no trusted authority has signed it; name a file"),
            (CertificateError::BadSignature, "no trusted authority has signed it"),
            (CertificateError::NotValidForName, "the certificate belongs to another host"),
            (CertificateError::Expired, "correct the clock"),
            (CertificateError::Revoked, "Revoked"),
        ] {
            let text = certificate(error);
            assert!(text.contains(words) && text.contains("store:9000"), "{words}: {text}");
        }
        let text = problem(rustls::InvalidMessage::InvalidContentType.into()).expect("an error");
        assert!(text.contains("the replies of this server are not TLS"), "{text}");
        assert!(problem(rustls::Error::HandshakeNotComplete).is_none());
        let cut = ureq::Error::Io(std::io::ErrorKind::ConnectionReset.into());
        assert!(tls_problem(&cut, "store").is_none());
    }

    #[test]
    fn file_without_certificates_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = in_file(file.path()).unwrap_err();
        assert!(error.context().contains("BEGIN CERTIFICATE"), "{error}");
        assert!(in_file(Path::new("/missing")).unwrap_err().context().contains("/missing"));
    }
}
