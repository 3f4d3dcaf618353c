//! `cargo xtask fuzz`: passes mutated vectors to the decoders, reproducibly and on stable Rust.
//!
//! Each run chooses and prints a new random seed, so that further runs find further failures. A run
//! has a number of rounds instead of a time limit, so that a seed gives the same run on any
//! machine. The directory `fuzz/` contains the same decoders for libFuzzer, which uses code
//! coverage in its search, but needs a nightly compiler.
//!
//! If a decoder fails with an input, the run writes the input to a file in [`FAILURES`]. Commit
//! this file together with the repair. Each later run, including the runs of CI, first checks all
//! inputs in that directory.

use crate::built::KERNEL_REQUESTS_FEATURE;
use crate::repository::{Outcome, root, run as call};
use crate::vectors;
use skep_types::random::SplitMix64;
use skep_wire::frame::{HEADER_BYTES, Header};
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
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

/// Directory with the inputs that once failed, relative to the repository. This directory has a
/// subdirectory for each decoder. A file has one input as a line of hexadecimal digits.
const FAILURES: &str = "fuzz/failures";

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

/// Returns the valid inputs of each decoder, with the name of the decoder. These inputs are the
/// decoder's own seeds, and the valid frames of the test vectors.
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
        let write = fs::create_dir_all(&folder)
            .and_then(|()| fs::write(folder.join(format!("seed-{index}")), seed));
        write.map_err(|error| format!("cannot write to {}: {error}", folder.display()))?;
    }
    println!("wrote {} files below fuzz/corpus", seeds.len());
    Ok(())
}

/// A failed round, in which a decoder violated the checked property.
#[derive(Debug)]
struct Failure {
    /// Number of the round, from 1.
    round: u64,
    /// Seed that repeats this round as the first round.
    seed: u64,
    input: Vec<u8>,
}

impl Failure {
    /// Writes the input to a file in `directory`, which is the directory of the decoder. Returns
    /// the path of the file.
    fn keep(&self, directory: &Path) -> Outcome<PathBuf> {
        let path = directory.join(format!("{}.hex", self.seed));
        let text = vectors::to_hex(&self.input) + "\n";
        let write = fs::create_dir_all(directory).and_then(|()| fs::write(&path, text));
        write.map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        Ok(path)
    }
}

fn fails(decoder: &Decoder, input: &[u8]) -> bool {
    catch_unwind(|| (decoder.check)(input)).is_err()
}

/// Checks the inputs in `directory`, which once failed. A missing directory has no inputs.
///
/// # Errors
/// Names the first file whose input still fails, or which contains no input.
fn check_earlier_failures(decoder: &Decoder, directory: &Path) -> Outcome {
    let mut paths: Vec<_> =
        fs::read_dir(directory).into_iter().flatten().flatten().map(|it| it.path()).collect();
    paths.sort();
    for path in paths {
        let failed = |what: &str| format!("the input in {} fails: {what}", path.display());
        let text = fs::read_to_string(&path).map_err(|error| failed(&error.to_string()))?;
        let input =
            vectors::from_hex(text.trim()).ok_or_else(|| failed("expected hexadecimal digits"))?;
        if fails(decoder, &input) {
            return Err(failed("the decoder fails again with this input"));
        }
    }
    Ok(())
}

fn fuzz(decoder: &Decoder, seeds: &[&[u8]], seed: u64, rounds: u64) -> Result<(), Failure> {
    let mut random = Random::new(seed);
    for count in 1..=rounds {
        // Each round has its own random generator, so that a failed round can be repeated without
        // the other rounds.
        let state = random.0.state();
        let mut draw = Random::new(state);
        let mut bytes = seeds[draw.below(seeds.len())].to_vec();
        mutate(&mut bytes, seeds[draw.below(seeds.len())], &mut draw);
        if fails(decoder, &bytes) {
            return Err(Failure { round: count, seed: state, input: bytes });
        }
        random.next();
    }
    println!("{}: {rounds} rounds from seed {seed}", decoder.name);
    Ok(())
}

/// Returns a seed that no earlier run has used.
fn new_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.as_nanos() as u64
}

