//! Removes secrets from texts before the texts leave the host.
//!
//! The module defines the rules that find secrets. Secrets are the secret of the cluster, join
//! tokens, passwords in addresses, the paths of webhooks, and the values of settings with names
//! such as `password`.

/// The text that replaces a secret.
const REMOVED: &str = "[removed]";
/// Beginning of a join token.
const TOKEN: &str = "skep1-";
/// Words that mark the name of a setting whose value is a secret. If the name also contains `file`,
/// the value is a path and is not removed.
const SECRET_WORDS: [&str; 4] = ["password", "secret", "token", "passwd"];
/// Word that marks the name of a setting whose value is an address with a secret path. A chat
/// server accepts notifications from every sender that has this address.
const WEBHOOK: &str = "webhook";
/// Names of parameters of addresses whose values are secrets. InfluxDB 1 accepts the password as
/// `p`.
const SECRET_PARAMETERS: [&str; 8] =
    ["p", "password", "passwd", "token", "access_token", "secret", "key", "api_key"];

/// Returns the text without secrets. `secret` is the secret of the cluster in hexadecimal digits.
pub(super) fn redacted(text: &str, secret: &str) -> String {
    let mut redacted = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let line = if secret.is_empty() { line.into() } else { line.replace(secret, REMOVED) };
        let line = without_tokens(&line);
        let line = without_passwords(&line);
        let line = without_parameters(&line);
        redacted.push_str(&without_values(&line));
    }
    redacted
}

fn without_tokens(line: &str) -> String {
    let mut parts = line.split(TOKEN);
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '[' || c == ']';
        let end = part.find(|c| !is_part(c)).unwrap_or(part.len());
        text += &format!("{TOKEN}{REMOVED}{}", &part[end..]);
    }
    text
}

/// Removes `user:password` from `scheme://user:password@host`.
fn without_passwords(line: &str) -> String {
    let mut parts = line.split("://");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end =
            part.find(|c: char| c.is_whitespace() || "/\"'".contains(c)).unwrap_or(part.len());
        match part[..end].rfind('@') {
            Some(at) => text += &format!("://{REMOVED}{}", &part[at..]),
            None => text += &format!("://{part}"),
        }
    }
    text
}

/// Applies `change` to each address in a line, without the scheme of the address: to
/// `host/path?a=b` of `http://host/path?a=b`.
fn change_addresses(line: &str, change: impl Fn(&str) -> String) -> String {
    let mut parts = line.split("://");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let is_end = |c: char| c.is_whitespace() || "\"'<>`".contains(c);
        let (address, rest) = part.split_at(part.find(is_end).unwrap_or(part.len()));
        text += &format!("://{}{rest}", change(address));
    }
    text
}

/// Removes the values of parameters such as `token` from addresses.
fn without_parameters(line: &str) -> String {
    let is_secret = |name: &str| SECRET_PARAMETERS.contains(&&*name.to_ascii_lowercase());
    let shown = |pair: &str| match pair.split_once('=') {
        Some((name, _)) if is_secret(name) => format!("{name}={REMOVED}"),
        _ => pair.to_owned(),
    };
    change_addresses(line, |address| match address.split_once('?') {
        Some((place, query)) => {
            let pairs: Vec<String> = query.split('&').map(&shown).collect();
            format!("{place}?{}", pairs.join("&"))
        }
        None => address.to_owned(),
    })
}

/// Removes the paths of addresses.
fn without_paths(line: &str) -> String {
    change_addresses(line, |address| match address.split_once('/') {
        Some((host, _)) => format!("{host}/{REMOVED}"),
        None => address.to_owned(),
    })
}

/// Removes the value of `name = value` if `name` is the name of a secret. If the name is the name
/// of a webhook, removes only the paths of addresses in the value. If the name is the name of a
/// file, as in `password_file`, keeps the value.
fn without_values(line: &str) -> String {
    let Some((name, value)) = line.split_once('=') else { return line.to_owned() };
    let last = name.trim().rsplit(['.', ' ', '"']).next().unwrap_or_default().to_ascii_lowercase();
    if last.contains(WEBHOOK) {
        return format!("{name}={}", without_paths(value));
    }
    let is_secret = SECRET_WORDS.iter().any(|word| last.contains(word)) && !last.contains("file");
    match is_secret && !value.trim().is_empty() {
        true => format!("{name}= {REMOVED}\n"),
        false => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redaction_removes_only_secrets() {
        for (text, expected) in [
            ("joined with skep1-4f1e-00ff@a:1", "joined with skep1-[removed]@a:1"),
            ("key 00ff11, 00ff11\nnext", "key [removed], [removed]\nnext"),
            ("url = \"http://me:pw@host/x\"\n", "url = \"http://[removed]@host/x\"\n"),
            ("influx.password = \"x\"\n", "influx.password = [removed]\n"),
            ("token = 5\n", "token = [removed]\n"),
            ("password_file = \"/etc/x\"\n", "password_file = \"/etc/x\"\n"),
            ("see http://host/a@b and a=b", "see http://host/a@b and a=b"),
            (
                "alerts.webhook = \"https://chat.example/T0/xyz?a=b\" # chat\n",
                "alerts.webhook = \"https://chat.example/[removed]\" # chat\n",
            ),
            ("webhook = \"http://host:9000\"\n", "webhook = \"http://host:9000\"\n"),
            (
                "url = \"http://host:8086/write?db=skep&u=me&P=pw\"\n",
                "url = \"http://host:8086/write?db=skep&u=me&P=[removed]\"\n",
            ),
            ("GET http://h/?db=a&token=t 200\n", "GET http://h/?db=a&token=[removed] 200\n"),
            ("", ""),
        ] {
            assert_eq!(redacted(text, "00ff11"), expected);
        }
    }
}
