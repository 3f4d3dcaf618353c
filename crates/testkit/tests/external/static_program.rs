//! The static programs in the tarballs that `cargo xtask package` builds. The test runs a cluster
//! on an old distribution whose C library is too old for the other packages. The test also runs the
//! ARM program under an emulator.

use super::text;
use skep_testkit::program::{finish, run};
use skep_testkit::{Scratch, files};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Time limit for a release build, and for the installation of a distribution.
const LONG: Duration = Duration::from_secs(3600);
/// Name of the old distribution, Debian 11. The C library of Debian 11 has version 2.31.
const DISTRIBUTION: &str = "bullseye";

/// Commands that the test runs on the old distribution: installation, a cluster with a mount, and
/// removal.
const COMMANDS: &str = r#"
tar -C /tmp -xf /tmp/skep.tar.gz
/tmp/skep-0*/install.sh
ldd --version | head -n 1
skep --version
man=$(ls /usr/local/share/man/man1 | wc -l); [ "$man" -gt 50 ]
cd /srv
skep up --detach --no-monitor --mount-point /mnt
seq 1000000 >/tmp/numbers
cp /tmp/numbers /mnt/numbers
mkdir /mnt/many; (cd /mnt/many; seq 500 | xargs touch)
cmp /tmp/numbers /mnt/numbers
[ "$(ls /mnt/many | wc -l)" = 500 ]
skep entry info /mnt/numbers
skep copy --verify /mnt/numbers /tmp/copy
cmp /tmp/numbers /tmp/copy
skep down
/usr/local/share/skep/install.sh --uninstall
! ls /usr/local/bin/skep /sbin/mount.skep 2>/dev/null
"#;

/// Builds the tarball for a target of the Rust compiler, and returns the path of the tarball.
fn tarball(scratch: &Scratch, target: &str) -> PathBuf {
    let directory = scratch.directory(target);
    let mut xtask = Command::new(env!("CARGO"));
    xtask.args(["run", "--package", "xtask", "--", "package", "--forms", "tar"]);
    finish(xtask.args(["--target", target, "--directory"]).arg(&directory), LONG).expect_success();
    let machine =
        target.split('-').next().expect("the target's name begins with the machine's name");
    directory.join(format!("skep-{}-{machine}.tar.gz", env!("CARGO_PKG_VERSION")))
}

/// Runs [`COMMANDS`] in the root directory of a distribution, in separate namespaces. The kernel
/// removes the namespaces when the commands end.
fn run_on(distribution: &Path, tarball: &Path) -> String {
    let enter = "cd \"$1\"\n\
        for place in tmp srv; do mount -t tmpfs tmpfs $place; done\n\
        cp \"$2\" tmp/skep.tar.gz\n\
        for place in dev sys; do mount --rbind /$place $place; done\n\
        mount -t proc proc proc\n\
        exec chroot . sh -exc \"$3\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]);
    command.args(["sh", "-ec", enter, "sh", text(distribution), text(tarball), COMMANDS]);
    command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    finish(&mut command, LONG).expect_success()
}

pub(crate) fn static_program_needs_no_libraries_of_the_host(_: &()) {
    let scratch = Scratch::new();
    let results = std::env::var_os("SKEP_EXTERNAL_RESULTS").map(PathBuf::from);
    let results = results.unwrap_or_else(|| scratch.directory("results"));
    let distribution = results.join(DISTRIBUTION);
    if !distribution.join("etc/debian_version").exists() {
        files::create_dir_all(&distribution);
        let arguments = ["--variant=minbase", DISTRIBUTION, text(&distribution)];
        finish(Command::new("debootstrap").args(arguments), LONG).expect_success();
    }
    let printed = run_on(&distribution, &tarball(&scratch, "x86_64-unknown-linux-musl"));
    assert!(printed.contains("2.31"), "{printed}");

    let tarball = tarball(&scratch, "aarch64-unknown-linux-musl");
    let unpacked = scratch.directory("arm");
    run("tar", ["-C", text(&unpacked), "--strip-components=1", "-xf", text(&tarball)]);
    let skep = unpacked.join("bin/skep");
    let kind = run("file", [&skep]);
    assert!(kind.contains("aarch64") && kind.contains("static"), "{kind}");
    let emulate = |arguments: &[&str]| {
        run("qemu-aarch64-static", [&[text(&skep)], arguments].concat());
    };
    emulate(&["--version"]);
    let copy = unpacked.join("copy");
    emulate(&["copy", "--verify", text(&unpacked.join("share")), text(&copy)]);
    run("diff", ["-r", text(&unpacked.join("share")), text(&copy)]);
}
