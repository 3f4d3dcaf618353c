//! Ordinary programs on a mount. The results of the programs on the mount must equal their results
//! on the local file system.
//!
//! The tests run on a mount over each transport. The tests need no network, because they create all
//! sources and repositories themselves.

use skep_testkit::files;
use skep_testkit::program::{run, run_in};
use skep_testkit::suite::{Case, Suite};
use skep_testkit::{Cluster, Random, Scratch, Shape, Transport, tree};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The directories of a test: an empty directory on a mount, and an empty directory on the local
/// file system.
struct Places {
    mount: PathBuf,
    local: PathBuf,
}

impl Places {
    /// Runs the same steps in both directories, and then compares the trees.
    fn in_both(&self, work: impl Fn(&Path)) {
        work(&self.local);
        work(&self.mount);
        tree::assert_same(&self.local, &self.mount, false);
    }
}

const CASES: &[Case<Places>] = skep_testkit::cases![programs:
    sources_extracted_by_tar_can_be_built,
    git_clone_on_the_mount_passes_git_fsck,
    rsync_copies_a_tree_in_both_directions,
    cp_copies_a_tree_unchanged,
    find_and_du_report_all_files,
    document_is_complete_while_an_editor_saves_it_by_rename,
    sqlite_results_on_the_mount_equal_local_results,
    tar_archives_the_mount_unchanged,
    shell_scripts_run_from_the_mount,
    compressors_restore_the_same_bytes,
];

/// Writes a C program of many source files, with headers that all source files include, and packs
/// the program into an archive.
fn c_project(directory: &Path) -> PathBuf {
    let project = directory.join("project");
    files::create_dir_all(project.join("include"));
    files::create_dir_all(project.join("src/parts"));
    let mut declarations = String::from("#pragma once\n#include <stdio.h>\n#include <stdlib.h>\n");
    let mut sum = String::from("#include \"all.h\"\nint main(void) { long sum = 0;\n");
    for part in 0..40 {
        declarations.push_str(&format!("long part_{part}(long);\n"));
        sum.push_str(&format!("sum = part_{part}(sum);\n"));
        let mut body = format!("#include \"all.h\"\nlong part_{part}(long x) {{\n");
        for line in 0..200 {
            body.push_str(&format!("    x = x * {} + {line};\n", part + 3));
        }
        body.push_str("    return x;\n}\n");
        files::write(project.join(format!("src/parts/part_{part}.c")), body);
    }
    sum.push_str("printf(\"%ld\\n\", sum); return 0; }\n");
    files::write(project.join("include/all.h"), declarations);
    files::write(project.join("src/main.c"), sum);
    let makefile = "objects = $(patsubst src/%.c,build/%.o,$(wildcard src/*.c src/parts/*.c))\n\
         build/program: $(objects)\n\tgcc -o $@ $^\n\
         build/%.o: src/%.c include/all.h\n\t@mkdir -p $(dir $@)\n\tgcc -O1 -fwrapv -Iinclude -c -o $@ $<\n\
         clean:\n\trm -rf build\n";
    files::write(project.join("Makefile"), makefile);
    run_in(directory, "tar", ["-czf", "project.tar.gz", "project"]);
    directory.join("project.tar.gz")
}

fn sources_extracted_by_tar_can_be_built(places: &Places) {
    let scratch = Scratch::new();
    let archive = c_project(scratch.path());
    places.in_both(|place| {
        run_in(place, "tar", ["-xzf", archive.to_str().expect("ASCII")]);
        let project = place.join("project");
        run_in(&project, "make", ["-j4"]);
        let result = run(project.join("build/program").to_str().expect("ASCII"), [""; 0]);
        files::write(place.join("result"), result);
        // `make` must find no source that is newer than its object file.
        assert!(run_in(&project, "make", [""; 0]).contains("up to date"));
    });
    run_in(&places.mount.join("project"), "make", ["clean"]);
    assert!(!places.mount.join("project/build").exists());
}

