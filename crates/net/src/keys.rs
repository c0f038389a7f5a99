//! Keys: they authenticate workers and server over TCP.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use paceline_protocol::Token;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use thiserror::Error;

/// The name in the certificate. Workers trust this one certificate, whatever host the server runs on.
const NAME: &str = "paceline";

const CERTIFICATE: &str = "certificate.pem";
const KEY: &str = "key.pem";
const TOKEN: &str = "token";

/// A shared token, which authenticates workers, and a certificate, which authenticates the server. With keys, TCP
/// connections are encrypted.
#[derive(Clone, PartialEq, Eq)]
pub struct Keys {
    folder: PathBuf,
    token: Token,
    certificate: CertificateDer<'static>,
}

/// Why keys can't be generated or used.
#[derive(Debug, Error)]
pub enum KeysError {
    /// A file can't be read or written.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// The content of a file is invalid.
    #[error("{}: {reason}; 'paceline keys' generates valid keys", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The token or the certificate can't be generated.
    #[error("can't generate keys: {0}")]
    Generate(String),
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({})", self.folder.display())
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

impl Keys {
    /// Generates new keys in `folder`: `certificate.pem` and `token` for server and workers, `key.pem` for the server
    /// only. Existing files are never overwritten.
    ///
    /// # Errors
    /// If a file can't be written or exists already.
    pub fn generate(folder: &Path) -> Result<(), KeysError> {
        let failed = |error: &dyn fmt::Display| KeysError::Generate(error.to_string());
        let generated = rcgen::generate_simple_self_signed([NAME.to_string()]).map_err(|error| failed(&error))?;
        let mut token = Token::default();
        provider().secure_random.fill(&mut token).map_err(|_| failed(&"the system provides no random numbers"))?;
        let token: String = token.iter().map(|byte| format!("{byte:02x}")).collect();
        let failure = |path: &Path| {
            let path = path.to_path_buf();
            |error| KeysError::File { path, error }
        };
        fs::create_dir_all(folder).map_err(failure(folder))?;
        let (certificate, key) = (generated.cert.pem(), generated.signing_key.serialize_pem());
        let files = [(CERTIFICATE, certificate), (KEY, key), (TOKEN, token + "\n")];
        if let Some(existing) = files.iter().map(|(name, _)| folder.join(name)).find(|path| path.exists()) {
            return Err(failure(&existing)(io::ErrorKind::AlreadyExists.into()));
        }
        for (name, text) in files {
            let path = folder.join(name);
            let mut options = File::options();
            // Only the owner may read them.
            let file = options.write(true).create_new(true).mode(0o600).open(&path);
            file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(failure(&path))?;
        }
        Ok(())
    }

    /// Reads the keys in `folder`. A worker needs only the certificate and the token.
    ///
    /// # Errors
    /// If a file is missing or invalid.
    pub fn read(folder: &Path) -> Result<Self, KeysError> {
        let path = folder.join(TOKEN);
        let text = fs::read_to_string(&path).map_err(|error| KeysError::File { path: path.clone(), error })?;
        let reason = "expected 64 hexadecimal digits".to_string();
        let token = parse_token(text.trim()).ok_or(KeysError::Invalid { path, reason })?;
        let path = folder.join(CERTIFICATE);
        let certificate = CertificateDer::from_pem_file(&path).map_err(invalid(&path))?;
        Ok(Keys { folder: folder.into(), token, certificate })
    }

    pub(crate) fn token(&self) -> Token {
        self.token
    }

    pub(crate) fn server(&self) -> Result<Arc<ServerConfig>, KeysError> {
        let path = self.folder.join(KEY);
        let key = PrivateKeyDer::from_pem_file(&path).map_err(invalid(&path))?;
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .and_then(|config| config.with_no_client_auth().with_single_cert(vec![self.certificate.clone()], key));
        config.map(Arc::new).map_err(|error| KeysError::Invalid { path, reason: error.to_string() })
    }

    pub(crate) fn client(&self) -> Result<(Arc<ClientConfig>, ServerName<'static>), KeysError> {
        let path = self.folder.join(CERTIFICATE);
        let invalid = |error: rustls::Error| KeysError::Invalid { path: path.clone(), reason: error.to_string() };
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).map_err(invalid)?;
        let config = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
        let config = config.map_err(invalid)?.with_root_certificates(roots).with_no_client_auth();
        let name = ServerName::try_from(NAME).expect("the constant is a valid name");
        Ok((Arc::new(config), name))
    }
}

fn invalid(path: &Path) -> impl FnOnce(rustls::pki_types::pem::Error) -> KeysError {
    let path = path.to_path_buf();
    move |error| match error {
        rustls::pki_types::pem::Error::Io(error) => KeysError::File { path, error },
        error => KeysError::Invalid { path, reason: error.to_string() },
    }
}

fn parse_token(text: &str) -> Option<Token> {
    let mut token = Token::default();
    if text.len() != 2 * token.len() || !text.is_ascii() {
        return None;
    }
    for (index, byte) in token.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_generated_once_read_back_and_distinguished() {
        let folder = tempfile::tempdir().unwrap();
        let [ours, theirs] = ["ours", "theirs"].map(|name| folder.path().join(name));
        Keys::generate(&ours).unwrap();
        Keys::generate(&theirs).unwrap();
        assert!(Keys::generate(&ours).unwrap_err().to_string().contains("certificate.pem"));
        let [ours_read, theirs_read] = [&ours, &theirs].map(|folder| Keys::read(folder).unwrap());
        assert_ne!(ours_read.token(), theirs_read.token());
        assert!(ours_read.server().is_ok() && ours_read.client().is_ok());
        assert!(!format!("{ours_read:?}").contains("token"));
        // A worker's copy has no key.
        fs::remove_file(ours.join(KEY)).unwrap();
        assert!(Keys::read(&ours).is_ok_and(|keys| keys.server().is_err()));
        fs::write(ours.join(TOKEN), "short").unwrap();
        assert!(Keys::read(&ours).unwrap_err().to_string().contains("expected 64 hexadecimal digits"));
        fs::write(ours.join(TOKEN), "ä".repeat(32)).unwrap();
        assert!(Keys::read(&ours).is_err());
    }
}
