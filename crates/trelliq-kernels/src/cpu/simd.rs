//! The vector operations that the integer kernels are written in, and the same in portable Rust.
//!
//! A vector is [`Simd::LANES`] 32-bit lanes of two 16-bit halves; sixteen lanes are a [`Lanes`], in
//! [`Simd::PARTS`] vectors. Operations are exact, so kernels give one result on all instruction sets.

use super::lanes::{LANES, Lanes};
use super::sums::CENTRE;
use half::{bf16, f16};

/// An instruction set. A value is the proof that the machine has it, so methods are safe.
pub(super) trait Simd: Copy {
    type V: Copy;

    /// 32-bit lanes of a vector.
    const LANES: usize;
    /// Vectors of sixteen lanes.
    const PARTS: usize = LANES / Self::LANES;

    fn splat16(self, value: u16) -> Self::V;
    fn splat32(self, value: u32) -> Self::V;
    /// The lanes `part * LANES..` of sixteen.
    fn load(self, from: &Lanes<u32>, part: usize) -> Self::V;
    fn store(self, value: Self::V, to: &mut Lanes<u32>, part: usize);

    /// The low half of `a` and the low half of `b`, which becomes the high one.
    fn low_low(self, a: Self::V, b: Self::V) -> Self::V;
    /// The low half of `a`, the high half of `b`.
    fn low_high(self, a: Self::V, b: Self::V) -> Self::V;
    /// The high half of `a`, which becomes the low one, and the low half of `b`.
    fn high_low(self, a: Self::V, b: Self::V) -> Self::V;
    /// The high half of `a`, which becomes the low one, and the high half of `b`.
    fn high_high(self, a: Self::V, b: Self::V) -> Self::V;

    /// Halves `(low >> shift) | (high << (16 - shift))`, 0 < shift < 16.
    fn funnel16(self, low: Self::V, high: Self::V, shift: u32) -> Self::V;
    fn shift_right16(self, a: Self::V, shift: u32) -> Self::V;
    fn and(self, a: Self::V, b: Self::V) -> Self::V;
    fn add16(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a + b + 1` where `low + addend` carries out of its half, else `a + b`; also `low + addend`.
    fn add_carry16(self, a: Self::V, b: Self::V, low: Self::V, addend: u16) -> (Self::V, Self::V);
    /// Low halves of unsigned products.
    fn mul_low16(self, a: Self::V, b: Self::V) -> Self::V;
    /// High halves of unsigned products.
    fn mul_high16(self, a: Self::V, b: Self::V) -> Self::V;
    /// The sum of the two bytes of each half of `a`, plus that of `b`.
    fn byte_sums(self, a: Self::V, b: Self::V) -> Self::V;
    /// `acc + a.low * b.low + a.high * b.high` in signed 32-bit lanes, wrapping.
    fn dot16(self, acc: Self::V, a: Self::V, b: Self::V) -> Self::V;
    fn add32(self, a: Self::V, b: Self::V) -> Self::V;
    /// Four words from `word` on of sixteen rows to lanes: `out[i][lane] = rows[lane][word + i]`.
    fn transpose4(self, rows: &[&[u32]; LANES], word: usize, out: &mut [Lanes<u32>; 4]);
    /// `out[i] = ` the sum of the lanes of `vectors[i]`, wrapping.
    fn fold(self, vectors: &[Self::V; 16], out: &mut [i32; 16]);
}

/// The vectors of f32 of an instruction set. Slices have [`Floats::WIDTH`] elements.
pub(super) trait Floats: Simd {
    type F: Copy;

    /// A float for each lane.
    const WIDTH: usize = Self::LANES;

    /// The low halves of byte sums, less [`CENTRE`], as floats.
    fn low_floats(self, sums: Self::V) -> Self::F;
    /// The same of the high halves.
    fn high_floats(self, sums: Self::V) -> Self::F;
    fn splat_f32(self, value: f32) -> Self::F;
    fn store_f32(self, value: Self::F, to: &mut [f32]);

    fn zero(self) -> Self::F;
    fn load_f32(self, from: &[f32]) -> Self::F;
    fn load_f16(self, from: &[f16]) -> Self::F;
    fn load_bf16(self, from: &[bf16]) -> Self::F;
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`.
    fn multiply_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    fn sum(self, a: Self::F) -> f32;

    /// `out[i] = ` the sum of the lanes of `vectors[i]`.
    #[inline(always)]
    fn fold_floats(self, vectors: &[Self::F; 16], out: &mut [f32; 16]) {
        for (out, v) in out.iter_mut().zip(vectors) {
            *out = self.sum(*v);
        }
    }
}

/// Words of sixteen rows to lanes: `out[w][lane] = rows[lane][w]`.
#[inline(always)]
pub(super) fn transpose<S: Simd>(simd: S, rows: &[&[u32]; LANES], out: &mut [Lanes<u32>]) {
    let count = out.len();
    let mut word = 0;
    while let Some(four) = out[word..].first_chunk_mut() {
        simd.transpose4(rows, word, four);
        word += 4;
    }
    if word == count {
        return;
    }
    // The last four words again, or fewer where there are not as many.
    if let Some(four) = out.last_chunk_mut() {
        return simd.transpose4(rows, count - 4, four);
    }
    for (word, out) in out.iter_mut().enumerate() {
        for (out, row) in out.0.iter_mut().zip(rows) {
            *out = row[word];
        }
    }
}

/// Portable Rust, a 128-bit vector.
#[derive(Clone, Copy)]
pub(super) struct Portable;

type Halves = [u16; 8];

#[inline(always)]
fn map2(a: Halves, b: Halves, f: impl Fn(u16, u16) -> u16) -> Halves {
    std::array::from_fn(|i| f(a[i], b[i]))
}

/// Pairs of halves, each from a lane of `a` and of `b`.
#[inline(always)]
fn pairs(a: Halves, b: Halves, from_a: usize, from_b: usize) -> Halves {
    std::array::from_fn(|i| if i % 2 == 0 { a[i + from_a] } else { b[i - 1 + from_b] })
}

#[inline(always)]
fn words(v: Halves) -> [u32; 4] {
    std::array::from_fn(|i| u32::from(v[2 * i]) | (u32::from(v[2 * i + 1]) << 16))
}

#[inline(always)]
fn halves(v: [u32; 4]) -> Halves {
    std::array::from_fn(|i| (v[i / 2] >> (16 * (i % 2))) as u16)
}

impl Simd for Portable {
    type V = Halves;
    const LANES: usize = 4;