/// Checks the inputs that made one decoder fail in earlier runs, and then fuzzes the decoder.
/// `seeds` has the valid inputs of all decoders.
///
/// # Errors
/// Fails like [`run`].
fn run_decoder(decoder: &Decoder, seeds: &[(&str, Vec<u8>)], seed: u64, rounds: u64) -> Outcome {
    let of_decoder = seeds.iter().filter(|(name, _)| *name == decoder.name);
    let own: Vec<&[u8]> = of_decoder.map(|(_, seed)| seed.as_slice()).collect();
    if own.is_empty() {
        return Err(format!(
            "there are no vectors for the decoder {}: run `cargo xtask vectors`",
            decoder.name
        ));
    }
    let directory = root().join(FAILURES).join(decoder.name);
    check_earlier_failures(decoder, &directory)?;
    if let Err(failure) = fuzz(decoder, &own, seed, rounds) {
        return Err(format!(
            "decoder {} failed in round {} with the input in {}; repeat the round with \
             `cargo xtask fuzz --seed {} --rounds 1`",
            decoder.name,
            failure.round,
            failure.keep(&directory)?.display(),
            failure.seed
        ));
    }
    Ok(())
}

/// Checks the inputs that once failed, and then fuzzes all decoders of this build with the same
/// number of rounds. Only a build with the feature `kernel-requests` has the decoder of kernel
/// requests.
///
/// # Errors
/// Names the decoder that failed, the file with its input, and the command that repeats the round.
pub(crate) fn run(options: &Options) -> Outcome {
    let seeds = seeds()?;
    if options.write_corpus {
        return write_corpus(&seeds);
    }
    let seed = options.seed.unwrap_or_else(new_seed);
    decoders::all().try_for_each(|decoder| run_decoder(decoder, &seeds, seed, options.rounds))
}

/// Does the same as [`run`] with all decoders. If this build has no decoder of kernel requests,
/// this function builds the package with this decoder, and runs the command of that build.
///
/// # Errors
/// Fails like [`run`], or if cargo cannot build the package.
pub(crate) fn run_with_all_decoders(options: &Options) -> Outcome {
    if cfg!(feature = "kernel-requests") {
        return run(options);
    }
    let package = ["run", "--quiet", "--package", "xtask", "--features", KERNEL_REQUESTS_FEATURE];
    let rounds = options.rounds.to_string();
    let mut arguments = [&package[..], &["--", "fuzz", "--rounds", rounds.as_str()]].concat();
    let seed = options.seed.map(|seed| seed.to_string());
    if let Some(seed) = &seed {
        arguments.extend(["--seed", seed.as_str()]);
    }
    if options.write_corpus {
        arguments.push("--write-corpus");
    }
    call(env!("CARGO"), &arguments, &[])
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
        let failure = fuzz(&decoder, &seeds, 1, 1_000).unwrap_err();
        let again = fuzz(&decoder, &seeds, failure.seed, 1).unwrap_err();
        assert_eq!((again.round, again.input), (1, failure.input));
    }

    #[test]
    fn input_that_failed_once_is_checked_by_later_runs() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("failures");
        let check = |check: fn(&[u8])| {
            let decoder = Decoder { name: "short", check, seeds: Vec::new };
            check_earlier_failures(&decoder, &directory)
        };
        assert_eq!(check(|_| panic!("no input")), Ok(()));
        let failure = Failure { round: 3, seed: 9, input: vec![0, 0x7f, 0xff] };
        let path = failure.keep(&directory).unwrap();
        let problem = check(|bytes| assert_ne!(bytes, [0, 0x7f, 0xff])).unwrap_err();
        assert!(problem.contains(path.to_str().unwrap()), "{problem}");
        assert_eq!(check(|bytes| assert_eq!(bytes, [0, 0x7f, 0xff])), Ok(()));
        fs::write(&path, "no digits").unwrap();
        assert!(check(|_| ()).unwrap_err().contains("hexadecimal"));
    }

    /// Runs in the step `test` of CI. The step `fuzz` runs in a build without this decoder.
    #[cfg(feature = "kernel-requests")]
    #[test]
    fn mutated_kernel_requests_never_cause_a_panic() {
        let is_wanted = |it: &&Decoder| it.name == decoders::KERNEL_REQUESTS;
        let decoder = decoders::all().find(is_wanted).unwrap();
        assert_eq!(run_decoder(decoder, &seeds().unwrap(), new_seed(), DEFAULT.rounds), Ok(()));
    }
}
