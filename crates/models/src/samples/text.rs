//! Windows of a text for networks that read `Tensor<2, Int>`.

use std::ops::Range;

use burn::tensor::{Device, Int, Tensor};
use paceline_workload::{Draw, Sampler, Text};

use super::{Batch, Samples, Sampling, classes};
use crate::error::ModelError;

/// Windows of a fixed number of characters. The target of each character is the next one.
///
/// A training sample is a window at any position of the text. The held-out part is cut into adjacent windows.
#[derive(Debug)]
pub struct TextWindows {
    text: Text,
    context: usize,
    sampler: Sampler,
}

impl TextWindows {
    /// Windows of `context` characters, drawn from the training part of `text` as `sampling` specifies. With a
    /// partition by class, each worker has a contiguous section of the text.
    ///
    /// # Errors
    /// If the training part or the held-out part is not longer than `context`, or the windows cannot be split among the
    /// workers.
    pub fn new(text: Text, context: usize, sampling: &Sampling) -> Result<Self, ModelError> {
        let shorter = text.train().len().min(text.held_out().len());
        if shorter <= context {
            return Err(ModelError::ShortText { found: shorter, context });
        }
        let windows = text.train().len() - context;
        let sampler = sampling.sampler(&vec![0; windows])?;
        Ok(TextWindows { text, context, sampler })
    }

    fn batch(&self, tokens: &[u16], starts: &[usize], device: &Device) -> Batch<Tensor<2, Int>> {
        let shifted = |by: usize| {
            let windows = starts.iter().flat_map(move |start| &tokens[start + by..][..self.context]);
            classes(windows.map(|&token| i64::from(token)), device)
        };
        Batch { input: shifted(0).reshape([starts.len(), self.context]), targets: shifted(1) }
    }
}

impl Samples<Tensor<2, Int>> for TextWindows {
    fn draw(&self, draw: Draw, device: &Device) -> Batch<Tensor<2, Int>> {
        let mut starts = Vec::new();
        self.sampler.indices(draw, &mut starts);
        self.batch(self.text.train(), &starts, device)
    }

    fn held_out_len(&self) -> usize {
        (self.text.held_out().len() - 1) / self.context
    }

    fn held_out(&self, range: Range<usize>, device: &Device) -> Batch<Tensor<2, Int>> {
        let starts: Vec<usize> = range.map(|window| window * self.context).collect();
        self.batch(self.text.held_out(), &starts, device)
    }
}

#[cfg(test)]
mod tests {
    use paceline_workload::{Data, DataSource};

    use super::*;

    fn text(characters: usize) -> Text {
        let file = tempfile::NamedTempFile::new().unwrap();
        let alphabet: String = ('a'..='z').cycle().take(characters).collect();
        std::fs::write(file.path(), alphabet).unwrap();
        match DataSource::Text(file.path().into()).load(0).unwrap() {
            Data::Text(text) => text,
            Data::Images(_) | Data::Own => panic!("a text file holds text"),
        }
    }

    fn values<const D: usize>(tokens: Tensor<D, Int>) -> Vec<i64> {
        tokens.into_data_as::<i64>().try_into_vec().unwrap()
    }

    #[test]
    fn targets_are_the_next_characters() {
        let windows = TextWindows::new(text(1000), 8, &Sampling::default()).unwrap();
        let draw = Draw { worker: 0, offset: 5, samples: 3 };
        let batch = windows.draw(draw, &Device::flex());
        assert_eq!(batch.input.dims(), [3, 8]);
        let next: Vec<i64> = values(batch.input).iter().map(|token| (token + 1) % 26).collect();
        assert_eq!(next, values(batch.targets));
    }

    #[test]
    fn held_out_windows_are_adjacent() {
        let text = text(1000);
        let windows = TextWindows::new(text.clone(), 9, &Sampling::default()).unwrap();
        // 100 characters are held out. The last of 11 windows ends at the 99th, whose target is the 100th.
        assert_eq!(windows.held_out_len(), 11);
        let batch = windows.held_out(9..11, &Device::flex());
        let expected: Vec<i64> = text.held_out()[82..100].iter().map(|&token| i64::from(token)).collect();
        assert_eq!(values(batch.targets), expected);
    }

    #[test]
    fn a_short_text_is_rejected() {
        let error = TextWindows::new(text(640), 64, &Sampling::default()).unwrap_err();
        assert_eq!(error, ModelError::ShortText { found: 64, context: 64 });
    }
}