    #[inline(always)]
    fn splat16(self, value: u16) -> Halves {
        [value; 8]
    }

    #[inline(always)]
    fn splat32(self, value: u32) -> Halves {
        halves([value; 4])
    }

    #[inline(always)]
    fn load(self, from: &Lanes<u32>, part: usize) -> Halves {
        halves(std::array::from_fn(|i| from.0[4 * part + i]))
    }

    #[inline(always)]
    fn store(self, value: Halves, to: &mut Lanes<u32>, part: usize) {
        to.0[4 * part..4 * part + 4].copy_from_slice(&words(value));
    }

    #[inline(always)]
    fn low_low(self, a: Halves, b: Halves) -> Halves {
        pairs(a, b, 0, 0)
    }

    #[inline(always)]
    fn low_high(self, a: Halves, b: Halves) -> Halves {
        pairs(a, b, 0, 1)
    }

    #[inline(always)]
    fn high_low(self, a: Halves, b: Halves) -> Halves {
        pairs(a, b, 1, 0)
    }

    #[inline(always)]
    fn high_high(self, a: Halves, b: Halves) -> Halves {
        pairs(a, b, 1, 1)
    }

    #[inline(always)]
    fn funnel16(self, low: Halves, high: Halves, shift: u32) -> Halves {
        map2(low, high, |low, high| (low >> shift) | (high << (16 - shift)))
    }

    #[inline(always)]
    fn shift_right16(self, a: Halves, shift: u32) -> Halves {
        a.map(|a| a >> shift)
    }

    #[inline(always)]
    fn and(self, a: Halves, b: Halves) -> Halves {
        map2(a, b, |a, b| a & b)
    }

    #[inline(always)]
    fn add16(self, a: Halves, b: Halves) -> Halves {
        map2(a, b, u16::wrapping_add)
    }

    #[inline(always)]
    fn add_carry16(self, a: Halves, b: Halves, low: Halves, addend: u16) -> (Halves, Halves) {
        let sum = low.map(|low| low.wrapping_add(addend));
        let carried = self.add16(a, b);
        (map2(carried, sum, |v, sum| v.wrapping_add(u16::from(sum < addend))), sum)
    }

