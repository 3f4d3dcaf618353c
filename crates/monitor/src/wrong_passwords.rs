//! Limits the wrong passwords that the clients of the web page can try, so that no client can guess
//! the password.
//!
//! Each address has some attempts, and gets one more attempt after each pause. While an address has
//! no attempt left, the monitor refuses all passwords from this address without a check. Otherwise,
//! the replies of the monitor would still show a right guess. A wrong password that a client sends
//! again uses no further attempt, so a program with an old password does not lock out the other
//! users of its host.
//!
//! The module is pure: the caller passes the time.

use crate::limits::{FREE_PASSWORDS, MAX_PASSWORD_ADDRESSES, PASSWORD_PAUSE};
use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

/// Number of wrong passwords of each address that the monitor recognises if they are sent again.
const RECOGNISED: usize = 4;
/// Shortest time between two log lines about addresses without attempts.
const LOG_PAUSE: Duration = Duration::from_secs(60);

/// The wrong passwords of one address.
#[derive(Debug, Default)]
struct Attempts {
    /// Time at which the address has all its attempts again.
    until: Duration,
    /// The hash values of its last wrong passwords.
    last: VecDeque<u64>,
}

impl Attempts {
    fn is_exhausted(&self, now: Duration) -> bool {
        self.until.saturating_sub(now) > PASSWORD_PAUSE * (FREE_PASSWORDS - 1)
    }
}

/// The treatment of a password that a client has sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Treatment {
    /// The monitor compares the password with the right password.
    Check,
    /// The password is known to be wrong.
    Wrong,
    /// The address has no attempts left, so the monitor does not compare the password.
    Refuse,
}

/// The addresses that have sent wrong passwords.
#[derive(Debug, Default)]
pub(crate) struct WrongPasswords {
    addresses: BTreeMap<IpAddr, Attempts>,
    hasher: RandomState,
    /// Time before which the log gets no further line.
    silent_until: Duration,
}

impl WrongPasswords {
    /// Returns the treatment of a password that a client has sent at the time `now`. `None` means
    /// that the address of the client is unknown.
    pub(crate) fn treatment(
        &self,
        client: Option<IpAddr>,
        password: &str,
        now: Duration,
    ) -> Treatment {
        match self.addresses.get(&network(client)) {
            Some(attempts) if attempts.last.contains(&self.hasher.hash_one(password)) => {
                Treatment::Wrong
            }
            Some(attempts) if attempts.is_exhausted(now) => Treatment::Refuse,
            _ => Treatment::Check,
        }
    }

    /// Records that a password is wrong.
    pub(crate) fn add(&mut self, client: Option<IpAddr>, password: &str, now: Duration) {
        let (address, hash) = (network(client), self.hasher.hash_one(password));
        self.make_space(&address, now);
        let attempts = self.addresses.entry(address).or_default();
        attempts.until = attempts.until.max(now) + PASSWORD_PAUSE;
        attempts.last.push_back(hash);
        if attempts.last.len() > RECOGNISED {
            attempts.last.pop_front();
        }
        if attempts.is_exhausted(now) && now >= self.silent_until {
            self.silent_until = now + LOG_PAUSE;
            tracing::warn!(
                "the page has got {FREE_PASSWORDS} wrong passwords from {address}, and accepts one \
                 password each {} s from there; search that host for programs that guess the \
                 password or have an old one",
                PASSWORD_PAUSE.as_secs()
            );
        }
    }

    /// If the table has no space for `added`, forgets the addresses with all their attempts. If no
    /// address has all its attempts, forgets the address that gets all its attempts first.
    fn make_space(&mut self, added: &IpAddr, now: Duration) {
        if self.addresses.len() < MAX_PASSWORD_ADDRESSES || self.addresses.contains_key(added) {
            return;
        }
        self.addresses.retain(|_, attempts| attempts.until > now);
        if self.addresses.len() >= MAX_PASSWORD_ADDRESSES {
            let fewest = self.addresses.iter().min_by_key(|(_, attempts)| attempts.until);
            if let Some(address) = fewest.map(|(address, _)| *address) {
                self.addresses.remove(&address);
            }
        }
    }
}

