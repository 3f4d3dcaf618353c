//! The rules that give advice, and their thresholds.

use super::{Accesses, Advice, Load, Observation, Sizes, Subject, words};

/// Numbers of inline bytes that advice may propose. Larger numbers would make the log of metadata
/// too long.
const INLINE_SIZES: [u64; 3] = [4 << 10, 8 << 10, 16 << 10];
/// Minimum number of files for advice about inline bytes.
const FEWEST_FILES: u64 = 100;
/// Minimum share of the files that must fit into a number of inline bytes before a rule proposes
/// this number.
const FITTING: f64 = 0.75;
/// If less than this share of the files fits into the current number of inline bytes, a rule
/// proposes zero. Each larger file needs one more request for its first bytes.
const NOT_FITTING: f64 = 0.1;
/// Size in bytes above which a file is large.
const LARGE: u64 = 256 << 20;
/// Minimum number of storage requests for advice about the program.
const FEWEST_REQUESTS: u64 = 100;
/// Mean length in bytes below which the fixed cost of a storage request exceeds the cost of its
/// bytes.
const SHORT: u64 = 64 << 10;
/// The largest chunk size that advice may propose.
const LARGEST_CHUNK: u64 = 16 << 20;
/// Number of requests in progress per target above which additional processes only wait.
const BUSY: f64 = 4.0;
/// Number of requests in progress per target below which targets are idle most of the time.
const IDLE: f64 = 0.5;

