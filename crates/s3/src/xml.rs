//! Forms the bodies of requests, and parses the bodies of replies. This module does no I/O.
//!
//! Source: the operations `ListObjectsV2`, `CreateMultipartUpload`, `ListParts`,
//! `CompleteMultipartUpload` and the "REST Error Responses" of Amazon's S3 reference.

use crate::store::{Object, Page, StoredPart};
use crate::text::{checksum, parse_checksum, unescape};
use crate::time::parse_iso;
use roxmltree::{Document, Node, ParsingOptions};
use std::fmt::Write as _;

/// Maximum number of XML nodes in a reply. A page of 1000 entries has about 20,000.
const MOST_NODES: u32 = 200_000;

/// A reply that does not have the form of the S3 protocol. The text contains the reason.
#[derive(Debug)]
pub(crate) struct Malformed(pub(crate) String);

fn malformed(what: impl Into<String>) -> Malformed {
    Malformed(what.into())
}

fn document(text: &str) -> Result<Document<'_>, Malformed> {
    let options = ParsingOptions { nodes_limit: MOST_NODES, ..ParsingOptions::default() };
    Document::parse_with_options(text, options).map_err(|error| malformed(error.to_string()))
}

fn child<'a>(node: Node<'a, '_>, name: &str) -> Option<&'a str> {
    let found = node.children().find(|it| it.tag_name().name() == name)?;
    Some(found.text().unwrap_or(""))
}

fn need<'a>(node: Node<'a, '_>, name: &str) -> Result<&'a str, Malformed> {
    child(node, name).ok_or_else(|| malformed(format!("the reply lacks the element {name}")))
}

fn children<'a, 'b>(node: Node<'a, 'b>, name: &'static str) -> impl Iterator<Item = Node<'a, 'b>> {
    node.children().filter(move |it| it.tag_name().name() == name)
}

fn number(text: &str) -> Result<u64, Malformed> {
    text.parse().map_err(|_| malformed(format!("the reply has '{text}' in the place of a number")))
}

fn check_name(root: Node<'_, '_>, name: &str) -> Result<(), Malformed> {
    match root.tag_name().name() {
        found if found == name => Ok(()),
        found => Err(malformed(format!("the reply has the type {found}; expected {name}"))),
    }
}

/// The reason why the service has refused a request.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: String,
    pub(crate) message: String,
    /// The region of the bucket, if the request was sent to another region.
    pub(crate) region: Option<String>,
}

/// Parses the body of a refusal. `None` means that the body has another form.
pub(crate) fn refusal(text: &str) -> Option<Refusal> {
    let document = document(text).ok()?;
    let root = document.root_element();
    check_name(root, "Error").ok()?;
    let of = |name: &str| child(root, name).map(str::to_owned);
    Some(Refusal {
        code: of("Code")?,
        message: of("Message").unwrap_or_default(),
        region: of("Region"),
    })
}

/// Parses a page of a listing.
pub(crate) fn page(text: &str) -> Result<Page, Malformed> {
    let document = document(text)?;
    let root = document.root_element();
    check_name(root, "ListBucketResult")?;
    let is_escaped = child(root, "EncodingType") == Some("url");
    let mut objects = Vec::new();
    for node in children(root, "Contents") {
        let key = need(node, "Key")?;
        let key = match is_escaped {
            true => unescape(key)
                .ok_or_else(|| malformed("a key in the reply has an invalid percent-encoding"))?,
            false => key.to_owned(),
        };
        objects.push(Object {
            key,
            size: number(need(node, "Size")?)?,
            etag: child(node, "ETag").unwrap_or_default().to_owned(),
            modified: parse_iso(need(node, "LastModified")?)
                .ok_or_else(|| malformed("LastModified in the reply is not a time"))?,
        });
    }
    let is_truncated = child(root, "IsTruncated") == Some("true");
    let next = match is_truncated {
        true => Some(need(root, "NextContinuationToken")?.to_owned()),
        false => None,
    };
    Ok(Page { objects, next })
}

/// Parses the id of a new upload.
pub(crate) fn upload_id(text: &str) -> Result<String, Malformed> {
    let document = document(text)?;
    let root = document.root_element();
    check_name(root, "InitiateMultipartUploadResult")?;
    Ok(need(root, "UploadId")?.to_owned())
}

