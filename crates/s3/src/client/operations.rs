//! The operations of a client on its bucket.

use super::{
    BUFFER, CRC, Client, Digests, MOST_TEXT, PAGE, Request, damaged, head_of, header, md5_of,
};
use crate::checksum::Crc;
use crate::retry::{Attempts, Reaction, reaction};
use crate::store::{Content, Head, Objects, Page, Sink, StoredPart, Uploads};
use crate::text::{checksum, hex};
use crate::xml::{self, Malformed};
use md5::Md5;
use sha2::{Digest, Sha256};
use skep_types::text::shown;
use skep_types::{Error, ErrorCode, Result};
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::ops::Range;
use ureq::Body;
use ureq::http::Response;

/// The state of reading one object. If a connection is cut, the read continues with another
/// request.
struct Reading {
    /// The offset of the next byte to read.
    at: u64,
    /// The end of the range to read. `None` means the end of the object.
    end: Option<u64>,
    etag: Option<String>,
    crc: Crc,
    md5: Option<(Md5, String)>,
}

impl Client {
    /// Requests the bytes of `range` that `reading` still lacks. Returns the attributes of the
    /// object, and the body of the reply.
    fn read_rest(
        &self,
        key: &str,
        range: Option<&Range<u64>>,
        reading: &mut Reading,
    ) -> Result<(Head, Response<Body>)> {
        let mut request = Request::new("GET", Some(key), &[]);
        let is_part = range.is_some() || reading.at > 0;
        request = match (is_part, reading.end) {
            (true, Some(end)) => {
                request.header("range", format!("bytes={}-{}", reading.at, end.saturating_sub(1)))
            }
            (true, None) => request.header("range", format!("bytes={}-", reading.at)),
            (false, _) => request.header("x-amz-checksum-mode", "ENABLED"),
        };
        if let Some(etag) = &reading.etag {
            request = request.header("if-match", etag.clone());
        }
        let digests = Digests { crc: 0, sha256: hex(&Sha256::digest(b"")) };
        let reply = self.send(&request, &&b""[..], &digests)?;
        let headers = reply.headers();
        let head = head_of(headers)
            .ok_or_else(|| self.malformed(&Malformed("the reply has no length".to_owned())))?;
        let begins = header(headers, "content-range")
            .and_then(|it| it.strip_prefix("bytes ")?.split_once('-')?.0.parse::<u64>().ok());
        if is_part && begins != Some(reading.at) {
            return Err(self.malformed(&Malformed(
                "the reply ignores the requested range of bytes".to_owned(),
            )));
        }
        if range.is_none() && reading.at == 0 && head.crc.is_none() {
            reading.md5 = md5_of(headers, &head.etag).map(|it| (Md5::new(), it));
        }
        reading.etag.get_or_insert_with(|| head.etag.clone());
        reading.end = Some(reading.end.unwrap_or(head.size).min(head.size));
        Ok((head, reply))
    }
}

impl Reading {
    /// Passes the bytes of a reply to `sink`. Returns the reason if the connection failed before
    /// the end of the range.
    fn pass_on(&mut self, reply: Response<Body>, sink: Sink<'_>) -> Result<Option<String>> {
        let mut body = reply.into_body().into_reader();
        let mut buffer = vec![0; BUFFER];
        let end = self.end.unwrap_or(u64::MAX);
        while self.at < end {
            let most = usize::try_from(end - self.at).unwrap_or(BUFFER).min(BUFFER);
            let count = match body.read(&mut buffer[..most]) {
                Ok(0) => return Ok(Some("the connection ended early".to_owned())),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Ok(Some(error.to_string())),
            };
            let bytes = &buffer[..count];
            self.crc.update(bytes);
            if let Some((md5, _)) = &mut self.md5 {
                md5.update(bytes);
            }
            sink(bytes)?;
            self.at += count as u64;
        }
        // Reads the end of the body. A connection with unread bytes could not be used for another
        // request.
        let _ = body.read(&mut buffer[..1]);
        Ok(None)
    }
}

impl Objects for Client {
    fn list(&self, prefix: &str, next: Option<&str>) -> Result<Page> {
        let mut query = vec![
            ("list-type", "2"),
            ("encoding-type", "url"),
            ("max-keys", PAGE),
            ("prefix", prefix),
        ];
        query.extend(next.map(|it| ("continuation-token", it)));
        let text = self.ask(&Request::new("GET", None, &query))?;
        let page = xml::page(&text).map_err(|error| self.malformed(&error))?;
        let is_sorted = page.objects.windows(2).all(|it| it[0].key < it[1].key);
        if !is_sorted || !page.objects.iter().all(|it| it.key.starts_with(prefix)) {
            let what = "the listing in the reply has wrong keys or a wrong order";
            return Err(self.malformed(&Malformed(what.to_owned())));
        }
        Ok(page)
    }

