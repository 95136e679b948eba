//! Element types of stored tensors.

use safetensors::Dtype;
use std::fmt;

/// How a tensor's elements are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TensorType {
    /// One element after the other, as in safetensors.
    Plain(Dtype),
    /// Blocks of elements that share scales, as in GGUF.
    Block(BlockType),
}

impl TensorType {
    /// Elements of a block: the granularity at which the storage can be cut.
    pub fn block_len(self) -> usize {
        match self {
            TensorType::Plain(dtype) if dtype.bitsize() % 8 != 0 => 8,
            TensorType::Plain(_) => 1,
            TensorType::Block(block) => block.block_len(),
        }
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> usize {
        match self {
            TensorType::Plain(dtype) => dtype.bitsize() * self.block_len() / 8,
            TensorType::Block(block) => block.block_bytes(),
        }
    }

    /// Whether [`crate::ModelSource::read_f32`] can widen the elements.
    pub fn is_float(self) -> bool {
        let plain = |d| matches!(d, Dtype::F16 | Dtype::BF16 | Dtype::F32);
        match self {
            TensorType::Plain(dtype) => plain(dtype),
            TensorType::Block(_) => true,
        }
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TensorType::Plain(dtype) => write!(f, "{dtype}"),
            TensorType::Block(block) => f.write_str(block.name()),
        }
    }
}

/// Block formats of GGUF files (`ggml_type` in ggml.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types, reason = "the field writes these names so")]
pub enum BlockType {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    Q8_K,
}

impl BlockType {
    pub const ALL: [BlockType; 11] = [
        BlockType::Q4_0,
        BlockType::Q4_1,
        BlockType::Q5_0,
        BlockType::Q5_1,
        BlockType::Q8_0,
        BlockType::Q2_K,
        BlockType::Q3_K,
        BlockType::Q4_K,
        BlockType::Q5_K,
        BlockType::Q6_K,
        BlockType::Q8_K,
    ];

    pub fn name(self) -> &'static str {
        match self {
            BlockType::Q4_0 => "Q4_0",
            BlockType::Q4_1 => "Q4_1",
            BlockType::Q5_0 => "Q5_0",
            BlockType::Q5_1 => "Q5_1",
            BlockType::Q8_0 => "Q8_0",
            BlockType::Q2_K => "Q2_K",
            BlockType::Q3_K => "Q3_K",
            BlockType::Q4_K => "Q4_K",
            BlockType::Q5_K => "Q5_K",
            BlockType::Q6_K => "Q6_K",
            BlockType::Q8_K => "Q8_K",
        }
    }

    /// Weights of a block: 32, or 256 for the K-quants.
    pub fn block_len(self) -> usize {
        use BlockType::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
        if matches!(self, Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0) { 32 } else { 256 }
    }

    /// Bytes of a block (ggml-common.h: scales, then packed integers).
    pub fn block_bytes(self) -> usize {
        match self {
            BlockType::Q4_0 => 2 + 16,
            BlockType::Q4_1 => 4 + 16,
            BlockType::Q5_0 => 2 + 4 + 16,
            BlockType::Q5_1 => 4 + 4 + 16,
            BlockType::Q8_0 => 2 + 32,
            BlockType::Q2_K => 4 + 16 + 64,
            BlockType::Q3_K => 2 + 12 + 32 + 64,
            BlockType::Q4_K => 4 + 12 + 128,
            BlockType::Q5_K => 4 + 12 + 32 + 128,
            BlockType::Q6_K => 2 + 16 + 64 + 128,
            BlockType::Q8_K => 4 + 256 + 32,
        }
    }
}
