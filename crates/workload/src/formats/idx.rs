//! The IDX files of MNIST and Fashion-MNIST: a big-endian header, then one byte per pixel or label.

use std::path::Path;

use super::FormatError;
use super::file::DataFile;
use crate::dataset::{Dataset, Normalization, Splits};

const IMAGES: u32 = 0x0000_0803;
const LABELS: u32 = 0x0000_0801;
const SIDE: u32 = 28;
const CLASSES: u8 = 10;

/// Reads the four files of a set from a folder.
pub(crate) fn load(folder: &Path, normalization: Normalization) -> Result<Splits, FormatError> {
    let part = |prefix: &str| -> Result<Dataset, FormatError> {
        let images = DataFile::find(folder, &format!("{prefix}-images-idx3-ubyte"))?;
        let labels = DataFile::find(folder, &format!("{prefix}-labels-idx1-ubyte"))?;
        dataset(images, labels, normalization)
    };
    Ok(Splits::new(part("train")?, part("t10k")?)?)
}

fn dataset(mut images: DataFile, mut labels: DataFile, normalization: Normalization) -> Result<Dataset, FormatError> {
    let count = header(&images, IMAGES, &[SIDE, SIDE])?;
    let label_count = header(&labels, LABELS, &[])?;
    if label_count != count {
        return Err(labels.invalid(4, format!("{label_count} labels"), format!("{count}, one per image")));
    }
    let pixels = images.bytes.split_off(16);
    let classes = labels.bytes.split_off(8);
    if let Some(sample) = classes.iter().position(|&label| label >= CLASSES) {
        let found = format!("label {}", classes[sample]);
        return Err(labels.invalid(8 + sample, found, format!("a label below {CLASSES}")));
    }
    let shape = [1, SIDE as usize, SIDE as usize];
    Ok(Dataset::new(pixels, classes, shape, usize::from(CLASSES), vec![normalization])?)
}

/// Checks magic number, `dimensions` of an item and length. Returns the number of items, at least 1.
fn header(file: &DataFile, magic: u32, dimensions: &[u32]) -> Result<usize, FormatError> {
    let word = |index: usize| {
        let bytes = file.bytes.get(4 * index..).and_then(<[u8]>::first_chunk);
        bytes.map(|&bytes| u32::from_be_bytes(bytes)).ok_or_else(|| {
            let header_length = 8 + 4 * dimensions.len();
            file.invalid(file.bytes.len(), "the end of the file", format!("a header of {header_length} bytes"))
        })
    };
    let found = word(0)?;
    if found != magic {
        let expected = format!("{magic:#010x}, {} dimensions of bytes", magic & 0xff);
        return Err(file.invalid(0, format!("magic number {found:#010x}"), expected));
    }
    let count = word(1)? as usize;
    if count == 0 {
        return Err(file.invalid(4, "0 items", "at least 1"));
    }
    for (index, &dimension) in dimensions.iter().enumerate() {
        let found = word(2 + index)?;
        if found != dimension {
            return Err(file.invalid(8 + 4 * index, format!("dimension {found}"), dimension.to_string()));
        }
    }
    let item: usize = dimensions.iter().map(|&dimension| dimension as usize).product();
    let expected = 8 + 4 * dimensions.len() + count * item;
    if file.bytes.len() != expected {
        let at = file.bytes.len().min(expected);
        let found = format!("a file of {} bytes", file.bytes.len());
        return Err(file.invalid(at, found, format!("{expected} bytes for {count} items of {item}")));
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};
    use tempfile::TempDir;

    use super::*;

    const PLAIN: Normalization = Normalization { mean: 0.0, deviation: 1.0 };

    fn images(count: u32) -> Vec<u8> {
        let mut bytes: Vec<u8> = [IMAGES, count, 28, 28].iter().flat_map(|word| word.to_be_bytes()).collect();
        bytes.extend((0..count * 784).map(|pixel| (pixel % 251) as u8));
        bytes
    }

    fn labels(labels: &[u8]) -> Vec<u8> {
        let mut bytes: Vec<u8> = [LABELS, labels.len() as u32].iter().flat_map(|word| word.to_be_bytes()).collect();
        bytes.extend(labels);
        bytes
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn folder() -> TempDir {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("train-images-idx3-ubyte.gz"), gzip(&images(3))).unwrap();
        // A plain file with the name of a gzip file, and a gzip file with the name of a plain one.
        fs::write(folder.path().join("train-labels-idx1-ubyte.gz"), labels(&[0, 9, 5])).unwrap();
        fs::write(folder.path().join("t10k-images-idx3-ubyte"), gzip(&images(1))).unwrap();
        fs::write(folder.path().join("t10k-labels-idx1-ubyte"), labels(&[7])).unwrap();
        folder
    }

    #[test]
    fn the_content_decides_between_plain_and_gzip() {
        let folder = folder();
        let splits = load(folder.path(), PLAIN).unwrap();
        assert_eq!(splits.train().labels(), [0, 9, 5]);
        assert_eq!(splits.held_out().labels(), [7]);
        assert_eq!(splits.train().pixels(2)[783], ((3 * 784 - 1) % 251) as u8);
    }

    #[test]
    fn errors_name_the_file_and_the_offset() {
        let long = [images(3), vec![0; 5]].concat();
        let mut narrow = images(3);
        narrow[15] = 27;
        let mut corrupt = gzip(&images(3));
        let checksum = corrupt.len() - 8;
        corrupt[checksum] ^= 1;
        let cut = gzip(&images(3));
        let cases: [(&str, &[u8], &str); 10] = [
            (
                "train-images-idx3-ubyte.gz",
                &labels(&[0; 3]),
                "byte 0: found magic number 0x00000801; expected 0x00000803",
            ),
            (
                "train-images-idx3-ubyte.gz",
                &images(3)[..10],
                "byte 10: found the end of the file; expected a header of 16",
            ),
            ("train-images-idx3-ubyte.gz", &images(3)[..800], "byte 800: found a file of 800 bytes; expected 2368"),
            ("train-images-idx3-ubyte.gz", &long, "byte 2368: found a file of 2373 bytes; expected 2368"),
            ("train-images-idx3-ubyte.gz", &narrow, "byte 12: found dimension 27; expected 28"),
            ("train-images-idx3-ubyte.gz", &images(0), "byte 4: found 0 items"),
            ("train-images-idx3-ubyte.gz", &cut[..cut.len() - 20], "truncated gzip"),
            ("train-images-idx3-ubyte.gz", &corrupt, "corrupt gzip"),
            ("train-labels-idx1-ubyte.gz", &labels(&[0, 9]), "byte 4: found 2 labels; expected 3"),
            ("train-labels-idx1-ubyte.gz", &labels(&[0, 10, 3]), "byte 9: found label 10; expected a label below 10"),
        ];
        for (name, bytes, expected) in cases {
            let folder = folder();
            fs::write(folder.path().join(name), bytes).unwrap();
            let error = load(folder.path(), PLAIN).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(expected), "{error}\nlacks {expected}");
        }
        let folder = folder();
        fs::remove_file(folder.path().join("t10k-labels-idx1-ubyte")).unwrap();
        let error = load(folder.path(), PLAIN).unwrap_err().to_string();
        assert!(
            error.contains("file not found; expected t10k-labels-idx1-ubyte or t10k-labels-idx1-ubyte.gz"),
            "{error}"
        );
    }
}
