//! The files of a package, as a directory tree: the program, links for `mount`, systemd units, the
//! user of the services, manual pages, shell completions and documents.

use super::program::Program;
use crate::repository::{Outcome, output, root, run as call};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The script that runs after the files were installed. The script creates the user of the
/// services. Hosts without systemd have no program that reads `sysusers.d`.
pub(super) const AFTER_INSTALL: &str = "\
id skep >/dev/null 2>&1 || systemd-sysusers skep.conf 2>/dev/null ||
  useradd --system --user-group --no-create-home --shell /usr/sbin/nologin skep
if [ -d /run/systemd/system ]; then systemctl daemon-reload || true; fi
";
/// The script that runs before `dpkg` removes the files. During an upgrade, the script does not
/// stop the services.
pub(super) const BEFORE_REMOVE_DEB: &str = "\
if [ \"$1\" = remove ] && [ -d /run/systemd/system ]; then
  systemctl stop skep.target 'skep-*@*.service' || true
fi
";
/// The script that runs before `rpm` removes the files. During an upgrade, the script does not stop
/// the services.
pub(super) const BEFORE_REMOVE_RPM: &str = "\
if [ \"$1\" = 0 ] && [ -d /run/systemd/system ]; then
  systemctl stop skep.target 'skep-*@*.service' || true
fi
";
/// The script that runs after the files were removed. Settings, tokens, data and the user that owns
/// the data are not removed.
pub(super) const AFTER_REMOVE: &str =
    "if [ -d /run/systemd/system ]; then systemctl daemon-reload || true; fi\n";

/// The supported shells, each with the path of its completion file.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/skep"),
    ("zsh", "usr/share/zsh/site-functions/_skep"),
    ("fish", "usr/share/fish/vendor_completions.d/skep.fish"),
];
/// Names that `mount`, `umount` and systemd use to find the program.
const MOUNT_HELPERS: [&str; 3] = ["mount.skep", "mount.fuse.skep", "umount.fuse.skep"];

/// Directories that belong to the distribution, and not to the package.
const COMMON_DIRECTORIES: [&str; 12] = [
    "/usr",
    "/usr/bin",
    "/usr/sbin",
    "/usr/lib",
    "/usr/lib/systemd",
    "/usr/lib/systemd/system",
    "/usr/lib/sysusers.d",
    "/usr/share",
    "/usr/share/doc",
    "/usr/share/man",
    "/usr/share/man/man1",
    "/usr/share/man/man8",
];

/// The files of a package.
pub(super) struct Tree {
    path: PathBuf,
}

fn named<T>(path: &Path, result: std::io::Result<T>) -> Outcome<T> {
    result.map_err(|error| format!("cannot create or change {}: {error}", path.display()))
}