    fn head(&self, key: &str) -> Result<Option<Head>> {
        let request = Request::new("HEAD", Some(key), &[]).header("x-amz-checksum-mode", "ENABLED");
        let digests = Digests { crc: 0, sha256: hex(&Sha256::digest(b"")) };
        match self.send(&request, &&b""[..], &digests) {
            Ok(reply) => head_of(reply.headers())
                .map(Some)
                .ok_or_else(|| self.malformed(&Malformed("the reply has no length".to_owned()))),
            Err(error) if error.code() == ErrorCode::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn get(
        &self,
        key: &str,
        range: Option<Range<u64>>,
        etag: Option<&str>,
        sink: Sink<'_>,
    ) -> Result<Head> {
        let mut reading = Reading {
            at: range.as_ref().map_or(0, |it| it.start),
            end: range.as_ref().map(|it| it.end),
            etag: etag.map(str::to_owned),
            crc: Crc::default(),
            md5: None,
        };
        let mut attempts = Attempts::new(true);
        let mut first = None;
        loop {
            let before = reading.at;
            let (head, reply) = self.read_rest(key, range.as_ref(), &mut reading)?;
            let head = first.get_or_insert(head);
            let Some(reason) = reading.pass_on(reply, sink)? else {
                let is_damaged = head.crc.is_some_and(|it| it != reading.crc.value())
                    || reading.md5.is_some_and(|(md5, is)| hex(&md5.finalize()) != is);
                return match is_damaged {
                    true => Err(damaged("the bytes do not have the checksum of the object")),
                    false => Ok(head.clone()),
                };
            };
            // An attempt that has read some bytes resets the count of attempts.
            if reading.at > before {
                attempts = Attempts::new(true);
            }
            if !attempts.again(None) {
                let what = format!(
                    "the connection to the object store ended in each attempt to read object \
                     {key}: {}",
                    shown(&reason, MOST_TEXT)
                );
                return Err(Error::new(ErrorCode::Disconnected, what));
            }
        }
    }

    fn put(
        &self,
        key: &str,
        content: &dyn Content,
        metadata: &BTreeMap<String, String>,
    ) -> Result<u32> {
        let mut request = Request::new("PUT", Some(key), &[]).metadata(metadata);
        self.store(&mut request, content).map(|(_, crc)| crc)
    }

    fn remove(&self, key: &str) -> Result<()> {
        match self.ask(&Request::new("DELETE", Some(key), &[])) {
            Err(error) if error.code() != ErrorCode::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

impl Uploads for Client {
    fn begin(&self, key: &str, metadata: &BTreeMap<String, String>) -> Result<String> {
        let request = Request::new("POST", Some(key), &[("uploads", "")])
            .metadata(metadata)
            .header("x-amz-checksum-algorithm", "CRC32C")
            .header("x-amz-checksum-type", "FULL_OBJECT");
        let text = self.ask(&request)?;
        xml::upload_id(&text).map_err(|error| self.malformed(&error))
    }

    fn parts(&self, key: &str, upload: &str) -> Result<Option<Vec<StoredPart>>> {
        let mut all = Vec::new();
        let mut after = 0;
        loop {
            let marker = after.to_string();
            let query =
                [("uploadId", upload), ("max-parts", PAGE), ("part-number-marker", &marker)];
            let text = match self.ask(&Request::new("GET", Some(key), &query)) {
                Err(error) if error.code() == ErrorCode::NotFound => return Ok(None),
                other => other?,
            };
            let (parts, next) = xml::parts(&text).map_err(|error| self.malformed(&error))?;
            all.extend(parts);
            match next {
                Some(next) if next > after => after = next,
                Some(_) => {
                    let what = "the listing of parts in the replies does not end";
                    return Err(self.malformed(&Malformed(what.to_owned())));
                }
                None => return Ok(Some(all)),
            }
        }
    }

    fn put_part(
        &self,
        key: &str,
        upload: &str,
        number: u32,
        content: &dyn Content,
    ) -> Result<StoredPart> {
        let text = number.to_string();
        let query = [("partNumber", text.as_str()), ("uploadId", upload)];
        let (etag, crc) = self.store(&mut Request::new("PUT", Some(key), &query), content)?;
        Ok(StoredPart { number, size: content.size(), etag, crc: Some(crc) })
    }

    fn complete(
        &self,
        key: &str,
        upload: &str,
        parts: &[StoredPart],
        crc: Option<u32>,
    ) -> Result<()> {
        let mut request = Request::new("POST", Some(key), &[("uploadId", upload)]);
        if let Some(crc) = crc {
            request =
                request.header(CRC, checksum(crc)).header("x-amz-checksum-type", "FULL_OBJECT");
        }
        let body = xml::complete(parts, crc.is_some());
        let mut attempts = Attempts::new(true);
        loop {
            let text = self.ask_with(&request, body.as_bytes())?;
            let Some(refusal) = xml::refusal(&text) else {
                return xml::completed(&text).map_err(|error| self.malformed(&error));
            };
            let is_final = reaction(500, &refusal.code) != Reaction::Repeat;
            if is_final || !attempts.again(None) {
                return Err(self.refused(&request, 500, &refusal));
            }
        }
    }

    fn abort(&self, key: &str, upload: &str) -> Result<()> {
        match self.ask(&Request::new("DELETE", Some(key), &[("uploadId", upload)])) {
            Err(error) if error.code() != ErrorCode::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}
