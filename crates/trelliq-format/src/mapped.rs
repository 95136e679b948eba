//! Read-only maps of files.

use crate::FormatError;
use memmap2::{Mmap, MmapMut};
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file that is mapped for reading; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct MappedFile {
    pub path: Arc<PathBuf>,
    pub map: Arc<Mmap>,
    /// Whether the bytes can be read again once their pages are dropped.
    from_file: bool,
}

impl MappedFile {
    pub fn open(path: &Path) -> Result<Self, FormatError> {
        let file = File::open(path).map_err(FormatError::io("open", path))?;
        // SAFETY: the map is read-only and private to the process; a model's files are not
        // written to while they are open, the assumption that every mapping reader makes.
        let map = unsafe { Mmap::map(&file) }.map_err(FormatError::io("map", path))?;
        Ok(Self { path: Arc::new(path.to_owned()), map: Arc::new(map), from_file: true })
    }

    /// A copy of bytes in memory under a name of its own.
    pub fn in_memory(name: &Path, bytes: &[u8]) -> Result<Self, FormatError> {
        let mut map = MmapMut::map_anon(bytes.len()).map_err(FormatError::io("hold", name))?;
        map.copy_from_slice(bytes);
        let map = map.make_read_only().map_err(FormatError::io("hold", name))?;
        Ok(Self { path: Arc::new(name.to_owned()), map: Arc::new(map), from_file: false })
    }

    /// Lets the system drop the resident pages that hold `bytes`; reading them again fetches them
    /// from the file. Advice only: a refusal changes nothing but memory in use.
    pub fn release(&self, bytes: Range<usize>) {
        #[cfg(unix)]
        if self.from_file && !bytes.is_empty() && bytes.end <= self.map.len() {
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
