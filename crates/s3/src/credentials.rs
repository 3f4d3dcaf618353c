//! Finds the credentials for requests: in environment variables, in the configuration files of the
//! AWS CLI, or from the metadata service of the container or the instance.
//!
//! Credentials of containers and instances expire. The provider gets new credentials some minutes
//! before the old credentials expire, or when the object store refuses the old credentials.

use crate::retry::Attempts;
use crate::settings::{Environment, Settings};
use crate::time::parse_iso;
use crate::transport::nearby;
use serde::{Deserialize, Serialize};
use skep_types::text::shown;
use skep_types::{Error, ErrorCode, Result};
use std::fmt;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};
use ureq::Agent;

/// Time before the expiry at which credentials are renewed, in seconds.
const MARGIN: i64 = 300;
/// Maximum length of a reply of the metadata service, in bytes.
const MOST_REPLY: u64 = 64 << 10;
/// The URL of the metadata service of EC2 instances.
const INSTANCE: &str = "http://169.254.169.254";
/// The URL from which containers in ECS get credentials.
const CONTAINER: &str = "http://169.254.170.2";
/// Hosts from which a container may get credentials without TLS. The AWS CLI has the same list.
const TRUSTED_HOSTS: [&str; 6] =
    ["127.0.0.1", "localhost", "[::1]", "169.254.170.2", "169.254.170.23", "[fd00:ec2::23]"];

/// The credentials of an account: an access key with its secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credentials {
    /// The id of the access key, which is not secret.
    pub access_key_id: String,
    /// The secret of the access key. No output ever contains the secret key.
    pub secret_access_key: String,
    /// The session token of temporary credentials.
    pub session_token: Option<String>,
    /// Time at which the credentials expire, in seconds since 1970. `None` means that the
    /// credentials do not expire.
    pub expires: Option<i64>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("expires", &self.expires).finish_non_exhaustive()
    }
}

impl Credentials {
    fn is_fresh(&self, now: i64) -> bool {
        self.expires.is_none_or(|it| it - MARGIN > now)
    }
}

/// Returns the current time in seconds since 1970.
pub(crate) fn now() -> i64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(elapsed.as_secs()).unwrap_or(i64::MAX)
}

/// Where the credentials come from.
#[derive(Debug)]
enum Place {
    /// The client has no credentials, so it sends requests without a signature.
    Anonymous,
    /// Another process has passed the credentials to this process. These credentials stay the same,
    /// or the other process renews them with [`Provider::set`].
    Given,
    /// The metadata service of a container returns the credentials. The values are the URL of this
    /// service, and the token that it requires.
    Container(String, Option<String>),
    /// The metadata service of an instance returns the credentials. The value is the URL of this
    /// service.
    Instance(String),
}

/// Returns credentials for requests, and renews the credentials before they expire.
#[derive(Debug)]
pub struct Provider {
    place: Place,
    /// The newest credentials. A thread holds the lock while it renews the credentials, so that
    /// only one thread renews the credentials at a time.
    cached: Mutex<Option<Credentials>>,
}

impl Provider {
    /// Searches for credentials in the same order as the AWS CLI, and uses the first credentials
    /// that it finds.
    ///
    /// # Errors
    /// Returns `AuthenticationFailed` if no credentials are found, and the error of a file that
    /// cannot be read.
    pub fn find(environment: &Environment, settings: &Settings) -> Result<Self> {
        let provider = Self::place(environment, settings)?;
        provider.get()?;
        Ok(provider)
    }

    /// Creates a provider with credentials that another process has found. `None` means that
    /// requests are not signed.
    pub fn given(credentials: Option<Credentials>) -> Self {
        let place = if credentials.is_some() { Place::Given } else { Place::Anonymous };
        Self { place, cached: Mutex::new(credentials) }
    }

    fn place(environment: &Environment, settings: &Settings) -> Result<Self> {
        let of = |place| Ok(Self { place, cached: Mutex::new(None) });
        if settings.is_anonymous {
            return of(Place::Anonymous);
        }
        // A profile on the command line takes precedence over credentials in environment variables.
        if settings.profile.is_none()
            && let Some(credentials) = in_variables(environment)?
        {
            return Ok(Self::given(Some(credentials)));
        }
        if let Some(credentials) = in_files(environment, settings)? {
            return Ok(Self::given(Some(credentials)));
        }
        if let Some(place) = container(environment)? {
            return of(place);
        }
        if environment
            .get("AWS_EC2_METADATA_DISABLED")
            .is_some_and(|it| it.eq_ignore_ascii_case("true"))
        {
            return Err(no_keys("the metadata service of instances is disabled"));
        }
        of(Place::Instance(instance_url(environment)))
    }

