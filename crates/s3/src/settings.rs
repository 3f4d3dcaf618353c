//! Endpoint, region and certificates of an object store. The settings come from options and from
//! the environment.

use crate::location::Location;
use crate::profiles::Profiles;
use crate::text::escape;
use skep_types::{Error, ErrorCode, Result};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The region of requests if no option or setting names a region.
pub(crate) const DEFAULT_REGION: &str = "us-east-1";

/// Where URLs contain the name of the bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// The name is in the path, as in `https://endpoint/bucket/key`.
    Path,
    /// The name is in the host name, as in `https://bucket.endpoint/key`.
    Host,
}

/// Options of an object store. `None` means that the environment decides.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// URL of the service, without a path.
    pub endpoint: Option<String>,
    /// Name of the region.
    pub region: Option<String>,
    /// Where URLs contain the name of the bucket.
    pub style: Option<Style>,
    /// File with the certificates of trusted authorities. The client uses these certificates
    /// instead of the certificates of the system.
    pub ca: Option<PathBuf>,
    /// Profile in the configuration files of the AWS CLI (`~/.aws/config`, `~/.aws/credentials`).
    pub profile: Option<String>,
    /// Whether requests are sent without a signature.
    pub is_anonymous: bool,
}

/// The environment variables of the process. These variables also name the configuration files of
/// the AWS CLI.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    variables: BTreeMap<String, String>,
}

impl Environment {
    /// Reads the environment variables of this process that the AWS CLI uses, and `HOME`.
    pub fn of_process() -> Self {
        let is_used = |name: &String| name.starts_with("AWS_") || name == "HOME";
        let variables = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        Self { variables: variables.filter(|(name, _)| is_used(name)).collect() }
    }

    /// Creates an environment with these variables, for tests.
    pub fn of(variables: &[(&str, &str)]) -> Self {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Self { variables: variables.iter().map(own).collect() }
    }

    /// Returns the value of a variable. `None` if the variable is missing or empty.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str).filter(|it| !it.is_empty())
    }

    /// Returns the name of the profile, and whether the user has named it.
    pub(crate) fn profile(&self, settings: &Settings) -> (String, bool) {
        match settings.profile.as_deref().or(self.get("AWS_PROFILE")) {
            Some(name) => (name.to_owned(), true),
            None => ("default".to_owned(), false),
        }
    }

    /// Reads a configuration file of the AWS CLI. If the file does not exist, returns an empty
    /// file. The path of the file is the value of the environment variable `variable`, or if this
    /// variable is not set, `.aws/NAME` in the home directory.
    pub(crate) fn file(&self, variable: &str, name: &str) -> Result<Profiles> {
        let path = match (self.get(variable), self.get("HOME")) {
            (Some(path), _) => PathBuf::from(path),
            (None, Some(home)) => PathBuf::from(home).join(".aws").join(name),
            (None, None) => return Ok(Profiles::default()),
        };
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok(Profiles::parse(&text)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Profiles::default()),
            Err(error) => Err(Error::from(error).within(format!("cannot read {}", path.display()))),
        }
    }

    /// Returns a copy of `settings`. A missing endpoint, region or certificate file is replaced by
    /// the value in an environment variable or in the profile.
    ///
    /// # Errors
    /// Returns the error of a file that cannot be read.
    pub fn complete(&self, settings: &Settings) -> Result<Settings> {
        let (profile, _) = self.profile(settings);
        let config = self.file("AWS_CONFIG_FILE", "config")?;
        let variable = |names: &[&str]| names.iter().find_map(|it| self.get(it)).map(str::to_owned);
        let in_profile = |name: &str| config.get(&profile, name).map(str::to_owned);
        let or = |own: &Option<String>, names: &[&str], name: &str| {
            own.clone().or_else(|| variable(names)).or_else(|| in_profile(name))
        };
        let ca = settings.ca.clone();
        Ok(Settings {
            endpoint: or(
                &settings.endpoint,
                &["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"],
                "endpoint_url",
            ),
            region: or(&settings.region, &["AWS_REGION", "AWS_DEFAULT_REGION"], "region"),
            ca: ca.or_else(|| or(&None, &["AWS_CA_BUNDLE"], "ca_bundle").map(PathBuf::from)),
            ..settings.clone()
        })
    }
}

/// Forms the URLs of one bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// `http` or `https`.
    pub(crate) scheme: String,
    /// Host and port, in the form of the header `host`.
    pub(crate) authority: String,
    /// The part of the path before a key: `/` or `/bucket/`.
    base: String,
}

