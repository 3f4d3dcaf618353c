//! Checks that each crate depends only on crates of lower layers.

use super::Problems;
use crate::repository::{Outcome, output, read};
use serde_json::Value;

/// Each crate, and the crates of the workspace that it may depend on, in any kind of dependency.
/// Every crate may depend on `types`, which is in the lowest layer.
#[rustfmt::skip]
const ALLOWED: &[(&str, &[&str])] = &[
    // Lowest layer: pure crates, which use no files, sockets, threads or clocks.
    ("skep-types", &[]),
    ("skep-wire", &[]),
    ("skep-metrics", &[]),
    ("skep-cluster", &[]),
    // Logged transactions store their steps in the format of wire messages.
    ("skep-format", &["skep-wire"]),
    // Runtime, and interfaces that tests can replace by simulated interfaces.
    ("skep-env", &[]),
    ("skep-rpc", &["skep-wire", "skep-metrics", "skep-env"]),
    ("skep-exporter", &["skep-wire", "skep-metrics", "skep-env", "skep-rpc"]),
    // Computes load rates and causes of slowness from messages of services and from the cluster
    // map.
    ("skep-stats", &["skep-wire", "skep-metrics", "skep-cluster"]),
    ("skep-store", &["skep-format", "skep-env"]),
    ("skep-service", &["skep-wire", "skep-metrics", "skep-env", "skep-rpc", "skep-exporter",
        "skep-store", "skep-format"]),
    // A replicated log, which a service uses.
    ("skep-consensus", &["skep-format", "skep-env", "skep-store"]),
    // A service never depends on another service.
    ("skep-management", &["skep-wire", "skep-format", "skep-cluster", "skep-env", "skep-rpc",
        "skep-metrics", "skep-exporter", "skep-store", "skep-service", "skep-consensus"]),
    ("skep-metadata", SERVICE),
    ("skep-storage", SERVICE),
    // Clients, tools and the command line.
    ("skep-client", &["skep-wire", "skep-metrics", "skep-cluster", "skep-env", "skep-rpc"]),
    // The interface of the client's operations uses structs of the wire messages.
    ("skep-fuse", &["skep-wire", "skep-metrics", "skep-env", "skep-exporter", "skep-client"]),
    // Reads the directories of stopped targets. This crate uses only the key-value store of
    // `skep-metadata`.
    ("skep-fsck", &["skep-wire", "skep-format", "skep-store", "skep-metadata"]),
    // This crate measures any mounted file system, so it does not depend on the client.
    ("skep-bench", &["skep-wire", "skep-env", "skep-rpc"]),
    // Labs start the program `skep`, and use none of its libraries.
    ("skep-lab", &["skep-env"]),
    ("skep-study", &["skep-env", "skep-bench", "skep-lab"]),
    // Predicts rates and cost from data files, and sizes disks by the formats of records. This
    // crate does no I/O.
    ("skep-plan", &["skep-format"]),
    // Changes settings of the host. This crate replaces files durably, in the same way as services.
    ("skep-tune", &["skep-store"]),
    // Sends requests to services as a client does, and reads settings as a service does.
    ("skep-monitor", &["skep-wire", "skep-cluster", "skep-env", "skep-rpc", "skep-metrics",
        "skep-exporter", "skep-stats", "skep-service"]),
    // Starts the program `skep` on hosts over ssh, and uses none of its libraries.
    ("skep-deploy", &[]),
    // A client of object stores, without any code about file systems.
    ("skep-s3", &["skep-env"]),
    // `skep copy` works on any mounted file system, so it does not depend on `skep-client`.
    ("skep-copy", &["skep-env", "skep-s3"]),
    ("skep-ctl", &["skep-wire", "skep-format", "skep-cluster", "skep-env", "skep-rpc",
        "skep-store", "skep-service", "skep-management", "skep-metadata", "skep-storage",
        "skep-client", "skep-fuse", "skep-bench", "skep-lab", "skep-study", "skep-metrics",
        "skep-stats", "skep-monitor", "skep-plan", "skep-tune", "skep-deploy",
        "skep-fsck", "skep-copy", "skep-s3"]),
    // Crates that are not shipped to users. The simulation uses only the state of an inode from
    // `skep-client`.
    ("skep-sim", &["skep-wire", "skep-format", "skep-cluster", "skep-env", "skep-metadata",
        "skep-client"]),
    // A model of the protocol, which shares no code with the product.
    ("skep-model", &[]),
    ("skep-testkit", &[]),
    ("xtask", &["skep-wire", "skep-format", "skep-metrics", "skep-fuse"]),
];

const SERVICE: &[&str] = &[
    "skep-wire",
    "skep-format",
    "skep-cluster",
    "skep-env",
    "skep-rpc",
    "skep-metrics",
    "skep-exporter",
    "skep-store",
    "skep-service",
];

