//! The header of a GGUF file: metadata and the places of tensors.
//!
//! candle's `gguf_file::Content::read` is not used. It checks lengths against the file, but divides
//! by a `general.alignment` of zero, keeps one of two tensors of equal name, checks neither that
//! tensors lie apart nor that their sizes do not overflow, names no tensor in most errors and
//! holds each element of an array in 32 bytes. This parser borrows everything from the mapped
//! file, so that what it allocates is bounded by the number of entries that the file really has.

use crate::cursor::Cursor;
use crate::{BlockType, Dtype, FormatError, TensorType};
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::path::Path;

const MAGIC: &[u8; 4] = b"GGUF";
const MAX_DIMS: u32 = 4;
const ALIGNMENT_KEY: &str = "general.alignment";
const DEFAULT_ALIGNMENT: u64 = 32;

/// A metadata value, borrowed from the file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum GgufValue<'a> {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Text(&'a str),
    Array(GgufArray<'a>),
}

/// The type of an array's items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    Array,
    U64,
    I64,
    F64,
}

impl Kind {
    fn from_code(code: u32) -> Option<Self> {
        const KINDS: [Kind; 13] = [
            Kind::U8,
            Kind::I8,
            Kind::U16,
            Kind::I16,
            Kind::U32,
            Kind::I32,
            Kind::F32,
            Kind::Bool,
            Kind::Text,
            Kind::Array,
            Kind::U64,
            Kind::I64,
            Kind::F64,
        ];
        KINDS.get(code as usize).copied()
    }

    /// Bytes of an item that has a fixed size.
    fn size(self) -> Option<usize> {
        match self {
            Kind::U8 | Kind::I8 | Kind::Bool => Some(1),
            Kind::U16 | Kind::I16 => Some(2),
            Kind::U32 | Kind::I32 | Kind::F32 => Some(4),
            Kind::U64 | Kind::I64 | Kind::F64 => Some(8),
            Kind::Text | Kind::Array => None,
        }
    }
}

/// An array of a metadata value; its items are decoded as they are iterated over.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GgufArray<'a> {
    kind: Kind,
    len: usize,
    bytes: &'a [u8],
}

impl<'a> GgufArray<'a> {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The items in order.
    pub fn iter(&self) -> impl Iterator<Item = GgufValue<'a>> + use<'a> {
        let (kind, mut cursor) = (self.kind, Cursor::new(self.bytes));
        // Every item was read once when the header was parsed, so this ends with the last item.
        (0..self.len).map_while(move |_| read_value(&mut cursor, kind).ok())
    }
}

/// A tensor as the file describes it: GGUF's name, its shape outermost first, and its bytes counted
/// from the file's start.
#[derive(Debug, Clone, PartialEq)]
pub struct GgufTensor<'a> {
    pub name: &'a str,
    pub dtype: TensorType,
    pub shape: Vec<usize>,
    pub bytes: Range<usize>,
}

/// A parsed header.
#[derive(Debug, Clone, PartialEq)]
pub struct GgufHeader<'a> {
    pub metadata: BTreeMap<&'a str, GgufValue<'a>>,
    /// In the file's order.
    pub tensors: Vec<GgufTensor<'a>>,
}

/// Parses the header of a whole GGUF file of version 2 or 3; `file` is only named in errors.
///
/// Errors when the file is truncated, a name comes twice, a type is not known, or a tensor's data
/// is misaligned, overlaps another's or leaves the file.
pub fn parse_gguf_header<'a>(file: &Path, bytes: &'a [u8]) -> Result<GgufHeader<'a>, FormatError> {
    let malformed = |reason: String| FormatError::header(file, reason);
    let mut cursor = Cursor::new(bytes);
    if cursor.take(4).ok() != Some(MAGIC) {
        return Err(malformed("it does not start with `GGUF`".to_owned()));
    }
    let version = cursor.u32().map_err(malformed)?;
    if !(2..=3).contains(&version) {
        return Err(malformed(format!("version {version} is neither 2 nor 3")));
    }
    let tensor_count = cursor.u64().map_err(malformed)?;
    let metadata_count = cursor.u64().map_err(malformed)?;
    let mut metadata = BTreeMap::new();
    for _ in 0..metadata_count {
        let key = cursor.text().map_err(malformed)?;
        let value = read_typed(&mut cursor).map_err(|e| malformed(format!("`{key}`: {e}")))?;
        if metadata.insert(key, value).is_some() {
            return Err(malformed(format!("the metadata key `{key}` comes twice")));
        }
    }
    let mut described = Vec::new();
    for _ in 0..tensor_count {
        described.push(describe(file, &mut cursor)?);
    }
    let alignment = alignment(metadata.get(ALIGNMENT_KEY)).map_err(malformed)?;
    let data = (cursor.position() as u64).next_multiple_of(alignment);
    let tensors = place(file, described, data, alignment, bytes.len() as u64)?;
    Ok(GgufHeader { metadata, tensors })
}

