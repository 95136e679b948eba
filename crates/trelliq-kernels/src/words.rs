//! Storage of packed words: owned, or a window of a mapped file.

use crate::KernelError;
use memmap2::Mmap;
use std::ops::Deref;
use std::sync::Arc;

/// Little-endian u32 code words; cheap to clone.
#[derive(Clone, Debug)]
pub struct Words(Storage);

#[derive(Clone, Debug)]
enum Storage {
    Owned(Arc<[u32]>),
    Mapped { map: Arc<Mmap>, offset: usize, len: usize },
}

impl Words {
    /// `len` words from byte `offset` of a mapped file, without a copy.
    ///
    /// Errors when the window leaves the file or is not 4-byte aligned.
    pub fn mapped(map: Arc<Mmap>, offset: usize, len: usize) -> Result<Self, KernelError> {
        let error = KernelError::Mapping { offset, len, file: map.len() };
        let end = len.checked_mul(4).and_then(|bytes| bytes.checked_add(offset));
        if end.is_none_or(|end| end > map.len()) || !offset.is_multiple_of(4) {
            return Err(error);
        }
        Ok(Self(Storage::Mapped { map, offset, len }))
    }
}

impl From<Vec<u32>> for Words {
    fn from(words: Vec<u32>) -> Self {
        Self(Storage::Owned(words.into()))
    }
}

impl Deref for Words {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        match &self.0 {
            Storage::Owned(words) => words,
            Storage::Mapped { map, offset, len } => {
                let bytes = &map[*offset..*offset + 4 * len];
                // SAFETY: any bit pattern is a u32; `mapped` checked the window, and a map starts on
                // a page, so a 4-aligned offset gives a 4-aligned pointer.
                unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), *len) }
            }
        }
    }
}

#[cfg(target_endian = "big")]
compile_error!("packed words are read in place as little-endian u32");
