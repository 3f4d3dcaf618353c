//! Signs requests by version 4 of Amazon's signatures ("SigV4"), in the header `authorization`.
//! This module does no I/O.
//!
//! Source: "Signature Calculations for the Authorization Header" in Amazon's S3 reference. The four
//! examples in this specification are tests of this module.

use crate::credentials::Credentials;
use crate::text::{escape, hex};
use crate::time;
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;

/// The value of `x-amz-content-sha256` for a body that TLS and a CRC-32C protect.
pub(crate) const UNSIGNED: &str = "UNSIGNED-PAYLOAD";

/// The parts of a request that the signature covers.
#[derive(Debug)]
pub(crate) struct Unsigned<'a> {
    pub(crate) method: &'a str,
    /// The path in escaped form.
    pub(crate) path: &'a str,
    /// Names and values of the query parameters, not escaped.
    pub(crate) query: &'a [(String, String)],
    /// Names (in lower case) and values of the headers, including `host`, `x-amz-date` and
    /// `x-amz-content-sha256`.
    pub(crate) headers: &'a [(String, String)],
    /// The value of `x-amz-content-sha256`.
    pub(crate) body: &'a str,
}

/// Returns the query of a request. The parameters of the query are in the order that the signature
/// requires.
pub(crate) fn query(parameters: &[(String, String)]) -> String {
    let mut all: Vec<_> = parameters
        .iter()
        .map(|(name, value)| format!("{}={}", escape(name, false), escape(value, false)))
        .collect();
    all.sort();
    all.join("&")
}

/// Returns the value for the header `authorization`. `seconds` is the time in `x-amz-date`.
pub(crate) fn authorization(
    request: &Unsigned<'_>,
    credentials: &Credentials,
    region: &str,
    seconds: i64,
) -> String {
    let stamp = time::basic(seconds);
    let day = &stamp[..8];
    let mut headers: Vec<_> = request.headers.iter().collect();
    headers.sort();
    let names: Vec<_> = headers.iter().map(|(name, _)| name.as_str()).collect();
    let names = names.join(";");
    let mut canonical = format!("{}\n{}\n{}\n", request.method, request.path, query(request.query));
    for (name, value) in headers {
        let words: Vec<_> = value.split_ascii_whitespace().collect();
        let _ = writeln!(canonical, "{name}:{}", words.join(" "));
    }
    let _ = write!(canonical, "\n{names}\n{}", request.body);
    let scope = format!("{day}/{region}/s3/aws4_request");
    let digest = hex(&Sha256::digest(canonical.as_bytes()));
    let text = format!("AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}");
    let mut key = format!("AWS4{}", credentials.secret_access_key).into_bytes();
    for part in [day, region, "s3", "aws4_request"] {
        key = code(&key, part);
    }
    format!(
        "AWS4-HMAC-SHA256 Credential={}/{scope},SignedHeaders={names},Signature={}",
        credentials.access_key_id,
        hex(&code(&key, &text))
    )
}

/// Returns the HMAC-SHA-256 of a text.
fn code(key: &[u8], text: &str) -> Vec<u8> {
    let mut code = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length is valid");
    code.update(text.as_bytes());
    code.finalize().into_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time in all examples of the reference.
    const TIME: i64 = 1_369_353_600;

    fn example(
        request: (&str, &str, &str),
        query: &[(&str, &str)],
        more: &[(&str, &str)],
    ) -> String {
        let (method, path, body) = request;
        let credentials = Credentials {
            access_key_id: "AKIAIOSFODNN7EXAMPLE".into(),
            secret_access_key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into(),
            session_token: None,
            expires: None,
        };
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let body = hex(&Sha256::digest(body));
        let always = [
            ("host", "examplebucket.s3.amazonaws.com"),
            ("x-amz-date", "20130524T000000Z"),
            ("x-amz-content-sha256", &body),
        ];
        let headers: Vec<_> = always.iter().chain(more).map(own).collect();
        let query: Vec<_> = query.iter().map(own).collect();
        let request = Unsigned { method, path, query: &query, headers: &headers, body: &body };
        authorization(&request, &credentials, "us-east-1", TIME)
    }

    #[test]
    fn signatures_equal_the_signatures_in_amazons_examples() {
        let get = example(("GET", "/test.txt", ""), &[], &[("range", "bytes=0-9")]);
        assert_eq!(
            get,
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,\
             SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,\
             Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
        );
        let path = format!("/{}", escape("test$file.text", true));
        let more = [
            ("date", "Fri, 24 May 2013 00:00:00 GMT"),
            ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
        ];
        let put = example(("PUT", &path, "Welcome to Amazon S3."), &[], &more);
        let of = |text: &str| text.rsplit_once('=').map(|it| it.1.to_owned()).unwrap();
        assert_eq!(of(&put), "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
        let lifecycle = example(("GET", "/", ""), &[("lifecycle", "")], &[]);
        assert_eq!(
            of(&lifecycle),
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"
        );
        let list = example(("GET", "/", ""), &[("max-keys", "2"), ("prefix", "J")], &[]);
        assert_eq!(of(&list), "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
    }
}
