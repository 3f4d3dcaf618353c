//! Two mounts of one cluster, over different transports: what one has completed, the other sees.
//! Data from close to open, names and attributes within a second.

use skep_testkit::suite::{Case, Suite};
use skep_testkit::{Cluster, Random, Shape, Transport, wait_for};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The same directory, through two mounts.
struct Mounts {
    one: PathBuf,
    other: PathBuf,
}

const CASES: &[Case<Mounts>] = skep_testkit::cases![coherence:
    what_was_closed_is_seen_by_who_opens, new_names_are_seen_at_once,
    known_names_are_stale_for_a_second_at_most, attributes_are_stale_for_a_second_at_most,
    an_open_handle_sees_what_was_synced, appends_of_both_in_turns, locks_by_exclusive_creation,
    removed_under_an_open_handle, renames_over_each_other, truncated_by_the_other,
    writers_of_different_parts, listings_agree,
];

/// Names and attributes may be this old, and a little for the machine's own delays.
const STALENESS: Duration = Duration::from_millis(1000);
const MARGIN: Duration = Duration::from_millis(300);

fn what_was_closed_is_seen_by_who_opens(mounts: &Mounts) {
    let mut random = Random::new(3);
    for round in 0..60 {
        let (from, to) = if round % 2 == 0 {
            (&mounts.one, &mounts.other)
        } else {
            (&mounts.other, &mounts.one)
        };
        let len = [0, 10, 4096, 600_000, 2_000_000][random.below(5)];
        let bytes = random.bytes(len);
        fs::write(from.join("file"), &bytes).expect("written");
        // Opening looks at the attributes anew; who opened sees everything.
        let found = fs::read(to.join("file")).expect("read");
        assert!(found == bytes, "round {round}: {} bytes, not {len}", found.len());
    }
}

/// A name that a mount never asked for isn't cached there.
fn new_names_are_seen_at_once(mounts: &Mounts) {
    for round in 0..60 {
        let name = format!("file-{round}");
        fs::write(mounts.one.join(&name), "x").expect("written");
        assert_eq!(fs::read(mounts.other.join(&name)).expect("seen"), b"x");
        fs::create_dir(mounts.other.join(format!("directory-{round}"))).expect("made");
        assert!(mounts.one.join(format!("directory-{round}")).is_dir());
    }
}

/// Waits until `is_seen`, and checks how long that took since the change was complete.
fn within_a_second(what: &str, is_seen: impl Fn() -> bool) {
    let start = Instant::now();
    wait_for(what, Duration::from_secs(10), || is_seen().then_some(()));
    let took = start.elapsed();
    assert!(took <= STALENESS + MARGIN, "{what}: seen after {took:?}");
}

fn known_names_are_stale_for_a_second_at_most(mounts: &Mounts) {
    for round in 0..4 {
        let name = format!("file-{round}");
        let (here, there) = (mounts.one.join(&name), mounts.other.join(&name));
        fs::write(&here, "x").expect("written");
        assert!(there.exists());
        fs::remove_file(&here).expect("removed");
        within_a_second("a removal", || !there.exists());
        fs::write(&here, "y").expect("written");
        within_a_second("a creation after the other knew that there is nothing", || there.exists());
        fs::rename(&here, mounts.one.join("moved")).expect("renamed");
        within_a_second("a rename", || !there.exists() && mounts.other.join("moved").exists());
    }
}

fn attributes_are_stale_for_a_second_at_most(mounts: &Mounts) {
    let (here, there) = (mounts.one.join("file"), mounts.other.join("file"));
    fs::write(&here, "x").expect("written");
    for mode in [0o600, 0o777, 0o640] {
        assert!(there.exists());
        fs::set_permissions(&here, fs::Permissions::from_mode(mode)).expect("changed");
        within_a_second("a mode", || fs::metadata(&there).expect("there").mode() & 0o777 == mode);
        OpenOptions::new().append(true).open(&here).expect("opened").write_all(b"12").expect("ok");
        let len = fs::metadata(&here).expect("there").len();
        within_a_second("a length", || fs::metadata(&there).expect("there").len() == len);
    }
}

/// Who has a file open needn't see changes (close-to-open), but after a second and with another
/// open the bytes must be the new ones also through the page cache.
fn an_open_handle_sees_what_was_synced(mounts: &Mounts) {
    let (here, there) = (mounts.one.join("file"), mounts.other.join("file"));
    fs::write(&here, vec![1; 100_000]).expect("written");
    let reader = File::open(&there).expect("opened");
    let mut bytes = vec![0; 100_000];
    reader.read_exact_at(&mut bytes, 0).expect("read");
    let writer = OpenOptions::new().write(true).open(&here).expect("opened");
    writer.write_all_at(&[2; 5000], 40_000).expect("written");
    writer.sync_all().expect("synced");
    drop(writer);
    let again = File::open(&there).expect("opened");
    again.read_exact_at(&mut bytes, 0).expect("read");
    assert!(bytes[40_000..45_000].iter().all(|byte| *byte == 2));
    assert!(bytes[..40_000].iter().chain(&bytes[45_000..]).all(|byte| *byte == 1));
    drop(reader);
}

fn appends_of_both_in_turns(mounts: &Mounts) {
    for round in 0..40 {
        let place = if round % 2 == 0 { &mounts.one } else { &mounts.other };
        let path = place.join("log");
        let mut file = OpenOptions::new().append(true).create(true).open(path).expect("opened");
        file.write_all(format!("round {round}\n").as_bytes()).expect("written");
    }
    let expected: String = (0..40).map(|round| format!("round {round}\n")).collect();
    assert_eq!(fs::read_to_string(mounts.one.join("log")).expect("read"), expected);
    assert_eq!(fs::read_to_string(mounts.other.join("log")).expect("read"), expected);
}