/// Checks the dependencies of every crate. The function also checks that each crate uses the
/// workspace's lints, and the workspace's versions of external libraries.
///
/// # Errors
/// Fails if `cargo metadata` fails.
pub(super) fn check() -> Outcome<Problems> {
    let text = output(env!("CARGO"), &["metadata", "--format-version", "1", "--no-deps"])?;
    let metadata: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let packages = metadata["packages"]
        .as_array()
        .ok_or("cannot read the output of cargo metadata: it has no packages")?;
    let workspace = read("Cargo.toml")?;
    let mut problems = Problems::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let uses = package["dependencies"].as_array().map(Vec::as_slice).unwrap_or_default();
        // The tests of every crate may use the test tools. The test tools depend only on `types`.
        let is_test_tool = |it: &&Value| it["kind"] == "dev" && it["name"] == "skep-testkit";
        let uses = uses.iter().filter(|it| !is_test_tool(it));
        let uses = uses.filter_map(|dependency| dependency["name"].as_str());
        problems.extend(check_edges(name, uses));
        let path = package["manifest_path"].as_str().unwrap_or_default();
        problems.extend(check_manifest(name, &read(path)?, &workspace));
    }
    Ok(problems)
}

/// Returns the names of the lints of the workspace.
fn lints(workspace: &str) -> Vec<&str> {
    let sections = workspace.split("\n[").filter(|text| text.starts_with("workspace.lints."));
    let lines = sections.flat_map(str::lines).filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once(" = ")).map(|(name, _)| name).collect()
}

fn check_edges<'a>(name: &str, uses: impl Iterator<Item = &'a str>) -> Problems {
    let Some((_, allowed)) = ALLOWED.iter().find(|(crate_name, _)| *crate_name == name) else {
        return vec![format!("crate {name} is missing in ALLOWED in tidy/layers.rs: add its row")];
    };
    let is_ours =
        |dependency: &&str| ALLOWED.iter().any(|(crate_name, _)| crate_name == dependency);
    uses.filter(is_ours)
        .filter(|dependency| *dependency != "skep-types" && !allowed.contains(dependency))
        .map(|dependency| {
            format!("crate {name} may not use {dependency}: ALLOWED in tidy/layers.rs forbids it")
        })
        .collect()
}

/// Checks the manifest of one crate. `workspace` is the manifest of the workspace.
fn check_manifest(name: &str, manifest: &str, workspace: &str) -> Problems {
    let mut problems = Problems::new();
    if !manifest.replace(' ', "").contains("[lints]\nworkspace=true") {
        // A crate with unsafe code has its own table of lints, because the workspace's lints forbid
        // unsafe code.
        let has = |lint: &str| manifest.lines().any(|line| line.starts_with(&format!("{lint} =")));
        let missing: Vec<_> = lints(workspace).into_iter().filter(|lint| !has(lint)).collect();
        if !missing.is_empty() {
            problems.push(format!(
                "crate {name} lacks lints of the workspace: {missing:?}; add them to its Cargo.toml"
            ));
        }
    }
    let mut section = "";
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line;
        } else if section.contains("dependencies")
            && line.contains('=')
            && !line.contains("workspace = true")
            && !line.starts_with('#')
        {
            problems.push(format!(
                "crate {name}: `{line}` has its own version; write `workspace = true` instead"
            ));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependency_on_a_higher_layer_is_refused() {
        let edges = |name, uses: &[&'static str]| check_edges(name, uses.iter().copied()).len();
        assert_eq!(edges("skep-rpc", &["skep-types", "skep-wire", "serde"]), 0);
        assert_eq!(edges("skep-wire", &["skep-rpc"]), 1);
        assert_eq!(edges("skep-storage", &["skep-metadata"]), 1);
        assert_eq!(edges("skep-unknown", &[]), 1);
    }

    #[test]
    fn layer_table_has_no_cycle() {
        for (index, (_, uses)) in ALLOWED.iter().enumerate() {
            for used in *uses {
                assert!(ALLOWED[..index].iter().any(|(name, _)| name == used), "{used}");
            }
        }
    }

    #[test]
    fn manifest_without_workspace_lints_or_versions_is_refused() {
        let workspace = "[a]\n\n[workspace.lints.rust]\nmissing_docs = \"deny\"\n[b]\nc = \"d\"\n";
        let count = |manifest| check_manifest("x", manifest, workspace).len();
        assert_eq!(
            count("[dependencies]\na = { workspace = true }\n[lints]\nworkspace = true\n"),
            0
        );
        assert_eq!(count("[lints.rust]\nmissing_docs = \"deny\"\nunsafe_code = \"allow\"\n"), 0);
        assert_eq!(count("[dependencies]\nlibc = \"0.2\"\n"), 2);
    }
}
