//! `cargo xtask package`: builds the packages of a release: `.deb`, `.rpm` and a tarball.
//!
//! This module calls `dpkg-deb`, `rpmbuild` and `tar`. Its submodules are responsible for the
//! contents of the packages ([`tree`]), for the program in the packages ([`program`]), and for
//! package repositories for `apt` and `dnf` ([`feed`]). All packages contain the same files, and
//! the tarball also contains an install script. The same sources always give the same packages,
//! because all file times are `SOURCE_DATE_EPOCH` or the time of the last commit.

mod feed;
mod program;
mod tree;

use crate::repository::{Outcome, output, root, run as call};
use clap::ValueEnum;
use feed::Feed;
use program::{Program, Target};
use std::fs;
use std::path::{Path, PathBuf};
use tree::Tree;

/// A package format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    /// For Debian, Ubuntu and their relatives.
    Deb,
    /// For RHEL, SUSE and their relatives.
    Rpm,
    /// For all other distributions.
    Tar,
}

/// Options of `cargo xtask package`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Package this program, instead of a new release build.
    #[arg(long, conflicts_with = "target")]
    program: Option<PathBuf>,
    /// Build a static program for this target. By default, the tarball has a static program, and
    /// the other packages have a program for the C library of this machine.
    #[arg(long, value_enum)]
    target: Option<Target>,
    /// Package formats to build.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "deb,rpm,tar")]
    forms: Vec<Form>,
    /// Directory for the built packages.
    #[arg(long, default_value = "target/packages")]
    directory: PathBuf,
    /// Revision of the packages, which must be higher than in earlier packages of this version.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    revision: u32,
    /// Add the packages to the repository for apt and dnf below this directory.
    #[arg(long)]
    repository: Option<PathBuf>,
    /// Sign the lists of the repository with this key of gpg.
    #[arg(long, value_name = "KEY", requires = "repository")]
    sign: Option<String>,
    /// Compress with the least effort, for tests. The packages are larger than with the usual
    /// compression.
    #[arg(long)]
    fast: bool,
}

/// The properties that all packages of a release have in common.
struct Release<'a> {
    version: &'static str,
    revision: u32,
    /// Modification time of all files, in seconds since 1970.
    epoch: String,
    program: &'a Program,
    /// Whether the packages are compressed with the least effort.
    is_fast: bool,
}

impl Release<'_> {
    /// Returns Debian's name for the architecture.
    fn debian_machine(&self) -> Outcome<&'static str> {
        match self.program.machine {
            "x86_64" => Ok("amd64"),
            "aarch64" => Ok("arm64"),
            other => Err(format!("cannot package a program for {other}")),
        }
    }
}

/// Builds the packages.
///
/// # Errors
/// Fails if the program cannot be built, or if a packaging tool is missing or fails.
pub(crate) fn run(options: &Options) -> Outcome {
    let directory = root().join(&options.directory);
    fs::create_dir_all(&directory)
        .map_err(|error| format!("cannot create {}: {error}", directory.display()))?;
    let mut packages = Vec::new();
    if options.program.is_some() || options.target.is_some() {
        let program = match &options.program {
            Some(path) => {
                Program::open(&std::path::absolute(path).map_err(|error| error.to_string())?)?
            }
            None => Program::build(options.target)?,
        };
        packages.extend(build(&program, &options.forms, options, &directory)?);
    } else {
        let (tarballs, others): (Vec<_>, Vec<_>) =
            options.forms.iter().partition(|it| **it == Form::Tar);
        if !others.is_empty() {
            packages.extend(build(&Program::build(None)?, &others, options, &directory)?);
        }
        if !tarballs.is_empty() {
            let program = Program::build(Some(Target::here()?))?;
            packages.extend(build(&program, &tarballs, options, &directory)?);
        }
    }
    for (_, path) in &packages {
        println!("{}", path.display());
    }
    match &options.repository {
        Some(place) => Feed::new(&root().join(place), options.sign.as_deref()).add(&packages),
        None => Ok(()),
    }
}

/// Builds the packages that contain one program.
fn build(
    program: &Program,
    forms: &[Form],
    options: &Options,
    directory: &Path,
) -> Outcome<Vec<(Form, PathBuf)>> {
    let epoch = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(epoch) => epoch,
        Err(_) => output("git", &["log", "-1", "--format=%ct"])?.trim().to_owned(),
    };
    epoch.parse::<u64>().map_err(|_| {
        format!("invalid SOURCE_DATE_EPOCH '{epoch}': expected a number of seconds since 1970")
    })?;
    let release = Release {
        version: env!("CARGO_PKG_VERSION"),
        revision: options.revision,
        epoch,
        program,
        is_fast: options.fast,
    };
    let tree = Tree::create(&directory.join("tree"), program, &release.epoch)?;
    let mut packages = Vec::new();
    for form in forms {
        let path = match form {
            Form::Deb => deb(&tree, &release, directory)?,
            Form::Rpm => rpm(&tree, &release, directory)?,
            Form::Tar => tar(&tree, &release, directory)?,
        };
        packages.push((*form, path));
    }
    tree.remove()?;
    Ok(packages)
}

