use trelliq_codec::CodecError;

/// What can be wrong with a packed layer or with the operands of an operation on it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    #[error(transparent)]
    Codec(#[from] CodecError),
    #[error("{what} has {found} elements, expected {expected}")]
    Length { what: &'static str, found: usize, expected: usize },
    #[error("scale of stored row {row} is {value}: scales must be finite")]
    NonFiniteScale { row: usize, value: f32 },
    #[error("rotation block {block} must be a power of two that divides the dimension {dim}")]
    RotationBlock { block: usize, dim: usize },
    #[error("rotation channel {index} is {value}: channel scales must be finite")]
    NonFiniteChannel { index: usize, value: f32 },
    #[error("row {index} of a weight of {rows} rows")]
    Row { index: usize, rows: usize },
    #[error(
        "a row of this weight cannot be decoded alone: it is coded or rotated along its outputs"
    )]
    RowAccess,
    #[error(
        "words at byte {offset} with {len} words do not lie inside the mapped file of {file} bytes, or are not 4-byte aligned"
    )]
    Mapping { offset: usize, len: usize, file: usize },
}
