//! Block formats to f32, by candle's block types.

use crate::BlockType;
use candle_core::quantized::k_quants::{
    BlockQ2K, BlockQ3K, BlockQ4_0, BlockQ4_1, BlockQ4K, BlockQ5_0, BlockQ5_1, BlockQ5K, BlockQ6K,
    BlockQ8_0, BlockQ8K, GgmlType,
};

/// Blocks that pass through the aligned buffer at once.
const BATCH: usize = 64;

/// Dequantizes whole blocks, leaving out the first `skip` weights (fewer than a block's) and all
/// that `out` has no room for. `bytes` holds exactly the blocks that `skip` and `out` touch.
pub(crate) fn dequantize(block: BlockType, bytes: &[u8], skip: usize, out: &mut [f32]) {
    match block {
        BlockType::Q4_0 => run::<BlockQ4_0>(bytes, skip, out),
        BlockType::Q4_1 => run::<BlockQ4_1>(bytes, skip, out),
        BlockType::Q5_0 => run::<BlockQ5_0>(bytes, skip, out),
        BlockType::Q5_1 => run::<BlockQ5_1>(bytes, skip, out),
        BlockType::Q8_0 => run::<BlockQ8_0>(bytes, skip, out),
        BlockType::Q2_K => run::<BlockQ2K>(bytes, skip, out),
        BlockType::Q3_K => run::<BlockQ3K>(bytes, skip, out),
        BlockType::Q4_K => run::<BlockQ4K>(bytes, skip, out),
        BlockType::Q5_K => run::<BlockQ5K>(bytes, skip, out),
        BlockType::Q6_K => run::<BlockQ6K>(bytes, skip, out),
        BlockType::Q8_K => run::<BlockQ8K>(bytes, skip, out),
    }
}

/// A format's blocks of plain integers and floats: any bytes are a valid block.
///
/// # Safety
/// Implement only for `repr(C)` types without padding whose fields all accept every bit pattern.
unsafe trait AnyBytes: GgmlType + Clone {}

macro_rules! any_bytes {
    ($($block:ty),*) => { $(
        // SAFETY: candle declares these blocks `repr(C)` after ggml-common.h, of f16, f32, u8, i8
        // and i16 fields that leave no padding (it asserts their sizes), where every bit pattern is
        // valid.
        unsafe impl AnyBytes for $block {}
    )* };
}
any_bytes!(BlockQ4_0, BlockQ4_1, BlockQ5_0, BlockQ5_1, BlockQ8_0);
any_bytes!(BlockQ2K, BlockQ3K, BlockQ4K, BlockQ5K, BlockQ6K, BlockQ8K);

fn run<T: AnyBytes>(bytes: &[u8], mut skip: usize, mut out: &mut [f32]) {
    let mut blocks = vec![T::zeros(); BATCH];
    let mut values = vec![0.0f32; BATCH * T::BLCK_SIZE];
    for bytes in bytes.chunks(BATCH * size_of::<T>()) {
        let blocks = &mut blocks[..bytes.len() / size_of::<T>()];
        // SAFETY: `blocks` is aligned and writable for its own size, `AnyBytes` allows any bytes in
        // it, and the two slices are distinct memory of at least `size_of_val(blocks)` bytes.
        unsafe {
            let to = blocks.as_mut_ptr().cast::<u8>();
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, size_of_val(blocks));
        }
        let values = &mut values[..blocks.len() * T::BLCK_SIZE];
        T::to_float(blocks, values);
        let from = &values[skip.min(values.len())..];
        let take = from.len().min(out.len());
        out[..take].copy_from_slice(&from[..take]);
        out = &mut out[take..];
        skip = 0;
    }
}
