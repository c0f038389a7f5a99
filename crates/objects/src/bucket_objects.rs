//! Objects in a bucket: all that knows the object store's library.

use std::error::Error;
use std::future::Future;
use std::io;
use std::time::Duration;

use futures_util::TryStreamExt;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{BackoffConfig, ObjectStore, ObjectStoreExt, PutMode, RetryConfig};
use paceline_store::ObjectStorage;

use crate::http_requests::HttpRequests;

/// The longest pause before a request is tried again.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How often a request is tried again: for about three seconds. Whoever asked says then what does not work.
const RETRIES: usize = 5;

/// The objects of a bucket whose names begin with a prefix.
#[derive(Debug)]
pub(crate) struct BucketObjects {
    place: String,
    prefix: Path,
    bucket: AmazonS3,
}

impl BucketObjects {
    /// Reads endpoint, region and credentials from the environment.
    pub(crate) fn open(place: &str, bucket: &str, prefix: &str) -> io::Result<Self> {
        let backoff = BackoffConfig { max_backoff: LONGEST_PAUSE, ..BackoffConfig::default() };
        let retry = RetryConfig { backoff, max_retries: RETRIES, ..RetryConfig::default() };
        let builder = AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(retry);
        let bucket = builder.with_http_connector(HttpRequests::new()?).build().map_err(failure)?;
        let prefix = Path::parse(prefix).map_err(io::Error::other)?;
        Ok(BucketObjects { place: place.into(), prefix, bucket })
    }

    fn object(&self, name: &str) -> Path {
        Path::from_iter(self.prefix.parts().chain(Path::from(name).parts()))
    }
}

/// Waits for a request in this thread.
fn wait<T>(request: impl Future<Output = object_store::Result<T>>) -> io::Result<T> {
    // Only pauses before another try need it.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    runtime.block_on(request).map_err(failure)
}

impl ObjectStorage for BucketObjects {
    fn place(&self) -> &str {
        &self.place
    }

    fn put(&self, name: &str, bytes: Vec<u8>) -> io::Result<()> {
        wait(self.bucket.put(&self.object(name), bytes.into())).map(drop)
    }

    fn create(&self, name: &str, bytes: Vec<u8>) -> io::Result<()> {
        wait(self.bucket.put_opts(&self.object(name), bytes.into(), PutMode::Create.into())).map(drop)
    }

    fn get(&self, name: &str) -> io::Result<Vec<u8>> {
        let object = self.object(name);
        wait(async { self.bucket.get(&object).await?.bytes().await }).map(Into::into)
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let found: Vec<_> = wait(self.bucket.list(Some(&self.object(folder))).try_collect())?;
        let name = |path: Path| -> String {
            let parts: Vec<String> =
                path.prefix_match(&self.prefix).into_iter().flatten().map(|part| part.as_ref().into()).collect();
            parts.join("/")
        };
        let mut names: Vec<String> = found.into_iter().map(|object| name(object.location)).collect();
        names.sort_unstable();
        Ok(names)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match wait(self.bucket.delete(&self.object(name))) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// The error in a few words: what the store says, or what the system says.
fn failure(error: object_store::Error) -> io::Error {
    let mut innermost: &dyn Error = &error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    let text = innermost.to_string();
    let kind = match &error {
        object_store::Error::NotFound { .. } => io::ErrorKind::NotFound,
        object_store::Error::AlreadyExists { .. } => io::ErrorKind::AlreadyExists,
        // Also of a list, whose errors have no kind.
        _ if text.contains("status code: 403") || text.contains("status code: 401") => io::ErrorKind::PermissionDenied,
        _ => io::ErrorKind::Other,
    };
    let words = match (element(&text, "Code"), element(&text, "Message")) {
        (Some(code), Some(message)) => format!("{} ({code})", message.trim_end_matches('.')),
        _ => text,
    };
    match kind {
        io::ErrorKind::PermissionDenied => {
            io::Error::new(kind, format!("{words}; are AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY right?"))
        }
        _ => io::Error::new(kind, words),
    }
}

/// What is between the tags of an XML element.
fn element<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    Some(rest.split_once(&format!("</{name}>"))?.0)
}
