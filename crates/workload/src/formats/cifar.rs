//! The binary version of CIFAR-10: records of one label byte and 3 × 32 × 32 pixels.

use std::path::Path;

use super::FormatError;
use super::file::DataFile;
use crate::dataset::{Dataset, Normalization, Splits};

const SHAPE: [usize; 3] = [3, 32, 32];
const RECORD: usize = 1 + 3 * 32 * 32;
const CLASSES: u8 = 10;
/// The folder inside the published archive.
pub(crate) const SUBFOLDER: &str = "cifar-10-batches-bin";

/// Reads all existing training batches (at least one) and the test batch from a folder or its [`SUBFOLDER`].
pub(crate) fn load(folder: &Path, normalization: [Normalization; 3]) -> Result<Splits, FormatError> {
    let subfolder = folder.join(SUBFOLDER);
    let folder = if subfolder.is_dir() { &subfolder } else { folder };
    let mut batches = Vec::new();
    for number in 1..=5 {
        match DataFile::find(folder, &format!("data_batch_{number}.bin")) {
            Err(FormatError::Missing { .. }) => {}
            found => batches.push(found?),
        }
    }
    if batches.is_empty() {
        batches.push(DataFile::find(folder, "data_batch_1.bin")?);
    }
    let train = dataset(&batches, normalization)?;
    let held_out = dataset(&[DataFile::find(folder, "test_batch.bin")?], normalization)?;
    Ok(Splits::new(train, held_out)?)
}

fn dataset(batches: &[DataFile], normalization: [Normalization; 3]) -> Result<Dataset, FormatError> {
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    for batch in batches {
        let (records, rest) = batch.bytes.as_chunks::<RECORD>();
        if !rest.is_empty() || records.is_empty() {
            let found = format!("{} bytes to the end of the file", rest.len());
            let expected = format!("a label and {} pixels, {RECORD} bytes", RECORD - 1);
            return Err(batch.invalid(records.len() * RECORD, found, expected));
        }
        for (index, [label, image @ ..]) in records.iter().enumerate() {
            if *label >= CLASSES {
                let expected = format!("a label below {CLASSES}");
                return Err(batch.invalid(index * RECORD, format!("label {label}"), expected));
            }
            labels.push(*label);
            pixels.extend(image);
        }
    }
    Ok(Dataset::new(pixels, labels, SHAPE, usize::from(CLASSES), normalization.to_vec())?)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    const PLAIN: [Normalization; 3] = [Normalization { mean: 0.0, deviation: 1.0 }; 3];

    fn records(labels: &[u8]) -> Vec<u8> {
        let record = |&label: &u8| [vec![label], vec![label * 2; RECORD - 1]].concat();
        labels.iter().flat_map(record).collect()
    }

    #[test]
    fn existing_batches_are_read_in_order() {
        let folder = TempDir::new().unwrap();
        let inner = folder.path().join(SUBFOLDER);
        fs::create_dir(&inner).unwrap();
        fs::write(inner.join("data_batch_4.bin"), records(&[4, 3])).unwrap();
        fs::write(inner.join("data_batch_2.bin"), records(&[9])).unwrap();
        fs::write(inner.join("test_batch.bin"), records(&[1])).unwrap();
        for path in [folder.path(), &inner] {
            let splits = load(path, PLAIN).unwrap();
            assert_eq!(splits.train().labels(), [9, 4, 3]);
            assert_eq!(splits.train().pixels(1), vec![8; 3072]);
            assert_eq!(splits.held_out().labels(), [1]);
        }
    }

    #[test]
    fn errors_name_the_file_and_the_offset() {
        let cases: [(&[u8], &str); 3] = [
            (&records(&[1, 2])[..4000], "data_batch_1.bin, byte 3073: found 927 bytes to the end"),
            (&[], "data_batch_1.bin, byte 0: found 0 bytes"),
            (&records(&[1, 2, 10]), "data_batch_1.bin, byte 6146: found label 10; expected a label below 10"),
        ];
        for (bytes, expected) in cases {
            let folder = TempDir::new().unwrap();
            let error = || load(folder.path(), PLAIN).unwrap_err().to_string();
            assert!(error().contains("file not found; expected data_batch_1.bin or data_batch_1.bin.gz"));
            fs::write(folder.path().join("data_batch_1.bin"), bytes).unwrap();
            assert!(error().contains(expected), "{}\nlacks {expected}", error());
            fs::write(folder.path().join("data_batch_1.bin"), records(&[1])).unwrap();
            assert!(error().contains("file not found; expected test_batch.bin"));
        }
    }
}
