//! Locations in an object store, in the form `s3://bucket/key`. This module does no I/O.

use skep_types::{Error, ErrorCode, Result};
use std::fmt;

/// Maximum length of a key, in bytes of its UTF-8 form.
pub const MOST_KEY: usize = 1024;

/// The prefix of each location.
const SCHEME: &str = "s3://";

/// A bucket, and a key or a prefix of keys in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// Name of the bucket.
    pub bucket: String,
    /// The key or the prefix: the text after the first `/` that follows the bucket. Empty means the
    /// whole bucket.
    pub key: String,
}

/// Whether a text has the prefix of a location in an object store.
pub fn is_location(text: &str) -> bool {
    text.starts_with(SCHEME)
}

impl Location {
    /// Parses a location.
    ///
    /// # Errors
    /// Returns `InvalidArgument` if the name of the bucket is invalid, or if the key is too long.
    pub fn parse(text: &str) -> Result<Self> {
        let invalid = |what: &str| {
            let what = format!("invalid location '{text}': {what}");
            Err(Error::new(ErrorCode::InvalidArgument, what))
        };
        let Some(rest) = text.strip_prefix(SCHEME) else {
            return invalid("expected s3://bucket/key");
        };
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        let is_allowed = |it: u8| it.is_ascii_alphanumeric() || b".-_".contains(&it);
        if !(3..=63).contains(&bucket.len())
            || !bucket.bytes().all(is_allowed)
            || !bucket.as_bytes()[0].is_ascii_alphanumeric()
        {
            return invalid(
                "the name of a bucket has 3 to 63 letters, digits, dots and hyphens, as in \
                 s3://bucket/key",
            );
        }
        if key.len() > MOST_KEY {
            return invalid("a key has at most 1024 bytes");
        }
        Ok(Self { bucket: bucket.to_owned(), key: key.to_owned() })
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.bucket, self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn location_is_split_into_bucket_and_key() {
        let read = |text: &str| Location::parse(text).map(|it| (it.bucket, it.key));
        let pair = |bucket: &str, key: &str| (bucket.to_owned(), key.to_owned());
        assert_eq!(read("s3://data").unwrap(), pair("data", ""));
        assert_eq!(read("s3://data/").unwrap(), pair("data", ""));
        assert_eq!(read("s3://my.data-1/a//b/").unwrap(), pair("my.data-1", "a//b/"));
        let long = format!("s3://data/{}", "x".repeat(1025));
        for wrong in ["/data", "s3:/data", "s3://", "s3:///a", "s3://ab/c", "s3://a b c", &long] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
