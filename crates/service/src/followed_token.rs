//! A task in each running process. The task notices a changed token, and makes the process use the
//! new token.
//!
//! A service follows the token in its directory. A mount or a monitor follows its token file. Each
//! of these processes proves a new secret to management before the process uses the secret. A wrong
//! secret would separate the process from the cluster. Management creates the secrets of its
//! cluster, so management needs no proof.
//!
//! Other modules read and write the files ([`crate::tokens`], [`crate::directory`]) and make the
//! proof ([`crate::token_proof`]). Design: `docs/design/0019-tokens.md`.

use crate::directory::{TOKEN_FILE, load_token, read_token};
use crate::former_secrets::FORMER_FILE;
use crate::token_proof::{self, FOLLOW_INTERVAL};
use skep_rpc::{JoinToken, Secrets};
use skep_types::{ClusterId, Error, ErrorCode, Result, Timestamp, utc};
use std::future::Future;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time after which a process repeats the proof of a new token that management has refused or has
/// not answered. Management may receive the token in the meantime.
const PROOF_INTERVAL: Duration = Duration::from_secs(30);

/// Identifies the version of a file's contents by its metadata. `None` means that the file does not
/// exist.
type Stamp = Option<(u64, u64, [i64; 4])>;

fn stamps(files: &[PathBuf]) -> Vec<Stamp> {
    let of_file = |file: &PathBuf| {
        let it = std::fs::metadata(file).ok()?;
        // Also use the change time (ctime). A program that copies a file can set the modification
        // time to an earlier time, but not the change time.
        let times = [it.mtime(), it.mtime_nsec(), it.ctime(), it.ctime_nsec()];
        Some((it.ino(), it.size(), times))
    };
    files.iter().map(of_file).collect()
}

/// Watches the tokens in management's directory, and puts each change into `secrets`, which all
/// threads of this process share. The function never returns, so the caller must spawn it as a
/// task.
pub async fn follow_directory_of_management(
    directory: PathBuf,
    cluster: ClusterId,
    secrets: Secrets,
) {
    let files = vec![directory.join(TOKEN_FILE), directory.join(FORMER_FILE)];
    let token = JoinToken { cluster, secrets, addresses: Vec::new() };
    let followed = FollowedToken::new(files, token);
    followed.follow(|| load_token(&directory), |_| std::future::ready(Ok(()))).await;
}

/// Watches the tokens in a service's directory, and puts each change into the secrets of `token`,
/// which all threads of this process share. `token` is the token at the start of the process. Never
/// returns, so the caller must spawn it as a task.
pub async fn follow_directory(directory: PathBuf, token: JoinToken) {
    let files = vec![directory.join(TOKEN_FILE), directory.join(FORMER_FILE)];
    FollowedToken::new(files, token).follow(|| load_token(&directory), prove).await;
}

/// Watches a token file, and puts each change into the secrets of `token`, which all threads of
/// this process share. `token` is the token at the start of the process. The process accepts and
/// offers only the secrets of the tokens in the file. The process keeps its former secrets until
/// management has accepted the newest secret in the file. The function never returns, so the caller
/// must spawn it as a task.
pub async fn follow_file(file: PathBuf, token: JoinToken) {
    let files = vec![file.clone(), file.with_file_name(FORMER_FILE)];
    FollowedToken::new(files, token).follow(|| read_beside_former(&file), prove).await;
}

async fn prove(token: JoinToken) -> Result<()> {
    token_proof::prove(&token).await
}

/// Reads a token file. If the file is the token file of a service's directory, also reads the
/// previous secrets in that directory. Other services may not have the newest secret yet. A mount
/// on the host of management uses such a file.
///
/// # Errors
/// - `Configuration` if the file is a pipe or a terminal, because reading it would block this
///   thread.
/// - The errors of [`read_token`].
fn read_beside_former(file: &Path) -> Result<JoinToken> {
    if std::fs::metadata(file).is_ok_and(|found| !found.is_file()) {
        let what = format!(
            "cannot follow changes of the token {}: this is not a regular file; to change the \
             token, restart this process",
            file.display()
        );
        return Err(Error::new(ErrorCode::Configuration, what));
    }
    let is_of_service = file.file_name().is_some_and(|name| name == TOKEN_FILE)
        && file.with_file_name(FORMER_FILE).exists();
    match file.parent() {
        Some(directory) if is_of_service => load_token(directory),
        _ => read_token(file),
    }
}

