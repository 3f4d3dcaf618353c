//! The network addresses of this host, as the kernel lists them for its interfaces.
//!
//! Sockets are in [`crate::socket`].

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address of one of this host's network interfaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostAddress {
    /// Name of the interface, such as `eth0`.
    pub interface: String,
    /// The address.
    pub address: IpAddr,
}

/// Frees the kernel's list when it is dropped.
struct InterfaceList(*mut libc::ifaddrs);

impl Drop for InterfaceList {
    fn drop(&mut self) {
        // SAFETY: the pointer is from `getifaddrs`, and this is the only call that frees it.
        unsafe { libc::freeifaddrs(self.0) };
    }
}

/// Returns the addresses at which other hosts may reach this host, in the kernel's order. These are
/// the addresses of interfaces that are up, except loopback and link-local addresses.
///
/// # Errors
/// Returns the errors of `getifaddrs(3)`.
pub fn host_addresses() -> io::Result<Vec<HostAddress>> {
    let mut first = std::ptr::null_mut();
    // SAFETY: `first` is valid for writes, and the call writes the start of a list to it.
    if unsafe { libc::getifaddrs(&raw mut first) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let list = InterfaceList(first);
    let mut found = Vec::new();
    let mut next = list.0;
    while !next.is_null() {
        // SAFETY: the pointer is an entry of the list, which `list` keeps allocated.
        let entry = unsafe { &*next };
        next = entry.ifa_next;
        if entry.ifa_flags & libc::IFF_UP as u32 == 0 {
            continue;
        }
        // SAFETY: each entry contains the name of an interface, and the name ends with a zero byte.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) };
        // SAFETY: the address is null, or valid for the size of its family.
        let address = unsafe { read_address(entry.ifa_addr) };
        if let Some(address) = address.filter(is_for_others) {
            found.push(HostAddress { interface: name.to_string_lossy().into_owned(), address });
        }
    }
    Ok(found)
}

/// Reads an IPv4 or IPv6 address. Returns `None` for a null pointer and for other families.
///
/// # Safety
/// A pointer that is not null must be valid for the size of its family.
unsafe fn read_address(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: every socket address begins with its family. The casts are to the type that the
    // family implies. The kernel's list may not align the larger types.
    unsafe {
        match i32::from((*address).sa_family) {
            libc::AF_INET => {
                let v4 = address.cast::<libc::sockaddr_in>().read_unaligned();
                Some(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into())
            }
            libc::AF_INET6 => {
                let v6 = address.cast::<libc::sockaddr_in6>().read_unaligned();
                Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
            }
            _ => None,
        }
    }
}

/// Whether another host can reach the address. A link-local address is valid only together with the
/// name of an interface of the other host. So a list of addresses must not contain such an address.
fn is_for_others(address: &IpAddr) -> bool {
    let is_link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !address.is_loopback() && !address.is_unspecified() && !is_link_local
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_reachable_from_other_hosts_are_listed() {
        for found in host_addresses().unwrap() {
            assert!(is_for_others(&found.address), "{found:?}");
            assert!(!found.interface.is_empty());
        }
        for local in ["127.0.0.1", "::1", "fe80::1", "169.254.1.1", "0.0.0.0"] {
            assert!(!is_for_others(&local.parse().unwrap()), "{local}");
        }
        for global in ["10.0.0.1", "2001:db8::1", "fd00::1"] {
            assert!(is_for_others(&global.parse().unwrap()), "{global}");
        }
    }
}
