//! Tests each rule. A test gives the rule the data of an observation, and checks the advice.

use super::*;
use skep_types::ClusterId;

/// The layout of the default pattern in a cluster with 8 targets on 2 servers.
const DEFAULT: Layout = Layout {
    inline_bytes: 0,
    narrow: 1,
    wide_from: 4 << 20,
    width: 8,
    wanted: 8,
    chunk_bytes: 512 << 10,
    per_server: None,
};

fn seen(layout: Layout) -> Observation {
    Observation { layout: Some(layout), targets: 8, servers: 2, ..Observation::default() }
}

fn files(groups: &[(u64, u64)]) -> Sizes {
    let mut sizes = Sizes::default();
    for (count, size) in groups {
        (0..*count).for_each(|_| sizes.add(*size));
    }
    sizes
}

/// Returns the subject and the proposed value of each piece of advice.
fn proposals(seen: &Observation) -> Vec<(Subject, String)> {
    advise(seen).into_iter().map(|it| (it.subject, it.proposed)).collect()
}

/// Checks that there is exactly one piece of advice, that it has this subject and this proposed
/// value, and that its text contains `words`.
fn check(seen: &Observation, subject: Subject, proposed: &str, words: &[&str]) {
    let advice = advise(seen);
    assert_eq!(proposals(seen), [(subject, proposed.to_owned())], "{advice:?}");
    for word in words {
        let text = format!("{} {}", advice[0].why, advice[0].expected);
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn file_sizes_are_counted_by_powers_of_two() {
    let sizes = files(&[(1, 0), (1, 4096), (2, 4097)]);
    assert_eq!((sizes.count(), sizes.bytes(), sizes.largest()), (4, 4096 * 3 + 2, 4097));
    assert!((sizes.share_up_to(4096) - 0.5).abs() < 1e-9);
    assert!((sizes.share_up_to(8192) - 1.0).abs() < 1e-9);
    assert!((sizes.bytes_share_above(4096) - 8194.0 / 12290.0).abs() < 1e-9);
    let mut huge = Sizes::default();
    huge.add(u64::MAX);
    assert!((huge.bytes_share_above(1 << 62) - 1.0).abs() < 1e-9);
    assert!(huge.bytes_share_above(1 << 63) < 1e-9);
}

#[test]
fn too_few_statistics_give_no_advice() {
    assert_eq!(advise(&Observation::default()), []);
    assert_eq!(advise(&seen(DEFAULT)), []);
    let sizes = files(&[(99, 1024)]);
    assert_eq!(advise(&Observation { sizes, ..seen(DEFAULT) }), [], "too few files");
}

#[test]
fn inline_bytes_are_proposed_for_small_files() {
    let small = |groups: &[(u64, u64)]| Observation { sizes: files(groups), ..seen(DEFAULT) };
    let words = ["80 % of 200 files", "160 fewer chunk files", "1.7 times"];
    check(&small(&[(160, 1000), (40, 9000)]), Subject::InlineBytes, "4KiB", &words);
    check(&small(&[(160, 5000), (40, 90000)]), Subject::InlineBytes, "8KiB", &[]);
    assert_eq!(advise(&small(&[(140, 1000), (60, 90000)])), [], "70 % of small files are too few");
    assert_eq!(advise(&small(&[(200, 20 << 10)])), [], "the files are too large for metadata");
    let inline = Layout { inline_bytes: 4096, ..DEFAULT };
    assert_eq!(advise(&Observation { sizes: files(&[(200, 1000)]), ..seen(inline) }), []);
}

#[test]
fn no_inline_bytes_are_proposed_for_large_files() {
    let inline = Layout { inline_bytes: 4096, ..DEFAULT };
    let sizes = files(&[(5, 100), (195, 1 << 20)]);
    check(&Observation { sizes, ..seen(inline) }, Subject::InlineBytes, "0", &["2 % of 200"]);
}

#[test]
fn all_targets_are_proposed_for_large_and_shared_files() {
    let narrow = Layout { width: 2, wide_from: 0, narrow: 2, ..DEFAULT };
    let large = || files(&[(4, 1 << 30), (50, 1 << 20)]);
    let words = ["256MiB", "4.0 times", "from 2 to 8 targets"];
    check(&Observation { sizes: large(), ..seen(narrow) }, Subject::Targets, "count=all", &words);
    check(
        &Observation { writers: 3, ..seen(narrow) },
        Subject::Targets,
        "count=all",
        &["3 clients write"],
    );
    assert_eq!(
        advise(&Observation { sizes: large(), ..seen(DEFAULT) }),
        [],
        "the file is on all targets already"
    );
    let one = Observation { sizes: large(), targets: 1, ..seen(narrow) };
    assert_eq!(advise(&one), [], "the cluster has only one target");
}

#[test]
fn advice_names_uneven_target_counts_and_the_lost_rate() {
    let uneven = Layout { width: 4, per_server: Some((1, 3)), ..DEFAULT };
    check(&seen(uneven), Subject::Chooser, "balanced", &["has 3 of the 4", "1.5 times", "67 %"]);
    for even in [(2, 2), (1, 2)] {
        assert_eq!(advise(&seen(Layout { per_server: Some(even), ..uneven })), []);
    }
}

/// Returns darshan-parser output. Each item of `records` is a rank, a file, a counter and its
/// value.
fn log(processes: u64, records: &[(&str, &str, &str, u64)]) -> String {
    let mut text =
        format!("# darshan log version: 3.41\n# nprocs: {processes}\n# run time: 20.5\n");
    text += "#<module>\t<rank>\t<record id>\t<counter>\t<value>\t<file name>\t<mount pt>\t<fs>\n";
    for (rank, file, counter, value) in records {
        text += &format!("POSIX\t{rank}\t{file}\t{counter}\t{value}\t/mnt/f\t/mnt\tfuse\n");
    }
    text += "POSIX\t0\t7\tPOSIX_F_OPEN_START_TIMESTAMP\t0.01\t/mnt/f\t/mnt\tfuse\n";
    text + "MPI-IO\t0\t7\tX\t1\n"
}

fn shared_log(length: u64) -> String {
    log(
        16,
        &[
            ("-1", "7", "POSIX_BYTES_WRITTEN", 1000 * length),
            ("-1", "7", "POSIX_WRITES", 1000),
            ("-1", "7", "POSIX_SEQ_WRITES", 990),
            ("-1", "7", "POSIX_ACCESS1_ACCESS", length),
            ("-1", "7", "POSIX_ACCESS1_COUNT", 980),
            ("3", "8", "POSIX_BYTES_READ", 10),
            ("3", "8", "POSIX_READS", 1),
        ],
    )
}

#[test]
fn darshan_log_shows_file_counts_and_usual_request_length() {
    let found = parse_darshan(&shared_log(2 << 20)).unwrap();
    assert_eq!((found.processes, found.shared_files, found.own_files), (16, 1, 1));
    assert_eq!((found.calls, found.shared_bytes), (1001, 1000 * (2 << 20)));
    assert_eq!(found.usual_length.map(|it| it.0), Some(2 << 20));
    assert!((found.seconds - 20.5).abs() < 1e-9 && found.sequential > 0.98);
    let two_ranks = log(2, &[("0", "7", "POSIX_WRITES", 1), ("1", "7", "POSIX_WRITES", 1)]);
    assert_eq!(parse_darshan(&two_ranks).unwrap().shared_files, 1);
}

#[test]
fn texts_that_are_no_darshan_logs_are_refused() {
    let refused = |text: &str| parse_darshan(text).unwrap_err().context().to_owned();
    assert!(refused("hello").contains("run `darshan-parser LOG >FILE`"));
    assert!(refused("# nprocs: 4\n").contains("no record"));
    // A sum that does not fit into 64 bits is replaced by the largest 64-bit number.
    let text = log(1, &[("0", "7", "POSIX_WRITES", u64::MAX), ("0", "7", "POSIX_READS", 9)]);
    assert_eq!(parse_darshan(&text).unwrap().calls, u64::MAX);
}

#[test]
fn chunk_size_advice_follows_from_accesses_to_shared_files() {
    let with = |layout: Layout, length: u64| {
        let accesses = Some(parse_darshan(&shared_log(length)).unwrap());
        Observation { accesses, ..seen(layout) }
    };
    let words = ["98 % of 1001", "2MiB", "instead of 4"];
    check(&with(DEFAULT, 2 << 20), Subject::ChunkSize, "2MiB", &words);
    for length in [4096, 47008, 256 << 10, 512 << 10, 64 << 20] {
        assert_eq!(advise(&with(DEFAULT, length)), [], "{length}");
    }
    let narrow = Layout { width: 1, wide_from: 0, ..DEFAULT };
    check(&with(narrow, 47008), Subject::Targets, "count=all", &["100 % of their bytes", "8.0"]);
}

#[test]
fn one_target_per_file_is_advised_for_a_file_per_process() {
    let records: Vec<_> = ["1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12"]
        .into_iter()
        .flat_map(|it| ["0", "1"].map(|more| (it, more)))
        .collect();
    let names: Vec<String> = records.iter().map(|(it, more)| format!("{it}{more}")).collect();
    let records: Vec<_> =
        names.iter().map(|it| (it.as_str(), it.as_str(), "POSIX_BYTES_WRITTEN", 1 << 30)).collect();
    let with = |targets: usize| {
        let accesses = Some(parse_darshan(&log(24, &records)).unwrap());
        Observation { accesses, targets, ..seen(DEFAULT) }
    };
    check(
        &with(8),
        Subject::Targets,
        "count=1",
        &["24 processes", "3 files for each of 8", "7 fewer chunk files"],
    );
    assert_eq!(advise(&with(16)), [], "too few processes for all targets");
}

fn load(requests: u64, bytes: u64, busy_seconds: f64) -> Observation {
    let load = Load {
        seconds: 10.0,
        storage_requests: requests,
        metadata_requests: 0,
        other_requests: 0,
        bytes,
        storage_busy_seconds: busy_seconds,
    };
    Observation { load: Some(load), ..seen(DEFAULT) }
}

#[test]
fn advice_on_process_count_follows_from_concurrent_requests() {
    let more = load(10_000, 10_000 << 20, 20.0);
    let words = ["10000 requests of 2.0 ms in 10 s", "up to 4 times"];
    check(&more, Subject::Program, "more processes, or more clients", &words);
    check(&load(10_000, 10_000 << 20, 800.0), Subject::Program, "fewer processes", &["20 %"]);
    assert_eq!(advise(&load(10_000, 10_000 << 20, 100.0)), []);
    assert_eq!(advise(&load(50, 50 << 20, 0.1)), [], "too few requests");
}

#[test]
fn requests_of_unknown_kind_do_not_count_as_storage_requests() {
    let row = |service: &str, operations, written_bytes| crate::Row {
        service: service.into(),
        operations,
        written_bytes,
        busy_ns: 2_000_000_000,
        ..crate::Row::default()
    };
    let storage = 1_000 << 20;
    let load = Load::of(&[row("storage", 1_000, storage), row("metadata", 500_000, 0)], 10.0);
    assert_eq!(
        (load.storage_requests, load.metadata_requests, load.bytes),
        (1_000, 500_000, storage)
    );
    assert_eq!(load.storage_busy_seconds, 2.0);
    // In the monitor's history, the load of a job is not divided by kind of service.
    let load = Load::of(&[row("", 501_000, storage)], 10.0);
    assert_eq!((load.storage_requests, load.other_requests, load.bytes), (0, 501_000, storage));
    assert_eq!(advise(&Observation { load: Some(load), ..seen(DEFAULT) }), []);
}

#[test]
fn larger_buffers_are_proposed_for_short_requests() {
    let words = ["10000 requests moved 40960000 bytes", "40 requests"];
    check(
        &load(10_000, 10_000 << 12, 100.0),
        Subject::Program,
        "reads and writes of 1 MiB",
        &words,
    );
}

#[test]
fn pattern_parts_without_advice_stay_unchanged() {
    let advice = |subject, proposed: &str| Advice {
        subject,
        present: String::new(),
        proposed: proposed.into(),
        why: String::new(),
        expected: String::new(),
    };
    let inline = advice(Subject::InlineBytes, "4KiB");
    let all = advice(Subject::Targets, "count=all");
    let chunk = advice(Subject::ChunkSize, "2MiB");
    let chooser = advice(Subject::Chooser, "balanced");
    let own = Layout { inline_bytes: 4096, ..DEFAULT };
    let kept = "inline/from=4KiB,count=1,chunk-size=512KiB/from=4MiB,count=8,chunk-size=512KiB";
    let cases: [(&[Advice], Option<&Layout>, &str); 7] = [
        (std::slice::from_ref(&inline), None, "inline/from=4KiB"),
        (std::slice::from_ref(&all), None, "count=all"),
        (&[inline.clone(), all.clone()], None, "inline/from=4KiB,count=all"),
        (
            &[all.clone(), chunk.clone(), chooser.clone()],
            None,
            "count=all,chunk-size=2MiB,chooser=balanced",
        ),
        (std::slice::from_ref(&chunk), None, "chunk-size=2MiB"),
        (std::slice::from_ref(&inline), Some(&DEFAULT), kept),
        (
            &[chooser],
            Some(&own),
            "inline/from=4KiB,count=1,chunk-size=512KiB,chooser=balanced/from=4MiB,count=8,\
             chunk-size=512KiB,chooser=balanced",
        ),
    ];
    let map = ClusterMap::empty(ClusterId::new([0; 16]));
    for (advice, own, expected) in cases {
        let text = pattern_text(advice, own).unwrap();
        assert_eq!(text, expected);
        skep_cluster::pattern_text::parse(&text, &map).unwrap();
    }
    assert_eq!(pattern_text(&[advice(Subject::Program, "more")], None), None);
}