/// Builds the package for `dpkg`.
fn deb(tree: &Tree, release: &Release, directory: &Path) -> Outcome<PathBuf> {
    let machine = release.debian_machine()?;
    let version = format!("{}-{}", release.version, release.revision);
    let path = directory.join(format!("skep_{version}_{machine}.deb"));
    let kib = tree.bytes().div_ceil(1024);
    let depends = release.program.glibc.as_ref().map(|it| format!("Depends: libc6 (>= {it})\n"));
    let control = format!(
        "Package: skep\nVersion: {version}\nArchitecture: {machine}\nSection: admin\n\
         Priority: optional\nMaintainer: The Skep authors <skep@localhost>\nInstalled-Size: {kib}\n\
         {}Recommends: fuse3\nSuggests: xfsprogs, openssh-client\n\
         Description: parallel file system\n \
         Servers, mounts and administration of Skep, a parallel file system for\n \
         clusters: many clients, many servers, one POSIX namespace.\n",
        depends.unwrap_or_default()
    );
    tree.write("DEBIAN/control", &control, 0o644)?;
    tree.write("DEBIAN/postinst", &script(tree::AFTER_INSTALL), 0o755)?;
    tree.write("DEBIAN/prerm", &script(tree::BEFORE_REMOVE_DEB), 0o755)?;
    tree.write("DEBIAN/postrm", &script(tree::AFTER_REMOVE), 0o755)?;
    tree.set_times(&release.epoch)?;
    let (from, to) = (tree.path().display().to_string(), path.display().to_string());
    let level = if release.is_fast { "-z1" } else { "-z6" };
    let arguments = ["--root-owner-group", "-Zxz", level, "--build", &from, &to];
    call("dpkg-deb", &arguments, &[("SOURCE_DATE_EPOCH", &release.epoch)])?;
    tree.remove_part("DEBIAN")?;
    Ok(path)
}

fn script(body: &str) -> String {
    format!("#!/bin/sh\nset -e\n{body}")
}

/// Builds the package for `rpm`.
fn rpm(tree: &Tree, release: &Release, directory: &Path) -> Outcome<PathBuf> {
    let work = directory.join("rpmbuild");
    let place = |name: &str| work.join(name).display().to_string();
    fs::create_dir_all(&work)
        .map_err(|error| format!("cannot create {}: {error}", work.display()))?;
    let files = tree.rpm_files()?;
    let requires = release
        .program
        .glibc
        .as_ref()
        .map(|it| format!("Requires: libc.so.6(GLIBC_{it})(64bit)\n"));
    // rpmbuild must neither strip the program nor search for its libraries, because the program is
    // already stripped and its required C library is known.
    let spec = format!(
        "%global debug_package %{{nil}}\n%global __os_install_post %{{nil}}\n\
         %global _build_id_links none\n%global use_source_date_epoch_as_buildtime 1\n\
         %global clamp_mtime_to_source_date_epoch 1\n%global _buildhost skep\n\
         Name: skep\nVersion: {}\nRelease: {}\nSummary: Parallel file system\n\
         License: Apache-2.0\nAutoReqProv: no\nRequires: /bin/sh\n{}Recommends: fuse3\n\
         %description\nServers, mounts and administration of Skep, a parallel file system for\n\
         clusters: many clients, many servers, one POSIX namespace.\n\
         %install\ncp -a {}/. %{{buildroot}}/\n\
         %post\n{}%preun\n{}%postun\n{}\
         %files\n%defattr(-,root,root)\n{files}",
        release.version,
        release.revision,
        requires.unwrap_or_default(),
        tree.path().display(),
        tree::AFTER_INSTALL,
        tree::BEFORE_REMOVE_RPM,
        tree::AFTER_REMOVE,
    );
    let path = work.join("skep.spec");
    fs::write(&path, spec).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    tree.set_times(&release.epoch)?;
    let (top, out) = (format!("_topdir {}", place("top")), directory.display().to_string());
    let (out, spec) = (format!("_rpmdir {out}"), path.display().to_string());
    let name = "_rpmfilename %{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm";
    let arguments =
        ["-bb", "--quiet", "--target", release.program.machine, "--define", &top, "--define", &out];
    let fast: &[&str] =
        if release.is_fast { &["--define", "_binary_payload w1.gzdio"] } else { &[] };
    let arguments = [&arguments[..], fast, &["--define", name, &spec]].concat();
    call("rpmbuild", &arguments, &[("SOURCE_DATE_EPOCH", &release.epoch)])?;
    fs::remove_dir_all(&work)
        .map_err(|error| format!("cannot remove {}: {error}", work.display()))?;
    let (version, revision) = (release.version, release.revision);
    Ok(directory.join(format!("skep-{version}-{revision}.{}.rpm", release.program.machine)))
}

/// Builds the tarball. The tarball contains a directory with the files below `/usr`, and the
/// install script.
fn tar(tree: &Tree, release: &Release, directory: &Path) -> Outcome<PathBuf> {
    let name = format!("skep-{}-{}", release.version, release.program.machine);
    let path = directory.join(format!("{name}.tar.gz"));
    tree.copy(&root().join("packaging/tarball/install.sh"), "usr/install.sh", 0o755)?;
    tree.set_times(&release.epoch)?;
    let (from, to) = (tree.path().display().to_string(), path.display().to_string());
    let (time, rename) = (format!("--mtime=@{}", release.epoch), format!("s,^usr,{name},"));
    let arguments = ["--create", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"];
    // `-n` omits the name and time from the compressed tarball. The tarball omits the links in
    // `usr/sbin`, because the install script creates these links.
    let gzip = if release.is_fast { "gzip -1n" } else { "gzip -9n" };
    let gzip = format!("--use-compress-program={gzip}");
    let more = [time.as_str(), &gzip, "--exclude=usr/sbin", "--transform"];
    let last = [&rename, "--file", &to, "-C", &from, "usr"];
    call("tar", &[&arguments[..], &more, &last].concat(), &[])?;
    fs::remove_file(tree.path().join("usr/install.sh")).map_err(|error| error.to_string())?;
    Ok(path)
}
