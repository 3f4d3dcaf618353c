//! The operations of the test's object store.

use super::{
    BUCKET, CRC, LEAST_PART, Reply, Request, State, Stored, Upload, crc_text, etag, hex, wire,
};
use md5::{Digest, Md5};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;

/// Carries out a request, and returns the reply.
pub(super) fn carry_out(state: &mut State, request: &Request) -> Reply {
    if request.bucket() != BUCKET {
        return Reply::error(404, "NoSuchBucket");
    }
    let query = |name: &str| request.query.get(name).map(String::as_str);
    match (request.method.as_str(), request.key()) {
        ("GET", None) => list(state, request),
        ("GET", Some(_)) if query("uploadId").is_some() => list_parts(state, request),
        ("GET" | "HEAD", Some(key)) => read(state, request, &key),
        ("PUT", Some(_)) if query("uploadId").is_some() => put_part(state, request),
        ("PUT", Some(key)) => {
            let has_crc = request.header(CRC).is_some() && !state.is_plain;
            let metadata = request.metadata();
            let (bytes, etag) = (request.body.clone(), etag(&request.body));
            let reply = Reply::empty(200).with("etag", &etag);
            let reply = if has_crc { reply.with(CRC, &crc_text(&bytes)) } else { reply };
            state.objects.insert(key, Stored { bytes, etag, metadata, has_crc });
            reply
        }
        ("POST", Some(key)) if query("uploads").is_some() => {
            state.next_upload += 1;
            let id = format!("upload-{}", state.next_upload);
            let has_crc = request.header("x-amz-checksum-algorithm") == Some("CRC32C");
            let has_crc = has_crc && !state.is_plain;
            let metadata = request.metadata();
            let upload = Upload { key, metadata, has_crc, parts: BTreeMap::new() };
            state.uploads.insert(id.clone(), upload);
            Reply::xml(&format!(
                "<InitiateMultipartUploadResult><UploadId>{id}</UploadId>\
                 </InitiateMultipartUploadResult>"
            ))
        }
        ("POST", Some(key)) => complete(state, request, key),
        ("DELETE", Some(_)) if query("uploadId").is_some() => {
            match state.uploads.remove(query("uploadId").unwrap_or_default()) {
                Some(_) => Reply::empty(204),
                None => Reply::error(404, "NoSuchUpload"),
            }
        }
        ("DELETE", Some(key)) => {
            state.objects.remove(&key);
            Reply::empty(204)
        }
        _ => Reply::error(405, "MethodNotAllowed"),
    }
}

fn list(state: &State, request: &Request) -> Reply {
    let query = |name: &str| request.query.get(name).map(String::as_str);
    let prefix = query("prefix").unwrap_or_default();
    // The continuation token is the escaped last key of the previous page. The query contains this
    // token in escaped form, so the key is escaped twice.
    let after = wire::unescape(query("continuation-token").unwrap_or_default());
    let found: Vec<_> =
        state.objects.iter().filter(|(key, _)| key.starts_with(prefix) && **key > after).collect();
    let page = &found[..found.len().min(state.page)];
    let mut text = format!(
        "<ListBucketResult><EncodingType>url</EncodingType><IsTruncated>{}</IsTruncated>",
        page.len() < found.len()
    );
    if page.len() < found.len() {
        let last = wire::escape(page.last().expect("a page with entries").0);
        let _ = write!(text, "<NextContinuationToken>{last}</NextContinuationToken>");
    }
    for (key, object) in page {
        let _ = write!(
            text,
            "<Contents><Key>{}</Key><LastModified>2020-01-02T03:04:05.000Z</LastModified>\
             <ETag>{}</ETag><Size>{}</Size></Contents>",
            wire::escape(key),
            object.etag,
            object.bytes.len()
        );
    }
    Reply::xml(&(text + "</ListBucketResult>"))
}

fn list_parts(state: &State, request: &Request) -> Reply {
    let query = |name: &str| request.query.get(name).map(String::as_str);
    let Some(upload) = state.uploads.get(query("uploadId").unwrap_or_default()) else {
        return Reply::error(404, "NoSuchUpload");
    };
    let after = query("part-number-marker").and_then(|it| it.parse().ok()).unwrap_or(0);
    let found: Vec<_> = upload.parts.range(after + 1..).collect();
    let page = &found[..found.len().min(state.page)];
    let is_truncated = page.len() < found.len();
    let mut text = format!("<ListPartsResult><IsTruncated>{is_truncated}</IsTruncated>");
    for (number, bytes) in page {
        let _ = write!(
            text,
            "<Part><PartNumber>{number}</PartNumber><ETag>{}</ETag><Size>{}</Size>",
            etag(bytes),
            bytes.len()
        );
        if upload.has_crc {
            let _ = write!(text, "<ChecksumCRC32C>{}</ChecksumCRC32C>", crc_text(bytes));
        }
        text += "</Part>";
    }
    if let Some((last, _)) = page.last().filter(|_| is_truncated) {
        let _ = write!(text, "<NextPartNumberMarker>{last}</NextPartNumberMarker>");
    }
    Reply::xml(&(text + "</ListPartsResult>"))
}