/// A token whose changes a running process watches.
struct FollowedToken {
    files: Vec<PathBuf>,
    /// The token at the start of the process, with the secrets that the process uses. The process
    /// refuses a token of another cluster.
    token: JoinToken,
    /// A copy of the secrets that the process used when management last accepted the newest secret.
    proven: Secrets,
    /// Stamps of the files when the process last read their tokens successfully. The process takes
    /// the stamps before it reads the files, so that the next check notices a change during the
    /// reading. The field is `None` before the first success, because the files may have changed
    /// since the start of the process.
    taken: Option<Vec<Stamp>>,
    /// Time at which the process repeats the proof of the token in the files. `None` if management
    /// has accepted this token.
    prove_at: Option<Duration>,
    /// The error of the last check. The process does not log the same error a second time.
    reported: Option<String>,
}

impl FollowedToken {
    fn new(files: Vec<PathBuf>, token: JoinToken) -> Self {
        let proven = copy_of(&token.secrets);
        Self { files, token, proven, taken: None, prove_at: None, reported: None }
    }

    async fn follow<P: Future<Output = Result<()>>>(
        mut self,
        read: impl Fn() -> Result<JoinToken>,
        prove: impl Fn(JoinToken) -> P,
    ) {
        // Retry: the process looks for a changed token every `FOLLOW_INTERVAL`, without limit.
        loop {
            skep_env::sleep(FOLLOW_INTERVAL).await;
            self.look(&read, &prove).await;
        }
    }

    /// If the files have changed, or if the process must repeat the proof of their token, reads and
    /// uses the secrets in the files. If a file cannot be read, the process keeps its current
    /// secrets, and the next check rereads the files.
    async fn look<P: Future<Output = Result<()>>>(
        &mut self,
        read: impl Fn() -> Result<JoinToken>,
        prove: impl Fn(JoinToken) -> P,
    ) {
        let stamps = stamps(&self.files);
        let is_proof_due = self.prove_at.is_some_and(|at| skep_env::now() >= at);
        if self.taken.as_ref() == Some(&stamps) && !is_proof_due {
            return;
        }
        match read().and_then(|token| self.check_cluster(token)) {
            Ok(changed) => {
                self.taken = Some(stamps);
                self.change_to(changed, prove).await;
            }
            Err(error) => self.report(format!(
                "cannot use the changed token: {error}; this process continues with the previous \
                 token"
            )),
        }
    }

    /// Uses the secrets of a token after management has accepted its newest secret. If management
    /// refuses this secret, the process keeps its former secrets. If management does not reply, the
    /// process keeps its former newest secret, and also accepts and offers the new secrets.
    async fn change_to<P: Future<Output = Result<()>>>(
        &mut self,
        changed: JoinToken,
        prove: impl Fn(JoinToken) -> P,
    ) {
        let result = match changed.secrets.newest() == self.proven.newest() {
            true => Ok(()),
            false => prove(self.with_known_addresses(&changed)).await,
        };
        let Err(error) = result else {
            (self.prove_at, self.reported) = (None, None);
            self.proven = copy_of(&changed.secrets);
            if self.use_secrets(&changed.secrets) {
                let id = changed.secrets.newest().id();
                tracing::info!("this process uses the changed tokens; the newest token is {id}");
            }
            return;
        };
        self.prove_at = Some(skep_env::now() + PROOF_INTERVAL);
        let file = self.file_and_time();
        let again = PROOF_INTERVAL.as_secs();
        if error.code() == ErrorCode::AuthenticationFailed {
            self.use_secrets(&self.proven);
            return self.report(format!(
                "cannot use the changed token: management refuses the token in {file}: {}; this \
                 process continues with the previous token, and repeats the attempt when the file \
                 changes, and every {again} s",
                error.context()
            ));
        }
        let both = Secrets::new(self.proven.newest(), changed.secrets.held());
        self.use_secrets(&both);
        self.report(format!(
            "cannot prove the changed token in {file} to management: {}; until management accepts \
             the token, this process also uses the previous token, and repeats the attempt every \
             {again} s",
            error.context()
        ));
    }

    /// Replaces the secrets of this process by `changed`. Returns whether the new secrets differ
    /// from the previous secrets.
    fn use_secrets(&self, changed: &Secrets) -> bool {
        let is_different = changed.held() != self.token.secrets.held();
        if is_different {
            self.token.secrets.replace_by(changed);
        }
        is_different
    }

    /// Logs an error, unless the last check had the same error.
    fn report(&mut self, text: String) {
        if self.reported.as_ref() != Some(&text) {
            tracing::warn!("{text}");
            self.reported = Some(text);
        }
    }