    #[inline(always)]
    fn mul_low16(self, a: Halves, b: Halves) -> Halves {
        map2(a, b, u16::wrapping_mul)
    }

    #[inline(always)]
    fn mul_high16(self, a: Halves, b: Halves) -> Halves {
        map2(a, b, |a, b| ((u32::from(a) * u32::from(b)) >> 16) as u16)
    }

    #[inline(always)]
    fn byte_sums(self, a: Halves, b: Halves) -> Halves {
        map2(a, b, |a, b| (a & 0xFF) + (a >> 8) + (b & 0xFF) + (b >> 8))
    }

    #[inline(always)]
    fn dot16(self, acc: Halves, a: Halves, b: Halves) -> Halves {
        let product = |i: usize| i32::from(a[i] as i16) * i32::from(b[i] as i16);
        let acc = words(acc);
        halves(std::array::from_fn(|i| {
            let sum = product(2 * i).wrapping_add(product(2 * i + 1));
            acc[i].wrapping_add(sum as u32)
        }))
    }

    #[inline(always)]
    fn add32(self, a: Halves, b: Halves) -> Halves {
        let (a, b) = (words(a), words(b));
        halves(std::array::from_fn(|i| a[i].wrapping_add(b[i])))
    }

    #[inline(always)]
    fn transpose4(self, rows: &[&[u32]; LANES], word: usize, out: &mut [Lanes<u32>; 4]) {
        for (lane, row) in rows.iter().enumerate() {
            for (out, value) in out.iter_mut().zip(&row[word..word + 4]) {
                out.0[lane] = *value;
            }
        }
    }

    #[inline(always)]
    fn fold(self, vectors: &[Halves; 16], out: &mut [i32; 16]) {
        for (out, v) in out.iter_mut().zip(vectors) {
            *out = words(*v).into_iter().fold(0u32, u32::wrapping_add) as i32;
        }
    }
}

/// An f16 as f32, without branches: the exponent is moved and its bias mended by a product, which is
/// exact, subnormal numbers included.
#[inline(always)]
fn widen(half: u16) -> f32 {
    const BIAS: f32 = f32::from_bits((127 + 112) << 23);
    let magnitude = u32::from(half & 0x7FFF) << 13;
    let sign = u32::from(half & 0x8000) << 16;
    let special = if magnitude >= 31 << 23 { 0x7F80_0000 } else { 0 };
    f32::from_bits((f32::from_bits(magnitude) * BIAS).to_bits() | special | sign)
}

impl Floats for Portable {
    type F = [f32; 4];

    #[inline(always)]
    fn low_floats(self, sums: Halves) -> [f32; 4] {
        words(sums).map(|lane| ((lane & 0xFFFF) as i32 - CENTRE) as f32)
    }

    #[inline(always)]
    fn high_floats(self, sums: Halves) -> [f32; 4] {
        words(sums).map(|lane| ((lane >> 16) as i32 - CENTRE) as f32)
    }

    #[inline(always)]
    fn splat_f32(self, value: f32) -> [f32; 4] {
        [value; 4]
    }

    #[inline(always)]
    fn store_f32(self, value: [f32; 4], to: &mut [f32]) {
        to[..4].copy_from_slice(&value);
    }

    #[inline(always)]
    fn zero(self) -> [f32; 4] {
        [0.0; 4]
    }

    #[inline(always)]
    fn load_f32(self, from: &[f32]) -> [f32; 4] {
        std::array::from_fn(|i| from[i])
    }

    #[inline(always)]
    fn load_f16(self, from: &[f16]) -> [f32; 4] {
        std::array::from_fn(|i| widen(from[i].to_bits()))
    }

    #[inline(always)]
    fn load_bf16(self, from: &[bf16]) -> [f32; 4] {
        std::array::from_fn(|i| f32::from_bits(u32::from(from[i].to_bits()) << 16))
    }

    #[inline(always)]
    fn add(self, a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| a[i] + b[i])
    }

    #[inline(always)]
    fn multiply_add(self, a: [f32; 4], b: [f32; 4], c: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }

    #[inline(always)]
    fn sum(self, a: [f32; 4]) -> f32 {
        (a[0] + a[2]) + (a[1] + a[3])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_widens_to_its_value() {
        for bits in 0..=u16::MAX {
            let (found, expected) = (widen(bits), f16::from_bits(bits).to_f32());
            assert!(
                found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan()),
                "{bits:#x}"
            );
        }
    }
}
