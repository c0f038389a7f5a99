//! A text file as a stream of characters for a language model.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use super::FormatError;
use super::file::DataFile;

/// The characters of a file as tokens: the first nine tenths to train on, the rest held out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    vocabulary: Vec<char>,
    train: Arc<[u16]>,
    held_out: Arc<[u16]>,
}

impl Text {
    /// All characters of the file, ascending. A token is an index into this list.
    pub fn vocabulary(&self) -> &[char] {
        &self.vocabulary
    }

    /// The tokens to train on, in the order of the file.
    pub fn train(&self) -> &Arc<[u16]> {
        &self.train
    }

    /// The tokens to evaluate on, which follow those to [`train`](Self::train) on.
    pub fn held_out(&self) -> &Arc<[u16]> {
        &self.held_out
    }
}

/// Reads a UTF-8 file of at least ten characters.
pub(crate) fn load(path: &Path) -> Result<Text, FormatError> {
    let file = DataFile::read(path)?;
    let text = str::from_utf8(&file.bytes).map_err(|error| {
        let offset = error.valid_up_to();
        file.invalid(offset, format!("byte {:#04x}", file.bytes[offset]), "UTF-8 text")
    })?;
    let vocabulary: Vec<char> = text.chars().collect::<BTreeSet<_>>().into_iter().collect();
    let token = |character: char| {
        let index = vocabulary.binary_search(&character).ok()?;
        u16::try_from(index).ok()
    };
    let tokens: Option<Vec<u16>> = text.chars().map(token).collect();
    let Some(tokens) = tokens else {
        let found = format!("{} different characters", vocabulary.len());
        return Err(file.invalid(0, found, "at most 65536"));
    };
    if tokens.len() < 10 {
        let found = format!("the end after {} characters", tokens.len());
        return Err(file.invalid(file.bytes.len(), found, "at least 10"));
    }
    let (train, held_out) = tokens.split_at(tokens.len() - tokens.len() / 10);
    Ok(Text { train: train.into(), held_out: held_out.into(), vocabulary })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    fn loaded(bytes: &[u8]) -> Result<Text, FormatError> {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("text");
        fs::write(&path, bytes).unwrap();
        load(&path)
    }

    #[test]
    fn tokens_reproduce_the_file_and_the_last_tenth_is_held_out() {
        let content = "Größe, 重さ und Maß.\n".repeat(5);
        let text = loaded(content.as_bytes()).unwrap();
        let tokens = text.train().iter().chain(text.held_out().iter());
        let read: String = tokens.map(|&token| text.vocabulary()[usize::from(token)]).collect();
        assert_eq!(read, content);
        assert_eq!((text.train().len(), text.held_out().len()), (86, 9));
    }

    #[test]
    fn errors_name_the_offset() {
        let error = loaded(b"plain text, then \xff").unwrap_err().to_string();
        assert!(error.contains("byte 17: found byte 0xff; expected UTF-8"), "{error}");
        let error = loaded("kurz".as_bytes()).unwrap_err().to_string();
        assert!(error.contains("byte 4: found the end after 4 characters; expected at least 10"), "{error}");
    }
}
