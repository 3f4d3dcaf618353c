//! The image that `deploy/container/Containerfile` describes. The linter accepts the file, and
//! `buildah` builds the image without a registry, on a base that `debootstrap` makes. A cluster
//! with a mount runs on the root directory of the image.

use super::text;
use skep_testkit::program::{finish, run};
use skep_testkit::{Scratch, files};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Time limit for a release build, and for the installation of a distribution.
const LONG: Duration = Duration::from_secs(3600);
const DISTRIBUTION: &str = "bookworm";

/// Commands that the test runs on the root directory of the image. `$1` is the entry point.
const COMMANDS: &str = r#"
"$1" --version
cd /srv
"$1" up --detach --no-monitor --mount-point /mnt
seq 1000000 >/tmp/numbers
cp /tmp/numbers /mnt/numbers
cmp /tmp/numbers /mnt/numbers
"$1" entry info /mnt/numbers
"$1" down
"#;

/// Runs `buildah` with images and containers below `top`.
fn buildah(top: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("buildah");
    command.arg("--root").arg(top.join("images")).arg("--runroot").arg(top.join("run"));
    command.args(["--storage-driver", "vfs"]).args(arguments);
    finish(&mut command, LONG).expect_success().trim().to_owned()
}

/// Runs [`COMMANDS`] in a root directory, in separate namespaces. The kernel removes the namespaces
/// when the commands end.
fn run_on(image: &Path, entry: &str) -> String {
    let enter = "cd \"$1\"\n\
        for place in tmp srv; do mount -t tmpfs tmpfs $place; done\n\
        for place in dev sys; do mount --rbind /$place $place; done\n\
        mount -t proc proc proc\n\
        exec chroot . sh -exc \"$2\" sh \"$3\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]);
    command.args(["sh", "-ec", enter, "sh", text(image), COMMANDS, entry]);
    command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    finish(&mut command, LONG).expect_success()
}

pub(crate) fn container_image_is_built_and_runs_a_cluster(_: &()) {
    let recipe = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/container/Containerfile");
    run("hadolint", [&recipe]);

    let scratch = Scratch::new();
    let results = std::env::var_os("SKEP_EXTERNAL_RESULTS").map(PathBuf::from);
    let base = results.unwrap_or_else(|| scratch.directory("results")).join(DISTRIBUTION);
    if !base.join("etc/debian_version").exists() {
        files::create_dir_all(&base);
        let arguments = ["--variant=minbase", DISTRIBUTION, text(&base)];
        finish(Command::new("debootstrap").args(arguments), LONG).expect_success();
    }
    let packages = scratch.directory("packages");
    let mut xtask = Command::new(env!("CARGO"));
    xtask.args(["run", "--package", "xtask", "--", "package", "--forms", "tar", "--program"]);
    xtask.arg(skep_testkit::cluster::program()).arg("--directory").arg(&packages);
    finish(&mut xtask, LONG).expect_success();

    let top = scratch.directory("buildah");
    let file = scratch.directory("base").join("Containerfile");
    files::write(&file, "FROM scratch\nCOPY . /\n");
    let build = ["build", "--isolation", "chroot", "--pull-never", "--tag"];
    buildah(&top, &[&build[..], &["localhost/base", "--file", text(&file), text(&base)]].concat());
    let options = ["localhost/skep", "--build-arg", "BASE=localhost/base", "--file"];
    buildah(&top, &[&build[..], &options[..], &[text(&recipe), text(&packages)]].concat());

    let container = buildah(&top, &["from", "--pull-never", "localhost/skep"]);
    let form = "{{index .OCIv1.Config.Entrypoint 0}}";
    let entry = buildah(&top, &["inspect", "--format", form, &container]);
    let image = buildah(&top, &["mount", &container]);
    let printed = run_on(Path::new(&image), &entry);
    assert!(printed.contains(env!("CARGO_PKG_VERSION")), "{printed}");
    buildah(&top, &["umount", &container]);
    buildah(&top, &["rm", &container]);
    buildah(&top, &["rmi", "--all"]);
}
