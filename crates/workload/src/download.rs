//! Downloads of published data sets. Incomplete files and files with a wrong checksum are never used.

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use flate2::read::GzDecoder;
use md5::{Digest, Md5};
use tempfile::NamedTempFile;
use thiserror::Error;

use crate::formats::cifar;
use crate::published::PublishedSet;

/// A file to download.
struct RemoteFile<'a> {
    name: &'a str,
    /// The published checksum, in lower-case hexadecimal.
    md5: &'a str,
}

const MNIST_FILES: [RemoteFile<'static>; 4] = [
    RemoteFile { name: "train-images-idx3-ubyte.gz", md5: "f68b3c2dcbeaaa9fbdd348bbdeb94873" },
    RemoteFile { name: "train-labels-idx1-ubyte.gz", md5: "d53e105ee54ea40749a09fcbcd1e9432" },
    RemoteFile { name: "t10k-images-idx3-ubyte.gz", md5: "9fb629c4189551a2d022fa330f9573f3" },
    RemoteFile { name: "t10k-labels-idx1-ubyte.gz", md5: "ec29112dd5afa0611ce80d1b7f02629c" },
];

const FASHION_MNIST_FILES: [RemoteFile<'static>; 4] = [
    RemoteFile { name: "train-images-idx3-ubyte.gz", md5: "8d4fb7e6c68d591d4c3dfef9ec88bf0d" },
    RemoteFile { name: "train-labels-idx1-ubyte.gz", md5: "25c81989df183df01b3e8a0aad5dffbe" },
    RemoteFile { name: "t10k-images-idx3-ubyte.gz", md5: "bef4ecab320f06d8554ea6380940ec79" },
    RemoteFile { name: "t10k-labels-idx1-ubyte.gz", md5: "bb300cfdad3c16e7a12a480ee83cd310" },
];

const CIFAR10_FILES: [RemoteFile<'static>; 1] =
    [RemoteFile { name: "cifar-10-binary.tar.gz", md5: "c32a1d4ab5d03f1284b67883e8d87530" }];

impl PublishedSet {
    /// The base URL of the files.
    pub fn mirror(self) -> &'static str {
        match self {
            PublishedSet::Mnist => "https://storage.googleapis.com/cvdf-datasets/mnist",
            PublishedSet::FashionMnist => "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
            PublishedSet::Cifar10 => "https://www.cs.toronto.edu/~kriz",
        }
    }

    fn files(self) -> &'static [RemoteFile<'static>] {
        match self {
            PublishedSet::Mnist => &MNIST_FILES,
            PublishedSet::FashionMnist => &FASHION_MNIST_FILES,
            PublishedSet::Cifar10 => &CIFAR10_FILES,
        }
    }
}

/// The progress of downloading one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DownloadProgress<'a> {
    /// Name of the file on the mirror.
    pub file: &'a str,
    /// Bytes received.
    pub done: u64,
    /// Size of the file in bytes; `None` if the mirror does not announce it.
    pub total: Option<u64>,
}

/// Why a data set cannot be downloaded.
#[derive(Debug, Error)]
pub enum DownloadError {
    /// The mirror cannot be reached, or answers with an error.
    #[error("{url}: {source}")]
    Request {
        /// The requested URL.
        url: String,
        /// The error of the HTTP client.
        source: Box<ureq::Error>,
    },
    /// The connection broke during the download.
    #[error("{url}: stopped after {done} bytes: {source}")]
    Interrupted {
        /// The requested URL.
        url: String,
        /// Bytes received before that.
        done: u64,
        /// The error of the connection.
        source: io::Error,
    },
    /// The content differs from what was published.
    #[error("{url}: MD5 checksum is {found}; expected {expected}. The file is discarded.")]
    Checksum {
        /// The requested URL.
        url: String,
        /// Checksum of the received content.
        found: String,
        /// The published checksum.
        expected: String,
    },
    /// A file has the name of the set's, and another content.
    #[error("{}: exists, but its MD5 checksum is {found} instead of {expected}; move it away, or replace it with --force", path.display())]
    Differs {
        /// The file.
        path: PathBuf,
        /// Checksum of its content.
        found: String,
        /// The published checksum.
        expected: String,
    },
    /// A file or folder cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
}