    /// Returns `changed`, and adds the addresses of management that this process had at its start.
    /// Management may not yet, or no longer, answer at the addresses in the changed token.
    fn with_known_addresses(&self, changed: &JoinToken) -> JoinToken {
        let mut token = changed.clone();
        let known = self.token.addresses.iter();
        token.addresses.extend(known.filter(|it| !changed.addresses.contains(it)).cloned());
        token
    }

    /// Returns the path of the token file, and the time of its last change.
    fn file_and_time(&self) -> String {
        let path = self.files[0].display();
        match std::fs::metadata(&self.files[0]) {
            Ok(found) => {
                let time = Timestamp { seconds: found.ctime(), nanoseconds: 0 };
                format!("{path} (changed at {})", utc(time))
            }
            Err(_) => path.to_string(),
        }
    }

    fn check_cluster(&self, token: JoinToken) -> Result<JoinToken> {
        if token.cluster == self.token.cluster {
            return Ok(token);
        }
        let what = format!(
            "{} has a token of cluster {}, and this process belongs to cluster {}; replace this \
             token by the token that `skep cluster token --cluster DIRECTORY` prints on the \
             management host of this cluster",
            self.files[0].display(),
            token.cluster,
            self.token.cluster
        );
        Err(Error::new(ErrorCode::Configuration, what))
    }
}