fn git_clone_on_the_mount_passes_git_fsck(places: &Places) {
    let origin = places.local.join("origin");
    files::create_dir(&origin);
    let git = |directory: &Path, arguments: &[&str]| {
        let who = ["-c", "user.name=Test", "-c", "user.email=test@example.com"];
        run_in(directory, "git", [&who[..], arguments].concat())
    };
    git(&origin, &["init", "--quiet", "--initial-branch=main"]);
    let mut random = Random::new(1);
    for commit in 0..15 {
        for _ in 0..20 {
            let directory = origin.join(format!("d{}/e{}", random.below(5), random.below(5)));
            files::create_dir_all(&directory);
            let text = format!("{}\n", random.number()).repeat(1 + random.below(400));
            files::write(directory.join(format!("f{}", random.below(8))), text);
        }
        git(&origin, &["add", "--all"]);
        git(&origin, &["commit", "--quiet", "--message", &format!("commit {commit}")]);
    }
    let origin = origin.to_str().expect("ASCII");
    for directory in [&places.local, &places.mount] {
        git(directory, &["clone", "--quiet", "--no-local", origin, "clone"]);
    }
    let clone = places.mount.join("clone");
    git(&clone, &["fsck", "--full", "--strict"]);
    assert_eq!(git(&clone, &["status", "--porcelain"]), "");
    let head = |directory: &Path| git(directory, &["rev-parse", "HEAD"]);
    assert_eq!(head(&clone), head(&places.local.join("clone")));
    for name in ["d0", "d1", "d2", "d3", "d4"] {
        tree::assert_same(&places.local.join("clone").join(name), &clone.join(name), false);
    }
    // Make typical changes in the clone.
    git(&clone, &["checkout", "--quiet", "-b", "branch", "HEAD~7"]);
    files::write(clone.join("new"), "text");
    git(&clone, &["add", "--all"]);
    git(&clone, &["commit", "--quiet", "--message", "on the mount"]);
    git(&clone, &["merge", "--quiet", "--message", "merged", "main"]);
    git(&clone, &["gc", "--quiet", "--prune=now"]);
    git(&clone, &["fsck", "--full", "--strict"]);
    assert_eq!(git(&clone, &["status", "--porcelain"]), "");
}

/// Creates a tree with files of many lengths, hard and symbolic links, and unusual names, modes and
/// times.
fn make_tree(root: &Path) {
    files::create_dir(root);
    let mut random = Random::new(77);
    for index in 0..120 {
        let directory = root.join(format!("d{}/e {}", index % 6, index % 4));
        files::create_dir_all(&directory);
        let len = [0, 1, 4095, 70_000, 1_200_000][random.below(5)];
        let path = directory.join(format!("file \u{e9}{index}"));
        files::write(&path, random.bytes(len));
        let mode = [0o600, 0o755, 0o444, 0o640][random.below(4)];
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
        files::set_permissions(&path, permissions);
        if index % 10 == 0 {
            files::hard_link(&path, root.join(format!("hard-{index}")));
            files::symlink(format!("d0/{index}"), root.join(format!("soft-{index}")));
        }
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000 + index);
        let file = files::open_with(fs::File::options().read(true), &path);
        file.set_modified(time).expect("changed");
    }
}

fn rsync_copies_a_tree_in_both_directions(places: &Places) {
    let (there, back) = (places.mount.join("there"), places.local.join("back"));
    let source = places.local.join("source");
    make_tree(&source);
    let rsync = |from: &Path, to: &Path, more: &[&str]| {
        let (from, to) = (format!("{}/", from.display()), to.display().to_string());
        run("rsync", [&["-aH", "--checksum"][..], more, &[&from, &to]].concat())
    };
    rsync(&source, &there, &[]);
    tree::assert_same(&source, &there, true);
    rsync(&there, &back, &[]);
    tree::assert_same(&source, &back, true);
    // A second run finds no difference.
    let left = rsync(&source, &there, &["--itemize-changes", "--dry-run"]);
    assert_eq!(left, "");
    files::remove_dir_all(source.join("d1"));
    files::write(source.join("d2/new"), "text");
    rsync(&source, &there, &["--delete", "--inplace"]);
    tree::assert_same(&source, &there, true);
}