/// Downloads the files of a set into `folder`, which is created if it does not exist, and unpacks archives. `mirror` is
/// the base URL; `None` means [`PublishedSet::mirror`]. `progress` is called before the first byte and after each
/// chunk.
///
/// A file appears under its name only after its checksum is verified. A complete file in the folder is not downloaded
/// again. A file with another content is replaced only if `replace` is true.
///
/// # Errors
/// [`DownloadError::Differs`] before anything is downloaded. If the mirror cannot be reached, a download is interrupted or has a wrong checksum, or a file cannot be written.
pub fn download(
    set: PublishedSet,
    mirror: Option<&str>,
    folder: &Path,
    replace: bool,
    progress: &mut dyn FnMut(DownloadProgress<'_>),
) -> Result<(), DownloadError> {
    let mirror = mirror.unwrap_or(set.mirror()).trim_end_matches('/');
    fs::create_dir_all(folder).map_err(at(folder))?;
    if set == PublishedSet::Cifar10 {
        let target = folder.join(cifar::SUBFOLDER);
        return set.files().iter().try_for_each(|file| fetch_archive(mirror, file, &target, progress));
    }
    for file in missing(set.files(), folder, replace)? {
        fetch_file(mirror, file, folder, progress)?;
    }
    Ok(())
}

/// The files that are not in the folder.
fn missing<'a>(
    files: &'a [RemoteFile<'a>],
    folder: &Path,
    replace: bool,
) -> Result<Vec<&'a RemoteFile<'a>>, DownloadError> {
    let mut missing = Vec::new();
    for file in files {
        let path = folder.join(file.name);
        if !path.exists() {
            missing.push(file);
            continue;
        }
        let found = hexadecimal(Md5::new_with_prefix(fs::read(&path).map_err(at(&path))?));
        if found != file.md5 {
            if !replace {
                return Err(DownloadError::Differs { path, found, expected: file.md5.to_owned() });
            }
            missing.push(file);
        }
    }
    Ok(missing)
}

