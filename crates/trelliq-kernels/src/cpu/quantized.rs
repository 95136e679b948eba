//! Activations in 16 bits.
//!
//! 128 of them share a scale, `max |x| / 32767`. A rounding error is at most half of that, in root mean
//! square `max |x| / 32767 / sqrt(12)`: relative to normally distributed activations 2.5e-5, and
//! `sqrt(128) / 32767 / sqrt(12) = 1.0e-4` at worst, where one activation dwarfs the others. That is an
//! expectation, so a product can be off by a little more. Rounding to f16 makes about 2e-4, less where
//! large activations happen to be numbers of f16.
//!
//! The sum of a group's products fits an i32 for the same 128: 128 * 510 * 32767 < 2^31.

use super::lanes::{LANES, Lanes, RUN};
use super::sums::CENTRE;
use crate::options::{sized, sized_with};

/// Vectors of 32 activations that share a scale.
pub(super) const GROUP_VECTORS: usize = 4;
/// Activations that share a scale.
pub(super) const GROUP: usize = GROUP_VECTORS * RUN;

const LARGEST: f32 = 32767.0;

/// Rows of activations, in memory that is reused.
#[derive(Debug, Default)]
pub(crate) struct Quants16 {
    vectors: Vec<Lanes<u32>>,
    floats: Vec<[Lanes<f32>; 2]>,
    scales: Vec<f32>,
    sums: Vec<i32>,
}

/// Quantized rows of x.
#[derive(Debug, Clone, Copy)]
pub(super) struct Quantized<'a> {
    /// Rows of x.
    pub m: usize,
    /// Vectors of a row; their lane `i` holds the elements `i` and `i + 16` of 32 in its halves.
    pub per_row: usize,
    /// `[m, per_row]`.
    pub vectors: &'a [Lanes<u32>],
    /// `[m, groups]`.
    pub scales: &'a [f32],
    /// 510 times the sum of a group, mod 2^32: `[m, groups]`.
    pub offsets: &'a [i32],
}

impl Quantized<'_> {
    /// Groups of a row.
    pub fn groups(&self) -> usize {
        self.per_row.div_ceil(GROUP_VECTORS)
    }

    /// The vectors of group `group` of row `m`.
    pub fn group(&self, m: usize, group: usize) -> &[Lanes<u32>] {
        let first = group * GROUP_VECTORS;
        let count = GROUP_VECTORS.min(self.per_row - first);
        &self.vectors[m * self.per_row + first..][..count]
    }
}

/// Rows of x in f32, in the arrangement of [`Quantized`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Grouped<'a> {
    /// Rows of x.
    pub m: usize,
    /// Vectors of a row.
    pub per_row: usize,
    /// The elements 0..16 and 16..32 of every 32, `[m, per_row]`; 0 past the last.
    vectors: &'a [[Lanes<f32>; 2]],
}

impl<'a> Grouped<'a> {
    /// The vectors of row `m` from vector `first` on, at most `count`.
    pub fn vectors(&self, m: usize, first: usize, count: usize) -> &'a [[Lanes<f32>; 2]] {
        let row = &self.vectors[m * self.per_row..(m + 1) * self.per_row];
        &row[first..self.per_row.min(first + count)]
    }
}

/// What byte sums are multiplied by.
#[derive(Debug, Clone, Copy)]
pub(super) enum Input<'a> {
    Int(Quantized<'a>),
    F32(Grouped<'a>),
}

impl Input<'_> {
    /// Rows of x.
    pub fn m(&self) -> usize {
        match self {
            Self::Int(x) => x.m,
            Self::F32(x) => x.m,
        }
    }

    /// Vectors of group `group`.
    pub fn group_vectors(&self, group: usize) -> usize {
        let per_row = match self {
            Self::Int(x) => x.per_row,
            Self::F32(x) => x.per_row,
        };
        GROUP_VECTORS.min(per_row - group * GROUP_VECTORS)
    }
}

