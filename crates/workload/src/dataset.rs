//! Labelled images in memory, as bytes. They are normalized only when gathered into a batch.

use std::sync::Arc;

use thiserror::Error;

/// Mean and standard deviation of the pixel values of one channel, scaled to 0..1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Normalization {
    /// Subtracted from every value.
    pub mean: f32,
    /// Divides the difference; above 0.
    pub deviation: f32,
}

impl Normalization {
    /// The normalization that gives `pixels` mean 0 and deviation 1. If all pixels are equal, they are only centred.
    pub fn of(pixels: &[u8]) -> Self {
        let count = pixels.len().max(1) as f64;
        let total: u64 = pixels.iter().map(|&pixel| u64::from(pixel)).sum();
        let squares: u64 = pixels.iter().map(|&pixel| u64::from(pixel).pow(2)).sum();
        let mean = total as f64 / count;
        let variance = squares as f64 / count - mean * mean;
        let deviation = if variance > 0.0 { variance.sqrt() / 255.0 } else { 1.0 };
        Normalization { mean: (mean / 255.0) as f32, deviation: deviation as f32 }
    }
}

/// Why a [`Dataset`] or [`Splits`] cannot be created.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum DatasetError {
    /// The data set has no sample, or its samples have no pixels.
    #[error("data set of {samples} samples of shape {shape:?}; expected at least 1 sample of at least 1 pixel")]
    Empty {
        /// Number of labels.
        samples: usize,
        /// Channels, height, width.
        shape: [usize; 3],
    },
    /// The number of pixels does not match the number of labels.
    #[error("{found} bytes of pixels for {samples} samples of shape {shape:?}; expected {expected}")]
    PixelCount {
        /// Number of labels.
        samples: usize,
        /// Channels, height, width.
        shape: [usize; 3],
        /// Bytes for this number of samples.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// A label is not below the number of classes.
    #[error("sample {sample} has label {label}; expected 0 to {}", classes - 1)]
    Label {
        /// Index of the sample.
        sample: usize,
        /// Its label.
        label: u8,
        /// Number of classes.
        classes: usize,
    },
    /// The normalization does not have one valid entry per channel.
    #[error(
        "normalization {found:?}; expected {channels}, one per channel, each with a finite mean and a deviation above 0"
    )]
    Normalization {
        /// Channels of a sample.
        channels: usize,
        /// The given normalizations.
        found: Vec<Normalization>,
    },
    /// Training and held-out samples differ in shape or classes.
    #[error(
        "held-out samples of shape {held_out:?} in {held_out_classes} classes; expected {train:?} in {train_classes}, \
         as for training"
    )]
    Splits {
        /// Shape of the training samples.
        train: [usize; 3],
        /// Classes of the training samples.
        train_classes: usize,
        /// Shape of the held-out samples.
        held_out: [usize; 3],
        /// Classes of the held-out samples.
        held_out_classes: usize,
    },
}

/// Labelled images: at least one, all of the same shape.
#[derive(Debug, Clone, PartialEq)]
pub struct Dataset {
    pixels: Vec<u8>,
    labels: Vec<u8>,
    shape: [usize; 3],
    classes: usize,
    normalization: Vec<Normalization>,
}

impl Dataset {
    /// A data set of these samples. `pixels` holds the samples one after another, each channel by channel, each channel
    /// row by row. `shape` is channels, height, width. `normalization` has one entry per channel.
    ///
    /// # Errors
    /// If the arguments do not match each other, or the data set is empty.
    pub fn new(
        pixels: Vec<u8>,
        labels: Vec<u8>,
        shape: [usize; 3],
        classes: usize,
        normalization: Vec<Normalization>,
    ) -> Result<Self, DatasetError> {
        let samples = labels.len();
        let expected = samples * shape.iter().product::<usize>();
        if expected == 0 {
            return Err(DatasetError::Empty { samples, shape });
        }
        if pixels.len() != expected {
            return Err(DatasetError::PixelCount { samples, shape, expected, found: pixels.len() });
        }
        let wrong = |&(_, &label): &(usize, &u8)| usize::from(label) >= classes;
        if let Some((sample, &label)) = labels.iter().enumerate().find(wrong) {
            return Err(DatasetError::Label { sample, label, classes });
        }
        let usable = |n: &Normalization| n.mean.is_finite() && n.deviation.is_finite() && n.deviation > 0.0;
        if normalization.len() != shape[0] || !normalization.iter().all(usable) {
            return Err(DatasetError::Normalization { channels: shape[0], found: normalization });
        }
        Ok(Dataset { pixels, labels, shape, classes, normalization })
    }

    /// Number of samples, at least 1.
    #[allow(clippy::len_without_is_empty, reason = "a data set is never empty")]
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Channels, height, width of every sample.
    pub fn shape(&self) -> [usize; 3] {
        self.shape
    }