fn locks_by_exclusive_creation(mounts: &Mounts) {
    let counter = mounts.one.join("counter");
    fs::write(&counter, "0").expect("written");
    let work = |place: &Path| {
        for _ in 0..30 {
            wait_for("the lock", Duration::from_secs(60), || {
                File::create_new(place.join("lock")).ok()
            });
            let text = fs::read_to_string(place.join("counter")).expect("read");
            let count: u32 = text.parse().expect("a number");
            fs::write(place.join("counter"), format!("{}", count + 1)).expect("written");
            fs::remove_file(place.join("lock")).expect("removed");
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| work(&mounts.one));
        scope.spawn(|| work(&mounts.other));
    });
    assert_eq!(fs::read_to_string(&counter).expect("read"), "60");
}

fn removed_under_an_open_handle(mounts: &Mounts) {
    let bytes = Random::new(8).bytes(1_000_000);
    fs::write(mounts.one.join("file"), &bytes).expect("written");
    let file = File::open(mounts.other.join("file")).expect("opened");
    fs::remove_file(mounts.one.join("file")).expect("removed");
    let mut found = vec![0; bytes.len()];
    file.read_exact_at(&mut found, 0).expect("still there for who has it open");
    assert!(found == bytes);
}

fn renames_over_each_other(mounts: &Mounts) {
    std::thread::scope(|scope| {
        for (index, place) in [&mounts.one, &mounts.other].into_iter().enumerate() {
            scope.spawn(move || {
                for round in 0..100 {
                    let own = place.join(format!("own-{index}"));
                    fs::write(&own, format!("{index} {round}\n").repeat(1000)).expect("written");
                    fs::rename(&own, place.join("shared")).expect("renamed");
                }
            });
        }
    });
    for place in [&mounts.one, &mounts.other] {
        let text = fs::read_to_string(place.join("shared")).expect("read");
        let first = text.lines().next().expect("not empty");
        assert!(text.lines().count() == 1000 && text.lines().all(|line| line == first));
        let names = fs::read_dir(place).expect("listed").count();
        assert_eq!(names, 1);
    }
}

fn truncated_by_the_other(mounts: &Mounts) {
    for round in 1..20_u64 {
        fs::write(mounts.one.join("file"), vec![7; 1_500_000]).expect("written");
        let len = round * 71_111;
        let file = OpenOptions::new().write(true).open(mounts.other.join("file")).expect("opened");
        file.set_len(len).expect("truncated");
        file.set_len(1_000_000).expect("grown");
        drop(file);
        let bytes = fs::read(mounts.one.join("file")).expect("read");
        assert_eq!(bytes.len(), 1_000_000);
        let cut = (len as usize).min(1_000_000);
        assert!(bytes[..cut].iter().all(|byte| *byte == 7), "round {round}");
        assert!(bytes[cut..].iter().all(|byte| *byte == 0), "round {round}");
    }
}

fn writers_of_different_parts(mounts: &Mounts) {
    const PART: usize = 100_001;
    File::create(mounts.one.join("file")).expect("made");
    std::thread::scope(|scope| {
        for (index, place) in [&mounts.one, &mounts.other].into_iter().enumerate() {
            scope.spawn(move || {
                let file = OpenOptions::new().write(true).open(place.join("file")).expect("opened");
                for part in (index..40).step_by(2) {
                    let bytes = vec![part as u8 + 1; PART];
                    file.write_all_at(&bytes, (part * PART) as u64).expect("written");
                }
                file.sync_all().expect("synced");
            });
        }
    });
    for place in [&mounts.one, &mounts.other] {
        let bytes = fs::read(place.join("file")).expect("read");
        assert_eq!(bytes.len(), 40 * PART);
        for (part, found) in bytes.chunks_exact(PART).enumerate() {
            assert!(found.iter().all(|byte| usize::from(*byte) == part + 1), "part {part}");
        }
    }
}

fn listings_agree(mounts: &Mounts) {
    std::thread::scope(|scope| {
        for (index, place) in [&mounts.one, &mounts.other].into_iter().enumerate() {
            scope.spawn(move || {
                for round in 0..300 {
                    fs::write(place.join(format!("{index}-{round}")), "x").expect("written");
                    if round % 3 == 0 {
                        fs::remove_file(place.join(format!("{index}-{round}"))).expect("removed");
                    }
                }
            });
        }
    });
    let names = |place: &Path| {
        let entries = fs::read_dir(place).expect("listed");
        let mut names: Vec<_> = entries.map(|entry| entry.expect("an entry").file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&mounts.one).len(), 400);
    assert_eq!(names(&mounts.one), names(&mounts.other));
}

fn main() -> ExitCode {
    let mut suite = Suite::from_arguments();
    let place = "uring-and-device";
    if suite.starts(place, &[CASES]) {
        let mut cluster = Cluster::start(Shape::default());
        let second = cluster.mount(Transport::Device);
        for case in CASES {
            let name = case.name.replace("::", "-");
            let mounts =
                Mounts { one: cluster.path().join(&name), other: second.path().join(&name) };
            suite.check("a directory for each test", || {
                fs::create_dir(&mounts.one).expect("a directory");
            });
            suite.run(place, &[&[Case { name: case.name, body: case.body }]], &mounts);
        }
        suite.check("the second mount ends", || second.unmount());
        suite.check("the cluster stops", || cluster.stop());
    }
    suite.end()
}
