//! `cargo xtask fuzz`: mutated vectors for the decoders, on stable Rust and the same each time.
//!
//! Rounds are counted, not timed, so that a seed repeats exactly on any machine. `fuzz/` holds the
//! same targets for libFuzzer, which searches by coverage but needs a nightly compiler.

use crate::repository::Outcome;
use crate::vectors;
use skep_wire::catalog;
use skep_wire::frame::{HEADER_BYTES, Header};
use std::panic::catch_unwind;

/// Options of `fuzz`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Where the sequence of mutations starts.
    #[arg(long, default_value_t = DEFAULT.seed)]
    seed: u64,
    /// Mutations for each target.
    #[arg(long, default_value_t = DEFAULT.rounds)]
    rounds: u64,
}

const DEFAULT: Options = Options { seed: 1, rounds: 1_000_000 };

impl Default for Options {
    fn default() -> Self {
        DEFAULT
    }
}

/// SplitMix64: small, and the same on every machine.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which is not zero.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// Lengths, counts and offsets at which decoders go wrong.
const EDGES: &[u32] = &[0, 1, 2, 0x7f, 0x80, 0xff, 0x1_0000, 0x7fff_ffff, 0x8000_0000, u32::MAX];

/// Changes `bytes` in one to four places; `other` is good input to take pieces from.
fn mutate(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len().max(1)).min(bytes.len());
        match random.below(7) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            1 if at < bytes.len() => bytes[at] = random.next() as u8,
            2 if at + 4 <= bytes.len() => {
                let edge = EDGES[random.below(EDGES.len())];
                bytes[at..at + 4].copy_from_slice(&edge.to_le_bytes());
            }
            3 => bytes.truncate(at),
            4 => bytes.insert(at, random.next() as u8),
            5 if at < bytes.len() => drop(bytes.remove(at)),
            6 if !other.is_empty() => {
                let from = random.below(other.len());
                let piece = &other[from..(from + 1 + random.below(32)).min(other.len())];
                bytes.splice(at..at, piece.iter().copied());
            }
            _ => bytes.push(0),
        }
    }
}

/// One message body among the vectors.
struct Seed {
    message: u16,
    is_reply: bool,
    header: [u8; HEADER_BYTES],
    body: Vec<u8>,
}

/// The well-formed frames of the vectors.
fn seeds() -> Outcome<Vec<Seed>> {
    let mut seeds = Vec::new();
    for vector in vectors::stored()? {
        let Some(bytes) = vector.bytes.first_chunk::<HEADER_BYTES>() else { continue };
        let Ok((header, _)) = Header::parse(bytes) else { continue };
        let body = vector.bytes[HEADER_BYTES..].iter().copied().take(header.body_bytes as usize);
        seeds.push(Seed {
            message: header.message,
            is_reply: header.is_reply(),
            header: *bytes,
            body: body.collect(),
        });
    }
    if seeds.is_empty() { Err("no vectors: run `cargo xtask vectors`".into()) } else { Ok(seeds) }
}

/// A header that is taken for good is encoded to the same bytes.
fn check_header(bytes: &[u8; HEADER_BYTES]) {
    if let Ok((header, _)) = Header::parse(bytes) {
        let again = skep_types::codec::Codec::to_bytes(&header);
        assert_eq!(again, bytes[8..8 + again.len()], "the header differs when encoded again");
    }
}

/// A body that is taken for good is encoded to the same bytes.
fn check_body(message: u16, is_reply: bool, body: &[u8]) {
    if let Some(Ok(again)) = catalog::recode(message, is_reply, body) {
        assert_eq!(again, body, "the body differs when encoded again");
    }
}

/// Mutates a header and sets its checksum right in most cases, since few mutations do.
fn header_round(seeds: &[Seed], random: &mut Random) {
    let mut bytes = seeds[random.below(seeds.len())].header.to_vec();
    mutate(&mut bytes, &seeds[random.below(seeds.len())].header, random);
    bytes.resize(HEADER_BYTES, 0);
    if random.below(8) != 0 {
        let checksum = skep_types::codec::crc32c(&bytes[..HEADER_BYTES - 4]);
        bytes[HEADER_BYTES - 4..].copy_from_slice(&checksum.to_le_bytes());
    }
    check_header(bytes.as_slice().try_into().expect("resized to a header"));
}

fn body_round(seeds: &[Seed], random: &mut Random) {
    let seed = &seeds[random.below(seeds.len())];
    let mut body = seed.body.clone();
    mutate(&mut body, &seeds[random.below(seeds.len())].body, random);
    check_body(seed.message, seed.is_reply, &body);
}

type Round = fn(&[Seed], &mut Random);
const TARGETS: &[(&str, Round)] = &[("header", header_round), ("body", body_round)];

/// Runs all targets.
///
/// # Errors
/// The target and the command that repeats what a decoder did wrong.
pub(crate) fn run(options: &Options) -> Outcome {
    let seeds = seeds()?;
    for (name, round) in TARGETS {
        let mut random = Random::new(options.seed);
        for count in 1..=options.rounds {
            let state = random.0;
            // Each round has its own generator, so that the failing one can be run alone.
            let outcome = catch_unwind(|| round(&seeds, &mut Random::new(state)));
            if outcome.is_err() {
                return Err(format!(
                    "target {name} failed in round {count}; repeat it with \
                     `cargo xtask fuzz --seed {state} --rounds 1`"
                ));
            }
            random.next();
        }
        println!("{name}: {} rounds from seed {}", options.rounds, options.seed);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_mutations() {
        let mutated = |seed| {
            let mut bytes = b"some bytes to change".to_vec();
            mutate(&mut bytes, b"other", &mut Random::new(seed));
            bytes
        };
        assert_eq!(mutated(7), mutated(7));
        assert_ne!(mutated(7), mutated(8));
    }

    #[test]
    fn mutation_copes_with_empty_input() {
        for seed in 0..1_000 {
            mutate(&mut Vec::new(), b"", &mut Random::new(seed));
        }
    }
}