    /// Numbers in one sample: channels × height × width.
    pub fn features(&self) -> usize {
        self.shape.iter().product()
    }

    /// Number of classes; every label is below this number.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// The label of each sample.
    pub fn labels(&self) -> &[u8] {
        &self.labels
    }

    /// The raw pixels of one sample, channel by channel, row by row.
    pub fn pixels(&self, sample: usize) -> &[u8] {
        let features = self.features();
        &self.pixels[sample * features..][..features]
    }

    /// Replaces `features` and `labels` by those of the samples at `indices`, in that order. Features are normalized.
    ///
    /// # Panics
    /// If an index is not below [`len`](Self::len).
    pub fn gather(&self, indices: &[usize], features: &mut Vec<f32>, labels: &mut Vec<u8>) {
        features.clear();
        labels.clear();
        features.reserve(indices.len() * self.features());
        let plane = self.shape[1] * self.shape[2];
        for &index in indices {
            labels.push(self.labels[index]);
            let channels = self.pixels(index).chunks_exact(plane);
            for (pixels, normalization) in channels.zip(&self.normalization) {
                let scale = 1.0 / (255.0 * normalization.deviation);
                let shift = -normalization.mean / normalization.deviation;
                features.extend(pixels.iter().map(|&pixel| f32::from(pixel) * scale + shift));
            }
        }
    }
}

/// Training samples and held-out samples, of the same shape and classes.
#[derive(Debug, Clone)]
pub struct Splits {
    train: Arc<Dataset>,
    held_out: Arc<Dataset>,
}

impl Splits {
    /// Pairs two data sets.
    ///
    /// # Errors
    /// If their shapes or classes differ.
    pub fn new(train: Dataset, held_out: Dataset) -> Result<Self, DatasetError> {
        if (train.shape, train.classes) != (held_out.shape, held_out.classes) {
            return Err(DatasetError::Splits {
                train: train.shape,
                train_classes: train.classes,
                held_out: held_out.shape,
                held_out_classes: held_out.classes,
            });
        }
        Ok(Splits { train: Arc::new(train), held_out: Arc::new(held_out) })
    }

    /// The samples to train on.
    pub fn train(&self) -> &Arc<Dataset> {
        &self.train
    }

    /// The samples to evaluate on, which are never trained on.
    pub fn held_out(&self) -> &Arc<Dataset> {
        &self.held_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Normalization = Normalization { mean: 0.0, deviation: 1.0 };

    #[test]
    fn gathers_normalized_channels_in_the_requested_order() {
        let halves = Normalization { mean: 0.5, deviation: 0.5 };
        let pixels = vec![0, 255, 0, 255, 255, 255, 255, 255];
        let dataset = Dataset::new(pixels, vec![0, 1], [2, 1, 2], 2, vec![PLAIN, halves]).unwrap();
        let (mut features, mut labels) = (vec![9.0], vec![9]);
        dataset.gather(&[1, 0, 1], &mut features, &mut labels);
        assert_eq!(labels, [1, 0, 1]);
        let expected = [1., 1., 1., 1., 0., 1., -1., 1., 1., 1., 1., 1.];
        assert_eq!(features.len(), expected.len());
        for (found, expected) in features.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{found} {expected}");
        }
    }

    #[test]
    fn measured_normalization_centres_and_scales() {
        let measured = Normalization::of(&[0, 255, 0, 255]);
        assert_eq!((measured.mean, measured.deviation), (0.5, 0.5));
        assert_eq!(Normalization::of(&[7, 7]).deviation, 1.0);
    }

    #[test]
    fn errors_name_the_value_and_what_is_expected() {
        let rejection = |pixels: usize, labels: &[u8], normalization: &[Normalization]| {
            Dataset::new(vec![0; pixels], labels.to_vec(), [1, 2, 2], 3, normalization.to_vec())
                .unwrap_err()
                .to_string()
        };
        assert!(rejection(0, &[], &[PLAIN]).contains("data set of 0 samples"));
        assert!(
            rejection(7, &[0, 1], &[PLAIN]).contains("7 bytes of pixels for 2 samples of shape [1, 2, 2]; expected 8")
        );
        assert!(rejection(8, &[0, 3], &[PLAIN]).contains("sample 1 has label 3; expected 0 to 2"));
        assert!(rejection(8, &[0, 1], &[]).contains("normalization []; expected 1, one per channel"));
        let flat = Normalization { mean: 0.0, deviation: 0.0 };
        assert!(rejection(8, &[0, 1], &[flat]).contains("deviation: 0.0"));
        let of = |classes| Dataset::new(vec![0; 4], vec![0], [1, 2, 2], classes, vec![PLAIN]).unwrap();
        assert!(Splits::new(of(3), of(4)).is_err());
    }
}