/// Parses a page of the parts of an upload. Also returns the part number after which the next page
/// begins, if there is a next page.
pub(crate) fn parts(text: &str) -> Result<(Vec<StoredPart>, Option<u32>), Malformed> {
    let document = document(text)?;
    let root = document.root_element();
    check_name(root, "ListPartsResult")?;
    let part_number = |text: &str| {
        u32::try_from(number(text)?)
            .map_err(|_| malformed(format!("the part number {text} in the reply is too large")))
    };
    let mut parts = Vec::new();
    for node in children(root, "Part") {
        parts.push(StoredPart {
            number: part_number(need(node, "PartNumber")?)?,
            size: number(need(node, "Size")?)?,
            etag: need(node, "ETag")?.to_owned(),
            crc: child(node, "ChecksumCRC32C").and_then(parse_checksum),
        });
    }
    let next = match child(root, "IsTruncated") == Some("true") {
        true => Some(part_number(need(root, "NextPartNumberMarker")?)?),
        false => None,
    };
    Ok((parts, next))
}

/// Checks the reply to the request that completes an upload. The service begins its reply before it
/// has completed the upload, so a reply with the status 200 may contain an error.
pub(crate) fn completed(text: &str) -> Result<(), Malformed> {
    check_name(document(text)?.root_element(), "CompleteMultipartUploadResult")
}

/// Returns the body of the request that completes an upload. `has_checksums` means that the upload
/// was begun with checksums.
pub(crate) fn complete(parts: &[StoredPart], has_checksums: bool) -> String {
    let mut text =
        String::from("<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
    for part in parts {
        let etag = part.etag.replace('&', "&amp;").replace('<', "&lt;");
        let _ = write!(text, "<Part><PartNumber>{}</PartNumber><ETag>{etag}</ETag>", part.number);
        if let Some(crc) = part.crc.filter(|_| has_checksums) {
            let _ = write!(text, "<ChecksumCRC32C>{}</ChecksumCRC32C>", checksum(crc));
        }
        text.push_str("</Part>");
    }
    text.push_str("</CompleteMultipartUpload>");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_of_an_object_listing_is_parsed() {
        let text = r#"<?xml version="1.0" encoding="UTF-8"?>
            <ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>data</Name>
            <EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>
            <NextContinuationToken>1ueGcx</NextContinuationToken>
            <Contents><Key>a%0Ab+c</Key><LastModified>2009-10-12T17:50:30.000Z</LastModified>
            <ETag>&quot;fba9dede5f27731c9771645a39863328&quot;</ETag><Size>434234</Size></Contents>
            </ListBucketResult>"#;
        let found = page(text).unwrap();
        assert_eq!(found.next.as_deref(), Some("1ueGcx"));
        assert_eq!((found.objects[0].key.as_str(), found.objects[0].size), ("a\nb c", 434_234));
        assert_eq!(found.objects[0].etag, "\"fba9dede5f27731c9771645a39863328\"");
        for wrong in [
            "",
            "<html/>",
            &text.replace("434234", "x"),
            &text.replace("NextContinuationToken", "Other"),
            &text.replace("%0A", "%zz"),
        ] {
            assert!(page(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn error_in_a_successful_reply_is_detected() {
        let error = "<Error><Code>SlowDown</Code><Message>Reduce</Message></Error>";
        assert_eq!(refusal(error).unwrap().code, "SlowDown");
        assert!(completed(error).is_err());
        assert!(completed("<CompleteMultipartUploadResult/>").is_ok());
        assert_eq!(refusal("<html>Bad gateway</html>"), None);
    }

    #[test]
    fn part_list_is_parsed_and_becomes_a_completion_request() {
        let text = "<ListPartsResult><IsTruncated>false</IsTruncated><Part>\
            <PartNumber>2</PartNumber><ETag>\"x\"</ETag><Size>5</Size>\
            <ChecksumCRC32C>4waSgw==</ChecksumCRC32C></Part></ListPartsResult>";
        let (found, next) = parts(text).unwrap();
        assert_eq!((found.len(), next), (1, None));
        let request = complete(&found, true);
        assert!(request.contains("<ETag>\"x\"</ETag><ChecksumCRC32C>4waSgw=="), "{request}");
        assert!(!complete(&found, false).contains("Checksum"));
    }
}