fn cp_copies_a_tree_unchanged(places: &Places) {
    let source = places.local.join("source");
    make_tree(&source);
    let copy = |from: &Path, to: &Path| {
        let (from, to) = (from.to_str().expect("ASCII"), to.to_str().expect("ASCII"));
        run("cp", ["-a", from, to]);
    };
    copy(&source, &places.mount.join("first"));
    copy(&places.mount.join("first"), &places.mount.join("second"));
    tree::assert_same(&source, &places.mount.join("first"), true);
    tree::assert_same(&source, &places.mount.join("second"), true);
    let (first, second) = (places.mount.join("first"), places.mount.join("second"));
    let words = [first.to_str().expect("ASCII"), second.to_str().expect("ASCII")];
    run("diff", ["--recursive", "--no-dereference", words[0], words[1]]);
    run("mv", [words[0], places.mount.join("moved").to_str().expect("ASCII")]);
    tree::assert_same(&second, &places.mount.join("moved"), true);
    run("rm", ["-r", words[1]]);
    assert!(!second.exists());
}

fn find_and_du_report_all_files(places: &Places) {
    places.in_both(|place| make_tree(&place.join("tree")));
    let same = |program: &str, arguments: &[&str]| {
        let sorted = |place: &Path| {
            let text = run_in(&place.join("tree"), program, arguments);
            let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        assert_eq!(sorted(&places.mount), sorted(&places.local), "{program} {arguments:?}");
    };
    same("find", &["."]);
    same("find", &[".", "-type", "f", "-size", "+100k", "-perm", "640"]);
    same("find", &[".", "-name", "file*", "-links", "2", "-printf", "%p %s %m %n %T@\n"]);
    same("find", &[".", "-type", "l", "-printf", "%p %l\n"]);
    same("find", &[".", "-newermt", "2001-09-09 01:48:00 UTC", "-type", "f"]);
    // Compare only files, because the lengths of directories differ between file systems.
    let files = "find . -type f -links 1 -print0 | du --files0-from=- --bytes";
    same("sh", &["-c", files]);
    same("sh", &["-c", "ls -lR --time-style=full-iso | grep '^-'"]);
    let blocks = run_in(&places.mount.join("tree"), "du", ["-s", "-k", "."]);
    let kilobytes: u64 =
        blocks.split_whitespace().next().and_then(|it| it.parse().ok()).unwrap_or(0);
    let bytes: u64 = tree::take(&places.mount.join("tree"), false)
        .iter()
        .filter(|(path, _)| !path.to_string_lossy().starts_with("hard"))
        .map(|(_, node)| node.len)
        .sum();
    assert!(kilobytes * 1024 >= bytes, "du reports {kilobytes} KiB, the files have {bytes} bytes");
}

/// Saves a document as an editor does: writes and syncs a new file, and renames the new file over
/// the old file. At the same time, a reader reads the document.
fn document_is_complete_while_an_editor_saves_it_by_rename(places: &Places) {
    let path = places.mount.join("document");
    let text = |version: u32| format!("version {version}\n").repeat(2000);
    files::write(&path, text(0));
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut reads = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) || reads == 0 {
                let found = match fs::read_to_string(&path) {
                    Ok(found) => found,
                    // docs/semantics.md 1.4: the document was replaced twice during the open.
                    Err(error) if error.kind() == ErrorKind::StaleNetworkFileHandle => continue,
                    Err(error) => panic!("the document always exists: {error}"),
                };
                let version = found.split_whitespace().nth(1).and_then(|it| it.parse().ok());
                let version: u32 = version.expect("the document is never empty");
                assert!(found == text(version), "the text of a version is complete");
                reads += 1;
            }
        });
        for version in 1..=60 {
            let new = places.mount.join(".document.swp");
            let mut file = files::create_new(&new);
            std::io::Write::write_all(&mut file, text(version).as_bytes()).expect("written");
            files::sync_all(&file);
            drop(file);
            files::hard_link(&path, places.mount.join("document~"));
            files::rename(&new, &path);
            files::remove_file(places.mount.join("document~"));
            if reader.is_finished() {
                break;
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(files::read_to_string(&path), text(60));
    let names: Vec<_> = files::read_dir(&places.mount).collect();
    assert_eq!(names.len(), 1);
}

fn sqlite_results_on_the_mount_equal_local_results(places: &Places) {
    let program = "\
import sqlite3\n\
db = sqlite3.connect('base.db')\n\
db.execute('create table t (id integer primary key, text text)')\n\
for part in range(20):\n\
\x20   with db: db.executemany('insert into t (text) values (?)', [(str(i) * 50,) for i in range(200)])\n\
with db: db.execute('delete from t where id % 3 = 0')\n\
db.execute('vacuum')\n\
assert db.execute('pragma integrity_check').fetchone() == ('ok',)\n\
print(db.execute('select count(*), sum(length(text)) from t').fetchone())\n\
db.close()\n";
    let on_mount = run_in(&places.mount, "python3", ["-c", program]);
    assert_eq!(on_mount, run_in(&places.local, "python3", ["-c", program]));
}

fn tar_archives_the_mount_unchanged(places: &Places) {
    make_tree(&places.mount.join("tree"));
    run_in(&places.mount, "tar", ["-cf", "tree.tar", "tree"]);
    let archive = places.mount.join("tree.tar");
    run_in(&places.local, "tar", ["-xpf", archive.to_str().expect("ASCII")]);
    tree::assert_same(&places.mount.join("tree"), &places.local.join("tree"), true);
}

fn shell_scripts_run_from_the_mount(places: &Places) {
    places.in_both(|place| {
        let script = "set -e\n\
            mkdir -p a/b/c && cd a\n\
            for i in 1 2 3 4 5 6 7 8 9; do echo line $i >> log; echo $i > b/$i; done\n\
            cat b/* | sort -r > b/c/sorted\n\
            ln -s b link && ls link/ > listing\n\
            sed -i s/line/row/ log\n\
            mv b/1 b/2 b/c/ && rm b/3 && rmdir nothing 2>/dev/null || true\n\
            dd if=/dev/zero of=zeros bs=1k count=100 status=none\n\
            truncate -s 50000 zeros && split -b 7000 zeros part-\n\
            chmod -R go-rwx b && printf 'x%.0s' $(seq 1000) > xs\n";
        run_in(place, "sh", ["-c", script]);
    });
}

fn compressors_restore_the_same_bytes(places: &Places) {
    let bytes = Random::new(5).bytes(300_000).repeat(10);
    files::write(places.mount.join("file"), &bytes);
    run_in(&places.mount, "gzip", ["--keep", "file"]);
    run_in(&places.mount, "gzip", ["--test", "file.gz"]);
    files::remove_file(places.mount.join("file"));
    run_in(&places.mount, "gunzip", ["file.gz"]);
    assert!(files::read(places.mount.join("file")) == bytes);
}

fn main() -> ExitCode {
    let mut suite = Suite::from_arguments();
    for transport in Transport::ALL {
        if !suite.starts(transport.name(), &[CASES]) {
            continue;
        }
        let cluster = Cluster::start(Shape { transport, ..Shape::default() });
        for case in CASES {
            let scratch = Scratch::new();
            let name = case.name.replace("::", "-");
            let places =
                Places { mount: cluster.path().join(&name), local: scratch.directory(&name) };
            suite.check("a directory for each test", || {
                files::create_dir(&places.mount);
            });
            suite.run(transport.name(), &[&[Case { name: case.name, body: case.body }]], &places);
        }
        suite.check("the cluster stops", || cluster.stop_checked(&[]));
    }
    suite.end()
}