fn alignment(value: Option<&GgufValue>) -> Result<u64, String> {
    match value {
        None => Ok(DEFAULT_ALIGNMENT),
        // Bounded, so that no position near it overflows.
        Some(GgufValue::Unsigned(n)) if n.is_power_of_two() && *n <= 1 << 32 => Ok(*n),
        Some(other) => Err(format!("`{ALIGNMENT_KEY}` is {other:?}, not a power of two")),
    }
}

/// A tensor whose offset still counts from the start of the data.
struct Described<'a> {
    name: &'a str,
    dtype: TensorType,
    shape: Vec<usize>,
    len: u64,
    offset: u64,
}

fn describe<'a>(file: &Path, cursor: &mut Cursor<'a>) -> Result<Described<'a>, FormatError> {
    let malformed = |reason| FormatError::header(file, reason);
    let name = cursor.text().map_err(malformed)?;
    let error = |reason: String| FormatError::tensor(file, name, reason);
    let dims = cursor.u32().map_err(error)?;
    if dims > MAX_DIMS {
        return Err(error(format!("it has {dims} dimensions, more than {MAX_DIMS}")));
    }
    let mut shape = Vec::new();
    for _ in 0..dims {
        let dim = usize::try_from(cursor.u64().map_err(error)?);
        shape.push(dim.map_err(|_| error("a dimension is too large".to_owned()))?);
    }
    shape.reverse();
    let code = cursor.u32().map_err(error)?;
    let offset = cursor.u64().map_err(error)?;
    let dtype = tensor_type(code).ok_or_else(|| error(unknown_type(code)))?;
    let elements = shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
    let elements = elements.ok_or_else(|| error(format!("shape {shape:?} overflows")))?;
    let row = shape.last().copied().unwrap_or(1);
    let (block, block_bytes) = (dtype.block_len(), dtype.block_bytes());
    if !row.is_multiple_of(block) {
        return Err(error(format!("rows of {row} are not whole blocks of {block} ({dtype})")));
    }
    let len = (elements / block).checked_mul(block_bytes);
    let len = len.ok_or_else(|| error(format!("shape {shape:?} overflows")))? as u64;
    Ok(Described { name, dtype, shape, len, offset })
}

/// Checks where tensors lie: inside of the file, aligned and apart.
fn place<'a>(
    file: &Path,
    described: Vec<Described<'a>>,
    data: u64,
    alignment: u64,
    file_len: u64,
) -> Result<Vec<GgufTensor<'a>>, FormatError> {
    let mut names = HashSet::new();
    let mut tensors = Vec::new();
    for Described { name, dtype, shape, len, offset } in described {
        if !names.insert(name) {
            let (first, second) = (file.to_owned(), file.to_owned());
            return Err(FormatError::DuplicateTensor { tensor: name.to_owned(), first, second });
        }
        if !offset.is_multiple_of(alignment) {
            let reason = format!("its offset {offset} is no multiple of {alignment}");
            return Err(FormatError::tensor(file, name, reason));
        }
        let start = data.saturating_add(offset);
        let end = start.saturating_add(len);
        if end > file_len {
            let (file, tensor) = (file.to_owned(), name.to_owned());
            return Err(FormatError::Truncated { file, tensor, end, len: file_len });
        }
        tensors.push(GgufTensor { name, dtype, shape, bytes: start as usize..end as usize });
    }
    let mut order: Vec<&GgufTensor> = tensors.iter().filter(|t| !t.bytes.is_empty()).collect();
    order.sort_by_key(|tensor| tensor.bytes.start);
    for pair in order.windows(2) {
        if let [before, after] = pair
            && after.bytes.start < before.bytes.end
        {
            let (tensor, other) = (before.name.to_owned(), after.name.to_owned());
            return Err(FormatError::Overlap { file: file.to_owned(), tensor, other });
        }
    }
    Ok(tensors)
}