/// Returns a copy of `secrets` that later changes of `secrets` do not affect.
fn copy_of(secrets: &Secrets) -> Secrets {
    Secrets::new(secrets.newest(), secrets.held())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::tests::{service, token};
    use crate::token_proof::tests::management_node;
    use crate::tokens::{replace, revoke};
    use std::task::{Context, Poll, Waker};

    /// Checks the files once. Management's reply to a proof is `reply`.
    fn look(
        followed: &mut FollowedToken,
        read: impl Fn() -> Result<JoinToken>,
        reply: Option<ErrorCode>,
    ) -> Option<String> {
        let prove = |_: JoinToken| {
            let refused = |code| Err(Error::new(code, "10.0.0.1:7400: no"));
            std::future::ready(reply.map_or(Ok(()), refused))
        };
        {
            let looking = std::pin::pin!(followed.look(read, prove));
            let checked = looking.poll(&mut Context::from_waker(Waker::noop()));
            assert_eq!(checked, Poll::Ready(()), "the reply arrives immediately");
        }
        followed.reported.clone()
    }

    fn held(secrets: &Secrets) -> Vec<skep_rpc::Secret> {
        secrets.held().into_iter().map(|it| it.secret).collect()
    }

    #[test]
    fn running_management_uses_a_replaced_token() {
        let parent = tempfile::tempdir().unwrap();
        let path = service(parent.path(), &token(1));
        let secrets = load_token(&path).unwrap().secrets;
        let used = secrets.clone();
        let new = replace(&path).unwrap().secrets.newest();
        skep_env::block_on(async move {
            let cluster = ClusterId::new([1; 16]);
            let following = follow_directory_of_management(path, cluster, secrets);
            assert!(skep_env::timeout(3 * FOLLOW_INTERVAL, following).await.is_none());
        })
        .unwrap();
        assert_eq!(used.newest(), new);
        assert_eq!(used.held().len(), 2);
    }

    /// Writes the lines of a token file in place, as an editor does.
    fn write_lines(file: &Path, lines: &[String]) {
        use std::os::unix::fs::PermissionsExt;
        std::fs::write(file, lines.join("\n")).unwrap();
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).unwrap();
    }

    #[test]
    fn mount_uses_only_the_tokens_in_its_token_file() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("token");
        let (old, new, foreign) = (token(1), token(1), token(2));
        let [old_secret, new_secret] = [&old, &new].map(|token| token.secrets.newest());
        let mut followed = FollowedToken::new(vec![file.clone()], old.clone());
        let mut check = || look(&mut followed, || read_token(&file), None);
        write_lines(&file, &[new.to_text(), old.to_text()]);
        assert_eq!(check(), None);
        assert_eq!(held(&old.secrets), [new_secret.clone(), old_secret]);
        write_lines(&file, &[new.to_text()]);
        assert_eq!(check(), None);
        assert_eq!(held(&old.secrets), std::slice::from_ref(&new_secret));
        write_lines(&file, &[foreign.to_text()]);
        assert!(check().is_some_and(|error| error.contains("a token of cluster 0202")));
        assert_eq!(held(&old.secrets), [new_secret]);
    }

    /// Regression test: a mount used a wrong secret of its cluster, and its requests waited until
    /// an administrator repaired the token file.
    #[test]
    fn token_that_management_refuses_is_not_used() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("token");
        let (old, wrong) = (token(1), token(1));
        let old_secret = old.secrets.newest();
        let mut followed = FollowedToken::new(vec![file.clone()], old.clone());
        let refusal = Some(ErrorCode::AuthenticationFailed);
        write_lines(&file, &[wrong.to_text()]);
        let error = look(&mut followed, || read_token(&file), refusal).unwrap();
        assert!(error.contains("management refuses the token in /"), "{error}");
        assert!(error.contains("(changed at 20"), "{error}");
        assert_eq!(held(&old.secrets), std::slice::from_ref(&old_secret));
        // The process proves the token again after some time, although the file has not changed.
        assert!(look(&mut followed, || read_token(&file), None).is_some());
        assert_eq!(held(&old.secrets), [old_secret]);
        followed.prove_at = Some(skep_env::now());
        assert_eq!(look(&mut followed, || read_token(&file), None), None);
        assert_eq!(held(&old.secrets), [wrong.secrets.newest()]);
        assert_eq!(followed.prove_at, None);
    }

    #[test]
    fn old_and_new_tokens_are_used_while_management_is_silent() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("token");
        let (old, new) = (token(1), token(1));
        let [old_secret, new_secret] = [&old, &new].map(|token| token.secrets.newest());
        let mut followed = FollowedToken::new(vec![file.clone()], old.clone());
        write_lines(&file, &[new.to_text()]);
        let silent = Some(ErrorCode::Disconnected);
        let error = look(&mut followed, || read_token(&file), silent).unwrap();
        assert!(error.contains("also uses the previous token"), "{error}");
        assert_eq!(held(&old.secrets), [old_secret.clone(), new_secret]);
        followed.prove_at = Some(skep_env::now());
        let refusal = Some(ErrorCode::AuthenticationFailed);
        assert!(look(&mut followed, || read_token(&file), refusal).is_some());
        assert_eq!(held(&old.secrets), [old_secret]);
    }

    #[test]
    fn token_proof_also_tries_the_addresses_of_the_former_token() {
        skep_env::block_on(async {
            let place = tempfile::tempdir().unwrap();
            let file = place.path().join("token");
            let (old, new) = (token(1), token(1));
            let addresses = vec![management_node(&new.secrets)];
            let held = JoinToken { addresses, ..old.clone() };
            let mut followed = FollowedToken::new(vec![file.clone()], held);
            write_lines(&file, &[new.to_text()]);
            followed.look(|| read_token(&file), prove).await;
            assert_eq!((followed.reported, old.secrets.newest()), (None, new.secrets.newest()));
        })
        .unwrap();
    }

    /// Regression test: the monitor blocked for ever when it checked a token from a pipe for the
    /// second time.
    #[test]
    fn token_file_that_is_a_pipe_is_not_read_again() {
        let place = tempfile::tempdir().unwrap();
        let pipe = place.path().join("token");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let known = token(1);
        let before = held(&known.secrets);
        let mut followed = FollowedToken::new(vec![pipe.clone()], known.clone());
        let reported = look(&mut followed, || read_beside_former(&pipe), None).unwrap();
        assert!(reported.contains("not a regular file"), "{reported}");
        assert_eq!(held(&known.secrets), before);
    }

    #[test]
    fn token_of_a_service_includes_previous_secrets_until_revoked() {
        let parent = tempfile::tempdir().unwrap();
        let path = service(parent.path(), &token(1));
        let file = path.join(TOKEN_FILE);
        let count = || read_beside_former(&file).unwrap().secrets.held().len();
        assert_eq!(count(), 1);
        let old = read_token(&file).unwrap().secrets.newest().id();
        replace(&path).unwrap();
        assert_eq!(count(), 2);
        revoke(&path, old, true).unwrap();
        assert_eq!(count(), 1);
    }

    #[test]
    fn token_file_is_read_again_after_an_error() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("token");
        let (old, new) = (token(1), token(1));
        write_lines(&file, &[new.to_text()]);
        let mut followed = FollowedToken::new(vec![file.clone()], old.clone());
        let away = || Err(Error::new(ErrorCode::Io, "the file server does not reply"));
        assert!(look(&mut followed, away, None).is_some());
        // The file has not changed since the failed read, but the process must reread the file.
        assert_eq!(look(&mut followed, || read_token(&file), None), None);
        assert_eq!(old.secrets.newest(), new.secrets.newest());
    }
}
