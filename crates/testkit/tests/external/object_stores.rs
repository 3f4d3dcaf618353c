//! `skep copy` from and to a third-party object store: the moto server, over TLS. The object store
//! of the other tests belongs to this project, so that store may have the same errors as the
//! client. moto belongs to another project. Amazon's library boto3 also reads and writes the
//! objects.

use crate::text;
use skep_testkit::object_store::Authority;
use skep_testkit::program::{finish, run};
use skep_testkit::{Cluster, Scratch, Shape, files};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Time limit for one copy.
const PATIENCE: Duration = Duration::from_secs(300);
/// Variables with the credentials. moto accepts all credentials.
const VARIABLES: [(&str, &str); 2] =
    [("AWS_ACCESS_KEY_ID", "public"), ("AWS_SECRET_ACCESS_KEY", "private")];
/// Prints the attributes of an object that Amazon's library reads, and stores another object.
const LIBRARY: &str = r#"
import boto3, sys
s3 = boto3.client("s3", endpoint_url=sys.argv[1], verify=sys.argv[2], region_name="us-east-1")
def show(key):
    head = s3.head_object(Bucket="data", Key=key)
    print(key, head["ContentLength"], head["Metadata"].get("mode"))
if sys.argv[3] == "create":
    s3.create_bucket(Bucket="data")
else:
    show("run/b/f4")
    show("run/a/large")
    s3.put_object(Bucket="data", Key="run/b/by library", Body=b"of another program\n")
    s3.upload_file(sys.argv[4], "data", "run/b/in parts")
"#;

/// A running server of moto. Dropping this value kills the process.
struct Moto {
    child: Child,
    url: String,
    certificate: String,
}

impl Drop for Moto {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Moto {
    fn start(directory: &Path) -> Self {
        let authority = Authority::create(directory);
        let (certificate, key) = authority.issue("IP:127.0.0.1");
        let mut child = Command::new("moto_server")
            .args(["--host", "127.0.0.1", "--port", "0"])
            .args(["--ssl-cert", text(&certificate), "--ssl-key", text(&key)])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("moto_server starts");
        let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let url = lines.by_ref().find_map(|line| {
            let line = line.ok()?;
            let (_, rest) = line.split_once("Running on https://")?;
            Some(format!("https://{}", rest.split_whitespace().next()?))
        });
        // Read the log to its end. Without these reads, the server would wait when the pipe is
        // full.
        std::thread::spawn(move || lines.for_each(drop));
        let url = url.expect("moto_server listens");
        let moto = Self { child, url, certificate: text(&authority.certificate()).to_owned() };
        moto.library(&["create"]);
        moto
    }

    /// Runs a program with Amazon's library, and returns the program's output.
    fn library(&self, arguments: &[&str]) -> String {
        let mut python = Command::new("python3");
        python.args(["-c", LIBRARY, &self.url, &self.certificate]).args(arguments);
        finish(python.envs(VARIABLES), PATIENCE).expect_success()
    }

    fn copy(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(skep_testkit::cluster::program());
        command.args(["copy", "--verify", "--s3-part", "5MiB", "--s3-endpoint", &self.url]);
        command.args(["--s3-ca", &self.certificate]).args(arguments).envs(VARIABLES);
        finish(command.env_remove("AWS_SESSION_TOKEN"), PATIENCE).expect_success()
    }
}

/// Returns a line for each entry with its type, mode, owner, time and link target, and for each
/// file its checksum.
fn listing(top: &str) -> String {
    let script = "cd \"$1\"; find . -printf '%P %y %m %U %G %T@ %l\\n' | sort\n\
        find . -type f -exec sha256sum {} + | sort -k 2";
    run("sh", ["-ec", script, "sh", top])
}

pub(crate) fn tree_is_copied_to_a_third_party_store_and_back(_: &()) {
    let scratch = Scratch::new();
    let moto = Moto::start(&scratch.directory("moto"));
    let cluster = Cluster::start(Shape::small());
    let [source, back] = ["source", "back"].map(|it| cluster.path().join(it));
    let [source, back] = [text(&source), text(&back)];
    // More than 1000 entries make several pages of a listing.
    let fill = "mkdir -p \"$1/a/empty\" \"$1/b\" \"$1/many\"; cd \"$1\"\n\
        for n in $(seq 40); do head -c $((n * 977)) /dev/urandom >b/f$n; done\n\
        (cd many; seq 1100 | xargs touch)\n\
        head -c 23000000 /dev/urandom >a/large; : >a/zero; ln -s ../b/f1 a/link\n\
        printf x >'a/name \" with+signs%41 \u{e4}'\n\
        chown 1234:4321 b/f3; chmod 640 b/f4; chmod 2750 b; touch -d '2001-02-03 04:05:06.7' b/f5 a";
    run("sh", ["-ec", fill, "sh", source]);

    moto.copy(&[source, "s3://data/run"]);
    moto.copy(&["--s3-owners", "s3://data/run", back]);
    assert_eq!(listing(back), listing(source));
    let again = moto.copy(&["--resume", source, "s3://data/run"]);
    assert!(again.contains("Copied 0 files") && again.contains("Left out 1.1k"), "{again}");

    let seen = moto.library(&["show", &format!("{source}/a/large")]);
    assert_eq!(seen, "run/b/f4 3908 33184\nrun/a/large 23000000 33188\n");
    moto.copy(&["--resume", "--s3-owners", "s3://data/run", back]);
    let [library, parts] = ["by library", "in parts"].map(|it| format!("{back}/b/{it}"));
    assert_eq!(files::read_to_string(library), "of another program\n");
    assert!(files::read(parts) == files::read(format!("{source}/a/large")));
    cluster.stop();
}
