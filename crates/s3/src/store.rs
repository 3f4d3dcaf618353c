//! The operations on a bucket of an object store, as traits. Copies and gateways need only these
//! operations.

use skep_types::Result;
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::ops::Range;

/// An object in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// The key of the object.
    pub key: String,
    /// The length of the object in bytes.
    pub size: u64,
    /// The entity tag of the object, with quotation marks. Objects with different contents have
    /// different tags.
    pub etag: String,
    /// Time of the last upload of the object (`LastModified` in S3), in seconds since 1970.
    pub modified: i64,
}

/// A page of a listing. The objects are in ascending order of their keys, compared byte by byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The objects on this page.
    pub objects: Vec<Object>,
    /// The token that requests the next page. `None` means that this page is the last page.
    pub next: Option<String>,
}

/// The attributes of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Head {
    /// The length of the object in bytes.
    pub size: u64,
    /// The entity tag of the object, with quotation marks.
    pub etag: String,
    /// Time of the last upload of the object (`LastModified` in S3), in seconds since 1970.
    pub modified: i64,
    /// The metadata that the writer of the object has added (`x-amz-meta-*`), by their names in
    /// lower case without this prefix.
    pub metadata: BTreeMap<String, String>,
    /// The CRC-32C of all bytes of the object. `None` means that the service stores no checksum.
    pub crc: Option<u32>,
}

/// A part of a multipart upload that the service has stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredPart {
    /// The part number, counted from 1.
    pub number: u32,
    /// The length of the part in bytes.
    pub size: u64,
    /// The entity tag of the part, with quotation marks.
    pub etag: String,
    /// The CRC-32C of the bytes of the part. `None` means that the service stores no checksum.
    pub crc: Option<u32>,
}

/// The bytes that a request stores as an object or as a part of an upload. The client reads these
/// bytes several times: once for the checksum, and once for each attempt to send the bytes.
pub trait Content: Sync {
    /// Returns the number of bytes. Each reader must return exactly this number.
    fn size(&self) -> u64;

    /// Returns a reader that begins at the first byte. `is_sent` means that the client sends the
    /// bytes to the service, and does not only compute a checksum.
    ///
    /// # Errors
    /// Returns the error of opening the source of the bytes.
    fn reader(&self, is_sent: bool) -> io::Result<Box<dyn Read + '_>>;
}

impl Content for &[u8] {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn reader(&self, _: bool) -> io::Result<Box<dyn Read + '_>> {
        Ok(Box::new(*self))
    }
}

/// A function that is called with the bytes of an object, in their order.
pub type Sink<'a> = &'a mut dyn FnMut(&[u8]) -> Result<()>;

/// Operations on the objects of one bucket.
///
/// All operations can fail with these errors. `NotFound`: the bucket or the object does not exist.
/// `PermissionDenied`: the credentials do not permit the operation. `Disconnected`: the service has
/// not answered within the limit of attempts. `Stale`: the object has changed since its entity tag
/// was read. `Corrupt`: bytes do not have their checksum. `NoSpace`: the service has no space left.
/// `AuthenticationFailed`: there are no valid credentials, the clocks differ too much, or the
/// certificate of the service is not trusted. `InvalidArgument`: the bucket is in another region.
/// `Protocol`: the reply is not a reply of S3. `Io`: any other refusal.
pub trait Objects: Sync {
    /// Returns a page of the objects whose keys begin with `prefix`. `next` is the token that the
    /// previous page contains.
    ///
    /// # Errors
    /// The errors that the trait lists.
    fn list(&self, prefix: &str, next: Option<&str>) -> Result<Page>;

    /// Returns the attributes of an object. `None` means that the object does not exist.
    ///
    /// # Errors
    /// The errors that the trait lists.
    fn head(&self, key: &str) -> Result<Option<Head>>;

    /// Reads a range of an object, or the whole object. Returns the attributes of the object.
    /// `etag` is the entity tag of the version to read. If the connection is cut, the client reads
    /// the remaining bytes from the same version.
    ///
    /// # Errors
    /// The errors that the trait lists. If `sink` returns an error, the read ends with this error.
    fn get(
        &self,
        key: &str,
        range: Option<Range<u64>>,
        etag: Option<&str>,
        sink: Sink<'_>,
    ) -> Result<Head>;

    /// Stores an object, and returns the CRC-32C of its bytes.
    ///
    /// # Errors
    /// The errors that the trait lists.
    fn put(
        &self,
        key: &str,
        content: &dyn Content,
        metadata: &BTreeMap<String, String>,
    ) -> Result<u32>;

    /// Removes an object. A missing object is not an error.
    ///
    /// # Errors
    /// The errors that the trait lists.
    fn remove(&self, key: &str) -> Result<()>;
}

/// Uploads of objects in parts. The object appears when its upload is completed.
pub trait Uploads: Sync {
    /// Begins an upload, and returns the upload id that the service assigns.
    ///
    /// # Errors
    /// The errors that [`Objects`] lists.
    fn begin(&self, key: &str, metadata: &BTreeMap<String, String>) -> Result<String>;

    /// Returns the parts that the service has stored, in the order of their numbers. `None` means
    /// that the upload does not exist.
    ///
    /// # Errors
    /// The errors that [`Objects`] lists.
    fn parts(&self, key: &str, upload: &str) -> Result<Option<Vec<StoredPart>>>;

    /// Stores a part of an upload.
    ///
    /// # Errors
    /// The errors that [`Objects`] lists.
    fn put_part(
        &self,
        key: &str,
        upload: &str,
        number: u32,
        content: &dyn Content,
    ) -> Result<StoredPart>;

    /// Completes an upload, which creates the object from its parts. `crc` is the checksum of the
    /// whole object. The checksum is `None` if a part has no checksum.
    ///
    /// # Errors
    /// The errors that [`Objects`] lists.
    fn complete(
        &self,
        key: &str,
        upload: &str,
        parts: &[StoredPart],
        crc: Option<u32>,
    ) -> Result<()>;

    /// Removes an upload and its parts. A missing upload is not an error.
    ///
    /// # Errors
    /// The errors that [`Objects`] lists.
    fn abort(&self, key: &str, upload: &str) -> Result<()>;
}

/// A bucket with the operations on objects and on uploads.
pub trait Bucket: Objects + Uploads {}

impl<T: Objects + Uploads> Bucket for T {}
