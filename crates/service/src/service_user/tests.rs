//! Tests of the change of owners. These tests run as root, like all tests of Skep.

use super::*;
use std::os::unix::fs::symlink;

const OTHER: u32 = 65_534;

fn user() -> ServiceUser {
    ServiceUser { name: "skep".into(), uid: OTHER, gid: OTHER }
}

/// A target's directory that belongs to root, and a file of the host next to the directory.
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
        // Set the modes explicitly, because the test may run with any umask.
        for name in ["target", "target/a"] {
            std::fs::set_permissions(site.path(name), Permissions::from_mode(0o755)).unwrap();
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
fn second_change_of_owners_affects_only_new_files() {
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
    // A further change also finds files that root creates at the top after the first change.
    std::fs::write(site.path("target/new"), "").unwrap();
    assert_eq!(site.take().unwrap(), 1);
    assert_eq!(site.owner("target/new"), OTHER);
}

/// After an interruption, the top directory still belongs to root, and finished subdirectories
/// belong to the user.
#[test]
fn next_call_completes_an_interrupted_change_of_owners() {
    let site = Site::new();
    for name in ["target/a", "target/a/b"] {
        chown(site.path(name), Some(OTHER), Some(OTHER)).unwrap();
    }
    assert_eq!(site.take().unwrap(), 2);
    assert_eq!((site.owner("target"), site.owner("target/skep-identity")), (OTHER, OTHER));
}

#[test]
fn file_with_a_hard_link_outside_the_target_is_refused() {
    let site = Site::new();
    std::fs::hard_link(site.path("host"), site.path("target/a/host")).unwrap();
    let error = site.take().unwrap_err();
    assert!(error.context().contains("target/a/host (user 0) has several hard links"), "{error}");
    assert_eq!(site.owner("host"), 0);
}

#[test]
fn directory_without_an_identity_keeps_its_owner() {
    let site = Site::new();
    std::fs::remove_file(site.path("target/skep-identity")).unwrap();
    assert_eq!(site.take().unwrap(), 0);
    // A link to a file in another directory does not count as a record of an identity.
    symlink(site.path("host"), site.path("target/skep-identity")).unwrap();
    assert_eq!(site.take().unwrap(), 0);
    assert_eq!(site.owner("target"), 0);
    assert_eq!(user().take_directory(&site.path("missing")).unwrap(), 0);
}

#[test]
fn user_can_read_settings_but_not_change_them() {
    let site = Site::new();
    let (directory, file) = (site.path("skep"), site.path("skep/storage-a.toml"));
    std::fs::create_dir(&directory).unwrap();
    std::fs::write(&file, "").unwrap();
    std::fs::set_permissions(&directory, Permissions::from_mode(0o770)).unwrap();
    std::fs::set_permissions(&file, Permissions::from_mode(0o660)).unwrap();
    user().share_settings(&file).unwrap();
    assert_eq!((site.owner("skep/storage-a.toml"), site.mode("skep/storage-a.toml")), (0, 0o640));
    assert_eq!((site.owner("skep"), site.mode("skep")), (0, 0o710));
    assert_eq!(std::fs::metadata(&file).unwrap().gid(), OTHER);
    user().share_settings(&file).unwrap();
    chown(&file, Some(OTHER), None).unwrap();
    let error = user().share_settings(&file).unwrap_err();
    assert!(error.context().contains("must not change the settings"), "{error}");
    chown(&file, Some(0), None).unwrap();
    std::fs::set_permissions(&directory, Permissions::from_mode(0o770)).unwrap();
    let error = user().share_settings(&file).unwrap_err();
    assert!(error.context().contains("could replace"), "{error}");
}

/// The settings may be in the home of root, so the mode of this directory must not change.
#[test]
fn settings_directory_other_than_etc_skep_keeps_its_mode() {
    let site = Site::new();
    let (directory, file) = (site.path("home"), site.path("home/storage-a.toml"));
    std::fs::create_dir(&directory).unwrap();
    std::fs::write(&file, "").unwrap();
    std::fs::set_permissions(&directory, Permissions::from_mode(0o700)).unwrap();
    user().share_settings(&file).unwrap();
    assert_eq!(site.mode("home"), 0o700);
    assert_eq!(std::fs::metadata(&directory).unwrap().gid(), 0);
}

#[test]
fn secret_of_root_becomes_readable_only_by_the_user() {
    let site = Site::new();
    std::fs::set_permissions(site.path("host"), Permissions::from_mode(0o600)).unwrap();
    user().share_secret(&site.path("host")).unwrap();
    assert_eq!((site.owner("host"), site.mode("host")), (OTHER, 0o600));
}

/// The unit of the monitor has a private umask, and its directory may not exist yet.
#[test]
fn missing_directory_is_created_private_and_parents_public() {
    let site = Site::new();
    assert_eq!(user().take_plain_directory(&site.path("lib/skep/monitor"), &[]).unwrap(), 1);
    assert_eq!((site.owner("lib/skep/monitor"), site.mode("lib/skep/monitor")), (OTHER, 0o700));
    for above in ["lib", "lib/skep"] {
        assert_eq!((site.owner(above), site.mode(above)), (0, 0o755), "{above}");
    }
}

/// The user has replaced a secret in its own directory by a link to a file of the host.
#[test]
fn path_that_the_user_can_redirect_by_a_symlink_is_refused() {
    let site = Site::new();
    std::fs::set_permissions(site.path("host"), Permissions::from_mode(0o600)).unwrap();
    std::fs::create_dir(site.path("own")).unwrap();
    chown(site.path("own"), Some(OTHER), Some(OTHER)).unwrap();
    symlink(site.path("host"), site.path("own/token")).unwrap();
    symlink(site.path("target"), site.path("own/monitor")).unwrap();
    // A link of root leads into the directory of the user.
    symlink(site.path("own/token"), site.path("token")).unwrap();
    for secret in ["own/token", "token"] {
        let error = user().share_secret(&site.path(secret)).unwrap_err();
        assert!(error.context().contains("could replace"), "{error}");
    }
    assert_eq!(site.owner("host"), 0);
    user().take_plain_directory(&site.path("own/monitor"), &["a"]).unwrap_err();
    user().take_directory(&site.path("own/monitor")).unwrap_err();
    assert_eq!(site.owner("target"), 0);
    user().take_directory(&site.path("target")).unwrap();
}

/// The user has put a record of a service into a directory such as `/tmp`.
#[test]
fn directory_that_other_users_can_change_keeps_its_owner() {
    let site = Site::new();
    std::fs::set_permissions(site.path("target"), Permissions::from_mode(0o1777)).unwrap();
    let error = site.take().unwrap_err();
    assert!(error.context().contains("another user than root can change"), "{error}");
    assert_eq!((site.owner("target"), site.owner("target/a/b")), (0, 0));
}

/// The user can mount directories of the host in the user's own mount namespace.
#[test]
fn path_through_a_link_of_proc_is_refused() {
    let site = Site::new();
    let path = site.path("target");
    let through_proc = Path::new("/proc/self/root").join(path.strip_prefix("/").unwrap());
    assert!(through_proc.join(IDENTITY_FILE).exists());
    user().take_directory(&through_proc).unwrap_err();
    assert_eq!(site.owner("target"), 0);
}

#[test]
fn target_list_that_the_user_can_change_is_not_trusted() {
    let site = Site::new();
    let list = site.path("node/added-targets");
    std::fs::create_dir(site.path("node")).unwrap();
    std::fs::write(&list, "/disk1/a\n/disk2/b\n").unwrap();
    for (path, mode) in [(site.path("node"), 0o755), (list.clone(), 0o644)] {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    let read = || user().added_targets(&site.path("node"));
    let paths = ["/disk1/a", "/disk2/b"].map(PathBuf::from).to_vec();
    assert_eq!(read().unwrap(), (paths.clone(), true));
    chown(site.path("node"), Some(OTHER), Some(OTHER)).unwrap();
    assert_eq!(read().unwrap(), (paths, false));
    std::fs::remove_file(&list).unwrap();
    symlink("/dev/zero", &list).unwrap();
    read().unwrap_err();
    assert_eq!(user().take_own_directory(&site.path("target")).unwrap(), 0);
    assert_eq!(site.owner("target"), 0);
    chown(site.path("target"), Some(OTHER), Some(OTHER)).unwrap();
    assert_ne!(user().take_own_directory(&site.path("target")).unwrap(), 0);
    assert_eq!(site.owner("target/a/b"), OTHER);
}

/// Root has run the service or a repair by hand after the user became the owner of the directory.
#[test]
fn owners_below_the_top_change_after_root_used_the_directory() {
    let site = Site::new();
    let lock = site.path("target/skep-lock");
    std::fs::write(&lock, "").unwrap();
    site.take().unwrap();
    std::fs::write(site.path("target/a/new"), "").unwrap();
    assert_eq!(site.take().unwrap(), 0, "only the top is read");
    chown(&lock, None, Some(0)).unwrap();
    assert_eq!(site.take().unwrap(), 2);
    assert_eq!(site.owner("target/a/new"), OTHER);
    assert_eq!(std::fs::metadata(&lock).unwrap().gid(), OTHER);
    assert_eq!(site.take().unwrap(), 0);
}

#[test]
fn directory_that_a_process_of_root_serves_is_refused() {
    let site = Site::new();
    let lock = std::fs::File::create(site.path("target/skep-lock")).unwrap();
    lock.lock().unwrap();
    let error = site.take().unwrap_err();
    assert!(error.context().contains("stop the service"), "{error}");
    assert_eq!(site.owner("target/a/b"), 0);
}

/// The settings of a monitor name a directory of the host by mistake.
#[test]
fn plain_directory_with_other_files_keeps_its_owner() {
    let site = Site::new();
    let take = |known: &[&str]| user().take_plain_directory(&site.path("target"), known);
    let error = take(&["history", "lock"]).unwrap_err();
    assert!(error.context().contains("no 'history'"), "{error}");
    assert_eq!((site.owner("target"), site.owner("target/a")), (0, 0));
    assert_eq!(take(&["a", "lock"]).unwrap(), 4);
    assert_eq!(site.owner("target/a/b"), OTHER);
}