/// Returns the advice for an observation. There is at most one piece of advice for each subject,
/// except for the program.
pub fn advise(seen: &Observation) -> Vec<Advice> {
    let mut advice = Vec::new();
    advice.extend(inline_bytes(seen));
    advice.extend(targets(seen));
    advice.extend(balance(seen));
    advice.extend(chunk_size(seen));
    advice.extend(seen.load.as_ref().and_then(short_requests));
    advice.extend(seen.load.as_ref().and_then(|load| processes(load, seen.targets)));
    advice
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Proposes a number of inline bytes if most files are small. Proposes zero if few files fit into
/// the current number.
fn inline_bytes(seen: &Observation) -> Option<Advice> {
    let (sizes, layout) = (&seen.sizes, seen.layout?);
    if sizes.count() < FEWEST_FILES {
        return None;
    }
    let present = words(layout.inline_bytes);
    let fitting = INLINE_SIZES.into_iter().find(|limit| sizes.share_up_to(*limit) >= FITTING);
    if let Some(limit) = fitting.filter(|limit| *limit > layout.inline_bytes) {
        let small = (sizes.share_up_to(limit) * sizes.count() as f64).round();
        return Some(Advice {
            subject: Subject::InlineBytes,
            present,
            proposed: words(limit),
            why: format!(
                "{} of {} files are at most {} long",
                percent(sizes.share_up_to(limit)),
                sizes.count(),
                words(limit)
            ),
            expected: format!(
                "{small:.0} fewer chunk files. In a measurement, files of 1 KiB were created 1.7 \
                 times, read 1.5 times and removed 8 times as fast (docs/operations/patterns.md). \
                 The bytes of these files use space on the metadata targets"
            ),
        });
    }
    let present_share = sizes.share_up_to(layout.inline_bytes.next_power_of_two());
    let is_burden = layout.inline_bytes > 0 && present_share < NOT_FITTING;
    is_burden.then(|| Advice {
        subject: Subject::InlineBytes,
        present,
        proposed: "0".into(),
        why: format!(
            "only {} of {} files fit into the inline bytes",
            percent(present_share),
            sizes.count()
        ),
        expected: "one fewer request for the first bytes of each larger file".into(),
    })
}

/// Proposes all targets for large or shared files, and one target per file if many processes use
/// separate files.
fn targets(seen: &Observation) -> Option<Advice> {
    let layout = seen.layout?;
    if seen.targets < 2 {
        return None;
    }
    if let Some(advice) = seen.accesses.as_ref().and_then(|it| of_own_files(it, seen)) {
        return Some(advice);
    }
    let shared = seen.accesses.as_ref().and_then(of_shared_files).or_else(|| of_writers(seen));
    let large = || of_large_files(&seen.sizes);
    let why = shared.or_else(large)?;
    // Give no advice if the file has all targets from some offset on. Such a file is as fast as a
    // file that has all targets from its beginning.
    if layout.width >= seen.targets {
        return None;
    }
    Some(Advice {
        subject: Subject::Targets,
        present: format!("count={}", layout.width),
        proposed: "count=all".into(),
        why,
        expected: format!(
            "up to {:.1} times the rate of one file (from {} to {} targets), if the clients and \
             the network are fast enough",
            seen.targets as f64 / layout.width as f64,
            layout.width,
            seen.targets
        ),
    })
}

/// Proposes one target per file if many processes use separate files. Together, these files use all
/// targets.
fn of_own_files(accesses: &Accesses, seen: &Observation) -> Option<Advice> {
    let layout = seen.layout?;
    let own_bytes = accesses.bytes - accesses.shared_bytes;
    let is_own = accesses.own_files >= accesses.processes && own_bytes > accesses.shared_bytes;
    let is_enough = accesses.processes >= 2 * seen.targets as u64;
    let is_narrow = layout.width == 1;
    if !is_own || !is_enough || is_narrow {
        return None;
    }
    Some(Advice {
        subject: Subject::Targets,
        present: format!("count={}", layout.width),
        proposed: "count=1".into(),
        why: format!(
            "{} processes wrote {} separate files, which are {} files for each of {} targets",
            accesses.processes,
            accesses.own_files,
            accesses.processes / seen.targets as u64,
            seen.targets
        ),
        expected: format!(
            "all processes together reach the same rate, and each file has up to {} fewer chunk \
             files to create, sync and remove; reading a single file is slower afterwards",
            layout.width - 1
        ),
    })
}

fn of_shared_files(accesses: &Accesses) -> Option<String> {
    (accesses.processes > 1 && accesses.shared_bytes * 2 > accesses.bytes).then(|| {
        format!(
            "{} processes read and wrote {} of their bytes in {} shared files",
            accesses.processes,
            percent(accesses.shared_bytes as f64 / accesses.bytes.max(1) as f64),
            accesses.shared_files
        )
    })
}

fn of_writers(seen: &Observation) -> Option<String> {
    (seen.writers > 1).then(|| format!("{} clients write to the file concurrently", seen.writers))
}

fn of_large_files(sizes: &Sizes) -> Option<String> {
    let share = sizes.bytes_share_above(LARGE);
    (share > 0.5).then(|| {
        format!("{} of the bytes are in files of more than {}", percent(share), words(LARGE))
    })
}

/// Proposes another chooser if a file has fewer targets on one server than on another. The server
/// with the most targets limits the data rate.
fn balance(seen: &Observation) -> Option<Advice> {
    let layout = seen.layout?;
    let (fewest, most) = layout.per_server?;
    if most < fewest + 2 || seen.servers < 2 {
        return None;
    }
    let used = layout.width as f64 / (most * seen.servers) as f64;
    Some(Advice {
        subject: Subject::Chooser,
        present: format!("({fewest},{most}) targets per server"),
        proposed: "balanced".into(),
        why: format!("one server has {most} of the {} targets of the file", layout.width),
        expected: format!(
            "the rate may rise up to {:.1} times, because the current targets use {} of the rate \
             of {} servers. Copy the file: only a new file gets new targets",
            1.0 / used,
            percent(used),
            seen.servers
        ),
    })
}

/// Proposes a larger chunk size, so that each access to a shared file reaches only one target.
fn chunk_size(seen: &Observation) -> Option<Advice> {
    let (layout, accesses) = (seen.layout?, seen.accesses.as_ref()?);
    let (length, share) = accesses.usual_length?;
    let is_shared = accesses.shared_bytes * 2 > accesses.bytes && accesses.processes > 1;
    let fits = length.is_power_of_two()
        && (skep_types::pattern::MIN_CHUNK_BYTES..=LARGEST_CHUNK).contains(&length);
    if !is_shared || !fits || share < FITTING || layout.chunk_bytes >= length {
        return None;
    }
    Some(Advice {
        subject: Subject::ChunkSize,
        present: words(layout.chunk_bytes),
        proposed: words(length),
        why: format!(
            "{} of {} accesses to shared files have a length of {}",
            percent(share),
            accesses.calls,
            words(length)
        ),
        expected: format!(
            "one request instead of {1} for each access that begins at a multiple of {0}",
            words(length),
            length / layout.chunk_bytes.max(1)
        ),
    })
}

/// Proposes larger buffers for a program that sends short requests to storage.
fn short_requests(load: &Load) -> Option<Advice> {
    let mean = load.bytes / load.storage_requests.max(1);
    if load.storage_requests < FEWEST_REQUESTS || mean == 0 || mean >= SHORT {
        return None;
    }
    Some(Advice {
        subject: Subject::Program,
        present: format!("{:.0} KiB in each request", mean as f64 / 1024.0),
        proposed: "reads and writes of 1 MiB".into(),
        why: format!("{} requests moved {} bytes", load.storage_requests, load.bytes),
        expected: format!("{} requests for the same bytes", load.bytes.div_ceil(1 << 20)),
    })
}

/// Proposes more or fewer processes. The basis is the mean number of requests in progress at each
/// target (Little's law).
fn processes(load: &Load, targets: usize) -> Option<Advice> {
    if load.storage_requests < FEWEST_REQUESTS || targets == 0 || load.seconds <= 0.0 {
        return None;
    }
    let each = load.in_progress() / targets as f64;
    let present = format!("{each:.2} requests in progress at each of {targets} targets");
    let why = format!(
        "{} requests of {:.1} ms in {:.0} s",
        load.storage_requests,
        load.storage_busy_seconds * 1e3 / load.storage_requests as f64,
        load.seconds
    );
    let (proposed, expected) = if each < IDLE {
        let factor = (1.0 / each.max(0.01)).min(100.0);
        let expected = format!(
            "up to {factor:.0} times the rate, if the clients and the network are fast enough"
        );
        ("more processes, or more clients".to_owned(), expected)
    } else if each > BUSY {
        let expected = format!(
            "the same rate with {} of the requests in progress, because each request now waits for \
             others",
            percent(2.0 / each)
        );
        ("fewer processes".to_owned(), expected)
    } else {
        return None;
    };
    Some(Advice { subject: Subject::Program, present, proposed, why, expected })
}