    /// Returns valid credentials. `None` means that requests are not signed.
    ///
    /// # Errors
    /// Returns `AuthenticationFailed` if no valid credentials can be obtained.
    pub fn get(&self) -> Result<Option<Credentials>> {
        let mut cached = self.cached.lock().expect("no thread panics while it holds this lock");
        if let Some(found) = cached.as_ref().filter(|it| it.is_fresh(now())) {
            return Ok(Some(found.clone()));
        }
        let renewed = match &self.place {
            Place::Anonymous => return Ok(None),
            // Another process passed these credentials without the time at which they expire, so
            // this method does not check the credentials. The object store refuses expired
            // credentials.
            Place::Given => return Ok(cached.clone()),
            Place::Container(url, token) => of_container(url, token.as_deref()),
            Place::Instance(url) => of_instance(url),
        };
        match (renewed, &*cached) {
            (Ok(new), _) => *cached = Some(new),
            // Renewal has failed, but the old credentials are still valid for some minutes.
            (Err(_), Some(old)) if old.expires.is_none_or(|it| it > now()) => {}
            (Err(error), _) => return Err(error),
        }
        Ok(cached.clone())
    }

    /// Returns the region of the instance from which the credentials come. `None` if the
    /// credentials come from another source, or if the instance does not report its region.
    pub fn region(&self) -> Option<String> {
        let Place::Instance(url) = &self.place else { return None };
        let region = metadata(url, "placement/region").ok()?;
        Some(region.trim().to_owned()).filter(|it| !it.is_empty())
    }

    /// Replaces the credentials of a provider that [`Self::given`] has created.
    pub fn set(&self, credentials: Credentials) {
        if matches!(self.place, Place::Given) {
            *self.cached.lock().expect("no thread panics while it holds this lock") =
                Some(credentials);
        }
    }

    /// Drops credentials that the object store has refused as expired. Returns whether
    /// [`Self::get`] may now return other credentials.
    pub(crate) fn forget(&self, refused: &Credentials) -> bool {
        let mut cached = self.cached.lock().expect("no thread panics while it holds this lock");
        match self.place {
            Place::Anonymous => false,
            Place::Given => cached.as_ref() != Some(refused),
            Place::Container(..) | Place::Instance(_) => {
                cached.take_if(|it| it == refused);
                true
            }
        }
    }
}

fn no_keys(why: &str) -> Error {
    let what = format!(
        "there are no credentials for S3: AWS_ACCESS_KEY_ID is not set, ~/.aws/credentials has no \
         such profile, and {why}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use \
         --s3-anonymous for public buckets"
    );
    Error::new(ErrorCode::AuthenticationFailed, what)
}

fn in_variables(environment: &Environment) -> Result<Option<Credentials>> {
    let name = environment.get("AWS_ACCESS_KEY_ID");
    let secret = environment.get("AWS_SECRET_ACCESS_KEY");
    match (name, secret) {
        (None, None) => Ok(None),
        (Some(name), Some(secret)) => Ok(Some(Credentials {
            access_key_id: name.to_owned(),
            secret_access_key: secret.to_owned(),
            session_token: environment.get("AWS_SESSION_TOKEN").map(str::to_owned),
            expires: None,
        })),
        _ => {
            let what = "only one of the variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY is \
                        set; set both variables or none";
            Err(Error::new(ErrorCode::Configuration, what))
        }
    }
}

fn in_files(environment: &Environment, settings: &Settings) -> Result<Option<Credentials>> {
    let (profile, is_named) = environment.profile(settings);
    let credentials = environment.file("AWS_SHARED_CREDENTIALS_FILE", "credentials")?;
    let config = environment.file("AWS_CONFIG_FILE", "config")?;
    let refuse = |what: String| Err(Error::new(ErrorCode::Configuration, what));
    for file in [&credentials, &config] {
        let key = |name: &str| file.get(&profile, name).map(str::to_owned);
        match (key("aws_access_key_id"), key("aws_secret_access_key")) {
            (Some(access_key_id), Some(secret_access_key)) => {
                let session_token = key("aws_session_token");
                let expires = None;
                return Ok(Some(Credentials {
                    access_key_id,
                    secret_access_key,
                    session_token,
                    expires,
                }));
            }
            (None, None) => {}
            _ => {
                return refuse(format!(
                    "profile {profile} has only one of the keys aws_access_key_id and \
                     aws_secret_access_key; set both keys"
                ));
            }
        }
    }
    let other = ["role_arn", "sso_session", "sso_start_url", "credential_process"];
    let other = other.iter().find(|it| config.get(&profile, it).is_some());
    match (other, is_named) {
        (Some(name), _) => refuse(format!(
            "profile {profile} has {name}, which only Amazon's tools read; pass on its keys with \
             `eval \"$(aws configure export-credentials --profile {profile} --format env)\"`"
        )),
        (None, true) if !credentials.has(&profile) && !config.has(&profile) => refuse(format!(
            "profile {profile} is neither in ~/.aws/credentials nor in ~/.aws/config"
        )),
        (None, true) => refuse(format!(
            "profile {profile} has no keys; set aws_access_key_id and aws_secret_access_key in \
             this profile"
        )),
        (None, false) => Ok(None),
    }
}

