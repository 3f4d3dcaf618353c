//! `cargo xtask package`: builds the packages of a release: `.deb`, `.rpm` and a tarball.
//!
//! Owns the contents of the packages ([`tree`]) and the calls of `dpkg-deb`, `rpmbuild` and `tar`.
//! All packages have the same files. Equal sources give equal packages: all times are
//! `SOURCE_DATE_EPOCH`, or the time of the last commit.

mod tree;

use crate::repository::{Outcome, output, root, run as call};
use clap::ValueEnum;
use std::fs;
use std::path::{Path, PathBuf};
use tree::Tree;

/// A form of package.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    /// For Debian, Ubuntu and their relatives.
    Deb,
    /// For RHEL, SUSE and their relatives.
    Rpm,
    /// For all others.
    Tar,
}

/// Options of `cargo xtask package`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Package this program, instead of a new release build.
    #[arg(long)]
    program: Option<PathBuf>,
    /// Forms to build.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "deb,rpm,tar")]
    forms: Vec<Form>,
    /// Directory of the packages.
    #[arg(long, default_value = "target/packages")]
    directory: PathBuf,
}

/// The properties that all packages of a release share.
struct Release {
    version: String,
    /// Seconds since 1970 of all files.
    epoch: String,
    /// Oldest version of the GNU C library that the program needs. `None` means that it is static.
    glibc: Option<String>,
    /// Machine architecture in the words of the kernel, such as `x86_64`.
    machine: String,
}

impl Release {
    /// Returns the architecture in the words of Debian.
    fn debian_machine(&self) -> Outcome<&'static str> {
        match self.machine.as_str() {
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
    fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let program = match &options.program {
        Some(program) => std::path::absolute(program).map_err(|error| error.to_string())?,
        None => build()?,
    };
    let release = release(&program)?;
    let tree = Tree::create(&directory.join("tree"), &program, &release.epoch)?;
    for form in &options.forms {
        let path = match form {
            Form::Deb => deb(&tree, &release, &directory)?,
            Form::Rpm => rpm(&tree, &release, &directory)?,
            Form::Tar => tar(&tree, &release, &directory)?,
        };
        println!("{}", path.display());
    }
    tree.remove()
}

/// Builds the program without symbols.
fn build() -> Outcome<PathBuf> {
    let strip = "profile.release.strip=true";
    let arguments = ["build", "--release", "--package", "skep-ctl", "--config", strip];
    // Paths of the build host must not be in the program.
    let remap = format!("--remap-path-prefix={}=/skep", root().display());
    call(env!("CARGO"), &arguments, &[("RUSTFLAGS", &remap)])?;
    Ok(root().join("target/release/skep"))
}

/// Returns the oldest version of the GNU C library that a program needs. `None` means that it is
/// static.
fn oldest_glibc(program: &Path) -> Outcome<Option<String>> {
    let symbols = output("objdump", &["-T", &program.display().to_string()]).unwrap_or_default();
    Ok(newest_glibc_symbol(&symbols))
}

/// Returns the newest version in the symbols that `objdump -T` prints.
fn newest_glibc_symbol(symbols: &str) -> Option<String> {
    let words = symbols.split(|it: char| it.is_whitespace() || it == '(' || it == ')');
    let versions = words.filter_map(|word| word.strip_prefix("GLIBC_"));
    let number = |version: &&str| {
        version.split('.').map(|part| part.parse().unwrap_or(0)).collect::<Vec<u32>>()
    };
    versions.max_by_key(number).map(str::to_owned)
}

fn release(program: &Path) -> Outcome<Release> {
    let head = fs::read(program).map_err(|error| format!("{}: {error}", program.display()))?;
    // Byte 18 of an ELF header is the machine.
    let machine = match head.get(18) {
        Some(0x3e) if head.starts_with(b"\x7fELF") => "x86_64",
        Some(0xb7) if head.starts_with(b"\x7fELF") => "aarch64",
        _ => return Err(format!("{} is not a program for x86_64 or aarch64", program.display())),
    };
    let epoch = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(epoch) => epoch,
        Err(_) => output("git", &["log", "-1", "--format=%ct"])?.trim().to_owned(),
    };
    epoch.parse::<u64>().map_err(|_| format!("SOURCE_DATE_EPOCH: '{epoch}' is not a number"))?;
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let glibc = oldest_glibc(program)?;
    Ok(Release { version, epoch, glibc, machine: machine.to_owned() })
}

