//! Reads the HTTP requests that programs send to servers of a test.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::time::Duration;

/// A request that a server of a test has received.
#[derive(Debug)]
pub struct HttpRequest {
    /// The request line and the headers, with the empty line at their end.
    pub head: String,
    /// The body of the request.
    pub body: Vec<u8>,
}

impl HttpRequest {
    /// Reads a request. Returns `None` if the sender closes the connection before the end of the
    /// request, or sends nothing for `patience`.
    ///
    /// # Panics
    /// Panics if the length of the body is not a number.
    pub fn read(stream: &TcpStream, patience: Duration) -> Option<Self> {
        stream.set_read_timeout(Some(patience)).expect("a time limit that is not zero");
        let mut reader = BufReader::new(stream);
        let mut request = Self { head: String::new(), body: Vec::new() };
        while !request.head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut request.head).ok()? == 0 {
                return None;
            }
        }
        let length = request.header("content-length");
        let length = if length.is_empty() { 0 } else { length.parse().expect("a length") };
        request.body = vec![0; length];
        reader.read_exact(&mut request.body).ok()?;
        Some(request)
    }

    /// Returns the path with its query.
    pub fn path(&self) -> &str {
        self.head.split(' ').nth(1).unwrap_or_default()
    }

    /// Returns the value of a header, or an empty text if the request has no such header.
    pub fn header(&self, name: &str) -> &str {
        let headers = self.head.lines().filter_map(|line| line.split_once(':'));
        let mut named = headers.filter(|(known, _)| known.eq_ignore_ascii_case(name));
        named.next().map_or("", |(_, value)| value.trim())
    }

    /// Returns all bytes of the request.
    pub fn bytes(&self) -> Vec<u8> {
        [self.head.as_bytes(), &self.body].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::PATIENCE;
    use std::io::Write;
    use std::net::TcpListener;

    fn read(sent: &[u8]) -> Option<HttpRequest> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        client.write_all(sent).unwrap();
        drop(client);
        HttpRequest::read(&server, PATIENCE)
    }

    #[test]
    fn http_request_is_read_with_its_path_headers_and_body() {
        let sent = b"POST /a?b=c HTTP/1.1\r\ncontent-Length: 3\r\nX: y: z\r\n\r\nabc";
        let request = read(sent).unwrap();
        assert_eq!((request.path(), &request.body[..]), ("/a?b=c", &b"abc"[..]));
        assert_eq!((request.header("x"), request.header("missing")), ("y: z", ""));
        assert_eq!(request.bytes(), sent);
        assert!(read(b"GET / HTTP/1.1\r\n\r\n").unwrap().body.is_empty());
    }

    #[test]
    fn incomplete_http_request_is_not_returned() {
        for sent in ["", "POST / HTTP/1.1\r\n", "POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nab"] {
            assert!(read(sent.as_bytes()).is_none(), "{sent:?}");
        }
    }
}
