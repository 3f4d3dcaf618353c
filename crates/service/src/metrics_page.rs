//! The HTTP page with the metrics of a service. Chooses the address on which the page listens.
//!
//! The page never prevents the start of the service. If the service finds no address for the page,
//! it logs the reason and runs without a page. `skep_exporter::http` is the server.

use crate::listen::{METRICS_ADDRESS_FILE, listen_for_page};
use crate::node::{NO_PAGE, NodeSettings};
use skep_env::{Task, TcpListener};
use skep_exporter::{http, message::Figures};
use std::rc::Rc;
use std::sync::Arc;

/// Starts the HTTP page of a service whose requests arrive on `listener`. Returns the task of the
/// page's server. `None` means that the service has no page.
pub async fn start(
    settings: &NodeSettings,
    listener: &TcpListener,
    figures: &Rc<Figures>,
) -> Option<Task<()>> {
    let port = listener.local_address().map_or(0, |address| address.port());
    let wanted = wanted_address(settings, port)?;
    let page = match listen_for_page(&wanted, &settings.directory).await {
        Ok(page) => page,
        Err(error) => {
            tracing::warn!(
                "this service has no page of metrics: {error}; files and clients are not affected"
            );
            return None;
        }
    };
    let address = page.local_address().ok()?.to_string();
    tracing::info!("the metrics of this service are at http://{address}/metrics");
    tracing::debug!(
        "the address of the page with the metrics is in the file {METRICS_ADDRESS_FILE}"
    );
    figures.set_page(address);
    Some(skep_env::spawn(http::serve(page, Arc::clone(figures.registry()))))
}

/// Returns the address on which the page should listen. `port` is the port on which the service
/// listens for requests. `None` means that the service has no page.
fn wanted_address(settings: &NodeSettings, port: u16) -> Option<String> {
    let is_fixed = !settings.listen.ends_with(":0");
    match settings.metrics.as_str() {
        NO_PAGE => None,
        "" if is_fixed && port < u16::MAX => Some(format!("127.0.0.1:{}", port + 1)),
        "" => Some("127.0.0.1:0".into()),
        address => Some(address.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_port_is_the_request_port_plus_one_unless_set() {
        let wanted = |listen: &str, metrics: &str| {
            let mut settings = NodeSettings::with_port(1);
            (settings.listen, settings.metrics) = (listen.into(), metrics.into());
            wanted_address(&settings, 7420)
        };
        assert_eq!(wanted("0.0.0.0:7420", "").as_deref(), Some("127.0.0.1:7421"));
        assert_eq!(wanted("127.0.0.1:0", "").as_deref(), Some("127.0.0.1:0"));
        assert_eq!(wanted("0.0.0.0:7420", "[::]:9000").as_deref(), Some("[::]:9000"));
        assert_eq!(wanted("0.0.0.0:7420", "none"), None);
    }
}