/// Builds the package for `dpkg`.
fn deb(tree: &Tree, release: &Release, directory: &Path) -> Outcome<PathBuf> {
    let machine = release.debian_machine()?;
    let path = directory.join(format!("skep_{}_{machine}.deb", release.version));
    let kib = tree.bytes().div_ceil(1024);
    let depends = release.glibc.as_ref().map(|it| format!("Depends: libc6 (>= {it})\n"));
    let control = format!(
        "Package: skep\nVersion: {}\nArchitecture: {machine}\nSection: admin\nPriority: optional\n\
         Maintainer: The Skep authors <skep@localhost>\nInstalled-Size: {kib}\n\
         {}Recommends: fuse3\nSuggests: xfsprogs, openssh-client\n\
         Description: parallel file system\n \
         Servers, mounts and administration of Skep, a parallel file system for\n \
         clusters: many clients, many servers, one POSIX namespace.\n",
        release.version,
        depends.unwrap_or_default()
    );
    tree.write("DEBIAN/control", &control, 0o644)?;
    tree.write("DEBIAN/postinst", &script(tree::AFTER_INSTALL), 0o755)?;
    tree.write("DEBIAN/prerm", &script(tree::BEFORE_REMOVE_DEB), 0o755)?;
    tree.write("DEBIAN/postrm", &script(tree::AFTER_REMOVE), 0o755)?;
    tree.set_times(&release.epoch)?;
    let (from, to) = (tree.path().display().to_string(), path.display().to_string());
    let arguments = ["--root-owner-group", "-Zxz", "--build", &from, &to];
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
    fs::create_dir_all(&work).map_err(|error| format!("{}: {error}", work.display()))?;
    let files = tree.rpm_files()?;
    let requires =
        release.glibc.as_ref().map(|it| format!("Requires: libc.so.6(GLIBC_{it})(64bit)\n"));
    // The program is complete: rpmbuild must not strip it or look for its libraries.
    let spec = format!(
        "%global debug_package %{{nil}}\n%global __os_install_post %{{nil}}\n\
         %global _build_id_links none\n%global use_source_date_epoch_as_buildtime 1\n\
         %global clamp_mtime_to_source_date_epoch 1\n%global _buildhost skep\n\
         Name: skep\nVersion: {}\nRelease: 1\nSummary: Parallel file system\n\
         License: Apache-2.0\nAutoReqProv: no\nRequires: /bin/sh\n{}Recommends: fuse3\n\
         %description\nServers, mounts and administration of Skep, a parallel file system for\n\
         clusters: many clients, many servers, one POSIX namespace.\n\
         %install\ncp -a {}/. %{{buildroot}}/\n\
         %post\n{}%preun\n{}%postun\n{}\
         %files\n%defattr(-,root,root)\n{files}",
        release.version,
        requires.unwrap_or_default(),
        tree.path().display(),
        tree::AFTER_INSTALL,
        tree::BEFORE_REMOVE_RPM,
        tree::AFTER_REMOVE,
    );
    let path = work.join("skep.spec");
    fs::write(&path, spec).map_err(|error| format!("{}: {error}", path.display()))?;
    tree.set_times(&release.epoch)?;
    let (top, out) = (format!("_topdir {}", place("top")), directory.display().to_string());
    let (out, spec) = (format!("_rpmdir {out}"), path.display().to_string());
    let name = "_rpmfilename %{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm";
    let arguments =
        ["-bb", "--quiet", "--target", &release.machine, "--define", &top, "--define", &out];
    let arguments = [&arguments[..], &["--define", name, &spec]].concat();
    call("rpmbuild", &arguments, &[("SOURCE_DATE_EPOCH", &release.epoch)])?;
    fs::remove_dir_all(&work).map_err(|error| format!("{}: {error}", work.display()))?;
    Ok(directory.join(format!("skep-{}-1.{}.rpm", release.version, release.machine)))
}

/// Builds the tarball. Its files are unpacked into the root directory.
fn tar(tree: &Tree, release: &Release, directory: &Path) -> Outcome<PathBuf> {
    let name = format!("skep-{}-{}.tar.gz", release.version, release.machine);
    let path = directory.join(name);
    let (from, to) = (tree.path().display().to_string(), path.display().to_string());
    let time = format!("--mtime=@{}", release.epoch);
    let arguments = ["--create", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"];
    // `-n`: without the name and time of the tarball itself.
    let more = [time.as_str(), "--use-compress-program=gzip -9n", "--file", &to, "-C", &from, "."];
    call("tar", &[&arguments[..], &more].concat(), &[])?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_symbol_sets_the_required_c_library() {
        let symbols =
            "0000 DF *UND* 0 (GLIBC_2.9)  a\n0 DF *UND* 0 (GLIBC_2.34) b\n0 GLIBC_2.5 c\n";
        assert_eq!(newest_glibc_symbol(symbols).as_deref(), Some("2.34"));
        assert_eq!(newest_glibc_symbol("not a dynamic object"), None);
    }
}