/// Returns the source of a container's credentials. `None` if the environment variables name none.
fn container(environment: &Environment) -> Result<Option<Place>> {
    let full = environment.get("AWS_CONTAINER_CREDENTIALS_FULL_URI");
    let url = match (environment.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"), full) {
        (Some(path), _) => format!("{CONTAINER}{path}"),
        (None, Some(url)) => url.to_owned(),
        (None, None) => return Ok(None),
    };
    let host = url.strip_prefix("http://").map(|it| {
        let authority = it.split('/').next().unwrap_or_default();
        match authority.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|it| it.is_ascii_digit()) => host,
            _ => authority,
        }
    });
    if !host.is_some_and(|it| TRUSTED_HOSTS.contains(&it)) {
        let what = format!(
            "cannot get credentials from AWS_CONTAINER_CREDENTIALS_FULL_URI {url}: expected \
             http:// and an address of this host or of the container service"
        );
        return Err(Error::new(ErrorCode::Configuration, what));
    }
    let token = match environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE") {
        Some(file) => Some(
            std::fs::read_to_string(file)
                .map_err(|error| Error::from(error).within(format!("cannot read {file}")))?
                .trim()
                .to_owned(),
        ),
        None => environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN").map(str::to_owned),
    };
    Ok(Some(Place::Container(url, token)))
}

fn instance_url(environment: &Environment) -> String {
    let url = environment.get("AWS_EC2_METADATA_SERVICE_ENDPOINT").unwrap_or(INSTANCE);
    url.trim_end_matches('/').to_owned()
}

/// Sends a request to a metadata service, and returns the text of the reply. If the service closes
/// the connection without a reply, or is overloaded, the request is retried. A retry is safe,
/// because a repetition of any of these requests has no further effect.
fn ask(agent: &Agent, method: &str, url: &str, headers: &[(&str, &str)]) -> Result<String> {
    let failed = |reason: String| {
        let reason = format!("{url} sends no credentials ({})", shown(&reason, 200));
        no_keys(&reason)
    };
    // Without a length, a PUT would have a chunked body, which not every metadata service reads.
    let length = (method == "PUT").then_some(("content-length", "0"));
    let mut attempts = Attempts::new(false);
    let mut reply = loop {
        let mut request = ureq::http::Request::builder().method(method).uri(url);
        for (name, value) in headers.iter().chain(&length) {
            request = request.header(*name, *value);
        }
        let request = request.body(()).map_err(|error| failed(error.to_string()))?;
        match agent.run(request) {
            Err(ureq::Error::Io(error)) if is_lost(&error) && attempts.again(None) => {}
            Err(error) => return Err(failed(error.to_string())),
            Ok(reply) if reply.status().is_server_error() && attempts.again(None) => {}
            Ok(reply) => break reply,
        }
    };
    if reply.status().as_u16() != 200 {
        return Err(failed(format!("status {}", reply.status().as_u16())));
    }
    let body = reply.body_mut().with_config().limit(MOST_REPLY).read_to_string();
    body.map_err(|error| failed(error.to_string()))
}

/// Returns whether the service has closed the connection before its reply. Returns false for a
/// refused connection or a missed time limit, because then this host probably has no metadata
/// service.
fn is_lost(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}

/// Parses credentials in the JSON form that the metadata services of containers and instances have
/// in common.
fn parse(text: &str) -> Result<Credentials> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Reply {
        access_key_id: String,
        secret_access_key: String,
        token: Option<String>,
        expiration: Option<String>,
    }
    // Drop the error of the JSON parser, because its text could contain the credentials.
    let reply: Reply = serde_json::from_str(text)
        .map_err(|_| no_keys("the reply of the metadata service is malformed"))?;
    Ok(Credentials {
        access_key_id: reply.access_key_id,
        secret_access_key: reply.secret_access_key,
        session_token: reply.token,
        expires: reply.expiration.as_deref().and_then(parse_iso),
    })
}