/// Returns the address of a client without the part that the client can choose. A host with IPv6
/// can choose the low 64 bits of its address.
fn network(client: Option<IpAddr>) -> IpAddr {
    match client.map(|address| address.to_canonical()) {
        Some(IpAddr::V6(address)) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        Some(address) => address,
        None => Ipv6Addr::UNSPECIFIED.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(1_000_000 + seconds)
    }

    fn address(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    /// Tries a wrong password. Returns its treatment.
    fn attempt(
        wrong: &mut WrongPasswords,
        client: Option<IpAddr>,
        password: &str,
        now: Duration,
    ) -> Treatment {
        let treatment = wrong.treatment(client, password, now);
        if treatment == Treatment::Check {
            wrong.add(client, password, now);
        }
        treatment
    }

    #[test]
    fn number_of_guesses_from_an_address_is_limited() {
        let mut wrong = WrongPasswords::default();
        let mut checked = 0;
        for second in 0..1000 {
            for number in 0..5 {
                let password = format!("guess {second} {number}");
                let treatment = attempt(&mut wrong, address("10.0.0.5"), &password, at(second));
                checked += u64::from(treatment == Treatment::Check);
            }
        }
        let allowed = u64::from(FREE_PASSWORDS) + 999 / PASSWORD_PAUSE.as_secs();
        assert_eq!(checked, allowed);
        let other = wrong.treatment(address("10.0.0.6"), "right", at(999));
        assert_eq!(other, Treatment::Check, "another address");
        let later = at(999) + PASSWORD_PAUSE * FREE_PASSWORDS;
        assert_eq!(wrong.treatment(address("10.0.0.5"), "right", later), Treatment::Check);
    }

    #[test]
    fn program_with_an_old_password_locks_no_other_program_out() {
        let mut wrong = WrongPasswords::default();
        for second in 0..1000 {
            attempt(&mut wrong, address("::1"), "old", at(second));
            attempt(&mut wrong, address("::1"), "older", at(second));
            assert_eq!(wrong.treatment(address("::1"), "right", at(second)), Treatment::Check);
        }
        assert_eq!(wrong.treatment(address("::1"), "old", at(1000)), Treatment::Wrong);
    }

    #[test]
    fn addresses_of_one_host_count_together() {
        let mut wrong = WrongPasswords::default();
        for number in 0..FREE_PASSWORDS {
            let client = address(&format!("2001:db8:1:2:{number:x}::7"));
            assert_eq!(attempt(&mut wrong, client, &number.to_string(), at(0)), Treatment::Check);
        }
        let same = wrong.treatment(address("2001:db8:1:2::1"), "x", at(1));
        let other = wrong.treatment(address("2001:db8:1:3::1"), "x", at(1));
        assert_eq!((same, other), (Treatment::Refuse, Treatment::Check));
        assert_eq!(network(address("::ffff:10.0.0.5")), network(address("10.0.0.5")));
        assert_ne!(network(None), network(address("10.0.0.5")));
    }

    #[test]
    fn blocked_address_stays_blocked_among_many_addresses() {
        let mut wrong = WrongPasswords::default();
        let guesser = address("192.0.2.1");
        (0..FREE_PASSWORDS).for_each(|number| {
            attempt(&mut wrong, guesser, &number.to_string(), at(0));
        });
        for number in 0..3 * MAX_PASSWORD_ADDRESSES as u32 {
            let client = Some(IpAddr::from((10 << 24 | number).to_be_bytes()));
            attempt(&mut wrong, client, "x", at(1));
        }
        assert_eq!(wrong.addresses.len(), MAX_PASSWORD_ADDRESSES);
        assert_eq!(wrong.treatment(guesser, "x", at(2)), Treatment::Refuse);
        attempt(&mut wrong, address("192.0.2.2"), "x", at(5000));
        assert_eq!(wrong.addresses.len(), 1, "old attempts are forgotten");
    }
}
