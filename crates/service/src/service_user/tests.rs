//! Tests of the change of owners. They run as root, like all tests.

use super::*;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

const OTHER: u32 = 65_534;

fn user() -> ServiceUser {
    ServiceUser { name: "skep".into(), uid: OTHER, gid: OTHER }
}

/// A directory of a target of root, beside a file of the host.
struct Site {
    scratch: tempfile::TempDir,
}

impl Site {
    fn new() -> Self {
        let site = Self { scratch: tempfile::tempdir().unwrap() };
        for (file, text) in [("host", "secret"), ("target/skep-identity", "id"), ("target/a/b", "")]
        {
            std::fs::create_dir_all(site.path(file).parent().unwrap()).unwrap();
            std::fs::write(site.path(file), text).unwrap();
        }
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Returns the user id of the owner of a file, and not of the file to which a link leads.
    fn owner(&self, name: &str) -> u32 {
        std::fs::symlink_metadata(self.path(name)).unwrap().uid()
    }

    fn mode(&self, name: &str) -> u32 {
        std::fs::metadata(self.path(name)).unwrap().mode() & 0o7777
    }

    fn take(&self) -> Result<u64> {
        user().take_directory(&self.path("target"))
    }
}

#[test]
fn user_is_found_by_its_whole_name() {
    let users = "root:x:0:0:root:/root:/bin/sh\nskepper:x:5:5::/:/bin/sh\n\
                 skep:x:997:995:Skep:/:/usr/sbin/nologin\nbad:x:y:1::/:\n";
    let skep = ServiceUser { name: "skep".into(), uid: 997, gid: 995 };
    assert_eq!(user_in(users, "skep"), Some(skep));
    assert_eq!(user_in(users, "ske"), None);
    assert_eq!(user_in(users, "bad"), None);
}

#[test]
fn directory_of_root_is_given_to_the_user_once() {
    let site = Site::new();
    symlink(site.path("host"), site.path("target/link")).unwrap();
    std::fs::create_dir(site.path("target/lost+found")).unwrap();
    assert_eq!(site.take().unwrap(), 5);
    for name in ["target", "target/skep-identity", "target/a", "target/a/b", "target/link"] {
        assert_eq!(site.owner(name), OTHER, "{name}");
    }
    assert_eq!(site.owner("host"), 0, "the link is not followed");
    assert_eq!(site.owner("target/lost+found"), 0);
    assert_eq!(site.take().unwrap(), 0);
    // Files that root creates later at the top are found, too.
    std::fs::write(site.path("target/new"), "").unwrap();
    assert_eq!(site.take().unwrap(), 1);
    assert_eq!(site.owner("target/new"), OTHER);
}

/// After an interruption, the top directory still belongs to root, and finished subdirectories
/// belong to the user.
#[test]
fn interrupted_change_of_the_owner_continues() {
    let site = Site::new();
    for name in ["target/a", "target/a/b"] {
        chown(site.path(name), Some(OTHER), Some(OTHER)).unwrap();
    }
    assert_eq!(site.take().unwrap(), 2);
    assert_eq!((site.owner("target"), site.owner("target/skep-identity")), (OTHER, OTHER));
}

#[test]
fn file_with_a_second_name_outside_is_refused() {
    let site = Site::new();
    std::fs::hard_link(site.path("host"), site.path("target/a/host")).unwrap();
    let error = site.take().unwrap_err();
    assert!(error.context().contains("target/a/host belongs to user 0 and has several"), "{error}");
    assert_eq!(site.owner("host"), 0);
}

#[test]
fn directory_without_an_identity_keeps_its_owner() {
    let site = Site::new();
    std::fs::remove_file(site.path("target/skep-identity")).unwrap();
    assert_eq!(site.take().unwrap(), 0);
    // A link to a file elsewhere is no record of an identity.
    symlink(site.path("host"), site.path("target/skep-identity")).unwrap();
    assert_eq!(site.take().unwrap(), 0);
    assert_eq!(site.owner("target"), 0);
    assert_eq!(user().take_directory(&site.path("missing")).unwrap(), 0);
}

#[test]
fn user_can_read_settings_but_not_change_them() {
    let site = Site::new();
    let (directory, file) = (site.path("etc"), site.path("etc/storage-a.toml"));
    std::fs::create_dir(&directory).unwrap();
    std::fs::write(&file, "").unwrap();
    std::fs::set_permissions(&directory, Permissions::from_mode(0o700)).unwrap();
    std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    user().share_settings(&file).unwrap();
    assert_eq!((site.owner("etc/storage-a.toml"), site.mode("etc/storage-a.toml")), (0, 0o640));
    assert_eq!((site.owner("etc"), site.mode("etc")), (0, 0o710));
    assert_eq!(std::fs::metadata(&file).unwrap().gid(), OTHER);
    chown(&file, Some(OTHER), None).unwrap();
    let error = user().share_settings(&file).unwrap_err();
    assert!(error.context().contains("must not change the settings"), "{error}");
}

#[test]
fn secret_of_root_is_given_to_the_user_alone() {
    let site = Site::new();
    std::fs::set_permissions(site.path("host"), Permissions::from_mode(0o600)).unwrap();
    user().share_secret(&site.path("host")).unwrap();
    assert_eq!((site.owner("host"), site.mode("host")), (OTHER, 0o600));
}

/// The unit of the monitor has a private umask, and its directory may not exist yet.
#[test]
fn missing_directory_is_private_below_directories_for_all() {
    let site = Site::new();
    assert_eq!(user().take_plain_directory(&site.path("lib/skep/monitor")).unwrap(), 1);
    assert_eq!((site.owner("lib/skep/monitor"), site.mode("lib/skep/monitor")), (OTHER, 0o700));
    for above in ["lib", "lib/skep"] {
        assert_eq!((site.owner(above), site.mode(above)), (0, 0o755), "{above}");
    }
}
