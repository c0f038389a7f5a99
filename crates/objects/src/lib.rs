//! Places for checkpoints and leases that machines share without a file system: a bucket of an object store that speaks S3.
//!
//! A place is written as `s3://BUCKET/PREFIX`, or as `file:///FOLDER` for a folder that machines do share. [`open_place`]
//! opens it as an [`ObjectStorage`]. Endpoint, region and credentials come from the environment of each process, under the
//! names that other programs use too: `AWS_ENDPOINT_URL`, `AWS_REGION`, `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`,
//! `AWS_SESSION_TOKEN`, `AWS_CA_BUNDLE`. Without keys, the role of the machine is asked for.

mod bucket_objects;
mod http_requests;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use bucket_objects::BucketObjects;
use paceline_store::{FolderObjects, ObjectStorage};

/// A place, as a user writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    text: String,
    kind: PlaceKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum PlaceKind {
    Folder(PathBuf),
    Bucket { name: String, prefix: String },
}

impl Place {
    /// The place that a path is, if it is not that of a run folder.
    pub fn of(path: &Path) -> Option<Self> {
        path.to_str()?.parse().ok()
    }
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let kind = match text.split_once("://") {
            Some(("file", path)) if path.starts_with('/') => PlaceKind::Folder(path.into()),
            Some(("s3", rest)) => {
                let (name, prefix) = rest.split_once('/').unwrap_or((rest, ""));
                PlaceKind::Bucket { name: name.into(), prefix: prefix.trim_matches('/').into() }
            }
            _ => return Err(expected(text)),
        };
        match &kind {
            PlaceKind::Bucket { name, .. } if name.is_empty() => Err(expected(text)),
            _ => Ok(Place { text: text.trim_end_matches('/').into(), kind }),
        }
    }
}

fn expected(text: &str) -> String {
    format!("'{text}': expected s3://BUCKET/PREFIX or file:///FOLDER")
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Opens a place, and tries whether it can be read.
///
/// # Errors
/// If the environment does not fit, or the place can't be reached or read. They name the place.
pub fn open_place(place: &Place) -> io::Result<Arc<dyn ObjectStorage>> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{place}: {error}"));
    let objects: Arc<dyn ObjectStorage> = match &place.kind {
        PlaceKind::Folder(folder) => Arc::new(FolderObjects::named(&place.text, folder)),
        PlaceKind::Bucket { name, prefix } => Arc::new(BucketObjects::open(&place.text, name, prefix).map_err(named)?),
    };
    objects.list("leases").map_err(named)?;
    Ok(objects)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_bucket_or_an_absolute_folder() {
        for (text, shown) in [("s3://b", "s3://b"), ("s3://b/c/d/", "s3://b/c/d"), ("file:///a", "file:///a")] {
            assert_eq!(text.parse::<Place>().unwrap().to_string(), shown);
        }
        for text in ["runs/1", "file://a", "s3://", "s3:///a", "http://a/b", ""] {
            let error = text.parse::<Place>().unwrap_err();
            assert!(error.contains("expected s3://BUCKET/PREFIX or file:///FOLDER"), "{error}");
        }
        assert_eq!(Place::of(Path::new("runs/1")), None);
    }
}