impl Endpoint {
    /// Returns the endpoint that forms the URLs of a bucket.
    ///
    /// # Errors
    /// Returns `InvalidArgument` if the endpoint is not a URL that consists of a scheme and a host.
    pub(crate) fn new(settings: &Settings, region: &str, location: &Location) -> Result<Self> {
        let bucket = &location.bucket;
        let (scheme, authority, usual) = match &settings.endpoint {
            Some(url) => {
                let (scheme, authority) = split(url)?;
                (scheme, authority, Style::Path)
            }
            None => {
                let suffix = if region.starts_with("cn-") { ".cn" } else { "" };
                // The certificate of the service covers names with one label before its domain. A
                // bucket name with dots would have several labels, and a name with an underscore is
                // no valid host name, so such buckets are named in the path.
                let style = if bucket.contains(['.', '_']) { Style::Path } else { Style::Host };
                ("https".to_owned(), format!("s3.{region}.amazonaws.com{suffix}"), style)
            }
        };
        Ok(match settings.style.unwrap_or(usual) {
            Style::Path => {
                let base = format!("/{}/", escape(bucket, false));
                Self { scheme, authority, base }
            }
            Style::Host => {
                Self { scheme, authority: format!("{bucket}.{authority}"), base: "/".to_owned() }
            }
        })
    }

    /// Returns the escaped path of an object. Without a key, returns the path of the bucket.
    pub(crate) fn path(&self, key: Option<&str>) -> String {
        match key {
            Some(key) => format!("{}{}", self.base, escape(key, true)),
            None if self.base == "/" => self.base.clone(),
            None => self.base.trim_end_matches('/').to_owned(),
        }
    }

    /// Whether the connection uses TLS.
    pub(crate) fn is_secure(&self) -> bool {
        self.scheme == "https"
    }
}

/// Splits a URL into its scheme, and its host with the port.
fn split(url: &str) -> Result<(String, String)> {
    let invalid = || {
        let what = format!(
            "invalid endpoint '{url}': expected http:// or https:// with a host and perhaps a port, \
             as in https://s3.example.org:9000"
        );
        Error::new(ErrorCode::InvalidArgument, what)
    };
    let (scheme, rest) = url.split_once("://").ok_or_else(invalid)?;
    let scheme = scheme.to_ascii_lowercase();
    let default_port = match scheme.as_str() {
        "http" => ":80",
        "https" => ":443",
        _ => return Err(invalid()),
    };
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    let is_allowed = |it: u8| it.is_ascii_alphanumeric() || b".-_:[]".contains(&it);
    if authority.is_empty() || !authority.bytes().all(is_allowed) {
        return Err(invalid());
    }
    let authority = authority.strip_suffix(default_port).unwrap_or(authority);
    Ok((scheme, authority.to_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(settings: &Settings, bucket: &str, key: &str) -> Result<String> {
        let location = Location { bucket: bucket.into(), key: String::new() };
        let region = settings.region.as_deref().unwrap_or(DEFAULT_REGION);
        let endpoint = Endpoint::new(settings, region, &location)?;
        Ok(format!("{}://{}{}", endpoint.scheme, endpoint.authority, endpoint.path(Some(key))))
    }

    #[test]
    fn bucket_name_is_in_the_chosen_part_of_the_url() {
        let amazon = Settings { region: Some("eu-west-1".into()), ..Settings::default() };
        assert_eq!(
            url(&amazon, "data", "a b").unwrap(),
            "https://data.s3.eu-west-1.amazonaws.com/a%20b"
        );
        assert_eq!(
            url(&amazon, "my.data", "a").unwrap(),
            "https://s3.eu-west-1.amazonaws.com/my.data/a"
        );
        let own = |endpoint: &str, style: Option<Style>| {
            let settings =
                Settings { endpoint: Some(endpoint.into()), style, ..Settings::default() };
            url(&settings, "data", "a")
        };
        assert_eq!(own("http://Store:9000/", None).unwrap(), "http://store:9000/data/a");
        assert_eq!(own("https://store:443", None).unwrap(), "https://store/data/a");
        assert_eq!(own("http://[::1]:80", Some(Style::Host)).unwrap(), "http://data.[::1]/a");
        for wrong in ["store:9000", "ftp://store", "http://", "http://a/b", "http://u:p@store"] {
            assert!(own(wrong, None).is_err(), "{wrong}");
        }
    }

    #[test]
    fn options_override_environment_variables_and_profiles() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join(".aws")).unwrap();
        let config =
            "[default]\nregion = r1\n[profile work]\nregion = r2\nendpoint_url = http://w\n";
        std::fs::write(home.path().join(".aws/config"), config).unwrap();
        let home = home.path().to_str().unwrap();
        let region = |settings: &Settings, more: &[(&str, &str)]| {
            let variables = [&[("HOME", home)], more].concat();
            Environment::of(&variables).complete(settings).unwrap().region.unwrap()
        };
        let none = Settings::default();
        assert_eq!(region(&none, &[]), "r1");
        assert_eq!(region(&none, &[("AWS_PROFILE", "work")]), "r2");
        assert_eq!(region(&none, &[("AWS_REGION", "r3"), ("AWS_PROFILE", "work")]), "r3");
        let own = Settings { region: Some("r4".into()), ..Settings::default() };
        assert_eq!(region(&own, &[("AWS_REGION", "r3")]), "r4");
    }
}
