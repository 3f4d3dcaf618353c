//! Object stores as the source or destination of a copy: their options, and the copies from and to
//! `s3://bucket/key`.

use super::with_progress;
use clap::ValueEnum;
use skep_copy::context::Options;
use skep_copy::objects::{LEAST_PART, MOST_PART, Pair, download, upload};
use skep_copy::outcome::{Outcome, Progress};
use skep_copy::plan::pairs;
use skep_s3::client::Client;
use skep_s3::credentials::{Credentials, Provider};
use skep_s3::location::{Location, is_location};
use skep_s3::settings::{Environment, Settings, Style};
use skep_s3::store::Objects;
use skep_service::ByteSize;
use skep_types::{Error, ErrorCode, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Default length of the parts in which a large object is uploaded.
const PART: &str = "64MiB";

/// Where URLs contain the name of the bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cmd) enum StyleArg {
    /// In the path: `https://endpoint/bucket/key`
    Path,
    /// In the host name: `https://bucket.endpoint/key`
    Host,
}

/// Options of object stores. Credentials come from the environment, the configuration files of the
/// AWS CLI, the container or the instance, and never from the command line.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Object stores")]
pub(in crate::cmd) struct StoreArgs {
    /// URL of the service [default: AWS_ENDPOINT_URL_S3, or Amazon's]
    #[arg(long, value_name = "URL")]
    s3_endpoint: Option<String>,
    /// Region of the bucket [default: AWS_REGION, the profile, the instance, or us-east-1]
    #[arg(long, value_name = "NAME")]
    s3_region: Option<String>,
    /// Where URLs contain the bucket's name [default: path with --s3-endpoint, otherwise host]
    #[arg(long, value_name = "PLACE", value_enum)]
    s3_style: Option<StyleArg>,
    /// Profile in ~/.aws/credentials [default: AWS_PROFILE]
    #[arg(long, value_name = "NAME", conflicts_with = "s3_anonymous")]
    s3_profile: Option<String>,
    /// Send requests without credentials, for public buckets
    #[arg(long)]
    s3_anonymous: bool,
    /// File with the certificates of trusted authorities [default: the system's]
    #[arg(long, value_name = "FILE")]
    s3_ca: Option<PathBuf>,
    /// Size of the parts in which large objects are uploaded, 5MiB to 5GiB
    #[arg(long, value_name = "SIZE", default_value = PART)]
    s3_part: ByteSize,
    /// When root copies from an object store: set the owners and groups that the objects name, and
    /// the setgid bits of directories. Every user who may write to the bucket can choose these
    /// owners [default: copies get the owner and the group of the directory above the destination]
    #[arg(long)]
    pub(super) s3_owners: bool,
    /// The coordinator writes the credentials to the standard input of this process
    #[arg(long, hide = true)]
    pub(super) s3_keys_from_input: bool,
}

/// Whether a path is a location in an object store.
pub(in crate::cmd) fn is_store(path: &Path) -> bool {
    path.to_str().is_some_and(is_location)
}

/// The settings and credentials that one copy uses to access object stores.
#[derive(Debug)]
pub(in crate::cmd) struct Stores {
    settings: Settings,
    part: u64,
    /// Whether downloads set the owners that objects name.
    owners: bool,
    provider: Arc<Provider>,
}

impl StoreArgs {
    /// Returns the settings from the options, with the credentials of this process. `None` means
    /// that neither the source nor the destination is in an object store.
    pub(in crate::cmd) fn open<'a>(
        &self,
        paths: impl IntoIterator<Item = &'a Path>,
    ) -> Result<Option<Stores>> {
        if !paths.into_iter().any(is_store) {
            return Ok(None);
        }
        let environment = Environment::of_process();
        let mut settings = environment.complete(&self.settings())?;
        let provider = Arc::new(Provider::find(&environment, &settings)?);
        if settings.endpoint.is_none() && settings.region.is_none() {
            settings.region = provider.region();
        }
        Ok(Some(Stores { settings, part: self.part()?, owners: self.s3_owners, provider }))
    }

    /// Returns the settings from the options, with the credentials that this process has received
    /// from its coordinator.
    pub(super) fn given(&self, credentials: Option<Credentials>) -> Result<Stores> {
        let provider = Arc::new(Provider::given(credentials));
        let (settings, part) = (self.settings(), self.part()?);
        Ok(Stores { settings, part, owners: self.s3_owners, provider })
    }

    fn settings(&self) -> Settings {
        Settings {
            endpoint: self.s3_endpoint.clone(),
            region: self.s3_region.clone(),
            style: self.s3_style.map(|it| match it {
                StyleArg::Path => Style::Path,
                StyleArg::Host => Style::Host,
            }),
            ca: self.s3_ca.clone(),
            profile: self.s3_profile.clone(),
            is_anonymous: self.s3_anonymous,
        }
    }

    fn part(&self) -> Result<u64> {
        match self.s3_part.0 {
            part @ LEAST_PART..=MOST_PART => Ok(part),
            _ => {
                let what = "invalid --s3-part: expected a size from 5MiB to 5GiB";
                Err(Error::new(ErrorCode::InvalidArgument, what))
            }
        }
    }
}

