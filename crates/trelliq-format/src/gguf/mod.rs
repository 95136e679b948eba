//! GGUF files.

use crate::FormatError;
use crate::source::Parts;
use std::path::Path;

pub(crate) mod blocks;

pub(crate) fn open(path: &Path) -> Result<Parts, FormatError> {
    let reason = "it is not a directory".to_owned();
    Err(FormatError::NotAModel { path: path.to_owned(), reason })
}