fn read(state: &State, request: &Request, key: &str) -> Reply {
    let Some(object) = state.objects.get(key) else {
        return Reply::error(404, "NoSuchKey");
    };
    if request.header("if-match").is_some_and(|it| it != object.etag) {
        return Reply::error(412, "PreconditionFailed");
    }
    let len = object.bytes.len();
    let range: Option<Range<usize>> = request.header("range").map(|it| wire::range(it, len));
    if range.as_ref().is_some_and(|it| it.start >= len) {
        return Reply::error(416, "InvalidRange");
    }
    let mut reply = Reply::empty(200)
        .with("etag", &object.etag)
        .with("last-modified", "Thu, 02 Jan 2020 03:04:05 GMT");
    for (name, value) in &object.metadata {
        reply = reply.with(&format!("x-amz-meta-{name}"), value);
    }
    let wants_crc = request.header("x-amz-checksum-mode") == Some("ENABLED");
    if wants_crc && object.has_crc && range.is_none() {
        reply =
            reply.with(CRC, &crc_text(&object.bytes)).with("x-amz-checksum-type", "FULL_OBJECT");
    }
    if let Some(range) = range {
        reply.status = 206;
        reply =
            reply.with("content-range", &format!("bytes {}-{}/{len}", range.start, range.end - 1));
        reply.body = object.bytes[range].to_vec();
    } else {
        reply.body.clone_from(&object.bytes);
    }
    reply.is_head = request.method == "HEAD";
    reply
}

fn put_part(state: &mut State, request: &Request) -> Reply {
    let query = |name: &str| request.query.get(name).map(String::as_str);
    let Some(upload) = state.uploads.get_mut(query("uploadId").unwrap_or_default()) else {
        return Reply::error(404, "NoSuchUpload");
    };
    let Some(number) = query("partNumber").and_then(|it| it.parse().ok()) else {
        return Reply::error(400, "InvalidArgument");
    };
    let reply = Reply::empty(200).with("etag", &etag(&request.body));
    let reply = match upload.has_crc {
        true => reply.with(CRC, &crc_text(&request.body)),
        false => reply,
    };
    upload.parts.insert(number, request.body.clone());
    reply
}

fn complete(state: &mut State, request: &Request, key: String) -> Reply {
    let id = request.query.get("uploadId").cloned().unwrap_or_default();
    let Some(upload) = state.uploads.get(&id).filter(|it| it.key == key) else {
        return Reply::error(404, "NoSuchUpload");
    };
    let text = String::from_utf8_lossy(&request.body).into_owned();
    let wanted: Vec<_> = upload
        .parts
        .iter()
        .map(|(number, bytes)| {
            format!("<PartNumber>{number}</PartNumber><ETag>{}</ETag>", etag(bytes))
        })
        .collect();
    if !wanted.iter().all(|it| text.contains(it.as_str()))
        || text.matches("<PartNumber>").count() != wanted.len()
    {
        return Reply::error(400, "InvalidPart");
    }
    let sizes: Vec<_> = upload.parts.values().map(Vec::len).collect();
    if sizes.iter().rev().skip(1).any(|it| *it < LEAST_PART) {
        return Reply::error(400, "EntityTooSmall");
    }
    let bytes: Vec<u8> = upload.parts.values().flatten().copied().collect();
    if request.header(CRC).is_some_and(|it| upload.has_crc && it != crc_text(&bytes)) {
        return Reply::error(400, "BadDigest");
    }
    let digests: Vec<u8> = upload.parts.values().flat_map(Md5::digest).collect();
    let etag = format!("\"{}-{}\"", hex(&Md5::digest(digests)), sizes.len());
    let (metadata, has_crc) = (upload.metadata.clone(), upload.has_crc);
    state.objects.insert(key, Stored { bytes, etag, metadata, has_crc });
    state.uploads.remove(&id);
    Reply::xml("<CompleteMultipartUploadResult></CompleteMultipartUploadResult>")
}
