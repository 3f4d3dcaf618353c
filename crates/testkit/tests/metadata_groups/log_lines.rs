//! The log lines of a take-over. Administrators read these lines. So the lines name nodes, targets
//! and groups as the commands do, and only lines about a degraded cluster are warnings.

use crate::pair::{METADATA, MOUNTS, Pair};
use skep_testkit::files;

/// Words of the protocol and the sources that no page for administrators explains.
const INTERNAL: [&str; 12] = [
    "StaleMap",
    "Deposed",
    "Disconnected",
    "NotReady",
    "MarkInSync",
    "TakeOver",
    "HandOver",
    "epoch",
    "session c",
    "incarnation",
    "keep_alive",
    "map v",
];

fn lines(pair: &Pair, name: &str) -> Vec<String> {
    let log = files::read_to_string(pair.scratch.join(&format!("{name}.log")));
    log.lines().map(str::to_owned).collect()
}

#[test]
fn take_over_log_lines_use_the_terms_of_the_commands() {
    let mut pair = Pair::begin();
    let (primary, backup) = pair.roles();
    files::write(pair.mount_point().join("before"), "x");
    pair.kill(primary);
    pair.wait_for_primary(backup);
    files::write(pair.mount_point().join("during"), "x");
    pair.start_service("metadata", primary);
    pair.wait_for_serving(2);
    files::write(pair.mount_point().join("after"), "x");

    let names = ["management", METADATA[0], METADATA[1], "storage", MOUNTS[0], MOUNTS[1]];
    for name in names {
        for line in lines(&pair, name) {
            let word = INTERNAL.iter().find(|word| line.contains(*word));
            assert_eq!(word, None, "{name}: {line}");
        }
    }
    let of_management = lines(&pair, "management");
    let with = |words: &str| of_management.iter().find(|line| line.contains(words));
    let taken = with(" continues with target t").expect("management logs the take-over");
    assert!(taken.contains("WARN metadata group g"), "{taken}");
    assert!(taken.contains(&format!("({backup}) as its primary")), "{taken}");
    assert!(taken.contains(&format!("({primary}) does not answer")), "{taken}");
    let back = with(" is a serving member").expect("management logs the return");
    assert!(back.contains("INFO target t") && back.contains(primary), "{back}");
    // Management logs exactly one warning about the take-over. All other warnings are about
    // requests that waited, or about missing heartbeats.
    let expected = [" continues with target t", " took ", "has sent no heartbeat", " is offline, "];
    for name in names {
        let is_loud = |line: &&String| line.contains(" WARN ") || line.contains(" ERROR ");
        for line in lines(&pair, name).iter().filter(is_loud) {
            assert!(expected.iter().any(|it| line.contains(it)), "{name}: {line}");
        }
    }
}