fn of_container(url: &str, token: Option<&str>) -> Result<Credentials> {
    let headers: Vec<_> = token.map(|it| ("authorization", it)).into_iter().collect();
    parse(&ask(&nearby(), "GET", url, &headers)?)
}

/// Gets a value from the metadata service of instances by version 2 of its protocol, which first
/// requires a token.
fn metadata(url: &str, path: &str) -> Result<String> {
    let agent = nearby();
    let lifetime = [("x-aws-ec2-metadata-token-ttl-seconds", "300")];
    let token = ask(&agent, "PUT", &format!("{url}/latest/api/token"), &lifetime)?;
    let headers = [("x-aws-ec2-metadata-token", token.trim())];
    ask(&agent, "GET", &format!("{url}/latest/meta-data/{path}"), &headers)
}

fn of_instance(url: &str) -> Result<Credentials> {
    let path = "iam/security-credentials/";
    let roles = metadata(url, path)?;
    let role = roles.lines().next().unwrap_or_default().trim().to_owned();
    parse(&metadata(url, &format!("{path}{role}"))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(variables: &[(&str, &str)], settings: &Settings) -> Result<Option<Credentials>> {
        let off = [("AWS_EC2_METADATA_DISABLED", "true")];
        let environment = Environment::of(&[&off, variables].concat());
        Provider::find(&environment, settings)?.get()
    }

    fn id(found: Result<Option<Credentials>>) -> String {
        found.unwrap().unwrap().access_key_id
    }

    #[test]
    fn credentials_in_variables_precede_credentials_in_profiles() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join(".aws")).unwrap();
        let keys = "[default]\naws_access_key_id=A\naws_secret_access_key=x\n[b]\n\
                    aws_access_key_id=B\naws_secret_access_key=y\naws_session_token=t\n\
                    [half]\naws_access_key_id=C\n";
        std::fs::write(home.path().join(".aws/credentials"), keys).unwrap();
        let config = "[profile c]\nrole_arn=r\n";
        std::fs::write(home.path().join(".aws/config"), config).unwrap();
        let home = ("HOME", home.path().to_str().unwrap());
        let keys = [("AWS_ACCESS_KEY_ID", "V"), ("AWS_SECRET_ACCESS_KEY", "s")];
        let named = |name: &str| Settings { profile: Some(name.into()), ..Settings::default() };
        let none = Settings::default();
        assert_eq!(id(find(&[home], &none)), "A");
        assert_eq!(id(find(&[home, keys[0], keys[1]], &none)), "V");
        assert_eq!(id(find(&[home, keys[0], keys[1]], &named("b"))), "B");
        assert_eq!(id(find(&[home, ("AWS_PROFILE", "b")], &none)), "B");
        let anonymous = Settings { is_anonymous: true, ..Settings::default() };
        assert_eq!(find(&[home, keys[0], keys[1]], &anonymous).unwrap(), None);
        for (settings, part) in
            [(named("c"), "role_arn"), (named("d"), "neither"), (named("half"), "only one")]
        {
            let error = find(&[home], &settings).unwrap_err();
            assert!(error.context().contains(part), "{error}");
        }
        assert!(
            find(&[keys[0]], &none).unwrap_err().context().contains("only one of the variables")
        );
        assert_eq!(find(&[], &none).unwrap_err().code(), ErrorCode::AuthenticationFailed);
    }

    #[test]
    fn credentials_are_requested_only_from_trusted_addresses() {
        let place = |url: &str| {
            let environment = Environment::of(&[("AWS_CONTAINER_CREDENTIALS_FULL_URI", url)]);
            container(&environment).map(|it| it.is_some())
        };
        assert!(place("http://127.0.0.1:8080/keys").unwrap());
        assert!(place("http://169.254.170.23/v1/credentials").unwrap());
        for wrong in
            ["http://example.org/keys", "http://127.0.0.1.example.org/", "ftp://localhost/"]
        {
            assert!(place(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn secret_keys_appear_in_no_error_or_debug_output() {
        let text = r#"{"AccessKeyId":"A","SecretAccessKey":"hidden","Token":"hidden",
            "Expiration":"2017-05-17T15:09:54Z"}"#;
        let found = parse(text).unwrap();
        assert_eq!(found.expires, Some(1_495_033_794));
        assert!(found.is_fresh(1_495_033_000) && !found.is_fresh(1_495_033_700));
        assert!(!format!("{found:?}").contains("hidden"));
        let error = parse(&text.replace("AccessKeyId\"", "Other\"")).unwrap_err();
        assert!(!error.context().contains("hidden"), "{error}");
    }
}