impl Quants16 {
    /// Arranges `factor(i) * x[m, i]` for the `m` rows of `x`.
    pub(super) fn arrange(
        &mut self,
        x: &[f32],
        m: usize,
        factor: impl Fn(usize) -> f32,
    ) -> Grouped<'_> {
        let inputs = x.len() / m;
        let per_row = inputs.div_ceil(RUN);
        let vectors = sized_with(&mut self.floats, m * per_row, [Lanes::ZERO; 2]);
        for (x, vectors) in x.chunks_exact(inputs).zip(vectors.chunks_exact_mut(per_row)) {
            let pieces = x.chunks(LANES).chain(std::iter::repeat(&[][..])).enumerate();
            for ((index, x), lanes) in pieces.zip(vectors.as_flattened_mut()) {
                *lanes = Lanes::ZERO;
                for (i, (lane, x)) in lanes.0.iter_mut().zip(x).enumerate() {
                    *lane = x * factor(index * LANES + i);
                }
            }
        }
        Grouped { m, per_row, vectors }
    }

    /// Quantizes `factor(i) * x[m, i]` for the `m` rows of `x`.
    pub(super) fn quantize(
        &mut self,
        x: &[f32],
        m: usize,
        factor: impl Fn(usize) -> f32,
    ) -> Quantized<'_> {
        let inputs = x.len() / m;
        let (per_row, groups) = (inputs.div_ceil(RUN), inputs.div_ceil(GROUP));
        let vectors = sized_with(&mut self.vectors, m * per_row, Lanes::default());
        let scales = sized(&mut self.scales, m * groups);
        let offsets = sized(&mut self.sums, m * groups);
        for m in 0..m {
            let x = &x[m * inputs..(m + 1) * inputs];
            let vectors = &mut vectors[m * per_row..(m + 1) * per_row];
            let pieces = x.chunks(GROUP).zip(vectors.chunks_mut(GROUP_VECTORS));
            for (group, (x, vectors)) in pieces.enumerate() {
                let mut scaled = [0.0; GROUP];
                for (i, (scaled, x)) in scaled.iter_mut().zip(x).enumerate() {
                    *scaled = x * factor(group * GROUP + i);
                }
                let at = m * groups + group;
                (scales[at], offsets[at]) = quantize_group(&scaled, vectors);
            }
        }
        Quantized { m, per_row, vectors, scales, offsets }
    }
}

/// The scale of a group and its offset. A group that is not finite has the scale NaN, one too small
/// for a scale is zero.
fn quantize_group(x: &[f32; GROUP], vectors: &mut [Lanes<u32>]) -> (f32, i32) {
    // As integers, magnitudes are in order, and what is not finite comes last.
    let largest = x.iter().fold(0, |largest, x| largest.max(x.to_bits() & 0x7FFF_FFFF));
    let largest = f32::from_bits(largest);
    let inverse = LARGEST / largest;
    if !largest.is_finite() || !inverse.is_finite() {
        vectors.fill(Lanes::default());
        return (if largest.is_finite() { 0.0 } else { f32::NAN }, 0);
    }
    // To the nearest integer, ties to even: 1.5 * 2^23 + q has q in its low bits.
    const MAGIC: f32 = 12_582_912.0;
    let quants: [i32; GROUP] =
        std::array::from_fn(|i| (x[i] * inverse + MAGIC).to_bits() as i32 - MAGIC.to_bits() as i32);
    for (vector, quants) in vectors.iter_mut().zip(quants.as_chunks::<RUN>().0) {
        *vector = Lanes(std::array::from_fn(|i| {
            (quants[i] as u32 & 0xFFFF) | ((quants[i + LANES] as u32) << 16)
        }));
    }
    (largest / LARGEST, quants.iter().sum::<i32>() * CENTRE)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Elements of a row of one vector or more, from the halves.
    fn element(quantized: &Quantized<'_>, m: usize, i: usize) -> f64 {
        let vector = quantized.vectors[m * quantized.per_row + i / RUN].0[i % LANES];
        let half = if i % RUN < LANES { vector as i16 } else { (vector >> 16) as i16 };
        f64::from(half) * f64::from(quantized.scales[m * quantized.groups() + i / GROUP])
    }

    #[test]
    fn elements_are_off_by_half_a_step_at_most() {
        let n = 300;
        let x: Vec<f32> = (0..2 * n).map(|i| (i as f32 * 0.7).sin() * (i % 50) as f32).collect();
        let mut memory = Quants16::default();
        let quantized = memory.quantize(&x, 2, |i| if i < 200 { 1.0 } else { -2.0 });
        assert_eq!((quantized.per_row, quantized.groups()), (10, 3));
        for m in 0..2 {
            for i in 0..n {
                let expected = f64::from(x[m * n + i]) * if i < 200 { 1.0 } else { -2.0 };
                let step = f64::from(quantized.scales[m * 3 + i / GROUP]);
                assert!((element(&quantized, m, i) - expected).abs() < 0.501 * step, "{m} {i}");
            }
        }
    }

    #[test]
    fn offsets_are_sums_of_a_group() {
        let x: Vec<f32> = (0..130).map(|i| i as f32 - 40.0).collect();
        let mut memory = Quants16::default();
        let quantized = memory.quantize(&x, 1, |_| 1.0);
        for (group, range) in [(0, 0..GROUP), (1, GROUP..130)] {
            let scale = f64::from(quantized.scales[group]);
            let sum: f64 = range.map(|i| element(&quantized, 0, i) / scale).sum();
            assert_eq!(f64::from(quantized.offsets[group]), 510.0 * sum.round());
        }
    }

    #[test]
    fn what_is_not_finite_is_not_hidden() {
        let mut memory = Quants16::default();
        for (value, scale_is_nan) in
            [(f32::NAN, true), (f32::NEG_INFINITY, true), (0.0, false), (1e-40, false)]
        {
            let quantized = memory.quantize(&[value; 40], 1, |_| 1.0);
            assert_eq!(quantized.scales[0].is_nan(), scale_is_nan, "{value}");
            assert_eq!(quantized.offsets[0], 0);
            assert!(quantized.vectors.iter().all(|v| *v == Lanes::default()));
        }
    }
}
