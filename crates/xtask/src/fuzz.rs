//! `cargo xtask fuzz`: passes mutated vectors to the decoders, reproducibly and on stable Rust.
//!
//! Each run chooses a new random seed and prints it, so that further runs find further failures. A
//! run has a number of rounds instead of a time limit, so that a seed gives the same run on any
//! machine. The directory `fuzz/` contains the same decoders for libFuzzer, which uses code
//! coverage in its search, but needs a nightly compiler.

use crate::repository::{Outcome, root};
use crate::vectors;
use skep_types::random::SplitMix64;
use skep_wire::frame::{HEADER_BYTES, Header};
use std::panic::catch_unwind;
use std::time::{SystemTime, UNIX_EPOCH};
use xtask::decoders::{self, Decoder};

/// Options of `fuzz`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Seed of the sequence of mutations [default: a new one from the clock, which is printed].
    #[arg(long)]
    seed: Option<u64>,
    /// Number of mutations for each decoder.
    #[arg(long, default_value_t = DEFAULT.rounds)]
    rounds: u64,
    /// Only write the seeds to the corpus of libFuzzer below fuzz/.
    #[arg(long)]
    write_corpus: bool,
}

const DEFAULT: Options = Options { seed: None, rounds: 200_000, write_corpus: false };

impl Default for Options {
    fn default() -> Self {
        DEFAULT
    }
}

/// A generator of random numbers. A seed gives the same numbers on every machine.
pub(crate) struct Random(SplitMix64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.number()
    }

    /// Returns a random number below `end`. `end` must not be zero.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0.below(end as u64) as usize
    }
}

/// Values at which decoders often fail, for lengths, counts and offsets.
const EDGES: &[u32] = &[0, 1, 2, 0x7f, 0x80, 0xff, 0x1_0000, 0x7fff_ffff, 0x8000_0000, u32::MAX];

/// Changes `bytes` at one to four positions. Some of the changes copy a piece of `other`, which is
/// another valid input.
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

/// Returns the valid inputs of each decoder, with the name of the decoder. They are the decoder's
/// own seeds, and the valid frames of the test vectors.
fn seeds() -> Outcome<Vec<(&'static str, Vec<u8>)>> {
    let mut seeds = Vec::new();
    for decoder in decoders::all() {
        seeds.extend((decoder.seeds)().into_iter().map(|seed| (decoder.name, seed)));
    }
    for vector in vectors::stored()? {
        let Some(bytes) = vector.bytes.first_chunk::<HEADER_BYTES>() else { continue };
        let Ok((header, _)) = Header::parse(bytes) else { continue };
        let body = &vector.bytes[HEADER_BYTES..];
        let body = &body[..body.len().min(header.body_bytes as usize)];
        seeds.push(("header", bytes.to_vec()));
        seeds.push(("body", decoders::body_input(header.message, header.is_reply(), body)));
    }
    Ok(seeds)
}

/// Writes the valid inputs to the corpus of libFuzzer.
fn write_corpus(seeds: &[(&str, Vec<u8>)]) -> Outcome {
    for (index, (name, seed)) in seeds.iter().enumerate() {
        let folder = root().join("fuzz/corpus").join(name);
        let write = std::fs::create_dir_all(&folder)
            .and_then(|()| std::fs::write(folder.join(format!("seed-{index}")), seed));
        write.map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    println!("wrote {} files below fuzz/corpus", seeds.len());
    Ok(())
}

fn fuzz(decoder: &Decoder, seeds: &[&[u8]], seed: u64, rounds: u64) -> Outcome {
    let mut random = Random::new(seed);
    for count in 1..=rounds {
        // Each round has its own random generator, so that a failed round can be run again alone.
        let state = random.0.state();
        let mut draw = Random::new(state);
        let mut bytes = seeds[draw.below(seeds.len())].to_vec();
        mutate(&mut bytes, seeds[draw.below(seeds.len())], &mut draw);
        if catch_unwind(|| (decoder.check)(&bytes)).is_err() {
            return Err(format!(
                "decoder {} failed in round {count} with {}; repeat it with \
                 `cargo xtask fuzz --seed {state} --rounds 1`",
                decoder.name,
                bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
            ));
        }
        random.next();
    }
    println!("{}: {rounds} rounds from seed {seed}", decoder.name);
    Ok(())
}

/// Fuzzes all decoders with the same number of rounds.
///
/// # Errors
/// Names the decoder that failed, its input, and the command that runs the round again.
pub(crate) fn run(options: &Options) -> Outcome {
    let seeds = seeds()?;
    if options.write_corpus {
        return write_corpus(&seeds);
    }
    let seed = options.seed.unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        now.as_nanos() as u64
    });
    for decoder in decoders::all() {
        let of_decoder = seeds.iter().filter(|(name, _)| *name == decoder.name);
        let own: Vec<&[u8]> = of_decoder.map(|(_, seed)| seed.as_slice()).collect();
        if own.is_empty() {
            return Err(format!("no vectors for {}: run `cargo xtask vectors`", decoder.name));
        }
        fuzz(decoder, &own, seed, options.rounds)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuzzer_repeats_its_mutations_for_the_same_seed() {
        let mutated = |seed| {
            let mut bytes = b"some bytes to change".to_vec();
            mutate(&mut bytes, b"other", &mut Random::new(seed));
            bytes
        };
        assert_eq!(mutated(7), mutated(7));
        assert_ne!(mutated(7), mutated(8));
    }

    #[test]
    fn fuzzer_can_mutate_empty_input() {
        for seed in 0..1_000 {
            mutate(&mut Vec::new(), b"", &mut Random::new(seed));
        }
    }

    #[test]
    fn failed_fuzz_round_can_be_repeated_alone() {
        let decoder =
            Decoder { name: "short", check: |bytes| assert!(bytes.len() <= 20), seeds: Vec::new };
        let seeds: [&[u8]; 1] = [b"exactly twenty bytes"];
        let problem = fuzz(&decoder, &seeds, 1, 1_000).unwrap_err();
        let seed = problem.split("--seed ").nth(1).and_then(|rest| rest.split(' ').next());
        let seed = seed.unwrap().parse().unwrap();
        assert!(fuzz(&decoder, &seeds, seed, 1).is_err());
    }
}
