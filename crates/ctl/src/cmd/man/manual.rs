//! Manual pages: one for each command, one for each group of commands, and one for the helper
//! `mount.skep`.
//!
//! The pages of services and of the helper are in section 8, all other pages in section 1.

use crate::cmd::mount::option_table;
use crate::help;
use clap::{Arg, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};

/// Commands that run services.
const SERVICES: &[&str] = &["skep-management", "skep-metadata", "skep-storage"];
/// The command whose manual page lists the mount options.
const MOUNT: &str = "skep mount";
/// The title of the manual, at the top of each page.
const MANUAL: &str = "Skep Manual";

/// Returns all manual pages. A page is a pair: the path below the manual directory, such as
/// `man1/skep-up.1`, and the text.
pub(super) fn pages(command: Command) -> Vec<(String, String)> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut pages = vec![page_of_the_helper()];
    add_pages(&command, "skep", &mut pages);
    pages
}

fn add_pages(command: &Command, path: &str, pages: &mut Vec<(String, String)>) {
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        add_pages(sub, &format!("{path} {}", sub.get_name()), pages);
    }
    let name = path.replace(' ', "-");
    let section = if SERVICES.contains(&name.as_str()) { 8 } else { 1 };
    let options = match path {
        MOUNT => option_table::list(),
        _ => Vec::new(),
    };
    let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let examples = examples.strip_prefix(help::TITLE).map(str::to_owned);
    pages.push(page(command.clone(), &name, section, &options, examples));
}

/// Returns the manual page of the helper that mount(8) runs.
pub(crate) fn page_of_the_helper() -> (String, String) {
    let flag = |letter: &'static str, help: &'static str| {
        Arg::new(letter).short(letter.chars().next()).num_args(0).help(help)
    };
    let command = Command::new("mount.skep")
        .version(skep_service::PROGRAM_VERSION)
        .about("Mount a cluster of Skep, for mount(8) and /etc/fstab")
        .long_about(
            "mount.skep is a link to the program skep. mount(8) runs this link for `mount -t skep` \
             and for lines of type skep in /etc/fstab. Under the name mount.fuse.skep, the program \
             serves `mount -o remount`, and under the name umount.fuse.skep, the program serves \
             umount(8), which then waits for the end of the mount's process. mount.skep mounts as \
             skep-mount(1) does, continues in the background, and prints nothing on success. The \
             exit code is 0 on success, 1 for an invalid command line, and 32 if nothing was \
             mounted.",
        )
        .disable_help_flag(true)
        .disable_version_flag(true)
        .arg(Arg::new("CLUSTER").required(true).help(
            "The cluster: its data directory, or the address of its management service (the \
             token is read from token_file, client.toml or /etc/skep/token)",
        ))
        .arg(Arg::new("DIRECTORY").required(true).help("The directory to mount on"))
        .arg(
            Arg::new("OPTIONS")
                .short('o')
                .value_name("OPTIONS")
                .num_args(1)
                .help("Mount options, separated by commas; see MOUNT OPTIONS"),
        )
        .arg(flag("s", "Ignore unknown mount options"))
        .arg(flag("f", "Check the command line only; do not mount"))
        .arg(flag("v", "Print what was done"))
        .arg(flag("n", "Ignored: Skep never writes /etc/mtab"));
    let examples = "  # by hand\n  \
                    mount -t skep 10.0.0.1:7400 /mnt/skep -o token_file=/etc/skep/token\n  \
                    # a line of /etc/fstab\n  \
                    10.0.0.1:7400 /mnt/skep skep _netdev,nofail,retry=80,\
                    token_file=/etc/skep/token 0 0";
    let options = option_table::list();
    page(command, "mount.skep", 8, &options, Some(examples.to_owned()))
}

/// Returns the manual page of a command, and its path below the manual directory.
fn page(
    command: Command,
    name: &str,
    section: u8,
    options: &[(String, &str)],
    examples: Option<String>,
) -> (String, String) {
    let has_subcommands = command.get_subcommands().any(|sub| !sub.is_hide_set());
    let man = Man::new(command)
        .title(name)
        .section(section.to_string())
        .source(format!("Skep {}", skep_service::PROGRAM_VERSION))
        .manual(MANUAL);
    let mut text = Vec::new();
    let rendered = man
        .render_title(&mut text)
        .and_then(|()| man.render_name_section(&mut text))
        .and_then(|()| man.render_synopsis_section(&mut text))
        .and_then(|()| man.render_description_section(&mut text))
        .and_then(|()| man.render_options_section(&mut text))
        .and_then(|()| match has_subcommands {
            true => man.render_subcommands_section(&mut text),
            false => Ok(()),
        });
    rendered.expect("a write to memory cannot fail");
    let mut more = Roff::new();
    if !options.is_empty() {
        more.control("SH", ["MOUNT OPTIONS"]);
        for (option, meaning) in options {
            more.control("TP", []);
            more.text([bold(option.as_str())]);
            more.text([roman(*meaning)]);
        }
    }
    if let Some(examples) = examples {
        more.control("SH", ["EXAMPLES"]);
        // `nf` disables filling, so that roff does not join the lines of the examples.
        more.control("nf", []);
        for line in examples.lines() {
            more.text([Inline::Roman(line.to_owned())]);
        }
        more.control("fi", []);
    }
    let mut text = String::from_utf8_lossy(&text).into_owned() + &more.render();
    for service in SERVICES {
        let named = format!("{}(", service.replace('-', "\\-"));
        text = text.replace(&format!("{named}1)"), &format!("{named}8)"));
    }
    (format!("man{section}/{name}.{section}"), text)
}
