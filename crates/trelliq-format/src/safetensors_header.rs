//! The header of a safetensors file, checked so that every fault names its tensor.
//!
//! The safetensors crate's own reader stays the judge of what a valid file is, but it keeps the
//! last of two equal names and names no tensor in most of its errors, so the entries are first
//! read one by one here.

use crate::{FormatError, TensorType};
use safetensors::SafeTensors;
use safetensors::tensor::TensorInfo as Entry;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use std::collections::HashSet;
use std::fmt;
use std::ops::Range;
use std::path::Path;

/// A tensor of a file: `bytes` are counted from the file's start.
#[derive(Debug, Clone, PartialEq)]
pub struct HeaderTensor {
    pub name: String,
    pub dtype: TensorType,
    pub shape: Vec<usize>,
    pub bytes: Range<usize>,
}

/// Parses the header of a whole safetensors file; `file` is only named in errors.
///
/// Tensors come in the order of their data. Errors when the header is not valid, a name comes
/// twice, data overlaps, has gaps or leaves the file, or a shape disagrees with its bytes.
pub fn parse_safetensors_header(
    file: &Path,
    bytes: &[u8],
) -> Result<Vec<HeaderTensor>, FormatError> {
    let (json, data) = split(file, bytes)?;
    let Entries(mut entries) =
        serde_json::from_slice(json).map_err(|e| FormatError::header(file, e.to_string()))?;
    let mut names = HashSet::new();
    if let Some((name, _)) = entries.iter().find(|(name, _)| !names.insert(name.as_str())) {
        let (first, second) = (file.to_owned(), file.to_owned());
        return Err(FormatError::DuplicateTensor { tensor: name.clone(), first, second });
    }
    for (name, entry) in &entries {
        check_entry(file, name, entry, data, bytes.len())?;
    }
    // A tensor without bytes comes before the one that starts at the same byte.
    entries.sort_by(|(a, x), (b, y)| x.data_offsets.cmp(&y.data_offsets).then(a.cmp(b)));
    check_neighbours(file, &entries)?;
    SafeTensors::read_metadata(bytes).map_err(|e| FormatError::header(file, e.to_string()))?;
    let place = |(name, entry): (String, Entry)| HeaderTensor {
        name,
        dtype: TensorType::Plain(entry.dtype),
        shape: entry.shape,
        bytes: data + entry.data_offsets.0..data + entry.data_offsets.1,
    };
    Ok(entries.into_iter().map(place).collect())
}

/// The header's JSON and the byte at which tensor data starts.
fn split<'a>(file: &Path, bytes: &'a [u8]) -> Result<(&'a [u8], usize), FormatError> {
    let malformed = || {
        let reason = format!("a header does not fit in {} bytes: it is truncated", bytes.len());
        FormatError::header(file, reason)
    };
    let (len, rest) = bytes.split_first_chunk::<8>().ok_or_else(malformed)?;
    let len = usize::try_from(u64::from_le_bytes(*len)).map_err(|_| malformed())?;
    Ok((rest.get(..len).ok_or_else(malformed)?, 8 + len))
}

fn check_entry(
    file: &Path,
    name: &str,
    entry: &Entry,
    data: usize,
    file_len: usize,
) -> Result<(), FormatError> {
    let (start, end) = entry.data_offsets;
    let reason = |reason: String| Err(FormatError::tensor(file, name, reason));
    let elements = entry.shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
    let Some(bits) = elements.and_then(|n| n.checked_mul(entry.dtype.bitsize())) else {
        return reason(format!("shape {:?} overflows", entry.shape));
    };
    if end < start {
        return reason(format!("its data ends at {end}, before its start {start}"));
    }
    if bits % 8 != 0 || end - start != bits / 8 {
        let (dtype, shape, found) = (entry.dtype, &entry.shape, end - start);
        return reason(format!("{found} bytes of data do not hold shape {shape:?} of {dtype}"));
    }
    match data.checked_add(end) {
        Some(end) if end <= file_len => Ok(()),
        end => {
            let (file, tensor) = (file.to_owned(), name.to_owned());
            let end = end.map_or(u64::MAX, |end| end as u64);
            Err(FormatError::Truncated { file, tensor, end, len: file_len as u64 })
        }
    }
}

/// Data must be contiguous: the next tensor starts where the one before it ends.
fn check_neighbours(file: &Path, entries: &[(String, Entry)]) -> Result<(), FormatError> {
    for pair in entries.windows(2) {
        let [(name, before), (other, after)] = pair else {
            continue;
        };
        let (end, start) = (before.data_offsets.1, after.data_offsets.0);
        if start < end {
            let (tensor, other) = (name.clone(), other.clone());
            return Err(FormatError::Overlap { file: file.to_owned(), tensor, other });
        }
        if start > end {
            let reason = format!("{} bytes before its data belong to no tensor", start - end);
            return Err(FormatError::tensor(file, other, reason));
        }
    }
    Ok(())
}

/// All entries of a header in the file's order, equal names included.
struct Entries(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map from tensor names to dtype, shape and data_offsets")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        entries.push((name, map.next_value()?));
                    }
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}