impl Stores {
    /// Returns these options as arguments for a process on another host. The arguments contain no
    /// credentials.
    pub(super) fn words(&self) -> Vec<String> {
        let settings = &self.settings;
        let style = settings.style.map(|it| match it {
            Style::Path => "path".to_owned(),
            Style::Host => "host".to_owned(),
        });
        let ca = settings.ca.as_ref().map(|it| it.display().to_string());
        let options = [
            ("--s3-endpoint", settings.endpoint.clone()),
            ("--s3-region", settings.region.clone()),
            ("--s3-style", style),
            ("--s3-ca", ca),
            ("--s3-part", Some(self.part.to_string())),
        ];
        let mut words: Vec<_> = options
            .into_iter()
            .filter_map(|(name, value)| Some([name.to_owned(), value?]))
            .flatten()
            .collect();
        words.extend(self.owners.then(|| "--s3-owners".to_owned()));
        let keys = if settings.is_anonymous { "--s3-anonymous" } else { "--s3-keys-from-input" };
        words.push(keys.to_owned());
        words
    }

    /// Returns the current credentials as a line of text for a process on another host. Empty if
    /// requests are sent without credentials.
    pub(super) fn line(&self) -> String {
        let credentials = self.provider.get().ok().flatten();
        credentials.and_then(|it| serde_json::to_string(&it).ok()).unwrap_or_default()
    }

    /// Replaces the current credentials.
    pub(super) fn set(&self, credentials: Credentials) {
        self.provider.set(credentials);
    }

    /// Returns an error if the bucket cannot be used, or if `must_exist` is set and nothing exists
    /// at the location.
    pub(in crate::cmd) fn check(&self, location: &str, must_exist: bool) -> Result<()> {
        let location = Location::parse(location)?;
        let within = |error: Error| error.within(format!("cannot use {location}"));
        let client = self.client(&location)?;
        let page = client.list(&location.key, None).map_err(within)?;
        if must_exist && page.objects.is_empty() && !location.key.is_empty() {
            let what = format!("cannot use {location}: no object has this key");
            return Err(Error::new(ErrorCode::NotFound, what));
        }
        Ok(())
    }

    fn client(&self, location: &Location) -> Result<Client> {
        Client::new(&self.settings, location, self.provider.clone())
    }

    /// Copies from or to an object store, on this host alone.
    pub(super) fn copy(
        &self,
        sources: &[PathBuf],
        destination: &Path,
        options: &Options,
        report: &dyn Fn(&Progress),
    ) -> Result<Outcome> {
        let is_up = is_store(destination);
        if let Some(other) = sources.iter().find(|it| is_store(it) == is_up) {
            let what = match is_up {
                true => "source and destination are in object stores; copy to a directory first",
                false => {
                    "some sources are in an object store, and other sources are not; copy each \
                     kind of source with a separate command"
                }
            };
            let what = format!("cannot copy {}: {what}", other.display());
            return Err(Error::new(ErrorCode::InvalidArgument, what));
        }
        let remote = |it: &Path| Location::parse(it.to_str().unwrap_or_default());
        let mut clients = BTreeMap::new();
        for path in sources.iter().map(PathBuf::as_path).chain([destination]) {
            if is_store(path) {
                let location = remote(path)?;
                clients.insert(location.bucket.clone(), self.client(&location)?);
            }
        }
        let found = pairs(sources, destination, |path| match is_store(path) {
            true => remote(path).is_ok_and(|it| {
                // A source in an object store is a directory unless an object has exactly its key.
                // If the request for the object fails, the copy reports the error later. A
                // destination in an object store is a directory only if its key is empty or ends
                // with `/`.
                let is_object =
                    || !is_up && matches!(clients[&it.bucket].head(&it.key), Ok(Some(_)));
                it.key.is_empty() || it.key.ends_with('/') || (!is_up && !is_object())
            }),
            false => path.is_dir(),
        })?;
        let mut all = Vec::new();
        for pair in &found {
            let (place, path) = match is_up {
                true => (&pair.destination, &pair.source),
                false => (&pair.source, &pair.destination),
            };
            let Location { bucket, key } = remote(place)?;
            let shown = format!("s3://{bucket}");
            all.push(Pair { bucket: &clients[&bucket], shown, key, path: path.clone() });
        }
        match is_up {
            true => upload(&all, options, self.part, report),
            false => download(&all, options, report),
        }
    }

    /// Copies files on this host alone, and shows the progress.
    pub(super) fn copy_here(
        &self,
        sources: &[PathBuf],
        destination: &Path,
        options: &Options,
    ) -> Result<Outcome> {
        with_progress(|report| self.copy(sources, destination, options, report))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_copy_processes_receive_the_option_for_owners() {
        let has_option = |owners| {
            let settings = Settings { is_anonymous: true, ..Settings::default() };
            let provider = Arc::new(Provider::given(None));
            let stores = Stores { settings, part: LEAST_PART, owners, provider };
            stores.words().contains(&"--s3-owners".to_owned())
        };
        assert!(has_option(true) && !has_option(false));
    }
}
