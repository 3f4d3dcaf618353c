//! A client for object stores that have the interface of Amazon's S3.
//!
//! This crate has the following modules, from the lowest layer to the highest layer:
//! - `time`, `text`, [`checksum`]: times, escaped texts and checksums in the forms that the
//!   protocol requires
//! - `sign`: signs requests (SigV4)
//! - `xml`: forms and parses the bodies of requests and replies
//! - [`location`]: the form `s3://bucket/key`
//! - [`settings`]: endpoint, region, certificates, and the environment variables of the process
//! - `profiles`, [`credentials`]: where credentials come from
//! - `transport`: connections by HTTP and TLS
//! - `retry`: the rules for the repetition of failed requests
//! - [`store`]: the operations on a bucket, as traits
//! - [`client`]: the implementation of these traits
//!
//! `time`, `text`, `checksum`, `sign`, `xml`, `location` and `profiles` do no I/O. The crate does
//! not use file systems. `skep-copy` decides which file becomes which object.
//!
//! # Invariants
//! - Credentials are never in a command line, a log or an error.
//! - An object is stored only if the service has received exactly the bytes that the client has
//!   read. To ensure this, each request contains the CRC-32C of its body, and without TLS also a
//!   signed SHA-256. If the reply does not confirm the CRC-32C, the client compares the MD5 in the
//!   entity tag.
//! - The client retries a request a limited number of times, with growing pauses.
//!
//! No function can check these invariants, because they concern requests and texts, and not a
//! state.
//!
//! Held by the tests `secret_keys_appear_in_no_error_or_debug_output`,
//! `errors_for_wrong_credentials_and_buckets_name_the_reason`,
//! `damaged_bytes_are_detected_in_both_directions`, `throttled_and_lost_requests_are_retried` and
//! `pauses_between_retries_grow_to_a_limit`.

pub mod checksum;
pub mod client;
pub mod credentials;
pub mod location;
mod profiles;
mod retry;
pub mod settings;
mod sign;
pub mod store;
mod text;
mod time;
mod transport;
mod xml;
