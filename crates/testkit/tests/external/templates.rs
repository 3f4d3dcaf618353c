//! Checks the templates in `deploy/` with the programs of Terraform and of the cloud vendors, and
//! evaluates the Terraform templates. Terraform must generate the same user data as CloudFormation.
//! The test `templates` runs CloudFormation's user data.

use skep_testkit::program::{finish, run, run_in};
use skep_testkit::{PATIENCE, Scratch, files};
use std::path::Path;
use std::process::Command;

const TOKEN: &str = "skep1-0123456789abcdef0123456789abcdef-\
    00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// Returns a Terraform root module that uses the module for user data in the same way as the
/// templates for AWS and Azure do. This root module needs no provider, so Terraform downloads
/// nothing.
fn root_module() -> String {
    format!(
        "module \"node\" {{\n  source = \"./terraform/node\"\n  management_address = \"10.75.0.10\"\n  \
         token = \"{TOKEN}\"\n  metadata_servers = 1\n  storage_servers = 8\n  \
         mount_point = \"/sharedscratch\"\n  package_url = \"\"\n  package_sha256 = \"\"\n  \
         features = [\"monitor\"]\n  profiles = []\n}}\n\
         output \"hosts\" {{\n  value = module.node.user_data\n  sensitive = true\n}}\n"
    )
}

pub(crate) fn templates_pass_the_linters_of_their_vendors(_: &()) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let deploy = here.ancestors().nth(2).expect("two directories below the top").join("deploy");
    for name in ["cluster.yaml", "attach.yaml"] {
        run("cfn-lint", [deploy.join("cloudformation").join(name)]);
    }
    let scratch = Scratch::new();
    let copy = scratch.directory("copy");
    run("cp", ["-r", &format!("{}/.", deploy.display()), &copy.display().to_string()]);
    run_in(&copy, "terraform", ["fmt", "-check", "-recursive", "terraform"]);
    files::write(copy.join("main.tf"), root_module());
    run_in(&copy, "terraform", ["init", "-input=false"]);
    run_in(&copy, "terraform", ["validate"]);
    run_in(&copy, "terraform", ["apply", "-auto-approve", "-input=false"]);
    let made = run_in(&copy, "terraform", ["output", "-json", "hosts"]);
    let made: serde_json::Value = serde_json::from_str(&made).expect("JSON");

    let mut render = Command::new("python3");
    render.arg(here.join("tests/templates/render.py"));
    render.arg(deploy.join("cloudformation/cluster.yaml")).arg("10.75.0.10");
    render.args(["Image=i", "KeyName=k", "AccessNetwork=192.0.2.0/24", "Features=monitor"]);
    render.args(["PackageUrl=", "PackageSha256=", &format!("Token={TOKEN}")]);
    let expected = finish(&mut render, PATIENCE).expect_success();
    let expected: serde_json::Value = serde_json::from_str(&expected).expect("JSON");
    let pairs = [
        ("management", "management metadata"),
        ("metadata", "metadata"),
        ("storage", "storage"),
        ("client", "client"),
    ];
    for (key, roles) in pairs {
        let made = made[key].as_str().expect("a text");
        // CloudFormation cannot add numbers, so the script in its user data adds the numbers.
        // `SKEP_DISKS` has no effect on clients.
        let made = made.replace("SKEP_DISKS='none'", "SKEP_DISKS='auto'");
        let expected = expected[roles][0].as_str().expect("a text").replace("'1+0 8'", "'1 8'");
        assert_eq!(made, expected, "{key}");
    }
}