/// `ggml_type` of ggml.h, without the types that no reader here understands.
fn tensor_type(code: u32) -> Option<TensorType> {
    let plain = |dtype| Some(TensorType::Plain(dtype));
    let block = |block| Some(TensorType::Block(block));
    match code {
        0 => plain(Dtype::F32),
        1 => plain(Dtype::F16),
        2 => block(BlockType::Q4_0),
        3 => block(BlockType::Q4_1),
        6 => block(BlockType::Q5_0),
        7 => block(BlockType::Q5_1),
        8 => block(BlockType::Q8_0),
        10 => block(BlockType::Q2_K),
        11 => block(BlockType::Q3_K),
        12 => block(BlockType::Q4_K),
        13 => block(BlockType::Q5_K),
        14 => block(BlockType::Q6_K),
        15 => block(BlockType::Q8_K),
        24 => plain(Dtype::I8),
        25 => plain(Dtype::I16),
        26 => plain(Dtype::I32),
        27 => plain(Dtype::I64),
        28 => plain(Dtype::F64),
        30 => plain(Dtype::BF16),
        _ => None,
    }
}

fn unknown_type(code: u32) -> String {
    let name = match code {
        9 => " (Q8_1)",
        16..=19 | 21..=23 | 29 => " (an IQ type)",
        20 => " (IQ4_NL)",
        34 | 35 => " (a ternary type)",
        39 => " (MXFP4)",
        _ => "",
    };
    format!(
        "its type {code}{name} is not known: known are F32, F16, BF16, Q4_0 to Q8_0 and Q2_K to Q8_K"
    )
}

fn read_typed<'a>(cursor: &mut Cursor<'a>) -> Result<GgufValue<'a>, String> {
    let kind = read_kind(cursor)?;
    if kind != Kind::Array {
        return read_value(cursor, kind);
    }
    let kind = read_kind(cursor)?;
    let len = cursor.u64()?;
    let len = usize::try_from(len).map_err(|_| format!("an array of {len} items"))?;
    let start = cursor.position();
    match kind.size() {
        Some(size) => {
            cursor.take(len.checked_mul(size).ok_or("an array's size overflows")?)?;
        }
        // An array in an array is not written by any converter.
        None if kind == Kind::Array => return Err("arrays of arrays are not supported".to_owned()),
        None => {
            for _ in 0..len {
                cursor.text()?;
            }
        }
    }
    let array = GgufArray { kind, len, bytes: cursor.since(start) };
    // A bool may be malformed where every other fixed size is not.
    match kind == Kind::Bool && array.iter().count() < len {
        true => Err("a bool is neither 0 nor 1".to_owned()),
        false => Ok(GgufValue::Array(array)),
    }
}

fn read_kind(cursor: &mut Cursor) -> Result<Kind, String> {
    let code = cursor.u32()?;
    Kind::from_code(code).ok_or_else(|| format!("value type {code} is not known"))
}

fn read_value<'a>(cursor: &mut Cursor<'a>, kind: Kind) -> Result<GgufValue<'a>, String> {
    Ok(match kind {
        Kind::U8 => GgufValue::Unsigned(u8::from_le_bytes(cursor.array()?).into()),
        Kind::U16 => GgufValue::Unsigned(u16::from_le_bytes(cursor.array()?).into()),
        Kind::U32 => GgufValue::Unsigned(u32::from_le_bytes(cursor.array()?).into()),
        Kind::U64 => GgufValue::Unsigned(u64::from_le_bytes(cursor.array()?)),
        Kind::I8 => GgufValue::Signed(i8::from_le_bytes(cursor.array()?).into()),
        Kind::I16 => GgufValue::Signed(i16::from_le_bytes(cursor.array()?).into()),
        Kind::I32 => GgufValue::Signed(i32::from_le_bytes(cursor.array()?).into()),
        Kind::I64 => GgufValue::Signed(i64::from_le_bytes(cursor.array()?)),
        Kind::F32 => GgufValue::Float(f32::from_le_bytes(cursor.array()?).into()),
        Kind::F64 => GgufValue::Float(f64::from_le_bytes(cursor.array()?)),
        Kind::Bool => match cursor.array()? {
            [0] => GgufValue::Bool(false),
            [1] => GgufValue::Bool(true),
            [other] => return Err(format!("a bool is {other}")),
        },
        Kind::Text => GgufValue::Text(cursor.text()?),
        Kind::Array => return Err("an array in an array".to_owned()),
    })
}
