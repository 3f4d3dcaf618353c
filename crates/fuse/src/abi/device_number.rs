//! Device numbers in the kernel's packed form.

/// Packs a device number (`major << 32 | minor`) into 32 bits, as the kernel does.
pub(crate) fn pack_device(device: u64) -> u32 {
    let (major, minor) = ((device >> 32) as u32, device as u32);
    (minor & 0xff) | (major & 0xfff) << 8 | (minor & 0xf_ff00) << 12
}

/// Unpacks a device number to `major << 32 | minor`.
pub(crate) fn unpack_device(packed: u32) -> u64 {
    let major = packed >> 8 & 0xfff;
    let minor = (packed & 0xff) | (packed >> 12 & 0xf_ff00);
    u64::from(major) << 32 | u64::from(minor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn unpacked_device_number_is_unchanged(major in 0_u64..1 << 12, minor in 0_u64..1 << 20) {
            let device = major << 32 | minor;
            prop_assert_eq!(unpack_device(pack_device(device)), device);
        }
    }
}
