//! Compares an object with the bytes of a file by their CRC-32C.

use super::Pair;
use crate::context::Context;
use crate::failure::Failure;
use crate::outcome::Counters;
use skep_s3::checksum::Crc;
use skep_s3::store::Head;

/// Returns the CRC-32C of an object. The service returns the checksum, or this function computes it
/// from the object's bytes.
pub(super) fn checksum(
    context: &Context,
    pair: &Pair<'_>,
    key: &str,
    head: &Head,
) -> Result<u32, Failure> {
    let failed = Failure::of_store("read the object to compare it");
    let crc = match head.crc {
        Some(crc) => crc,
        None => {
            let mut crc = Crc::default();
            let mut take = |bytes: &[u8]| {
                context.pace.take(bytes.len() as u64);
                crc.update(bytes);
                Ok(())
            };
            pair.bucket.get(key, None, Some(&head.etag), &mut take).map_err(failed)?;
            crc.value()
        }
    };
    Counters::add(&context.counters.verified, head.size);
    Ok(crc)
}

/// Fails if an object does not have the size and the CRC-32C of the bytes that were sent.
pub(super) fn expect(
    context: &Context,
    pair: &Pair<'_>,
    key: &str,
    (size, crc): (u64, u32),
) -> Result<(), Failure> {
    let head = pair.bucket.head(key).map_err(Failure::of_store("read the object"))?;
    let missing = || Failure::because("verify", "another program has removed the object");
    let head = head.ok_or_else(missing)?;
    if head.size != size || checksum(context, pair, key, &head)? != crc {
        return Err(differs());
    }
    Ok(())
}

/// Creates the failure for an object and a file that differ.
pub(super) fn differs() -> Failure {
    let reason = "the copy differs from the source; copy again without --resume";
    Failure::because("verify", reason)
}
