//! Read-only maps of files.

use crate::FormatError;
use memmap2::Mmap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file that is mapped for reading; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct MappedFile {
    pub path: Arc<PathBuf>,
    pub map: Arc<Mmap>,
}

impl MappedFile {
    pub fn open(path: &Path) -> Result<Self, FormatError> {
        let file = File::open(path).map_err(FormatError::io("open", path))?;
        // SAFETY: the map is read-only and private to the process; a model's files are not
        // written to while they are open, the assumption that every mapping reader makes.
        let map = unsafe { Mmap::map(&file) }.map_err(FormatError::io("map", path))?;
        Ok(Self { path: Arc::new(path.to_owned()), map: Arc::new(map) })
    }

    /// Lets the system drop the resident pages that hold `bytes`; reading them again fetches them
    /// from the file. Advice only: a refusal changes nothing but memory in use.
    pub fn release(&self, bytes: Range<usize>) {
        #[cfg(unix)]
        if !bytes.is_empty() && bytes.end <= self.map.len() {
            use memmap2::UncheckedAdvice::DontNeed;
            let (start, len) = (bytes.start, bytes.len());
            // SAFETY: the map is a read-only map of a file, so that dropped pages are read again
            // with the same bytes; nothing is written through it that could be lost.
            let _ = unsafe { self.map.unchecked_advise_range(DontNeed, start, len) };
        }
        #[cfg(not(unix))]
        let _ = bytes;
    }
}