fn fetch_file(
    mirror: &str,
    file: &RemoteFile<'_>,
    folder: &Path,
    progress: &mut dyn FnMut(DownloadProgress<'_>),
) -> Result<(), DownloadError> {
    let target = folder.join(file.name);
    let fetched = fetch(mirror, file, folder, progress)?;
    fetched.persist(&target).map_err(|error| at(&target)(error.error))?;
    Ok(())
}

/// Downloads a `.tar.gz` archive and unpacks its files into `target`, a folder that appears only when it is complete.
fn fetch_archive(
    mirror: &str,
    file: &RemoteFile<'_>,
    target: &Path,
    progress: &mut dyn FnMut(DownloadProgress<'_>),
) -> Result<(), DownloadError> {
    if target.exists() {
        return Ok(());
    }
    let folder = target.parent().unwrap_or(Path::new("."));
    let mut fetched = fetch(mirror, file, folder, progress)?;
    let archive = fetched.path().to_owned();
    fetched.rewind().map_err(at(&archive))?;
    let unpacked = unfinished(file.name, 0o777).tempdir_in(folder).map_err(at(folder))?;
    let mut entries = tar::Archive::new(GzDecoder::new(fetched.as_file()));
    for entry in entries.entries().map_err(at(&archive))? {
        let mut entry = entry.map_err(at(&archive))?;
        let name = entry.path().map_err(at(&archive))?.file_name().map(PathBuf::from);
        // Only the last part of the path counts, so that no entry is written outside the folder.
        if let (true, Some(name)) = (entry.header().entry_type().is_file(), name) {
            let path = unpacked.path().join(name);
            let mut content = File::create(&path).map_err(at(&path))?;
            io::copy(&mut entry, &mut content).map_err(at(&path))?;
        }
    }
    fs::rename(unpacked.path(), target).map_err(at(target))
}

/// Downloads into a temporary file in `folder` and verifies the checksum. Dropping the result removes the file.
fn fetch(
    mirror: &str,
    file: &RemoteFile<'_>,
    folder: &Path,
    progress: &mut dyn FnMut(DownloadProgress<'_>),
) -> Result<NamedTempFile, DownloadError> {
    let url = format!("{mirror}/{}", file.name);
    // No timeout for the whole download: a slow mirror is allowed, a stalled one is not.
    let config = ureq::Agent::config_builder()
        .timeout_connect(Some(Duration::from_secs(30)))
        .timeout_per_read(Some(Duration::from_secs(60)))
        .build();
    let response = ureq::Agent::new_with_config(config).get(&url).call();
    let mut response =
        response.map_err(|source| DownloadError::Request { url: url.clone(), source: Box::new(source) })?;
    let total = response.body().content_length();
    let mut body = response.body_mut().as_reader();
    let mut unfinished = unfinished(file.name, 0o666).tempfile_in(folder).map_err(at(folder))?;
    let mut checksum = Md5::new();
    let mut buffer = vec![0; 1 << 16];
    let mut done = 0;
    loop {
        progress(DownloadProgress { file: file.name, done, total });
        let received = match body.read(&mut buffer) {
            Ok(0) => break,
            Ok(received) => &buffer[..received],
            Err(source) => return Err(DownloadError::Interrupted { url, done, source }),
        };
        checksum.update(received);
        let written = unfinished.write_all(received);
        written.map_err(at(unfinished.path()))?;
        done += received.len() as u64;
    }
    let found = hexadecimal(checksum);
    if found != file.md5 {
        let expected = file.md5.to_owned();
        return Err(DownloadError::Checksum { url, found, expected });
    }
    Ok(unfinished)
}

/// A builder of temporary files and folders named `NAME….part`, with the permissions `mode` reduced by the umask.
fn unfinished(name: &str, mode: u32) -> tempfile::Builder<'_, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(name).suffix(".part");
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(mode));
    #[cfg(not(unix))]
    let _ = mode;
    builder
}

fn hexadecimal(checksum: Md5) -> String {
    checksum.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> DownloadError {
    let path = path.to_owned();
    |source| DownloadError::File { path, source }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;

    use flate2::{Compression, write::GzEncoder};
    use tempfile::TempDir;

    use super::*;

    /// A mirror that answers every request with the same bytes; returns its address.
    fn mirror(answer: Vec<u8>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let mut connection = connection.unwrap();
                let lines = BufReader::new(connection.try_clone().unwrap()).lines();
                lines.map_while(Result::ok).take_while(|line| !line.is_empty()).for_each(drop);
                connection.write_all(&answer).unwrap();
            }
        });
        format!("http://{address}")
    }

    fn answer(status: &str, announced: usize, body: &[u8]) -> Vec<u8> {
        let header = format!("HTTP/1.1 {status}\r\nContent-Length: {announced}\r\nConnection: close\r\n\r\n");
        [header.as_bytes(), body].concat()
    }

    fn md5(content: &[u8]) -> String {
        hexadecimal(Md5::new_with_prefix(content))
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_file_is_downloaded_with_progress_and_not_downloaded_again() {
        let content = vec![7; 200_000];
        let file = RemoteFile { name: "data.gz", md5: &md5(&content) };
        let folder = TempDir::new().unwrap();
        let mut reports = Vec::new();
        let address = mirror(answer("200 OK", content.len(), &content));
        fetch_file(&address, &file, folder.path(), &mut |progress| reports.push((progress.done, progress.total)))
            .unwrap();
        assert_eq!(fs::read(folder.path().join("data.gz")).unwrap(), content);
        assert_eq!(names(folder.path()), ["data.gz"]);
        assert_eq!(reports.first(), Some(&(0, Some(200_000))));
        assert_eq!(reports.last(), Some(&(200_000, Some(200_000))));
        assert!(missing(&[file], folder.path(), false).unwrap().is_empty(), "downloaded again");
    }

    #[test]
    fn a_file_with_another_content_is_replaced_only_on_request() {
        let folder = TempDir::new().unwrap();
        let files = [("first", "1"), ("second", "2")].map(|(name, content)| (name, md5(content.as_bytes())));
        let files = files.each_ref().map(|(name, md5)| RemoteFile { name, md5 });
        fs::write(folder.path().join("second"), "mine").unwrap();
        let error = missing(&files, folder.path(), false).err().unwrap().to_string();
        assert!(error.contains("second: exists") && error.contains("--force"), "{error}");
        let names = |replace| -> Vec<&str> {
            missing(&files, folder.path(), replace).unwrap().iter().map(|file| file.name).collect()
        };
        assert_eq!(names(true), vec!["first", "second"]);
        fs::write(folder.path().join("second"), "2").unwrap();
        assert_eq!(names(false), vec!["first"]);
    }

    #[test]
    fn a_failed_download_leaves_no_file() {
        let content = b"the real content";
        let length = content.len();
        let cases = [
            (answer("200 OK", length + 9, content), "stopped after 16 bytes"),
            (answer("200 OK", 4, b"fake"), "MD5 checksum is 144c9defac04969c7bfad8efaa8ea194; expected"),
            (answer("404 Not Found", 0, b""), "404"),
            (b"gibberish".to_vec(), "http"),
        ];
        for (answer, expected) in cases {
            let file = RemoteFile { name: "data.gz", md5: &md5(content) };
            let folder = TempDir::new().unwrap();
            let error = fetch_file(&mirror(answer), &file, folder.path(), &mut |_| {}).unwrap_err().to_string();
            assert!(error.contains("/data.gz") && error.contains(expected), "{error}\nlacks {expected}");
            assert_eq!(names(folder.path()), [""; 0]);
        }
    }

    #[test]
    fn an_archive_is_unpacked_completely_and_inside_its_folder() {
        let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        for (path, content) in [("batches/a.bin", "first"), ("deep/er/b.bin", "second")] {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            archive.append_data(&mut header, path, content.as_bytes()).unwrap();
        }
        let archive = archive.into_inner().unwrap().finish().unwrap();
        let file = RemoteFile { name: "data.tar.gz", md5: &md5(&archive) };
        let folder = TempDir::new().unwrap();
        let target = folder.path().join("batches");
        let cut = mirror(answer("200 OK", archive.len(), &archive[..archive.len() / 2]));
        fetch_archive(&cut, &file, &target, &mut |_| {}).unwrap_err();
        assert_eq!(names(folder.path()), [""; 0]);
        let address = mirror(answer("200 OK", archive.len(), &archive));
        fetch_archive(&address, &file, &target, &mut |_| {}).unwrap();
        assert_eq!(names(folder.path()), ["batches"]);
        assert_eq!(fs::read(target.join("a.bin")).unwrap(), b"first");
        assert_eq!(fs::read(target.join("b.bin")).unwrap(), b"second");
        fetch_archive("http://127.0.0.1:0", &file, &target, &mut |_| panic!("downloaded again")).unwrap();
    }

    #[test]
    fn a_set_is_requested_from_the_given_mirror() {
        let folder = TempDir::new().unwrap();
        let inner = folder.path().join("new");
        let address = format!("{}/", mirror(answer("404 Not Found", 0, b"")));
        for set in PublishedSet::ALL {
            let error = download(set, Some(&address), &inner, false, &mut |_| {}).unwrap_err().to_string();
            let url = format!("{address}{}", set.files()[0].name);
            assert!(error.starts_with(&url), "{error}");
        }
        assert_eq!(names(&inner), [""; 0]);
    }
}