impl Tree {
    /// Creates an empty tree, adds all files, and sets all file times to `epoch`.
    pub(super) fn create(path: &Path, program: &Program, epoch: &str) -> Outcome<Self> {
        if path.exists() {
            named(path, fs::remove_dir_all(path))?;
        }
        let tree = Self { path: path.to_owned() };
        tree.copy(&program.path, "usr/bin/skep", 0o755)?;
        for name in MOUNT_HELPERS {
            let link = tree.place(&format!("usr/sbin/{name}"))?;
            named(&link, symlink("../bin/skep", &link))?;
        }
        tree.add_generated(program)?;
        let units = root().join("packaging/systemd");
        for entry in named(&units, fs::read_dir(&units))?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let place = match name.ends_with(".mount") {
                // Mount units are only examples that administrators copy.
                true => "usr/share/doc/skep/examples",
                false => "usr/lib/systemd/system",
            };
            tree.copy(&entry.path(), &format!("{place}/{name}"), 0o644)?;
        }
        let user = root().join("packaging/sysusers/skep.conf");
        tree.copy(&user, "usr/lib/sysusers.d/skep.conf", 0o644)?;
        for name in ["README.md", "CHANGELOG.md", "LICENSE"] {
            tree.copy(&root().join(name), &format!("usr/share/doc/skep/{name}"), 0o644)?;
        }
        for part in ["operations", "config", "commands"] {
            tree.add_documents(part)?;
        }
        tree.add_directory("dashboards", "usr/share/skep/dashboards")?;
        tree.add_directory("deploy", "usr/share/skep/deploy")?;
        tree.set_times(epoch)?;
        Ok(tree)
    }

    /// Adds the manual pages and shell completions that the program itself generates.
    fn add_generated(&self, program: &Program) -> Outcome {
        let pages = self.place("usr/share/man/man")?;
        let pages = pages.parent().ok_or("the tree has directories")?;
        program.output(&["man", "--dir", &pages.display().to_string()])?;
        for section in ["man1", "man8"] {
            let section = pages.join(section);
            for entry in named(&section, fs::read_dir(&section))?.flatten() {
                // `-n` omits the file's time from the compressed file.
                call("gzip", &["-9n", &entry.path().display().to_string()], &[])?;
            }
        }
        for (shell, place) in COMPLETIONS {
            let text = program.output(&["completion", shell])?;
            self.write(place, &text, 0o644)?;
        }
        Ok(())
    }

    fn add_documents(&self, part: &str) -> Outcome {
        let from = root().join("docs").join(part);
        for entry in named(&from, fs::read_dir(&from))?.flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|it| it == "md" || it == "toml") {
                let name = entry.file_name().to_string_lossy().into_owned();
                self.copy(&path, &format!("usr/share/doc/skep/{part}/{name}"), 0o644)?;
            }
        }
        Ok(())
    }

    /// Adds the files of a directory in the repository, including its subdirectories.
    fn add_directory(&self, from: &str, place: &str) -> Outcome {
        let directory = root().join(from);
        for entry in named(&directory, fs::read_dir(&directory))?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let (from, place) = (format!("{from}/{name}"), format!("{place}/{name}"));
            match entry.path().is_dir() {
                true => self.add_directory(&from, &place)?,
                false => self.copy(&entry.path(), &place, 0o644)?,
            }
        }
        Ok(())
    }

    /// Returns the path of the tree's top directory.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file of the tree.
    pub(super) fn write(&self, place: &str, text: &str, mode: u32) -> Outcome {
        let path = self.place(place)?;
        named(&path, fs::write(&path, text))?;
        named(&path, fs::set_permissions(&path, fs::Permissions::from_mode(mode)))
    }

    /// Copies a file into the tree.
    pub(super) fn copy(&self, from: &Path, place: &str, mode: u32) -> Outcome {
        let path = self.place(place)?;
        named(from, fs::copy(from, &path))?;
        named(&path, fs::set_permissions(&path, fs::Permissions::from_mode(mode)))
    }

    /// Returns the path of a file in the tree. Creates the directory of the file with mode 0755.
    fn place(&self, place: &str) -> Outcome<PathBuf> {
        let path = self.path.join(place);
        let mut directory = self.path.clone();
        let parent = Path::new(place).parent().ok_or("files are in directories")?;
        named(&directory, fs::create_dir_all(&directory))?;
        for part in parent {
            directory.push(part);
            if !directory.exists() {
                named(&directory, fs::create_dir(&directory))?;
            }
            let mode = fs::Permissions::from_mode(0o755);
            named(&directory, fs::set_permissions(&directory, mode))?;
        }
        Ok(path)
    }

    /// Sets the times of all files and directories. Also sets the modes of all files and
    /// directories, so that the modes do not depend on the umask.
    pub(super) fn set_times(&self, epoch: &str) -> Outcome {
        let time = format!("@{epoch}");
        let mut find = Command::new("find");
        find.arg(&self.path).args([
            "-exec",
            "touch",
            "--no-dereference",
            "--date",
            &time,
            "{}",
            "+",
        ]);
        let status = find.status().map_err(|error| format!("cannot run find: {error}"))?;
        let shown = self.path.display().to_string();
        let pages = self.path.join("usr/share/man");
        let pages = pages.display().to_string();
        call("chmod", &["-R", "a+rX,u+w,go-w", &pages], &[])?;
        named(&self.path, fs::set_permissions(&self.path, fs::Permissions::from_mode(0o755)))?;
        status.success().then_some(()).ok_or(format!("cannot set the times of {shown}"))
    }

    /// Returns the sorted list of files for `rpm`. Omits directories that exist on every host.
    pub(super) fn rpm_files(&self) -> Outcome<String> {
        let shown = self.path.display().to_string();
        let listed = output("find", &[&shown, "-mindepth", "1", "-printf", "%y /%P\n"])?;
        let line = |line: &str| match line.split_once(' ') {
            Some(("d", path)) if COMMON_DIRECTORIES.contains(&path) => None,
            Some(("d", path)) => Some(format!("%dir {path}\n")),
            Some((_, path)) => Some(format!("{path}\n")),
            None => None,
        };
        let mut files: Vec<_> = listed.lines().filter_map(line).collect();
        files.sort();
        Ok(files.concat())
    }

    /// Returns the total length of all files.
    pub(super) fn bytes(&self) -> u64 {
        let shown = self.path.display().to_string();
        let listed = output("find", &[&shown, "-type", "f", "-printf", "%s\n"]).unwrap_or_default();
        listed.lines().filter_map(|line| line.parse::<u64>().ok()).sum()
    }

    /// Removes a directory of the tree.
    pub(super) fn remove_part(&self, name: &str) -> Outcome {
        let path = self.path.join(name);
        named(&path, fs::remove_dir_all(&path))
    }

    /// Removes the tree.
    pub(super) fn remove(self) -> Outcome {
        named(&self.path, fs::remove_dir_all(&self.path))
    }
}
