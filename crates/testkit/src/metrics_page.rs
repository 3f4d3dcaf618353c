//! The page with the metrics of a service, in the format that Prometheus reads.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

/// Returns the reply to a request for the metrics page of the service with this directory. `None`
/// means that the service does not reply.
pub fn of_service(directory: &Path) -> Option<String> {
    let address = std::fs::read_to_string(directory.join("metrics-address")).ok()?;
    let mut stream = TcpStream::connect(address.trim()).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").ok()?;
    let mut page = String::new();
    stream.read_to_string(&mut page).ok()?;
    Some(page)
}
